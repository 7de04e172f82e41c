//! The backend, and the handle of its users.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{
    Administration, Backend, BoxedFuture, Capabilities, ClaimRequest, Finding, Forced, LockId, Occupancy,
    RequestClock, ServerAddress, boxed,
};
use dlock_core::{Error, Failure, Fence, Holder, Key, Operation, Result, keeper};

use crate::administration::{self, Which};
use crate::claim::ZooKeeperClaim;
use crate::config::ZooKeeperBuilder;
use crate::diagnosis;
use crate::error::configure;
use crate::fenced::FencedWrite;
use crate::sessions::Sessions;
use crate::wire::in_time;

/// The time after which a waiter asks by itself, although the servers notify it of changes.
const SAFETY_NET: Duration = Duration::from_secs(5);

/// Fair locks on ZooKeeper, kept by a session.
///
/// ```no_run
/// # async fn example() -> Result<(), dlock_core::Error> {
/// use dlock_core::Locks;
/// use dlock_zk::ZooKeeper;
///
/// let locks = Locks::new(ZooKeeper::connect("zk://127.0.0.1/").await?);
/// let guard = locks.lock("room_7").acquire().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
///
/// | URL | servers |
/// |---|---|
/// | `zk://[user:password@]host[:port],host[:port][/chroot]` | a server or an ensemble; the port is 2181 if none is given |
/// | `zk+tls://...` | a server or an ensemble over TLS, verified (feature `tls`) |
///
/// Clones share one session, which dlock's own thread drives. When it ends, all its locks are lost, and the next
/// acquire opens another.
#[derive(Clone)]
pub struct ZooKeeper(Arc<Sessions>);

impl ZooKeeper {
    /// Connects with the default settings.
    ///
    /// # Errors
    ///
    /// As [`ZooKeeperBuilder::connect`].
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::builder(url).connect().await
    }

    /// Returns a builder, for settings that are not the defaults.
    pub fn builder(url: &str) -> ZooKeeperBuilder {
        ZooKeeperBuilder::new(url)
    }

    async fn open(&self) -> Result<()> {
        let sessions = Arc::clone(&self.0);
        let opened = keeper::anywhere(async move { sessions.get(in_time()).await.map(drop) }).await;
        opened.and_then(|opened| opened).map_err(configure)
    }

    /// Lists the queue of `key`: its holders first, then its waiters, also those of other libraries.
    ///
    /// ```no_run
    /// # async fn example(zookeeper: dlock_zk::ZooKeeper) -> Result<(), dlock_core::Error> {
    /// for (place, who) in zookeeper.queue("room_7").await?.iter().enumerate() {
    ///     println!("{place}: {who}");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidKey`](dlock_core::ErrorKind::InvalidKey),
    /// [`ErrorKind::Unavailable`](dlock_core::ErrorKind::Unavailable), and
    /// [`ErrorKind::Denied`](dlock_core::ErrorKind::Denied) when the ACLs do not allow to look.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn queue(&self, key: &str) -> Result<Vec<Holder>> {
        let look = async { administration::places(&self.0, &Key::new(key)?, Which::All).await };
        look.await
            .map(|(_, places)| places)
            .map_err(|failure| Error::new(Operation::Inspect, failure).on("zk"))
    }

    /// Deletes the nodes that [`Lock::with_hold_at_least`](dlock_core::Lock::with_hold_at_least) and
    /// [`Locks::once`](dlock_core::Locks::once) left below the base and whose time is over; returns how many.
    ///
    /// The servers do not delete them. A client that comes to a key deletes such nodes there; so does the program that
    /// left one, for as long as it runs. This method is for keys that no client comes to again, such as one for each
    /// firing of a schedule, and for clients of other libraries that wait for such a key. It asks for the nodes of
    /// every key, so that once in an hour is often enough.
    ///
    /// ```no_run
    /// # async fn example(zookeeper: dlock_zk::ZooKeeper) -> Result<(), dlock_core::Error> {
    /// println!("{} nodes deleted", zookeeper.prune().await?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](dlock_core::ErrorKind::Unavailable), and
    /// [`ErrorKind::Denied`](dlock_core::ErrorKind::Denied) when the ACLs do not allow to look or to delete.
    ///
    /// # Cancel safety
    ///
    /// If dropped, some are deleted and others are not.
    pub async fn prune(&self) -> Result<u64> {
        let pruned = administration::prune(&self.0).await;
        pruned.map_err(|failure| Error::new(Operation::Configure, failure).on("zk"))
    }

    /// Begins a change of several nodes in one step, which is carried out only while the lock that was granted with
    /// `fence` is held.
    ///
    /// The servers themselves check that the lock's node is there, so that no pause of this process, however long, lets
    /// a stale write through.
    ///
    /// ```no_run
    /// # async fn example(zookeeper: dlock_zk::ZooKeeper) -> Result<(), dlock_core::Error> {
    /// let locks = dlock_core::Locks::new(zookeeper.clone());
    /// let guard = locks.lock("config").acquire().await?;
    /// if let Some(fence) = guard.fence() {
    ///     let written = zookeeper.fenced_write(fence).set_data("/config/limit", "17").commit().await?;
    ///     assert!(written, "another holder has taken over");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn fenced_write(&self, fence: Fence) -> FencedWrite {
        FencedWrite::new(Arc::clone(&self.0), fence)
    }
}

impl ZooKeeperBuilder {
    /// Opens a session.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](dlock_core::ErrorKind::InvalidConfig) when a setting or the URL cannot work,
    /// [`ErrorKind::Denied`](dlock_core::ErrorKind::Denied) when the servers refuse the credentials, and
    /// [`ErrorKind::Unavailable`](dlock_core::ErrorKind::Unavailable) when none answers. No error contains a password.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn connect(self) -> Result<ZooKeeper> {
        let zookeeper = self.build()?;
        boxed(zookeeper.open()).await?;
        Ok(zookeeper)
    }

    /// Creates the backend without a session: it opens one when it is first used.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](dlock_core::ErrorKind::InvalidConfig) when a setting or the URL cannot work.
    pub fn build(self) -> Result<ZooKeeper> {
        self.check().map(|config| ZooKeeper(Sessions::new(config))).map_err(configure)
    }
}

impl Backend for ZooKeeper {
    type Claim = ZooKeeperClaim;

    fn name(&self) -> &'static str {
        "zk"
    }

    fn capabilities(&self) -> Capabilities {
        let capabilities = Capabilities::basic()
            .with_fencing()
            .with_fairness()
            .with_notifications(SAFETY_NET)
            .with_session()
            .with_durability();
        let recipe = self.0.config().recipe;
        let capabilities = match recipe.has_readers() {
            true => capabilities.with_sharing().with_downgrading(),
            false => capabilities,
        };
        let capabilities = if recipe.has_left() { capabilities.with_leaving() } else { capabilities };
        if recipe.has_permits() { capabilities.with_permits() } else { capabilities }
    }

    fn server_address(&self) -> Option<ServerAddress> {
        ServerAddress::in_url(&format!("zk://{}", self.0.config().servers))
    }

    fn lock_id(&self, key: &Key) -> LockId {
        let config = self.0.config();
        LockId::new(&config.place, config.base.directory(key))
    }

    fn claim(&self, request: ClaimRequest) -> ZooKeeperClaim {
        ZooKeeperClaim::new(Arc::clone(&self.0), request, RequestClock::new(self.clock()))
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Holder>, Failure> {
        Ok(administration::places(&self.0, key, Which::First).await?.1.pop())
    }

    async fn occupancy(&self, key: &Key) -> Result<Occupancy, Failure> {
        let (permits, holders) = administration::places(&self.0, key, Which::Holding).await?;
        Ok(Occupancy::new(permits, holders))
    }

    fn administration(&self) -> Option<&dyn Administration> {
        Some(self)
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, Failure> {
        let session = self.0.get(in_time()).await?;
        // By a new write, since an earlier one says nothing of the rights that the session has now.
        let written = session.prove_life(in_time()).await;
        diagnosis::diagnose(self.0.config(), session.timeout(), written).await
    }

    async fn close(&self) {
        self.0.close();
    }
}

impl Administration for ZooKeeper {
    fn holders(&self) -> BoxedFuture<'_, Result<Vec<(Key, Holder)>, Failure>> {
        boxed(administration::holders(&self.0))
    }

    fn force_release(&self, key: Key, seen: Option<Vec<Holder>>) -> BoxedFuture<'_, Result<Forced, Failure>> {
        boxed(async move { administration::force(&self.0, &key, seen.as_deref()).await })
    }

    fn waiters(&self, key: Key) -> Option<BoxedFuture<'_, Result<Vec<Holder>, Failure>>> {
        Some(boxed(async move { Ok(administration::places(&self.0, &key, Which::Waiting).await?.1) }))
    }

    fn resize(&self, key: Key, permits: u32) -> BoxedFuture<'_, Result<Option<u32>, Failure>> {
        boxed(async move { administration::resize(&self.0, &key, permits).await })
    }
}

impl fmt::Debug for ZooKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeper").field("sessions", &self.0).finish()
    }
}
