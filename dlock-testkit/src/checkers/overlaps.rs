//! Times at which two owners believed to hold the same lock.

use dlock_audit::checker::{What, beside};

use super::holds::{alone, holds};
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
    let mut verdict = Overlaps::default();
    for (key, holds) in alone(holds(events)) {
        verdict.holds += holds.len();
        let found = beside(&holds).certain;
        verdict.overlaps.extend(found.iter().filter(|found| found.what == What::Overlap).map(|found| {
            Overlap {
                key: key.to_owned(),
                holds: found.holds.map(|at| (holds[at].process, holds[at].number)),
                for_ns: u64::try_from(found.span.by).unwrap_or(0),
            }
        }));
    }
    verdict
}
