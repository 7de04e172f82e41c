//! Model (a): a lease with re-check and adoption, lost and late messages, and fences.
//!
//! # The protocol
//!
//! A *claim* has one token. It attempts until it is granted; an attempt that finds its own token on the server adopts
//! the lock and extends it; an attempt without an answer is made again under the same token. The holder believes until
//! the send of the first attempt that may have taken effect, plus the lease, minus a margin; a confirmed renewal moves
//! that to the send of the renewal. What ends a claim, or a hold, withdraws by token.
//!
//! What a client decides is not modelled: it is the engine's code, `dlock-core/src/engine/acquire/decide.rs`,
//! `acquire/unsettled.rs` and `hold/lease.rs`, which the model calls by way of [`engine`]. Modelled are the times at
//! which it acts, the network, and the server. For the server's part see `dlock-core/src/backends/memory.rs`,
//! `dlock-redis/src/format/plain.lua` and the statements of `dlock-sql`. It is compared with `Memory`, step by step, in
//! `tests/conformance.rs`.
//!
//! # Assumptions, each of which can be dropped
//!
//! See [`Rules`]. The network may lose every message, delay it for ever, and deliver requests in any order, also those
//! of one client: the protocol relies on order only to leave less behind. Clients may stand still for any time between
//! two steps, which the model has for nothing: a step that can be taken need not be. A client may stop for good.
//!
//! # Bounds
//!
//! Time is counted in ticks, and everything that counts up stops at the length of the lease, beyond which it makes no
//! difference. Each client makes one or two claims with two attempts each, and has two requests on their way. Renewals,
//! withdrawals, writes, losses and time are not bounded.

mod engine;
mod steps;

use stateright::{Model, Property};

/// The model; its size is in the fields.
#[derive(Clone, Debug)]
pub struct Lease {
    /// How many claims each client makes.
    pub claims: Vec<u8>,
    /// Attempts of each claim.
    pub attempts: u8,
    /// Length of the lease on the server, in ticks of its clock.
    pub lease: u8,
    /// Requests of one client that can be on their way at a time.
    pub in_flight: usize,
    /// What is assumed.
    pub rules: Rules,
}

/// What the protocol assumes and does. The default is what dlock does.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// A client's clock loses at most one tick in any as many as a lease has. (One that gains only ends holds early.)
    pub bounded_drift: bool,
    /// The deadline counts from the send of the first request that may have taken effect, not from its answer.
    pub deadline_from_send: bool,
    /// A release removes the lock only if it carries the token.
    pub release_checks_token: bool,
    /// A renewal extends the lock only if it carries the token.
    pub renewal_checks_token: bool,
    /// What was withdrawn is never asked for again under the same token.
    pub withdrawn_token_is_dead: bool,
    /// The fence is drawn in the step that grants, not by another request afterwards.
    pub fence_with_grant: bool,
    /// The resource refuses a lower fence than it has met.
    pub resource_checks_fence: bool,
    /// What the server may forget, once.
    pub server: Server,
}

/// What the server may forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// Nothing.
    Keeps,
    /// Its locks. The fences go on upwards, since they keep up with its clock.
    ForgetsLocks,
    /// Its locks, and how far the fences were.
    ForgetsFences,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            bounded_drift: true,
            deadline_from_send: true,
            release_checks_token: true,
            renewal_checks_token: true,
            withdrawn_token_is_dead: true,
            fence_with_grant: true,
            resource_checks_fence: true,
            server: Server::Keeps,
        }
    }
}

impl Lease {
    /// Two clients with a claim each, and two requests of each on their way at a time; the size of the tests.
    #[must_use]
    pub fn small(rules: Rules) -> Self {
        Self { claims: vec![1, 1], attempts: 2, lease: 3, in_flight: 2, rules }
    }

    /// The same, where one of them comes back for another claim.
    #[must_use]
    pub fn large(rules: Rules) -> Self {
        Self { claims: vec![2, 1], ..Self::small(rules) }
    }
}

/// All there is at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The lock on the server.
    pub lock: Option<Lock>,
    /// The last fence that the server gave.
    counter: u8,
    /// How many grants there were: the true order of sections, which nobody in the model knows.
    sections: u8,
    forgot: bool,
    /// The clients.
    pub clients: Vec<Client>,
    /// Requests on their way, in no order.
    wire: Vec<Request>,
    register: Register,
}

/// A lock on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lock {
    /// Whose it is.
    pub client: u8,
    /// Of which of its claims.
    pub token: u8,
    /// Its fence.
    pub fence: u8,
    section: u8,
    /// Ticks until it ends.
    pub left: u8,
}

/// One client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    /// The number of its claim.
    token: u8,
    phase: Phase,
    /// A request whose answer is waited for, and how long ago it was sent.
    awaited: Option<u8>,
    reply: Option<Reply>,
    /// Ticks since its clock last lost one.
    since_slip: u8,
    /// A write on its way to the resource.
    write: Option<Write>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    /// How long ago the first attempt was sent that may have taken effect; attempts left.
    Trying {
        first: Option<u8>,
        attempts: u8,
    },
    /// Believes for `left` more ticks. Without a fence yet where it is zero.
    Holding {
        fence: u8,
        section: u8,
        left: u8,
    },
    /// Releases what it may have.
    Leaving,
}

/// A request on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Request {
    /// Whose it is.
    pub client: u8,
    /// Of which of its claims.
    pub token: u8,
    /// What is asked.
    pub what: What,
    /// The client waits for the answer.
    pub heard: bool,
}

/// What is asked of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum What {
    /// Take the lock, or adopt it.
    Attempt,
    /// Extend it.
    Renew,
    /// Give it back.
    Withdraw,
    /// Draw a fence; only where that is a step of its own.
    DrawFence,
}

/// What the server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reply {
    /// The lock is ours.
    Granted {
        /// The fence of the grant.
        fence: u8,
        /// The number of the grant.
        section: u8,
    },
    /// Somebody else has it.
    Busy,
    /// The lease runs for its full length again.
    Extended,
    /// The lock does not carry our token.
    Gone,
    /// Nothing of ours is there any more.
    Withdrawn,
    /// A fence that was drawn.
    Fence(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Write {
    fence: u8,
    section: u8,
}

/// The resource that the lock protects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Register {
    fence: u8,
    section: u8,
    /// It accepted a write of a section after one of a later section.
    went_back: bool,
}

/// What can happen. Clients are numbered from 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A client begins a claim, and sends its first attempt.
    Begin(u8),
    /// A client sends another attempt under the same token.
    AttemptAgain(u8),
    /// A client gives its claim up.
    GiveUp(u8),
    /// A holder sends a renewal.
    Renew(u8),
    /// A holder asks for a fence.
    DrawFence(u8),
    /// A holder releases.
    Release(u8),
    /// A withdrawal is sent.
    Withdraw(u8),
    /// A client has no more to do with its claim, whether the withdrawal was confirmed or not.
    Finish(u8),
    /// A client goes on with a claim that it withdrew.
    Revive(u8),
    /// A request arrives at the server.
    Arrives(u8, What),
    /// A request is lost.
    IsLost(u8, What),
    /// An answer arrives.
    Answer(u8),
    /// A client waits for an answer no longer.
    TimeOut(u8),
    /// A holder that believes sends a write.
    Write(u8),
    /// The write arrives.
    WriteArrives(u8),
    /// Time passes for all.
    Tick,
    /// Time passes for all but the clock of one client.
    TickMissedBy(u8),
    /// The server starts anew without its data.
    Forget,
}

/// The name of the property that at most one client believes that it holds.
pub const ONE_BELIEVER: &str = "at most one client believes";
/// The name of the property that the resource accepts no write of a section after one of a later section.
pub const WRITES_GO_FORWARD: &str = "accepted writes never go back to an earlier section";

impl State {
    /// How many clients believe that they hold.
    #[must_use]
    pub fn believers(&self) -> usize {
        self.clients.iter().filter(|client| client.believes()).count()
    }

    /// The request that [`Action::Arrives`] and [`Action::IsLost`] are about.
    #[must_use]
    pub fn request(&self, client: u8, what: What) -> Option<Request> {
        self.wire.iter().copied().find(|request| (request.client, request.what) == (client, what))
    }

    fn send(&mut self, client: u8, what: What, heard: bool) {
        let token = self.clients[usize::from(client)].token;
        if heard {
            self.clients[usize::from(client)].awaited = Some(0);
        }
        self.wire.push(Request { client, token, what, heard });
        self.wire.sort_unstable();
    }

    /// Nobody waits for answers to this client's requests any more.
    fn hang_up(&mut self, client: u8) {
        let me = &mut self.clients[usize::from(client)];
        (me.awaited, me.reply) = (None, None);
        for request in self.wire.iter_mut().filter(|request| request.client == client) {
            request.heard = false;
        }
        self.wire.sort_unstable();
    }
}

impl Client {
    /// Without timers that nothing depends on, so that fewer states differ.
    fn forget_what_does_not_matter(&mut self, lease: u8) {
        if !self.has_timers() {
            self.since_slip = lease;
            self.awaited = self.awaited.map(|_| 0);
        }
        // The age of a request matters where a deadline is counted from it.
        if let (Phase::Trying { first: Some(_), .. }, Some(_)) = (self.phase, self.awaited) {
            self.awaited = Some(0);
        }
    }

    /// The number of its claim.
    #[must_use]
    pub const fn token(&self) -> u8 {
        self.token
    }

    /// An answer that is on its way to it.
    #[must_use]
    pub const fn reply(&self) -> Option<Reply> {
        self.reply
    }

    /// Whether its clock matters.
    const fn has_timers(&self) -> bool {
        matches!(self.phase, Phase::Trying { .. } | Phase::Holding { .. })
    }

    /// `check()` is fine.
    #[must_use]
    pub const fn believes(&self) -> bool {
        matches!(self.phase, Phase::Holding { left: 1.., .. })
    }
}

impl Model for Lease {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let client = Client {
            token: 0,
            phase: Phase::Idle,
            awaited: None,
            reply: None,
            since_slip: self.lease,
            write: None,
        };
        vec![State {
            lock: None,
            counter: 0,
            sections: 0,
            forgot: false,
            clients: vec![client; self.claims.len()],
            wire: Vec::new(),
            register: Register::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (id, client) in (0..).zip(&state.clients) {
            let room = state.wire.iter().filter(|request| request.client == id).count() < self.in_flight;
            let free = room && client.awaited.is_none();
            match client.phase {
                Phase::Idle if client.token < self.claims[usize::from(id)] && free => {
                    actions.push(Action::Begin(id));
                }
                Phase::Trying { attempts, .. } if client.awaited.is_none() => {
                    actions.push(Action::GiveUp(id));
                    if free && attempts > 0 && engine::asks_again() {
                        actions.push(Action::AttemptAgain(id));
                    }
                }
                Phase::Holding { fence, .. } => {
                    actions.push(Action::Release(id));
                    if free {
                        actions.push(Action::Renew(id));
                        if fence == 0 {
                            actions.push(Action::DrawFence(id));
                        }
                    }
                    if fence > 0 && client.write.is_none() {
                        actions.push(Action::Write(id));
                    }
                }
                Phase::Leaving => {
                    actions.push(Action::Finish(id));
                    if free {
                        actions.push(Action::Withdraw(id));
                    }
                    if free && !self.rules.withdrawn_token_is_dead {
                        actions.push(Action::Revive(id));
                    }
                }
                _ => {}
            }
            if client.awaited.is_some() {
                actions.push(Action::TimeOut(id));
            }
            if client.reply.is_some() {
                actions.push(Action::Answer(id));
            }
            if client.write.is_some() {
                actions.push(Action::WriteArrives(id));
            }
            let slips = !self.rules.bounded_drift || client.since_slip >= self.lease;
            if slips && client.has_timers() {
                actions.push(Action::TickMissedBy(id));
            }
        }
        let mut last = None;
        for request in &state.wire {
            let this = (request.client, request.what);
            if last.replace(this) != Some(this) {
                actions.push(Action::Arrives(this.0, this.1));
                actions.push(Action::IsLost(this.0, this.1));
            }
        }
        actions.push(Action::Tick);
        if self.rules.server != Server::Keeps && !state.forgot {
            actions.push(Action::Forget);
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::Begin(id) => {
                let client = &mut state.clients[usize::from(id)];
                client.token += 1;
                client.phase = Phase::Trying { first: engine::attempt(None), attempts: self.attempts - 1 };
                client.since_slip = self.lease;
                state.send(id, What::Attempt, true);
            }
            Action::AttemptAgain(id) => {
                if let Phase::Trying { first, attempts } = &mut state.clients[usize::from(id)].phase {
                    *first = engine::attempt(*first);
                    *attempts -= 1;
                }
                state.send(id, What::Attempt, true);
            }
            Action::GiveUp(id) | Action::Release(id) => {
                state.hang_up(id);
                state.clients[usize::from(id)].phase = Phase::Leaving;
            }
            Action::Renew(id) => state.send(id, What::Renew, true),
            Action::DrawFence(id) => state.send(id, What::DrawFence, true),
            Action::Withdraw(id) => state.send(id, What::Withdraw, true),
            Action::Finish(id) => {
                state.hang_up(id);
                state.clients[usize::from(id)].phase = Phase::Idle;
            }
            Action::Revive(id) => {
                state.hang_up(id);
                state.clients[usize::from(id)].phase = Phase::Trying { first: Some(0), attempts: 0 };
                state.send(id, What::Attempt, true);
            }
            Action::IsLost(id, what) => drop(self.take(&mut state, id, what)?),
            Action::Arrives(id, what) => {
                let request = self.take(&mut state, id, what)?;
                let reply = self.serve(&mut state, request);
                if request.heard {
                    state.clients[usize::from(id)].reply = Some(reply);
                }
            }
            Action::Answer(id) => self.answer(&mut state, id)?,
            Action::TimeOut(id) => state.hang_up(id),
            Action::Write(id) => {
                let client = &mut state.clients[usize::from(id)];
                let Phase::Holding { fence, section, .. } = client.phase else { return None };
                client.write = Some(Write { fence, section });
            }
            Action::WriteArrives(id) => {
                let write = state.clients[usize::from(id)].write.take()?;
                let register = &mut state.register;
                if !self.rules.resource_checks_fence || write.fence >= register.fence {
                    register.went_back |= write.section < register.section;
                    (register.fence, register.section) = (write.fence, write.section);
                }
            }
            Action::Tick => self.tick(&mut state, None),
            Action::TickMissedBy(id) => self.tick(&mut state, Some(id)),
            Action::Forget => {
                (state.lock, state.forgot) = (None, true);
                if self.rules.server == Server::ForgetsFences {
                    state.counter = 0;
                }
            }
        }
        for client in &mut state.clients {
            client.forget_what_does_not_matter(self.lease);
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_BELIEVER, |_, state: &State| state.believers() <= 1),
            Property::always(WRITES_GO_FORWARD, |_, state: &State| !state.register.went_back),
            Property::sometimes("a lock goes over from one to another", |_, state: &State| {
                state.register.section > 1 && state.believers() == 1
            }),
            Property::sometimes("a stale write arrives", |_, state: &State| {
                let stale = |write: Write| write.fence > 0 && write.fence < state.register.fence;
                state.clients.iter().filter_map(|client| client.write).any(stale)
            }),
            Property::sometimes("a grant is still there whose answer was given up", |_, state: &State| {
                state.lock.is_some_and(|lock| {
                    let client = &state.clients[usize::from(lock.client)];
                    let trying = matches!(client.phase, Phase::Trying { .. });
                    lock.token == client.token && trying && client.awaited.is_none()
                })
            }),
            Property::sometimes("an attempt arrives after its claim has ended", |_, state: &State| {
                let late = |r: &Request| r.what == What::Attempt && !r.heard;
                state.wire.iter().any(|r| {
                    let client = &state.clients[usize::from(r.client)];
                    late(r) && (client.token > r.token || client.phase == Phase::Idle)
                })
            }),
        ]
    }
}
