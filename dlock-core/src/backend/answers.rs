//! The answers of the steps of a backend.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::fence::Fence;
use crate::holder::Holder;

/// The answer to one attempt.
#[derive(Debug)]
#[must_use]
pub enum Attempt {
    /// The claim has the lock.
    Granted(Grant),
    /// Another holder has it.
    Busy(Busy),
}

/// The answer to one attempt for several locks at once.
#[derive(Debug)]
#[must_use]
pub enum BatchAttempt {
    /// The claims have all of the locks: a grant for each claim, in their order.
    Granted(Vec<Grant>),
    /// Another holder has one of the locks, the first in their order, and this attempt has taken none. An earlier
    /// attempt whose outcome was not known may have.
    Busy {
        /// The index of the claim whose lock is busy.
        place: usize,
        /// The facts known of its holder.
        busy: Busy,
    },
    /// These locks cannot be taken in one step. Nothing was tried: they are to be taken one by one.
    Separately,
}

/// The outcome of taking a lock away from the holders that were [seen](crate::Locks::occupancy).
///
/// [`Holder::is_same_hold`] decides whether a hold was seen: a later grant was not, also if it is one to the same
/// process. If no answer came it is an error of the kind [`ErrorKind::Unknown`](crate::ErrorKind::Unknown), and the
/// request may be made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub enum Forced {
    /// The lock was taken away from all its holders, each of which was seen; some of those that were seen may have left
    /// before. The holders are not stopped by it, and learn of it at their next renewal. Another process may hold the
    /// lock by now.
    Released,
    /// No process holds the lock any more, and nothing was changed: the holders that were seen released it, or lost it,
    /// perhaps to an earlier request of this kind whose answer was lost.
    Free,
    /// The lock has a holder now that was not seen, alone or beside holders that were. A waiter that is [first in
    /// line](Holder::first_in_line) counts too. No holder lost the lock; on a quorum, nodes may have taken back votes
    /// that were seen and are no majority any more.
    HeldByOthers,
}

impl Forced {
    /// Returns the answer that needs no release, where `now` hold the lock and `seen` were seen to: there is no holder,
    /// or one that was not seen. `None` if the lock is to be taken away.
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

/// A grant of the lock to a claim.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Grant {
    /// The fencing token, where the backend has them.
    pub fence: Option<Fence>,
    /// The time for which the lock is granted.
    pub validity: Validity,
    /// The time from which its validity counts, if that is earlier than the call of the attempt that was granted.
    pub proven_at: Option<Timestamp>,
    /// The length of the first lease, until a renewal, if that is less than its validity.
    pub first_lease: Option<Duration>,
    /// The number of fences that are reserved for this claim, from [`fence`](Self::fence) on: the next grant has a
    /// higher one than all of these. See [`Claim::reserve`](crate::backend::Claim::reserve).
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

    /// Sets the number of fences that are reserved, from the first on.
    #[must_use]
    pub const fn with_reserved(mut self, fences: u32) -> Self {
        self.reserved = fences;
        self
    }

    /// Sets the length of the first lease; each from a renewal on is as long as its validity. It is for a lock that was
    /// given to a waiter before it was known whether the waiter is still there. It is renewed soon, unless it is
    /// released before. Of a length beyond the lease's, that of the lease counts, to which a renewal may shorten it.
    #[must_use]
    pub const fn with_first_lease(mut self, length: Duration) -> Self {
        self.first_lease = Some(length);
        self
    }

    /// Counts the validity from the last proof of life, which may be older than the attempt: a session that is notified
    /// of its turn need not ask the servers once more.
    #[must_use]
    pub const fn proven_at(mut self, proof: Timestamp) -> Self {
        self.proven_at = Some(proof);
        self
    }
}

/// The time that a grant lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// This long from the send of the attempt, and again from each renewal.
    Lease(Duration),
    /// As long as a session lives, which the backend watches. With a length, the lock counts as lost that long after
    /// the last proof of life ([`Signal::trust`](crate::backend::Signal::trust)); without one, only
    /// [`Signal::lost`](crate::backend::Signal::lost) ends it.
    Session(Option<Duration>),
}

/// The answer that another holder has the lock.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Busy {
    /// The time after which the holder's lease ends if it is not renewed.
    pub retry_after: Option<Duration>,
    /// The holder, if the answer names one.
    pub holder: Option<Box<Holder>>,
    /// Is `true` if a place in the backend's queue was lost since the last attempt, and is taken anew.
    pub requeued: bool,
}

/// The answer to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Renewed {
    /// The lease runs for its full length again, counted from the send of the request.
    Extended,
    /// The lock no longer carries the claim's token.
    Gone,
}

/// The answer to a withdrawal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct Withdrawal {
    /// Is `true` if the claim had something on the server that is gone now.
    pub removed: bool,
    /// Is `true` if the server certainly has nothing of this claim from now on. If not, a request that was sent before
    /// may still take effect: the engine withdraws again until it is settled, or the lease and a request timeout have
    /// passed.
    pub settled: bool,
    /// The waiters of other processes that were seen while the lock was held.
    pub others_waiting: OthersWaiting,
}

/// The waiters of other processes, as far as a backend saw them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OthersWaiting {
    /// The least number of other processes that wait: 1 if the backend only knows that there are such.
    pub count: u32,
    /// Is `true` if a reader was seen to wait, perhaps one of this process.
    pub reader: bool,
}

impl OthersWaiting {
    /// No process was seen to wait.
    pub const NONE: Self = Self { count: 0, reader: false };

    /// Joins what two answers say, of which the later may be about a lock that was free already.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self { count: self.count.max(other.count), reader: self.reader || other.reader }
    }
}

impl Withdrawal {
    /// The claim had something on the server, which is gone now.
    pub const REMOVED: Self = Self { removed: true, settled: true, others_waiting: OthersWaiting::NONE };
    /// The claim had nothing on the server.
    pub const ABSENT: Self = Self { removed: false, settled: true, others_waiting: OthersWaiting::NONE };

    /// Sets the least number of other processes that were seen to wait for the lock.
    pub const fn with_others_waiting(mut self, count: u32) -> Self {
        self.others_waiting.count = count;
        self
    }

    /// Sets whether a reader was seen to wait for the lock.
    pub const fn with_reader_waiting(mut self, waits: bool) -> Self {
        self.others_waiting.reader = waits;
        self
    }

    /// Marks that a request that was sent before may still take effect.
    pub const fn unsettled(mut self) -> Self {
        self.settled = false;
        self
    }
}
