//! What the process learned of a claim, and what it has to do then.

use dlock_core::Held;

use super::MS;
use crate::exec::now;
use crate::lease::One;
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

    /// An attempt for several locks found one busy, though the store gave some of them to an earlier one.
    pub(crate) fn found_part(&mut self, request: u64, all: &[One]) {
        let is_ours = |one: &One| self.store.entries.get(&one.key).is_some_and(|e| e.token == one.token);
        if all.len() > 1 && all.iter().any(is_ours) {
            self.judge.parts.insert(request, all[0].claim);
        }
    }

    /// The process has the answer to a request, or knows that none comes.
    pub(crate) fn answered(&mut self, request: u64, by_store: bool) {
        let part = self.judge.parts.remove(&request);
        self.judge.kept.extend(part.filter(|_| by_store));
    }

    /// The process asks for several locks: not with what it kept of them, which others wait for.
    pub(crate) fn asks_for(&mut self, process: usize, all: &[One]) {
        if self.judge.kept.contains(&all[0].claim) {
            let claim = all[0].claim;
            self.violate(format!("p{process} keeps a part of the batch of c{claim} while it waits for all"));
        }
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

    /// Somebody has a guard of a lock without fences from now on.
    pub(crate) fn guarded_without_fence(
        &mut self,
        process: usize,
        key: usize,
        owner: u64,
        held: Held,
    ) -> u64 {
        self.judge.view += 1;
        self.judge.views.push((self.judge.view, process, key, owner, held));
        self.judge.view
    }

    /// This owner has just found that it holds a lock without fences: the views of others, to be asked.
    pub(crate) fn believes_without_fence(&mut self, key: usize, owner: u64) -> Vec<(usize, Held)> {
        self.judge.summary.beliefs += 1;
        let others = self.judge.views.iter().filter(|(_, process, of, other, _)| {
            *of == key && *other != owner && self.processes[*process].alive
        });
        others.map(|(_, process, .., held)| (*process, held.clone())).collect()
    }
}
