//! The times at which a hold is renewed: by itself, and because its backend wants it. Times come in; there is no clock.
//!
//! | state | the next renewal | what leads to it |
//! |---|---|---|
//! | planned | when it is due by itself | a grant, or the end of the renewal before |
//! | wanted | earlier, when the backend wants it | [`want`](RenewalPlan::want) |
//! | under way | none | [`take`](RenewalPlan::take), by the keeper |
//! | over | none | [`never`](RenewalPlan::never): the hold has ended |

use std::time::Duration;

use crate::clock::Timestamp;
use crate::sync::atomic::{AtomicU64, Ordering};

/// The pause after the first renewal that the backend wanted, in nanoseconds. It doubles from each to the next, up to
/// that after a failed renewal, and is as short again after a renewal that was due by itself.
const WANTED_PAUSE: u64 = 50_000_000;

/// The renewals of one hold; see the [states](self).
pub(super) struct RenewalPlan {
    /// The time at which the next renewal is due by itself.
    renew_at: AtomicU64,
    /// The time at which the backend wants a renewal besides, and the time before which it gets none.
    wanted_at: AtomicU64,
    not_wanted_before: AtomicU64,
    /// The pause after the next renewal that the backend wants, in nanoseconds.
    wanted_pause: AtomicU64,
}

impl RenewalPlan {
    pub(super) const fn new(renew_at: Timestamp) -> Self {
        Self {
            renew_at: AtomicU64::new(renew_at.as_nanos()),
            wanted_at: AtomicU64::new(Timestamp::NEVER.as_nanos()),
            not_wanted_before: AtomicU64::new(0),
            wanted_pause: AtomicU64::new(WANTED_PAUSE),
        }
    }

    pub(super) fn due_at(&self) -> Timestamp {
        self.renew_at().min(self.wanted_at())
    }

    fn renew_at(&self) -> Timestamp {
        Timestamp::from_nanos(self.renew_at.load(Ordering::Acquire))
    }

    pub(super) fn wanted_at(&self) -> Timestamp {
        Timestamp::from_nanos(self.wanted_at.load(Ordering::Acquire))
    }

    /// Is `true` if a renewal is under way, or the backend wants one by `now`.
    pub(super) fn is_renewing(&self, now: Timestamp) -> bool {
        self.renew_at() == Timestamp::NEVER || self.wanted_at() <= now
    }

    /// Takes the renewal that is due within `ahead` of `now`; if there is one, the caller alone carries it out. `most`
    /// is the longest pause between renewals that the backend wants.
    pub(super) fn take(&self, now: Timestamp, ahead: Duration, most: impl FnOnce() -> Duration) -> bool {
        let is_wanted = self.wanted_at() <= now;
        if !is_wanted && self.renew_at() > now + ahead {
            return false;
        }
        if is_wanted {
            let pause = self.wanted_pause.load(Ordering::Acquire);
            let next = now + Duration::from_nanos(pause);
            self.not_wanted_before.store(next.as_nanos(), Ordering::Release);
            let most = u64::try_from(most().as_nanos()).unwrap_or(u64::MAX);
            self.wanted_pause.store(pause.saturating_mul(2).min(most), Ordering::Release);
        } else {
            self.wanted_pause.store(WANTED_PAUSE, Ordering::Release);
        }
        // It is still to be sent, and so all that was wanted until now. Its end plans the next one.
        self.never();
        true
    }

    /// Plans none any more.
    pub(super) fn never(&self) {
        self.plan(Timestamp::NEVER);
        self.wanted_at.store(Timestamp::NEVER.as_nanos(), Ordering::Release);
    }

    pub(super) fn plan(&self, at: Timestamp) {
        self.renew_at.store(at.as_nanos(), Ordering::Release);
    }

    /// Notes that the backend wants a renewal by `at`, but not so soon after the last wanted one.
    pub(super) fn want(&self, at: Timestamp) {
        let at = at.as_nanos().max(self.not_wanted_before.load(Ordering::Acquire));
        self.inherit(Timestamp::from_nanos(at));
    }

    /// Takes over what the backend wanted of the hold before.
    pub(super) fn inherit(&self, wanted_at: Timestamp) {
        self.wanted_at.fetch_min(wanted_at.as_nanos(), Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn renewals_that_the_backend_wants_are_spaced_out_until_one_is_due_by_itself() {
        let (plan, most) = (RenewalPlan::new(at(1_000)), || Duration::from_millis(150));
        let want_and_take = |now| {
            plan.want(at(now));
            let due = plan.due_at();
            assert!(plan.take(due, Duration::ZERO, most));
            assert!(plan.is_renewing(due) && !plan.take(due, Duration::ZERO, most), "it is under way");
            plan.plan(at(100_000));
            due
        };
        assert_eq!([(); 4].map(|()| want_and_take(0)), [0, 50, 150, 300].map(at));
        plan.plan(at(10_000));
        assert!(
            !plan.take(at(9_000), Duration::ZERO, most) && plan.take(at(9_000), Duration::from_secs(1), most)
        );
        assert_eq!([(); 2].map(|()| want_and_take(20_000)), [20_000, 20_050].map(at));
    }
}
