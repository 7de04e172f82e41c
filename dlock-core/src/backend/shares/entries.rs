//! The stored parts of a key's state.

use crate::clock::Timestamp;
use crate::fence::Fence;
use crate::mode::{Mode, PREFERENCE};
use crate::token::Token;

/// A holder of a key, alone or with others. `D` is what the store keeps of the holder besides: its name, a line of
/// text, nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HolderEntry<D> {
    /// The mark of the claim that holds it.
    pub token: Token,
    /// The mode of the hold: exclusive, a reader's, or its number of permits.
    pub mode: Mode,
    /// The first fence of the grant.
    pub fence: Fence,
    /// The time at which the entry ends.
    pub expires: Timestamp,
    /// Is `true` if it was released, and its part of the key stays taken.
    pub left_behind: bool,
    /// The details that the store keeps besides.
    pub detail: D,
}

/// The holders of a key that were not loaded one by one, as of the time of the step: none of them has run out, and none
/// has a token that the step names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Others {
    /// The number of readers, or of permits.
    pub taken: u32,
    /// The time at which the first of them ends.
    pub first_end: Timestamp,
    /// The time at which the last of them ends.
    pub last_end: Timestamp,
}

/// The number of permits of a semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permits {
    /// The number.
    pub of: u32,
    /// The time until which it is remembered; no holder of permits ends later.
    pub remembered_until: Timestamp,
}

/// A claim that waits for all of a lock, or for several permits, and keeps newcomers out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preference {
    /// The claim's token.
    pub token: Token,
    /// The time at which it began.
    pub since: Timestamp,
    /// The time at which it ends, unless the claim asks again before.
    pub alive_until: Timestamp,
}

impl Preference {
    /// Returns the time until which newcomers are kept out; `None` if they are not.
    #[must_use]
    pub fn keeps_out_until(&self, now: Timestamp) -> Option<Timestamp> {
        let until = self.alive_until.min(self.since + PREFERENCE);
        (until > now).then_some(until)
    }

    /// Returns whether it has ended: another claim may be preferred, or this one anew.
    #[must_use]
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.alive_until <= now || self.since + PREFERENCE * 2 <= now
    }
}

/// A claim that waits in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueEntry {
    /// The claim's token.
    pub token: Token,
    /// The time at which it loses its place, unless it asks again before.
    pub alive_until: Timestamp,
}
