//! The backend.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{
    Backend, Capabilities, ClaimRequest, Finding, Forced, LockId, Mode, Occupancy, RequestClock,
    ServerAddress,
};
use dlock_core::{Error, Failure, Fence, Holder, Key, Operation, Result, keeper};
use tokio::time::Instant;
use zookeeper::Stat;

use crate::administration::{self, Which};
use crate::claim::ZooKeeperClaim;
use crate::config::{Config, ZooKeeperBuilder};
use crate::diagnosis;
use crate::fenced::FencedWrite;
use crate::left;
use crate::queue_node::lowering;
use crate::recipe::Recipe;
use crate::session::Sessions;

/// How long a question outside of a lock may take.
const QUESTION: Duration = Duration::from_secs(5);
/// So much of what is in a node is shown; another library's may be as large as servers allow.
const DESCRIPTION: usize = 2_048;
/// The server tells of changes; this often waiters ask by themselves.
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
/// | `zk+tls://...` | the same over TLS, verified (feature `tls`) |
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

    pub(crate) fn new(config: Config) -> Self {
        Self(Sessions::new(config))
    }

    pub(crate) async fn open(&self) -> Result<()> {
        let sessions = Arc::clone(&self.0);
        let opened = keeper::anywhere(async move { sessions.get(in_time()).await.map(drop) }).await;
        opened.and_then(|opened| opened).map_err(configure)
    }

    /// Lists who stands in line for `key`, those who hold it first. Waiters of other libraries are among them.
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

    /// Deletes what [`Lock::with_hold_at_least`](dlock_core::Lock::with_hold_at_least) and
    /// [`Locks::once`](dlock_core::Locks::once) left below the base and is over; returns how many nodes.
    ///
    /// The servers do not. Whoever comes to a key deletes what is over there; so does a program that left it, for as
    /// long as it runs. This is for keys that nobody comes to again, such as one for each firing of a schedule, and for
    /// clients of other libraries that wait for such a key. It asks for the nodes of every key, so that once in an hour
    /// is often.
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
    /// When dropped, some are deleted and others are not.
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
    ///     assert!(written, "somebody else has taken over");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn fenced_write(&self, fence: Fence) -> FencedWrite {
        FencedWrite::new(Arc::clone(&self.0), fence)
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
            .with_durability()
            .with_administration()
            .with_waiters_shown();
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

    async fn holders(&self) -> Result<Vec<(Key, Holder)>, Failure> {
        administration::holders(&self.0).await
    }

    async fn waiters(&self, key: &Key) -> Result<Vec<Holder>, Failure> {
        Ok(administration::places(&self.0, key, Which::Waiting).await?.1)
    }

    async fn occupancy(&self, key: &Key) -> Result<Occupancy, Failure> {
        let (permits, holders) = administration::places(&self.0, key, Which::Holding).await?;
        Ok(Occupancy::new(permits, holders))
    }

    async fn resize(&self, key: &Key, permits: u32) -> Result<Option<u32>, Failure> {
        administration::resize(&self.0, key, permits).await
    }

    async fn force_release(&self, key: &Key) -> Result<bool, Failure> {
        Ok(administration::force(&self.0, key, None).await? == Forced::Released)
    }

    async fn force_release_of(&self, key: &Key, seen: &[Holder]) -> Result<Forced, Failure> {
        administration::force(&self.0, key, Some(seen)).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, Failure> {
        let granted = self.0.get(in_time()).await?.timeout();
        diagnosis::diagnose(self.0.config(), granted).await
    }

    async fn close(&self) {
        self.0.close();
    }
}

impl fmt::Debug for ZooKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeper").field("sessions", &self.0).finish()
    }
}

/// The holder by the name of the node and what is in it, our own line or another library's text. A semaphore has so
/// many permits.
pub(crate) fn holder(recipe: Recipe, permits: Option<u32>, path: &str, data: &[u8], stat: &Stat) -> Holder {
    let text = String::from_utf8_lossy(&data[..data.len().min(DESCRIPTION)]);
    let mut holder = Holder::parse(&text);
    let fence = left::fence(&text);
    let wrote = lowering::fence(&text);
    if holder == Holder::default() && !text.is_empty() {
        holder.label = Some(text.into_owned());
    }
    let name = path.rsplit('/').next().unwrap_or(path);
    if recipe.reads(name) {
        holder.mode = Mode::Shared;
    } else if let Some(take) = recipe.takes(name) {
        holder.mode = Mode::Permits { of: permits.unwrap_or(take), take };
    }
    // Whoever has such a node leads: another library's participant by the id that it stores.
    if recipe == Recipe::LeaderLatch && holder.candidate.is_none() {
        holder.candidate.clone_from(&holder.label);
    }
    holder.left_behind = recipe.left_for(name).is_some();
    holder.fence = if holder.left_behind {
        // It keeps that of its last holder.
        fence
    } else {
        let own = Fence::new(stat.czxid.cast_unsigned());
        // One that wrote before it read has that of its first node.
        wrote.filter(|wrote| recipe.reads(name) && *wrote < own).or(Some(own))
    };
    holder
}

pub(crate) fn configure(failure: Failure) -> Error {
    Error::new(Operation::Configure, failure).on("zk")
}

pub(crate) fn in_time() -> Instant {
    Instant::now() + QUESTION
}
