//! What the process learned of a claim, and what it has to do then.

use super::MS;
use crate::exec::now;
use crate::world::World;

impl World {
    /// The lock was passed on so often by the end of a run.
    pub(crate) fn passed_on(&mut self, handoffs: u64) {
        self.judge.summary.handoffs += handoffs;
    }

    /// The claim that was granted this fence.
    pub(super) fn claim_of(&self, key: usize, fence: u64) -> u64 {
        let granted = self.judge.keys.get(key).and_then(|state| state.grants.get(&fence));
        granted.map_or(0, |granted| granted.claim)
    }

    /// The process sends a renewal.
    pub(crate) fn renews(&mut self, claim: u64) {
        self.judge.failed_renewals.remove(&claim);
    }

    /// The process learned that a renewal failed.
    pub(crate) fn renewal_failed(&mut self, claim: u64) {
        self.judge.failed_renewals.insert(claim, now());
    }

    /// The process learned that somebody took the lock away.
    pub(crate) fn renewal_found_gone(&mut self, claim: u64) {
        self.judge.gone.insert(claim);
    }

    /// The only guard of this lock is being released.
    pub(crate) fn releases(&mut self, key: usize, fence: u64) {
        let claim = self.claim_of(key, fence);
        self.judge.releases.insert(claim, now());
    }

    /// No release is under way any more.
    pub(crate) fn released(&mut self, key: usize, fence: u64) {
        let claim = self.claim_of(key, fence);
        self.judge.releases.remove(&claim);
    }

    /// The process sends a withdrawal.
    pub(crate) fn withdraws(&mut self, process: usize, claim: u64) {
        if let Some(called) = self.judge.releases.remove(&claim)
            && !self.plan.sessions
            && self.processes[process].resumed_at <= called
            && now() > called + 20 * MS
        {
            let waited = (now() - called) / MS;
            self.violate(format!("the release of c{claim} was sent {waited} ms after it was called"));
        }
    }
}
