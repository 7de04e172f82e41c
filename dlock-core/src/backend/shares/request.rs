//! Requests to a key, and their answers.

use std::time::Duration;

use super::entries::HolderEntry;
use crate::clock::Timestamp;
use crate::fence::Fence;
use crate::mode::Mode;
use crate::token::Token;

/// The request of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockRequest {
    /// The claim's token.
    pub token: Token,
    /// The mode in which the key is to be held.
    pub mode: Mode,
    /// The length of the hold, unless it is renewed.
    pub lease: Duration,
    /// Is `true` if the claim keeps newcomers out while it waits: it waits, and its mode [has a
    /// preference](Mode::has_preference).
    pub prefers: bool,
    /// Is `true` if the claim waits in order.
    pub in_order: bool,
    /// The number of fences that an exclusive grant reserves.
    pub fences: u32,
    /// The least fence of a grant, for stores that draw fences from a clock or a counter of several keys.
    pub least_fence: Fence,
}

impl LockRequest {
    /// Creates the request of a claim that does not wait, with one fence.
    #[must_use]
    pub const fn new(token: Token, mode: Mode, lease: Duration) -> Self {
        let least_fence = Fence::new(1);
        Self { token, mode, lease, prefers: false, in_order: false, fences: 1, least_fence }
    }

    /// Has the claim keep newcomers out while it waits, if its mode [has a preference](Mode::has_preference).
    #[must_use]
    pub const fn with_preference(self, prefers: bool) -> Self {
        Self { prefers: prefers && self.mode.has_preference(), ..self }
    }

    /// Has the claim wait in order.
    #[must_use]
    pub const fn with_order(self, in_order: bool) -> Self {
        Self { in_order, ..self }
    }

    /// Reserves so many fences, none of which is lower than this.
    #[must_use]
    pub const fn with_fences(self, fences: u32, least_fence: Fence) -> Self {
        Self { fences, least_fence, ..self }
    }
}

/// The outcome that an attempt would have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// The key can be granted.
    Free,
    /// The token holds the key already.
    Held,
    /// The holders of the key leave no room, unless a holder leaves before the first of them ends.
    Taken(Timestamp),
    /// There is room, and another claim's preference or turn keeps this one out until then.
    KeptOut(Timestamp),
    /// The key is used in this other way.
    Conflict(Mode),
}

/// The answer to an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Answer {
    /// The claim holds the key.
    Granted(Granted),
    /// The claim has to wait until this moment, unless a holder leaves.
    Busy {
        /// The time at which the key may be free.
        until: Timestamp,
    },
    /// The key is used in this other way.
    Conflict(Mode),
}

/// A grant of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The first fence.
    pub fence: Fence,
    /// The number of fences that were reserved; 1 if an earlier attempt was granted.
    pub reserved: u32,
    /// Is `true` if an earlier attempt was granted, whose answer was lost.
    pub adopted: bool,
}

/// The outcome of a downgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Downgraded {
    /// The claim is a reader's from now on: the waiters for the key have to be notified.
    Now,
    /// The claim was a reader's before, and was renewed.
    Before,
    /// The claim holds nothing.
    Gone,
}

/// The parts that a withdrawal took away.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Withdrawn<D> {
    /// The entry of the claim, also if its time had ended.
    pub entry: Option<HolderEntry<D>>,
    /// Is `true` if the claim was preferred.
    pub preferred: bool,
}

impl<D> Withdrawn<D> {
    /// Returns whether others may come in now, and have to be notified.
    #[must_use]
    pub const fn makes_room(&self) -> bool {
        self.entry.is_some() || self.preferred
    }
}
