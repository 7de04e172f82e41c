//! Model (e): a lock that is handed over by a baton, from process to process.
//!
//! # The protocol
//!
//! ```text
//! giver:  holds ── closes its hold ── leaves the key under the baton's token ── gives the baton away
//! taker:  has a copy of the baton ── swaps that token for its own, with a new fence ── holds ── withdraws
//! ```
//!
//! The giver closes its hold before it asks the server, so that its belief has ended when the key can be taken over.
//! The server then has the key under another token than the giver's, for a time: nothing that the giver sent before
//! touches it. A taker is granted the lock only where the key stands under the baton's token, in one step that draws a
//! fence; a repeated request finds the taker's own token and adopts the lock. A copy that comes second finds another
//! token, or nothing, and is refused. A baton that nobody takes ends with its time. A giver that gives up retracts: it
//! asks for the shortest time, and a request to leave the key for longer that arrives after that lengthens nothing. See
//! `dlock-core/src/engine/baton.rs` and, for the server's part, `dlock-core/src/backends/memory/claim.rs`.
//!
//! # What is to be shown
//!
//! At most one process believes; fences grow from one belief to the next; a baton is taken over once; no request that
//! arrives late lengthens the time of a baton.
//!
//! # Assumptions, each of which can be dropped
//!
//! See [`Rules`]. Requests may be lost, delayed for ever, delivered twice and overtake each other, also those of one
//! process; every answer may be lost; a process may stop for good between any two steps, since a step that can be taken
//! need not be. Clocks run alike: the lease model has their drift.

use std::collections::BTreeSet;

use What::{Acquire, Leave, Renew, Retract, TakeOver, Withdraw};
use stateright::{Model, Property};

/// At most one process believes.
pub const ONE_BELIEVER: &str = "at most one process believes that it holds the lock";
/// Fences grow.
pub const FENCES_GROW: &str = "each belief has a higher fence than those before";
/// A baton is taken over once.
pub const TAKEN_ONCE: &str = "a baton is taken over once";
/// What was sent before does not lengthen a baton's time.
pub const ENDS_IN_TIME: &str = "no request lengthens the time of a baton";

/// The process that holds the lock at first, and hands it over.
const GIVER: u8 = 0;
/// Those with a copy of the baton.
const TAKERS: [u8; 2] = [1, 2];
/// Waits for the lock like anybody else.
const OTHER: u8 = 3;

/// The model; its size is in the fields.
#[derive(Clone, Debug)]
pub struct Baton {
    /// Length of a lease in ticks.
    pub lease: u8,
    /// For how many ticks the key is left: a giver may say less than its lease.
    pub kept: u8,
    /// How often the giver asks to leave the key, the first taker to take it over, and everybody else for what it
    /// wants.
    pub attempts: [u8; 3],
    /// Requests that can be on their way at a time.
    pub in_flight: usize,
    /// What the protocol does.
    pub rules: Rules,
}

/// What the protocol does. The default is what dlock does.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The giver's belief ends before the first request to leave the key.
    pub closes_first: bool,
    /// The key is left under another token than the giver's.
    pub leaves_another_token: bool,
    /// A taker is granted the lock only where the key stands under the baton's token.
    pub compares_token: bool,
    /// A taker is granted nothing where the key is free.
    pub never_creates: bool,
    /// The step that takes the lock over draws a fence.
    pub draws_fence: bool,
    /// The lock stands under a token of the taker's own from then on.
    pub swaps_token: bool,
    /// A key that is left is left for no longer by another request.
    pub never_lengthens: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            closes_first: true,
            leaves_another_token: true,
            compares_token: true,
            never_creates: true,
            draws_fence: true,
            swaps_token: true,
            never_lengthens: true,
        }
    }
}

impl Baton {
    /// The size of the tests.
    #[must_use]
    pub const fn small(rules: Rules) -> Self {
        Self { lease: 3, kept: 2, attempts: [2, 2, 1], in_flight: 2, rules }
    }

    /// More requests, and more of them on their way.
    #[must_use]
    pub const fn large(rules: Rules) -> Self {
        Self { lease: 3, kept: 2, attempts: [2, 2, 2], in_flight: 3, rules }
    }
}

/// All there is at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    lock: Option<Lock>,
    /// The last fence that the server gave.
    counter: u8,
    /// Takers whom the server granted the lock by the baton.
    taken_by: BTreeSet<u8>,
    /// A request has put off the end of a key that was left.
    lengthened: bool,
    /// The giver knows that the key is left, so that the baton may be anywhere.
    baton: bool,
    processes: Vec<Process>,
    wire: BTreeSet<Request>,
    /// The highest fence with which anybody believed, and whether one that was not higher came after it.
    highest: u8,
    fell: bool,
}

/// What stands on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Lock {
    token: Token,
    fence: u8,
    /// Ticks until it ends.
    left: u8,
    /// It was handed over, and nobody has taken it over.
    waits: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Token {
    Of(u8),
    /// The giver's, left for the baton.
    Baton,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Process {
    phase: Phase,
    /// Requests that it may still send in this phase.
    attempts: u8,
    /// How long ago the first attempt was sent that may have taken effect.
    first: Option<u8>,
    /// Ticks for which it believes; zero where it does not.
    believes: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    Trying,
    Holding,
    /// The giver, from when it closes its hold until it knows that the key is left.
    HandingOver,
    /// What it may have is withdrawn, or the baton is out.
    Done,
}

/// A request on its way; its answer is given when it arrives, or is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Request {
    process: u8,
    what: What,
    /// It was delivered before.
    again: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum What {
    Acquire,
    TakeOver,
    Renew,
    Leave,
    /// Leaves the key for a tick: nobody has the baton.
    Retract,
    Withdraw,
}

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A process sends the request of its phase, or repeats it.
    Send(u8, Sent),
    /// A request arrives. It may be delivered once more, and its answer may be lost.
    Arrives {
        /// Whose it is.
        process: u8,
        /// What is asked.
        what: Sent,
        /// It stays on its way.
        twice: bool,
        /// The process hears of it.
        heard: bool,
    },
    /// A request is lost.
    IsLost(u8, Sent),
    /// A process gives up, and has what it may have withdrawn, or retracted.
    GiveUp(u8),
    /// Time passes.
    Tick,
}

/// A request, as a story names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sent(What);

impl State {
    /// Carries out `what` for `process`; whether it was granted or confirmed.
    fn serve(&mut self, model: &Baton, process: u8, what: What) -> bool {
        let (rules, own) = (&model.rules, Token::Of(process));
        let baton = if rules.leaves_another_token { Token::Baton } else { Token::Of(GIVER) };
        let stands = self.lock.map(|lock| lock.token);
        match what {
            Acquire if stands.is_none_or(|token| token == own) => self.grant(model, own, true),
            TakeOver if stands == Some(own) => self.grant(model, own, true),
            TakeOver => {
                let may = match stands {
                    None => !rules.never_creates,
                    Some(token) => !rules.compares_token || token == baton,
                };
                if may {
                    self.taken_by.insert(process);
                    self.grant(model, if rules.swaps_token { own } else { baton }, rules.draws_fence);
                }
                return may;
            }
            Renew if stands == Some(own) => {
                self.lengthened |= self.lock.is_some_and(|lock| lock.waits);
                self.extend(model);
            }
            Leave | Retract if stands == Some(own) || stands == Some(baton) => {
                if let Some(lock) = &mut self.lock {
                    let asked = if what == Leave { model.kept } else { 1 };
                    let left = if lock.waits && rules.never_lengthens { asked.min(lock.left) } else { asked };
                    self.lengthened |= lock.waits && left > lock.left;
                    (lock.token, lock.left, lock.waits) = (baton, left, true);
                }
            }
            Withdraw if stands == Some(own) => self.lock = None,
            Withdraw => {}
            Acquire | Renew | Leave | Retract => return false,
        }
        true
    }

    fn grant(&mut self, model: &Baton, token: Token, draws: bool) {
        // An adopted lock keeps its fence.
        let adopts = self.lock.is_some_and(|lock| lock.token == token);
        if draws && !adopts {
            self.counter += 1;
        }
        let fence = if adopts { self.lock.map_or(0, |lock| lock.fence) } else { self.counter };
        self.lock = Some(Lock { token, fence, left: model.lease, waits: false });
    }

    fn extend(&mut self, model: &Baton) {
        if let Some(lock) = &mut self.lock {
            lock.left = model.lease;
        }
    }

    /// `process` hears that its request was granted or confirmed.
    fn hear(&mut self, model: &Baton, id: u8, what: What) {
        let fence = self.lock.map_or(0, |lock| lock.fence);
        let process = &mut self.processes[usize::from(id)];
        match (what, process.phase) {
            (Acquire | TakeOver, Phase::Trying) => {
                let believes = model.lease.saturating_sub(process.first.unwrap_or(0));
                *process = Process { phase: Phase::Holding, attempts: 1, first: None, believes };
                if believes > 0 {
                    self.fell |= fence <= self.highest;
                    self.highest = self.highest.max(fence);
                }
            }
            (Leave, Phase::HandingOver) => {
                (process.phase, process.believes) = (Phase::Done, 0);
                self.baton = true;
            }
            _ => {}
        }
    }

    fn request(&self, process: u8) -> Option<What> {
        match self.processes[usize::from(process)].phase {
            Phase::Idle if process == OTHER => Some(Acquire),
            Phase::Idle if TAKERS.contains(&process) && self.baton => Some(TakeOver),
            Phase::Trying => Some(if process == OTHER { Acquire } else { TakeOver }),
            Phase::Holding if process == GIVER => Some(Renew),
            Phase::HandingOver => Some(Leave),
            _ => None,
        }
    }
}

impl Model for Baton {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let [_, first, others] = self.attempts;
        let idle = Process { phase: Phase::Idle, attempts: others, first: None, believes: 0 };
        let giver = Process { phase: Phase::Holding, believes: self.lease, ..idle };
        let taker = Process { attempts: first, ..idle };
        vec![State {
            lock: Some(Lock { token: Token::Of(GIVER), fence: 1, left: self.lease, waits: false }),
            counter: 1,
            taken_by: BTreeSet::new(),
            lengthened: false,
            baton: false,
            processes: vec![giver, taker, idle, idle],
            wire: BTreeSet::new(),
            highest: 1,
            fell: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (id, process) in (0..).zip(&state.processes) {
            if let Some(what) = state.request(id)
                && process.attempts > 0
                && state.wire.len() < self.in_flight
                && !state.wire.iter().any(|sent| (sent.process, sent.what) == (id, what))
            {
                actions.push(Action::Send(id, Sent(what)));
            }
            let gives_up = matches!(process.phase, Phase::Trying | Phase::Holding | Phase::HandingOver);
            if gives_up && (id != GIVER || process.phase == Phase::Holding || process.attempts == 0) {
                actions.push(Action::GiveUp(id));
            }
        }
        for &Request { process, what, again } in &state.wire {
            for (twice, heard) in [(false, true), (false, false), (true, true), (true, false)] {
                if !(twice && again) {
                    actions.push(Action::Arrives { process, what: Sent(what), twice, heard });
                }
            }
            actions.push(Action::IsLost(process, Sent(what)));
        }
        actions.push(Action::Tick);
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::Send(id, Sent(what)) => {
                let process = &mut state.processes[usize::from(id)];
                process.attempts -= 1;
                if matches!(what, Acquire | TakeOver) {
                    process.phase = Phase::Trying;
                    process.first.get_or_insert(0);
                }
                state.wire.insert(Request { process: id, what, again: false });
            }
            Action::Arrives { process, what: Sent(what), twice, heard } => {
                state.wire.retain(|sent| (sent.process, sent.what) != (process, what));
                if twice {
                    state.wire.insert(Request { process, what, again: true });
                }
                if state.serve(self, process, what) && heard {
                    state.hear(self, process, what);
                }
            }
            Action::IsLost(process, Sent(what)) => {
                state.wire.retain(|sent| (sent.process, sent.what) != (process, what));
            }
            Action::GiveUp(GIVER) if before.processes[0].phase == Phase::Holding => {
                // It hands the lock over.
                let process = &mut state.processes[0];
                (process.phase, process.attempts) = (Phase::HandingOver, self.attempts[0]);
                if self.rules.closes_first {
                    process.believes = 0;
                }
            }
            Action::GiveUp(id) => {
                let process = &mut state.processes[usize::from(id)];
                let what = if process.phase == Phase::HandingOver { Retract } else { Withdraw };
                *process = Process { phase: Phase::Done, attempts: 0, first: None, believes: 0 };
                state.wire.insert(Request { process: id, what, again: false });
            }
            Action::Tick => {
                if let Some(lock) = &mut state.lock {
                    lock.left -= 1;
                    state.lock.take_if(|lock| lock.left == 0);
                }
                for process in &mut state.processes {
                    process.believes = process.believes.saturating_sub(1);
                    process.first = process.first.map(|ago| (ago + 1).min(self.lease));
                }
            }
        }
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_BELIEVER, |_, state: &State| {
                state.processes.iter().filter(|process| process.believes > 0).count() <= 1
            }),
            Property::always(FENCES_GROW, |_, state: &State| !state.fell),
            Property::always(TAKEN_ONCE, |_, state: &State| state.taken_by.len() <= 1),
            Property::always(ENDS_IN_TIME, |_, state: &State| !state.lengthened),
            Property::sometimes("a taker believes", |_, state: &State| {
                TAKERS.iter().any(|taker| state.processes[usize::from(*taker)].believes > 0)
            }),
            Property::sometimes("both takers try, and one has it", |_, state: &State| {
                let of = |taker: u8| state.processes[usize::from(taker)];
                of(1).believes > 0 && of(2).phase == Phase::Trying
            }),
            Property::sometimes(
                "another gets the lock after a baton that nobody took",
                |_, state: &State| {
                    state.baton && state.taken_by.is_empty() && state.processes[3].believes > 0
                },
            ),
            Property::sometimes("another gets the lock after a taker", |_, state: &State| {
                !state.taken_by.is_empty() && state.processes[3].believes > 0
            }),
            Property::sometimes("a renewal is on its way while the key is left", |_, state: &State| {
                let left = state.lock.is_some_and(|lock| lock.token == Token::Baton);
                left && state.wire.iter().any(|sent| sent.what == Renew)
            }),
        ]
    }
}
