//! Model (e): Redisson's `RLock`, with its re-entrancy count, its watchdog and its retries, and where it fails.
//!
//! # The protocol
//!
//! The lock is a hash with one field, the thread that holds, whose value is how often it has locked; the hash has a
//! time to live. The scripts, as of Redisson 4.7.0 (`RedissonLock.tryLockInnerAsync` and `unlockInnerAsync`,
//! `renewal/LockTask`):
//!
//! * *lock*: if there is no hash, or it has my field: add 1, set the time to live. Otherwise: busy.
//! * *unlock* under the id of the call: if the latch of the id is there, answer as it says. If my field is missing: not
//!   mine. Take 1 off; if some are left, set the time to live, else delete. Leave the latch.
//! * *renew*, by the watchdog, every third of the time to live, for as long as a lock of the thread was answered more
//!   often than it was unlocked: if my field is there, set the time to live. Otherwise the watchdog stops; nobody is
//!   notified.
//!
//! The script of *lock* is not sent again by the library. When its answer does not come, `lock()` throws, and `tryLock`
//! with a wait throws or returns false; what the script did stands. *Unlock* is made again under the same id where no
//! replica confirmed it.
//!
//! # What is shown
//!
//! With [all assumptions](Rules::default) it keeps what it promises. Each dropped one breaks it, for other reasons than
//! in the lease model: a lock call has no token, so that a repeated one counts twice; a section has no deadline, so
//! that it never learns that the lock is gone; there is no fence (`RFencedLock` has one). This is no defect of the
//! library against its documentation, which asks for what is assumed here.
//!
//! # Bounds
//!
//! Two threads of different processes, nesting two deep, each with a few calls of lock.

use stateright::{Model, Property};

/// The model; its size is in the fields.
#[derive(Clone, Debug)]
pub struct RLock {
    /// How often each thread calls lock.
    pub calls: Vec<u8>,
    /// The time to live, in ticks.
    pub time_to_live: u8,
    /// What is assumed.
    pub rules: Rules,
}

/// What is assumed. The default is that nothing goes wrong.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Every call of lock is answered.
    pub lock_is_answered: bool,
    /// What the thread does when it is not.
    pub then: Then,
    /// Every call of unlock is answered at once. If not, it is made again until it is.
    pub unlock_is_answered: bool,
    /// An unlock that is made again finds the latch of the first one.
    pub latch: bool,
    /// The watchdog runs often enough: no process stands still for a time to live.
    pub watchdog_runs: bool,
    /// The server does not forget, and no replica takes over that has not heard of the lock.
    pub server_keeps: bool,
}

/// What a thread does when its call of lock was not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// It disappears.
    GivesUp,
    /// It calls lock again.
    CallsAgain,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            lock_is_answered: true,
            then: Then::GivesUp,
            unlock_is_answered: true,
            latch: true,
            watchdog_runs: true,
            server_keeps: true,
        }
    }
}

impl RLock {
    /// Four calls of each thread; the size of the tests.
    #[must_use]
    pub fn small(rules: Rules) -> Self {
        Self { calls: vec![4, 4], time_to_live: 3, rules }
    }

    /// More calls, and a longer time to live.
    #[must_use]
    pub fn large(rules: Rules) -> Self {
        Self { calls: vec![12, 12], time_to_live: 6, rules }
    }
}

/// All there is at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    lock: Option<Lock>,
    forgot: bool,
    threads: Vec<Thread>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Lock {
    thread: u8,
    count: u8,
    left: u8,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Thread {
    /// Calls of lock so far.
    calls: u8,
    /// How many sections it is in, one inside the other, as far as it knows.
    depth: u8,
    /// How often the watchdog was asked to renew for it.
    renewals: u8,
    /// The number of its last unlock, and whether its latch is on the server.
    unlock: u8,
    latched: bool,
    /// What it waits for.
    request: Option<Request>,
    /// A request on its way that it does not wait for any more.
    late: Option<What>,
    /// An unlock that has to be made again.
    unlocks_again: bool,
    /// A call of lock was not answered, and no unlock succeeded since.
    in_doubt: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Request {
    what: What,
    reply: Option<Reply>,
}

/// What is asked of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// Lock.
    Lock,
    /// Unlock.
    Unlock,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Reply {
    Locked,
    Busy,
    Unlocked,
    NotMine,
}

/// What can happen. Threads are numbered from 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A thread calls lock.
    Lock(u8),
    /// A thread calls unlock, and leaves its innermost section.
    Unlock(u8),
    /// The library makes an unlock again under the same id.
    UnlockAgain(u8),
    /// A request arrives at the server.
    Arrives(u8),
    /// A request that nobody waits for arrives at the server.
    ArrivesLate(u8),
    /// The answer arrives.
    Answer(u8),
    /// The answer does not come in time. The request may still arrive.
    TimeOut(u8),
    /// A late request is lost.
    IsLost(u8),
    /// The watchdog of a thread's process renews.
    Renew(u8),
    /// Time passes.
    Tick,
    /// The server forgets.
    Forget,
}

/// The name of the property that at most one thread is in a section.
pub const ONE_INSIDE: &str = "at most one thread is in a section";
/// The name of the property that the count on the server is that of the sections.
pub const COUNT_MATCHES: &str = "the count on the server is the number of sections";
/// The name of the property that no lock is left that nobody knows of.
pub const NOTHING_LEFT: &str = "no lock is left that nobody will unlock";
/// The name of the property that an unlock of the outermost section, which says that it succeeded, frees the lock.
pub const UNLOCK_FREES: &str = "the last unlock frees the lock";

impl State {
    /// The thread that has the lock, when nothing of it is on its way.
    fn settled_owner(&self) -> Option<(&Thread, Lock)> {
        let lock = self.lock?;
        let thread = &self.threads[usize::from(lock.thread)];
        let settled = thread.request.is_none() && thread.late.is_none() && !thread.unlocks_again;
        settled.then_some((thread, lock))
    }
}

impl Model for RLock {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State { lock: None, forgot: false, threads: vec![Thread::default(); self.calls.len()] }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let rules = &self.rules;
        for (id, thread) in (0..).zip(&state.threads) {
            match thread.request {
                None if thread.unlocks_again => actions.push(Action::UnlockAgain(id)),
                None => {
                    if thread.calls < self.calls[usize::from(id)] && thread.depth < 2 {
                        actions.push(Action::Lock(id));
                    }
                    if thread.depth > 0 {
                        actions.push(Action::Unlock(id));
                    }
                }
                Some(Request { what, reply }) => {
                    actions.push(if reply.is_some() { Action::Answer(id) } else { Action::Arrives(id) });
                    let answered = match what {
                        What::Lock => rules.lock_is_answered,
                        What::Unlock => rules.unlock_is_answered,
                    };
                    if !answered && (reply.is_some() || thread.late.is_none()) {
                        actions.push(Action::TimeOut(id));
                    }
                }
            }
            if thread.late.is_some() {
                actions.extend([Action::ArrivesLate(id), Action::IsLost(id)]);
            }
            if thread.renewals > 0 {
                actions.push(Action::Renew(id));
            }
        }
        let kept = |lock: Lock| {
            // An answer on its way tells the watchdog to begin, and a watchdog that runs begins in time.
            let thread = &state.threads[usize::from(lock.thread)];
            let told = thread.renewals > 0 || thread.request.is_some_and(|r| r.reply == Some(Reply::Locked));
            told && lock.left == 1
        };
        if !rules.watchdog_runs || !state.lock.is_some_and(kept) {
            actions.push(Action::Tick);
        }
        if !rules.server_keeps && !state.forgot {
            actions.push(Action::Forget);
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        let of = |id: u8| usize::from(id);
        match action {
            Action::Lock(id) => {
                let thread = &mut state.threads[of(id)];
                thread.calls += 1;
                thread.request = Some(Request { what: What::Lock, reply: None });
            }
            Action::Unlock(id) => {
                let thread = &mut state.threads[of(id)];
                thread.depth -= 1;
                (thread.unlock, thread.latched) = (thread.unlock + 1, false);
                thread.request = Some(Request { what: What::Unlock, reply: None });
            }
            Action::UnlockAgain(id) => {
                let thread = &mut state.threads[of(id)];
                thread.unlocks_again = false;
                thread.request = Some(Request { what: What::Unlock, reply: None });
            }
            Action::Arrives(id) => {
                let what = state.threads[of(id)].request?.what;
                let reply = self.serve(&mut state, id, what);
                state.threads[of(id)].request = Some(Request { what, reply: Some(reply) });
            }
            Action::ArrivesLate(id) => {
                let what = state.threads[of(id)].late.take()?;
                self.serve(&mut state, id, what);
            }
            Action::IsLost(id) => state.threads[of(id)].late = None,
            Action::Answer(id) => {
                let thread = &mut state.threads[of(id)];
                match thread.request.take()?.reply? {
                    Reply::Locked => {
                        thread.depth += 1;
                        thread.renewals += 1;
                    }
                    // It waits, and calls again.
                    Reply::Busy => thread.calls -= 1,
                    reply @ (Reply::Unlocked | Reply::NotMine) => {
                        thread.renewals = thread.renewals.saturating_sub(1);
                        thread.in_doubt &= reply == Reply::NotMine;
                    }
                }
            }
            Action::TimeOut(id) => {
                let thread = &mut state.threads[of(id)];
                let Request { what, reply } = thread.request.take()?;
                if reply.is_none() {
                    thread.late = Some(what);
                }
                thread.in_doubt |= what == What::Lock;
                match (what, self.rules.then) {
                    (What::Unlock, _) => thread.unlocks_again = true,
                    (What::Lock, Then::GivesUp) => thread.calls = self.calls[of(id)],
                    (What::Lock, Then::CallsAgain) => {}
                }
            }
            Action::Renew(id) => match &mut state.lock {
                Some(lock) if lock.thread == id => lock.left = self.time_to_live,
                _ => state.threads[of(id)].renewals -= 1,
            },
            Action::Tick => {
                state.lock =
                    state.lock.filter(|lock| lock.left > 1).map(|lock| Lock { left: lock.left - 1, ..lock });
            }
            Action::Forget => (state.lock, state.forgot) = (None, true),
        }
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_INSIDE, |_, state: &State| {
                state.threads.iter().filter(|thread| thread.depth > 0).count() <= 1
            }),
            Property::always(COUNT_MATCHES, |_, state: &State| {
                state
                    .settled_owner()
                    .is_none_or(|(thread, lock)| thread.depth == 0 || lock.count == thread.depth)
            }),
            Property::always(NOTHING_LEFT, |_, state: &State| {
                state.settled_owner().is_none_or(|(thread, _)| thread.depth > 0)
            }),
            Property::always(UNLOCK_FREES, |_, state: &State| {
                state.settled_owner().is_none_or(|(thread, _)| thread.depth > 0 || thread.in_doubt)
            }),
            Property::sometimes("a section is inside another", |_, state: &State| {
                state.lock.is_some_and(|lock| lock.count == 2 && lock.thread == 0)
            }),
            Property::sometimes("the second thread is in a section after the first", |_, state: &State| {
                state.threads[0].unlock > 0 && state.threads[1].depth > 0
            }),
        ]
    }
}

impl RLock {
    /// The scripts: each one atomic step.
    fn serve(&self, state: &mut State, id: u8, what: What) -> Reply {
        let left = self.time_to_live;
        match what {
            What::Lock => match &mut state.lock {
                None => {
                    state.lock = Some(Lock { thread: id, count: 1, left });
                    Reply::Locked
                }
                Some(lock) if lock.thread == id => {
                    (lock.count, lock.left) = (lock.count + 1, left);
                    Reply::Locked
                }
                Some(_) => Reply::Busy,
            },
            What::Unlock => {
                let thread = &mut state.threads[usize::from(id)];
                if thread.latched && self.rules.latch {
                    return Reply::Unlocked;
                }
                match &mut state.lock {
                    Some(lock) if lock.thread == id => {
                        thread.latched = true;
                        (lock.count, lock.left) = (lock.count - 1, left);
                        if lock.count == 0 {
                            state.lock = None;
                        }
                        Reply::Unlocked
                    }
                    _ => Reply::NotMine,
                }
            }
        }
    }
}
