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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{HeldAs, Op, Outcome};

    fn event(op: Op, hold: u64, fence: u64, at: (u64, u64), valid_until: u64) -> Event {
        Event {
            process: 0,
            hold,
            key: "k".into(),
            op,
            invoked: at.0,
            returned: at.1,
            outcome: Outcome::Ok,
            fence: Some(fence),
            valid_until: Some(valid_until),
            held_as: HeldAs::Alone,
        }
    }

    fn whats(events: &[Event]) -> Vec<&'static str> {
        fence_order(events).inversions.iter().map(|inversion| inversion.what).collect()
    }

    #[test]
    fn grants_one_after_the_other_with_growing_fences_and_gaps_are_fine() {
        let mut events = Vec::new();
        for n in 0..100 {
            let at = n * 10;
            events.push(event(Op::Acquire, n, n * 3 + 1, (at, at + 2), at + 1_000));
            events.push(event(Op::Release, n, n * 3 + 1, (at + 5, at + 6), 0));
        }
        let verdict = fence_order(&events);
        assert_eq!((verdict.grants, verdict.inversions.len()), (100, 0), "{verdict:?}");
    }

    #[test]
    fn a_takeover_after_the_promised_time_is_fine_and_before_it_is_not() {
        let late = [event(Op::Acquire, 0, 1, (0, 1), 100), event(Op::Acquire, 1, 2, (50, 100), 200)];
        assert!(whats(&late).is_empty());
        let early = [event(Op::Acquire, 0, 1, (0, 1), 100), event(Op::Acquire, 1, 2, (50, 99), 200)];
        assert_eq!(whats(&early), ["granted while the grant before was still good"]);
        // A check that was fine in between shows that the promise was renewed.
        let renewed = [late[0].clone(), event(Op::Check, 0, 1, (60, 61), 150), late[1].clone()];
        assert_eq!(whats(&renewed), ["granted while the grant before was still good"]);
    }

    #[test]
    fn equal_fences_are_found() {
        let events = [
            event(Op::Acquire, 0, 7, (0, 1), 10),
            event(Op::Release, 0, 7, (2, 3), 0),
            event(Op::Acquire, 1, 7, (4, 5), 20),
        ];
        assert_eq!(whats(&events), ["two grants have the same fence"]);
    }

    #[test]
    fn a_fence_that_went_back_is_found_also_when_it_is_not_the_neighbour() {
        let events = [
            event(Op::Acquire, 0, 9, (0, 1), 2),
            event(Op::Acquire, 1, 8, (20, 40), 21),
            event(Op::Acquire, 2, 3, (50, 51), 52),
        ];
        let inversions = fence_order(&events).inversions;
        assert!(inversions.iter().any(|inversion| inversion.fences == (3, 8)), "{inversions:?}");
        assert!(inversions.iter().any(|inversion| inversion.fences == (3, 9)), "{inversions:?}");
    }

    #[test]
    fn other_keys_have_fences_of_their_own() {
        let mut other = event(Op::Acquire, 1, 1, (20, 21), 30);
        other.key = "other".into();
        assert!(whats(&[event(Op::Acquire, 0, 1, (0, 1), 100), other]).is_empty());
    }
}
