//! What the steps of a backend answer.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::fence::Fence;
use crate::holder::Holder;

/// The answer to one attempt.
#[derive(Debug)]
#[must_use]
pub enum Attempt {
    /// The lock is ours.
    Granted(Grant),
    /// Somebody else has it.
    Busy(Busy),
}

/// The answer to one attempt for several locks at once.
#[derive(Debug)]
#[must_use]
pub enum BatchAttempt {
    /// All of them are ours: a grant for each claim, in their order.
    Granted(Vec<Grant>),
    /// Somebody else has one of them, the first in their order, and this attempt has taken none. An earlier one whose
    /// outcome was not known may have.
    Busy {
        /// Which of the claims.
        place: usize,
        /// What is known of its holder.
        busy: Busy,
    },
    /// These locks cannot be taken in one step. Nothing was tried: they are to be taken one by one.
    Separately,
}

/// What came of taking a lock away from those who were [seen](crate::Locks::occupancy) to hold it.
///
/// Whether a hold was seen, says [`Holder::is_same_hold`]: a later grant was not, also where it is of the same process.
/// Where no answer came it is an error of the kind [`ErrorKind::Unknown`](crate::ErrorKind::Unknown), and the same may
/// be asked again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub enum Forced {
    /// It was taken away from all who held it, each of whom was seen; of several who were, some may have left before.
    /// They are not stopped by it, and learn of it at their next renewal. Somebody else may hold the lock by now.
    Released,
    /// Nobody holds it any more, and nothing was changed: those who were seen released it, or lost it, perhaps to an
    /// earlier request of this kind whose answer was lost.
    Free,
    /// Somebody holds it now who was not seen, alone or beside those who were, also one that waits and is [first in
    /// line](Holder::first_in_line). Nobody lost the lock; on a quorum, nodes may have taken back votes that were seen
    /// and are no majority any more.
    HeldByOthers,
}

impl Forced {
    /// Returns the answer that needs no release, where `now` hold the lock and `seen` were seen to: nobody holds it, or
    /// somebody who was not seen. `None` where it is to be taken away.
    #[must_use]
    pub fn without_release(now: &[Holder], seen: &[Holder]) -> Option<Self> {
        let was_seen = |holder: &Holder| seen.iter().any(|seen| seen.is_same_hold(holder));
        match now {
            [] => Some(Self::Free),
            now if now.iter().all(was_seen) => None,
            _ => Some(Self::HeldByOthers),
        }
    }
}

/// A lock that was given to us.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Grant {
    /// The fencing token, where the backend has them.
    pub fence: Option<Fence>,
    /// How long it is ours.
    pub validity: Validity,
    /// From when its validity counts, where that is earlier than the call of the attempt that was granted.
    pub proven_at: Option<Timestamp>,
    /// How long it is ours at first, until it is renewed, where that is less than its validity.
    pub first_lease: Option<Duration>,
    /// How many fences are reserved for this claim, from [`fence`](Self::fence) on: the next grant has a higher one
    /// than all of these. See [`Claim::reserve`](crate::backend::Claim::reserve).
    pub reserved: u32,
}

impl Grant {
    /// Creates a grant of this validity without a fence.
    #[must_use]
    pub const fn new(validity: Validity) -> Self {
        Self { fence: None, validity, proven_at: None, first_lease: None, reserved: 1 }
    }

    /// Adds the fence.
    #[must_use]
    pub const fn with_fence(mut self, fence: Fence) -> Self {
        self.fence = Some(fence);
        self
    }

    /// Says that so many fences are reserved, from the first on.
    #[must_use]
    pub const fn with_reserved(mut self, fences: u32) -> Self {
        self.reserved = fences;
        self
    }

    /// Says that the first lease is of this length, and each from a renewal on as long as its validity: the lock was
    /// given to a waiter before it was known whether the waiter is still there. It is renewed soon, unless it is
    /// released before. Of a length beyond the lease's, that of the lease counts, to which a renewal may shorten it.
    #[must_use]
    pub const fn with_first_lease(mut self, length: Duration) -> Self {
        self.first_lease = Some(length);
        self
    }

    /// Counts the validity from the last proof of life, which may be older than the attempt: a session that is
    /// notified of its turn need not ask the servers once more.
    #[must_use]
    pub const fn proven_at(mut self, proof: Timestamp) -> Self {
        self.proven_at = Some(proof);
        self
    }
}

/// How long a grant lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// For this long from the send of the attempt, and again from each renewal.
    Lease(Duration),
    /// As long as a session lives, which the backend watches. With a length, the lock counts as lost that long after
    /// the last proof of life ([`Signal::trust`](crate::backend::Signal::trust)); without one, only
    /// [`Signal::lost`](crate::backend::Signal::lost) ends it.
    Session(Option<Duration>),
}

/// Somebody else holds the lock.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Busy {
    /// After how long the holder's lease ends if it is not renewed.
    pub retry_after: Option<Duration>,
    /// Who it is, where the answer tells.
    pub holder: Option<Box<Holder>>,
    /// Whether a place in the backend's queue was lost since the last attempt, and is taken anew.
    pub requeued: bool,
}

/// The answer to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Renewed {
    /// The lease runs for its full length again, counted from the send of the request.
    Extended,
    /// The lock no longer carries our token.
    Gone,
}

/// The answer to a withdrawal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct Withdrawal {
    /// Whether something of ours was there and is gone now.
    pub removed: bool,
    /// Whether the server certainly has nothing of this claim from now on. When not, a request that was sent before may
    /// still take effect: the engine withdraws again until it is settled, or the lease and a request timeout have
    /// passed.
    pub settled: bool,
    /// In how many other processes somebody was seen to wait for the lock while it was held, at least: 1 where the
    /// backend can only tell that there are such.
    pub others_waiting: u32,
}

impl Withdrawal {
    /// Something of ours was there and is gone now.
    pub const REMOVED: Self = Self { removed: true, settled: true, others_waiting: 0 };
    /// Nothing of ours was there.
    pub const ABSENT: Self = Self { removed: false, settled: true, others_waiting: 0 };

    /// Says in how many other processes somebody was seen to wait for the lock, at least.
    pub const fn with_others_waiting(mut self, count: u32) -> Self {
        self.others_waiting = count;
        self
    }

    /// Says that a request that was sent before may still take effect.
    pub const fn unsettled(mut self) -> Self {
        self.settled = false;
        self
    }
}
