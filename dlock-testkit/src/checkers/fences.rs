//! Fences against the order of the grants.

use dlock_audit::checker::{What, order};

use super::holds::{alone, holds};
use crate::history::Event;

/// The verdict of [`fence_order`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FenceOrder {
    /// Grants with a fence.
    pub grants: usize,
    /// What is wrong.
    pub inversions: Vec<Inversion>,
}

/// Two grants whose fences do not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inversion {
    /// The key.
    pub key: String,
    /// The fences, of the grant with the lower one first.
    pub fences: (u64, u64),
    /// What is wrong with them.
    pub what: &'static str,
}

impl Inversion {
    /// A grant before the release of the one before, and before the end of the time that one was promised.
    pub const TOO_EARLY: &'static str = "granted while the grant before was still good";

    pub(super) const ASKED_LATE: &'static str =
        "the lower fence was asked for after the higher one was granted";
}

/// Checks fences in O(n log n). Since fences put the grants of a key in a total order, no search for one is needed:
///
/// * no two grants of a key have the same fence;
/// * a grant that was over before another one was asked for has the lower fence;
/// * each grant came after those with lower fences began to be released, or after the time they had been promised.
///
/// Gaps are fine: an acquire whose outcome nobody learned may have used a fence up.
#[must_use]
pub fn fence_order(events: &[Event]) -> FenceOrder {
    let mut verdict = FenceOrder::default();
    for (key, holds) in alone(holds(events)) {
        verdict.grants += holds.iter().filter(|hold| hold.fence.is_some()).count();
        for found in order(&holds).certain {
            let [lower, higher] = found.holds.map(|at| holds[at].fence.unwrap_or_default());
            let what = match found.what {
                What::SameFence => "two grants have the same fence",
                What::TooEarly => Inversion::TOO_EARLY,
                _ => Inversion::ASKED_LATE,
            };
            verdict.inversions.push(Inversion { key: key.to_owned(), fences: (lower, higher), what });
        }
    }
    verdict
}
