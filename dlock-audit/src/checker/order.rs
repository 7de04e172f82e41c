//! Fences against the order of the holds.

use super::{Finding, Findings, HeldAs, HoldRecord, Span, What};

/// Checks the fences of a key in O(n log n). Since fences put the grants of a key in a total order, no search for one
/// is needed. A fence of a lock that is held alone lies between those before and those after it:
///
/// * nobody else has it;
/// * whoever has a lower one was promised no more time when it was granted;
/// * whoever has a lower one asked no later than it was granted, where that is known.
///
/// Readers may have fences in any order among each other, and so may those who have permits. Gaps are fine: an acquire
/// whose outcome nobody learned may have used a fence up, and so may sections that the lock was not passed to.
#[must_use]
pub fn order(holds: &[HoldRecord]) -> Findings {
    let mut found = Findings::default();
    let mut order: Vec<(u64, usize)> = holds
        .iter()
        .enumerate()
        .filter(|(_, hold)| !matches!(hold.held_as, HeldAs::Permits { .. }))
        .filter_map(|(at, hold)| hold.fence.map(|fence| (fence, at)))
        .collect();
    order.sort_by_key(|(fence, at)| (*fence, holds[*at].shared.0, holds[*at].from));
    // Of those with lower fences, of each clock.
    let mut clocks: Vec<(u32, Latest)> = Vec::new();
    for of_a_fence in order.chunk_by(|a, b| a.0 == b.0) {
        same(holds, of_a_fence, &mut found);
        for &(_, at) in of_a_fence {
            let hold = &holds[at];
            for (_, latest) in &clocks {
                for finding in latest.against(holds, at) {
                    if finding.span.is_certain() {
                        found.certain.push(finding);
                    }
                }
            }
            let place = clocks.iter().position(|(clock, _)| *clock == hold.clock).unwrap_or_else(|| {
                clocks.push((hold.clock, Latest::default()));
                clocks.len() - 1
            });
            clocks[place].1.note(holds, at);
        }
    }
    found
}

/// Finds those that have the fence of one who holds it alone.
fn same(holds: &[HoldRecord], of_a_fence: &[(u64, usize)], found: &mut Findings) {
    let mut before: Option<usize> = None;
    let mut alone: Option<usize> = None;
    for &(_, at) in of_a_fence {
        let hold = &holds[at];
        let other = if hold.is_alone() { alone.or(before) } else { alone };
        if let Some(other) = other.filter(|other| !holds[*other].is_same_hold(hold)) {
            let span = holds[other].both(hold);
            found.certain.push(Finding { holds: [other, at], what: What::SameFence, span });
        }
        before = before.or(Some(at));
        if hold.is_alone() {
            alone = alone.or(Some(at));
        }
    }
}

/// The holds of one clock for which something is the latest: of all, and of those that are held alone.
#[derive(Clone, Copy, Default)]
struct Latest {
    left: Option<usize>,
    left_alone: Option<usize>,
    asked: Option<usize>,
    asked_alone: Option<usize>,
}

impl Latest {
    fn note(&mut self, holds: &[HoldRecord], at: usize) {
        let note = |latest: &mut Option<usize>, when: fn(&HoldRecord) -> u64| {
            if latest.is_none_or(|before| when(&holds[before]) < when(&holds[at])) {
                *latest = Some(at);
            }
        };
        let (promised, asked) =
            (|hold: &HoldRecord| hold.promised_until, |hold: &HoldRecord| hold.asked.unwrap_or(0));
        note(&mut self.left, promised);
        note(&mut self.asked, asked);
        if holds[at].is_alone() {
            note(&mut self.left_alone, promised);
            note(&mut self.asked_alone, asked);
        }
    }

    /// Returns what may be wrong with a hold that has a higher fence than these.
    fn against(&self, holds: &[HoldRecord], at: usize) -> impl Iterator<Item = Finding> {
        let hold = &holds[at];
        let (left, asked) =
            if hold.is_alone() { (self.left, self.asked) } else { (self.left_alone, self.asked_alone) };
        let is_other = |other: &usize| !holds[*other].is_same_hold(hold);
        let early = left.filter(is_other).map(|other| {
            let span = after_beginning(hold, &holds[other], holds[other].promised_until);
            Finding { holds: [other, at], what: What::TooEarly, span }
        });
        let late = asked.filter(is_other).map(|other| {
            let span = after_beginning(hold, &holds[other], holds[other].asked.unwrap_or(0));
            Finding { holds: [other, at], what: What::AskedLate, span }
        });
        [early, late].into_iter().flatten()
    }
}

/// Returns by how much a time of `other` is later than the beginning of `hold`.
fn after_beginning(hold: &HoldRecord, other: &HoldRecord, time: u64) -> Span {
    if hold.clock == other.clock {
        return Span::between(hold.from, time, 0);
    }
    // As far after its belief as by its own clock.
    let shared = i128::from(other.shared.1) + i128::from(time) - i128::from(other.until);
    let shared = u64::try_from(shared.max(0)).unwrap_or(u64::MAX);
    Span::between(hold.shared.0, shared, hold.error.saturating_add(other.error))
}
