//! Model (h): a session that keeps locks, and processes that find it gone.
//!
//! # The protocol
//!
//! A process holds a record on the server, which it renews. Its locks name the record, and have no lease that would end
//! within the time of the model. The process relies on them until the end of the record as it knows it: a lease after
//! the send of the last renewal that was confirmed, less a margin. A process that waits looks at the record. Once that
//! is absent, and absent again a lease later, the session is over, and the waiter takes the lock away from the hold
//! that it has seen.
//!
//! # What is to be shown
//!
//! No other process has a lock while the one whose session kept it relies on it: whenever the record goes, by its lease
//! or because the server forgets it, and however late requests and answers are. Locks of a session that is over can be
//! taken.
//!
//! # Assumptions, each of which can be dropped
//!
//! See [`Rules`]. That a session is over is decided by the engine's own `Watch`, and until when the process relies on
//! it by its `LeaseTerms`. The server's part is that of any lock; see [`lease`](crate::lease). Clocks run at one rate
//! here: the margins that the two add cover what they differ by.

use std::time::Duration;

use dlock_core::Timestamp;
use dlock_core::backend::Validity;
use dlock_core::decisions::hold::{After, Condition, LeaseTerms, Report, Standing};
use dlock_core::decisions::session::{Look, Watch};
use stateright::{Model, Property};

/// One tick.
const TICK: Duration = Duration::from_secs(1);

/// The model; its size is in the fields.
#[derive(Clone, Debug)]
pub struct Session {
    /// The lease of the record, in ticks.
    pub lease: u8,
    /// How many ticks pass.
    pub ticks: u8,
    /// How many processes wait for the lock.
    pub waiters: u8,
    /// How often the process of the session takes the lock.
    pub grants: u8,
    /// What is assumed.
    pub rules: Rules,
}

/// What the protocol does. The default is what dlock does.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// A session whose record is absent is left its locks for a lease.
    pub grace: bool,
    /// A lock is taken away from the hold that was seen, and from no later one.
    pub compares: bool,
    /// The process relies on its session from the send of a renewal, not from its answer.
    pub deadline_from_send: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self { grace: true, compares: true, deadline_from_send: true }
    }
}

impl Session {
    /// One process that waits; the size of the tests.
    #[must_use]
    pub fn one_waiter(rules: Rules) -> Self {
        Self { lease: 2, ticks: 5, waiters: 1, grants: 1, rules }
    }

    /// Two of them, each with a view of its own, and just enough time; the size of the tests.
    #[must_use]
    pub fn two_waiters(rules: Rules) -> Self {
        Self { lease: 1, ticks: 3, waiters: 2, grants: 1, rules }
    }

    /// One process that waits, a lock that is taken twice, and more time.
    #[must_use]
    pub fn large(rules: Rules) -> Self {
        Self { ticks: 6, grants: 2, ..Self::one_waiter(rules) }
    }

    fn terms(&self) -> LeaseTerms {
        let lease = TICK * u32::from(self.lease);
        LeaseTerms::new(Validity::Lease(lease), lease, Timestamp::NEVER)
    }
}

/// All there is at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    now: u8,
    /// The tick at which the record on the server ends.
    record: Option<u8>,
    /// The server may forget the record, once.
    may_forget: bool,
    lock: Lock,
    holder: Holder,
    waiters: Vec<Waiter>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Lock {
    Free,
    /// It names the session; by the grant of this number.
    OfSession(u8),
    OfWaiter(u8),
}

/// A request and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Request<T> {
    sent: u8,
    answer: Option<T>,
}

/// The process that has the session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Holder {
    confirmed_at: Timestamp,
    deadline: Timestamp,
    /// Its record was found to be gone.
    is_lost: bool,
    renewal: Option<Request<bool>>,
    attempt: Option<Request<bool>>,
    release: bool,
    grants: u8,
    /// It has a guard of the lock.
    has_guard: bool,
}

/// A process that waits for the lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Waiter {
    watch: Option<Watch>,
    look: Option<Request<Look>>,
    /// The grant that it has seen to have the lock, and takes it away from.
    force: Option<u8>,
    has_lock: bool,
}

/// What can happen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// The process sends a renewal of its record.
    Renew,
    /// The renewal arrives.
    RenewalArrives,
    /// Its answer arrives.
    RenewalAnswer,
    /// The process asks for the lock.
    Acquire,
    /// The attempt arrives.
    AttemptArrives,
    /// Its answer arrives.
    AttemptAnswer,
    /// The process releases the lock.
    Release,
    /// The release arrives.
    ReleaseArrives,
    /// The server forgets the record.
    Forget,
    /// A waiter finds that a session keeps the lock, and begins to watch it.
    Meet(usize),
    /// A waiter looks at the record.
    Look(usize),
    /// The look arrives.
    LookArrives(usize),
    /// Its answer arrives, or is lost.
    LookAnswer {
        /// Who has looked.
        waiter: usize,
        /// It is lost.
        lost: bool,
    },
    /// A waiter sends a request to take the lock away.
    Force(usize),
    /// That request arrives.
    ForceArrives(usize),
    /// A waiter takes the lock, which is free.
    Take(usize),
    /// Time passes.
    Tick,
}

/// The name of the property that there is one holder.
pub const ONE_HOLDER: &str = "no other process has a lock that the holder relies on";

fn at(tick: u8) -> Timestamp {
    Timestamp::from_nanos(0) + TICK * u32::from(tick)
}

impl State {
    fn has_record(&self) -> bool {
        self.record.is_some_and(|ends| ends > self.now)
    }

    fn is_live(&self) -> bool {
        !self.holder.is_lost && at(self.now) < self.holder.deadline
    }

    fn relies(&self) -> bool {
        self.holder.has_guard && self.is_live()
    }
}

impl Session {
    fn confirmed(&self, state: &mut State, sent: u8) {
        let sent = if self.rules.deadline_from_send { sent } else { state.now };
        let holder = &mut state.holder;
        let condition = if at(state.now) < holder.deadline { Condition::Held } else { Condition::Lost };
        let standing = Standing { condition, deadline: holder.deadline, confirmed_at: holder.confirmed_at };
        if let After::Valid { sent, deadline: Some(deadline), .. } =
            self.terms().after(Report::Confirmed(at(sent)), standing, || 0.5)
        {
            holder.deadline = holder.deadline.max(deadline);
            holder.confirmed_at = holder.confirmed_at.max(sent);
        }
    }
}

impl Model for Session {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let plan = self.terms().granted(None, (at(0), at(0)), || 0.5);
        vec![State {
            now: 0,
            record: Some(self.lease),
            may_forget: true,
            lock: Lock::Free,
            holder: Holder {
                confirmed_at: at(0),
                deadline: plan.deadline,
                is_lost: false,
                renewal: None,
                attempt: None,
                release: false,
                grants: 0,
                has_guard: false,
            },
            waiters: vec![Waiter::default(); usize::from(self.waiters)],
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let holder = &state.holder;
        match holder.renewal {
            None if state.is_live() => actions.push(Action::Renew),
            None => {}
            Some(Request { answer: None, .. }) => actions.push(Action::RenewalArrives),
            Some(_) => actions.push(Action::RenewalAnswer),
        }
        match holder.attempt {
            None if state.is_live() && !holder.has_guard && holder.grants < self.grants => {
                actions.push(Action::Acquire);
            }
            None => {}
            Some(Request { answer: None, .. }) => actions.push(Action::AttemptArrives),
            Some(_) => actions.push(Action::AttemptAnswer),
        }
        if holder.has_guard && !holder.release {
            actions.push(Action::Release);
        }
        if holder.release {
            actions.push(Action::ReleaseArrives);
        }
        if state.may_forget && state.has_record() {
            actions.push(Action::Forget);
        }
        for (number, waiter) in state.waiters.iter().enumerate() {
            let meets = matches!(state.lock, Lock::OfSession(_));
            match &waiter.watch {
                None if meets => actions.push(Action::Meet(number)),
                Some(watch) if watch.is_over() && meets && waiter.force.is_none() => {
                    actions.push(Action::Force(number));
                }
                Some(watch)
                    if waiter.look.is_none() && watch.look_at().is_some_and(|due| due <= at(state.now)) =>
                {
                    actions.push(Action::Look(number));
                }
                _ => {}
            }
            match waiter.look {
                Some(Request { answer: None, .. }) => actions.push(Action::LookArrives(number)),
                Some(_) => {
                    actions.extend([false, true].map(|lost| Action::LookAnswer { waiter: number, lost }));
                }
                None => {}
            }
            if waiter.force.is_some() {
                actions.push(Action::ForceArrives(number));
            }
            if state.lock == Lock::Free && !waiter.has_lock {
                actions.push(Action::Take(number));
            }
        }
        if state.now < self.ticks {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        let now = state.now;
        match action {
            Action::Renew => state.holder.renewal = Some(Request { sent: now, answer: None }),
            Action::RenewalArrives => {
                let is_there = state.has_record();
                if is_there {
                    state.record = Some(now + self.lease);
                }
                state.holder.renewal.as_mut()?.answer = Some(is_there);
            }
            Action::RenewalAnswer => {
                let Request { sent, answer } = state.holder.renewal.take()?;
                if answer? {
                    self.confirmed(&mut state, sent);
                } else {
                    state.holder.is_lost = true;
                }
            }
            Action::Acquire => {
                state.holder.grants += 1;
                state.holder.attempt = Some(Request { sent: now, answer: None });
            }
            Action::AttemptArrives => {
                let is_free = state.lock == Lock::Free;
                if is_free {
                    state.lock = Lock::OfSession(state.holder.grants);
                }
                state.holder.attempt.as_mut()?.answer = Some(is_free);
            }
            Action::AttemptAnswer => {
                state.holder.has_guard = state.holder.attempt.take()?.answer?;
            }
            Action::Release => {
                (state.holder.has_guard, state.holder.release) = (false, true);
            }
            Action::ReleaseArrives => {
                state.holder.release = false;
                // A later attempt has another token.
                if state.lock == Lock::OfSession(state.holder.grants) && state.holder.attempt.is_none() {
                    state.lock = Lock::Free;
                }
            }
            Action::Forget => (state.record, state.may_forget) = (None, false),
            Action::Meet(number) => {
                state.waiters[number].watch = Some(Watch::new(TICK * u32::from(self.lease), at(now)));
            }
            Action::Look(number) => state.waiters[number].look = Some(Request { sent: now, answer: None }),
            Action::LookArrives(number) => {
                let left = state.record.filter(|ends| *ends > now).map(|ends| TICK * u32::from(ends - now));
                let look = left.map_or(Look::Absent, |left| Look::There(Some(left)));
                state.waiters[number].look.as_mut()?.answer = Some(look);
            }
            Action::LookAnswer { waiter, lost } => {
                let waiter = &mut state.waiters[waiter];
                let look = waiter.look.take()?.answer?;
                let watch = waiter.watch.as_mut()?;
                watch.looked(if lost { Look::Failed } else { look }, at(now));
                if !self.rules.grace && look == Look::Absent && !lost {
                    // Whenever that is: the second look is made to count at once.
                    watch.looked(look, at(u8::MAX));
                }
            }
            Action::Force(number) => {
                let Lock::OfSession(grant) = state.lock else { return None };
                state.waiters[number].force = Some(grant);
            }
            Action::ForceArrives(number) => {
                let seen = state.waiters[number].force.take()?;
                if state.lock == Lock::OfSession(seen) || !self.rules.compares {
                    state.lock = Lock::Free;
                }
            }
            Action::Take(number) => {
                state.lock = Lock::OfWaiter(u8::try_from(number).ok()?);
                state.waiters[number].has_lock = true;
            }
            Action::Tick => state.now += 1,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_HOLDER, |_, state: &State| {
                let others = state.waiters.iter().filter(|waiter| waiter.has_lock).count();
                others + usize::from(state.relies()) <= 1
            }),
            Property::sometimes("a lock is taken away after the record ran out", |_, state: &State| {
                state.may_forget
                    && state.holder.has_guard
                    && state.waiters.iter().any(|waiter| waiter.has_lock)
            }),
            Property::sometimes("a lock is taken away after the record was forgotten", |_, state: &State| {
                !state.may_forget
                    && state.holder.has_guard
                    && state.waiters.iter().any(|waiter| waiter.has_lock)
            }),
            Property::sometimes("the holder relies on a session whose record is gone", |_, state: &State| {
                state.relies() && !state.has_record()
            }),
            Property::sometimes("a lock is granted under a session that is over", |_, state: &State| {
                let is_over = |waiter: &Waiter| waiter.watch.as_ref().is_some_and(Watch::is_over);
                state.waiters.iter().any(is_over)
                    && state.holder.attempt.is_some_and(|it| it.answer == Some(true))
            }),
        ]
    }
}
