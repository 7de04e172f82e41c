//! A job that one of several processes runs.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::engine::Engine;
use crate::engine::refusals::Refusals;
use crate::error::{Error, ErrorKind, Failure, Operation, Result};
use crate::handles::held::Held;
use crate::handles::lock::Lock;
use crate::holder::Holder;
use crate::options::{MAX_HOLD, MAX_LEASE, MIN_HOLD_AT_LEAST, MIN_LEASE, Options, Wait};

/// The pause after which a job looks for the lock's holder, while the engine waits for another run: the bounds of half
/// its window. A job that stands in a queue behind waiters that stay finds what a run has left within [`LINGER`].
const LOOKS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3));
/// The pauses between tries that fail, and between looks where no wait comes between them: from, to.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// The longest time for which the key stays taken after a run that was longer than its window, so that the jobs that
/// waited for it find that it was done.
const LINGER: Duration = Duration::from_secs(5);

/// A job that runs once in a window of time, over all processes that start it. Made by
/// [`Locks::once`](crate::Locks::once). A value; nothing is asked for before [`run`](Self::run).
///
/// The first process that comes runs it, under a lock that is renewed. When it has succeeded, the key stays taken until
/// the window is over, by the server's clock, whatever becomes of the process: all others find the holder that ran it,
/// and skip it. The window begins with the run.
///
/// | the run | what it leaves | default |
/// |---|---|---|
/// | succeeds | the window is closed | |
/// | fails, panics or is cancelled | [`OnError`]: an open window, so that the next process that waits or comes runs it,
/// or a closed one | open |
/// | ends with its process | [`OnCrash`]: a window that opens when the lease has ended, or a closed one | open |
/// | loses its lock | an open window; the body is dropped | |
///
/// Two uses: a fixed key and the time between two runs (`"nightly-report"`, at most once in 20 hours), or a key for
/// each firing of a schedule and the time for which a late process could still ask (`"invoice:2026-11-23T06:00"`, 25
/// hours).
///
/// Limits:
///
/// * A process that is paused for longer than its lease may still be in the middle of a step when the next one runs the
///   job. It runs no further step of the body; by the [fence](Held::fence) a resource distinguishes the two.
/// * The effects of a body are not undone when it fails: a job that is run again has to bear them.
/// * It remembers until the window is over, and no longer than the store does: a failover of Redis may forget it, as it
///   may forget a lock.
///
/// It is there where [`Requirement::HoldAtLeast`](crate::Requirement::HoldAtLeast) is; elsewhere it is refused with
/// [`ErrorKind::Unsupported`] before any request.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
/// use std::time::Duration;
/// use dlock_core::{Error, Locks, Memory, Outcome};
///
/// let locks = Locks::new(Memory::new());
/// let report = locks.once("report").with_window(Duration::from_secs(3_600));
/// assert_eq!(report.run(async { Ok::<_, Error>("sent") }).await?, Outcome::Ran("sent"));
/// match report.run(async { Ok::<_, Error>("sent again") }).await? {
///     Outcome::Ran(_) => unreachable!("not within the same hour"),
///     Outcome::Skipped { ran_at, by } => println!("done at {ran_at:?} by {by}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a job does nothing until it is run"]
pub struct Once {
    lock: Lock,
    window: Option<Duration>,
    wait: Option<Wait>,
    on_error: OnError,
    on_crash: OnCrash,
}

/// The outcome of a job that was to run [once](Once).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<T> {
    /// It ran here, and returned this.
    Ran(T),
    /// It did not run here.
    Skipped {
        /// The time at which the other run began, by the clock of the process that ran it.
        ran_at: Option<SystemTime>,
        /// The holder that ran it; or is running it, unless [`left_behind`](Holder::left_behind) shows that it is done.
        by: Box<Holder>,
    },
}

/// The mark that a failed run leaves: its body returned an error, panicked or was cancelled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnError {
    /// An open window: the next process that waits for the run, or asks, runs the job again.
    #[default]
    Rerun,
    /// A closed window, as after a success.
    Skip,
}

/// The mark that a run leaves whose process dies, or is cut off from the backend for good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnCrash {
    /// A window that opens when the lease has ended: the next process that waits for the run, or asks, runs the job
    /// again.
    #[default]
    Rerun,
    /// A closed window, until it has passed since the last sign of life: the lease is as long as the window, which may
    /// then be 50 ms to 24 h. Such a run is not waited for unless [`with_wait`](Once::with_wait) is set. Refused with
    /// [`ErrorKind::Unsupported`] where a session keeps the locks, as on ZooKeeper.
    Skip,
}

impl<T> Outcome<T> {
    /// Returns what the job returned, if it ran here.
    pub fn ran(self) -> Option<T> {
        match self {
            Self::Ran(value) => Some(value),
            Self::Skipped { .. } => None,
        }
    }

    /// Returns `true` if another process ran it, or is about to.
    pub const fn is_skipped(&self) -> bool {
        matches!(self, Self::Skipped { .. })
    }
}

impl Once {
    pub(crate) fn new(lock: Lock) -> Self {
        Self { lock, window: None, wait: None, on_error: OnError::default(), on_crash: OnCrash::default() }
    }

    /// Sets the time, from the begin of a run, for which the job is not run again: 1 ms to 30 days. There is no
    /// default.
    ///
    /// A run that is longer than its window closes it for 5 s after its end, or for as long as the window where that is
    /// shorter: processes that asked while it ran skip it.
    pub const fn with_window(mut self, window: Duration) -> Self {
        self.window = Some(window);
        self
    }

    /// Sets how long to wait for a run that is under way elsewhere, before it is skipped. By default it is waited for
    /// until it ends, and the job then skipped, or run here if it failed; with [`OnCrash::Skip`] it is not waited for.
    ///
    /// With [`Wait::No`] a job whose run fails or crashes is not run again until it is asked for anew.
    pub fn with_wait(mut self, wait: impl Into<Wait>) -> Self {
        self.wait = Some(wait.into());
        self
    }

    /// Sets the mark that a failed run leaves.
    pub const fn with_on_error(mut self, on_error: OnError) -> Self {
        self.on_error = on_error;
        self
    }

    /// Sets the mark that a run leaves whose process dies.
    pub const fn with_on_crash(mut self, on_crash: OnCrash) -> Self {
        self.on_crash = on_crash;
        self
    }

    /// Sets the time after which the job is run again when its process gives no sign of life. See [`Lock::with_lease`].
    /// With [`OnCrash::Skip`] the window is the lease.
    pub fn with_lease(self, lease: Duration) -> Self {
        self.with_options(|lock| lock.with_lease(lease))
    }

    /// Sets the time after which a run is ended. See [`Lock::with_max_hold`].
    pub fn with_max_run(self, limit: Duration) -> Self {
        self.with_options(|lock| lock.with_max_hold(limit))
    }

    /// Sets the label of spans and metrics. See [`Lock::with_template`]; set it to the key where that is fixed.
    pub fn with_template(self, template: &'static str) -> Self {
        self.with_options(|lock| lock.with_template(template))
    }

    /// Changes the lock that this is made of, for other options. Its wait is for a backend that cannot be reached, or
    /// refuses while another run is waited for: for how long the job is asked for again then. Whether it is reentrant
    /// or passed on does not matter.
    pub fn with_options(mut self, change: impl FnOnce(Lock) -> Lock) -> Self {
        self.lock = change(self.lock);
        self
    }

    /// Runs `body` if no other process did in this window, and returns what it returned. It is dropped without having
    /// been polled where the job is skipped.
    ///
    /// # Errors
    ///
    /// The body's own. As an error of dlock, turned into the body's:
    ///
    /// * [`ErrorKind::Lost`]: the lock was lost while the body ran, which was dropped.
    /// * [`ErrorKind::Unavailable`] and other kinds of the backend, for as long as the lock's own wait; see
    ///   [`with_options`](Self::with_options).
    /// * [`ErrorKind::InvalidKey`], [`ErrorKind::InvalidConfig`], [`ErrorKind::Unsupported`]: the key, the window or an
    ///   option cannot work, or the backend cannot keep a window.
    /// * [`ErrorKind::Deadlock`]: the job was asked for inside its own body.
    /// * [`ErrorKind::Closed`]: the locks were shut down.
    ///
    /// # Cancel safety
    ///
    /// If dropped before the body has begun, nothing is left. When dropped later, the body is dropped first, which
    /// is a failure: see [`OnError`].
    pub fn run<T, E, F>(
        &self,
        body: F,
    ) -> impl Future<Output = std::result::Result<Outcome<T>, E>> + use<T, E, F>
    where
        F: Future<Output = std::result::Result<T, E>>,
        E: From<Error>,
    {
        // On the heap, so that the future which runs it is small.
        let body = Box::pin(body);
        self.run_with(|_| body)
    }

    /// Runs a body like [`run`](Self::run), and shows it the hold: its fence, what remains, whether it is lost.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    pub fn run_with<T, E, F, B>(
        &self,
        body: B,
    ) -> impl Future<Output = std::result::Result<Outcome<T>, E>> + use<T, E, F, B>
    where
        F: Future<Output = std::result::Result<T, E>>,
        E: From<Error>,
        B: FnOnce(Held) -> F,
    {
        self.clone().run_owned(body)
    }

    async fn run_owned<T, E, F, B>(self, body: B) -> std::result::Result<Outcome<T>, E>
    where
        F: Future<Output = std::result::Result<T, E>>,
        E: From<Error>,
        B: FnOnce(Held) -> F,
    {
        let (lock, window) = self.prepared()?;
        let mut waiting = Waiting::new(&self, &lock, window);
        let mut body = Some(body);
        loop {
            let ran = waiting.next_try().run_with(|held| {
                waiting.refusals.are_over();
                if self.on_error == OnError::Skip {
                    // From here on: a grant that no body saw leaves nothing.
                    held.holds().iter().for_each(|hold| hold.leave_for(window, Duration::ZERO));
                }
                // The body is taken only where it is polled: a try that gets no lock leaves it for the next one.
                let running = body.take().map(|body| body(held.clone()));
                async move {
                    let mut unfinished = Unfinished(Some(held.clone()));
                    let result = running?.await;
                    unfinished.0 = None;
                    if result.is_ok() {
                        held.holds().iter().for_each(|hold| hold.leave_for(window, LINGER.min(window)));
                    }
                    Some(result)
                }
            });
            match Box::pin(ran).await {
                Ok(Some(result)) => return result.map(Outcome::Ran),
                Err(error) if body.is_some() => {
                    if let Some(by) = waiting.next(error).await? {
                        return Ok(Outcome::Skipped { ran_at: by.since, by });
                    }
                }
                Err(error) => return Err(error.into()),
                Ok(None) => unreachable!("it is run where it is still there"),
            }
        }
    }

    /// Returns the lock for a run, and the window.
    fn prepared(&self) -> Result<(Lock, Duration)> {
        let refuse = |what: String| {
            self.lock.error(Operation::Configure, Failure::new(ErrorKind::InvalidConfig, what))
        };
        let Some(window) = self.window else {
            return Err(refuse(
                "it is not said for how long the job is not run again; give it `with_window`".to_owned(),
            ));
        };
        if !(MIN_HOLD_AT_LEAST..=MAX_HOLD).contains(&window) {
            return Err(refuse(format!("the window is {window:?}; use 1 ms to 30 days")));
        }
        let mut lock = self.lock.clone().for_job();
        if self.on_crash == OnCrash::Skip {
            if !(MIN_LEASE..=MAX_LEASE).contains(&window) {
                return Err(refuse(format!(
                    "the window is {window:?}, and is to stay closed after a crash; use 50 ms to 24 h, or have the \
                     job run again after a crash"
                )));
            }
            if self.lock.engine().capabilities.session_kept {
                let what = "a session keeps the lock, which ends soon after its process: no window stays closed after \
                            a crash; have the job run again after one, or use a backend with leases";
                return Err(self
                    .lock
                    .error(Operation::Configure, Failure::new(ErrorKind::Unsupported, what)));
            }
            lock = lock.with_lease(window);
        }
        let closed = lock.clone().with_hold_at_least(window);
        closed.checked(closed.options())?;
        Ok((lock, window))
    }
}

/// A run that has not ended. Dropped after its lease has run out, it leaves an open window, whatever a failure leaves.
struct Unfinished(Option<Held>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.0.iter().flat_map(|held| held.holds()).for_each(|hold| hold.leave_nothing_if_expired());
    }
}

/// The holder that keeps a job from running here, and the time for which that is waited for.
///
/// | after | that found | follows |
/// |---|---|---|
/// | any | the key that a run has left | the job is skipped |
/// | a look | another holder, and the time is over | the job is skipped |
/// | a look | as above, but it may be a lost grant of this job | a pause, and a look |
/// | a look, or a wait that knows the holder | another holder | a wait; a pause and a look where the backend does not notify, or has the queue |
/// | a wait | that its time is over, and no holder, or all time is over | a look |
/// | any | a failure that may pass | a pause, and a look |
///
/// A look is an acquire that does not wait. A wait is an acquire that waits in the queue and is notified, but ends when
/// it finds the key that a run has left.
struct Waiting<'a> {
    lock: &'a Lock,
    engine: &'a Arc<Engine>,
    /// The time from which on others are not waited for; `None` for never.
    others_until: Option<Instant>,
    waits: bool,
    /// The time for which the next try waits in the engine; `None` of a look.
    next_wait: Option<Duration>,
    /// Is `true` if a try before this one had no answer, and may have got the lock.
    is_unsure: bool,
    /// Is `true` if the holder that is found may be that try: it was not withdrawn when this one began.
    may_be_its_own: bool,
    /// The time for which a backend that cannot be reached is asked again.
    patience: Wait,
    failing_until: Option<Instant>,
    /// Is `true` if the backend allowed the job at first, so that a refusal may pass.
    was_allowed: bool,
    refusals: Refusals<'a>,
    pause: Duration,
    /// The length of each wait.
    look: Duration,
}

impl<'a> Waiting<'a> {
    fn new(once: &Once, lock: &'a Lock, window: Duration) -> Self {
        let Options { wait: patience, .. } = *once.lock.options();
        let wait = match (once.wait, once.on_crash) {
            (Some(wait), _) => wait,
            (None, OnCrash::Rerun) => Wait::Forever,
            (None, OnCrash::Skip) => Wait::No,
        };
        Self {
            lock,
            engine: lock.engine(),
            others_until: deadline(lock.engine(), wait),
            waits: !wait.limit().is_zero(),
            next_wait: None,
            is_unsure: false,
            may_be_its_own: false,
            patience,
            failing_until: None,
            was_allowed: false,
            refusals: Refusals::new(lock.engine(), lock.site()),
            pause: PAUSES.0,
            look: (window / 2).clamp(LOOKS.0, LOOKS.1),
        }
    }

    /// Returns the lock as it is to be acquired next.
    fn next_try(&mut self) -> Lock {
        let lock = self.lock.clone();
        self.is_unsure &= lock.key().is_some_and(|key| self.engine.acquires.left_claims.has(key));
        self.may_be_its_own = self.is_unsure;
        let Some(wait) = self.next_wait else { return lock };
        // Requests have their own time beside the wait.
        let limit = wait + lock.options().request_timeout();
        lock.with_wait(Wait::For(limit)).with_patience(wait)
    }

    /// Prepares the next try after one that got no lock, after a pause where it failed. Returns the holder that ran the
    /// job, or runs it, where the job is skipped.
    async fn next(&mut self, mut error: Error) -> Result<Option<Box<Holder>>> {
        let is_refused = self.was_allowed && error.kind().is_refusal();
        let now = self.engine.timers.now();
        let is_over = |until: Option<Instant>| until.is_some_and(|until| now >= until);
        let waited = self.next_wait.take().is_some();
        // The holder that the next try finds may be a grant of this one.
        self.is_unsure |= error.kind() == ErrorKind::Unknown;
        // A look that timed out was granted the lock too late.
        let mut is_busy = error.kind() == ErrorKind::Busy || waited && error.is_busy();
        if is_busy {
            let holder = error.holder().cloned().unwrap_or_default();
            // Nothing is waited for once a run has left its mark, also not by a job whose time is not over.
            if holder.left_behind {
                return Ok(Some(Box::new(holder)));
            }
            let ends = !self.waits || is_over(self.others_until);
            // A wait that is over knows the holder of its beginning only: a look decides.
            if waited && (ends || error.holder().is_none()) {
                return Ok(None);
            }
            self.was_allowed = true;
            self.refusals.are_over();
            if ends && !self.may_be_its_own {
                return Ok(Some(Box::new(holder)));
            }
            if ends {
                is_busy = false;
                error = self.lock.error(Operation::Acquire, Failure::unavailable(NOT_WITHDRAWN));
            }
        }
        let until = if is_busy {
            self.failing_until = None;
            // Otherwise the engine polls, more often than a job needs; or each job that waits has a place on the
            // servers, and a crowd learns of the end one after the other.
            let capabilities = &self.engine.capabilities;
            if capabilities.notified && !capabilities.fair {
                // Spread, so that a crowd that came together does not look at the same moment.
                let look = self.look.mul_f64(1.0 - self.engine.entropy.fraction() / 4.0);
                let left = self.others_until.map(|until| until.saturating_duration_since(now));
                self.next_wait = Some(left.map_or(look, |left| left.min(look)));
                return Ok(None);
            }
            self.others_until
        } else {
            // A reply was lost, or a server is away for a moment or is being changed.
            let until = *self
                .failing_until
                .get_or_insert_with(|| deadline(self.engine, self.patience).unwrap_or_else(|| now + FAR));
            if !(error.is_retryable() || is_refused) || is_over(Some(until)) {
                return Err(error);
            }
            Some(until)
        };
        let jitter = match is_refused {
            true => self.refusals.pause(error.failure()),
            false => self.pause.mul_f64(1.0 - self.engine.entropy.fraction() / 4.0),
        };
        let left = until.map_or(jitter, |until| until.saturating_duration_since(now));
        self.engine.pause(jitter.min(left.max(PAUSES.0))).await;
        self.pause = (self.pause * 2).min(PAUSES.1);
        Ok(None)
    }
}

const NOT_WITHDRAWN: &str =
    "a try without an answer is not withdrawn yet: whether it is what has the lock is not known";

/// A time that is longer than any process lives.
const FAR: Duration = Duration::from_secs(365 * 24 * 3_600);

fn deadline(engine: &Engine, wait: Wait) -> Option<Instant> {
    let now = engine.timers.now();
    match wait {
        Wait::No => Some(now),
        Wait::For(limit) => now.checked_add(limit),
        Wait::Forever => None,
    }
}
