//! Locks for the processes of one host, in a SQLite database.

mod boot;
mod claim;
mod connections;
mod database;
mod diagnosis;
mod failure;
mod file;
mod line;
mod options;
mod presence;
mod renewals;
mod row;
mod schema;
mod shared;
mod shares;
mod statements;
mod time;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{
    Administration, BatchAttempt, BoxedFuture, ClaimRequest, Finding, Forced, LockId, Occupancy, boxed,
};
use dlock_core::{Backend, Capabilities, Error, Failure, Holder, Key, Operation, Result};

pub use claim::SqliteClaim;
pub use options::SqliteOptions;

use connections::Until;
use database::Database;
use options::{NAME, refuse};
use shared::Shared;

use crate::keeper_task::detached;

/// Locks for the processes of one host, in a SQLite database.
///
/// A lock is a row with a lease: its holder renews it, and when the holder dies it is free once the lease has run out.
/// A lock is taken by one statement and released by one, about 0.1 ms each. Every grant has a
/// [fence](dlock_core::Fence), which also grows across releases, [`prune`](Self::prune), and rows that are deleted by
/// hand.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
/// # let directory = tempfile::tempdir().unwrap();
/// # let url = format!("sqlite://{}/locks.db", directory.path().display());
/// use dlock_core::Locks;
/// use dlock_sql::Sqlite;
///
/// // let url = "sqlite:///var/lib/shop/locks.db";
/// let locks = Locks::new(Sqlite::connect(&url).await?);
/// let guard = locks.lock("room_7").acquire().await?;
/// println!("mine, with fence {:?}", guard.fence());
/// guard.release().await?;
/// # Ok(()) }
/// ```
///
/// # What it relies on, and what it does not guarantee
///
/// * **One kernel.** All processes run on the host whose disk the file is on. Network file systems that can be
///   recognised are refused; containers may share a file when they share the host's kernel, and mount its directory. A
///   file that is mounted by itself is refused, and so is one with a mount over a file beside it, or with hard links.
/// * **Time.** On Linux leases run by a clock that counts on while the machine is suspended and that no step of the
///   wall clock moves. A restart of the machine ends all leases; where a container with a boot id of its own uses the
///   table, leases that may still run are waited for, for one lease of the new holder. On other systems they run by the
///   wall clock, and a step of it can end a lease early.
/// * **Power loss.** The database uses a write-ahead log with `synchronous = NORMAL`: it stays whole when the power
///   fails, but the last changes may be missing. Leases do not need them, since a restart ends them all; a fence starts
///   from the wall clock in microseconds and therefore grows, unless the clock was set back.
/// * **The file.** If it is deleted or replaced while it is in use, every lock that is held in it is reported as lost
///   at the next renewal or attempt of its process, and no lock is granted in the new file until all processes have
///   noticed, or for one lease of the new holder. This does not hold when the whole directory is replaced, when the
///   file is opened by a new name that it was moved to, or on other systems than Linux.
/// * **Order.** Waiters of one process are served in their order. Between processes the lock goes to the first that
///   asks after the release; they ask every 1 to 50 ms, less often the longer they wait. A lock that is asked to be
///   fair goes to the waiter that came first of all processes. A waiter that is silent loses its place after 2 s, and
///   2 ms more for each waiter before it, 10 s at most.
///
/// Clones share everything, so that a clone can be kept for [`prune`](Self::prune) and the like.
#[derive(Clone)]
pub struct Sqlite(Arc<Shared>);

impl Sqlite {
    /// Opens the database that `url` names; makes the file, for its owner only, and the table where they are missing.
    /// The URL is `sqlite:///absolute/path.db` or `sqlite://relative/path.db`, with `?table=name` where it is not
    /// `dlock`.
    ///
    /// # Errors
    ///
    /// As [`SqliteOptions::from_url`] and [`SqliteOptions::connect`].
    ///
    /// # Cancel safety
    ///
    /// If dropped midway, an empty file may be left; call it again.
    pub async fn connect(url: &str) -> Result<Self> {
        SqliteOptions::from_url(url)?.connect().await
    }

    /// Opens a database that was [migrated](SqliteOptions::migrate), and makes nothing.
    ///
    /// # Errors
    ///
    /// As [`SqliteOptions::open`].
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn open(path: impl AsRef<Path> + Send) -> Result<Self> {
        let options = SqliteOptions::new(path);
        options.open().await
    }

    /// Deletes the rows of keys that are free and whose last lease ended, or would have ended, more than `older_than`
    /// ago, and says how many. A row of a key is about 180 bytes and is kept for the key's fence; where keys do not
    /// come back (orders, requests), call this now and then. Fences go on growing: the table keeps the highest one.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](dlock_core::ErrorKind::Unavailable) when other processes keep the database busy, and
    /// others as in [`SqliteOptions::open`]. Some rows may have been deleted.
    ///
    /// # Cancel safety
    ///
    /// If dropped midway, some rows may have been deleted.
    pub async fn prune(&self, older_than: Duration) -> Result<u64> {
        let pruned = self.0.ask(move |database| async move { database.prune(older_than).await });
        pruned.await.map_err(|failure| Error::new(Operation::Configure, failure).on(NAME))
    }
}

impl SqliteOptions {
    /// Makes the file (for its owner only), the write-ahead log and the table where they are missing. Does nothing to a
    /// lock table that is there.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open), except that nothing needs to be there.
    ///
    /// # Cancel safety
    ///
    /// If dropped midway, an empty file may be left; call it again.
    pub async fn migrate(&self) -> Result<()> {
        let options = Self { makes: true, ..self.clone() };
        let migrated = boxed(async move {
            Database::open(&options).await?.close().await;
            Ok(())
        });
        migrated.await.map_err(refuse)
    }

    /// Opens a database that was migrated, and makes nothing.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](dlock_core::ErrorKind::InvalidConfig) when there is no such file or table, the path
    /// is a directory or not a SQLite database, the file is damaged, has hard links, was mounted by itself or lies on a
    /// network file system, the table is not a lock table of this version, or this container has a boot id of its own
    /// and no file of marks can be used;
    /// [`ErrorKind::Denied`](dlock_core::ErrorKind::Denied) when the file or its directory cannot be written;
    /// [`ErrorKind::Unavailable`](dlock_core::ErrorKind::Unavailable) when the disk is full, other processes keep the
    /// database busy for more than five seconds, or they have it open and it was restored meanwhile.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn open(self) -> Result<Sqlite> {
        boxed(Shared::open(self)).await.map(Sqlite).map_err(refuse)
    }

    /// Opens the database, and makes the file and the table where they are missing.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open), except that nothing needs to be there.
    ///
    /// # Cancel safety
    ///
    /// If dropped midway, an empty file may be left; call it again.
    pub async fn connect(self) -> Result<Sqlite> {
        Self { makes: true, ..self }.open().await
    }
}

impl Backend for Sqlite {
    type Claim = SqliteClaim;

    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::basic()
            .with_fencing()
            .with_polling(Duration::from_millis(1), Duration::from_millis(50))
            .with_sharing()
            .with_downgrading()
            .with_permits()
            .with_fairness_on_request()
            .with_leaving()
            .with_handing_over()
            .with_handing_over_of_shares()
            .with_session_records()
    }

    fn lock_id(&self, key: &Key) -> LockId {
        let place = self.0.database().connections.files().real().display().to_string();
        LockId::new(format_args!("sqlite://{place}/{}", self.0.options.table), key.as_str())
    }

    fn claim(&self, request: ClaimRequest) -> SqliteClaim {
        SqliteClaim::new(Arc::clone(&self.0), request)
    }

    async fn attempt_all(&self, claims: &mut [&mut SqliteClaim]) -> Result<BatchAttempt, Failure> {
        claim::batch::attempt_all(claims).await
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Holder>, Failure> {
        let key = key.clone();
        self.0
            .ask(move |database| async move {
                claim::holder(database, &key, Until::after(Duration::from_secs(1))).await
            })
            .await
    }

    async fn occupancy(&self, key: &Key) -> Result<Occupancy, Failure> {
        let key = key.clone();
        self.0.ask(move |database| detached(async move { database.occupancy(&key).await })).await
    }

    fn administration(&self) -> Option<&dyn Administration> {
        Some(self)
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, Failure> {
        self.0.ask(move |database| async move { diagnosis::diagnose(&database).await }).await
    }

    async fn close(&self) {
        self.0.close().await;
    }
}

impl Administration for Sqlite {
    fn holders(&self) -> BoxedFuture<'_, Result<Vec<(Key, Holder)>, Failure>> {
        boxed(self.0.ask(move |database| async move { database.holders().await }))
    }

    fn force_release(&self, key: Key, seen: Option<Vec<Holder>>) -> BoxedFuture<'_, Result<Forced, Failure>> {
        boxed(
            self.0.ask(move |database| detached(async move { database.force(&key, seen.as_deref()).await })),
        )
    }

    fn resize(&self, key: Key, permits: u32) -> BoxedFuture<'_, Result<Option<u32>, Failure>> {
        boxed(self.0.ask(move |database| detached(async move { database.resize(&key, permits).await })))
    }
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sqlite")
            .field("path", &self.0.options.path)
            .field("table", &self.0.options.table.to_string())
            .finish_non_exhaustive()
    }
}
