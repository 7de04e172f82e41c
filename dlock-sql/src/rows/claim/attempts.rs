//! The attempts of a claim on a row, each of which goes on without its caller.
//!
//! | the attempt | before the next attempt: `look` | before a withdrawal: `end` |
//! |---|---|---|
//! | was not sent | settled: it never will be | settled |
//! | has ended, and its answer was read | settled by `answered` | settled by `answered` |
//! | has ended, and its answer was not read | over: the next answer shows its outcome | over: removed with the rest |
//! | is under way, or lost | in flight | in flight, unless it was sent a lease ago |

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{InFlight, RequestClock, within};
use dlock_core::{ErrorKind, Failure};

use crate::gateway::Progress;

/// The time for which a withdrawal waits for the outcome of an attempt before it goes ahead.
const OUTCOME: Duration = Duration::from_millis(200);

/// The attempts of one claim that may have taken the lock, as far as is known. Each goes by a way of its own: the order
/// in which the server carries out what goes over different connections is not known. An attempt whose connection broke
/// stays in flight until the claim is withdrawn: a server may carry it out at any time, and an attempt that adopts its
/// grant must not count on more fences than it reserved.
#[derive(Default)]
pub(super) struct Attempts(InFlight<Arc<Progress>>);

impl Attempts {
    /// Returns `true` if none may have taken the lock, or will: the next attempt cannot find the claim's own token, and
    /// may reserve several fences.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns `true` if the server has nothing of them, now that those which were not sent never will be.
    pub(super) fn is_clean(&self) -> bool {
        // Cancelling makes it certain: what was not sent by now never will be.
        !self.0.has_unread() && self.0.ways().all(|attempt| attempt.try_cancel())
    }

    /// Looks for those that have ended since the last attempt. Those that were not sent never will be.
    pub(super) fn look(&mut self) {
        // Before the next attempt begins, since `over_if` must not be called while one is under way.
        self.0.settle_if(|attempt| attempt.try_cancel());
        self.0.over_if(|attempt| attempt.is_settled());
    }

    /// Begins an attempt, which waits for a connection from now on.
    pub(super) fn begin(&mut self, clock: &RequestClock) -> Arc<Progress> {
        let attempt = Arc::new(Progress::of_attempt(clock));
        self.0.begin(Arc::clone(&attempt));
        attempt
    }

    /// Notes the answer to an attempt.
    pub(super) fn answered<T>(&mut self, attempt: &Arc<Progress>, answer: &Result<T, Failure>) {
        match answer {
            Ok(_) => self.0.answered(attempt),
            // An attempt that was sent and never answered may arrive, whatever the failure says.
            Err(failure) if failure.kind() != ErrorKind::Unknown && attempt.will_not_arrive() => {
                self.0.took_nothing(attempt);
            }
            Err(_) => {}
        }
    }

    /// Waits a little for the outcomes, before a withdrawal. An attempt that is over then was carried out before the
    /// withdrawal, or never will be. Whatever was sent too long ago has ended by itself.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again.
    pub(super) async fn end(&mut self, lease: Duration) {
        // First those that are unsent, which need no waiting: from here on no connection takes them up.
        self.0.settle_if(|attempt| attempt.try_cancel());
        for attempt in self.0.ways() {
            let _ = within(OUTCOME, attempt.ended()).await;
        }
        // Over, and not settled: their answers were not read, and the withdrawal is to remove what they took.
        self.0.over_if(|attempt| attempt.is_over(lease));
    }

    /// Notes that a withdrawal was answered which was sent after [`end`](Self::end). Returns whether nothing may arrive
    /// after it.
    pub(super) fn withdrawn(&mut self) -> bool {
        self.0.withdrawn();
        self.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use dlock_core::Clock;

    use super::*;

    /// Begins an attempt that is sent.
    fn send(attempts: &mut Attempts) -> Arc<Progress> {
        attempts.look();
        let attempt = attempts.begin(&RequestClock::new(Clock::system()));
        assert!(attempt.send());
        attempt
    }

    #[test]
    fn an_answer_does_not_end_an_attempt_that_may_still_arrive_and_take_the_lock() {
        let mut attempts = Attempts::default();
        let late = send(&mut attempts);
        let busy = send(&mut attempts);
        busy.settle();
        attempts.answered(&busy, &Ok(()));
        assert!(!attempts.is_empty(), "the next attempt may find what the late one took, with one fence");
        assert!(!attempts.is_clean());
        // It arrives after the busy one, and nobody waits for its answer.
        late.settle();
        attempts.look();
        assert!(!attempts.is_empty() && !attempts.is_clean());
        let adopted = send(&mut attempts);
        adopted.settle();
        attempts.answered(&adopted, &Ok(()));
        assert!(attempts.is_empty());
    }

    #[test]
    fn an_attempt_that_ended_while_another_was_under_way_may_be_the_later_one() {
        let mut attempts = Attempts::default();
        let late = send(&mut attempts);
        let busy = send(&mut attempts);
        late.settle();
        busy.settle();
        attempts.answered(&busy, &Ok(()));
        assert!(!attempts.is_empty());
    }

    #[test]
    fn what_was_not_sent_leaves_nothing_and_what_failed_leaves_those_before_it() {
        let mut attempts = Attempts::default();
        attempts.begin(&RequestClock::new(Clock::system()));
        assert!(!attempts.is_empty() && attempts.is_clean());
        attempts.look();
        assert!(attempts.is_empty());

        let unread = send(&mut attempts);
        unread.settle();
        let refused = send(&mut attempts);
        refused.settle();
        attempts.answered(&refused, &Err::<(), _>(Failure::unavailable("no connection")));
        assert!(!attempts.is_empty(), "nobody has read the answer to the one before");
    }

    #[tokio::test(start_paused = true)]
    async fn a_withdrawal_settles_what_has_ended_and_what_was_sent_a_lease_ago() {
        let lease = Duration::from_secs(3);
        let mut attempts = Attempts::default();
        send(&mut attempts).settle();
        attempts.end(lease).await;
        assert!(!attempts.is_clean(), "until the withdrawal was answered");
        assert!(attempts.withdrawn());

        send(&mut attempts).lose();
        attempts.end(lease).await;
        assert!(!attempts.withdrawn());
        tokio::time::advance(lease).await;
        attempts.end(lease).await;
        assert!(attempts.withdrawn() && attempts.is_clean());
    }
}
