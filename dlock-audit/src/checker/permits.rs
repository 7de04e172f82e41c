//! More permits than there are.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

use super::{Finding, Findings, HeldAs, HoldRecord, Span, What};

/// Returns the number of permits that a hold has, and of how many. The second is what the store granted it by: the
/// number may be changed between two holds.
const fn taken_of(hold: &HoldRecord) -> Option<(u64, u64)> {
    match hold.held_as {
        HeldAs::Permits { taken, of } => Some((taken as u64, of as u64)),
        HeldAs::Alone | HeldAs::Reader => None,
    }
}

/// Looks at the holds of each clock by itself; `order` is by clock and beginning.
pub(super) fn of_one_clock(holds: &[HoldRecord], order: &[usize], found: &mut Findings) {
    for of_a_clock in order.chunk_by(|a, b| holds[*a].clock == holds[*b].clock) {
        let times = |hold: &HoldRecord| Some((hold.from, hold.until));
        for (pair, by) in over(holds, of_a_clock, times) {
            let span = Span { by, error: 0 };
            found.certain.push(Finding { holds: pair, what: What::TooManyPermits, span });
        }
    }
}

/// Looks at the holds of all clocks; `order` is by the beginning on the clock that all have.
pub(super) fn of_all_clocks(holds: &[HoldRecord], order: &[usize], found: &mut Findings) {
    let mut seen: HashSet<usize> = found
        .certain
        .iter()
        .filter(|finding| finding.what == What::TooManyPermits)
        .map(|finding| finding.holds[1])
        .collect();
    // The times in which each was believed in for certain.
    let inner = |hold: &HoldRecord| {
        let (from, until) =
            (hold.shared.0.saturating_add(hold.error), hold.shared.1.saturating_sub(hold.error));
        (from < until).then_some((from, until))
    };
    let error = |pair: [usize; 2]| pair.iter().map(|at| holds[*at].error).sum::<u64>();
    let mut by_inner = order.to_vec();
    by_inner.sort_by_key(|at| holds[*at].shared.0.saturating_add(holds[*at].error));
    for (pair, by) in over(holds, &by_inner, inner) {
        if seen.insert(pair[1]) {
            let by = by.saturating_add(i64::try_from(error(pair)).unwrap_or(i64::MAX));
            let span = Span { by, error: error(pair) };
            found.certain.push(Finding { holds: pair, what: What::TooManyPermits, span });
        }
    }
    for (pair, by) in over(holds, order, |hold| Some(hold.shared)) {
        if seen.insert(pair[1]) {
            let span = Span { by, error: error(pair) };
            found.undecided.push(Finding { holds: pair, what: What::TooManyPermits, span });
        }
    }
    // Two that seem to follow each other may overlap by as much.
    let widest = order.iter().filter(|at| taken_of(&holds[**at]).is_some()).map(|at| holds[*at].error).max();
    found.resolution = found.resolution.max(widest.unwrap_or(0).saturating_mul(2));
}

/// Returns the holds with which more permits were taken than there are, each with one of those before it that was
/// believed in still, and for how long both were.
fn over(
    holds: &[HoldRecord],
    order: &[usize],
    times: impl Fn(&HoldRecord) -> Option<(u64, u64)>,
) -> Vec<([usize; 2], i64)> {
    let mut over = Vec::new();
    // Those that are believed in, by their ends.
    let mut believed: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    let mut sum = 0;
    for &at in order {
        let Some(((more, of), (from, until))) = taken_of(&holds[at]).zip(times(&holds[at])) else { continue };
        while let Some(Reverse((_, ended))) =
            believed.peek().copied().filter(|Reverse((end, _))| *end <= from)
        {
            believed.pop();
            sum -= taken_of(&holds[ended]).map_or(0, |(taken, _)| taken);
        }
        sum += more;
        // The one that ends first: until then they are too many for certain.
        if sum > of
            && let Some(Reverse((end, first))) = believed.peek()
        {
            let both = (*end).min(until) - from;
            over.push(([*first, at], i64::try_from(both).unwrap_or(i64::MAX)));
        }
        believed.push(Reverse((until, at)));
    }
    over
}
