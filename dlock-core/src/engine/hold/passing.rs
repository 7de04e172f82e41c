//! What goes from one hold to the next when a lock is passed on, and what stays when it is not.

use std::sync::Arc;
use std::time::Duration;

use super::Hold;
use crate::backend::Validity;
use crate::backend::dynamic::DynClaim;
use crate::clock::Timestamp;
use crate::engine::Spec;
use crate::fence::Fence;
use crate::options::Options;
use crate::sync::atomic::Ordering;

impl Hold {
    /// The hold that follows `before`, which gave its claim: the same lease, and the next fence. What the backend told
    /// `before` since it was closed counts for this one, which is notified from here on.
    pub(in crate::engine) fn after(before: &Self, spec: &Spec, claim: Box<dyn DynClaim>) -> Arc<Self> {
        let fences = (before.fence.map(|fence| Fence::new(fence.get() + 1)), before.last_fence);
        let sent = Timestamp::from_nanos(before.confirmed_at.load(Ordering::Acquire));
        let now = spec.engine.clock.now();
        let hold =
            Self::make(spec, claim, fences, (before.validity, None), (now, sent), before.tenure.next());
        if let Some(cause) = before.loss.get() {
            hold.lose(cause.clone());
        } else if before.is_at_risk() {
            hold.suspect();
        }
        hold.wanted_at.fetch_min(before.wanted_at.load(Ordering::Acquire), Ordering::AcqRel);
        hold
    }

    /// Whether an acquire with these options, that enters the hold again, asks for another lease or an earlier end.
    pub(in crate::engine) fn keeps_other_options(&self, options: &Options) -> bool {
        options.lease != self.lease
            || options.max_hold.is_some_and(|limit| self.acquired_at + limit < self.ends_at)
            || options.hold_at_least.is_some_and(|least| self.acquired_at + least > self.leave_until())
    }

    /// Until when its release leaves the key taken.
    pub(crate) fn leave_until(&self) -> Timestamp {
        Timestamp::from_nanos(self.leave_until.load(Ordering::Acquire))
    }

    /// Has its release leave the key taken until so long after the grant, and for so long after now at the least.
    pub(crate) fn leave_for(&self, since_grant: Duration, at_least: Duration) {
        let until = (self.acquired_at + since_grant).max(self.engine.clock.now() + at_least);
        self.leave_until.store(until.as_nanos(), Ordering::Release);
    }

    /// Has its release leave nothing behind if its lease has run out, by this process's clock: on the server it may be
    /// there for a moment.
    pub(crate) fn leave_nothing_if_expired(&self) {
        let deadline = self.deadline();
        if deadline != self.ends_at && self.engine.clock.now() >= deadline {
            self.leave_until.store(0, Ordering::Release);
        }
    }

    /// Whether a fence is left for one who follows.
    pub(crate) fn has_next_fence(&self) -> bool {
        self.mode().is_exclusive() && self.fence.is_some_and(|fence| fence.get() < self.last_fence)
    }

    /// Whether a hold that was closed, and sound until `now`, may go to the next one here.
    pub(crate) fn may_be_passed_on(&self, now: Timestamp) -> bool {
        if self.leave_until() > Timestamp::from_nanos(0) {
            return false;
        }
        let Validity::Lease(length) = self.validity else { return false };
        let confirmed_at = Timestamp::from_nanos(self.confirmed_at.load(Ordering::Acquire));
        let is_out_of_time = self.tenure.is_out_of_time(self.engine.tenures.limits(), now);
        // Perhaps the backend had reason to ask for the renewal, and its answer is lost with the hold.
        let renews = self.renew_at.load(Ordering::Acquire) == Timestamp::NEVER.as_nanos()
            || self.wanted_at.load(Ordering::Acquire) <= now.as_nanos();
        !is_out_of_time
            && !renews
            && now < confirmed_at + length / 2
            && !self.is_at_risk()
            && !self.is_release_requested()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::backend::{Grant, SignalSink};
    use crate::engine::hold::Condition;
    use crate::key::Key;
    use crate::telemetry::Site;
    use crate::{Locks, ManualClock, Memory};

    const LEASE: Duration = Duration::from_secs(30);

    const fn granted() -> Grant {
        Grant::new(Validity::Lease(LEASE)).with_fence(Fence::new(1)).with_reserved(2)
    }

    fn spec(clock: &ManualClock) -> Spec {
        let locks = Locks::new(Memory::with_clock(clock.clock()));
        let (key, options) = (Key::new("k").unwrap(), Options { lease: LEASE, ..Options::default() });
        Spec { engine: Arc::clone(locks.engine()), key, site: Site::default(), options }
    }

    /// A hold, and the one that follows it, with what happens in between.
    fn passed(between: impl FnOnce(&Hold)) -> (ManualClock, Arc<Hold>) {
        let clock = ManualClock::stopped();
        let spec = spec(&clock);
        let before = Hold::new(&spec, spec.claim().unwrap(), granted(), clock.clock().now());
        assert!(before.has_next_fence() && before.may_be_passed_on(clock.clock().now()));
        assert_eq!(before.close(), Condition::Held);
        let claim = before.try_take_claim().flatten().unwrap();
        between(&before);
        (clock, Hold::after(&before, &spec, claim))
    }

    #[test]
    fn what_the_backend_tells_while_a_lock_is_on_its_way_counts_for_the_hold_that_follows() {
        let (clock, sound) = passed(|_| {});
        assert_eq!(sound.condition(), Condition::Held);
        assert!(sound.due_at() > clock.clock().now());
        let (_, lost) = passed(|before| SignalSink::lost(before, "gone".into()));
        assert_eq!((lost.condition(), &*lost.cause()), (Condition::Lost, "gone"));
        let (_, suspect) = passed(Hold::suspect);
        assert_eq!(suspect.condition(), Condition::Suspect);
        let (clock, changed) = passed(|before| before.renew_within(Duration::ZERO));
        assert!(changed.due_at() <= clock.clock().now());
    }

    #[test]
    fn a_hold_whose_renewal_is_due_or_has_no_answer_yet_is_not_passed_on() {
        let (clock, hold) = passed(|_| {});
        let now = clock.clock().now();
        assert!(hold.may_be_passed_on(now));
        hold.renew_within(Duration::ZERO);
        assert!(!hold.may_be_passed_on(now));
        assert!(hold.take_renewal(now, Duration::ZERO));
        assert!(!hold.may_be_passed_on(now));
        hold.confirm(now);
        assert!(hold.may_be_passed_on(now));
    }

    /// The one that follows would count on the whole lease, which the server has not confirmed.
    #[test]
    fn a_hold_of_which_a_first_lease_runs_is_not_passed_on() {
        let clock = ManualClock::stopped();
        let (spec, now) = (spec(&clock), clock.clock().now());
        let held = |grant| Hold::new(&spec, spec.claim().unwrap(), grant, now);
        assert!(held(granted()).has_next_fence());
        assert!(!held(granted().with_first_lease(LEASE / 10)).has_next_fence());
    }

    #[test]
    fn a_hold_that_leaves_its_key_taken_is_not_passed_on() {
        let (clock, hold) = passed(|_| {});
        let now = clock.clock().now();
        hold.leave_until.store((now + LEASE).as_nanos(), Ordering::Release);
        assert!(!hold.may_be_passed_on(now));
    }
}
