//! Model (f): a key that several hold, in a store that keeps the state of it and asks dlock's own code what to do.
//!
//! # The protocol
//!
//! ```text
//! claim:  sends an attempt ──▶ store reads the rows, KeyState judges, store writes ──▶ answer
//! ```
//!
//! What is judged is not modelled: it is [`KeyState`](dlock_core::backend::shares::KeyState), the code that the stores
//! run, or against which their statements and scripts are checked. The model is about what is around it. A store reads,
//! judges and writes in one step. A store that cannot may write what it judged only where the row of the key is as it
//! was read: then any other step may come in between, and each step that changes anything of the key has to change this
//! row. A writer has single statements beside these steps: the grant of a key that nobody holds, and its release.
//!
//! A claim that is refused marks the row and sleeps until it is notified, or until the moment that the answer named; a
//! step that makes room notifies, if the row is marked. A claim listens from before it asks.
//!
//! # What is to be shown
//!
//! A writer believes alone, and permits are never exceeded; a writer's fence is higher than those of all before it, and
//! a reader's than those of all writers before it; no claim sleeps while there is room for it that a release has made.
//!
//! # Assumptions, each of which can be dropped
//!
//! See [`Rules`]. Requests may be lost or delayed for ever and overtake each other, also between reading and writing;
//! every answer may be lost. Clocks run alike: the lease model has their drift. A preference is not kept for longer
//! than the model runs.

mod rows;

use std::collections::BTreeSet;
use std::time::Duration;

use dlock_core::backend::Mode;
use dlock_core::backend::shares::{Answer, LockRequest, Verdict};
use dlock_core::{Timestamp, Token};
use stateright::{Model, Property};

use What::{Attempt, Withdraw};
use rows::{By, Rows, small, ticks};

/// A writer is alone, and permits are enough.
pub const EXCLUDES: &str = "a writer believes alone, and no more permits are believed in than there are";
/// Fences grow.
pub const FENCES_GROW: &str = "fences are in the order of those who exclude each other";
/// Nobody oversleeps.
pub const WAKES: &str = "no claim sleeps while a release has made room for it";

/// The tick of a store's clock, in which a preference lives for two.
const TICK: Duration = Duration::from_secs(1);
/// The moment of each reading: what is stored is counted from there.
const NOW: Timestamp = Timestamp::from_nanos(1_000_000_000_000);

/// The model; its size is in the fields.
#[derive(Clone, Debug)]
pub struct Shares {
    /// What each claim wants.
    pub wants: Vec<Want>,
    /// Length of a lease in ticks.
    pub lease: u8,
    /// How many attempts the first claim may send, and how many each of the others.
    pub attempts: [u8; 2],
    /// Requests that can be on their way at a time.
    pub in_flight: usize,
    /// What the store does.
    pub rules: Rules,
}

/// What a claim wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// All of a lock.
    Write,
    /// A part of a lock.
    Read,
    /// So many of two permits.
    Permits(u32),
}

/// What the store does. The default is what dlock's stores do.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// It reads, judges and writes in one step.
    pub at_once: bool,
    /// Where it does not, a step writes only where the row of the key is as it was read.
    pub compares_row: bool,
    /// Where it does not, a step that changes anything of the key changes the row of the key.
    pub touches_row: bool,
    /// A step that makes room notifies.
    pub notifies: bool,
    /// A claim that is refused marks the row before it sleeps.
    pub marks: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self { at_once: true, compares_row: true, touches_row: true, notifies: true, marks: true }
    }
}

impl Shares {
    /// A writer and two readers, in the size of the tests.
    #[must_use]
    pub fn readers(rules: Rules) -> Self {
        let wants = vec![Want::Write, Want::Read, Want::Read];
        Self { wants, lease: 2, attempts: [1, 1], in_flight: 2, rules }
    }

    /// A claim that wants both permits and two that want one of them, in the size of the tests.
    #[must_use]
    pub fn permits(rules: Rules) -> Self {
        let wants = vec![Want::Permits(2), Want::Permits(1), Want::Permits(1)];
        Self { wants, lease: 2, attempts: [1, 1], in_flight: 2, rules }
    }

    /// A writer and two readers of which each asks twice.
    #[must_use]
    pub fn large(rules: Rules) -> Self {
        Self { attempts: [2, 2], in_flight: 3, ..Self::readers(rules) }
    }

    fn request(&self, claim: u8) -> LockRequest {
        let mode = match self.wants[usize::from(claim)] {
            Want::Write => Mode::Exclusive,
            Want::Read => Mode::Shared,
            Want::Permits(take) => Mode::Permits { of: 2, take },
        };
        LockRequest::new(token(claim), mode, TICK * u32::from(self.lease)).with_preference(true)
    }
}

fn token(claim: u8) -> Token {
    Token::from_bytes([claim; 16])
}

fn claim_of(token: Token) -> u8 {
    token.as_bytes()[0]
}

/// All there is at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    rows: Rows,
    claims: Vec<Claim>,
    wire: BTreeSet<Request>,
    /// The highest fences with which a claim has believed, of all and of writers; and whether one came too low.
    highest: u8,
    highest_of_writers: u8,
    fell: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Claim {
    phase: Phase,
    attempts: u8,
    /// How long ago the first attempt was sent that may have taken effect.
    first: Option<u8>,
    /// Ticks for which it believes; zero where it does not.
    believes: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    /// Whether it was notified since it asked.
    Trying(bool),
    /// Refused; asks again when it is notified, or in so many ticks.
    Asleep(u8),
    Notified,
    Holding,
    Done,
}

/// A request on its way.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Request {
    claim: u8,
    what: What,
    /// Which one of this claim's.
    number: u8,
    /// What the store has read for it, and is to write.
    step: Option<Step>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum What {
    Attempt,
    Withdraw,
}

/// What was judged.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Step {
    before: Rows,
    after: Rows,
    reply: Reply,
    notifies: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Reply {
    Granted(u8),
    /// Until in so many ticks.
    Busy(u8),
    Done,
    Refused,
}

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A claim sends an attempt.
    Sends(u8),
    /// The store reads the rows for a request, and judges.
    Reads(u8, Sent, u8),
    /// The store writes, if the row is as it was read; the claim hears of it, or not.
    Writes(u8, Sent, u8, Heard),
    /// The store carries a request out in one step.
    CarriesOut(u8, Sent, u8, Heard),
    /// A request is lost.
    IsLost(u8, Sent, u8),
    /// A claim gives up what it has, or wanted.
    GivesUp(u8),
    /// Time passes.
    Tick,
}

/// Whether a claim hears of the answer.
pub type Heard = bool;

/// A request, as a story names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent(What);

impl Shares {
    /// Reads the rows, and judges.
    fn judge(&self, before: &Rows, claim: u8, what: What) -> Step {
        let mut rules = before.state(self);
        let request = self.request(claim);
        let mut notifies = false;
        let (reply, mut after) = match what {
            Attempt => match rules.attempt(&request, NOW, || ()) {
                Answer::Granted(granted) => {
                    let mut after = before.keeping(&rules);
                    after.row.awaited &= before.row.by != By::Nobody;
                    (Reply::Granted(small(granted.fence)), after)
                }
                Answer::Busy { until } => {
                    let mut after = before.keeping(&rules);
                    after.row = before.row;
                    after.row.awaited |= self.rules.marks && before.is_held();
                    // Nobody will release a key that nobody holds.
                    let left = if before.is_held() { ticks(until) } else { 0 };
                    (Reply::Busy(left), after)
                }
                Answer::Conflict(_) => (Reply::Refused, before.clone()),
            },
            Withdraw => {
                let was = rules.holders(NOW).count();
                let preferred = rules.withdraw(&request.token, NOW).preferred;
                let is = rules.holders(NOW).count();
                let has_room = preferred || is < was && (is == 0 || request.mode.permits().is_some());
                notifies = before.row.awaited && has_room;
                let mut after = before.keeping(&rules);
                if is == was {
                    // Also where a lease has ended, of which nobody is notified.
                    after.row = before.row;
                }
                (Reply::Done, after)
            }
        };
        if !self.rules.at_once && self.rules.touches_row && after != *before {
            after.row.moved += 1;
        }
        Step { before: before.clone(), after, reply, notifies: notifies && self.rules.notifies }
    }

    /// Whether the store has one step for a request, as the rows are.
    fn by_statement(&self, rows: &Rows, claim: u8, what: What) -> bool {
        let writes = self.wants[usize::from(claim)] == Want::Write;
        match what {
            _ if self.rules.at_once => true,
            Attempt => {
                writes
                    && !rows.is_held()
                    && rows.state(self).judge(&self.request(claim), NOW) == Verdict::Free
            }
            Withdraw => writes && rows.row.by == By::Alone(claim),
        }
    }
}

impl State {
    /// What was judged is written, and answered.
    fn write(&mut self, model: &Shares, claim: u8, what: What, step: &Step, heard: Heard) {
        self.rows.write(&step.before, &step.after);
        if step.notifies {
            for claim in &mut self.claims {
                match claim.phase {
                    Phase::Asleep(_) => claim.phase = Phase::Notified,
                    Phase::Trying(_) => claim.phase = Phase::Trying(true),
                    _ => {}
                }
            }
        }
        if heard {
            self.hear(model, claim, what, step.reply);
        }
    }

    fn hear(&mut self, model: &Shares, id: u8, what: What, reply: Reply) {
        let writes = model.wants[usize::from(id)] == Want::Write;
        let claim = &mut self.claims[usize::from(id)];
        match (what, reply, claim.phase) {
            (Attempt, Reply::Granted(fence), Phase::Trying(_) | Phase::Asleep(_) | Phase::Notified) => {
                claim.phase = Phase::Holding;
                claim.believes = model.lease.saturating_sub(claim.first.unwrap_or(0));
                if claim.believes > 0 {
                    self.fell |= fence <= if writes { self.highest } else { self.highest_of_writers };
                    self.highest = self.highest.max(fence);
                    if writes {
                        self.highest_of_writers = fence;
                    }
                }
            }
            (Attempt, Reply::Busy(left), Phase::Trying(notified)) => {
                // Nothing of it stands there.
                claim.first =
                    self.wire.iter().any(|sent| (sent.claim, sent.what) == (id, Attempt)).then_some(0);
                claim.phase = if notified { Phase::Notified } else { Phase::Asleep(left) };
            }
            (Attempt, Reply::Refused, Phase::Trying(_)) => claim.phase = Phase::Done,
            _ => {}
        }
    }

    /// Whether a claim may send an attempt.
    fn may_send(&self, id: u8) -> bool {
        let claim = &self.claims[usize::from(id)];
        let asks = matches!(claim.phase, Phase::Idle | Phase::Trying(_) | Phase::Asleep(0) | Phase::Notified);
        asks && claim.attempts > 0 && self.wire.iter().filter(|sent| sent.claim == id).count() < 2
    }

    fn take(&mut self, claim: u8, what: What, number: u8) -> Option<Request> {
        let is_it = |sent: &&Request| (sent.claim, sent.what, sent.number) == (claim, what, number);
        let found = self.wire.iter().find(is_it).cloned()?;
        self.wire.take(&found)
    }

    /// Whether there is room for a claim that sleeps, though nothing is under way that could wake it.
    fn oversleeps(&self, model: &Shares) -> bool {
        let asleep = |(id, claim): (u8, &Claim)| match claim.phase {
            Phase::Asleep(left) if left > 0 => Some(id),
            _ => None,
        };
        let is_free = |id: u8| self.rows.state(model).judge(&model.request(id), NOW) == Verdict::Free;
        self.wire.is_empty() && (0..).zip(&self.claims).filter_map(asleep).any(is_free)
    }
}

impl Model for Shares {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let [first, attempts] = self.attempts;
        let claim = Claim { phase: Phase::Idle, attempts, first: None, believes: 0 };
        let mut claims = vec![claim; self.wants.len()];
        claims[0].attempts = first;
        vec![State {
            rows: Rows::NEW,
            claims,
            wire: BTreeSet::new(),
            highest: 0,
            highest_of_writers: 0,
            fell: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (id, claim) in (0..).zip(&state.claims) {
            if state.may_send(id) && state.wire.len() < self.in_flight {
                actions.push(Action::Sends(id));
            }
            if !matches!(claim.phase, Phase::Idle | Phase::Done) {
                actions.push(Action::GivesUp(id));
            }
        }
        for &Request { claim, what, number, ref step } in &state.wire {
            let sent = Sent(what);
            // Nobody waits for the answer to a withdrawal.
            let heard = if what == Withdraw { [true].iter() } else { [true, false].iter() };
            match step {
                Some(_) => actions.extend(heard.map(|heard| Action::Writes(claim, sent, number, *heard))),
                None => {
                    if !self.rules.at_once {
                        actions.push(Action::Reads(claim, sent, number));
                    }
                    if self.by_statement(&state.rows, claim, what) {
                        actions.extend(heard.map(|heard| Action::CarriesOut(claim, sent, number, *heard)));
                    }
                    actions.push(Action::IsLost(claim, sent, number));
                }
            }
        }
        actions.push(Action::Tick);
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::Sends(id) => {
                let claim = &mut state.claims[usize::from(id)];
                claim.attempts -= 1;
                claim.phase = Phase::Trying(false);
                claim.first.get_or_insert(0);
                let number = claim.attempts;
                state.wire.insert(Request { claim: id, what: Attempt, number, step: None });
            }
            Action::Reads(id, Sent(what), number) => {
                let request = state.take(id, what, number)?;
                let step = Some(self.judge(&state.rows, id, what));
                state.wire.insert(Request { step, ..request });
            }
            Action::Writes(id, Sent(what), number, heard) => {
                let request = state.take(id, what, number)?;
                let step = request.step.clone()?;
                let writes_nothing = step.after == step.before && !step.notifies;
                if writes_nothing || !self.rules.compares_row || step.before.row == state.rows.row {
                    state.write(self, id, what, &step, heard);
                } else {
                    state.wire.insert(Request { step: None, ..request });
                }
            }
            Action::CarriesOut(id, Sent(what), number, heard) => {
                state.take(id, what, number)?;
                let step = self.judge(&state.rows, id, what);
                state.write(self, id, what, &step, heard);
            }
            Action::IsLost(id, Sent(what), number) => {
                state.take(id, what, number)?;
            }
            Action::GivesUp(id) => {
                let claim = &mut state.claims[usize::from(id)];
                (claim.phase, claim.believes, claim.first) = (Phase::Done, 0, None);
                state.wire.insert(Request { claim: id, what: Withdraw, number: 0, step: None });
            }
            Action::Tick => {
                state.rows.tick();
                let age = |mut request: Request| {
                    if let Some(step) = &mut request.step {
                        step.before.tick();
                        step.after.tick();
                        if let Reply::Busy(left) = &mut step.reply {
                            *left = left.saturating_sub(1);
                        }
                    }
                    request
                };
                state.wire = std::mem::take(&mut state.wire).into_iter().map(age).collect();
                for claim in &mut state.claims {
                    claim.believes = claim.believes.saturating_sub(1);
                    claim.first = claim.first.map(|ago| (ago + 1).min(self.lease));
                    if let Phase::Asleep(left) = &mut claim.phase {
                        *left = left.saturating_sub(1);
                    }
                }
            }
        }
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn believers(model: &Shares, state: &State) -> Vec<Want> {
            let pairs = model.wants.iter().zip(&state.claims);
            pairs.filter(|(_, claim)| claim.believes > 0).map(|(want, _)| *want).collect()
        }
        let always = vec![
            Property::always(EXCLUDES, |model: &Self, state: &State| {
                let believers = believers(model, state);
                let permits =
                    believers.iter().map(|want| if let Want::Permits(take) = want { *take } else { 0 });
                (believers.len() < 2 || !believers.contains(&Want::Write)) && permits.sum::<u32>() <= 2
            }),
            Property::always(FENCES_GROW, |_, state: &State| !state.fell),
            Property::always(WAKES, |model: &Self, state: &State| !state.oversleeps(model)),
        ];
        let mut all = always;
        all.extend([
            Property::sometimes("two believe together", |model: &Self, state: &State| {
                believers(model, state).len() > 1 || model.wants.iter().all(|want| *want != Want::Read)
            }),
            Property::sometimes(
                "a row has changed between reading and writing",
                |model: &Self, state: &State| {
                    let has_changed = |step: &Step| step.before.row != state.rows.row;
                    model.rules.at_once
                        || state.wire.iter().any(|sent| sent.step.as_ref().is_some_and(has_changed))
                },
            ),
            Property::sometimes("a claim is notified", |_, state: &State| {
                state.claims.iter().any(|claim| claim.phase == Phase::Notified)
            }),
            Property::sometimes("a claim is preferred", |_, state: &State| state.rows.preferred.is_some()),
            Property::sometimes("what is written was judged before a tick", |_, state: &State| {
                state.rows.shares.values().any(|share| share.left == 1)
            }),
        ]);
        all
    }
}
