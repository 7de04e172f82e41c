//! An acquire that waits for a busy lock, and the moment of its next attempt. All that it waits for ends with its time,
//! and when the locks are shut down.

use std::time::Duration;

use tokio::time::Instant;

use super::Acquire;
use super::attempt::gone;
use super::listen::listen;
use crate::engine::wait_queue::{Ticket, Turn};
use crate::engine::{Engine, scope};
use crate::error::{ErrorKind, Failure};

impl<'a> Acquire<'a> {
    /// Waits until another attempt may be worth while, or the time is up: until the lock was released, the backend
    /// reports a change, the holder's lease has ended, or a pause is over. Returns whether there is time for an
    /// attempt.
    pub(super) async fn wait_for_change(
        &mut self,
        retry_after: Option<Duration>,
        ticket: Option<&Ticket<'a>>,
    ) -> Result<bool, Failure> {
        let (began, poll) = (Instant::now(), self.next_poll(ticket));
        // A little later than the end of the holder's lease, which an attempt at that very moment might still meet.
        let pause = retry_after.map_or(poll, |left| poll.min(left.saturating_add(Duration::from_millis(1))));
        if let Some(ticket) = ticket {
            ticket.poll_after(pause);
            // Accepted anew: `ask` took it back before the request.
            if self.accepts_handoff() {
                ticket.accept(self.specs[self.contention.place].options.lease);
            }
        }
        let (engine, place, patient_until) = (self.engine, self.contention.place, self.limits.patient_until);
        let Some(claim) = self.pendings[place].claim.as_mut() else { return Err(gone()) };
        let changed = async {
            let turn = async {
                match ticket {
                    Some(ticket) => ticket.turn().await,
                    None => {
                        engine.timers.sleep(pause).await;
                        Turn::Due
                    }
                }
            };
            let notified = listen(engine, claim, &self.specs[place].key, ticket);
            tokio::select! {
                biased;
                // The turn comes first: if a release in this process and a notification are there at once, the
                // notification is of that release, and must not count as one for nothing.
                turn = turn => Ok(if turn == Turn::Due && pause < poll { None } else { Some(turn) }),
                notified = notified => notified.map(|()| None),
            }
        };
        match within(engine, patient_until, changed).await?? {
            // No notification came during a whole pause: the count of those that were for nothing begins anew.
            Some(Turn::Due) => self.pauses().notifications.reset(),
            Some(Turn::Released) => {}
            None => {
                // If the acquire is dropped before it asks, the next waiter must still see this notification.
                if let Some(ticket) = ticket {
                    ticket.tell();
                }
                let (waited, asked_at) = (began.elapsed(), self.requests.asked_at);
                let pace = &mut self.pauses().notifications;
                if let Some(at) = pace.next(waited, asked_at, engine.entropy.fraction()) {
                    // A lock that is handed over ends the pause; `handed_over` takes it at the beginning of the next
                    // round.
                    pause_until(engine, at, patient_until, ticket).await?;
                }
            }
        }
        self.leaves_time_for_an_answer(ticket).await
    }

    /// Returns the pause until the next attempt where no notification comes.
    pub(super) fn next_poll(&mut self, ticket: Option<&Ticket<'_>>) -> Duration {
        let fraction = self.engine.entropy.fraction();
        if self.engine.capabilities.notified {
            // A notification will come; the poll is only the safety net. Spread over the last quarter: processes that
            // began to wait at one moment must not poll at one moment.
            return self.engine.capabilities.poll_to.mul_f64(0.75 + fraction / 4.0);
        }
        // Pauses about as long as the lock is held: an acquire that pauses for longer loses to others each time.
        if std::mem::take(&mut self.contention.changed_hands) {
            ticket.map_or_else(|| self.pauses().polls.speed_up(), Ticket::speed_up);
        }
        ticket
            .and_then(|ticket| ticket.next_pause(fraction))
            .unwrap_or_else(|| self.pauses().polls.pause(fraction))
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
