//! The grant of a fair lock by message: a release takes the lock for the first waiter in the queue.
//!
//! The release takes the lock for the first in the queue until the moment at which that waiter would have lost its
//! place: [`PLACE`] after the server saw its last request. The release publishes the mark of that request, and the
//! fence. A claim that finds the mark of its own last request in the message knows that the server saw that request
//! after it was sent. So the lock is its own until [`PLACE`] after that moment, by its own clock alone, however late
//! the message arrives and however often. A message with another mark is about a place that was lost since: it is a
//! reason to ask again, and no grant.
//!
//! ```text
//!  the claim                         the server                  the holder
//!  asks() ------ acquire, mark M ---> keeps the place until
//!  waits(M) <--- busy --------------- its clock + PLACE
//!                                     takes the lock for    <---- withdraw
//!  given(M) <--- M, fence ----------- the claim until then
//!    = a grant from asks() on, for PLACE, or the lease if that is shorter
//! ```
//!
//! | `asked` | a message with its mark |
//! |---|---|
//! | `None`: no request yet, or the last one is unanswered | is no grant |
//! | `Some`: the last request was answered with busy | is a grant, if a quarter of it is left, and [`LEAST`] |

use std::time::Duration;

use dlock_core::backend::{Grant, PREFERENCE_ALIVE, Validity};
use dlock_core::{Clock, Fence, Timestamp};

/// The time for which the server keeps the place of a waiter that has sent no request since.
const PLACE: Duration = PREFERENCE_ALIVE;
/// The least time that has to be left of a grant by message, where that is more than a quarter of it. With less, the
/// claim asks for the lock, and the answer renews it: a process that is so late may well be so late again.
const LEAST: Duration = Duration::from_millis(200);

/// The place of one claim in the queue of a fair lock.
#[derive(Clone, Copy, Default)]
pub(super) struct QueuePlace {
    /// The time at which the last request was sent, if its answer was that the lock is busy.
    asked: Option<Timestamp>,
}

impl QueuePlace {
    /// Notes that a request is about to be sent. Returns its mark.
    pub(super) fn asks(&mut self) -> Timestamp {
        // A grant by an earlier mark must not be used while a request is under way: that request may take the lock
        // itself.
        self.asked = None;
        Clock::system().now()
    }

    /// Notes that this request was answered with busy, and left the claim in the queue.
    pub(super) const fn waits(&mut self, asked: Timestamp) {
        self.asked = Some(asked);
    }

    /// Returns the grant of a message, if it has the mark of the last request and enough of the time is left to rely on
    /// it.
    pub(super) fn given(&self, (mark, fence): (u64, u64), lease: Duration) -> Option<Grant> {
        let asked = self.asked.filter(|asked| asked.as_nanos() == mark)?;
        let waited = Clock::system().now().since(asked);
        let first = PLACE.min(lease);
        (waited + LEAST.max(first / 4) < first).then(|| {
            let grant = Grant::new(Validity::Lease(lease)).with_fence(Fence::new(fence));
            // The server counted from its arrival, which is later than `asked`: the local end is never after the
            // server's.
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
        let mut place = QueuePlace::default();
        assert!(place.given((1, 7), LEASE).is_none(), "nothing was asked");
        let first = place.asks();
        assert!(place.given((first.as_nanos(), 7), LEASE).is_none(), "it may have another answer");
        place.waits(first);
        let grant = place.given((first.as_nanos(), 7), LEASE).unwrap();
        assert_eq!((grant.fence, grant.proven_at), (Some(Fence::new(7)), Some(first)));
        assert_eq!((grant.first_lease, grant.validity), (Some(PLACE), Validity::Lease(LEASE)));
        let second = place.asks() + Duration::from_nanos(1);
        place.waits(second);
        assert!(place.given((first.as_nanos(), 7), LEASE).is_none(), "of a place that was lost since");
        assert!(place.given((second.as_nanos(), 8), LEASE).is_some());
    }

    #[test]
    fn a_message_that_comes_late_is_a_reason_to_ask() {
        for (late, lease) in [(PLACE * 3 / 4, LEASE), (LEASE / 60, LEASE / 60), (Duration::ZERO, LEAST)] {
            let (mut place, asked) = (QueuePlace::default(), Clock::system().now() - late);
            place.waits(asked);
            assert!(place.given((asked.as_nanos(), 7), lease).is_none(), "{late:?} of {lease:?}");
        }
    }

    #[test]
    fn the_first_lease_is_no_longer_than_those_that_follow() {
        let (mut place, lease) = (QueuePlace::default(), PLACE / 2);
        let asked = place.asks();
        place.waits(asked);
        assert_eq!(place.given((asked.as_nanos(), 7), lease).unwrap().first_lease, Some(lease));
    }
}
