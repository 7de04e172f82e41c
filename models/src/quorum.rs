//! Model (d): a lock on a majority of independent nodes, some of which forget.
//!
//! # The protocol
//!
//! A client asks all nodes for their votes, under a token, and holds when a majority voted for it; it believes until
//! the *start* of the round plus the lease. Each node votes for one client at a time, for the length of the lease. A
//! node that restarts has forgotten its votes. So every vote is followed by a look for a mark, which is lost with the
//! votes: the vote counts only if the mark is as old as the longest lease. Who finds none leaves one. A round that
//! fails is withdrawn, and its token is never used again. A renewal counts when a majority confirms it whose votes
//! count. See `dlock-quorum/src/claim.rs` (`poll_nodes`, `prepare`, `renew`), `vote.rs`
//! (`attempt_and_check`, `renew`) and `node.rs` (`remembers`).
//!
//! # Assumptions, each of which can be dropped
//!
//! See [`Rules`]. Every request may be lost, late, or carried out after its sender has stopped waiting; withdrawals
//! overtake, and are overtaken. Clients may stand still for any time. Clocks run alike; the lease model has the drift.
//!
//! # Bounds
//!
//! Nodes are alike, so that states that differ only in the order of the nodes are one: they are sorted after each step,
//! and a node's number in a story may change from one step to the next.

use stateright::{Model, Property};

/// The model; its size is in the fields.
#[derive(Clone, Debug)]
pub struct Quorum {
    /// How many nodes there are.
    pub nodes: usize,
    /// How many have to vote for a client.
    pub needed: usize,
    /// How many rounds each client makes.
    pub rounds: Vec<u8>,
    /// Length of a lease in ticks, which is also the longest.
    pub lease: u8,
    /// How often a node restarts, in all.
    pub restarts: u8,
    /// How many of the clients renew, when they hold.
    pub renewals: u8,
    /// What is assumed.
    pub rules: Rules,
}

/// What the protocol does. The default is what holds.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// How old a mark has to be, in ticks less than the longest lease; without a value a node is not asked.
    pub abstains: Option<u8>,
    /// The look for the mark follows the vote.
    pub looks_after_vote: bool,
    /// The validity counts from the start of the round, not from its end.
    pub valid_from_start: bool,
    /// Each round has a token of its own.
    pub fresh_tokens: bool,
    /// A renewal counts only on nodes whose votes count, and not on those that voted while their mark was too young.
    pub renews_counted_votes: bool,
    /// A node that restarts has lost the mark with the votes, and does not come back with an old copy of its data.
    pub forgets_all: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            abstains: Some(0),
            looks_after_vote: true,
            valid_from_start: true,
            fresh_tokens: true,
            renews_counted_votes: true,
            forgets_all: true,
        }
    }
}

impl Quorum {
    /// Three nodes, one of which restarts once, and two clients; the size of the tests.
    #[must_use]
    pub fn small(rules: Rules) -> Self {
        Self { nodes: 3, needed: 2, rounds: vec![1, 1], lease: 2, restarts: 1, renewals: 0, rules }
    }

    /// Holders renew.
    #[must_use]
    pub fn large(rules: Rules) -> Self {
        Self { renewals: 2, ..Self::small(rules) }
    }
}

/// All there is at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    nodes: Vec<Node>,
    clients: Vec<Client>,
    restarts: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Node {
    vote: Option<Vote>,
    /// The age of the mark.
    mark: Option<u8>,
    /// What is between it and each client.
    seats: Vec<Seat>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Vote {
    client: u8,
    token: u8,
    left: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Seat {
    ballot: Ballot,
    /// A withdrawal of this token is on its way.
    withdrawal: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Ballot {
    Empty,
    /// The request is on its way.
    Asked,
    /// The same, and the client has stopped waiting.
    Late(u8),
    /// The mark was found, and the request is on its way; only where the look comes first.
    Looked,
    /// The node voted; the look for the mark is on its way.
    Voted,
    /// The vote counts.
    Counted,
    /// A renewal is on its way.
    Renewing,
    /// The renewal was confirmed.
    Renewed,
    /// It voted, and its mark is too young for the vote to count. The vote stands all the same.
    Uncounted,
    /// It did not vote.
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Client {
    rounds: u8,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    /// A round that began so long ago.
    Voting {
        age: u8,
    },
    /// Believes for `left` more ticks; a renewal was begun so long ago.
    Holding {
        left: u8,
        renewal: Option<u8>,
    },
}

/// What can happen. Clients and nodes are numbered from 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A client begins a round: it asks all nodes.
    Begin(u8),
    /// What this client sent arrives at this node, the answer included.
    Arrives(u8, usize),
    /// A withdrawal arrives at a node.
    WithdrawalArrives(u8, usize),
    /// A withdrawal is lost.
    WithdrawalIsLost(u8, usize),
    /// A client counts the votes and finds a majority.
    Win(u8),
    /// A client gives its round up, or releases.
    Withdraw(u8),
    /// A holder asks all nodes that voted for it for a renewal.
    Renew(u8),
    /// A holder counts the renewals and finds a majority.
    Renewed(u8),
    /// A node starts anew without its data.
    Restart(usize),
    /// Somebody leaves a mark on a node.
    LeaveMark(usize),
    /// Time passes.
    Tick,
}

/// The name of the property that at most one client believes that it holds.
pub const ONE_BELIEVER: &str = "at most one client believes";

impl State {
    fn believers(&self) -> usize {
        self.clients.iter().filter(|client| matches!(client.phase, Phase::Holding { left: 1.., .. })).count()
    }

    fn count(&self, client: u8, ballot: Ballot) -> usize {
        self.nodes.iter().filter(|node| node.seats[usize::from(client)].ballot == ballot).count()
    }

    fn seats(&mut self, client: u8) -> impl Iterator<Item = &mut Seat> {
        self.nodes.iter_mut().map(move |node| &mut node.seats[usize::from(client)])
    }
}

impl Model for Quorum {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let seat = Seat { ballot: Ballot::Empty, withdrawal: None };
        let clients = self.rounds.len();
        let node = Node { vote: None, mark: Some(self.lease), seats: vec![seat; clients] };
        vec![State {
            nodes: vec![node; self.nodes],
            clients: vec![Client { rounds: 0, phase: Phase::Idle }; clients],
            restarts: 0,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (id, client) in (0..).zip(&state.clients) {
            match client.phase {
                Phase::Idle if client.rounds < self.rounds[usize::from(id)] => {
                    actions.push(Action::Begin(id));
                }
                Phase::Idle => {}
                Phase::Voting { age } => {
                    actions.push(Action::Withdraw(id));
                    let in_time = age < self.lease || !self.rules.valid_from_start;
                    if in_time && state.count(id, Ballot::Counted) >= self.needed {
                        actions.push(Action::Win(id));
                    }
                }
                Phase::Holding { renewal, .. } => {
                    actions.push(Action::Withdraw(id));
                    if id < self.renewals && renewal.is_none() {
                        actions.push(Action::Renew(id));
                    }
                    if renewal.is_some() && state.count(id, Ballot::Renewed) >= self.needed {
                        actions.push(Action::Renewed(id));
                    }
                }
            }
        }
        for (place, node) in state.nodes.iter().enumerate() {
            if place > 0 && state.nodes[place - 1] == *node {
                // The same as with the one before.
                continue;
            }
            for (id, seat) in (0..).zip(&node.seats) {
                let under_way = matches!(
                    seat.ballot,
                    Ballot::Asked | Ballot::Late(_) | Ballot::Looked | Ballot::Voted | Ballot::Renewing
                );
                if under_way {
                    actions.push(Action::Arrives(id, place));
                }
                if seat.withdrawal.is_some() {
                    actions.push(Action::WithdrawalArrives(id, place));
                    actions.push(Action::WithdrawalIsLost(id, place));
                }
            }
            if state.restarts < self.restarts {
                actions.push(Action::Restart(place));
            }
            if node.mark.is_none() {
                actions.push(Action::LeaveMark(place));
            }
        }
        actions.push(Action::Tick);
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::Begin(id) => {
                let client = &mut state.clients[usize::from(id)];
                client.rounds += 1;
                client.phase = Phase::Voting { age: 0 };
                // A node that is still asked under an earlier token is not asked again.
                for seat in state.seats(id).filter(|seat| seat.ballot == Ballot::Empty) {
                    seat.ballot = Ballot::Asked;
                }
            }
            Action::Arrives(id, place) => self.arrive(&mut state, id, place),
            Action::WithdrawalArrives(id, place) => {
                let node = &mut state.nodes[place];
                let token = node.seats[usize::from(id)].withdrawal.take()?;
                node.vote = node.vote.filter(|vote| (vote.client, vote.token) != (id, token));
            }
            Action::WithdrawalIsLost(id, place) => {
                state.nodes[place].seats[usize::from(id)].withdrawal = None;
            }
            Action::Win(id) => {
                let Phase::Voting { age } = state.clients[usize::from(id)].phase else { return None };
                let age = if self.rules.valid_from_start { age } else { 0 };
                let left = self.lease - age;
                state.clients[usize::from(id)].phase = Phase::Holding { left, renewal: None };
            }
            Action::Withdraw(id) => self.withdraw(&mut state, id),
            Action::Renew(id) => {
                let Phase::Holding { renewal, .. } = &mut state.clients[usize::from(id)].phase else {
                    return None;
                };
                *renewal = Some(0);
                for seat in state.seats(id) {
                    let uncounted = seat.ballot == Ballot::Uncounted && !self.rules.renews_counted_votes;
                    if seat.ballot == Ballot::Counted || uncounted {
                        seat.ballot = Ballot::Renewing;
                    }
                }
            }
            Action::Renewed(id) => {
                let Phase::Holding { left, renewal } = &mut state.clients[usize::from(id)].phase else {
                    return None;
                };
                *left = (*left).max(self.lease.saturating_sub(renewal.take()?));
                for seat in state.seats(id) {
                    if matches!(seat.ballot, Ballot::Renewed | Ballot::Renewing) {
                        seat.ballot = Ballot::Counted;
                    }
                }
            }
            Action::Restart(place) => {
                state.restarts += 1;
                let node = &mut state.nodes[place];
                node.vote = None;
                if self.rules.forgets_all {
                    node.mark = None;
                }
            }
            Action::LeaveMark(place) => state.nodes[place].mark = Some(0),
            Action::Tick => self.tick(&mut state),
        }
        state.nodes.sort_unstable();
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_BELIEVER, |_, state: &State| state.believers() <= 1),
            Property::sometimes("one holds while a node has forgotten its vote", |_, state: &State| {
                state.believers() == 1 && state.nodes.iter().any(|node| node.mark.is_none())
            }),
            Property::sometimes("the second client holds after the first", |_, state: &State| {
                state.clients[0].rounds > 0 && matches!(state.clients[1].phase, Phase::Holding { .. })
            }),
            Property::sometimes(
                "a vote is taken by a request whose client has turned away",
                |_, s: &State| {
                    let gone = |client: u8| s.clients[usize::from(client)].phase == Phase::Idle;
                    s.nodes.iter().filter_map(|node| node.vote).any(|vote| gone(vote.client))
                },
            ),
        ]
    }
}

impl Quorum {
    fn token(&self, client: &Client) -> u8 {
        if self.rules.fresh_tokens { client.rounds } else { 0 }
    }

    /// The node's part, and the client's look at the answer.
    fn arrive(&self, state: &mut State, id: u8, place: usize) {
        let token = self.token(&state.clients[usize::from(id)]);
        let lease = self.lease;
        let node = &mut state.nodes[place];
        let remembers = self
            .rules
            .abstains
            .is_none_or(|less| node.mark.is_some_and(|age| age >= lease.saturating_sub(less)));
        let ballot = node.seats[usize::from(id)].ballot;
        let ours = |vote: &Vote, token: u8| (vote.client, vote.token) == (id, token);
        let held = node.vote.is_some_and(|vote| ours(&vote, token));
        let mut votes = |token: u8| {
            let free = node.vote.is_none_or(|vote| ours(&vote, token));
            if free {
                node.vote = Some(Vote { client: id, token, left: lease });
            }
            free
        };
        let next = match ballot {
            Ballot::Late(token) => {
                votes(token);
                Ballot::Empty
            }
            Ballot::Asked if !self.rules.looks_after_vote => {
                if remembers {
                    Ballot::Looked
                } else {
                    Ballot::Refused
                }
            }
            Ballot::Asked if votes(token) => Ballot::Voted,
            Ballot::Looked if votes(token) => Ballot::Counted,
            Ballot::Voted if remembers => Ballot::Counted,
            Ballot::Voted => Ballot::Uncounted,
            Ballot::Renewing if held => {
                votes(token);
                Ballot::Renewed
            }
            _ => Ballot::Refused,
        };
        node.seats[usize::from(id)].ballot = next;
    }

    /// The client stops waiting for its round, and sends withdrawals.
    fn withdraw(&self, state: &mut State, id: u8) {
        let token = self.token(&state.clients[usize::from(id)]);
        state.clients[usize::from(id)].phase = Phase::Idle;
        for seat in state.seats(id) {
            let asked = !matches!(seat.ballot, Ballot::Empty | Ballot::Late(_));
            seat.ballot = match seat.ballot {
                Ballot::Asked | Ballot::Looked => Ballot::Late(token),
                Ballot::Late(token) => Ballot::Late(token),
                _ => Ballot::Empty,
            };
            if asked {
                seat.withdrawal = Some(token);
            }
        }
    }

    fn tick(&self, state: &mut State) {
        for node in &mut state.nodes {
            node.vote =
                node.vote.filter(|vote| vote.left > 1).map(|vote| Vote { left: vote.left - 1, ..vote });
            node.mark = node.mark.map(|age| (age + 1).min(self.lease));
        }
        for id in (0..).take(self.rounds.len()) {
            match &mut state.clients[usize::from(id)].phase {
                Phase::Idle => {}
                Phase::Voting { age } => *age = (*age + 1).min(self.lease),
                Phase::Holding { left, renewal } => {
                    *left -= 1;
                    *renewal = renewal.map(|age| (age + 1).min(self.lease));
                    if *left == 0 {
                        self.withdraw(state, id);
                    }
                }
            }
        }
    }
}
