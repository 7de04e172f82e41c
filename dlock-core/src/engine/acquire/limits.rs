//! The bounds of an acquire: how long a request and a wait may take, and how often it asks.

use std::time::Duration;

use tokio::time::Instant;

use crate::backend::Backoff;
use crate::engine::wait_queue::Ticket;
use crate::engine::{Engine, scope};
use crate::error::{ErrorKind, Failure};

/// Keeps a distance between attempts that notifications ask for, once many of these were for nothing. A backend may
/// tell of changes that are none, as often as it likes.
pub(super) struct NotificationPace {
    distances: Backoff,
    /// The longest distance.
    to: Duration,
    /// How often somebody told, for nothing.
    vain: u32,
}

impl NotificationPace {
    /// So many notifications at once may be for nothing where several want a lock that is held for moments only.
    const FREE: u32 = 16;
    /// One that comes so soon after the question was there before it. One that had to be waited for sets its own pace.
    const AT_ONCE: Duration = Duration::from_micros(100);

    /// The longest distance is what would be a useful pause between polls.
    pub(super) fn new(to: Duration) -> Self {
        Self { distances: Backoff::new(Duration::from_millis(1), to), to, vain: 0 }
    }

    /// When to ask, after somebody told who was waited for so long; at once at first.
    pub(super) fn next(&mut self, waited: Duration, asked_at: Instant, fraction: f64) -> Option<Instant> {
        if waited >= Self::AT_ONCE {
            return None;
        }
        self.vain = self.vain.saturating_add(1);
        (self.vain > Self::FREE).then(|| asked_at + self.distances.pause(fraction))
    }

    pub(super) fn reset(&mut self) {
        *self = Self::new(self.to);
    }
}

/// Pauses, and returns the failure; when the time is up first, it is what there is to say.
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
        Err(end) if end.kind() == ErrorKind::TimedOut => Err(failure),
        slept => slept.map(|()| failure),
    }
}

fn timed_out() -> Failure {
    Failure::new(ErrorKind::TimedOut, "")
}

/// The time is up for one that is to ask once more, or that was taken back before it asked.
pub(super) fn timed_out_unpolled(attempts: u32) -> Failure {
    match attempts {
        0 => Failure::new(ErrorKind::TimedOut, "nobody polled it until its wait was over"),
        _ => timed_out(),
    }
}

pub(super) fn is_over(until: Option<Instant>) -> bool {
    until.is_some_and(|until| until <= Instant::now())
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
            failure = scope::refused(engine) => Err(failure),
            output = future => Ok(output),
        }
    };
    match until {
        None => open.await,
        Some(until) => engine.timers.until(until, open).await.unwrap_or_else(|| Err(timed_out())),
    }
}

/// Pauses until `at`, or until the lock is handed to this waiter. Returns whether it was.
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
/// so far that somebody else has the lock. A lock that is handed over needs no answer, and is waited for as long as
/// nobody told of a release; whoever follows in line may have the time to ask then.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seventeenth_notification_for_nothing_keeps_a_distance_and_a_fresh_start_none() {
        let (mut pace, now) = (NotificationPace::new(Duration::from_millis(10)), Instant::now());
        for n in 1..=NotificationPace::FREE {
            assert_eq!(pace.next(Duration::ZERO, now, 0.5), None, "notification {n}");
        }
        assert!(pace.next(Duration::ZERO, now, 0.5).is_some_and(|at| at > now));
        // One that had to be waited for sets its own pace.
        assert_eq!(pace.next(NotificationPace::AT_ONCE, now, 0.5), None);
        pace.reset();
        assert_eq!(pace.next(Duration::ZERO, now, 0.5), None);
    }
}
