//! The validity of a hold as this process sees it, and the cause of its loss. No clock: times come in.
//!
//! ```text
//!             confirm                     the deadline has passed, or lose
//!         ┌──────────────── suspect ─────────────────────────┐
//!         ▼                    ▲                             ▼
//!       held ──── suspect ─────┘                           lost
//!         │ │                                                ▲
//!         │ └──── the deadline has passed, or lose ──────────┘
//!         ▼
//!     released ◀── release, of what is held or suspect
//! ```
//!
//! Lost and released are final.

use std::borrow::Cow;
use std::sync::OnceLock;

use super::Condition;
use super::lease::Plan;
use crate::clock::Timestamp;
use crate::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

const HELD: u8 = 0;
const SUSPECT: u8 = 1;
const LOST: u8 = 2;
const RELEASED: u8 = 3;

/// The validity of one hold; see the [states](self).
#[derive(Debug)]
pub(super) struct LocalValidity {
    state: AtomicU8,
    deadline: AtomicU64,
    /// The send time of the last request that confirmed it.
    confirmed_at: AtomicU64,
    /// Is `true` if a renewal is late.
    at_risk: AtomicBool,
    /// The last time at which it could be relied on before it became suspect.
    trusted_until: AtomicU64,
    /// The cause of its loss.
    loss: OnceLock<Cow<'static, str>>,
}

impl LocalValidity {
    /// Creates the validity of a hold that was granted by a request sent at `sent`.
    pub(super) fn new(plan: Plan, sent: Timestamp) -> Self {
        Self {
            state: AtomicU8::new(HELD),
            deadline: AtomicU64::new(plan.deadline.as_nanos()),
            confirmed_at: AtomicU64::new(sent.as_nanos()),
            at_risk: AtomicBool::new(false),
            trusted_until: AtomicU64::new(sent.as_nanos()),
            loss: OnceLock::new(),
        }
    }

    /// Returns the condition at `now`; `None` when the deadline has passed, which is a loss to be noted.
    #[inline]
    pub(super) fn condition(&self, now: impl FnOnce() -> Timestamp) -> Option<Condition> {
        match self.state.load(Ordering::Acquire) {
            // The end before the deadline: a hold that was released in time is not lost later on, and costs no look at
            // the clock.
            RELEASED => Some(Condition::Released),
            LOST => Some(Condition::Lost),
            _ if now() >= self.deadline() => None,
            SUSPECT => Some(Condition::Suspect),
            _ => Some(Condition::Held),
        }
    }

    /// Returns `true` if its loss was noted. This does not look at the deadline.
    #[inline]
    pub(super) fn is_lost(&self) -> bool {
        self.state.load(Ordering::Acquire) == LOST
    }

    /// Returns `true` if it was lost or released.
    pub(super) fn has_ended(&self) -> bool {
        self.state.load(Ordering::Acquire) >= LOST
    }

    pub(super) fn deadline(&self) -> Timestamp {
        Timestamp::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    pub(super) fn confirmed_at(&self) -> Timestamp {
        Timestamp::from_nanos(self.confirmed_at.load(Ordering::Acquire))
    }

    pub(super) fn loss(&self) -> Option<&Cow<'static, str>> {
        self.loss.get()
    }

    /// Notes a loss. If this loss ends the hold, rather than an earlier loss or release, returns the time until which
    /// that could be relied on, as far as that ended before.
    pub(super) fn lose(&self, cause: Cow<'static, str>) -> Option<Timestamp> {
        // Before the state: a task that sees the loss finds its cause.
        let _ = self.loss.set(cause);
        self.end(LOST)
    }

    /// Notes a release. Does nothing to a hold that was lost. Returns as [`lose`](Self::lose) does.
    pub(super) fn release(&self) -> Option<Timestamp> {
        self.end(RELEASED)
    }

    fn end(&self, end: u8) -> Option<Timestamp> {
        // Loss and release race; the first of them stands, and reports itself.
        let ends = |state| (state < LOST).then_some(end);
        match self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, ends).ok()? {
            SUSPECT => Some(Timestamp::from_nanos(self.trusted_until.load(Ordering::Acquire))),
            _ => Some(Timestamp::NEVER),
        }
    }

    /// Notes at `now` that the hold cannot be relied on until it is confirmed. Returns whether it could be before.
    pub(super) fn suspect(&self, now: Timestamp) -> bool {
        self.put_at_risk();
        // Before the state, and never moved back: an end that finds it suspect finds this moment, or a later one at
        // which it could be relied on.
        if self.state.load(Ordering::Acquire) == HELD {
            self.trusted_until.fetch_max(now.as_nanos(), Ordering::AcqRel);
        }
        self.state.compare_exchange(HELD, SUSPECT, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Moves the deadline, but never to an earlier one: the hold was confirmed by a request sent at `sent`.
    pub(super) fn extend(&self, deadline: Timestamp, sent: Timestamp) {
        // The deadline first: a reader between the two takes the lease that runs for a whole one, and not for a first
        // one, whose renewals follow each other closely.
        self.deadline.fetch_max(deadline.as_nanos(), Ordering::AcqRel);
        self.confirmed_at.fetch_max(sent.as_nanos(), Ordering::AcqRel);
    }

    /// Notes that the hold can be relied on again, unless it has ended.
    pub(super) fn confirm(&self) {
        self.at_risk.store(false, Ordering::Release);
        // From suspect alone: a loss or a release that came meanwhile stands.
        let _ = self.state.compare_exchange(SUSPECT, HELD, Ordering::AcqRel, Ordering::Acquire);
    }

    pub(super) fn put_at_risk(&self) {
        self.at_risk.store(true, Ordering::Release);
    }

    pub(super) fn is_at_risk(&self) -> bool {
        self.at_risk.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_nanos(seconds * 1_000_000_000)
    }

    /// Granted by a request sent at 0, until 10.
    fn granted() -> LocalValidity {
        LocalValidity::new(Plan { deadline: at(10), renew_at: at(3) }, at(0))
    }

    #[test]
    fn a_deadline_is_never_moved_to_an_earlier_moment() {
        let validity = granted();
        validity.extend(at(14), at(4));
        validity.extend(at(12), at(2));
        assert_eq!((validity.deadline(), validity.confirmed_at()), (at(14), at(4)));
        assert_eq!(validity.condition(|| at(13)), Some(Condition::Held));
        assert_eq!(validity.condition(|| at(14)), None, "a loss that is to be noted");
    }

    #[test]
    fn a_loss_and_a_release_are_final_and_the_first_of_them_counts() {
        let lost = granted();
        assert!(lost.lose("gone".into()).is_some() && lost.lose("late".into()).is_none());
        lost.release();
        lost.confirm();
        lost.extend(at(100), at(90));
        assert!(!lost.suspect(at(1)));
        assert_eq!(lost.condition(|| at(1)), Some(Condition::Lost));
        assert_eq!(lost.loss().map(|cause| &**cause), Some("gone"));
        let released = granted();
        released.release();
        assert!(released.lose("gone".into()).is_none() && !released.is_lost() && released.has_ended());
        assert_eq!(released.condition(|| at(11)), Some(Condition::Released), "also after its deadline");
    }

    #[test]
    fn a_suspect_hold_is_held_again_once_it_is_confirmed() {
        let validity = granted();
        assert!(validity.suspect(at(1)) && !validity.suspect(at(1)), "only the first call makes it suspect");
        assert!(validity.is_at_risk());
        assert_eq!(validity.condition(|| at(1)), Some(Condition::Suspect));
        assert_eq!(validity.condition(|| at(10)), None, "its deadline counts all the same");
        validity.confirm();
        assert!(!validity.is_at_risk());
        assert_eq!(validity.condition(|| at(1)), Some(Condition::Held));
    }

    #[test]
    fn a_hold_that_ends_while_it_is_suspect_could_be_relied_on_until_it_became_so() {
        let (sound, suspect, sound_again) = (granted(), granted(), granted());
        assert_eq!(sound.release(), Some(Timestamp::NEVER));
        assert!(suspect.suspect(at(2)) && !suspect.suspect(at(3)));
        assert_eq!((suspect.lose("gone".into()), suspect.release()), (Some(at(2)), None));
        sound_again.suspect(at(2));
        sound_again.confirm();
        assert!(sound_again.suspect(at(4)));
        assert_eq!(sound_again.release(), Some(at(4)));
        let confirmed = granted();
        confirmed.suspect(at(2));
        confirmed.confirm();
        assert_eq!(confirmed.lose("gone".into()), Some(Timestamp::NEVER));
    }
}
