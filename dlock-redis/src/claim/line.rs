//! A lock that is given to one in line by the release before it: what makes the message a grant.
//!
//! The release takes the lock for the first in line until the moment at which that one would have lost its place, which
//! is [`PLACE`] after the server saw its last request. It publishes the mark of that request, with the fence. Whoever
//! finds the mark of its own last request in the message knows that the server saw it after it was sent, and that the
//! lock is its own until [`PLACE`] after that, by its own clock alone. However late the message comes, and however
//! often: one with another mark is about a place that was lost since, and no more than a reason to ask.

use std::time::Duration;

use dlock_core::backend::{Grant, PREFERENCE_ALIVE, Validity};
use dlock_core::{Clock, Fence, Timestamp};

/// How long a place in line is kept for one that is not heard of.
const PLACE: Duration = PREFERENCE_ALIVE;
/// One that would have the lock for less asks for it: the answer renews it.
const LEAST: Duration = Duration::from_millis(200);

/// The place in line of one claim.
#[derive(Clone, Copy, Default)]
pub(super) struct Line {
    /// When the last request was sent, if its answer was that the lock is busy.
    asked: Option<Timestamp>,
}

impl Line {
    /// Notes that a request is about to be sent; what marks it.
    pub(super) fn asks(&mut self) -> Timestamp {
        self.asked = None;
        Clock::system().now()
    }

    /// Notes that this request left us waiting.
    pub(super) const fn waits(&mut self, asked: Timestamp) {
        self.asked = Some(asked);
    }

    /// Reads a message: the lock and for how long, if it was given to us, and there is time enough left to rely on it.
    pub(super) fn given(&self, (mark, fence): (u64, u64), lease: Duration) -> Option<Grant> {
        let asked = self.asked.filter(|asked| asked.as_nanos() == mark)?;
        let waited = Clock::system().now().since(asked);
        let first = PLACE.min(lease);
        (waited + LEAST < first).then(|| {
            let grant = Grant::new(Validity::Lease(lease)).with_fence(Fence::new(fence));
            grant.proven_at(asked).with_first_lease(first)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    #[test]
    fn only_a_message_about_the_last_request_is_a_grant_which_counts_from_then() {
        let mut line = Line::default();
        assert!(line.given((1, 7), LEASE).is_none(), "nothing was asked");
        let first = line.asks();
        assert!(line.given((first.as_nanos(), 7), LEASE).is_none(), "it may have another answer");
        line.waits(first);
        let grant = line.given((first.as_nanos(), 7), LEASE).unwrap();
        assert_eq!((grant.fence, grant.proven_at), (Some(Fence::new(7)), Some(first)));
        assert_eq!((grant.first_lease, grant.validity), (Some(PLACE), Validity::Lease(LEASE)));
        let second = line.asks() + Duration::from_nanos(1);
        line.waits(second);
        assert!(line.given((first.as_nanos(), 7), LEASE).is_none(), "of a place that was lost since");
        assert!(line.given((second.as_nanos(), 8), LEASE).is_some());
    }

    #[test]
    fn a_message_that_comes_late_is_a_reason_to_ask() {
        for (late, lease) in [(PLACE - LEAST, LEASE), (LEASE / 60, LEASE / 60), (Duration::ZERO, LEAST)] {
            let (mut line, asked) = (Line::default(), Clock::system().now() - late);
            line.waits(asked);
            assert!(line.given((asked.as_nanos(), 7), lease).is_none(), "{late:?} of {lease:?}");
        }
    }

    #[test]
    fn the_first_lease_is_no_longer_than_those_that_follow() {
        let (mut line, lease) = (Line::default(), PLACE / 2);
        let asked = line.asks();
        line.waits(asked);
        assert_eq!(line.given((asked.as_nanos(), 7), lease).unwrap().first_lease, Some(lease));
    }
}
