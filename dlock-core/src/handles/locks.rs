//! The handle that users hold.

mod administration;
mod environment;
mod health;

pub use health::Health;

use std::convert::identity;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::audit::AuditSink;
use crate::backend::dynamic::{DynBackend, Erased};
use crate::backend::requirement::{self, Requirement};
use crate::backend::{Backend, Capabilities, Entropy, LendsBackend, Node};
use crate::backends::prefix::Prefixed;
use crate::engine::audit::Audit;
use crate::engine::scope::Scope;
use crate::engine::session::own::OwnSession;
use crate::engine::session::{self, OpensSession};
use crate::engine::tenure::HandoffLimits;
use crate::engine::{Engine, Own, keeper, shutdown};
use crate::error::{Error, Failure, Operation, Result};
use crate::guarded::guard;
use crate::handles::batch::{Batch, BatchKey};
use crate::handles::election::Election;
use crate::handles::lock::Lock;
use crate::handles::once::Once;
use crate::handles::segment::Segmented;
use crate::handles::semaphore::Semaphore;
use crate::holder::Holder;
use crate::key::Key;
use crate::options::{Options, option_setters};
use crate::runtime::tasks::{Spawn, Tasks};
use crate::telemetry::{Meter, Stats, Telemetry};
use crate::template;

/// Locks on one backend, with default options. Cheap to clone: clones share everything.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
/// use std::time::Duration;
/// use dlock_core::{Locks, Memory};
///
/// let locks = Locks::builder(Memory::new())
///     .with_lease(Duration::from_secs(10))
///     .with_label("orders")
///     .build()?;
///
/// let guard = locks.lock("room_7").acquire().await?;
/// let holder = locks.inspect("room_7").await?.expect("we hold it");
/// assert_eq!(holder.label.as_deref(), Some("orders"));
/// guard.release().await?;
///
/// if let Err(late) = locks.shutdown(Duration::from_secs(5)).await {
///     eprintln!("{late}"); // an outage: what is left ends with its lease
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Locks {
    engine: Arc<Engine>,
    defaults: Options,
}

impl Locks {
    /// Creates locks with the default options.
    ///
    /// # Panics
    ///
    /// If the operating system gives no thread for the keeper; [`LocksBuilder::build`] returns that as an error.
    pub fn new(backend: impl Backend) -> Self {
        match Self::builder(backend).build() {
            Ok(locks) => locks,
            Err(error) => panic!("{error}"),
        }
    }

    /// Creates a builder, for locks with other options.
    pub fn builder(backend: impl Backend) -> LocksBuilder {
        LocksBuilder {
            backend: Box::new(backend),
            options: Options::default(),
            handoff_limits: HandoffLimits::default(),
            label: None,
            prefix: None,
            required: Vec::new(),
            show_keys: false,
            tasks: None,
            seed: None,
            meter: None,
            audit: Unshown(None),
            session: None,
        }
    }

    /// Returns the lock named `key`. An invalid key is refused when the lock is acquired.
    pub fn lock(&self, key: impl AsRef<str>) -> Lock {
        Lock::new(Arc::clone(&self.engine), key.as_ref(), self.defaults)
    }

    /// Returns the locks named by `keys` as one: all of them or none, in an order that cannot deadlock. Each is held
    /// alone, unless the key is given as one to [`read`](crate::read()). See [`Batch`].
    pub fn lock_all<K: BatchKey>(&self, keys: impl IntoIterator<Item = K>) -> Batch {
        Batch::of(keys.into_iter().map(|key| {
            let lock = self.lock(key.key());
            if key.reads() { lock.read() } else { lock }
        }))
    }

    /// Splits `key` into so many segments, each a lock of its own. See [`Segmented`].
    pub fn segmented(&self, key: impl AsRef<str>, segments: u32) -> Segmented {
        self.lock(key).segmented(segments)
    }

    /// Returns the semaphore named `key`, which has so many permits, for all processes together. See [`Semaphore`].
    pub fn semaphore(&self, key: impl AsRef<str>, permits: u32) -> Semaphore {
        Semaphore::new(self.lock(key), permits)
    }

    /// Returns the election named `key`, in which the processes that stand for it have one leader at a time. See
    /// [`Election`].
    pub fn election(&self, key: impl AsRef<str>) -> Election {
        Election::new(self.lock(key))
    }

    /// Returns the job named `key`, which one of all processes runs, once in a while or once for all. See [`Once`].
    pub fn once(&self, key: impl AsRef<str>) -> Once {
        Once::new(self.lock(key))
    }

    /// Returns the lock named `key`, with the pattern it was made from, such as `room_<id>`, as a label of spans and
    /// metrics. The attribute gives it by itself. Which texts a process uses as templates should be known when it is
    /// written: the first 200 are distinguished, a warning is logged once, and all others are counted as `other`. Only
    /// the first 128 bytes of a template count.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
    /// use dlock_core::{Locks, Memory};
    ///
    /// let locks = Locks::new(Memory::new());
    /// let id = 7;
    /// locks.lock_named("room_<id>", format!("room_{id}")).run(async {}).await?;
    /// # Ok(()) }
    /// ```
    pub fn lock_named(&self, template: impl AsRef<str>, key: impl AsRef<str>) -> Lock {
        self.lock(key).with_template(template::intern(template.as_ref()))
    }

    /// Runs `body` as one owner of these locks: guards of them that are taken by hand inside it are reentrant, so that
    /// a function called while a guard is held may take the same lock again. Guards of other `Locks` need a scope of
    /// those.
    ///
    /// All branches of the body share the owner: inside one scope, two branches of a `join!` do not exclude
    /// each other by guards taken by hand. Use [`Lock::run`] where they shall.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
    /// use dlock_core::{Locks, Memory};
    ///
    /// let locks = Locks::new(Memory::new());
    /// locks.scope(async {
    ///     let outer = locks.lock("room_7").acquire().await?;
    ///     let inner = locks.lock("room_7").acquire().await?;
    ///     assert_eq!(outer.fence(), inner.fence());
    ///     inner.release().await?;
    ///     outer.release().await
    /// }).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops the body.
    pub fn scope<F: Future>(&self, body: F) -> impl Future<Output = F::Output> + use<'_, F> {
        // On the heap, since it would be kept twice in here.
        let body = Box::pin(body);
        async move { Scope::of_owner(&self.engine).enter(body).await }
    }

    /// Returns the holder of `key`; `None` when it has none.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidKey`](crate::ErrorKind::InvalidKey),
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) and other kinds of the backend.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn inspect(&self, key: impl AsRef<str> + Send) -> Result<Option<Holder>> {
        let engine = &self.engine;
        let key = Key::new(key).map_err(|failure| engine.error(Operation::Inspect, failure))?;
        let answer = engine.inspect(&key, self.defaults.request_timeout()).await;
        answer.map_err(|failure| engine.error(Operation::Inspect, failure).of(&key))
    }

    /// Refuses new acquires, ends those under way with [`ErrorKind::Closed`](crate::ErrorKind::Closed), and waits until
    /// the bodies that run are done and everything is released. The first half of a graceful end; the other is
    /// [`shutdown`](Self::shutdown).
    ///
    /// Bodies that run may acquire what they need to come to their end, also other keys. Guards that are held by hand
    /// outside any [scope](Self::scope) are waited for too, and their holders get no further locks. Nothing that is
    /// held is touched.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
    /// use std::time::Duration;
    /// use dlock_core::{Locks, Memory};
    ///
    /// let locks = Locks::new(Memory::new());
    /// // On a signal that asks the process to end:
    /// if let Err(late) = locks.drain(Duration::from_secs(20)).await {
    ///     eprintln!("{late}");
    /// }
    /// if let Err(late) = locks.shutdown(Duration::from_secs(5)).await {
    ///     eprintln!("{late}");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut) when something was still held or under way after
    ///   `timeout`.
    /// * [`ErrorKind::Closed`](crate::ErrorKind::Closed) in a child made by `fork`, whose parent has the locks.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again; acquires stay refused.
    pub async fn drain(&self, timeout: Duration) -> Result<()> {
        shutdown::drain(&self.engine, timeout).await
    }

    /// Refuses new acquires, ends those under way with [`ErrorKind::Closed`](crate::ErrorKind::Closed), releases
    /// everything that is held, waits for the work in the background, and closes the backend. For a graceful end of the
    /// process: after it nothing of ours is left on the server.
    ///
    /// Holders are notified first: their locks count as lost, so that bodies stop. They have half of `timeout` to
    /// leave; then their locks are released without them. The last tenth is for the backend to close its connections.
    /// It takes no longer than `timeout`, whatever the backend does, and needs no tokio runtime. An error is one to
    /// log: a `?` at the end of `main` would make a process fail that has done all that it could in an outage.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut) when something was still under way then; the lease is the
    ///   floor.
    /// * [`ErrorKind::Closed`](crate::ErrorKind::Closed) in a child made by `fork`, whose parent has the locks.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again; acquires stay refused.
    pub async fn shutdown(&self, timeout: Duration) -> Result<()> {
        let engine = &self.engine;
        let refuse = |failure| engine.error(Operation::Shutdown, failure);
        engine.refuse_in_child().map_err(refuse)?;
        engine.run(shutdown::shut_down(Arc::clone(engine), timeout)).await.map_err(refuse)?
    }

    /// Drains all of these as [`drain`](Self::drain) drains one, for `dlock::Backends`: until all are drained, a body
    /// under any of them may acquire what it needs of each.
    ///
    /// # Errors
    ///
    /// That of the first whose [`drain`](Self::drain) fails, once all have ended.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again; acquires stay refused.
    #[doc(hidden)]
    pub async fn drain_all(all: impl IntoIterator<Item = &Self>, timeout: Duration) -> Result<()> {
        let engines: Vec<_> = all.into_iter().map(|locks| &locks.engine).collect();
        shutdown::drain_all(&engines, timeout).await
    }

    #[cfg(any(test, dlock_schedules))]
    pub(crate) const fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Returns the name of the backend.
    #[must_use]
    pub fn backend(&self) -> &'static str {
        self.engine.name
    }

    /// Returns what the backend can do.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.engine.capabilities
    }

    /// Checks that the backend gives all of these guarantees. See [`LocksBuilder::require`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported), with the names of those it does not give, or how to
    /// ask for [`Requirement::Fair`] where the backend leaves it to the locks.
    pub fn require(&self, requirements: &[Requirement]) -> Result<()> {
        requirement::check_asked(requirements, &self.engine.capabilities, self.defaults.fair)
            .map_err(|failure| self.engine.error(Operation::Configure, failure))
    }

    /// Returns counts since these locks were built.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.engine.registry.stats()
    }
}

impl LendsBackend for Locks {
    fn backend(&self) -> &dyn DynBackend {
        &*self.engine.backend
    }
}

impl From<Locks> for Node {
    fn from(locks: Locks) -> Self {
        Self::lent(locks)
    }
}

/// Nothing of the builder counts but its backend.
impl From<LocksBuilder> for Node {
    fn from(builder: LocksBuilder) -> Self {
        Self::own(builder.backend)
    }
}

impl AsRef<Self> for Locks {
    fn as_ref(&self) -> &Self {
        self
    }
}

/// Builds a [`Locks`]; options are checked by [`build`](Self::build).
#[derive(Debug)]
#[must_use = "build() makes the locks"]
pub struct LocksBuilder {
    backend: Box<dyn DynBackend>,
    options: Options,
    handoff_limits: HandoffLimits,
    label: Option<String>,
    prefix: Option<String>,
    required: Vec<Requirement>,
    show_keys: bool,
    tasks: Option<Arc<dyn Spawn>>,
    seed: Option<u64>,
    meter: Option<Meter>,
    audit: Unshown<Option<Box<dyn AuditSink>>>,
    session: Option<Duration>,
}

/// A value of which `Debug` shows nothing.
struct Unshown<T>(T);

impl<T> fmt::Debug for Unshown<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}

impl LocksBuilder {
    option_setters!(identity);

    /// Sets after how many sections, passed on or acquired anew, this process lets others have a lock that they wait
    /// for. Default 64; 1 to 256. See [`with_handoff`](Self::with_handoff).
    pub const fn with_handoff_limit(mut self, sections: u32) -> Self {
        self.handoff_limits.sections = sections;
        self
    }

    /// Sets after how long this process lets others have a lock that they wait for: no section begins by a handoff
    /// later than this after the lock was granted. Default 50 ms; 1 ms to 10 s. See
    /// [`with_handoff`](Self::with_handoff).
    ///
    /// It is 10 ms at most for a second after a reader of another process was seen to wait, where the backend reports
    /// that (Redis in its own format) and no reader of this process waits.
    pub const fn with_handoff_time(mut self, limit: Duration) -> Self {
        self.handoff_limits.time = limit;
        self
    }

    /// Sets a name for this process, stored with every lock, for `inspect` and error messages: a service or replica
    /// name. At most 64 bytes.
    pub fn with_label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Puts `prefix` before every key on the servers, so that several services share a store without sharing locks.
    /// What callers, errors and spans see is the key without it. 1 to 128 bytes. See [`Prefixed`].
    pub fn with_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// Refuses a backend that does not give this guarantee. Without it, another backend in the configuration would
    /// silently be a weaker lock.
    ///
    /// ```
    /// use dlock_core::{ErrorKind, Locks, Memory, Requirement};
    ///
    /// let error = Locks::builder(Memory::new()).require(Requirement::Durable).build().unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Unsupported);
    /// assert!(error.to_string().contains("`durable`"));
    /// ```
    ///
    /// [`Requirement::Fair`] makes all locks [fair](Self::with_fairness), where the backend leaves the choice.
    pub fn require(mut self, requirement: Requirement) -> Self {
        self.options.fair |= requirement == Requirement::Fair;
        self.required.push(requirement);
        self
    }

    /// Shows keys in clear in spans and events. By default they appear as a hash, since keys often contain the ids of
    /// people.
    pub const fn with_keys_shown(mut self) -> Self {
        self.show_keys = true;
        self
    }

    /// Reports each hold to `sink` when it ends, so that it can be shown later that no two holders overlapped. It costs
    /// no request, and a fraction of a microsecond. See [`audit`](crate::audit).
    pub fn with_audit(mut self, sink: impl AuditSink + 'static) -> Self {
        self.audit = Unshown(Some(Box::new(sink)));
        self
    }

    /// Has one session keep the exclusive locks of this process beside their leases: the locks of a process that is
    /// gone are free within `timeout`, 300 ms to 1 h, however long their [lease](Self::with_lease) is.
    ///
    /// A lease bounds two things: how long a process that died keeps others out, and how often each lock is renewed. A
    /// million locks with a lease of 30 s are 117 000 renewals a second. With a session the lease may be hours, since
    /// only one record of the process is renewed often, about every 0.13 `timeout`:
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
    /// use std::time::Duration;
    /// use dlock_core::{Locks, Memory};
    ///
    /// let locks = Locks::builder(Memory::new())
    ///     .with_session(Duration::from_secs(10))
    ///     .with_lease(Duration::from_secs(3_600))
    ///     .build()?;
    /// let guard = locks.lock("room_7").acquire().await?;
    /// guard.check()?;
    /// guard.release().await
    /// # }
    /// ```
    ///
    /// * **A lock is lost** with its session: when no renewal of the record was confirmed for 0.45 `timeout`, or the
    ///   record is gone. [`check`](crate::Guard::check) and [`lost`](crate::Guard::lost) report it. All locks of the
    ///   process are lost together, and the next acquire opens another session. The loss of one lock alone, as by
    ///   [`force_release`](crate::Locks::force_release), is noticed by its own renewal, at a third of its lease, or at
    ///   once where Redis reports changes.
    /// * **Others take such a lock** once they have seen that the record is gone, and see so again 0.45 `timeout`
    ///   later. So it is safe also if the store loses the record, or its clock is set. A process that comes to the key
    ///   when the record is gone already waits for 0.45 `timeout`, and one that ends earlier, and only tries, leaves it
    ///   to the lease.
    /// * **All programs that want the key** need a version of dlock that knows sessions, but no session of their own.
    ///   Other versions, clients by the published scripts and statements, and processes that reach the lock by another
    ///   prefix wait for the lease.
    /// * **Not kept by the session** are the shares of readers, permits, fair locks, the locks of
    ///   [jobs](crate::Once), keys that [stay taken](crate::Lock::with_hold_at_least) or were
    ///   [handed over](crate::Guard::hand_over), and locks [without it](Self::with_session_kept): give them a lease of
    ///   their own if that of these locks is long. A lock that a session keeps cannot be
    ///   [downgraded](crate::Guard::downgrade).
    /// * **The record** is a lock under the key `dlock-session-` and the id of the session, behind the
    ///   [prefix](Self::with_prefix): a user whose rights are limited needs them on such keys too. A table keeps the
    ///   row of each process that ever had a session until it is pruned.
    ///
    /// [`build`](Self::build) refuses it where the backend has sessions of its own (ZooKeeper, etcd, sessions of
    /// databases) or cannot keep such a record (Redisson's formats, quorums): see
    /// [`Capabilities::session_records`](crate::Capabilities::session_records).
    pub const fn with_session(mut self, timeout: Duration) -> Self {
        self.session = Some(timeout);
        self
    }

    /// Runs the keeper's tasks there instead of on dlock's own thread, for simulations.
    #[doc(hidden)]
    pub fn with_keeper_on(mut self, tasks: Arc<dyn Spawn>) -> Self {
        self.tasks = Some(tasks);
        self
    }

    /// Draws everything random, tokens too, from this seed instead of the operating system, for simulations.
    #[doc(hidden)]
    pub const fn with_seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Sets the meter of the metrics. Default: the one named `dlock` of the provider that is the global one when
    /// [`build`](Self::build) is called, so set yours before. A meter that panics is logged, and changes no lock.
    #[cfg(feature = "otel")]
    pub fn with_meter(mut self, meter: Meter) -> Self {
        self.meter = Some(meter);
        self
    }

    /// Checks the options and creates the locks.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) when an option is outside its bounds;
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) when the backend lacks what was
    /// [required](Self::require); [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) when the operating system
    /// gives no thread for the keeper, or the backend panics.
    pub fn build(self) -> Result<Locks> {
        let name = guard(|| self.backend.name()).ok();
        guard(|| self.start()).unwrap_or_else(|panic| {
            let what =
                format!("the backend panicked while locks were built, which is an error in it: {panic}");
            let error = Error::new(Operation::Configure, Failure::unavailable(what));
            Err(match name {
                Some(name) => error.on(name),
                None => error,
            })
        })
    }

    fn start(self) -> Result<Locks> {
        let name = self.backend.name();
        let refuse = |failure| Error::new(Operation::Configure, failure).on(name);
        self.options.check().map_err(refuse)?;
        self.handoff_limits.check().map_err(refuse)?;
        if let Some(label) = self.label.as_ref().filter(|label| label.len() > 64) {
            let what = format!("the label has {} bytes; use up to 64", label.len());
            return Err(refuse(Failure::invalid_config(what)));
        }
        let capabilities = self.backend.capabilities();
        requirement::check(&self.required, &capabilities).map_err(refuse)?;
        if let Some(timeout) = self.session {
            session::check(timeout, &capabilities).map_err(refuse)?;
        }
        let backend: Arc<dyn DynBackend> = match self.prefix {
            None => self.backend.into(),
            Some(prefix) => Arc::new(Prefixed::new(Erased(self.backend), prefix).map_err(refuse)?),
        };
        let (server, votes) = (backend.server_address(), !backend.nodes().is_empty());
        let telemetry = Arc::new(Telemetry::new(name, server, votes, self.show_keys, self.meter));
        let tasks = Tasks::new(self.tasks).map_err(refuse)?;
        let entropy = self.seed.map_or_else(Entropy::new, Entropy::seeded);
        let audit = self.audit.0.map(|sink| Audit::new(sink, &*backend, self.label.clone())).transpose();
        let audit = audit.map_err(refuse)?;
        let engine_of = |label, audit, session| {
            let own = Own { label, entropy: entropy.clone(), limits: self.handoff_limits, audit, session };
            keeper::start(Arc::clone(&backend), Arc::clone(&telemetry), tasks.clone(), own)
        };
        // The record of the session is a lock of an engine of its own: no handle of the caller reaches it.
        let session = self.session.map(|timeout| {
            let own = OwnSession::new(engine_of(self.label.clone(), None, None), timeout);
            Box::new(own) as Box<dyn OpensSession>
        });
        let engine = engine_of(self.label.clone(), audit, session);
        Ok(Locks { engine, defaults: self.options })
    }
}
