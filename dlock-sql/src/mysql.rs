//! Locks in a MariaDB or MySQL database.

mod failure;
mod options;
mod server;
mod session;
mod statements;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{ClaimRequest, LockId};
use dlock_core::{Backend, Capabilities, Error, Failure, Holder, Key, Operation, Result};
use sqlx::MySqlPool;

pub use options::MysqlOptions;
use server::MysqlRows;
pub use session::{MysqlRowLocks, MysqlSessions};

use crate::rows::{RowClaim, Rows, Server};

/// A claim on a lock of [`Mysql`].
pub type MysqlClaim = RowClaim<MysqlRows>;

/// How often waiters ask.
const POLLING: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));

/// Locks in a table of a MariaDB or MySQL database.
///
/// A lock is a row with a lease by the server's clock: whoever holds it renews it, and when its holder dies it is free once
/// the lease has run out. A lock is taken by one statement (more when it is busy, or was never held before) and given
/// back by one, each a transaction by itself: no connection is kept while a lock is held. Every grant has a
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
/// Tested on MariaDB 10.11. On MySQL 8 it uses only what its documentation promises.
///
/// # What it relies on, and what it does not guarantee
///
/// * **The server's clock.** When it is set forward, leases end early: somebody else may be given a lock that its holder
///   counts as his until the next renewal, a third of the lease later at the most. The fences stay in order.
/// * **One primary.** After a failover to a replica that had not received the last transactions, a lock may be granted
///   twice. Semi-synchronous replication that waits for the replica prevents it; so does a Galera cluster that is
///   written to through one node only.
/// * **Power loss.** With `innodb_flush_log_at_trx_commit` other than 1 the last grants may be missing after a crash.
/// * **Order.** Waiters of one process are served in their order. Between processes the lock goes to whoever asks first
///   after the release; they ask every 5 to 200 ms, less often the longer they wait.
///
/// Clones share everything, so that a clone can be kept for [`holders`](Self::holders) and the like.
#[derive(Clone)]
pub struct Mysql(Arc<Rows<MysqlRows>>);

impl Mysql {
    /// Connects to the server that `url` names, where the table was [made](MysqlOptions::migrate). The URL is
    /// `mysql://user:password@host:port/database`, with the parameters of [`MysqlOptions::from_url`].
    ///
    /// # Errors
    ///
    /// As [`MysqlOptions::from_url`] and [`MysqlOptions::connect`].
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn connect(url: &str) -> Result<Self> {
        MysqlOptions::from_url(url)?.connect().await
    }

    /// Locks in the table `dlock` of the database that `pool` leads to.
    ///
    /// Attempts go over connections of the pool. Renewals and releases never wait for one: they have up to two connections
    /// of their own, opened with the pool's settings. Nothing is set on any connection.
    ///
    /// # Errors
    ///
    /// As [`MysqlOptions::connect`].
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn from_pool(pool: &MySqlPool) -> Result<Self> {
        MysqlOptions::from_pool(pool).connect().await
    }

    /// All locks that are held, by key.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](dlock_core::ErrorKind::Unavailable) and others as in [`MysqlOptions::connect`].
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn holders(&self) -> Result<Vec<(Key, Holder)>> {
        self.0.holders().await.map_err(|failure| Error::new(Operation::Inspect, failure).on(MysqlRows::NAME))
    }

    /// Frees a lock whoever holds it, and says whether anybody did. The holder is told at the next renewal; until then he
    /// may go on, and only resources that check fences are protected from him: the next grant has a higher one.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unknown`](dlock_core::ErrorKind::Unknown) when the answer did not come; call it again. Others as in
    /// [`MysqlOptions::connect`], and [`ErrorKind::InvalidKey`](dlock_core::ErrorKind::InvalidKey).
    ///
    /// # Cancel safety
    ///
    /// When dropped, the lock may still be freed.
    pub async fn force_release(&self, key: &str) -> Result<bool> {
        let forced = async { self.0.force(&Key::new(key)?).await };
        forced.await.map_err(|failure| Error::new(Operation::Release, failure).on(MysqlRows::NAME))
    }

    /// Deletes the rows of keys that are free and whose last lease ended, or would have ended, more than `older_than` (at
    /// least a minute) ago, and says how many. Fences go on growing: the table keeps the highest one. Needs the right to
    /// `DELETE`.
    ///
    /// # Errors
    ///
    /// As [`MysqlOptions::connect`]. Some rows may have been deleted.
    ///
    /// # Cancel safety
    ///
    /// When dropped midway, some rows may have been deleted.
    pub async fn prune(&self, older_than: Duration) -> Result<u64> {
        let pruned = self.0.prune(older_than).await;
        pruned.map_err(|failure| Error::new(Operation::Configure, failure).on(MysqlRows::NAME))
    }
}

impl Backend for Mysql {
    type Claim = MysqlClaim;

    fn name(&self) -> &'static str {
        MysqlRows::NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::basic().with_fencing().with_administration().with_polling(POLLING.0, POLLING.1)
    }

    fn lock_id(&self, key: &Key) -> LockId {
        self.0.lock_id(key)
    }

    fn claim(&self, request: ClaimRequest) -> MysqlClaim {
        self.0.claim(request)
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Holder>, Failure> {
        self.0.inspect(key).await
    }

    async fn holders(&self) -> Result<Vec<(Key, Holder)>, Failure> {
        self.0.holders().await
    }

    async fn force_release(&self, key: &Key) -> Result<bool, Failure> {
        self.0.force(key).await
    }

    async fn close(&self) {
        self.0.close().await;
    }
}

impl fmt::Debug for Mysql {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Mysql").field(&self.0).finish()
    }
}
