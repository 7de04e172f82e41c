//! Holds beside one that is held alone.

use super::permits;
use super::{Finding, Findings, HoldRecord, What};

/// Finds, for each hold, whether one that does not go with it was believed in at the same time, in O(n log n).
///
/// | both were believed in | the fences | it is |
/// |---|---|---|
/// | for longer than the error of the clocks | any | certain |
/// | for no longer than that, but so it seems | differ | fine, of a [resolution](Findings::resolution) |
/// | for no longer than that, but so it seems | none, or the same | undecided |
/// | not, or it seems so and they are closer than the error | any | fine, of a resolution |
///
/// Of several holds that one does not go with, the one of each clock that lasts longest is named. A hold that was never
/// believed in after it was granted is beside nobody.
#[must_use]
pub fn beside(holds: &[HoldRecord]) -> Findings {
    let mut found = Findings::default();
    let mut order: Vec<usize> = (0..holds.len()).filter(|at| holds[*at].is_believed()).collect();
    order.sort_by_key(|at| (holds[*at].clock, holds[*at].from));
    let mut longest = Longest::default();
    let mut clock = None;
    for &at in &order {
        let hold = &holds[at];
        if clock.replace(hold.clock) != Some(hold.clock) {
            longest = Longest::default();
        }
        for before in longest.not_with(hold) {
            compare(holds, [before, at], &mut found);
        }
        longest.note(holds, at, |hold| hold.until);
    }
    permits::of_one_clock(holds, &order, &mut found);
    if order.windows(2).all(|pair| holds[pair[0]].clock == holds[pair[1]].clock) {
        return found;
    }
    order.sort_by_key(|at| holds[*at].shared);
    let mut clocks: Vec<(u32, Longest)> = Vec::new();
    for &at in &order {
        let hold = &holds[at];
        for (_, longest) in clocks.iter().filter(|(clock, _)| *clock != hold.clock) {
            for before in longest.not_with(hold) {
                compare(holds, [before, at], &mut found);
            }
        }
        match clocks.iter_mut().find(|(clock, _)| *clock == hold.clock) {
            Some((_, longest)) => longest.note(holds, at, |hold| hold.shared.1),
            None => {
                let mut longest = Longest::default();
                longest.note(holds, at, |hold| hold.shared.1);
                clocks.push((hold.clock, longest));
            }
        }
    }
    permits::of_all_clocks(holds, &order, &mut found);
    found
}

fn compare(holds: &[HoldRecord], pair: [usize; 2], found: &mut Findings) {
    let [before, hold] = pair.map(|at| &holds[at]);
    if !before.is_same_hold(hold) {
        let finding = Finding { holds: pair, what: What::Overlap, span: before.both(hold) };
        let shows = before.fence.is_some() && hold.fence.is_some() && before.fence != hold.fence;
        found.decide(finding, shows);
    }
}

/// The holds of a clock that last longest so far.
#[derive(Clone, Copy, Default)]
struct Longest {
    alone: Option<usize>,
    shared: Option<usize>,
}

impl Longest {
    /// Returns those that do not go with a hold.
    fn not_with(self, hold: &HoldRecord) -> impl Iterator<Item = usize> {
        let shared = if hold.is_alone() { self.shared } else { None };
        [self.alone, shared].into_iter().flatten()
    }

    fn note(&mut self, holds: &[HoldRecord], at: usize, until: impl Fn(&HoldRecord) -> u64) {
        let longest = if holds[at].is_alone() { &mut self.alone } else { &mut self.shared };
        if longest.is_none_or(|before| until(&holds[before]) < until(&holds[at])) {
            *longest = Some(at);
        }
    }
}

/// Returns how many were believed in at one time, at the most, by the clock that all have.
#[must_use]
pub fn most(holds: &[HoldRecord]) -> usize {
    let believed = holds.iter().filter(|hold| hold.is_believed());
    // An end comes before a beginning at the same time.
    let mut steps: Vec<(u64, bool)> =
        believed.flat_map(|hold| [(hold.shared.0, true), (hold.shared.1, false)]).collect();
    steps.sort_unstable();
    let (mut now, mut most) = (0_usize, 0);
    for (_, begins) in steps {
        now = if begins { now + 1 } else { now.saturating_sub(1) };
        most = most.max(now);
    }
    most
}
