//! How long to measure.

use std::time::Duration;

/// How long to measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Rounds of pairs; odd, so that there is a middle one.
    pub(crate) rounds: usize,
    /// How long each client makes pairs in one round. Short: what else runs on the machine then meets neighbours alike.
    pub(crate) slice: Duration,
    /// Rounds of handoffs.
    pub(crate) handoff_rounds: usize,
    /// Handoffs a round and client.
    pub(crate) handoffs: u64,
    /// How long many locks are held.
    pub(crate) hold: Duration,
}

impl Settings {
    pub(crate) const fn full() -> Self {
        let (slice, hold) = (Duration::from_millis(60), Duration::from_secs(30));
        Self { rounds: 61, slice, handoff_rounds: 5, handoffs: 200, hold }
    }

    pub(crate) const fn quick() -> Self {
        let (slice, hold) = (Duration::from_millis(60), Duration::from_secs(12));
        Self { rounds: 15, slice, handoff_rounds: 3, handoffs: 50, hold }
    }
}
