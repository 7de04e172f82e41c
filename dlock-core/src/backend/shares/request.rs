//! What is asked of a key, and what is answered.

use std::time::Duration;

use super::entries::HolderEntry;
use crate::clock::Timestamp;
use crate::fence::Fence;
use crate::mode::Mode;
use crate::token::Token;

/// What an attempt asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockRequest {
    /// The claim's token.
    pub token: Token,
    /// How the key is to be held.
    pub mode: Mode,
    /// For how long, unless it is renewed.
    pub lease: Duration,
    /// Whether the claim keeps newcomers out while it waits: it waits, and its mode [has a
    /// preference](Mode::has_preference).
    pub prefers: bool,
    /// Whether the claim waits in order.
    pub in_order: bool,
    /// How many fences a grant reserves, where the key is held alone.
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

/// What an attempt finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// It can be granted.
    Free,
    /// The token holds the key already.
    Held,
    /// Those who hold the key leave no room, unless a holder leaves before the first of them ends.
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
    /// Not before this moment, unless a holder leaves.
    Busy {
        /// When it may be free.
        until: Timestamp,
    },
    /// The key is used in this other way.
    Conflict(Mode),
}

/// What was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The first fence.
    pub fence: Fence,
    /// How many fences were reserved; 1 where an earlier attempt was granted.
    pub reserved: u32,
    /// Whether an earlier attempt was granted, whose answer was lost.
    pub adopted: bool,
}

/// What came of a downgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Downgraded {
    /// The claim is a reader's from now on: those who wait for it have to be notified.
    Now,
    /// It was before, and was renewed.
    Before,
    /// It holds nothing.
    Gone,
}

/// What a withdrawal took away.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Withdrawn<D> {
    /// What the claim held, also where its time had ended.
    pub entry: Option<HolderEntry<D>>,
    /// Whether it was preferred.
    pub preferred: bool,
}

impl<D> Withdrawn<D> {
    /// Returns whether others may come in by it, and have to be notified.
    #[must_use]
    pub const fn makes_room(&self) -> bool {
        self.entry.is_some() || self.preferred
    }
}
