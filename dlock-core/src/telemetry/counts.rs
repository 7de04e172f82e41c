//! The counts of events, for tests and health pages.

use std::sync::atomic::{AtomicU64, Ordering};

/// The count of one event.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counts of one `Locks`; [`Stats`] documents them.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) keeper_looks: Counter,
    pub(super) keeper_wakes: Counter,
    pub(super) renewals: Counter,
    pub(super) failed_renewals: Counter,
    pub(super) lost: Counter,
    pub(super) failed_withdrawals: Counter,
    pub(super) abandoned: Counter,
    pub(super) rechecks: Counter,
    pub(super) handoffs: Counter,
}

impl Counts {
    pub(super) fn read(&self, held: usize, background: usize) -> Stats {
        Stats {
            held,
            background,
            keeper_looks: self.keeper_looks.get(),
            keeper_wakes: self.keeper_wakes.get(),
            renewals: self.renewals.get(),
            failed_renewals: self.failed_renewals.get(),
            lost: self.lost.get(),
            failed_withdrawals: self.failed_withdrawals.get(),
            abandoned: self.abandoned.get(),
            rechecks: self.rechecks.get(),
            handoffs: self.handoffs.get(),
        }
    }
}

/// Counts of one `Locks` since it was built, for tests and health pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Locks held now.
    pub held: usize,
    /// Releases and clean-ups under way in the background.
    pub background: usize,
    /// Looks of the keeper through the locks that are held.
    pub keeper_looks: u64,
    /// Acquires that had to wake the keeper, because their first renewal is due before its next look.
    pub keeper_wakes: u64,
    /// Renewals that the backend confirmed.
    pub renewals: u64,
    /// Renewals that failed or timed out; each is tried again until the lease ends.
    pub failed_renewals: u64,
    /// Locks that were lost.
    pub lost: u64,
    /// Releases and clean-ups in the background that failed; each is tried again until the lease ends.
    pub failed_withdrawals: u64,
    /// Releases and clean-ups that were given up, also those of a quorum's lock on one of its nodes: the lease ends
    /// them.
    pub abandoned: u64,
    /// Attempts that asked the owner again after an unknown outcome.
    pub rechecks: u64,
    /// Locks that were passed on inside this process.
    pub handoffs: u64,
}
