//! What the handles of one `Locks` share: the backend, the registry of holds, and the line to the keeper.

pub(crate) mod acquire;
pub(crate) mod hold;
pub mod keeper;
pub(crate) mod pending;
pub(crate) mod scope;
pub(crate) mod wait_queue;

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slab::Slab;
use tokio::sync::{Notify, mpsc};

use crate::backend::Capabilities;
use crate::backend::dynamic::DynBackend;
use crate::clock::{Clock, Timestamp};
use crate::engine::hold::{Hold, take_slot};
use crate::engine::wait_queue::WaitQueue;
use crate::error::{Error, ErrorKind, Failure, Operation};
use crate::holder::Identity;
use crate::key::Key;
use crate::telemetry::spans;
use crate::telemetry::{Holders, Loss, Metrics};
use keeper::{Job, Tasks};

/// One backend with everything that is going on with it in this process.
pub(crate) struct Engine {
    pub(crate) backend: Box<dyn DynBackend>,
    pub(crate) name: &'static str,
    pub(crate) capabilities: Capabilities,
    pub(crate) clock: Clock,
    pub(crate) identity: Arc<Identity>,
    pub(crate) show_keys: bool,
    pub(crate) wait_queue: WaitQueue,
    pub(crate) registry: Arc<HoldRegistry>,
    jobs: mpsc::UnboundedSender<Job>,
}

impl Engine {
    /// Sets the engine up and hands its registry to the keeper.
    pub(crate) fn start(
        backend: Box<dyn DynBackend>,
        label: Option<String>,
        show_keys: bool,
        metrics: Metrics,
        tasks: Tasks,
    ) -> Arc<Self> {
        let clock = backend.clock();
        let registry = Arc::new(HoldRegistry::new(clock.clone(), metrics, tasks));
        let (jobs, inbox) = mpsc::unbounded_channel();
        keeper::look_after(Arc::clone(&registry), inbox);
        Arc::new(Self {
            name: backend.name(),
            capabilities: backend.capabilities(),
            clock,
            identity: Identity::of_this_process(label),
            show_keys,
            wait_queue: WaitQueue::default(),
            registry,
            jobs,
            backend,
        })
    }

    pub(crate) fn error(&self, operation: Operation, failure: Failure) -> Error {
        Error::new(operation, failure).on(self.name)
    }

    pub(crate) fn refuse_when_closed(&self) -> Result<(), Failure> {
        if self.registry.closed.load(Ordering::Acquire) { Err(self.registry.closed()) } else { Ok(()) }
    }

    /// Gives `job` to the keeper. Works on any thread, without a runtime, and never blocks.
    pub(crate) fn later(&self, job: Job) {
        self.registry.background.fetch_add(1, Ordering::AcqRel);
        if self.jobs.send(job).is_err() {
            // The keeper is dead, and has said so: the lease is the floor.
            self.registry.finished();
        }
    }

    pub(crate) fn note_lost(&self, hold: &Hold, cause: Loss) {
        self.registry.metrics.lost(hold.site, cause);
        spans::lost(hold);
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("backend", &self.backend).finish_non_exhaustive()
    }
}

/// What is held, and what is being cleaned up.
pub(crate) struct HoldRegistry {
    pub(crate) clock: Clock,
    pub(crate) metrics: Metrics,
    pub(crate) tasks: Tasks,
    /// The traces of those who hold something here.
    pub(crate) holders: Holders,
    holds: Mutex<Slab<Arc<Hold>>>,
    /// When the keeper looks next by itself. Only a hold that is due earlier wakes it.
    next_look: AtomicU64,
    pub(crate) wake: Notify,
    closed: AtomicBool,
    /// Nobody renews any more.
    dead: AtomicBool,
    shut: Notify,
    /// Acquires and releases under way.
    stepping: AtomicUsize,
    background: AtomicUsize,
    settled: Notify,
    counters: Counters,
}

/// How often things happened.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) looks: AtomicU64,
    pub(crate) wakes: AtomicU64,
    pub(crate) renewals: AtomicU64,
    pub(crate) failed_renewals: AtomicU64,
    pub(crate) lost: AtomicU64,
    pub(crate) failed_withdrawals: AtomicU64,
    pub(crate) abandoned: AtomicU64,
    pub(crate) rechecks: AtomicU64,
}

/// Counts of one `Locks` since it was built, for tests and health pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Locks held now.
    pub held: usize,
    /// Releases and clean-ups under way in the background.
    pub background: usize,
    /// How often the keeper looked through what is held.
    pub keeper_looks: u64,
    /// How often an acquire had to wake the keeper, because its first renewal is due before the keeper's next look.
    pub keeper_wakes: u64,
    /// Renewals that the backend confirmed.
    pub renewals: u64,
    /// Renewals that failed or timed out; each is tried again until the lease ends.
    pub failed_renewals: u64,
    /// Locks that were lost.
    pub lost: u64,
    /// Releases and clean-ups in the background that failed; each is tried again until the lease ends.
    pub failed_withdrawals: u64,
    /// Releases and clean-ups that were given up: the lease ended them.
    pub abandoned: u64,
    /// Attempts that asked the owner again after an unknown outcome.
    pub rechecks: u64,
}

/// The keeper looks at least this often, so that a lock with a longer third of its lease never has to wake it.
const IDLE_LOOK: Duration = Duration::from_secs(5);

impl HoldRegistry {
    fn new(clock: Clock, metrics: Metrics, tasks: Tasks) -> Self {
        Self {
            clock,
            metrics,
            tasks,
            holders: Holders::default(),
            holds: Mutex::default(),
            next_look: AtomicU64::new(0),
            wake: Notify::new(),
            closed: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            shut: Notify::new(),
            stepping: AtomicUsize::new(0),
            background: AtomicUsize::new(0),
            settled: Notify::new(),
            counters: Counters::default(),
        }
    }

    fn holds(&self) -> MutexGuard<'_, Slab<Arc<Hold>>> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lists a hold for renewal.
    pub(crate) fn list(&self, hold: &Arc<Hold>) {
        let slot = self.holds().insert(Arc::clone(hold));
        hold.listed_at(slot);
        self.metrics.hold_begins(hold.site);
        self.holders.begins(&hold.key, &hold.trace);
        self.look_by(hold.due_at());
    }

    /// Has the keeper look at this time. Wakes it only when it would come too late by itself.
    pub(crate) fn look_by(&self, at: Timestamp) {
        if self.next_look.fetch_min(at.as_nanos(), Ordering::AcqRel) > at.as_nanos() {
            self.count(|counters| &counters.wakes);
            self.wake.notify_one();
        }
    }

    /// Ends what `list` began, once. `lost` tells what the hold was worth at its end.
    pub(crate) fn unlist(&self, hold: &Hold, lost: bool, now: Timestamp) {
        if let Some(slot) = take_slot(&hold.slot) {
            self.metrics.hold_ends(hold.site, lost, now.since(hold.acquired_at));
            self.holders.ends(&hold.key, &hold.trace, &hold.engine.wait_queue);
            // Dropped outside of the lock.
            let _hold = self.holds().try_remove(slot);
            self.settled.notify_waiters();
        }
    }

    /// Looks through what is held: ends what has run out, and returns what is to be renewed and when to look next.
    pub(crate) fn look(&self) -> (Vec<Arc<Hold>>, Timestamp) {
        self.count(|counters| &counters.looks);
        let now = self.clock.now();
        let mut next = now + IDLE_LOOK;
        // A hold listed while this looks is either seen below or lowers this again.
        self.next_look.store(next.as_nanos(), Ordering::Release);
        let mut due = Vec::new();
        let mut ended = Vec::new();
        for (_, hold) in self.holds().iter() {
            if hold.deadline() <= now {
                ended.push(Arc::clone(hold));
                continue;
            }
            // Renewals that are due soon go out together with those due now.
            if hold.take_renewal(now + hold.lease / 30) {
                due.push(Arc::clone(hold));
            }
            next = next.min(hold.due_at());
        }
        for hold in ended {
            // Stays listed until its guard goes, but needs no more looks.
            hold.condition();
            hold.plan_renewal(Timestamp::NEVER);
        }
        let planned = self.next_look.fetch_min(next.as_nanos(), Ordering::AcqRel);
        (due, next.min(Timestamp::from_nanos(planned)))
    }

    pub(crate) fn held(&self) -> Vec<Arc<Hold>> {
        self.holds().iter().map(|(_, hold)| Arc::clone(hold)).collect()
    }

    /// What is held here and was not lost, so that nobody has to ask for it.
    pub(crate) fn held_keys(&self) -> HashSet<Key> {
        let holds = self.holds();
        holds.iter().filter(|(_, hold)| !hold.is_lost()).map(|(_, hold)| hold.key.clone()).collect()
    }

    /// One piece of background work is done.
    pub(crate) fn finished(&self) {
        self.background.fetch_sub(1, Ordering::AcqRel);
        self.settled.notify_waiters();
    }

    /// Refuses acquires from now on, and ends those that wait.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.shut.notify_waiters();
    }

    /// Refuses acquires, and loses what is held: nobody is left to renew it.
    pub(crate) fn keeper_is_dead(&self) {
        self.dead.store(true, Ordering::SeqCst);
        self.close();
        let held = self.held();
        spans::keeper_died(held.len());
        for hold in held {
            hold.lose_by(Loss::Keeper);
        }
        self.settled.notify_waiters();
    }

    /// Why acquires are refused.
    pub(crate) fn closed(&self) -> Failure {
        let why = match self.dead.load(Ordering::SeqCst) {
            true => {
                "dlock's own thread has ended, so that nothing can be renewed or released here; build new locks"
            }
            false => "these locks were shut down",
        };
        Failure::new(ErrorKind::Closed, why)
    }

    /// Resolves when the registry is closed.
    pub(crate) async fn shut(&self) {
        loop {
            let shut = self.shut.notified();
            if self.closed.load(Ordering::SeqCst) {
                return;
            }
            shut.await;
        }
    }

    /// An acquire or a release begins. To be noted before anything is taken off the registry for it, so that nothing is between
    /// two places when a shutdown looks.
    pub(crate) fn step_begins(&self) {
        self.stepping.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn step_ends(&self) {
        self.stepping.fetch_sub(1, Ordering::SeqCst);
        if self.closed.load(Ordering::SeqCst) {
            self.settled.notify_waiters();
        }
    }

    /// Resolves when nothing is held, being acquired or being released, and nothing goes on in the background.
    pub(crate) async fn settled(&self) {
        loop {
            let settled = self.settled.notified();
            // In the order in which a lock goes from the one to the other; an acquire that ended meanwhile may have listed one.
            if self.holds().is_empty()
                && self.stepping.load(Ordering::SeqCst) == 0
                && self.background.load(Ordering::SeqCst) == 0
                && self.holds().is_empty()
            {
                return;
            }
            settled.await;
        }
    }

    pub(crate) fn count(&self, counter: impl Fn(&Counters) -> &AtomicU64) {
        counter(&self.counters).fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn stats(&self) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        Stats {
            held: self.holds().len(),
            background: self.background.load(Ordering::Acquire),
            keeper_looks: read(&counters.looks),
            keeper_wakes: read(&counters.wakes),
            renewals: read(&counters.renewals),
            failed_renewals: read(&counters.failed_renewals),
            lost: read(&counters.lost),
            failed_withdrawals: read(&counters.failed_withdrawals),
            abandoned: read(&counters.abandoned),
            rechecks: read(&counters.rechecks),
        }
    }
}
