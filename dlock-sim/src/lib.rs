//! A simulation of dlock's engine: several processes over one store, on one thread, with one clock and one seed.
//!
//! Nothing here is real but the code of `dlock-core`. The scheduler polls one task at a time, picked by the seed; time
//! goes on only when no task can, for waits and leases alike. What goes to the store may be delayed, lost before or
//! after it took effect, delivered twice, or delivered when its sender is gone; processes are paused and killed, their
//! clocks run apart; the store restarts, forgets, goes on with an old copy and keeps silent about changes; backends and
//! subscribers panic. After every step and every run the rules in `judge` are looked at. The same seed is the same run,
//! to the step.

#![forbid(unsafe_code)]

mod backend;
mod exec;
pub mod history;
mod jobs;
mod judge;
mod lease;
mod log;
mod majority;
mod modes;
mod net;
mod plan;
mod queue;
mod run;
mod session;
mod shared;
mod work;
mod world;

pub use judge::Summary;
pub use run::{Outcome, current_seed, run, run_batons, run_jobs, run_modes, run_quorums};

/// Returns the seed of the `n`th run of a series.
#[must_use]
pub const fn seed_of(series: u64, n: u64) -> u64 {
    // SplitMix64.
    let mut z = series.wrapping_add(n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
