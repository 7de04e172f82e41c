//! Locks in a MariaDB or MySQL database.

mod answers;
mod carry;
mod diagnosis;
mod failure;
mod lease;
mod line;
mod server;
mod session;
mod shares;
mod statements;
mod table;
mod values;

pub use server::MysqlServer;
pub use session::{MysqlRowLocks, MysqlSessions};
#[cfg(feature = "tx")]
pub(crate) use table::check_engine;

use crate::lease_rows::LeaseRows;
use crate::options::ServerOptions;
use crate::rows::RowClaim;

const PROCEDURES: &str = include_str!("mysql/procedures.sql");

/// The place of the locks: a MariaDB or MySQL server, and a table there.
pub type MysqlOptions = ServerOptions<MysqlServer>;

/// A claim on a lock of [`Mysql`].
pub type MysqlClaim = RowClaim<MysqlServer>;

/// Locks in a table of a MariaDB or MySQL database.
///
/// A lock is a row with a lease by the server's clock: its holder renews it, and when the holder dies it is free once
/// the lease has run out. A lock is taken by one statement (more when it is busy, or was never held before) and
/// released by one, each a transaction by itself: no connection is kept while a lock is held. Every grant has a
/// [fence](dlock_core::Fence).
///
/// ```no_run
/// # async fn example() -> Result<(), dlock_core::Error> {
/// use dlock_core::Locks;
/// use dlock_sql::{Mysql, MysqlOptions};
///
/// let url = "mysql://app:password@db.internal/shop?ssl-mode=verify_identity";
/// MysqlOptions::from_url(url)?.migrate().await?; // once, at deployment
/// let locks = Locks::new(Mysql::connect(url).await?);
/// let guard = locks.lock("room_7").acquire().await?;
/// println!("mine, with fence {:?}", guard.fence());
/// guard.release().await?;
/// # Ok(()) }
/// ```
///
/// Tested on MariaDB 10.11 and on MySQL 8.0.15.
///
/// # What it relies on, and what it does not guarantee
///
/// * **The server's clock.** When it is set forward, leases end early: another process may be granted a lock that its
///   holder still counts as its own until the next renewal, a third of the lease later at the most. The fences stay in
///   order.
/// * **One primary.** After a failover to a replica that had not received the last transactions, a lock may be granted
///   twice. Semi-synchronous replication that waits for the replica prevents it; so does a Galera cluster that is
///   written to through one node only.
/// * **Power loss.** With `innodb_flush_log_at_trx_commit` other than 1 the last grants may be missing after a crash.
/// * **Order.** Waiters of one process are served in their order. Between processes the lock goes to the first that
///   asks after the release; they ask every 5 to 200 ms, less often the longer one holder keeps it.
pub type Mysql = LeaseRows<MysqlServer>;

impl MysqlOptions {
    /// Returns the script that makes the table, as [`migrate`](Self::migrate) does, with the rights of a service as
    /// comments: for an administrator who runs it with the client `mariadb` or `mysql`. To run it again changes
    /// nothing. A driver takes its statements one by one.
    ///
    /// ```
    /// # fn example() -> dlock_core::Result<()> {
    /// let options = dlock_sql::MysqlOptions::from_url("mysql://localhost")?.with_table("shop.dlock")?;
    /// std::fs::write("schema.sql", options.schema()).expect("a file");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn schema(&self) -> String {
        statements::SCHEMA.replace("{table}", &self.settings.table.quoted('`'))
    }

    /// Returns the statements that make `dlock_take`, `dlock_renew`, `dlock_release`, `dlock_hand_over` and
    /// `dlock_take_over`, version 1, and the `dlock_check` that each of them calls: procedures by which programs that
    /// do not use dlock take the lock rows of this table, give and take batons, and are respected. The owner of the
    /// table runs them once, one after the other; to run them again does no harm. Each is one statement for a driver;
    /// the command line clients take the file `procedures.sql`, which says `DELIMITER`.
    #[must_use]
    pub fn procedures(&self) -> Vec<String> {
        let all = PROCEDURES.replace("{table}", &self.settings.table.quoted('`'));
        let lines = all.lines().filter(|line| !line.starts_with("--") && !line.starts_with("DELIMITER"));
        let statements = lines.collect::<Vec<_>>().join("\n");
        let statements = statements.split("//").map(str::trim);
        statements.filter(|statement| !statement.is_empty()).map(str::to_owned).collect()
    }
}
