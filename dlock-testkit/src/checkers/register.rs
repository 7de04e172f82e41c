//! What became of the writes to a register.

use crate::register::{Access, Ask};

/// The verdict of [`lost_updates`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Updates {
    /// Writes that were tried.
    pub tried: usize,
    /// Writes that were carried out.
    pub accepted: usize,
    /// Writes that came with a lower fence than an access before: whether the faults bite at all.
    pub stale_tried: usize,
    /// Those among them that were carried out.
    pub stale_accepted: usize,
    /// Writes that were carried out over a value that their writer had not seen.
    pub lost_updates: usize,
}

/// Plays the record of a register again, on its own, and counts what a fence is there to prevent.
#[must_use]
pub fn lost_updates(record: &[Access]) -> Updates {
    let mut verdict = Updates::default();
    let (mut highest, mut now) = (0, 0);
    for access in record {
        let stale = access.fence < highest;
        if let Ask::Write { read, value } = access.ask {
            verdict.tried += 1;
            verdict.stale_tried += usize::from(stale);
            if access.accepted {
                verdict.accepted += 1;
                verdict.stale_accepted += usize::from(stale);
                verdict.lost_updates += usize::from(read != now);
                now = value;
            }
        }
        highest = highest.max(access.fence);
    }
    verdict
}
