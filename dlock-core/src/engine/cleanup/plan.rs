//! For how long a claim is withdrawn again and again, and what follows each answer. No clock: moments come in.
//!
//! Each row asks that those above it do not apply.
//!
//! | the answer | and | what follows |
//! |---|---|---|
//! | withdrawn | it is settled, or nothing that was sent can arrive any more | the end: nothing is left |
//! | withdrawn | | waiters are notified if that may be news to them; a pause, and again |
//! | refused | time is left, and the locks are not shut down | a long pause, and again: an operator may mend it |
//! | failed | its time is over | the end: what is left is left to its lease |
//! | failed for good | the key is to stay taken for a while | again after that: the lock itself stays until then |
//! | failed for good | | the end: what is left is left to its lease |
//! | failed | | a pause, and again |

use std::time::Duration;

use crate::backend::Withdrawal;
use crate::clock::Timestamp;
use crate::error::Failure;

/// The time for which a key stays taken that was to be handed over: a withdrawal would not touch a key that is left
/// already.
const RETRACTED_FOR: Duration = Duration::from_millis(1);

/// The withdrawals of one claim.
#[derive(Debug)]
pub(super) struct WithdrawalPlan {
    /// The time after which no request that was sent can take effect.
    arrives_until: Timestamp,
    /// The time after which nothing can be left on the servers.
    until: Timestamp,
    /// The time until which the key stays taken.
    leave_until: Timestamp,
    retracts: bool,
    /// Is `true` if the next answer may be the first that shows that a lock was there.
    is_news: bool,
}

/// The time for which a withdrawal leaves the key taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeavesFor {
    /// The rest of the time that was asked for.
    asked: Duration,
    pub(super) on_server: Duration,
}

/// The next step after a withdrawal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing is left, and nothing can arrive.
    Settled,
    /// The rest, if any, is left to its lease.
    GiveUp,
    /// The servers refuse: they are asked again after a long pause.
    AwaitMending { at_most: Duration },
    /// Nothing can be left: the lock itself is kept for this long, and then released.
    AwaitEnd { left: Duration },
    /// It is withdrawn again after a pause. Waiters of this process are notified if there `is_news` for them.
    Again { is_news: bool },
}

impl WithdrawalPlan {
    /// Begins at `now`, with the lease of the claim, if it has one, and the bound of a request. `retracts` is for how
    /// long at most the key may have been left for a baton.
    pub(super) fn new(
        now: Timestamp,
        (lease, request_timeout): (Option<Duration>, Duration),
        leave_until: Timestamp,
        retracts: Option<Duration>,
    ) -> Self {
        // A request that is still on its way starts its lease when it arrives. What a session keeps has no lease, and
        // would be kept for as long as this process lives.
        let arrives_until = lease.map_or(Timestamp::NEVER, |lease| now + lease + request_timeout);
        // A key that a request has left stays taken until its time is over, which may be long after that.
        let left_until = retracts.map(|most| now + most + request_timeout);
        let until = left_until.map_or(arrives_until, |left| left.max(arrives_until));
        Self { arrives_until, until, leave_until, retracts: retracts.is_some(), is_news: true }
    }

    /// Notes that what is left on the servers lasts until then at the least.
    pub(super) fn lasts_until(&mut self, at: Timestamp) {
        self.until = self.until.max(at);
    }

    /// Returns for how long a withdrawal sent at `now` leaves the key taken.
    pub(super) fn leaves_for(&self, now: Timestamp) -> LeavesFor {
        let asked = self.leave_until.since(now);
        LeavesFor { asked, on_server: if self.retracts { asked.max(RETRACTED_FOR) } else { asked } }
    }

    /// Decides what follows an answer, at `now`, to a withdrawal that was to leave the key taken for so long.
    pub(super) fn after(
        &mut self,
        answer: &Result<Withdrawal, Failure>,
        left: LeavesFor,
        now: Timestamp,
        is_shut: bool,
    ) -> Next {
        match answer {
            Ok(withdrawal) if withdrawal.settled || now >= self.arrives_until => Next::Settled,
            // An earlier request may still take effect, so the claim is withdrawn again until none can. Waiters of this
            // process need not wait for that, and are not notified each time that nothing was there.
            Ok(withdrawal) => {
                Next::Again { is_news: std::mem::take(&mut self.is_news) || withdrawal.removed }
            }
            Err(failure) => {
                self.is_news = true;
                self.after_failure(failure, left.asked, now, is_shut)
            }
        }
    }

    fn after_failure(&self, failure: &Failure, left: Duration, now: Timestamp, is_shut: bool) -> Next {
        let rest = self.until.since(now);
        // An operator who took the right or the table away may restore it before the lease has ended, and a session has
        // none. Not after a shutdown, where the rest ends with the session.
        if !rest.is_zero() && failure.kind().is_refusal() && !is_shut {
            // A key that could not be left is released when its time is over.
            let at_most = if left.is_zero() { rest } else { left.min(rest) };
            return Next::AwaitMending { at_most };
        }
        if !rest.is_zero() && failure.is_transient() {
            return Next::Again { is_news: false };
        }
        // If the key cannot be left, the lock itself stays until it may be released.
        if !rest.is_zero() && !left.is_zero() {
            Next::AwaitEnd { left: left.min(rest) }
        } else {
            Next::GiveUp
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_nanos(seconds * 1_000_000_000)
    }

    /// Of a lease of 9 s and requests of 1 s, which leaves the key taken until then.
    fn plan(leave_until: u64) -> WithdrawalPlan {
        WithdrawalPlan::new(at(0), (Some(SECOND * 9), SECOND), at(leave_until), None)
    }

    #[test]
    fn each_answer_is_followed_by_what_the_table_says() {
        let open = || Ok(Withdrawal { settled: false, ..Withdrawal::ABSENT });
        let settled = || Ok(Withdrawal { settled: true, ..Withdrawal::ABSENT });
        let failed = |kind| Err(Failure::new(kind, ""));
        let away = || failed(ErrorKind::Unavailable);
        let denied = || failed(ErrorKind::Denied);
        let broken = || failed(ErrorKind::InvalidKey);
        let mending = |seconds| Next::AwaitMending { at_most: SECOND * seconds };
        let rows = [
            ("settled", plan(0), settled(), 1, false, Next::Settled),
            ("withdrawn, and more may arrive", plan(0), open(), 1, false, Next::Again { is_news: true }),
            ("withdrawn when nothing can arrive any more", plan(0), open(), 10, false, Next::Settled),
            ("servers away", plan(0), away(), 1, false, Next::Again { is_news: false }),
            ("servers away until the end", plan(0), away(), 10, false, Next::GiveUp),
            ("a refusal", plan(0), denied(), 1, false, mending(9)),
            ("a refusal until the end", plan(0), denied(), 10, false, Next::GiveUp),
            ("a refusal of a key that stays taken", plan(4), denied(), 1, false, mending(3)),
            ("a refusal of a key that stays taken for longer", plan(20), denied(), 1, false, mending(9)),
            ("a refusal after the shutdown", plan(0), denied(), 1, true, Next::GiveUp),
            ("a final failure", plan(0), broken(), 1, false, Next::GiveUp),
            ("a key that cannot be left", plan(4), broken(), 1, false, Next::AwaitEnd { left: SECOND * 3 }),
            (
                "a key that cannot be left for longer",
                plan(20),
                broken(),
                1,
                false,
                Next::AwaitEnd { left: SECOND * 9 },
            ),
            ("a key that cannot be left until the end", plan(20), broken(), 10, false, Next::GiveUp),
        ];
        for (what, mut plan, answer, now, is_shut, next) in rows {
            let left = plan.leaves_for(at(now));
            assert_eq!(plan.after(&answer, left, at(now), is_shut), next, "{what}");
        }
    }

    #[test]
    fn waiters_are_notified_of_the_first_answer_of_each_removal_and_of_that_after_a_failure() {
        let mut plan = plan(0);
        let mut is_news = |answer| {
            let left = plan.leaves_for(at(1));
            matches!(plan.after(&answer, left, at(1), false), Next::Again { is_news: true })
        };
        let open = Withdrawal { settled: false, ..Withdrawal::ABSENT };
        assert!(is_news(Ok(open)) && !is_news(Ok(open)));
        assert!(is_news(Ok(Withdrawal { removed: true, ..open })));
        assert!(!is_news(Err(Failure::unavailable(""))));
        assert!(is_news(Ok(open)) && !is_news(Ok(open)));
    }

    #[test]
    fn what_is_retracted_is_looked_for_until_the_time_of_the_baton_is_over() {
        let leaves = (Some(SECOND * 9), SECOND);
        let mut retracts = WithdrawalPlan::new(at(0), leaves, at(0), Some(SECOND * 60));
        let left = retracts.leaves_for(at(50));
        assert_eq!(left.on_server, RETRACTED_FOR);
        let answer = Err(Failure::unavailable(""));
        assert_eq!(retracts.after(&answer, left, at(50), false), Next::Again { is_news: false });
        assert_eq!(retracts.after(&answer, left, at(61), false), Next::GiveUp);
    }

    #[test]
    fn what_lasts_for_longer_is_asked_for_until_then_and_arrives_no_later_for_it() {
        let mut plan = plan(0);
        plan.lasts_until(at(100));
        let mut after = |answer, now| {
            let left = plan.leaves_for(at(now));
            plan.after(&answer, left, at(now), false)
        };
        let away = || Err(Failure::unavailable(""));
        assert_eq!(after(away(), 99), Next::Again { is_news: false });
        assert_eq!(after(away(), 100), Next::GiveUp);
        assert_eq!(after(Ok(Withdrawal { settled: false, ..Withdrawal::ABSENT }), 10), Next::Settled);
    }

    #[test]
    fn what_a_session_keeps_is_withdrawn_for_as_long_as_the_process_lives() {
        let mut plan = WithdrawalPlan::new(at(0), (None, SECOND), at(0), None);
        let left = plan.leaves_for(at(1_000_000));
        let answer = Err(Failure::unavailable(""));
        assert_eq!(plan.after(&answer, left, at(1_000_000), false), Next::Again { is_news: false });
    }
}
