//! Model (g): the waiters of one process, and when the first of them asks.
//!
//! # The protocol
//!
//! The waiters of a key stand in a queue of their process, and only the first of them asks the server. It asks when its
//! process has released the lock, when the backend reports a release elsewhere, or after a pause. A waiter may give up
//! at any moment, also while its request is under way, whose grant is then withdrawn; the next one takes over what is
//! known of the lock. A section that ends may pass the lock on to the first waiter, or leave it to other processes for
//! a moment. An acquire that finds no queue asks before it joins one, and compares the number of releases of then and
//! of now.
//!
//! # What is to be shown
//!
//! No wake-up is lost: a lock that this process has released is asked for at once, or by a request that is under way,
//! or when its time of standing back is over. Whatever notification is missed, no queue sleeps for longer than the
//! longest pause. A queue whose lock this process holds asks for nothing before its pause is over.
//!
//! # Assumptions, each of which can be dropped
//!
//! See [`Rules`]. When to ask is decided by the engine's own `AskPlan`. The queue itself is a list here; that of the
//! engine is run by threads in any order by `dlock-schedules`. Readers that are invited past others are left out.

use std::sync::LazyLock;
use std::time::Duration;

use dlock_core::decisions::ask::{AskAt, AskPlan, PauseLimit};
use stateright::{Model, Property};
use tokio::time::Instant;

/// One tick, which is also the pause after which a waiter looks for what the one before it may have missed.
const TICK: Duration = Duration::from_millis(20);
/// The longest pause between two requests, in ticks.
const POLL: u8 = 3;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The model; its size is in the fields.
#[derive(Clone, Debug)]
pub struct Queue {
    /// How many waiters come.
    pub waiters: u8,
    /// How often another process takes the lock.
    pub elsewhere: u8,
    /// How many ticks pass.
    pub ticks: u8,
    /// What is assumed.
    pub rules: Rules,
}

/// What the protocol does. The default is what holds.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// A waiter that gives up before the answer leaves the news that it asked for to the next one.
    pub news_is_left: bool,
    /// A waiter that has asked before it joined compares the number of releases.
    pub join_compares: bool,
    /// The waiters are notified of a release after the server has the lock back.
    pub notified_after: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self { news_is_left: true, join_compares: true, notified_after: true }
    }
}

impl Queue {
    /// The size of the tests.
    #[must_use]
    pub fn small(rules: Rules) -> Self {
        Self { waiters: 3, elsewhere: 1, ticks: 4, rules }
    }

    /// One waiter and one grant elsewhere more.
    #[must_use]
    pub fn large(rules: Rules) -> Self {
        Self { waiters: 4, elsewhere: 2, ..Self::small(rules) }
    }
}

/// All there is at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    now: u8,
    lock: Lock,
    /// How many acquires have come.
    came: u8,
    elsewhere: u8,
    /// An acquire that asks before it joins, and the number of releases before.
    early: Option<(Request, u8)>,
    /// The waiters, the first of them first, and when that asks.
    queue: Vec<Waiter>,
    plan: Option<AskPlan>,
    /// The requests of waiters that have given up.
    strays: Vec<Request>,
    /// The releases that were counted in this process.
    releases: u8,
    /// A release of which one half is done: the server has the lock, or the waiters were notified.
    half: Option<Half>,
    /// The lock was released by this process, and nobody has asked for it or taken it since.
    freed_here: bool,
    /// The waiters know that their process has the lock, and have heard nothing since.
    known_here: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Lock {
    Free,
    /// A section of this process has it.
    Here,
    /// It was granted to a request, or passed on to a waiter, that has not noticed yet.
    OnItsWay,
    Elsewhere,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Half {
    ServerFirst,
    WaitersFirst,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Request {
    Sent,
    Granted,
    Busy,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Waiter {
    request: Option<Request>,
    offered: bool,
}

/// What can happen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// An acquire finds no queue, and asks.
    AskEarly,
    /// Its request arrives.
    EarlyArrives,
    /// It has the lock, or joins the queue.
    EarlyAnswer,
    /// An acquire joins the queue.
    Join,
    /// The first waiter asks.
    Ask,
    /// Its request arrives.
    Arrives,
    /// Its answer arrives.
    Answer,
    /// A waiter gives up.
    GiveUp(usize),
    /// A request of a waiter that has given up arrives.
    StrayArrives(usize),
    /// A grant that nobody waits for is withdrawn, or a request that was busy is forgotten.
    StrayEnds(usize),
    /// A section ends, and the lock is passed on to the first waiter.
    PassOn,
    /// The first waiter takes the lock that was passed on to it.
    Take,
    /// A section ends, and its release is begun.
    Release,
    /// The release is over; the lock is left to other processes for a tick, or not.
    Released {
        /// It is left to others.
        yields: bool,
    },
    /// Another process takes the lock.
    TakeElsewhere,
    /// It releases it, and the first waiter is notified, or the notification is missed.
    ReleaseElsewhere {
        /// It is notified.
        heard: bool,
    },
    /// Time passes.
    Tick,
}

/// The name of the property that no wake-up is lost.
pub const IS_ASKED_FOR: &str = "a lock that was released here is asked for";
/// The name of the property that no queue sleeps for longer than the longest pause.
pub const SLEEP_IS_BOUNDED: &str = "no queue sleeps for longer than the longest pause";
/// The name of the property that a lock which is held here costs no request.
pub const ASKS_FOR_NOTHING: &str =
    "a queue whose lock is held here asks for nothing before its pause is over";

fn at(tick: u8) -> Instant {
    *START + TICK * u32::from(tick)
}

impl State {
    fn has_news(&self) -> bool {
        self.plan.as_ref().is_some_and(|plan| plan.ask_at() == AskAt::Once)
    }

    fn first_asks(&self) -> bool {
        self.queue.first().is_some_and(|first| first.request == Some(Request::Sent))
    }

    fn may_ask(&self) -> bool {
        let is_idle = self.queue.first().is_some_and(|first| first.request.is_none() && !first.offered);
        is_idle
            && self.plan.as_ref().is_some_and(|plan| match plan.ask_at() {
                AskAt::Once => true,
                AskAt::Due(due_at) => due_at <= at(self.now),
            })
    }

    /// The server's part: one atomic step.
    fn serve(&mut self) -> Request {
        self.freed_here = false;
        if self.lock == Lock::Free {
            self.lock = Lock::OnItsWay;
            Request::Granted
        } else {
            Request::Busy
        }
    }

    fn join(&mut self, asked: Option<bool>) {
        if self.queue.is_empty() {
            let polls = PauseLimit::new(TICK, TICK * u32::from(POLL));
            let asked_at = asked.map(|_| at(self.now));
            self.known_here = false;
            self.plan = Some(AskPlan::new(polls, true, asked_at, asked.unwrap_or(true)));
        }
        self.queue.push(Waiter::default());
    }

    /// The first waiter leaves, with the lock.
    fn win(&mut self) {
        self.queue.remove(0);
        (self.lock, self.known_here) = (Lock::Here, true);
        self.left(|plan, now| plan.wins(now, TICK * u32::from(POLL)));
    }

    /// The first waiter has left: its plan is the next one's.
    fn left(&mut self, how: impl FnOnce(&mut AskPlan, Instant)) {
        let now = at(self.now);
        match &mut self.plan {
            Some(plan) if !self.queue.is_empty() => how(plan, now),
            plan => *plan = None,
        }
    }

    fn notify(&mut self, yields: bool) {
        let until = at(self.now + 1);
        self.releases += 1;
        self.known_here = false;
        if let Some(plan) = &mut self.plan {
            if yields { plan.yields(until) } else { plan.released() }
        }
    }

    fn free(&mut self) {
        (self.lock, self.freed_here) = (Lock::Free, true);
    }

    fn give_up(&mut self, place: usize, rules: Rules) {
        let Waiter { request, offered } = self.queue.remove(place);
        self.strays.extend(request);
        if place > 0 {
            return;
        }
        if offered {
            // The next one is offered the lock, or it is released.
            self.left(|plan, _| plan.is_passed_on());
            match self.queue.first_mut() {
                Some(next) => next.offered = true,
                None => self.strays.push(Request::Granted),
            }
            return;
        }
        self.left(|plan, now| {
            if !rules.news_is_left {
                plan.answered(now, TICK * u32::from(POLL));
            }
            plan.gives_up();
        });
    }
}

impl Model for Queue {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let state = |lock| State {
            now: 0,
            lock,
            came: 0,
            elsewhere: 0,
            early: None,
            queue: Vec::new(),
            plan: None,
            strays: Vec::new(),
            releases: 0,
            half: None,
            freed_here: false,
            known_here: false,
        };
        vec![state(Lock::Here), state(Lock::Elsewhere)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.came < self.waiters {
            actions.push(Action::Join);
            if state.queue.is_empty() && state.early.is_none() {
                actions.push(Action::AskEarly);
            }
        }
        match state.early {
            Some((Request::Sent, _)) => actions.push(Action::EarlyArrives),
            Some(_) => actions.push(Action::EarlyAnswer),
            None => {}
        }
        if state.may_ask() {
            actions.push(Action::Ask);
        }
        match state.queue.first() {
            Some(Waiter { request: Some(Request::Sent), .. }) => actions.push(Action::Arrives),
            Some(Waiter { request: Some(_), .. }) => actions.push(Action::Answer),
            Some(Waiter { offered: true, .. }) => actions.push(Action::Take),
            _ => {}
        }
        actions.extend((0..state.queue.len()).map(Action::GiveUp));
        for (place, stray) in state.strays.iter().enumerate() {
            actions.push(match stray {
                Request::Sent => Action::StrayArrives(place),
                _ => Action::StrayEnds(place),
            });
        }
        match (state.lock, state.half) {
            (_, Some(_)) => {
                actions.extend([false, true].map(|yields| Action::Released { yields }));
            }
            (Lock::Here, None) => {
                actions.push(Action::Release);
                if state.queue.first().is_some_and(|first| first.request.is_none() && !first.offered) {
                    actions.push(Action::PassOn);
                }
            }
            _ => {}
        }
        match state.lock {
            Lock::Free if state.elsewhere < self.elsewhere => actions.push(Action::TakeElsewhere),
            Lock::Elsewhere => {
                actions.push(Action::ReleaseElsewhere { heard: false });
                let is_idle = state.queue.first().is_some_and(|first| first.request.is_none());
                if is_idle && state.plan.as_ref().is_some_and(AskPlan::listens) {
                    actions.push(Action::ReleaseElsewhere { heard: true });
                }
            }
            _ => {}
        }
        if state.now < self.ticks {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::AskEarly => {
                state.came += 1;
                state.early = Some((Request::Sent, state.releases));
            }
            Action::EarlyArrives => {
                let (_, seen) = state.early?;
                state.early = Some((state.serve(), seen));
            }
            Action::EarlyAnswer => match state.early.take()? {
                (Request::Granted, _) => state.lock = Lock::Here,
                (_, seen) => {
                    state.join(Some(self.rules.join_compares && seen != state.releases));
                    if state.queue.len() == 1 {
                        state.plan.as_mut()?.answered(at(state.now), TICK * u32::from(POLL));
                    }
                }
            },
            Action::Join => {
                state.came += 1;
                state.join(None);
            }
            Action::Ask => {
                state.known_here = false;
                state.plan.as_mut()?.asks(at(state.now));
                state.queue[0].request = Some(Request::Sent);
            }
            Action::Arrives => state.queue[0].request = Some(state.serve()),
            Action::Answer => match state.queue[0].request.take()? {
                Request::Granted => state.win(),
                _ => state.plan.as_mut()?.answered(at(state.now), TICK * u32::from(POLL)),
            },
            Action::GiveUp(place) => state.give_up(place, self.rules),
            Action::StrayArrives(place) => state.strays[place] = state.serve(),
            Action::StrayEnds(place) => {
                if state.strays.remove(place) == Request::Granted {
                    // One step: what is between the two halves is shown by the releases of sections.
                    state.free();
                    state.notify(false);
                }
            }
            Action::PassOn => {
                state.lock = Lock::OnItsWay;
                state.queue[0].offered = true;
                state.plan.as_mut()?.is_passed_on();
            }
            Action::Take => state.win(),
            Action::Release if self.rules.notified_after => {
                state.free();
                state.half = Some(Half::ServerFirst);
            }
            Action::Release => {
                state.notify(false);
                state.half = Some(Half::WaitersFirst);
            }
            Action::Released { yields } => match state.half.take()? {
                Half::ServerFirst => state.notify(yields),
                Half::WaitersFirst if state.lock == Lock::Here => state.free(),
                Half::WaitersFirst => return None,
            },
            Action::TakeElsewhere => {
                (state.lock, state.freed_here) = (Lock::Elsewhere, false);
                state.elsewhere += 1;
            }
            Action::ReleaseElsewhere { heard } => {
                state.lock = Lock::Free;
                if heard {
                    state.known_here = false;
                    state.plan.as_mut()?.released();
                }
            }
            Action::Tick => state.now += 1,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(IS_ASKED_FOR, |_, state: &State| {
                let knows = state.freed_here && state.half.is_none() && state.plan.is_some();
                let is_yielded = state.plan.as_ref().is_some_and(AskPlan::is_yielded);
                !knows || state.has_news() || state.first_asks() || is_yielded
            }),
            Property::always(SLEEP_IS_BOUNDED, |_, state: &State| {
                state.plan.as_ref().is_none_or(|plan| match plan.ask_at() {
                    AskAt::Once => true,
                    AskAt::Due(due_at) => due_at <= at(state.now + POLL),
                })
            }),
            Property::always(ASKS_FOR_NOTHING, |_, state: &State| {
                let rests = |plan: &AskPlan| plan.ask_at() != AskAt::Once && !plan.listens();
                !state.known_here || state.plan.as_ref().is_none_or(rests)
            }),
            Property::sometimes("the lock goes on although the first waiter gives up", |_, state: &State| {
                state.strays.contains(&Request::Sent) && state.has_news() && state.freed_here
            }),
            Property::sometimes(
                "a release in this process comes before the place in the queue",
                |_, state: &State| matches!(state.early, Some((Request::Busy, seen)) if seen < state.releases),
            ),
            Property::sometimes(
                "a release elsewhere is missed, and found after a pause",
                |_, state: &State| {
                    let is_due = state.may_ask() && !state.has_news();
                    is_due && state.lock == Lock::Free && !state.freed_here
                },
            ),
            Property::sometimes("the lock is left to others", |_, state: &State| {
                state.lock == Lock::Elsewhere && state.plan.as_ref().is_some_and(AskPlan::is_yielded)
            }),
        ]
    }
}
