//! Fences against the order of the grants.

use super::holds::{HoldRecord, holds};
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
}

/// Checks fences in O(n log n). Since fences put the grants of a key in a total order, no search for one is needed:
///
/// * no two grants of a key have the same fence;
/// * a grant that was over before another one was asked for has the lower fence;
/// * the next grant came after its predecessor began to release, or after the time it had been promised.
///
/// Gaps are fine: an acquire whose outcome nobody learned may have used a fence up.
#[must_use]
pub fn fence_order(events: &[Event]) -> FenceOrder {
    let holds = holds(events);
    let mut grants: Vec<(u64, &HoldRecord<'_>)> =
        holds.iter().filter_map(|hold| hold.fence.map(|fence| (fence, hold))).collect();
    grants.sort_by(|(a, left), (b, right)| (left.key, a, left.acquired).cmp(&(right.key, b, right.acquired)));
    let mut verdict = FenceOrder { grants: grants.len(), inversions: Vec::new() };
    // Of all grants of this key with a lower fence: the latest moment at which one was asked for.
    let mut latest: Option<(&str, u64, u64)> = None;
    for (n, &(fence, hold)) in grants.iter().enumerate() {
        let mut accuse = |lower: u64, what| {
            let key = hold.key.to_owned();
            verdict.inversions.push(Inversion { key, fences: (lower, fence), what });
        };
        if let Some(&(lower, before)) = n.checked_sub(1).and_then(|n| grants.get(n))
            && before.key == hold.key
        {
            if lower == fence {
                accuse(lower, "two grants have the same fence");
            } else {
                if hold.acquired < before.promised_until() {
                    accuse(lower, Inversion::TOO_EARLY);
                }
            }
        }
        match &mut latest {
            Some((key, lower, invoked)) if *key == hold.key => {
                if hold.acquired < *invoked {
                    accuse(*lower, "the lower fence was asked for after the higher one was granted");
                }
                if hold.invoked > *invoked {
                    (*lower, *invoked) = (fence, hold.invoked);
                }
            }
            _ => latest = Some((hold.key, fence, hold.invoked)),
        }
    }
    verdict
}
