//! Model (c): passing a lease on inside a process, with a block of fences.
//!
//! # The protocol
//!
//! An acquire that has waiters of its own process behind it reserves a block of fences: the server advances its counter
//! by their number in the step that grants. The first section has the first of them. When a section ends while somebody
//! in the process waits and the block is not used up, the lock is passed on without a request: the same token on the
//! server, the same deadline, the next fence. Otherwise it is released. A claim that is made again after a lost answer
//! may ask for a larger block than before, since waiters came meanwhile: whoever adopts learns which block was
//! reserved. A process may die between two passes; what is left of its block is never used.
//!
//! # What is to be shown
//!
//! The resource accepts no write of a section after one of a later section, where sections are ordered by grant, and by
//! pass inside a grant. This must hold whatever clocks do and although an administrator takes the lock away. At most
//! one process believes, if clocks agree and nobody takes locks away.
//!
//! # Assumptions, each of which can be dropped
//!
//! What a process decides at the end of a section is the engine's own code: whether the lock is passed on, and under
//! which fence. What else is assumed is in [`Rules`]. Requests of a process arrive in order; every one, and every
//! answer, may be lost or late. The lease model has requests that overtake each other, and clocks that drift by a
//! bounded amount.

mod engine;
mod steps;

use dlock_core::decisions::hold::ReservedFences;
use stateright::{Model, Property};

/// The model; its size is in the fields.
#[derive(Clone, Debug)]
pub struct Handoff {
    /// How many claims each process makes.
    pub claims: Vec<u8>,
    /// Attempts of each claim.
    pub attempts: u8,
    /// How many waiters come to each process in all, one after the other.
    pub waiters: Vec<u8>,
    /// The largest block of fences.
    pub block: u8,
    /// Length of the lease in ticks.
    pub lease: u8,
    /// What is assumed.
    pub rules: Rules,
}

/// What the protocol does. The default is what holds.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// When the server advances its counter by the fences of a block.
    pub reservation: Reservation,
    /// Nothing is passed on when the block is used up.
    pub stays_in_block: bool,
    /// Whoever adopts a lock learns how large the block is that was reserved with it.
    pub adoption_tells_block: bool,
    /// A pass leaves the deadline as it is.
    pub pass_keeps_deadline: bool,
    /// The clocks of processes and server run alike.
    pub clocks_agree: bool,
    /// An administrator may take the lock away, once.
    pub forced: bool,
}

/// When the server advances its counter by the fences of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reservation {
    /// In the step that grants.
    AtGrant,
    /// By those that were used, in the step that releases.
    AtRelease,
    /// Only by the one of the grant.
    Never,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            reservation: Reservation::AtGrant,
            stays_in_block: true,
            adoption_tells_block: true,
            pass_keeps_deadline: true,
            clocks_agree: true,
            forced: false,
        }
    }
}

impl Handoff {
    /// Two processes with a claim each, one of which has two waiters; the size of the tests.
    #[must_use]
    pub fn small(rules: Rules) -> Self {
        Self { claims: vec![1, 1], attempts: 2, waiters: vec![2, 0], block: 3, lease: 2, rules }
    }

    /// Both have waiters.
    #[must_use]
    pub fn large(rules: Rules) -> Self {
        Self { waiters: vec![2, 1], ..Self::small(rules) }
    }
}

/// All there is at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    lock: Option<Lock>,
    /// The last fence that is reserved.
    counter: u8,
    grants: u8,
    was_forced: bool,
    processes: Vec<Process>,
    register: Register,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Lock {
    process: u8,
    token: u8,
    block: Block,
    left: u8,
}

/// What a grant gives: the fences from `next` to `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Block {
    grant: u8,
    next: u8,
    last: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Process {
    token: u8,
    phase: Phase,
    /// Waiters that have come, and how many of them wait.
    came: u8,
    waiting: u8,
    request: Option<Request>,
    /// A write on its way to the resource.
    write: Option<Write>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    Trying {
        first: u8,
        asked: u8,
        attempts: u8,
    },
    /// Believes for `left` more ticks; `passes` sections of this grant are over.
    Holding {
        grant: u8,
        fences: ReservedFences,
        passes: u8,
        left: u8,
    },
    Leaving {
        used: u8,
    },
    Dead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Request {
    what: What,
    token: u8,
    age: u8,
    /// Nobody waits for the answer any more.
    given_up: bool,
    reply: Option<Reply>,
}

/// What is asked of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// Take the lock with a block of this many fences, or adopt it.
    Attempt(u8),
    /// Extend it.
    Renew,
    /// Give it back; the last fence that was used.
    Withdraw(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Reply {
    Granted(Block),
    Busy,
    Extended,
    Gone,
    Withdrawn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Write {
    fence: u8,
    section: (u8, u8),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Register {
    fence: u8,
    section: (u8, u8),
    went_back: bool,
}

/// What can happen. Processes are numbered from 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// One more waits in a process.
    Join(u8),
    /// A process begins a claim.
    Begin(u8),
    /// It attempts again under the same token.
    AttemptAgain(u8),
    /// It asks for a renewal.
    Renew(u8),
    /// A section ends, and the next one in the process has the lock.
    Pass(u8),
    /// A section ends, or a claim is given up, and the lock is released.
    Leave(u8),
    /// A withdrawal is sent.
    Withdraw(u8),
    /// The process has no more to do with its claim.
    Finish(u8),
    /// A request arrives at the server.
    Arrives(u8),
    /// A request or its answer is lost.
    IsLost(u8),
    /// An answer arrives.
    Answer(u8),
    /// The process waits for an answer no longer.
    TimeOut(u8),
    /// A holder that believes sends a write.
    Write(u8),
    /// The write arrives.
    WriteArrives(u8),
    /// The process dies.
    Crash(u8),
    /// Time passes for all.
    Tick,
    /// Time passes for all but one process.
    TickMissedBy(u8),
    /// An administrator takes the lock away.
    Force,
}

/// The name of the property that at most one process believes that it holds.
pub const ONE_BELIEVER: &str = "at most one process believes";
/// The name of the property that the resource accepts no write of a section after one of a later section.
pub const WRITES_GO_FORWARD: &str = "accepted writes never go back to an earlier section";

impl State {
    fn believers(&self) -> usize {
        let believes = |p: &&Process| matches!(p.phase, Phase::Holding { left: 1.., .. });
        self.processes.iter().filter(believes).count()
    }
}

impl Process {
    fn ask(&mut self, what: What) {
        self.request = Some(Request { what, token: self.token, age: 0, given_up: false, reply: None });
    }

    /// Returns the fence of the section that has the lock; zero without one.
    fn fence(&self) -> u8 {
        match self.phase {
            Phase::Holding { fences, .. } => engine::fence(fences),
            _ => 0,
        }
    }

    fn give_up(&mut self) {
        match &mut self.request {
            Some(Request { reply: Some(_), .. }) => self.request = None,
            Some(request) => (request.given_up, request.age) = (true, 0),
            None => {}
        }
    }
}

impl Model for Handoff {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let process =
            Process { token: 0, phase: Phase::Idle, came: 0, waiting: 0, request: None, write: None };
        vec![State {
            lock: None,
            counter: 0,
            grants: 0,
            was_forced: false,
            processes: vec![process; self.claims.len()],
            register: Register::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (id, process) in (0..).zip(&state.processes) {
            if process.phase == Phase::Dead && process.request.is_none() && process.write.is_none() {
                continue;
            }
            let free = process.request.is_none();
            if process.came < self.waiters[usize::from(id)] && process.phase != Phase::Dead {
                actions.push(Action::Join(id));
            }
            match process.phase {
                Phase::Idle if process.token < self.claims[usize::from(id)] && free => {
                    actions.push(Action::Begin(id));
                }
                Phase::Trying { attempts, .. } if free => {
                    actions.push(Action::Leave(id));
                    if attempts > 0 {
                        actions.push(Action::AttemptAgain(id));
                    }
                }
                Phase::Holding { fences, passes, left, .. } => {
                    actions.push(Action::Leave(id));
                    let goes_on = !self.rules.stays_in_block && passes < self.block;
                    if process.waiting > 0
                        && (fences.next().is_some() || goes_on)
                        && engine::passes_on(left, self.lease, !free)
                    {
                        actions.push(Action::Pass(id));
                    }
                    if free {
                        actions.push(Action::Renew(id));
                    }
                    if process.write.is_none() {
                        actions.push(Action::Write(id));
                    }
                }
                Phase::Leaving { .. } => {
                    actions.push(Action::Finish(id));
                    if free {
                        actions.push(Action::Withdraw(id));
                    }
                }
                _ => {}
            }
            match process.request {
                Some(Request { reply: Some(_), .. }) => {
                    actions.extend([Action::Answer(id), Action::IsLost(id)]);
                }
                Some(Request { given_up, .. }) => {
                    actions.extend([Action::Arrives(id), Action::IsLost(id)]);
                    if !given_up {
                        actions.push(Action::TimeOut(id));
                    }
                }
                None => {}
            }
            if process.write.is_some() {
                actions.push(Action::WriteArrives(id));
            }
            // To die between requests is to take no further step.
            if matches!(process.phase, Phase::Holding { passes: 1.., .. }) {
                actions.push(Action::Crash(id));
            }
            if !self.rules.clocks_agree && matches!(process.phase, Phase::Holding { .. }) {
                actions.push(Action::TickMissedBy(id));
            }
        }
        if self.rules.forced && !state.was_forced && state.lock.is_some() {
            actions.push(Action::Force);
        }
        actions.push(Action::Tick);
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        let of = |id: u8| usize::from(id);
        match action {
            Action::Join(id) => {
                let process = &mut state.processes[of(id)];
                (process.came, process.waiting) = (process.came + 1, process.waiting + 1);
            }
            Action::Begin(id) => {
                let process = &mut state.processes[of(id)];
                process.token += 1;
                let asked = self.block.min(process.waiting + 1);
                process.phase = Phase::Trying { first: 0, asked, attempts: self.attempts - 1 };
                process.ask(What::Attempt(asked));
            }
            Action::AttemptAgain(id) => {
                let process = &mut state.processes[of(id)];
                let more = self.block.min(process.waiting + 1);
                let Phase::Trying { asked, attempts, .. } = &mut process.phase else { return None };
                (*asked, *attempts) = (more, *attempts - 1);
                process.ask(What::Attempt(more));
            }
            Action::Renew(id) => state.processes[of(id)].ask(What::Renew),
            Action::Pass(id) => {
                let process = &mut state.processes[of(id)];
                let Phase::Holding { fences, passes, left, .. } = &mut process.phase else { return None };
                let beyond = engine::fence(*fences) + 1;
                *fences = fences.next().unwrap_or_else(|| engine::granted(beyond, beyond, false));
                *passes += 1;
                process.waiting -= 1;
                if !self.rules.pass_keeps_deadline {
                    *left = self.lease;
                }
            }
            Action::Leave(id) => {
                let process = &mut state.processes[of(id)];
                process.give_up();
                process.phase = Phase::Leaving { used: process.fence() };
            }
            Action::Withdraw(id) => {
                let process = &mut state.processes[of(id)];
                let Phase::Leaving { used } = process.phase else { return None };
                process.ask(What::Withdraw(used));
            }
            Action::Finish(id) => {
                state.processes[of(id)].give_up();
                state.processes[of(id)].phase = Phase::Idle;
            }
            Action::IsLost(id) => {
                state.processes[of(id)].request = None;
            }
            Action::Arrives(id) => {
                let request = state.processes[of(id)].request.take()?;
                let reply = self.serve(&mut state, id, request);
                if !request.given_up {
                    state.processes[of(id)].request = Some(Request { reply: Some(reply), ..request });
                }
            }
            Action::Answer(id) => self.answer(&mut state.processes[of(id)])?,
            Action::TimeOut(id) => state.processes[of(id)].give_up(),
            Action::Write(id) => {
                let process = &mut state.processes[of(id)];
                let Phase::Holding { grant, passes, .. } = process.phase else { return None };
                process.write = Some(Write { fence: process.fence(), section: (grant, passes) });
            }
            Action::WriteArrives(id) => {
                let write = state.processes[of(id)].write.take()?;
                let register = &mut state.register;
                if write.fence >= register.fence {
                    register.went_back |= write.section < register.section;
                    (register.fence, register.section) = (write.fence, write.section);
                }
            }
            Action::Crash(id) => {
                let process = &mut state.processes[of(id)];
                process.give_up();
                (process.phase, process.waiting, process.came) = (Phase::Dead, 0, 0);
            }
            Action::Tick => self.tick(&mut state, None),
            Action::TickMissedBy(id) => self.tick(&mut state, Some(id)),
            Action::Force => (state.lock, state.was_forced) = (None, true),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(WRITES_GO_FORWARD, |_, state: &State| !state.register.went_back),
            Property::sometimes("the last fence of a block is used", |_, state: &State| {
                state.register.section.1 > 1
            }),
            Property::sometimes("one goes on after another died between two passes", |_, state: &State| {
                let died = state.processes.iter().any(|p| p.phase == Phase::Dead);
                died && state.register.section.0 > 1 && state.believers() == 1
            }),
        ];
        if self.attempts > 1 {
            properties.push(Property::sometimes(
                "a claim is made again for a larger block than was reserved",
                |_, s: &State| {
                    s.lock.is_some_and(|lock| {
                        let process = &s.processes[usize::from(lock.process)];
                        let reserved = lock.block.last - lock.block.next + 1;
                        matches!(process.phase, Phase::Trying { asked, .. } if asked > reserved)
                    })
                },
            ));
        }
        if self.rules.clocks_agree && !self.rules.forced {
            properties.push(Property::always(ONE_BELIEVER, |_, state: &State| state.believers() <= 1));
        }
        properties
    }
}
