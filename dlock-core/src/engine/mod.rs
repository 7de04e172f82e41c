//! The state that the handles of one `Locks` share: the backend, the registry of holds, and the channel to the keeper.

pub(crate) mod acquire;
pub(crate) mod activity;
pub(crate) mod attended;
pub(crate) mod audit;
pub(crate) mod baton;
pub(crate) mod bounds;
pub(crate) mod cleanup;
pub mod decisions;
pub(crate) mod downgrade;
pub(crate) mod handoff;
pub(crate) mod held_locks;
pub(crate) mod hold;
pub(crate) mod keeper;
pub(crate) mod left;
pub(crate) mod looks;
pub(crate) mod refusals;
pub(crate) mod registry;
pub(crate) mod release;
#[cfg(dlock_schedules)]
#[path = "../../../tests/schedules/src/scenarios.rs"]
pub mod scenarios;
pub(crate) mod scope;
pub(crate) mod session;
pub(crate) mod shutdown;
pub(crate) mod tenure;
pub(crate) mod wait_queue;

use std::fmt;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::backend::dynamic::{DynBackend, DynClaim};
use crate::backend::{
    Capabilities, ClaimHost, ClaimRequest, Entropy, Host, Occupancy, OthersWaiting, PauseLimit,
};
use crate::clock::Clock;
use crate::engine::attended::Attendance;
use crate::engine::audit::Audit;
use crate::engine::bounds::RoundTrip;
use crate::engine::left::LeftClaims;
use crate::engine::registry::HoldRegistry;
use crate::engine::session::{OpensSession, Session, Sessions, usual_lease};
use crate::engine::tenure::{HandoffLimits, Tenure, Tenures};
use crate::engine::wait_queue::WaitQueue;
use crate::error::{Error, ErrorKind, Failure, Operation};
use crate::guarded::{guard, tell, with_guarded_wakes};
use crate::holder::{Holder, Identity};
use crate::key::Key;
use crate::options::{Options, Role};
use crate::runtime::tasks::{Task, Tasks};
use crate::runtime::threads;
use crate::runtime::timer::{self, Timers};
use crate::telemetry::{Site, Subject, Telemetry};

/// One backend with everything that is going on with it in this process.
pub(crate) struct Engine {
    pub(crate) backend: Arc<dyn DynBackend>,
    pub(crate) name: &'static str,
    pub(crate) capabilities: Capabilities,
    pub(crate) clock: Clock,
    pub(crate) identities: Identities,
    pub(crate) telemetry: Arc<Telemetry>,
    /// What gets a record of each hold, if anything does.
    pub(super) audit: Option<Audit>,
    pub(crate) sessions: Sessions,
    pub(crate) entropy: Entropy,
    pub(crate) timers: Timers,
    pub(crate) wait_queue: WaitQueue,
    pub(crate) acquires: Acquires,
    pub(crate) tenures: Tenures,
    pub(crate) registry: Arc<HoldRegistry>,
    tasks: mpsc::UnboundedSender<Task>,
    /// The process that has the keeper: a child made by `fork` has none.
    process: u32,
}

/// The parts of an engine that differ from one `Locks` to another on the same backend.
pub(crate) struct Own {
    pub(crate) label: Option<String>,
    pub(crate) entropy: Entropy,
    pub(crate) limits: HandoffLimits,
    pub(crate) audit: Option<Audit>,
    pub(crate) session: Option<Box<dyn OpensSession>>,
}

/// The descriptions of this process that are stored with locks.
pub(crate) struct Identities {
    pub(crate) holder: Arc<Identity>,
    /// The description stored with election locks.
    pub(crate) candidate: Arc<Identity>,
}

/// The state that the acquires of this process share.
pub(crate) struct Acquires {
    pub(crate) attendance: Arc<Attendance>,
    pub(crate) left_claims: Arc<LeftClaims>,
    pub(crate) round_trip: RoundTrip,
}

impl Engine {
    /// Sets the engine up. What it leaves to the keeper goes to `tasks`.
    pub(crate) fn new(
        backend: Arc<dyn DynBackend>,
        telemetry: Arc<Telemetry>,
        keeper: Tasks,
        tasks: mpsc::UnboundedSender<Task>,
        own: Own,
    ) -> Arc<Self> {
        let Own { label, entropy, limits, audit, session } = own;
        // Clock, name and capabilities are read once, so that they cannot change under locks that are held.
        let clock = backend.clock();
        // A backend that panics here has locks all the same.
        let administration = guard(|| backend.administration()).ok().flatten();
        let capabilities = backend.capabilities().within_bounds().administered_by(administration);
        let timers = Timers::new(&keeper, capabilities.in_process);
        let attendance = Attendance::new(tasks.clone(), Arc::clone(&telemetry), timers.clone());
        let identity = Identity::of_this_process(label);
        let registry = Arc::new(HoldRegistry::new(clock.clone(), Arc::clone(&telemetry), keeper));
        Arc::new(Self {
            name: backend.name(),
            capabilities,
            entropy,
            clock,
            identities: Identities { candidate: identity.to_candidate(), holder: identity },
            telemetry,
            audit,
            sessions: Sessions::new(session),
            wait_queue: WaitQueue::new(
                PauseLimit::new(capabilities.poll_from, capabilities.poll_to),
                capabilities.notified,
            )
            .timed_by(timers.clone()),
            timers,
            acquires: Acquires { attendance, left_claims: Arc::default(), round_trip: RoundTrip::default() },
            // Where polls are rare, it yields for no longer than others had to wait.
            tenures: Tenures::new(limits, capabilities.time_to_ask(YIELD_FOR, limits.time)),
            registry,
            tasks,
            // Noted where the keeper is started: a child that `fork` makes has another id, and a copy of all this.
            process: std::process::id(),
            backend,
        })
    }

    pub(crate) fn error(&self, operation: Operation, failure: Failure) -> Error {
        Error::new(operation, failure).on(self.name)
    }

    /// Is `true` in a child, made by `fork`, of the process that built these locks. Costs a system call.
    pub(crate) fn is_in_child(&self) -> bool {
        !self.is_of(std::process::id())
    }

    /// Is `true` if `process` is the process that built it.
    pub(crate) const fn is_of(&self, process: u32) -> bool {
        self.process == process
    }

    /// Refuses to use connections that are the parent's, and to take locks that no keeper would renew.
    pub(crate) fn refuse_in_child(&self) -> Result<(), Failure> {
        match self.is_in_child() {
            false => Ok(()),
            true => Err(Failure::new(
                ErrorKind::Closed,
                "these locks were built before the process forked, and belong to its parent; build new ones in the child",
            )),
        }
    }

    /// Returns the clock and the timers by which requests are bounded.
    pub(super) const fn of_requests(&self) -> (&Clock, &Timers) {
        (&self.clock, &self.timers)
    }

    /// Is `true` if a request can be made in the caller's runtime, and not only on the keeper's thread: in a tokio
    /// runtime, whose clock is the machine's unless there are no servers to ask.
    pub(crate) fn serves_here(&self) -> bool {
        // A backend in memory opens no socket, and a simulation has the clock of its callers: any runtime will do.
        match self.capabilities.in_process || self.registry.tasks.are_given() {
            true => threads::is_in_runtime(),
            false => threads::serves_requests(),
        }
    }

    /// Awaits `future` here, or on the keeper's thread where the caller's runtime does not serve. Dropping this drops
    /// `future`.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Failure> {
        if self.serves_here() {
            return Ok(self.awaited(pin!(future)).await);
        }
        self.registry.tasks.run(future).await.ok_or_else(|| self.registry.closed())
    }

    /// Awaits `future` here. A backend in memory calls no waker on another thread; with all others, wakers are guarded.
    pub(crate) async fn awaited<F: Future>(&self, future: Pin<&mut F>) -> F::Output {
        if self.capabilities.in_process {
            return future.await;
        }
        with_guarded_wakes(future).await
    }

    /// Waits, in real time, until the keeper's thread has finished what it was sent, at most a second. Where tokio's
    /// clock is paused a test's hours pass in no time, and that thread, which is outside of it, seems to be hours late.
    pub(super) async fn finish_background(&self) {
        let activity = &self.registry.activity;
        // Outside of a runtime no clock is paused.
        let (Tasks::Thread(keeper), Ok(caller)) = (&self.registry.tasks, Handle::try_current()) else {
            return;
        };
        if activity.in_background() == 0 {
            return;
        }
        let (keeper, activity) = (keeper.runtime().clone(), Arc::clone(activity));
        let finish = move || {
            keeper.block_on(async { tokio::time::timeout(Duration::from_secs(1), activity.quiet()).await })
        };
        // While a blocking task runs, a paused clock does not go on.
        let _ = caller.spawn_blocking(finish).await;
    }

    /// Makes a request that needs no claim, wherever the caller is, and waits up to `limit` for its answer.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        limit: Duration,
        unanswered: Failure,
        request: impl Future<Output = Result<T, Failure>> + Send + 'static,
    ) -> Result<T, Failure> {
        self.refuse_in_child()?;
        // Boxed: these are rare, and their futures would be part of the caller's twice.
        let answer = self.run(Box::pin(timer::question(limit, request))).await?;
        // A failure is no contact: a connection that cannot be opened fails as well.
        let answer = answer.unwrap_or(Err(unanswered))?;
        self.registry.contacted(self.clock.now());
        Ok(answer)
    }

    /// Asks for the holder of `key`.
    pub(crate) async fn inspect(
        self: &Arc<Self>,
        key: &Key,
        limit: Duration,
    ) -> Result<Option<Holder>, Failure> {
        let unanswered = Failure::unavailable(format!("no answer within {limit:?}"));
        let (asked, of) = (Arc::clone(self), key.clone());
        self.ask(limit, unanswered, async move { asked.backend.inspect(&of).await }).await
    }

    /// Asks for the holder of `key`, and the part of it that is taken.
    pub(crate) async fn occupancy(
        self: &Arc<Self>,
        key: &Key,
        limit: Duration,
    ) -> Result<Occupancy, Failure> {
        let unanswered = Failure::unavailable(format!("no answer within {limit:?}"));
        let (asked, of) = (Arc::clone(self), key.clone());
        self.ask(limit, unanswered, async move { asked.backend.occupancy(&of).await }).await
    }

    /// Reports a release: the first waiter here may ask, unless this process had the lock for as long as it may while
    /// others wait elsewhere.
    pub(crate) fn released(&self, key: &Key, tenure: Option<Tenure>, others_waiting: OthersWaiting) {
        let now = || self.clock.now();
        // Without a tenure others may hold the lock at the same time, and there is no turn to yield.
        match tenure.and_then(|tenure| self.tenures.released(key, tenure, others_waiting, now)) {
            // Local waiters yield with their process, which would otherwise be the next holder again.
            Some(until) => self.wait_queue.yield_until(key, until),
            None => self.wait_queue.released(key),
        }
    }

    /// Announces to the observers of a key that its holder has changed, in the background. An announcement that is lost
    /// is not repeated, since observers look by themselves, too.
    pub(crate) fn announce(self: &Arc<Self>, key: &Key) {
        if !self.capabilities.announces {
            return;
        }
        let (engine, key, activity) = (Arc::clone(self), key.clone(), self.registry.activity.begin());
        let mut announcing = Box::pin(async move {
            let limit = timer::within(ANNOUNCING, engine.backend.announce(&key));
            let announced = limit.await.unwrap_or_else(|| Err(Failure::unavailable("no answer")));
            if let Err(failure) = announced {
                let what = "who leads was not announced, and is seen at the next look";
                tell(|| tracing::debug!(target: "dlock", { dlock.failure = %failure }, "{what}"));
            }
            drop(activity);
        });
        // Memory has announced by then, in the caller's time.
        if !self.capabilities.in_process || announcing.as_mut().now_or_never().is_none() {
            self.later(announcing);
        }
    }

    /// Gives `task` to the keeper. Works on any thread, without a runtime, and never blocks.
    pub(crate) fn later(&self, task: impl Future<Output = ()> + Send + 'static) {
        // A keeper that is dead has reported so, and the lease ends what it does not withdraw.
        let _ = self.tasks.send(Box::pin(task));
    }
}

/// The bound of an announcement.
const ANNOUNCING: Duration = Duration::from_secs(1);

/// The time that a notification, a wake-up and a request take at most, also between machines and on a busy one.
const YIELD_FOR: Duration = Duration::from_millis(5);

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("backend", &self.backend).finish_non_exhaustive()
    }
}

impl ClaimHost for HoldRegistry {
    fn spawn(&self, task: Task) {
        self.tasks.spawn(task);
    }

    fn runtime(&self) -> Option<Handle> {
        self.tasks.runtime()
    }

    fn voted(&self, node: usize, outcome: &'static str, error: Option<ErrorKind>) {
        self.telemetry.voted(node, outcome, error);
    }

    fn abandoned(&self, key: &Key, site: Site, failure: &Failure) {
        self.telemetry.abandoned(Subject { key, site }, failure);
    }
}

/// A lock that is wanted: its engine, its key, its options, and the place in the program.
#[derive(Clone)]
pub(crate) struct Spec {
    pub(crate) engine: Arc<Engine>,
    pub(crate) key: Key,
    pub(crate) site: Site,
    pub(crate) options: Options,
}

impl Spec {
    /// Returns the labels of spans and metrics for it.
    pub(crate) const fn subject(&self) -> Subject<'_> {
        Subject { key: &self.key, site: self.site }
    }

    pub(crate) fn error(&self, operation: Operation, failure: Failure) -> Error {
        self.engine.error(operation, failure).of(&self.key)
    }

    /// Prepares a claim under a new token, for a lock that this session is to keep if there is one.
    pub(crate) fn claim(&self, session: Option<&Session>) -> Result<Box<dyn DynClaim>, Failure> {
        let engine = &self.engine;
        // Before a token is drawn: the child has a copy of the parent's stock of them.
        engine.refuse_in_child()?;
        // The line of a candidate has a field more, by which observers of an election know which process leads.
        let leads = self.options.role == Some(Role::Leader);
        let identity = match session {
            Some(session) => session.identity(leads),
            None if leads => &engine.identities.candidate,
            None => &engine.identities.holder,
        };
        let mut request = ClaimRequest::new(
            self.key.clone(),
            engine.entropy.token()?,
            &self.options,
            Arc::clone(identity),
            engine.entropy.clone(),
            Host::new(Arc::<HoldRegistry>::clone(&engine.registry), self.site),
        );
        if session.is_some() {
            request.usual_lease = usual_lease(self.options.lease);
        }
        // Nothing was sent by `claim`, so that a panic there is a failure that certainly changed nothing.
        let panicked = |panic| Failure::unavailable(format!("the backend panicked in `claim`: {panic}"));
        guard(|| engine.backend.claim(request)).map_err(panicked)
    }
}
