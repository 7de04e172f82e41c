//! The bounds of an acquire: how long a request and a wait may take.

use std::time::Duration;

use tokio::time::Instant;

use crate::engine::wait_queue::Ticket;
use crate::engine::{Engine, Spec, scope};
use crate::error::{ErrorKind, Failure};
use crate::options::Wait;

/// The bounds of an acquire and of each of its requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) started: Instant,
    /// The end of the acquire and of its requests; `None` without an end.
    pub(super) until: Option<Instant>,
    /// The end of the wait for a busy lock.
    pub(super) patient_until: Option<Instant>,
    pub(super) request_timeout: Duration,
}

impl Limits {
    pub(super) fn of(specs: &[Spec], started: Instant) -> Self {
        let options = &specs[0].options;
        // One request takes all locks, so that the shortest timeout bounds it.
        let timeouts = specs.iter().map(|spec| spec.options.request_timeout());
        let request_timeout = timeouts.min().unwrap_or_default();
        let until = match options.wait {
            // From now, not from `started`: an acquire that does not wait makes its one request whenever it is polled.
            _ if !options.waits() => {
                Some(Instant::now() + options.patience.unwrap_or(Duration::MAX).min(request_timeout))
            }
            Wait::For(limit) => Some(started + limit),
            Wait::No | Wait::Forever => None,
        };
        let patient_until = options.patience.and_then(|patience| started.checked_add(patience));
        Self { started, until, patient_until: until.into_iter().chain(patient_until).min(), request_timeout }
    }

    pub(super) fn is_over(&self) -> bool {
        self.until.is_some_and(|until| until <= Instant::now())
    }
}

/// Pauses, and returns the failure, which is also the error when the time is up first.
pub(super) async fn pause_after(
    engine: &Engine,
    until: Option<Instant>,
    failure: Failure,
    pause: Duration,
    ticket: Option<&Ticket<'_>>,
) -> Result<Failure, Failure> {
    let paused = async {
        match ticket {
            Some(ticket) => drop(engine.timers.within(pause, ticket.passed_on_or_released()).await),
            None => engine.timers.sleep(pause).await,
        }
    };
    match Box::pin(within(engine, until, paused)).await {
        // The failure is what the caller can act on; that the time is up besides follows from its wait.
        Err(end) if end.kind() == ErrorKind::TimedOut => Err(failure),
        slept => slept.map(|()| failure),
    }
}

fn timed_out() -> Failure {
    Failure::new(ErrorKind::TimedOut, "")
}

/// Returns the failure of an acquire whose time was up before another attempt, or before its first one if it was taken
/// back.
pub(super) fn timed_out_unpolled(attempts: u32) -> Failure {
    match attempts {
        0 => Failure::new(ErrorKind::TimedOut, "nobody polled it until its wait was over"),
        _ => timed_out(),
    }
}

/// Waits, unless the time is up or the locks are shut down.
pub(super) async fn within<T>(
    engine: &Engine,
    until: Option<Instant>,
    future: impl Future<Output = T>,
) -> Result<T, Failure> {
    let open = async {
        tokio::select! {
            biased;
            // The refusal first: a waiter that is woken by a shutdown takes no further lock.
            failure = scope::refused(engine) => Err(failure),
            output = future => Ok(output),
        }
    };
    match until {
        None => open.await,
        Some(until) => engine.timers.until(until, open).await.unwrap_or_else(|| Err(timed_out())),
    }
}

/// Pauses until `at`, or until the lock is handed to the waiter with this ticket. Returns whether it was.
pub(super) async fn pause_until(
    engine: &Engine,
    at: Instant,
    until: Option<Instant>,
    ticket: Option<&Ticket<'_>>,
) -> Result<bool, Failure> {
    let pause = async {
        match ticket {
            Some(ticket) => engine.timers.until(at, ticket.passed_on()).await.is_some(),
            None => {
                engine.timers.sleep_until(at).await;
                false
            }
        }
    };
    within(engine, until, pause).await
}

/// Returns whether the time is left that an answer takes: a request that is cut off ends in doubt, where it is certain
/// so far that another claim has the lock. A lock that is handed over needs no answer, and is waited for until a
/// release is reported; the next waiter in line may have the time to ask then.
pub(super) async fn leaves_time_for_an_answer(
    engine: &Engine,
    until: Option<Instant>,
    takes: Duration,
    ticket: Option<&Ticket<'_>>,
) -> Result<bool, Failure> {
    let Some(until) = until.filter(|until| until.saturating_duration_since(Instant::now()) < takes) else {
        return Ok(true);
    };
    match ticket {
        Some(ticket) => within(engine, Some(until), ticket.passed_on_or_released()).await,
        None => Ok(false),
    }
}
