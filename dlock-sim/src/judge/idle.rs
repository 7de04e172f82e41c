//! No lock is free for long while somebody waits for it.

use crate::exec::now;
use crate::judge::MS;
use crate::lease::Entry;
use crate::world::World;

/// For how long a process leaves a lock to others at most, in milliseconds.
const LONGEST_PAUSE: u64 = 80;

impl World {
    /// When the lock became free, if it is.
    pub(super) fn free_since(&mut self, key: usize) -> Option<u64> {
        let since = self.state(key).free_since;
        let Some(entry) = self.store.entries.get(&key) else { return Some(since) };
        let expired = self.true_time(entry.expires);
        (entry.expires <= self.clock(None)).then_some(expired.max(since))
    }

    /// The true time of a reading of the store's clock.
    pub(super) fn true_time(&self, reading: u64) -> u64 {
        let since = i128::from(reading) - 3_600_000_000_000;
        let drift = i128::from(self.plan.drift[0]);
        u64::try_from(since * 1_000_000 / (1_000_000 + drift)).unwrap_or(0)
    }

    /// An engine that holds nothing, and has nothing to do in the background, left nothing on the store.
    pub(crate) fn judge_left(&mut self, process: usize, engine: usize) {
        let here = &self.processes[process];
        // What an attempt takes that is late by more than a lease, nobody takes back any more.
        if self.plan.late > self.plan.lease / 2 {
            return;
        }
        if !here.alive || here.stalled.is_some() || self.judge.at_work.contains(&(process, engine)) {
            return;
        }
        if let Some(claim) = self.kept_by(process, engine) {
            self.violate(format!("p{process} has nothing to do, and c{claim} is held"));
        }
    }

    /// The claim of an engine that the store keeps a lock for.
    pub(super) fn kept_by(&self, process: usize, engine: usize) -> Option<u64> {
        let is_kept = |key: usize, entry: &Entry| {
            !entry.restored
                && !entry.left
                && (entry.process, entry.engine) == (process, engine)
                && entry.expires > self.clock_of(key) + entry.lease / 40 + 2 * MS
        };
        let mut entries = self.store.entries.iter().filter(|(key, _)| self.is_of_a_lock(**key));
        entries.find(|(key, entry)| is_kept(**key, entry)).map(|(_, entry)| entry.claim)
    }

    /// No lock is free for long while somebody waits for it.
    pub(crate) fn judge_idle(&mut self, key: usize) {
        // A lock of a quorum is free when a majority says so, whatever is left on the others.
        if !self.quiet || !self.store.up || self.plan.majority.is_some() {
            return;
        }
        // In a queue, a lock whose turn has come to one who does not know is as good as free.
        let head = self.store.entries.get(&key).filter(|_| self.plan.sessions);
        let turn = head.map(|head| self.judge.claims.get(&head.claim).copied());
        let (free_since, turn) = match turn {
            Some(Some(op)) => (self.state(key).free_since, Some(op)),
            Some(None) => return,
            None => match self.free_since(key) {
                Some(since) => (since, None),
                None => return,
            },
        };
        let plan = &self.plan;
        let most = match (plan.healthy, plan.notified) {
            (true, true) => 12 * plan.delay + 15 + plan.lease / 40,
            (true, false) => plan.poll_to + 12 * plan.delay + 15 + plan.lease / 40,
            _ => 2 * plan.poll_to + 3 * plan.request_timeout + 1_200 + plan.late + plan.lease / 40,
        };
        // A process that had the lock for long leaves it to others, who may not want it any more.
        let most = most + if plan.sessions { 0 } else { LONGEST_PAUSE };
        let from = free_since.max(self.quiet_since).max(self.judge.up_since);
        let idle = self.judge.ops.iter().enumerate().position(|(id, op)| {
            let process = &self.processes[op.process];
            let from = op.busy_at.unwrap_or(u64::MAX).max(from).max(process.resumed_at);
            op.in_line
                && turn.is_none_or(|turn| turn == id)
                && !op.ended
                && op.key == key
                && process.alive
                && process.stalled.is_none()
                && now() > from.saturating_add(most * MS)
        });
        if let Some(op) = idle {
            let name = &self.keys[key];
            self.violate(format!("{name} is free for more than {most} ms while o{op} waits for it"));
        }
    }
}
