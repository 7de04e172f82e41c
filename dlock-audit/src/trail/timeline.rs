//! The times of one clock, on the wall clock that all hosts have.

use std::time::Duration;

use crate::clocks::{Pair, nanos};

/// By how much two clocks of one host part in a time, at the most: 200 millionths of it.
const DRIFT: u64 = 5_000;

/// How far apart the two clocks are read, at the most, in nanoseconds.
const READING: i128 = 2_000_000;

/// The readings of one clock together with the wall clock, of all processes of its host.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timeline {
    pairs: Vec<Pair>,
    is_sorted: bool,
}

impl Timeline {
    pub(crate) fn add(&mut self, pair: Pair) {
        self.pairs.push(pair);
        self.is_sorted = false;
    }

    /// Puts the readings in order, which comes before all questions.
    pub(crate) fn sort(&mut self) {
        self.pairs.sort_by_key(|pair| pair.mono);
        self.pairs.dedup();
        self.is_sorted = true;
    }

    /// Returns the time on the wall clock, and by how much it may be wrong beside the error of that clock.
    pub(crate) fn wall(&self, mono: u64) -> (u64, u64) {
        debug_assert!(self.is_sorted);
        let after = self.pairs.partition_point(|pair| pair.mono < mono);
        let near = [after.checked_sub(1), Some(after)].into_iter().flatten();
        let near = near.filter_map(|at| self.pairs.get(at)).min_by_key(|pair| pair.mono.abs_diff(mono));
        match near {
            None => (mono, 0),
            Some(pair) => {
                let distance = pair.mono.abs_diff(mono);
                let wall = match mono < pair.mono {
                    true => pair.wall.saturating_sub(distance),
                    false => pair.wall.saturating_add(distance),
                };
                (wall, distance / DRIFT)
            }
        }
    }

    /// Returns by how much the wall clock was set, in all, beyond what an error of `error` explains.
    pub(crate) fn was_set(&self, error: Duration) -> Option<Duration> {
        let (mut at, mut least, mut most) = (0_i128, 0, 0);
        for pair in self.pairs.windows(2) {
            let [before, after] = pair else { continue };
            let went = i128::from(after.mono - before.mono);
            let by = i128::from(after.wall) - i128::from(before.wall) - went;
            let explained = went / i128::from(DRIFT) + READING;
            at += by.signum() * (by.abs() - explained).max(0);
            (least, most) = (at.min(least), at.max(most));
        }
        let by = u64::try_from(most - least).unwrap_or(u64::MAX);
        (by > nanos(error).saturating_mul(2)).then(|| Duration::from_nanos(by))
    }
}
