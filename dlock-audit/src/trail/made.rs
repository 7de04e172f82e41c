//! Trails of fleets that tests make up, without files.

use super::{Builder, LocksName, RecordedHold, RunTrail, Timeline, Trail, ended};
use crate::checker::HeldAs;
use crate::clocks::Pair;
use crate::line::{ModeField, State};

/// A run of a process.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// Its host, whose clock it has.
    pub host: u32,
    /// Readings of its clock and of the wall clock.
    pub pairs: Vec<(u64, u64)>,
    /// It was killed: there is no last line.
    pub is_killed: bool,
    /// What it held.
    pub holds: Vec<Hold>,
}

/// A hold.
#[derive(Clone, Copy, Debug)]
pub struct Hold {
    /// Its key.
    pub key: u32,
    /// Its number in its run.
    pub number: u64,
    /// Its fence.
    pub fence: Option<u64>,
    /// How it was held.
    pub held_as: HeldAs,
    /// From when and until when it was believed in, by its host's clock.
    pub believed: (u64, u64),
    /// How it ended.
    pub end: &'static str,
}

impl Trail {
    /// Makes the trail of these runs, on one store.
    #[doc(hidden)]
    #[must_use]
    pub fn made(runs: &[Run]) -> Self {
        let mut made = Builder::default();
        let trail = &mut made.trail;
        trail.locks.push(LocksName { backend: "made".into(), store: "store".into(), run: None });
        for (at, run) in runs.iter().enumerate() {
            let clock = run.host as usize;
            trail.timelines.resize_with(trail.timelines.len().max(clock + 1), Timeline::default);
            let pairs = run.pairs.iter().map(|&(mono, wall)| Pair { mono, wall });
            pairs.clone().for_each(|pair| trail.timelines[clock].add(pair));
            let (first, last) = pairs.fold((None, Pair { mono: 0, wall: 0 }), |(first, last), pair| {
                (first.or(Some(pair)), if pair.mono >= last.mono { pair } else { last })
            });
            let end = State { n: 0, lost: 0, held: 0, mono: last.mono, wall: last.wall, goes_on: false };
            trail.runs.push(RunTrail {
                host: format!("host-{}", run.host),
                pid: u32::try_from(at).unwrap_or_default() + 100,
                clock,
                first: (1, first.unwrap_or(last)),
                last,
                end: (!run.is_killed).then_some(end),
                lost: Vec::new(),
                missing: Vec::new(),
                unread: Vec::new(),
            });
            for hold in &run.holds {
                let key = hold.key as usize;
                while trail.keys.len() <= key {
                    trail.keys.push(format!("k{}", trail.keys.len()));
                }
                trail.holds.push(RecordedHold {
                    run: at,
                    number: hold.number,
                    locks: 0,
                    key,
                    fence: hold.fence,
                    mode: match hold.held_as {
                        HeldAs::Alone => ModeField::Alone,
                        HeldAs::Reader => ModeField::Reader,
                        HeldAs::Permits { taken, of } => ModeField::Permits { taken, of },
                    },
                    from: hold.believed.0,
                    until: hold.believed.1,
                    alone_until: None,
                    end: ended(hold.end),
                });
            }
        }
        made.trail
    }
}
