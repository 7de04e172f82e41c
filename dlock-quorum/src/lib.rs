//! One lock of dlock on several independent backends: it is held when a majority of them has granted it.
//!
//! Services use it through the feature `quorum` of `dlock-sdk`.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod administration;
mod ballot;
mod claim;
mod marks;
mod node;
mod round;
mod tally;
mod vote;
mod votes;
mod vouching;
mod withdrawals;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use claim::QuorumClaim;
use dlock_core::backend::{
    Administration, Announcements, ClaimRequest, Finding, LockId, NodeState, Occupancy, question_limit,
    within,
};
use dlock_core::{
    Backend, Capabilities, Clock, Error, ErrorKind, Failure, Holder, Key, MAX_LEASE, MIN_LEASE, Node,
    Operation, Result, Token,
};
use futures_util::future::join_all;
use futures_util::stream::select_all;
pub use marks::{NodeMark, NodeSetup};
use node::Member;
pub use votes::QuorumVotes;
use votes::too_few;
use vouching::Vouching;
pub use vouching::{LockOnNodes, QuorumInUse};
use withdrawals::Withdrawals;

const NAME: &str = "quorum";
const MOST_NODES: usize = 31;
/// The bound of an operator's request about the marks of one node.
const ONE_NODE: Duration = Duration::from_secs(10);

/// A lock that is held when a majority of independent backends has granted it.
///
/// The nodes share nothing: five Redis masters (Redlock), three ZooKeepers, or some of each. A minority of them may be
/// away, hang, or be slow without an effect on callers. All are asked at once, each for as long as the
/// [node timeout](QuorumBuilder::with_node_timeout); a round without a majority is taken back on all of them before the
/// answer is given, in the background where a node does not answer.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
/// use dlock_core::{Locks, Memory};
/// use dlock_quorum::Quorum;
///
/// let nodes = [Memory::new(), Memory::new(), Memory::new()];
/// let quorum = Quorum::builder(nodes.clone()).with_durable_nodes().build()?;
/// let locks = Locks::new(quorum);
/// nodes[1].faults().set_unavailable(true);
/// let guard = locks.lock("room_7").acquire().await?;
/// guard.release().await?;
///
/// nodes[2].faults().set_unavailable(true);
/// let error = locks.lock("room_7").try_acquire().await.unwrap_err();
/// assert_eq!(error.kind(), dlock_core::ErrorKind::QuorumNotReached);
/// # Ok(()) }
/// ```
///
/// # What it does not guarantee
///
/// * **No fence.** The fences of the single nodes do not make one that grows: the highest of one majority may be above
///   the highest of the next. A majority could agree on one only by writing it back, which backends have no request
///   for. Where the resource needs a fence, take a backend that has one.
/// * **A winner among many tries.** Several callers that try at one moment can each get some of the nodes, and each get
///   the answer that the lock is busy. Callers that wait try again after a random pause.
/// * **Nodes that forget.** A node that restarts without its data, or is emptied, does not vote until it has remembered
///   for as long as the [longest lease](QuorumBuilder::with_longest_lease), so that no lock it forgot can still be
///   held. This is seen by a mark that is left on it and is lost with its data. A node that comes back with *old* data,
///   such as a snapshot, has the mark and lacks the newest locks, which cannot be detected: let nodes keep everything
///   ([durable](QuorumBuilder::with_durable_nodes)) or nothing.
/// * **Administration** shows and frees the locks on which a majority of the nodes agrees, if all nodes can do so. A
///   holder that was forced to release learns of it at its next renewal, as ever; what a node that did not answer still
///   has ends with its lease.
/// * **Clocks.** As with every lease, the clocks of servers and clients must run at about the same rate.
#[derive(Clone)]
pub struct Quorum(Arc<QuorumShared>);

/// Builds a [`Quorum`]; options are checked by [`build`](Self::build).
#[derive(Debug)]
#[must_use = "build() makes the quorum"]
pub struct QuorumBuilder {
    nodes: Vec<Node>,
    node_timeout: Duration,
    longest_lease: Duration,
    durable: bool,
    name: Option<String>,
}

/// The state that the claims of a quorum share.
struct QuorumShared {
    members: Vec<Arc<Member>>,
    /// The votes that are to be released on each of them.
    withdrawals: Vec<Arc<Withdrawals>>,
    node_timeout: Duration,
    /// The longest lease, where nodes may forget.
    longest: Option<Duration>,
    clock: Clock,
    capabilities: Capabilities,
    /// Is `true` if so many nodes can be administered that they decide.
    is_administered: bool,
}

impl Quorum {
    /// Creates a quorum of these nodes with the default settings.
    ///
    /// # Errors
    ///
    /// As [`QuorumBuilder::build`].
    pub fn new(nodes: impl IntoIterator<Item = impl Into<Node>>) -> Result<Self> {
        Self::builder(nodes).build()
    }

    /// Creates a builder, for settings that are not the defaults. Nodes of several kinds are given as [`Node`]s.
    pub fn builder(nodes: impl IntoIterator<Item = impl Into<Node>>) -> QuorumBuilder {
        QuorumBuilder {
            nodes: nodes.into_iter().map(Into::into).collect(),
            node_timeout: Duration::from_millis(200),
            longest_lease: Duration::from_secs(60),
            durable: false,
            name: None,
        }
    }

    /// Asks the nodes for a sign of life, each for 5 s at the most, until a majority has given it. Nothing needs this:
    /// it is for programs that must not start without.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::QuorumNotReached`], with the answer of each of the others.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn connect(&self) -> Result<()> {
        self.0.connect().await.map_err(configuring)
    }

    /// Returns the longest lease that a lock may have; `None` where no node can forget a lock.
    #[must_use]
    pub fn longest_lease(&self) -> Option<Duration> {
        self.0.longest
    }

    /// Reads the marks of the nodes, in their order: which of them vote, and why others do not.
    ///
    /// # Errors
    ///
    /// None as a whole; each node may fail.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn marks(&self) -> Vec<Result<NodeMark>> {
        let mut marks = Vec::new();
        for member in &self.0.members {
            let read = within(ONE_NODE, member.read_marks()).await;
            marks.push(read.unwrap_or_else(|| Err(no_answer())).map_err(|failure| named(member, &failure)));
        }
        marks
    }

    /// Takes the votes of the nodes away, until [`bootstrap`](Self::bootstrap) gives them to a quorum of any members.
    /// Every client is refused by [`ErrorKind::InvalidConfig`]; locks that are held are renewed and released as ever.
    /// Returns the result of each node.
    ///
    /// For an operator that changes the members while services run: no lock is granted when the longest lease has
    /// passed since, and when [`remaining`](Self::remaining) is empty then, none is held;
    /// [`bootstrap_after`](Self::bootstrap_after) looks at it once more. `dlock quorum change` does all of it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::QuorumNotReached`] when it was done on less than a majority, so that clients may get the votes of
    /// the others; [`ErrorKind::InvalidConfig`] when the nodes are durable, since these have no marks.
    ///
    /// # Cancel safety
    ///
    /// If dropped midway, some nodes may be suspended; call it again, or `bootstrap`.
    pub async fn suspend(&self) -> Result<Vec<Result<()>>> {
        let (mut done, mut failures) = (Vec::new(), Vec::new());
        for (place, member) in self.0.members.iter().enumerate() {
            let suspended = within(ONE_NODE, member.suspend()).await;
            match suspended.unwrap_or_else(|| Err(no_answer())) {
                Ok(()) => done.push(Ok(())),
                Err(failure) if failure.kind() == ErrorKind::InvalidConfig => {
                    return Err(named(member, &failure));
                }
                Err(failure) => {
                    done.push(Err(named(member, &failure)));
                    failures.push((place, failure));
                }
            }
        }
        let suspended = done.len() - failures.len();
        if suspended < self.0.needed() {
            let failure = too_few(&self.0.members, suspended, failures);
            return Err(configuring(failure));
        }
        Ok(done)
    }

    /// Lists the locks that are held on any of the nodes that answer, which are a majority: also those that are not, or
    /// not any more, a majority's.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::QuorumNotReached`].
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn remaining(&self) -> Result<Vec<(Key, Holder)>> {
        let listed = self.0.list_of_any().await;
        listed.map_err(|failure| Error::new(Operation::Inspect, failure).on(NAME))
    }

    /// Returns the text by which the marks identify this quorum: the number of its members, the longest lease, and a
    /// digest of the members or the name. [`NodeMark::Foreign`] has that of another quorum.
    #[must_use]
    pub fn settings(&self) -> &str {
        self.0.settings()
    }

    /// Vouches that no lock is held on any of the nodes, so that they vote at once and not only after the longest
    /// lease. Returns the change that was made on each, in their order.
    ///
    /// For the operator, while no service runs: when the servers are first set up, when the members or the longest
    /// lease change, or when a node's clock was ahead and does not vote since it was corrected. Never call it when a
    /// service starts: it would undo the protection against nodes that have forgotten their locks. Nodes that vote in
    /// this quorum already are left as they are.
    ///
    /// The nodes are checked as far as they know: nothing is set up while a lock stands on any of them, while one does
    /// not answer, and where their marks are of a quorum of which too few nodes are seen here to know of all its locks.
    /// The votes of such other quorums are taken away before the last look, so that no lock is granted in between. Only
    /// one administrator at a time sets a node up. When all nodes are of this quorum and remember its locks, as after
    /// [`suspend`](Self::suspend), they get their votes back whatever is held.
    ///
    /// # What it does not guarantee
    ///
    /// Nothing is known of members without marks: a quorum whose servers are all others is not seen from here; see
    /// [`bootstrap_after`](Self::bootstrap_after). Nodes that have all forgotten their locks look like new ones, and
    /// [durable](QuorumBuilder::with_durable_nodes) nodes have no marks. A process that stands still for over a minute
    /// between its last look and its writing may write when another administrator is at work.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Busy`]: locks stand on the nodes, which the source, [`QuorumInUse`], lists; or, without that
    ///   source, another administrator sets up one of the nodes.
    /// * [`ErrorKind::InvalidConfig`]: nodes belong to another quorum, most of whose members are not among these.
    /// * [`ErrorKind::Unavailable`]: a node cannot be asked, or so many have forgotten what they granted that it may be
    ///   held; and other kinds of the nodes, such as [`ErrorKind::Unsupported`] of a node that cannot list its locks.
    ///
    /// Unless writing failed, nothing was set up. It may be called again. Nodes of another quorum that were suspended
    /// meanwhile, which the error reports, stay so: call it again, or `bootstrap` of that quorum.
    ///
    /// # Cancel safety
    ///
    /// If dropped midway, some nodes may have been set up or [suspended](Self::suspend), and for up to three minutes
    /// another call may be refused by [`ErrorKind::Busy`]; call it again.
    pub async fn bootstrap(&self) -> Result<Vec<NodeSetup>> {
        self.vouch(None).await
    }

    /// Vouches as [`bootstrap`](Self::bootstrap) does, in the place of the quorum `before`, whose members are looked at
    /// too: so many of them have to answer that each of its locks is seen.
    ///
    /// For changes of the members or the longest lease, when `before` was [suspended](Self::suspend) and the longest
    /// lease has passed since; `dlock quorum change` does all of it. Durable members of `before` do not count, since
    /// votes cannot be taken from them.
    ///
    /// # Errors
    ///
    /// As `bootstrap`.
    ///
    /// # Cancel safety
    ///
    /// As `bootstrap`.
    pub async fn bootstrap_after(&self, before: &Self) -> Result<Vec<NodeSetup>> {
        self.vouch(Some(before)).await
    }

    /// Vouches as [`bootstrap`](Self::bootstrap) does, and looks at nothing: its caller knows that no lock is held, or
    /// accepts that a lock that is held is granted a second time while its holder goes on.
    ///
    /// # Errors
    ///
    /// The first failure of a node, which may take 10 s to answer. It may be called again.
    ///
    /// # Cancel safety
    ///
    /// If dropped midway, some nodes may have been set up; call it again.
    pub async fn force_bootstrap(&self) -> Result<Vec<NodeSetup>> {
        self.0.set_up_all().await.map_err(configuring)
    }

    async fn vouch(&self, before: Option<&Self>) -> Result<Vec<NodeSetup>> {
        let set_up = async { Vouching::new(&self.0, before.map(|before| &*before.0))?.set_up().await };
        set_up.await.map_err(configuring)
    }
}

impl QuorumBuilder {
    /// Sets the time that one node may take to answer. Default 200 ms; 1 ms to 5 s, and never more than two fifths of a
    /// lock's request timeout. It bounds the cost of nodes that hang for an acquire, and is best a few times as long as
    /// an answer takes. A renewal or a release waits longer for a majority that is slow.
    pub const fn with_node_timeout(mut self, limit: Duration) -> Self {
        self.node_timeout = limit;
        self
    }

    /// Sets the longest lease that a lock may have; longer ones are refused. Default 1 minute; up to 24 h. All users of
    /// the nodes have to agree on it: this long a node that has forgotten its locks does not vote.
    pub const fn with_longest_lease(mut self, lease: Duration) -> Self {
        self.longest_lease = lease;
        self
    }

    /// Names the quorum, where processes reach its nodes by different addresses.
    ///
    /// The marks on nodes that may forget have the members and the longest lease of the quorum, and a client with
    /// others is refused by [`ErrorKind::InvalidConfig`]: it would not need a majority of these nodes. The members are
    /// identified by their addresses, or by this name instead: set another one whenever the members change. Default: no
    /// name. Nodes that are durable or keep locks by sessions have no marks, and nothing is noticed there.
    pub fn with_name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Declares that the nodes never forget a lock that they granted, also when they are restarted or fail over: each
    /// is an ensemble, a database, or a Redis that syncs every write to its disk. They are then not asked for their
    /// memory, which spares each attempt a second request, and leases may have any length.
    ///
    /// Backends that are durable by themselves, or keep locks by sessions, are never asked.
    pub const fn with_durable_nodes(mut self) -> Self {
        self.durable = true;
        self
    }

    /// Checks the options and creates the quorum.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] without nodes or with more than 31, when two of them are one server, and when an
    /// option is outside its bounds.
    pub fn build(self) -> Result<Quorum> {
        let refuse =
            |what: String| Err(Error::new(Operation::Configure, Failure::invalid_config(what)).on(NAME));
        let Self { nodes, node_timeout, longest_lease, durable, name } = self;
        if !(1..=MOST_NODES).contains(&nodes.len()) {
            return refuse(format!(
                "a quorum of {} nodes; use 3 or 5, at the most {MOST_NODES}",
                nodes.len()
            ));
        }
        if !(Duration::from_millis(1)..=Duration::from_secs(5)).contains(&node_timeout) {
            return refuse(format!("node timeout is {node_timeout:?}; use 1 ms to 5 s"));
        }
        if !(MIN_LEASE..=MAX_LEASE).contains(&longest_lease) {
            return refuse(format!("longest lease is {longest_lease:?}; use 50 ms to 24 h"));
        }
        if let Some((one, other)) = same_twice(&nodes) {
            return refuse(format!(
                "node {other} is node {one} again; a node that had several votes would outvote the others"
            ));
        }
        let abilities: Vec<_> = nodes.iter().map(|node| node.capabilities()).collect();
        let settings = marks::settings(&nodes, name.as_deref(), longest_lease);
        let keeps = |can: &Capabilities| durable || can.durable || can.session_kept;
        let members: Vec<_> = nodes
            .into_iter()
            .zip(&abilities)
            .enumerate()
            .map(|(place, (node, can))| {
                Member::new(place + 1, node, (!keeps(can)).then_some(longest_lease), Arc::clone(&settings))
            })
            .collect();
        let mut capabilities = Capabilities::basic();
        // Kept by sessions if that is so of so many nodes that no majority is left whose leases run out.
        let leased = abilities.iter().filter(|can| !can.session_kept).count();
        capabilities.session_kept = leased <= abilities.len() / 2;
        capabilities.durable = abilities.iter().all(|can| durable || can.durable);
        // Readers and writers need a majority each, and every two majorities have a node in common, which lets no
        // writer in beside another holder. Sessions keep a place in a queue: with several, all could wait for each
        // other.
        capabilities.shared = abilities.iter().all(|can| can.shared && !can.session_kept);
        capabilities.pipelined = abilities.iter().all(|can| can.pipelined);
        capabilities.announces = abilities.iter().any(|can| can.announces);
        capabilities.in_process = abilities.iter().all(|can| can.in_process);
        let administered = members.iter().filter(|member| member.node().is_administered()).count();
        Ok(Quorum(Arc::new(QuorumShared {
            is_administered: administered > members.len() / 2,
            clock: members.first().map(|member| member.node().clock()).unwrap_or_default(),
            longest: members.iter().any(|member| member.may_forget()).then_some(longest_lease),
            withdrawals: members.iter().map(|_| Arc::default()).collect(),
            members,
            node_timeout,
            capabilities,
        })))
    }
}

impl QuorumShared {
    fn needed(&self) -> usize {
        self.members.len() / 2 + 1
    }

    /// Returns the time that one node may take: so short that a round, and taking it back, end before the engine gives
    /// up.
    fn node_limit(&self, request: &ClaimRequest) -> Duration {
        self.limit_of(request.request_timeout)
    }

    /// Returns the time that one node may take to answer the question that is asked here: so short that there is an
    /// answer before the engine gives up.
    fn question_limit(&self) -> Duration {
        question_limit().map_or(self.node_timeout, |limit| self.limit_of(limit))
    }

    fn limit_of(&self, request_timeout: Duration) -> Duration {
        self.node_timeout.min(request_timeout * 2 / 5)
    }

    /// Makes the request to one node. A claim never waits in a node's queue: with places in several queues, all could
    /// wait for each other.
    fn node_request(&self, request: &ClaimRequest, token: Token) -> ClaimRequest {
        let mut of_node = request.clone();
        of_node.token = token;
        of_node.request_timeout = self.node_limit(request);
        (of_node.recheck, of_node.waits) = (true, false);
        of_node
    }

    fn check_lease(&self, request: &ClaimRequest) -> Result<(), Failure> {
        match self.longest {
            Some(longest) if request.lease > longest => Err(Failure::invalid_config(format!(
                "lease is {:?}; the longest of this quorum is {longest:?}, see `with_longest_lease`",
                request.lease
            ))),
            _ => Ok(()),
        }
    }
}

impl Backend for Quorum {
    type Claim = QuorumClaim;

    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities
    }

    fn clock(&self) -> Clock {
        self.0.clock.clone()
    }

    fn lock_id(&self, key: &Key) -> LockId {
        LockId::of_all(NAME, self.0.members.iter().map(|member| member.node().lock_id(key)))
    }

    fn claim(&self, request: ClaimRequest) -> QuorumClaim {
        QuorumClaim::new(Arc::clone(&self.0), request)
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Holder>, Failure> {
        self.0.holder(key).await
    }

    async fn occupancy(&self, key: &Key) -> Result<Occupancy, Failure> {
        self.0.occupancy(key).await
    }

    /// Announces on all nodes that can, so that an observer is notified by any of them.
    async fn announce(&self, key: &Key) -> Result<(), Failure> {
        let announcing = self.0.members.iter().map(|member| member.node().announce(key));
        let announced = join_all(announcing).await.into_iter().any(|announced| announced.is_ok());
        if announced { Ok(()) } else { Err(Failure::unavailable("no node announced it")) }
    }

    fn announcements(&self, key: &Key) -> Announcements {
        let of_nodes = self.0.members.iter().map(|member| member.node().announcements(key));
        Announcements::new(select_all(of_nodes))
    }

    fn administration(&self) -> Option<&dyn Administration> {
        self.0.is_administered.then_some(&*self.0)
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, Failure> {
        self.0.diagnose().await
    }

    fn nodes(&self) -> Vec<NodeState> {
        self.0.members.iter().map(|member| member.state()).collect()
    }

    async fn close(&self) {
        for member in &self.0.members {
            member.node().close().await;
        }
    }
}

fn configuring(failure: Failure) -> Error {
    Error::new(Operation::Configure, failure).on(NAME)
}

/// The failure of a node, with its number.
fn named(member: &Member, failure: &Failure) -> Error {
    // The kind of the failure stands in front of the whole.
    let (what, kind) = (failure.to_string(), Failure::new(failure.kind(), "").to_string());
    let what = what.strip_prefix(&format!("{kind}: ")).unwrap_or(&what);
    configuring(Failure::new(failure.kind(), member.says(&what)))
}

fn no_answer() -> Failure {
    Failure::unavailable(format!("no answer within {ONE_NODE:?}"))
}

/// Returns the numbers of two nodes that are one, by their own lock ids.
fn same_twice(nodes: &[Node]) -> Option<(usize, usize)> {
    let key = Key::new("k").ok()?;
    let ids: Vec<_> = nodes.iter().map(|node| node.lock_id(&key)).collect();
    let earlier = |(place, id)| ids[..place].iter().position(|of| of == id).map(|one| (one + 1, place + 1));
    ids.iter().enumerate().find_map(earlier)
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Quorum").field(&self.0.members).finish()
    }
}
