//! The things that go from one hold to the next when a lock is passed on, and those that stay when it is not.

use std::sync::Arc;
use std::time::Duration;

use super::Hold;
use super::pass::{ReservedFences, SectionEnd};
use crate::backend::dynamic::DynClaim;
use crate::clock::Timestamp;
use crate::engine::Spec;
use crate::engine::tenure::Tenure;
use crate::options::Options;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The things that a hold leaves to others when it ends: to the next section of this process, other processes, the key.
pub(super) struct Succession {
    fences: ReservedFences,
    /// Is `true` if the section before it passed the lock on.
    is_passed_on: bool,
    pub(super) tenure: Tenure,
    /// The time until which its release leaves the key taken; zero for an ordinary release.
    leave_until: AtomicU64,
    /// Is `true` if the backend reported that another process wants the lock.
    requested: AtomicBool,
}

impl Succession {
    pub(super) const fn new(
        (fences, is_passed_on): (ReservedFences, bool),
        tenure: Tenure,
        leave_until: Timestamp,
    ) -> Self {
        let leave_until = AtomicU64::new(leave_until.as_nanos());
        Self { fences, is_passed_on, tenure, leave_until, requested: AtomicBool::new(false) }
    }

    pub(super) const fn fences(&self) -> ReservedFences {
        self.fences
    }

    pub(super) fn is_requested(&self) -> bool {
        self.requested.load(Ordering::Acquire)
    }

    /// Notes that the lock is wanted. Returns whether that is new.
    pub(super) fn request(&self) -> bool {
        !self.requested.swap(true, Ordering::AcqRel)
    }

    fn leave_until(&self) -> Timestamp {
        Timestamp::from_nanos(self.leave_until.load(Ordering::Acquire))
    }

    fn leave(&self, until: Timestamp) {
        self.leave_until.store(until.as_nanos(), Ordering::Release);
    }
}

impl Hold {
    /// Makes the hold that follows `before`, which gave its claim: the same lease, and these fences, which are the next
    /// ones. The reports of the backend to `before` since it was closed count for this hold, which gets its reports
    /// from here on.
    pub(in crate::engine) fn after(
        before: &Self,
        spec: &Spec,
        claim: Box<dyn DynClaim>,
        fences: ReservedFences,
    ) -> Arc<Self> {
        // Not `now`: the handoff asks the server nothing, so that the lease runs from the last confirmation.
        let sent = before.validity.confirmed_at();
        let now = spec.engine.clock.now();
        let hold = Self::make(
            spec,
            (claim, before.session.clone()),
            (fences, true),
            // No first lease: `ReservedFences` has no second fence for a hold with one.
            (before.terms.validity, None),
            (now, sent),
            before.succession.tenure.next(),
        );
        // Read after `make`, which registered this hold for reports: none falls between the two holds.
        if let Some(cause) = before.validity.loss() {
            hold.lose(cause.clone());
        // `may_be_passed_on` excludes a hold that is at risk, so that this came since: `suspect` marks a closed hold
        // too.
        } else if before.is_at_risk() {
            hold.suspect();
        }
        hold.renewals.inherit(before.renewals.verify_at());
        hold
    }

    /// Is `true` if an acquire with these options, which enters the hold again, asks for another lease or an earlier
    /// end.
    pub(in crate::engine) fn keeps_other_options(&self, options: &Options) -> bool {
        options.lease != self.terms.lease
            || options.max_hold.is_some_and(|limit| self.acquired_at + limit < self.terms.ends_at)
            || options.hold_at_least.is_some_and(|least| self.acquired_at + least > self.leave_until())
    }

    /// Is `true` if the section before it passed the lock on.
    pub(in crate::engine) const fn is_passed_on(&self) -> bool {
        self.succession.is_passed_on
    }

    /// Returns the time until which its release leaves the key taken.
    pub(crate) fn leave_until(&self) -> Timestamp {
        self.succession.leave_until()
    }

    /// Has its release leave the key taken until so long after the grant, and for `at_least` from now on.
    pub(crate) fn leave_for(&self, since_grant: Duration, at_least: Duration) {
        let until = (self.acquired_at + since_grant).max(self.engine.clock.now() + at_least);
        self.succession.leave(until);
    }

    /// Has its release leave nothing behind if its lease has run out by this process's clock: on the server it may be
    /// there for a moment.
    pub(crate) fn leave_nothing_if_expired(&self) {
        let deadline = self.deadline();
        // A deadline that `max_hold` set says nothing of the lease, which runs on: the release has to leave the key
        // taken.
        if deadline != self.terms.ends_at && self.engine.clock.now() >= deadline {
            self.succession.leave(Timestamp::from_nanos(0));
        }
    }

    /// Returns the fences for a section that follows; `None` if none is left.
    pub(crate) fn next_fences(&self) -> Option<ReservedFences> {
        self.succession.fences.next().filter(|_| self.mode().is_exclusive())
    }

    /// Is `true` if a hold that was closed, and sound until `now`, may go to the next waiter here.
    pub(crate) fn may_be_passed_on(&self, now: Timestamp) -> bool {
        let Succession { tenure, .. } = &self.succession;
        let readers_wait_here = || self.engine.wait_queue.has_readers(&self.key);
        self.terms.passes_on(&SectionEnd {
            stays_taken: self.leave_until() > Timestamp::from_nanos(0),
            is_out_of_time: tenure.ends_passing_on(self.engine.tenures.limits(), now, readers_wait_here),
            is_wanted: self.is_release_requested(),
            is_renewing: self.renewals.is_renewing(now),
            is_at_risk: self.is_at_risk(),
            confirmed_at: self.validity.confirmed_at(),
            now,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::backend::{Grant, SignalSink, Validity};
    use crate::engine::hold::Condition;
    use crate::fence::Fence;
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
        let before = Hold::new(&spec, (spec.claim(None).unwrap(), None), granted(), clock.clock().now());
        assert!(before.next_fences().is_some() && before.may_be_passed_on(clock.clock().now()));
        assert_eq!(before.close(), Condition::Held);
        let claim = before.try_take_claim().flatten().unwrap();
        between(&before);
        let fences = before.next_fences().unwrap();
        (clock, Hold::after(&before, &spec, claim, fences))
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

    /// The hold that follows would count on the whole lease, which the server has not confirmed.
    #[test]
    fn a_hold_of_which_a_first_lease_runs_is_not_passed_on() {
        let clock = ManualClock::stopped();
        let (spec, now) = (spec(&clock), clock.clock().now());
        let held = |grant| Hold::new(&spec, (spec.claim(None).unwrap(), None), grant, now);
        assert!(held(granted()).next_fences().is_some());
        assert!(held(granted().with_first_lease(LEASE / 10)).next_fences().is_none());
    }

    #[test]
    fn a_hold_that_leaves_its_key_taken_is_not_passed_on() {
        let (clock, hold) = passed(|_| {});
        let now = clock.clock().now();
        hold.succession.leave(now + LEASE);
        assert!(!hold.may_be_passed_on(now));
    }
}
