//! Times at which two owners believed to hold the same lock.

use super::holds::{HoldRecord, holds};
use crate::history::Event;

/// The verdict of [`overlap`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overlaps {
    /// Holds that were looked at.
    pub holds: usize,
    /// Who overlapped with whom.
    pub overlaps: Vec<Overlap>,
}

/// Two holds of a key that overlapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlap {
    /// The key.
    pub key: String,
    /// Process and hold of both, the earlier one first.
    pub holds: [(u32, u64); 2],
    /// For how long, in nanoseconds.
    pub for_ns: u64,
}

/// Finds times at which `check` was, or would have been, fine for two owners of one key.
///
/// An owner believes from the return of his acquire until the last check that was fine began: since a loss is final, a
/// check that is fine says that all before it would have been. A release ends the belief when it begins.
#[must_use]
pub fn overlap(events: &[Event]) -> Overlaps {
    let holds = holds(events);
    let mut order: Vec<&HoldRecord<'_>> = holds.iter().collect();
    order.sort_by_key(|hold| (hold.key, hold.acquired));
    let mut verdict = Overlaps { holds: order.len(), overlaps: Vec::new() };
    // The hold of this key that lasts longest so far.
    let mut longest: Option<&HoldRecord<'_>> = None;
    for hold in order {
        if let Some(before) = longest.filter(|before| before.key == hold.key) {
            let both = before.end().min(hold.end()).saturating_sub(hold.acquired);
            if both > 0 {
                verdict.overlaps.push(Overlap {
                    key: hold.key.to_owned(),
                    holds: [(before.process, before.hold), (hold.process, hold.hold)],
                    for_ns: both,
                });
            }
            if before.end() >= hold.end() {
                continue;
            }
        }
        longest = Some(hold);
    }
    verdict
}
