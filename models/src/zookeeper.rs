//! Model (b): ZooKeeper's lock queue, with protected creation, sessions that expire, and proofs of life.
//!
//! # The protocol
//!
//! A client creates an ephemeral sequential node whose name begins with a mark of its own; it holds when its node is
//! the first. When the answer to the creation is lost, it looks for its mark, and adopts the node if it is of its
//! present session (*protected creation*). The holder believes for a part of the session timeout from the send of its
//! last *proof of life*. In `dlock-zk/src` these are the claim, the queue node (protected creation), and the session
//! (proofs of life).
//!
//! # The fault that matters
//!
//! Once, the leader is cut off from the others, who elect another one. For as long as it has not noticed, which takes
//! it about `syncLimit` times `tickTime`, it answers the clients that are connected to it: reads from its copy, and
//! `sync` too, since nothing is outstanding as far as it knows. It cannot commit a write. The new leader expires the
//! sessions that it does not hear of.
//!
//! # Assumptions, each of which can be dropped
//!
//! See [`Rules`]. Besides: requests of a session are carried out in the order they were sent, and none over an old
//! connection after the session has moved to another server, which ZooKeeper refuses; clocks run alike, since the lease
//! model has the drift. A connection can be lost at any moment, with the request or the answer that is on its way.
//! dlock is suspect from that moment on; here it goes on believing, which is harder. Clients may stand still for any
//! time.

mod steps;

use stateright::{Model, Property};

/// The model; its size is in the fields.
#[derive(Clone, Debug)]
pub struct Queue {
    /// How many claims each client makes.
    pub claims: Vec<u8>,
    /// How many sessions the first client opens at the most; the others have one.
    pub sessions: u8,
    /// Whether the leader can be cut off, once, together with the first client. Clients are alike, so that it makes no
    /// difference which one it is.
    pub split: bool,
    /// The session timeout in ticks.
    pub timeout: u8,
    /// How much later than the leader hears of a session it may have been heard of by the server it is connected to.
    pub late: u8,
    /// For how long a holder trusts a proof of life, in ticks from its send.
    pub trusted_for: u8,
    /// What is assumed.
    pub rules: Rules,
}

/// What the protocol does. The default is what holds.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// What a holder takes for a proof of life.
    pub proof: Proof,
    /// After a creation without an answer the client looks for its mark, instead of creating another node.
    pub looks_for_mark: bool,
    /// A node is adopted only if the present session owns it.
    pub adopts_own_session_only: bool,
    /// The fence is the node's transaction id, not the number in its name.
    pub fence_is_transaction: bool,
}

/// What counts as a proof of life of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// An answered `sync`, for holders and for whoever finds its node to be the first.
    Sync,
    /// An answered `sync` for holders. Whoever finds its node to be the first needs a committed write.
    SyncOfHolders,
    /// A committed write for holders. Whoever finds its node to be the first after a `sync` is trusted from that.
    CommitOfHolders,
    /// A committed write, also of whoever finds its node to be the first: its creation, if that is not long ago.
    Commit,
}

impl Proof {
    const fn commits_to_grant(self) -> bool {
        matches!(self, Self::Commit | Self::SyncOfHolders)
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            proof: Proof::Commit,
            looks_for_mark: true,
            adopts_own_session_only: true,
            fence_is_transaction: true,
        }
    }
}

impl Queue {
    /// Two clients with a claim each and a leader that is deposed; the size of the tests.
    #[must_use]
    pub fn split(rules: Rules) -> Self {
        Self { claims: vec![1, 1], sessions: 1, split: true, timeout: 3, late: 1, trusted_for: 2, rules }
    }

    /// Two clients with a claim each, one of which opens a second session; the size of the tests.
    #[must_use]
    pub fn sessions(rules: Rules) -> Self {
        Self { sessions: 2, split: false, ..Self::split(rules) }
    }

    /// Both.
    #[must_use]
    pub fn large(rules: Rules) -> Self {
        Self { sessions: 2, ..Self::split(rules) }
    }
}

/// All there is at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The queue that the ensemble agrees on, in order.
    queue: Vec<Node>,
    /// What the leader that was deposed still shows.
    copy: Option<Vec<Node>>,
    was_split: bool,
    /// The transaction of the last creation.
    transaction: u8,
    /// The number in the name of the last node in the directory.
    sequence: u8,
    /// The highest fence of any node so far, and whether a later node had no higher one.
    highest: u8,
    fences_went_back: bool,
    clients: Vec<Client>,
}

/// A node of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Node {
    client: u8,
    session: u8,
    /// The mark in its name.
    claim: u8,
    fence: u8,
}

/// One client, and what the ensemble knows of its sessions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Client {
    claim: u8,
    /// The number of its present session.
    session: u8,
    /// Of each session that the ensemble has: ticks until the leader may expire it.
    alive: Vec<Option<u8>>,
    /// It is connected to the leader that was deposed.
    with_deposed: bool,
    phase: Phase,
    request: Option<Request>,
    /// How long ago the last proof was sent, while it can matter.
    proof: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    /// Wants the lock. `node` is the fence of its node, if it knows one.
    Queued {
        node: Option<u8>,
        in_doubt: bool,
    },
    Holding {
        left: u8,
    },
    Leaving,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Request {
    what: What,
    age: u8,
    /// Set when it was carried out, and the answer is on its way.
    answer: Option<Answer>,
}

/// What a client asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// Create a node.
    Create,
    /// Look for the mark; adopt the node, and delete what else has the mark.
    Find,
    /// List the queue, after a `sync`.
    Look,
    /// Prove that the session lives.
    Prove,
    /// Delete the node.
    Delete,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Answer {
    Node(Option<u8>),
    First,
    Behind,
    /// The node is not there.
    Missing,
    Done,
    Expired,
}

/// What can happen. Clients are numbered from 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A client begins a claim.
    Begin(u8),
    /// A client sends a request.
    Ask(u8, What),
    /// The servers carry a request out.
    CarryOut(u8),
    /// The answer arrives.
    Answer(u8),
    /// The connection is lost, with what is on its way. The client connects to another server.
    Cut(u8),
    /// The leader hears of the client's session by a ping.
    Ping(u8),
    /// The client library gives the session up, and opens another one.
    NewSession(u8),
    /// The client releases, or gives its claim up.
    Leave(u8),
    /// Time passes.
    Tick,
    /// The leader expires a session.
    Expire(u8, u8),
    /// The leader is cut off with one client; the others elect another leader.
    Split(u8),
    /// The leader that was deposed notices.
    StepDown,
    /// The empty directory is removed, and with it the count of its nodes.
    RemoveDirectory,
}

/// The name of the property that at most one client believes that it holds.
pub const ONE_BELIEVER: &str = "at most one client believes";
/// The name of the property that no client stands behind a node of its own that it does not know.
pub const NO_ORPHAN: &str = "nobody waits behind a forgotten node of its own";
/// The name of the property that each node has a higher fence than all before.
pub const FENCES_GROW: &str = "fences grow from node to node";

impl State {
    fn believers(&self) -> usize {
        self.clients.iter().filter(|client| client.believes()).count()
    }

    /// Whether some client has a node ahead of the one it stands at.
    fn has_orphan(&self) -> bool {
        (0..).zip(&self.clients).any(|(id, client): (u8, _)| {
            let Phase::Queued { node: Some(fence), in_doubt: false } = client.phase else { return false };
            client.request.is_none()
                && self.queue.iter().any(|node| {
                    let mine = (node.client, node.session, node.claim) == (id, client.session, client.claim);
                    mine && node.fence < fence
                })
        })
    }

    fn expire(&mut self, id: u8, session: u8) {
        self.clients[usize::from(id)].alive[usize::from(session)] = None;
        self.queue.retain(|node| (node.client, node.session) != (id, session));
    }
}

impl Client {
    const fn believes(&self) -> bool {
        matches!(self.phase, Phase::Holding { left: 1.. })
    }

    /// Whether a ping would make a difference.
    fn hears_pings(&self, timeout: u8) -> bool {
        self.alive[usize::from(self.session)].is_some_and(|left| left < timeout)
    }
}

impl Model for Queue {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let client = |sessions: u8| {
            let mut alive = vec![None; sessions.into()];
            alive[0] = Some(self.timeout);
            Client {
                claim: 0,
                session: 0,
                alive,
                with_deposed: false,
                phase: Phase::Idle,
                request: None,
                proof: self.timeout,
            }
        };
        let clients =
            (0..self.claims.len()).map(|id| client(if id == 0 { self.sessions } else { 1 })).collect();
        vec![State {
            queue: Vec::new(),
            copy: None,
            was_split: false,
            transaction: 0,
            sequence: 0,
            highest: 0,
            fences_went_back: false,
            clients,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (id, client) in (0..).zip(&state.clients) {
            if client.request.is_none() {
                let asks = |what| Action::Ask(id, what);
                match client.phase {
                    Phase::Idle if client.claim < self.claims[usize::from(id)] => {
                        actions.push(Action::Begin(id));
                    }
                    Phase::Idle => {}
                    Phase::Queued { in_doubt: true, .. } if self.rules.looks_for_mark => {
                        actions.push(asks(What::Find));
                    }
                    // Without the search somebody has to stop at some time.
                    Phase::Queued { node: None, .. } if state.transaction < 4 * self.claims[0] => {
                        actions.push(asks(What::Create));
                    }
                    Phase::Queued { node: None, .. } => {}
                    Phase::Queued { .. } => {
                        actions.push(asks(What::Look));
                        if self.rules.proof.commits_to_grant() && client.proof > 0 {
                            actions.push(asks(What::Prove));
                        }
                    }
                    Phase::Holding { .. } => actions.push(asks(What::Prove)),
                    Phase::Leaving => actions.push(asks(What::Delete)),
                }
            }
            if let Some(request) = client.request {
                actions.push(if request.answer.is_some() {
                    Action::Answer(id)
                } else {
                    Action::CarryOut(id)
                });
            }
            if client.request.is_some() || client.with_deposed {
                actions.push(Action::Cut(id));
            }
            if !client.with_deposed && client.hears_pings(self.timeout) {
                actions.push(Action::Ping(id));
            }
            if usize::from(client.session) + 1 < client.alive.len() && client.phase != Phase::Idle {
                actions.push(Action::NewSession(id));
            }
            if matches!(client.phase, Phase::Queued { .. } | Phase::Holding { .. }) {
                actions.push(Action::Leave(id));
            }
            for (session, left) in (0..).zip(&client.alive) {
                if *left == Some(0) {
                    actions.push(Action::Expire(id, session));
                }
            }
        }
        if self.split && !state.was_split {
            actions.push(Action::Split(0));
        }
        if state.copy.is_some() {
            actions.push(Action::StepDown);
        }
        if !self.rules.fence_is_transaction && state.queue.is_empty() && state.sequence > 0 {
            actions.push(Action::RemoveDirectory);
        }
        actions.push(Action::Tick);
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::Begin(id) => {
                let client = &mut state.clients[usize::from(id)];
                client.claim += 1;
                client.phase = Phase::Queued { node: None, in_doubt: false };
            }
            Action::Ask(id, what) => {
                state.clients[usize::from(id)].request = Some(Request { what, age: 0, answer: None });
            }
            Action::CarryOut(id) => {
                let answer = self.carry_out(&mut state, id)?;
                let client = &mut state.clients[usize::from(id)];
                client.request = client.request.map(|r| Request { answer: Some(answer), ..r });
            }
            Action::Answer(id) => self.answer(&mut state.clients[usize::from(id)])?,
            Action::Cut(id) => state.clients[usize::from(id)].cut(),
            Action::Ping(id) => {
                let client = &mut state.clients[usize::from(id)];
                client.alive[usize::from(client.session)] = Some(self.timeout);
            }
            Action::NewSession(id) => {
                let client = &mut state.clients[usize::from(id)];
                client.cut();
                client.session += 1;
                client.alive[usize::from(client.session)] = Some(self.timeout);
                client.proof = self.timeout;
                client.phase = match client.phase {
                    Phase::Queued { node: None, in_doubt } => Phase::Queued { node: None, in_doubt },
                    // Its place is lost with its session, and the server takes the node away.
                    _ => Phase::Idle,
                };
            }
            Action::Leave(id) => {
                let client = &mut state.clients[usize::from(id)];
                // Over the same connection, so that it follows what is on its way.
                if client.request.is_some_and(|request| request.answer.is_none()) {
                    return None;
                }
                (client.request, client.phase) = (None, Phase::Leaving);
            }
            Action::Tick => self.tick(&mut state),
            Action::Expire(id, session) => state.expire(id, session),
            Action::Split(id) => {
                (state.copy, state.was_split) = (Some(state.queue.clone()), true);
                state.clients[usize::from(id)].with_deposed = true;
                // The new leader counts anew.
                for client in &mut state.clients {
                    client.alive.iter_mut().flatten().for_each(|left| *left = self.timeout);
                }
            }
            Action::StepDown => {
                state.copy = None;
                for client in state.clients.iter_mut().filter(|client| client.with_deposed) {
                    client.cut();
                }
            }
            Action::RemoveDirectory => state.sequence = 0,
        }
        for client in &mut state.clients {
            client.forget_what_does_not_matter(self.timeout);
        }
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(ONE_BELIEVER, |_, state: &State| state.believers() <= 1),
            Property::always(NO_ORPHAN, |_, state: &State| !state.has_orphan()),
            Property::always(FENCES_GROW, |_, state: &State| !state.fences_went_back),
        ];
        if self.split {
            properties.push(Property::sometimes(
                "a holder believes beside a leader that was deposed",
                |_, state: &State| {
                    state.copy.is_some() && state.clients.iter().any(|c| c.believes() && c.with_deposed)
                },
            ));
            properties.push(Property::sometimes(
                "the ensemble has the next holder meanwhile",
                |_, state: &State| {
                    let apart = state.clients.iter().any(|c| c.with_deposed && c.phase != Phase::Idle);
                    apart && state.clients.iter().any(|c| c.believes() && !c.with_deposed)
                },
            ));
        }
        if self.sessions > 1 {
            properties.push(Property::sometimes(
                "a creation is in doubt in a new session",
                |_, state: &State| {
                    state.clients.iter().any(|client| {
                        client.session > 0 && matches!(client.phase, Phase::Queued { in_doubt: true, .. })
                    })
                },
            ));
        }
        properties
    }
}
