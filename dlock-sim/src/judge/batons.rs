//! What has to be so of locks that are handed over: a baton is good once, and for as long as was said; without a baton
//! nothing is kept.

use std::collections::HashMap;

use dlock_core::{Baton, Token};
use fastrand::Rng;

use super::{MS, OpId};
use crate::exec::now;
use crate::lease::{Answer, Changes, Command, Entry, One};
use crate::world::{World, tell};

/// What is known of the batons of a run.
#[derive(Default)]
pub(crate) struct Batons {
    /// Those that somebody may take over, copies among them.
    pool: Vec<Baton>,
    /// The locks that were left, by the token under which they stand.
    left: HashMap<Token, LeftLock>,
    /// What was to be handed over and was not.
    failed: Vec<Failed>,
}

/// A lock that was left.
struct LeftLock {
    key: usize,
    process: usize,
    /// The first of its fences.
    fence: u64,
    /// By the store's clock.
    until: u64,
    /// Of the key, when it was left.
    epoch: u64,
    /// Whether the giver has the baton.
    given: bool,
    /// The claim to which the store gave it.
    taken_by: Option<u64>,
}

/// A hold that was closed to be handed over, and of which there is no baton.
struct Failed {
    process: usize,
    engine: usize,
    key: usize,
    fence: u64,
    since: u64,
}

/// A hand-over that is about to begin.
#[derive(Clone, Copy)]
pub(crate) struct Handing {
    pub(crate) process: usize,
    pub(crate) engine: usize,
    pub(crate) key: usize,
    pub(crate) fence: u64,
    /// How long the key is to stay taken, in milliseconds.
    pub(crate) at_most: u64,
    /// Until when it has to be, by the store's clock.
    least: u64,
    epoch: u64,
}

impl World {
    /// A hold is about to be handed over.
    pub(crate) fn hands_over(
        &mut self,
        process: usize,
        engine: usize,
        at: (usize, u64),
        at_most: u64,
    ) -> Handing {
        let ((key, fence), least) = (at, self.clock(None) + at_most * MS);
        let epoch = self.state(key).epoch;
        Handing { process, engine, key, fence, at_most, least, epoch }
    }

    /// The giver has the baton.
    pub(crate) fn given(&mut self, handing: &Handing, baton: &Baton) {
        self.judge.summary.given += 1;
        let Handing { key, fence, epoch, .. } = *handing;
        let name = self.keys[key].clone();
        tell!(self, Some(handing.process), "has the baton of {name} for {} ms", handing.at_most);
        if baton.key() != name || baton.fence().is_none_or(|of| of.get() != fence) {
            return self.violate(format!("{baton:?} is not the one of {name} with fence {fence}"));
        }
        // What takes a lock from its holder takes it from its baton too.
        let is_taken_away = self.state(key).epoch != epoch;
        let (time, claim) = (self.clock(None), self.claim_of(key, fence));
        let entry = self.store.entries.get(&key).filter(|entry| entry.left && entry.claim == claim);
        let left = entry.and_then(|entry| self.judge.batons.left.get_mut(&entry.token));
        match left {
            Some(left) if is_taken_away || left.until >= handing.least => left.given = true,
            _ if is_taken_away => {}
            Some(_) => self.violate(format!("{name} was left for less than was said")),
            None if time >= handing.least => {}
            None => self.violate(format!("p{} has a baton of {name}, which was not left", handing.process)),
        }
    }

    /// A hand-over has ended without a baton, and the hold is closed.
    pub(crate) fn not_given(&mut self, handing: &Handing) {
        let Handing { process, engine, key, fence, .. } = *handing;
        self.judge.batons.failed.push(Failed { process, engine, key, fence, since: now() });
    }

    /// Has others take this baton over.
    pub(crate) fn pass_on(&mut self, baton: Baton, copies: usize) {
        self.judge.batons.pool.extend(std::iter::repeat_n(baton, copies));
    }

    /// One of the batons, or a copy of it. A late one now and then.
    pub(crate) fn any_baton(&mut self, rng: &mut Rng) -> Option<Baton> {
        let pool = &mut self.judge.batons.pool;
        if pool.is_empty() {
            return None;
        }
        let at = if rng.bool() { pool.len() - 1 } else { rng.usize(..pool.len()) };
        Some(if rng.u32(..4) == 0 { pool[at].clone() } else { pool.swap_remove(at) })
    }

    /// What was left in one command.
    pub(super) fn note_left(&mut self, left: &[(usize, Entry)]) {
        for (key, entry) in left.iter().filter(|_| self.plan.batons).cloned().collect::<Vec<_>>() {
            let epoch = self.state(key).epoch;
            let name = self.keys[key].clone();
            let known = self.judge.batons.left.get(&entry.token);
            // A store that goes on with an old copy has the lock held again, and may get a repeated request to leave it
            // after that: the giver has the baton already. So it has where an administrator freed the lock, and an
            // attempt and a request to leave it arrive that were sent long before.
            let are_late = self.plan.late > self.plan.lease / 2;
            let is_given = known.is_some_and(|left| left.given && (left.fence == entry.fence || are_late));
            match known.filter(|left| left.epoch == epoch) {
                None => {
                    let (process, fence, until) = (entry.process, entry.fence, entry.expires);
                    let left =
                        LeftLock { key, process, fence, until, epoch, given: is_given, taken_by: None };
                    self.judge.batons.left.insert(entry.token, left);
                }
                // An attempt that came late took the lock again under the token of its claim, and a request to leave it
                // that came even later left it.
                Some(left) if entry.fence != left.fence && are_late => {
                    if let Some(left) = self.judge.batons.left.get_mut(&entry.token) {
                        (left.fence, left.until, left.taken_by) = (entry.fence, entry.expires, None);
                    }
                }
                Some(left) if entry.expires > left.until => {
                    self.violate(format!("{name}, which was left, is left for longer"));
                }
                Some(left) if entry.expires < left.until && left.given => {
                    self.violate(format!("{name} is taken back, whose baton was given"));
                }
                Some(_) => {
                    self.judge.summary.retracted += 1;
                    if let Some(left) = self.judge.batons.left.get_mut(&entry.token) {
                        left.until = entry.expires;
                    }
                }
            }
        }
    }

    /// The process asks for locks: with its baton where it has one, and not after that was refused.
    pub(crate) fn brings_baton(&mut self, process: usize, all: &[One]) {
        let [one, ..] = all else { return };
        let Some(op) = self.judge.claims.get(&one.claim) else { return };
        let op = &self.judge.ops[*op];
        if op.takes_over && (one.takes_over.is_none() || op.busy_at.is_some()) {
            let what = if op.busy_at.is_some() { "after its baton was refused" } else { "without its baton" };
            self.violate(format!("p{process} asks for {} {what}", self.keys[one.key]));
        }
    }

    /// What the store answered to one that brings a baton.
    pub(crate) fn judge_take_over(&mut self, command: &Command, answer: &Answer, time: u64) {
        let Command::Attempt(all) = command else { return };
        let [one] = &**all else { return };
        let Some(left) = one.takes_over.and_then(|token| self.judge.batons.left.get_mut(&token)) else {
            return;
        };
        let (name, epoch) = (&self.keys[one.key], self.judge.keys[left.key].epoch);
        let wrong = match (answer, left.taken_by) {
            _ if left.epoch != epoch => None,
            (Answer::Granted(_), None) => {
                left.taken_by = Some(one.claim);
                self.judge.summary.taken_over += 1;
                (!left.given).then(|| format!("c{} took over {name}, whose baton nobody has", one.claim))
            }
            (Answer::Granted(_), Some(by)) if by != one.claim => {
                Some(format!("{name} was taken over by c{by}, and again by c{}", one.claim))
            }
            (Answer::Granted(_), _) => None,
            (_, None) if left.given && time < left.until => {
                Some(format!("c{} could not take {name} over in time", one.claim))
            }
            // A call hears of what it has taken over itself.
            (_, Some(by)) if by != one.claim && self.is_of_one_call(by, one.claim) => {
                let stands = self.store.entries.get(&one.key);
                let is_there = stands.is_some_and(|entry| entry.claim == by && entry.expires > time);
                is_there
                    .then(|| format!("{name} was taken over by c{by}, and asked for again as c{}", one.claim))
            }
            _ => None,
        };
        wrong.into_iter().for_each(|wrong| self.violate(wrong));
    }

    /// Whether a call for one lock took it over, whatever it says itself.
    pub(super) fn took_over(&self, id: OpId) -> bool {
        let mut all = self.judge.batons.left.values();
        let is_own = |claim: u64| self.judge.claims.get(&claim) == Some(&id);
        self.judge.ops[id].size == 1
            && all.any(|left| {
                left.epoch == self.judge.keys[left.key].epoch && left.taken_by.is_some_and(is_own)
            })
    }

    fn is_of_one_call(&self, claim: u64, other: u64) -> bool {
        let call = |claim: u64| self.judge.claims.get(&claim);
        call(claim).is_some() && call(claim) == call(other)
    }

    /// The views of those who had what is left now: their belief has ended before.
    pub(super) fn givers<'a>(&'a self, changes: &'a Changes) -> impl Iterator<Item = (usize, &'a Entry)> {
        changes.left.iter().filter(|_| self.plan.batons).map(|(key, entry)| (*key, entry))
    }

    /// Whether a lock is left over at the end: not one that is on its way, nor one whose giver was killed, or that was
    /// left and came back from an old copy.
    pub(crate) fn is_left_over(&self, key: usize, entry: &Entry) -> bool {
        let left = self.judge.batons.left.get(&entry.token);
        let is_on_its_way =
            left.is_some_and(|left| left.given || entry.restored || !self.processes[left.process].alive);
        entry.expires > self.clock_of(key) && self.is_of_a_lock(key) && !is_on_its_way
    }

    /// What was to be handed over and was not is freed.
    pub(crate) fn judge_retractions(&mut self) {
        if !self.quiet || !self.store.up || self.judge.batons.failed.is_empty() {
            return;
        }
        let plan = &self.plan;
        let most = plan.lease + 3 * plan.request_timeout + plan.late + 1_200;
        let from = self.quiet_since.max(self.judge.up_since);
        let time = self.clock(None);
        let mut failed = std::mem::take(&mut self.judge.batons.failed);
        failed.retain(|one| {
            let entry = self.store.entries.get(&one.key);
            // A batch of which one lock was lost releases the others, perhaps to a waiter of its process, which gets
            // the next fence of the same claim, and may give a baton of its own.
            let is_given = |entry: &Entry| {
                entry.left && self.judge.batons.left.get(&entry.token).is_some_and(|left| left.given)
            };
            entry.is_some_and(|entry| {
                entry.expires > time && entry.has(one.fence) && !entry.restored && !is_given(entry)
            })
        });
        let late = failed.iter().find(|one| {
            let process = &self.processes[one.process];
            let from = from.max(one.since).max(process.resumed_at);
            process.alive && process.stalled.is_none() && now() > from + most * MS
        });
        if let Some(Failed { process, engine, key, .. }) = late {
            let name = &self.keys[*key];
            let what = format!(
                "p{process} ({engine}) keeps {name}, of which there is no baton, for more than {most} ms"
            );
            self.violate(what);
        }
        self.judge.batons.failed = failed;
    }
}
