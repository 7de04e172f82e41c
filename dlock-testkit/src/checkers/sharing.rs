//! What several hold at a time: who was beside whom, and how their fences lie.

use dlock_audit::checker::{Finding, HoldRecord, What, beside, most, order};

use super::Inversion;
use super::holds::holds;
use crate::history::Event;

/// The verdict of [`sharing`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sharing {
    /// Holds that were looked at.
    pub holds: usize,
    /// How many were believed in at one time, at the most, of one key.
    pub most: usize,
    /// Who was beside whom, and should not have been.
    pub beside: Vec<Misplaced>,
    /// Whose fences do not fit.
    pub inversions: Vec<Misplaced>,
}

/// A hold that does not go with another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misplaced {
    /// The key.
    pub key: String,
    /// Process and hold of both, the earlier one first.
    pub holds: [(u32, u64); 2],
    /// What is wrong.
    pub what: &'static str,
}

impl Misplaced {
    /// As [`Inversion::TOO_EARLY`].
    pub const TOO_EARLY: &'static str = Inversion::TOO_EARLY;

    fn of(found: &Finding, key: &str, holds: &[HoldRecord]) -> Self {
        let what = match found.what {
            What::Overlap => "held beside one who holds it alone",
            What::TooManyPermits => "more permits than there are",
            What::SameFence => "the fence of one who holds it alone",
            What::TooEarly => Self::TOO_EARLY,
            What::AskedLate => Inversion::ASKED_LATE,
        };
        let holds = found.holds.map(|at| (holds[at].process, holds[at].number));
        Self { key: key.to_owned(), holds, what }
    }
}

/// Checks locks that are read and written, and semaphores:
///
/// * while one owner believes to hold a lock alone, no other believes to hold it;
/// * no more permits are believed in at a time than there are;
/// * a fence of a lock that is held alone lies between those before and those after it: nobody else has it, whoever
///   has a lower one has left, or was promised no more time, and asked no later than the higher one was granted.
///
/// Readers may have fences in any order among each other, and so may those who have permits.
#[must_use]
pub fn sharing(events: &[Event]) -> Sharing {
    let mut verdict = Sharing::default();
    for (key, holds) in holds(events) {
        verdict.holds += holds.len();
        verdict.most = verdict.most.max(most(&holds));
        let placed = |found: Vec<Finding>| {
            found.into_iter().map(|found| Misplaced::of(&found, key, &holds)).collect::<Vec<_>>()
        };
        verdict.beside.extend(placed(beside(&holds).certain));
        verdict.inversions.extend(placed(order(&holds).certain));
    }
    verdict
}
