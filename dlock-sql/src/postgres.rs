//! Locks in a PostgreSQL database.

mod answers;
mod carry;
mod diagnosis;
mod failure;
mod lease;
mod line;
mod listen;
mod named;
mod names;
mod server;
mod session;
mod shares;
mod statements;
mod table;
mod values;

pub use server::PostgresServer;
pub use session::{PostgresRowLocks, PostgresSessions};

use crate::lease_rows::LeaseRows;
use crate::options::ServerOptions;
use crate::rows::RowClaim;

const FUNCTIONS: &str = include_str!("postgres/functions.sql");

/// The place of the locks: a PostgreSQL server, and a table there.
pub type PostgresOptions = ServerOptions<PostgresServer>;

/// A claim on a lock of [`Postgres`].
pub type PostgresClaim = RowClaim<PostgresServer>;

/// Locks in a table of a PostgreSQL database.
///
/// A lock is a row with a lease by the server's clock: its holder renews it, and when the holder dies it is free once
/// the lease has run out. A lock is taken by one statement and released by one, each a transaction by itself: no
/// connection is kept while a lock is held. Every grant has a [fence](dlock_core::Fence). Waiters are notified of the
/// release (`LISTEN`).
///
/// ```no_run
/// # async fn example() -> Result<(), dlock_core::Error> {
/// use dlock_core::Locks;
/// use dlock_sql::{Postgres, PostgresOptions};
///
/// let url = "postgres://app:password@db.internal/shop?sslmode=verify-full";
/// PostgresOptions::from_url(url)?.migrate().await?; // once, at deployment
/// let locks = Locks::new(Postgres::connect(url).await?);
/// let guard = locks.lock("room_7").acquire().await?;
/// println!("mine, with fence {:?}", guard.fence());
/// guard.release().await?;
/// # Ok(()) }
/// ```
///
/// # What it relies on, and what it does not guarantee
///
/// * **The server's clock.** When it is set forward, leases end early: another process may be granted a lock that its
///   holder still counts as its own until the next renewal, a third of the lease later at the most. The fences stay in
///   order.
/// * **One primary.** After a failover to a standby that had not received the last transactions, a lock may be granted
///   twice. Synchronous replication prevents it.
/// * **Power loss.** With `synchronous_commit = off` the last grants may be missing after a crash.
pub type Postgres = LeaseRows<PostgresServer>;

impl PostgresOptions {
    /// Returns the script that makes the table, as [`migrate`](Self::migrate) does, with the rights of a service as
    /// comments: for an administrator who runs it with `psql`. To run it again changes nothing. A table that is named
    /// without its schema is made where the search path of the session leads.
    ///
    /// ```
    /// # fn example() -> dlock_core::Result<()> {
    /// let options = dlock_sql::PostgresOptions::from_url("postgres://localhost")?.with_table("public.dlock")?;
    /// std::fs::write("schema.sql", options.schema()).expect("a file");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn schema(&self) -> String {
        statements::SCHEMA.replace("{table}", &self.settings.table.quoted('"'))
    }

    /// Returns the statements that make `dlock_take`, `dlock_renew`, `dlock_release`, `dlock_hand_over` and
    /// `dlock_take_over`, version 1: functions by which programs that do not use dlock take the lock rows of this
    /// table, give and take batons, and are respected. The owner of the table runs them once, as one script; to run
    /// them again does no harm. Where the table is named without its schema, the script finds it as dlock does. It
    /// fails where there are several such tables, or only one outside the search path that belongs to another user.
    ///
    /// ```
    /// # fn example() -> dlock_core::Result<()> {
    /// let options = dlock_sql::PostgresOptions::from_url("postgres://app@db.internal/shop")?;
    /// std::fs::write("functions.sql", options.functions()).expect("a file");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn functions(&self) -> String {
        let table = &self.settings.table;
        if table.schema().is_some() {
            return FUNCTIONS.replace("{table}", &table.quoted('"'));
        }
        format!(
            "DO $dlock$\nDECLARE\n    tables text[];\nBEGIN\n    \
             SELECT array_agg(format('%I.%I', nspname, relname)) INTO tables {} AND {};\n    \
             IF cardinality(tables) IS DISTINCT FROM 1 THEN\n        \
             RAISE EXCEPTION 'table {table} is in % schemas that can be trusted; name it with its schema', \
             coalesce(cardinality(tables), 0);\n    END IF;\n    \
             EXECUTE format($functions$\n{}$functions$, tables[1]);\nEND\n$dlock$;\n",
            statements::named(table),
            statements::IS_TRUSTED,
            FUNCTIONS.replace("{table}", "%1$s")
        )
    }

    /// Sets whether waiters are notified of releases, over one connection for all of them. Default yes; a proxy that
    /// pools transactions does not pass on notifications, and without them asking more often is better.
    pub const fn with_notifications(mut self, on: bool) -> Self {
        self.settings.notified = on;
        self
    }

    /// Sets whether statements are sent whole, with their values in them, so that nothing is prepared on a connection.
    /// Default no: prepared statements cost both sides less. For proxies that pool transactions and do not know
    /// prepared statements, such as PgBouncer before 1.21. Each statement is one message then, an acquire one round
    /// trip; and notifications, which such proxies do not pass on, are off unless they are switched on afterwards. For
    /// lease rows only.
    pub const fn with_simple_statements(mut self, on: bool) -> Self {
        self.settings.simple = on;
        self.settings.notified = !on;
        self
    }
}
