//! Locks in a PostgreSQL database.

mod failure;
mod listen;
mod options;
mod server;
mod session;
mod statements;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{ClaimRequest, LockId};
use dlock_core::{Backend, Capabilities, Error, Failure, Holder, Key, Operation, Result};
use sqlx::PgPool;

pub use options::PostgresOptions;
use server::PostgresRows;
pub use session::{PostgresRowLocks, PostgresSessions};

use crate::rows::{RowClaim, Rows, Server};

/// A claim on a lock of [`Postgres`].
pub type PostgresClaim = RowClaim<PostgresRows>;

/// Waiters are told of releases; this often they ask in case that does not get through.
const SAFETY_NET: Duration = Duration::from_secs(1);
/// How often waiters ask where they are told of nothing.
const POLLING: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));

/// Locks in a table of a PostgreSQL database.
///
/// A lock is a row with a lease by the server's clock: whoever holds it renews it, and when its holder dies it is free once
/// the lease has run out. A lock is taken by one statement and given back by one, each a transaction by itself: no connection
/// is kept while a lock is held. Every grant has a [fence](dlock_core::Fence). Who waits is told of the release (`LISTEN`).
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
/// * **The server's clock.** When it is set forward, leases end early: somebody else may be given a lock that its holder
///   counts as his until the next renewal, a third of the lease later at the most. The fences stay in order.
/// * **One primary.** After a failover to a standby that had not received the last transactions, a lock may be granted
///   twice. Synchronous replication prevents it.
/// * **Power loss.** With `synchronous_commit = off` the last grants may be missing after a crash.
///
/// Clones share everything, so that a clone can be kept for [`holders`](Self::holders) and the like.
#[derive(Clone)]
pub struct Postgres {
    rows: Arc<Rows<PostgresRows>>,
    notified: bool,
}

impl Postgres {
    /// Connects to the server that `url` names, where the table was [made](PostgresOptions::migrate). The URL is
    /// `postgres://user:password@host:port/database`, with the parameters of [`PostgresOptions::from_url`].
    ///
    /// # Errors
    ///
    /// As [`PostgresOptions::from_url`] and [`PostgresOptions::connect`].
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn connect(url: &str) -> Result<Self> {
        PostgresOptions::from_url(url)?.connect().await
    }

    /// Locks in the table `dlock` of the database that `pool` leads to.
    ///
    /// Attempts go over connections of the pool. Renewals and releases never wait for one: they have up to two connections
    /// of their own, and waiting has a third, all opened with the pool's settings. Nothing is set on any connection.
    ///
    /// # Errors
    ///
    /// As [`PostgresOptions::connect`].
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn from_pool(pool: &PgPool) -> Result<Self> {
        PostgresOptions::from_pool(pool).connect().await
    }

    /// All locks that are held, by key.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](dlock_core::ErrorKind::Unavailable) and others as in [`PostgresOptions::connect`].
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn holders(&self) -> Result<Vec<(Key, Holder)>> {
        self.rows
            .holders()
            .await
            .map_err(|failure| Error::new(Operation::Inspect, failure).on(PostgresRows::NAME))
    }

    /// Frees a lock whoever holds it, and says whether anybody did. The holder is told at the next renewal; until then he
    /// may go on, and only resources that check fences are protected from him: the next grant has a higher one.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unknown`](dlock_core::ErrorKind::Unknown) when the answer did not come; call it again. Others as in
    /// [`PostgresOptions::connect`], and [`ErrorKind::InvalidKey`](dlock_core::ErrorKind::InvalidKey).
    ///
    /// # Cancel safety
    ///
    /// When dropped, the lock may still be freed.
    pub async fn force_release(&self, key: &str) -> Result<bool> {
        let forced = async { self.rows.force(&Key::new(key)?).await };
        forced.await.map_err(|failure| Error::new(Operation::Release, failure).on(PostgresRows::NAME))
    }

    /// Deletes the rows of keys that are free and whose last lease ended, or would have ended, more than `older_than` (at
    /// least a minute) ago, and says how many. Fences go on growing: the table keeps the highest one. Needs the right to
    /// `DELETE`.
    ///
    /// # Errors
    ///
    /// As [`PostgresOptions::connect`]. Some rows may have been deleted.
    ///
    /// # Cancel safety
    ///
    /// When dropped midway, some rows may have been deleted.
    pub async fn prune(&self, older_than: Duration) -> Result<u64> {
        let pruned = self.rows.prune(older_than).await;
        pruned.map_err(|failure| Error::new(Operation::Configure, failure).on(PostgresRows::NAME))
    }
}

impl Backend for Postgres {
    type Claim = PostgresClaim;

    fn name(&self) -> &'static str {
        PostgresRows::NAME
    }

    fn capabilities(&self) -> Capabilities {
        let basic =
            Capabilities::basic().with_fencing().with_administration().with_polling(POLLING.0, POLLING.1);
        if self.notified { basic.with_notifications(SAFETY_NET) } else { basic }
    }

    fn lock_id(&self, key: &Key) -> LockId {
        self.rows.lock_id(key)
    }

    fn claim(&self, request: ClaimRequest) -> PostgresClaim {
        self.rows.claim(request)
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Holder>, Failure> {
        self.rows.inspect(key).await
    }

    async fn holders(&self) -> Result<Vec<(Key, Holder)>, Failure> {
        self.rows.holders().await
    }

    async fn force_release(&self, key: &Key) -> Result<bool, Failure> {
        self.rows.force(key).await
    }

    async fn close(&self) {
        self.rows.close().await;
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Postgres").field(&self.rows).finish()
    }
}
