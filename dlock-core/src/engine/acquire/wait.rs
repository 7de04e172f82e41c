//! An acquire that waits for a busy lock, and the moment of its next attempt.

use std::time::Duration;

use tokio::time::Instant;

use super::Acquire;
use super::limits::{pause_until, within};
use super::listen::listen;
use crate::engine::pending::gone;
use crate::engine::wait_queue::{Ticket, Turn};
use crate::error::Failure;

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
            let told = listen(engine, claim, &self.specs[place].key, ticket);
            tokio::select! {
                biased;
                turn = turn => Ok(if turn == Turn::Due && pause < poll { None } else { Some(turn) }),
                told = told => told.map(|()| None),
            }
        };
        match within(engine, patient_until, changed).await?? {
            // No notification came during a whole pause: the count of those that were for nothing begins anew.
            Some(Turn::Due) => self.pauses.notifications.reset(),
            Some(Turn::Released) => {}
            None => {
                // If the acquire is dropped before it asks, the next waiter must still see this notification.
                if let Some(ticket) = ticket {
                    ticket.tell();
                }
                if let Some(at) = self.pauses.notifications.next(
                    began.elapsed(),
                    self.requests.asked_at,
                    engine.entropy.fraction(),
                ) {
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
            // A notification will come; the poll is only the safety net.
            return self.engine.capabilities.poll_to.mul_f64(0.75 + fraction / 4.0);
        }
        // Pauses about as long as the lock is held: an acquire that pauses for longer loses to others each time.
        if std::mem::take(&mut self.contention.changed_hands) {
            ticket.map_or_else(|| self.pauses.polls.quicken(), Ticket::quicken);
        }
        ticket
            .and_then(|ticket| ticket.next_pause(fraction))
            .unwrap_or_else(|| self.pauses.polls.pause(fraction))
    }
}
