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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{HeldAs, Op, Outcome};

    fn event(op: Op, process: u32, invoked: u64, outcome: Outcome) -> Event {
        Event {
            process,
            hold: 0,
            key: "k".into(),
            op,
            invoked,
            returned: invoked + 1,
            outcome,
            fence: None,
            valid_until: None,
            held_as: HeldAs::Alone,
        }
    }

    #[test]
    fn holds_one_after_the_other_do_not_overlap() {
        let events = [
            event(Op::Acquire, 0, 0, Outcome::Ok),
            event(Op::Check, 0, 10, Outcome::Ok),
            event(Op::Release, 0, 20, Outcome::Ok),
            event(Op::Acquire, 1, 15, Outcome::Ok),
            event(Op::Check, 1, 30, Outcome::Ok),
            // Knows that it was lost.
            event(Op::Check, 1, 50, Outcome::Fail),
            event(Op::Acquire, 2, 40, Outcome::Ok),
            event(Op::Check, 2, 60, Outcome::Ok),
        ];
        let verdict = overlap(&events);
        assert_eq!((verdict.holds, verdict.overlaps.len()), (3, 0), "{verdict:?}");
    }

    #[test]
    fn a_holder_that_still_believes_overlaps_with_its_successor() {
        let events = [
            event(Op::Acquire, 0, 0, Outcome::Ok),
            event(Op::Acquire, 1, 19, Outcome::Ok),
            event(Op::Check, 1, 22, Outcome::Ok),
            event(Op::Check, 0, 30, Outcome::Ok),
        ];
        let overlaps = overlap(&events).overlaps;
        assert_eq!(overlaps, [Overlap { key: "k".into(), holds: [(0, 0), (1, 0)], for_ns: 2 }]);
    }

    #[test]
    fn a_long_hold_overlaps_with_each_that_comes_in_between() {
        let mut events = vec![event(Op::Acquire, 0, 0, Outcome::Ok), event(Op::Check, 0, 100, Outcome::Ok)];
        for process in 1..4 {
            events.push(event(Op::Acquire, process, u64::from(process) * 10, Outcome::Ok));
            events.push(event(Op::Check, process, u64::from(process) * 10 + 5, Outcome::Ok));
        }
        assert_eq!(overlap(&events).overlaps.len(), 3);
    }
}
