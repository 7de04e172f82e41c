//! What has to be so in every run, whatever happens in it.

mod batons;
mod claims;
mod idle;
mod jobs;
mod modes;
mod summary;

pub(crate) use batons::Handing;
pub(crate) use jobs::{Ended, Jobs};
pub(crate) use modes::judge_belief;
pub use summary::Summary;

use std::time::Duration;

use std::collections::{HashMap, HashSet};

use dlock_core::{Error, ErrorKind, Held};

use crate::exec::{TaskId, now};
use crate::lease::{Changes, Command};
use crate::world::{Access, World, tell};

const MS: u64 = 1_000_000;

/// The number of an operation of a task: one call that acquires.
pub(crate) type OpId = usize;

/// One call that acquires.
pub(crate) struct Op {
    pub(crate) process: usize,
    pub(crate) engine: usize,
    pub(crate) key: usize,
    /// An acquire of one lock that waits for it: those come in line.
    pub(crate) in_line: bool,
    /// How long it may wait, in milliseconds; `None` without an end.
    pub(crate) wait: Option<u64>,
    /// How many locks it is for.
    pub(crate) size: u64,
    /// Whether it brings a baton.
    takes_over: bool,
    started: u64,
    paused: u64,
    busy_at: Option<u64>,
    attempts: u64,
    changes: u64,
    ended: bool,
    /// Which one that came later was granted the lock before. One that times out leaves the line a little earlier, so
    /// that this breaks a rule only when it is granted the lock too.
    overtaken_by: Option<OpId>,
}

/// A grant that the store made.
#[derive(Clone)]
struct Granted {
    epoch: u64,
    process: usize,
    claim: u64,
}

#[derive(Default)]
struct KeyState {
    free_since: u64,
    /// Counts what takes a lock from its holder without his doing: a loss of data, an administrator.
    epoch: u64,
    /// The highest fence whose owner believed to hold the lock.
    believed: u64,
    grants: HashMap<u64, Granted>,
    /// The fences of sections that were begun by an acquire of their own.
    sections: HashSet<u64>,
    changes: u64,
    register: Register,
}

/// The resource that a lock protects.
#[derive(Default)]
struct Register {
    fence: u64,
    value: u64,
    accepted: u64,
}

#[derive(Default)]
pub(crate) struct Judge {
    ops: Vec<Op>,
    current: HashMap<TaskId, OpId>,
    /// The process and the engine of each operation, from its call to the end of its release.
    pub(crate) at_work: Vec<(usize, usize)>,
    claims: HashMap<u64, OpId>,
    keys: Vec<KeyState>,
    views: Vec<(u64, usize, usize, u64, Held)>,
    view: u64,
    /// Engines that were shut down, with nothing left.
    pub(crate) shut: Vec<(usize, usize)>,
    /// Engines that refuse, and since when.
    closing: Vec<(usize, usize, u64)>,
    /// When the last renewal of a claim failed.
    failed_renewals: HashMap<u64, u64>,
    /// Claims of which a renewal has found that the lock is gone.
    gone: HashSet<u64>,
    /// When the release of a claim was called.
    releases: HashMap<u64, u64>,
    /// The requests for several locks that found one busy, though the store has given others to an earlier attempt.
    parts: HashMap<u64, u64>,
    /// The claims that came first in them, of those whose answers have come.
    kept: HashSet<u64>,
    up_since: u64,
    pub(crate) jobs: Jobs,
    holders: modes::Holders,
    batons: batons::Batons,
    pub(crate) summary: Summary,
}

impl World {
    fn state(&mut self, key: usize) -> &mut KeyState {
        let keys = &mut self.judge.keys;
        if keys.len() <= key {
            keys.resize_with(key + 1, KeyState::default);
        }
        &mut keys[key]
    }

    /// A call that acquires begins.
    pub(crate) fn begin(&mut self, op: NewOp) -> OpId {
        let paused = self.processes[op.process].paused();
        let NewOp { process, engine, key, in_line, wait, size, takes_over } = op;
        let id = self.judge.ops.len();
        let changes = self.state(key).changes;
        let op = Op {
            process,
            engine,
            key,
            in_line,
            wait,
            size,
            takes_over,
            started: now(),
            paused,
            busy_at: None,
            attempts: 0,
            changes,
            ended: false,
            overtaken_by: None,
        };
        self.judge.ops.push(op);
        self.judge.current.insert(self.tasks.current, id);
        id
    }

    /// The engine made a claim, in the call of the task that runs.
    pub(crate) fn claimed(&mut self, claim: u64, _key: usize) {
        if let Some(&op) = self.judge.current.get(&self.tasks.current) {
            self.judge.claims.insert(claim, op);
        }
    }

    pub(crate) fn attempted(&mut self, claim: u64) {
        if let Some(&op) = self.judge.claims.get(&claim) {
            self.judge.ops[op].attempts += 1;
        }
    }

    /// The process learned that the lock is busy.
    pub(crate) fn found_busy(&mut self, claim: u64) {
        self.judge.summary.busy += 1;
        if let Some(&op) = self.judge.claims.get(&claim) {
            self.judge.ops[op].busy_at.get_or_insert(now());
        }
    }

    /// A call that acquires ends; `None` when it was dropped.
    pub(crate) fn end(&mut self, id: OpId, result: Option<Result<(), &Error>>) {
        let task = self.tasks.current;
        if self.judge.current.get(&task) == Some(&id) {
            self.judge.current.remove(&task);
        }
        let op = &mut self.judge.ops[id];
        if std::mem::replace(&mut op.ended, true) {
            return;
        }
        let (process, key, op_wait, size) = (op.process, op.key, op.wait, op.size);
        let (in_line, started, attempts, engine) = (op.in_line, op.started, op.attempts, op.engine);
        let paused = self.processes[process].paused() - op.paused;
        let changes_then = op.changes;
        let Some(result) = result else {
            tell!(self, Some(process), "o{id} is cancelled");
            return;
        };
        tell!(
            self,
            Some(process),
            "o{id} ends: {}",
            result.map_or_else(|e| e.kind().as_str().to_owned(), |()| "ok".into())
        );
        if !self.processes[process].alive {
            return;
        }
        let took = (now() - started).saturating_sub(paused) / MS;
        if let Some(wait) = op_wait {
            let most = wait + self.slack(size);
            if took > most {
                self.violate(format!("o{id}: a wait of {wait} ms took {took} ms, {most} at the most"));
            }
        }
        let refusing = self.judge.closing.iter().find(|(p, e, _)| (*p, *e) == (process, engine));
        if let Some((.., since)) = refusing {
            let took = (now() - started.max(*since)).saturating_sub(paused) / MS;
            let most = self.slack(size);
            if took > most {
                self.violate(format!(
                    "o{id} went on for {took} ms after its locks were shut down, {most} at most"
                ));
            }
        }
        let changes = self.state(key).changes - changes_then;
        let polls = took / (self.plan.poll_to / 4).max(self.plan.poll_from).max(1);
        let most = 12 + size * 12 + 3 * changes + 3 * polls + took / 40;
        // Each of them goes to all nodes of a quorum, and the first in line may insist.
        let most = most * self.plan.majority.map_or(1, |majority| 2 * majority.nodes as u64);
        if attempts > most {
            self.violate(format!("o{id}: {attempts} requests in {took} ms, {most} at the most"));
        }
        if let Err(error) = result {
            self.judge_error(id, error);
        }
        // With a queue on the server, a place that was lost with its session is not an earlier one any more. Of a
        // quorum, the answer of one node is not yet that of all, after which a waiter joins the line.
        let lines_up = !self.plan.sessions || self.plan.healthy;
        if in_line && result.is_ok() && lines_up && self.plan.majority.is_none() {
            if let Some(by) = self.judge.ops[id].overtaken_by {
                self.violate(format!("o{by} was granted before o{id}, which was in line when it came"));
            }
            for other in &mut self.judge.ops {
                let is_before = other.in_line
                    && !other.ended
                    && (other.process, other.engine, other.key) == (process, engine, key)
                    && other.busy_at.is_some_and(|at| at < started);
                if is_before {
                    other.overtaken_by.get_or_insert(id);
                }
            }
        }
        self.judge_idle(key);
    }

    fn judge_error(&mut self, id: OpId, error: &Error) {
        let kind = error.kind();
        let expected = match kind {
            ErrorKind::Busy | ErrorKind::TimedOut => self.judge.ops[id].wait.is_some(),
            ErrorKind::Closed => self.is_closing(self.judge.ops[id].process, self.judge.ops[id].engine),
            ErrorKind::Lost if self.is_closing(self.judge.ops[id].process, self.judge.ops[id].engine) => true,
            // The wait bounds requests too: its end can come while one is under way.
            ErrorKind::Unknown
                if self.judge.ops[id].wait.is_some_and(|wait| {
                    error.waited().is_some_and(|waited| waited >= Duration::from_millis(wait))
                }) =>
            {
                true
            }
            ErrorKind::Unknown | ErrorKind::Unavailable | ErrorKind::Lost | ErrorKind::Suspect => {
                !self.plan.healthy
            }
            // Of what somebody else took over before, or nobody in time.
            ErrorKind::NotHeld => self.judge.ops[id].takes_over && !self.took_over(id),
            ErrorKind::QuorumNotReached => self.plan.majority.is_some() && !self.plan.healthy,
            _ => false,
        };
        if !expected {
            self.violate(format!("o{id} ends with {error}"));
        }
    }

    pub(crate) fn is_closing(&self, process: usize, engine: usize) -> bool {
        self.judge.closing.iter().any(|(p, e, _)| (*p, *e) == (process, engine))
    }

    /// What a call may take beyond its wait, in milliseconds.
    fn slack(&self, size: u64) -> u64 {
        let plan = &self.plan;
        let requests = u64::from(plan.rechecks) + 2;
        // Who is first among several of whom each has some nodes of a quorum insists for a while.
        if plan.healthy && plan.majority.is_none() {
            return 10 + size * requests * (2 * plan.delay + 2);
        }
        20 + size * requests * (plan.request_timeout + 500)
    }

    /// Before the store carries out a command.
    pub(crate) fn judge_before(&mut self, command: &Command) {
        if let Command::Attempt(all) = command {
            for key in all.iter().map(|one| one.key) {
                self.judge_idle(key);
            }
        }
    }

    /// What the store did.
    pub(crate) fn note(&mut self, changes: &Changes) {
        let time = self.clock(None);
        for (key, entry) in &changes.granted {
            self.judge.summary.grants += 1;
            let name = self.keys[*key].clone();
            tell!(self, None, "{name} is granted to c{} of p{}", entry.claim, entry.process);
            if self.judge.shut.contains(&(entry.process, entry.engine))
                && self.plan.late <= self.plan.request_timeout
                && self.is_of_a_lock(*key)
            {
                self.violate(format!("{name} is granted to c{}, whose locks were shut down", entry.claim));
            }
            let state = self.state(*key);
            state.changes += 1;
            let granted = Granted { epoch: state.epoch, process: entry.process, claim: entry.claim };
            for fence in entry.fence..entry.fence + u64::from(entry.fences) {
                state.grants.insert(fence, granted.clone());
            }
        }
        self.note_left(&changes.left);
        self.judge.jobs.note(&changes.granted, &changes.ran_out, time);
        for &key in &changes.freed {
            let state = self.state(key);
            state.changes += 1;
            state.free_since = now();
        }
    }

    /// The views of others to be asked whether they believe to hold what was just granted.
    pub(crate) fn probes(&self, changes: &Changes) -> Vec<(u64, usize, u64, Held)> {
        let mut probes = Vec::new();
        for (key, entry) in self.givers(changes) {
            let givers = self.judge.views.iter().filter(|(_, process, of, fence, _)| {
                *of == key && entry.has(*fence) && self.processes[*process].alive
            });
            probes.extend(
                givers.map(|(view, process, _, _, held)| (*view, *process, entry.fence, held.clone())),
            );
        }
        if !self.plan.probes {
            return probes;
        }
        for (key, entry) in &changes.granted {
            let others = self.judge.views.iter().filter(|(_, process, of, fence, _)| {
                of == key
                    && !entry.has(*fence)
                    && self.processes[*process].alive
                    && self.is_current(*of, *fence)
            });
            probes.extend(
                others.map(|(view, process, _, _, held)| (*view, *process, entry.fence, held.clone())),
            );
        }
        probes
    }

    fn is_current(&self, key: usize, fence: u64) -> bool {
        let state = &self.judge.keys[key];
        state.grants.get(&fence).is_some_and(|granted| granted.epoch == state.epoch)
    }

    /// Somebody has a guard from now on.
    pub(crate) fn guarded(&mut self, process: usize, key: usize, fence: u64, held: Held) -> u64 {
        self.judge.view += 1;
        let view = self.judge.view;
        match self.state(key).grants.get(&fence) {
            Some(granted) if granted.process == process => {}
            _ => self.violate(format!("a guard has fence {fence}, which was granted to nobody here")),
        }
        self.judge.views.push((view, process, key, fence, held));
        view
    }

    /// A section begins, which no other had the lock for: its fence is its own.
    pub(crate) fn section(&mut self, process: usize, key: usize, fence: u64) {
        if !self.state(key).sections.insert(fence) {
            self.violate(format!("two sections, the last of p{process}, have the fence {fence}"));
        }
    }

    /// Takes a view back, to be dropped by the caller.
    pub(crate) fn unguarded(&mut self, view: u64) -> Option<Held> {
        let at = self.judge.views.iter().position(|(of, ..)| *of == view)?;
        Some(self.judge.views.swap_remove(at).4)
    }

    /// The owner of this fence has just found that it holds the lock.
    pub(crate) fn believes(&mut self, process: usize, key: usize, fence: u64) {
        self.judge.summary.beliefs += 1;
        if self.judge.gone.contains(&self.claim_of(key, fence)) {
            let name = self.keys[key].clone();
            self.violate(format!("p{process} believes to hold {name}, which the store said is gone"));
        }
        if !self.is_current(key, fence) {
            return;
        }
        let state = self.state(key);
        if fence < state.believed {
            let name = self.keys[key].clone();
            self.violate(format!("p{process} believes to hold {name} after a later owner did"));
        } else {
            state.believed = fence;
        }
    }

    /// The owner of this fence is about to look at a loss that it was not told of.
    pub(crate) fn judge_untold(&mut self, process: usize, key: usize, fence: u64) {
        if !self.is_current(key, fence) || now() < self.processes[process].resumed_at + 60 * MS {
            return;
        }
        let expired = match self.store.entries.get(&key) {
            Some(entry) if entry.has(fence) => {
                entry.expires <= self.clock(None) && now() > self.true_time(entry.expires) + 60 * MS
            }
            _ => false,
        };
        if expired {
            let name = self.keys[key].clone();
            self.violate(format!("p{process} was not told that its lease of {name} has ended"));
        }
    }

    /// A holder finds that its lock was released.
    pub(crate) fn released_under(&mut self, process: usize, engine: usize, key: usize) {
        if !self.is_closing(process, engine) {
            let name = self.keys[key].clone();
            self.violate(format!("{name} was released while p{process} had a share of it"));
        }
    }

    pub(crate) fn lost(&mut self, process: usize, key: usize, fence: u64) {
        self.judge.summary.lost += 1;
        let name = self.keys[key].clone();
        tell!(self, Some(process), "has lost {name}");
        let claim = self.claim_of(key, fence);
        let entry = self.store.entries.get(&key).filter(|entry| entry.has(fence));
        // Others may look at a loss much later.
        let end = entry.map_or(0, |entry| self.true_time(entry.expires)).min(now());
        // Once: who looks at the loss after that, when the store may think otherwise, is told what was.
        if let Some(at) = self.judge.failed_renewals.remove(&claim)
            && self.processes[process].resumed_at <= at
            && end > at + (self.plan.lease / 12 + self.plan.lease / 20 + 60) * MS
            && !self.judge.closing.iter().any(|(of, ..)| *of == process)
        {
            self.violate(format!("p{process} lost {name}, whose renewal failed and was not made again"));
        }
        if self.plan.healthy && !self.judge.closing.iter().any(|(of, ..)| *of == process) {
            self.violate(format!("p{process} lost {name}, though nothing failed"));
        }
    }

    /// An access to the resource that reads it; `None` when a later owner was there already.
    pub(crate) fn read(&mut self, key: usize, fence: u64) -> Option<u64> {
        let register = &mut self.state(key).register;
        if fence < register.fence {
            self.reject(key, fence);
            return None;
        }
        register.fence = fence;
        Some(register.value)
    }

    /// A write arrives at the resource.
    pub(crate) fn write(&mut self, access: &Access) {
        let register = &mut self.state(access.key).register;
        if access.fence < register.fence {
            return self.reject(access.key, access.fence);
        }
        register.fence = access.fence;
        register.value = access.value;
        register.accepted += 1;
    }

    fn reject(&mut self, key: usize, fence: u64) {
        self.judge.summary.rejected += 1;
        let name = self.keys[key].clone();
        tell!(self, None, "the resource of {name} rejects a fence that was passed by");
        // In a healthy run nobody is there while another one holds the lock; a write may be on its way when its sender
        // leaves.
        let _ = fence;
    }

    /// Something took `key` from its holder, or may have.
    pub(crate) fn taken_away(&mut self, key: usize) {
        let state = self.state(key);
        state.epoch += 1;
        state.changes += 1;
        state.free_since = now();
    }

    pub(crate) fn all_taken_away(&mut self) {
        for key in 0..self.keys.len() {
            self.taken_away(key);
        }
    }

    pub(crate) fn came_up(&mut self) {
        self.judge.up_since = now();
    }

    /// An engine begins to refuse.
    pub(crate) fn closing(&mut self, process: usize, engine: usize) {
        self.judge.closing.push((process, engine, now()));
    }

    /// One of the views that are left, to be dropped by the caller.
    pub(crate) fn any_view(&mut self) -> Option<Held> {
        self.judge.views.pop().map(|view| view.4)
    }

    /// An engine says that nothing of it is left.
    pub(crate) fn shut_down(&mut self, process: usize, engine: usize) {
        self.judge.shut.push((process, engine));
        if self.plan.late > self.plan.request_timeout {
            return;
        }
        if let Some(claim) = self.kept_by(process, engine) {
            self.violate(format!("p{process} was shut down, and c{claim} is still held"));
        }
    }

    /// What has to be so at the very end.
    pub(crate) fn judge_end(&mut self) {
        let mut entries = self.store.entries.iter();
        if let Some((key, entry)) = entries.find(|(key, entry)| self.is_left_over(**key, entry)) {
            let (name, claim) = (self.keys[*key].clone(), entry.claim);
            self.violate(format!("{name} is left behind, held by c{claim}"));
        }
        if let Some(op) = self.judge.ops.iter().position(|op| !op.ended && self.processes[op.process].alive) {
            self.violate(format!("o{op} has not ended"));
        }
        for (key, state) in self.judge.keys.iter().enumerate() {
            let register = &state.register;
            if register.value != register.accepted {
                let name = &self.keys[key];
                let (value, accepted) = (register.value, register.accepted);
                self.violate(format!(
                    "{accepted} writes to the resource of {name} left {value}: updates were lost"
                ));
                return;
            }
        }
    }
}

/// A call that is about to acquire.
pub(crate) struct NewOp {
    pub(crate) process: usize,
    pub(crate) engine: usize,
    pub(crate) key: usize,
    pub(crate) in_line: bool,
    pub(crate) wait: Option<u64>,
    pub(crate) size: u64,
    pub(crate) takes_over: bool,
}
