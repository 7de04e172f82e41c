//! The marks on nodes that may forget: since when a node remembers, and to which quorum it belongs.
//!
//! ```text
//! marks of a node              votes                                  then
//! none                         no                                     a client leaves one, in the background
//! younger than the longest     no; when it is as old as that          nothing
//! lease
//! old enough                   yes                                    the other mark is left in its second half
//! of a clock that was ahead    no                                     replaced by a client where there is no other
//! of other settings            no; every client is refused            `bootstrap`, or the clients are corrected
//! suspended                    no; every client is refused            `bootstrap`
//! ```
//!
//! A mark is a lock with a long lease that is never released. It is lost with the node's other locks, so that a node
//! that has forgotten some has no mark.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use dlock_core::backend::{Attempt, ClaimRequest, Finding, Host, NodeClaim, within};
use dlock_core::{Claim, ErrorKind, Failure, Key, MAX_LEASE, Node};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::node::Member;

/// The lease of a mark. The marks of two names take turns, so that there is always one.
const MARK: Duration = Duration::from_secs(30 * 24 * 3_600);
/// The amount by which the rest of a mark's lease may exceed that, by rounding.
const ROUNDING: Duration = Duration::from_secs(1);
/// The pause before the other mark is left again, when one is old.
const TENDING: Duration = Duration::from_secs(600);
/// The bound of a request about a mark.
pub(crate) const MARKING: Duration = Duration::from_secs(5);
/// The beginning of the label of a mark.
const LABEL: &str = "dlock quorum";
/// The beginning of the label of marks that let no client have a vote. The settings of the node's quorum follow.
const SUSPENDED: &str = "dlock quorum suspended";
/// The label of an administrator at work.
const ADMINISTRATOR: &str = "dlock quorum bootstrap";
/// The time for which an administrator has a node for itself.
pub(crate) const RESERVED: Duration = Duration::from_secs(180);
/// The number of times that marks are replaced while clients leave theirs.
const REPLACING: usize = 8;

static MARKS: LazyLock<[Option<Key>; 2]> =
    LazyLock::new(|| ["dlock-quorum-memory-1", "dlock-quorum-memory-2"].map(|name| Key::new(name).ok()));

/// The lock of an administrator that sets nodes up.
static SETUP: LazyLock<Option<Key>> = LazyLock::new(|| Key::new("dlock-quorum-bootstrap").ok());

/// Is `true` for a key that a quorum uses itself, and that is no user's lock.
pub(crate) fn is_mark(key: &Key) -> bool {
    MARKS.iter().flatten().chain(SETUP.iter()).any(|mark| mark == key)
}

/// The change that [`Quorum::bootstrap`](crate::Quorum::bootstrap) made on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeSetup {
    /// Nothing: it forgets no lock, and has no mark.
    Durable,
    /// Nothing: it votes already.
    Kept,
    /// It had no mark, and has one now.
    Marked,
    /// It had a mark by which it would not have voted, and has another one now: of a client that had tried before, of a
    /// clock that was ahead, or of a quorum of other settings.
    Repaired,
}

/// The mark that [`Quorum::marks`](crate::Quorum::marks) found on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeMark {
    /// It forgets no lock, and has no mark.
    Durable,
    /// There is none: it is new, or has forgotten its locks.
    Missing,
    /// It votes.
    Votes,
    /// It has remembered for less than the longest lease, and votes after this time.
    VotesIn(Duration),
    /// Its clock was ahead when the mark was left.
    Ahead,
    /// It belongs to a quorum with these settings.
    Foreign(String),
    /// It was [suspended](crate::Quorum::suspend).
    Suspended,
}

impl NodeMark {
    /// Returns whether the node votes.
    #[must_use]
    pub const fn votes(&self) -> bool {
        matches!(self, Self::Durable | Self::Votes)
    }

    pub(crate) fn finding(&self) -> Finding {
        let advice = match self {
            Self::Durable | Self::Votes => return Finding::fine("vote", self.to_string()),
            Self::Missing | Self::VotesIn(_) => "it votes by itself in time: clients leave what is missing",
            Self::Ahead => "correct its clock, then `dlock quorum bootstrap` while no service runs",
            Self::Suspended => "let `dlock quorum change` come to its end, or run it again",
            Self::Foreign(_) => {
                "correct the URL, so that all processes have the same nodes and longest lease, or change them with `dlock \
                 quorum change`"
            }
        };
        Finding::warning("vote", self.to_string(), advice)
    }
}

impl fmt::Display for NodeMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Durable => f.write_str("votes; it forgets no lock, and has no mark"),
            Self::Missing => f.write_str(
                "does not vote: it is new, or has forgotten its locks; the first client leaves a mark",
            ),
            Self::Votes => f.write_str("votes"),
            Self::VotesIn(left) => write!(f, "does not vote yet; it does in {left:.1?}"),
            Self::Ahead => f.write_str("does not vote: its clock was ahead when it was set up"),
            Self::Foreign(theirs) => {
                write!(f, "does not vote here: it belongs to another quorum ({})", theirs.escape_debug())
            }
            Self::Suspended => f.write_str("does not vote: its members are being changed"),
        }
    }
}

/// Returns the settings that all clients of a quorum have to agree on, as its marks have them.
pub(crate) fn settings(nodes: &[Node], name: Option<&str>, longest: Duration) -> Arc<str> {
    let mut digest = Sha256::new();
    match (name, Key::new("k")) {
        (None, Ok(key)) => {
            let mut members: Vec<_> = nodes.iter().map(|node| format!("{:?}", node.lock_id(&key))).collect();
            // Processes may list the nodes in any order.
            members.sort();
            members.iter().for_each(|member| digest.update(format!("{member}\0")));
        }
        (name, _) => digest.update(name.unwrap_or_default()),
    }
    let members: String = digest.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("{LABEL} nodes={} longest={}ms members={members}", nodes.len(), longest.as_millis()).into()
}

/// Returns the settings in the label of a mark: nothing where the node was suspended without having been a quorum's.
pub(crate) fn named_settings(label: &str) -> &str {
    label.strip_prefix(SUSPENDED).unwrap_or_else(|| label.trim_start_matches(LABEL)).trim()
}

/// The finding in the place of a mark.
enum Found {
    Nothing,
    /// A mark that was left this long ago.
    Aged(Duration),
    /// It lasts longer than any mark: the node's clock was ahead when it was left.
    OfTheFuture,
    /// A mark of clients with other settings, which are those in the label, and its age; `None` by a clock that was
    /// ahead.
    Foreign(String, Option<Duration>),
}

/// The memory of a node, by all of its marks.
#[derive(Debug, Default)]
pub(crate) struct NodeMemory {
    /// The label of the oldest mark; `None` without one.
    label: Option<String>,
    /// The time for which it has certainly forgotten nothing.
    pub(crate) reach: Duration,
    /// Is `true` if a mark keeps all clients from its vote.
    pub(crate) is_suspended: bool,
    /// Is `true` if a mark lets clients have its vote, now or when it is old enough.
    pub(crate) is_open: bool,
    /// Is `true` if its marks are of several quorums, or one is of a clock that was ahead.
    pub(crate) is_mixed: bool,
}

impl NodeMemory {
    /// Returns the settings of its quorum, or of the quorum that it belonged to until it was suspended.
    pub(crate) fn settings(&self) -> Option<&str> {
        self.label.as_deref().map(named_settings).filter(|settings| !settings.is_empty())
    }

    fn add(&mut self, label: String, reach: Option<Duration>) {
        let is_suspended = label.starts_with(SUSPENDED);
        self.is_suspended |= is_suspended;
        self.is_open |= !is_suspended;
        self.is_mixed |= reach.is_none()
            || self.label.as_deref().is_some_and(|other| named_settings(other) != named_settings(&label));
        // The oldest mark counts: what it proves is true of the node whatever the others prove.
        if self.label.is_none() || reach > Some(self.reach) {
            (self.label, self.reach) = (Some(label), reach.unwrap_or_default());
        }
    }
}

impl Member {
    /// Checks that it has forgotten nothing for so long that it may vote. Otherwise the failure has the time that is
    /// missing, and a mark is left from which its memory is counted.
    ///
    /// A mark is a lock with a long lease that is never released: its age is what is missing of the lease, measured by
    /// the node's own clock.
    pub(crate) async fn remembers(self: &Arc<Self>, host: &Host) -> Result<(), Failure> {
        let Some(longest) = self.longest else { return Ok(()) };
        // The mark that counted last is looked at first, so that a node that votes is asked once.
        let first = self.mark.load(Ordering::Relaxed);
        let (mut oldest, mut of_the_future) = (None, false);
        for mark in [first, 1 - first] {
            match self.look(mark).await? {
                Found::Nothing => {}
                Found::OfTheFuture => of_the_future = true,
                Found::Foreign(theirs, _) => return Err(self.disagreement(&theirs)),
                Found::Aged(age) if age >= longest => {
                    self.mark.store(mark, Ordering::Relaxed);
                    // The other mark is left in time, and takes over before this one ends.
                    if age > MARK / 2 {
                        self.tend(1 - mark, host)?;
                    }
                    return Ok(());
                }
                Found::Aged(age) => oldest = oldest.max(Some(age)),
            }
        }
        let missing = match oldest {
            // A young mark is left as it is: a new one would begin to count anew.
            Some(age) => longest - age,
            None => {
                self.leave_mark(first, of_the_future, host)?;
                longest
            }
        };
        Err(Failure::unavailable(format!(
            "it is new or has forgotten its locks, and does not vote for another {missing:.1?}"
        )))
    }

    /// Checks that its marks are of this quorum, as far as is known. Asks again if they were of another.
    pub(crate) async fn agrees(&self, limit: Duration) -> Result<(), Failure> {
        if !self.disagrees.load(Ordering::Acquire) {
            return Ok(());
        }
        for mark in [0, 1] {
            let looked = within(limit, self.look(mark)).await;
            let found =
                looked.unwrap_or_else(|| Err(Failure::unknown(format!("no answer within {limit:?}"))));
            if let Found::Foreign(theirs, _) = found? {
                return Err(self.disagreement(&theirs));
            }
        }
        self.disagrees.store(false, Ordering::Release);
        Ok(())
    }

    /// Returns `true` if its marks were found to be of another quorum.
    pub(crate) fn is_foreign(&self) -> bool {
        self.disagrees.load(Ordering::Acquire)
    }

    fn disagreement(&self, theirs: &str) -> Failure {
        self.disagrees.store(true, Ordering::Release);
        Failure::invalid_config(format!(
            "node {} belongs to a quorum of other members or another longest lease ({}; here {}); configure all \
             processes alike (`with_name` where they reach its nodes by different addresses), or change them with \
             `dlock quorum change`",
            self.number(),
            theirs.trim_start_matches(LABEL).trim().escape_debug(),
            named_settings(&self.settings),
        ))
    }

    async fn look(&self, mark: usize) -> Result<Found, Failure> {
        let Some(key) = &MARKS[mark] else { return Ok(Found::Nothing) };
        let Some(holder) = self.node().inspect(key).await? else { return Ok(Found::Nothing) };
        // Marks of earlier versions have no settings.
        let foreign =
            |label: &String| label.starts_with(LABEL) && label != LABEL && **label != *self.settings;
        let age =
            holder.expires_in.filter(|left| *left <= MARK + ROUNDING).map(|left| MARK.saturating_sub(left));
        if let Some(theirs) = holder.label.filter(foreign) {
            return Ok(Found::Foreign(theirs, age));
        }
        match holder.expires_in {
            Some(_) => Ok(age.map_or(Found::OfTheFuture, Found::Aged)),
            None => Err(Failure::new(
                ErrorKind::Unsupported,
                "it does not tell how long a lease still runs, so that its memory cannot be checked; use nodes that \
                 are durable, and say so with `with_durable_nodes`",
            )),
        }
    }

    /// Leaves the other mark, if that was not done lately.
    fn tend(self: &Arc<Self>, mark: usize, host: &Host) -> Result<(), Failure> {
        {
            let mut tended = self.tended.lock();
            if tended.is_some_and(|last| last.elapsed() < TENDING) {
                return Ok(());
            }
            *tended = Some(Instant::now());
        }
        self.leave_mark(mark, false, host)
    }

    /// Leaves a mark, in the background; in the place of those that are there, if they are to be `replaced`.
    fn leave_mark(self: &Arc<Self>, mark: usize, replaced: bool, host: &Host) -> Result<(), Failure> {
        // One at a time: clients that ask at the same moment would all leave one.
        if self.marking.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let member = Arc::clone(self);
        let marking = async move {
            // If this fails, the next check finds no mark, or the old one, and tries again.
            if !replaced || member.unmark([0, 1]).await.is_ok() {
                let _ = member.mark(mark, MARK).await;
            }
            member.marking.store(false, Ordering::Release);
        };
        host.spawn(marking).inspect_err(|_| self.marking.store(false, Ordering::Release))
    }

    async fn mark(&self, mark: usize, lease: Duration) -> Result<(), Failure> {
        self.mark_as(mark, lease, &self.settings).await
    }

    async fn mark_as(&self, mark: usize, lease: Duration, label: &str) -> Result<(), Failure> {
        let Some(key) = MARKS[mark].clone() else { return Ok(()) };
        let request = ClaimRequest::of_backend(key, lease, MARKING, label)?;
        // It is never released. If it is busy, another client has left it.
        let mut claim = self.node().claim(request);
        match within(MARKING, claim.attempt()).await {
            Some(Ok(Attempt::Granted(_) | Attempt::Busy(_))) => Ok(()),
            Some(Err(failure)) => Err(failure),
            None => Err(Failure::unknown(format!("no answer within {MARKING:?}"))),
        }
    }

    async fn unmark(&self, marks: impl IntoIterator<Item = usize>) -> Result<(), Failure> {
        for key in marks.into_iter().filter_map(|mark| MARKS[mark].as_ref()) {
            match within(MARKING, self.node().force_release(key.clone(), None)).await {
                Some(answer) => _ = answer?,
                None => return Err(Failure::unknown(format!("no answer within {MARKING:?}"))),
            }
        }
        Ok(())
    }

    /// Returns the mark that counts.
    pub(crate) async fn read_marks(&self) -> Result<NodeMark, Failure> {
        let Some(longest) = self.longest else { return Ok(NodeMark::Durable) };
        let mut best = NodeMark::Missing;
        for mark in [0, 1] {
            match self.look(mark).await? {
                Found::Nothing => {}
                Found::Foreign(label, _) if label.starts_with(SUSPENDED) => return Ok(NodeMark::Suspended),
                Found::Foreign(label, _) => return Ok(NodeMark::Foreign(named_settings(&label).to_owned())),
                Found::Aged(age) if age >= longest => best = NodeMark::Votes,
                Found::Aged(age) if best != NodeMark::Votes => {
                    let left = longest - age;
                    best = match best {
                        NodeMark::VotesIn(other) => NodeMark::VotesIn(other.min(left)),
                        _ => NodeMark::VotesIn(left),
                    };
                }
                Found::Aged(_) => {}
                Found::OfTheFuture if best == NodeMark::Missing => best = NodeMark::Ahead,
                Found::OfTheFuture => {}
            }
        }
        Ok(best)
    }

    /// Returns what its marks prove together.
    pub(crate) async fn memory(&self) -> Result<NodeMemory, Failure> {
        if self.longest.is_none() {
            return Ok(NodeMemory { reach: Duration::MAX, ..NodeMemory::default() });
        }
        let mut memory = NodeMemory::default();
        for mark in [0, 1] {
            match self.look(mark).await? {
                Found::Nothing => {}
                Found::Aged(age) => memory.add(self.settings.to_string(), Some(age)),
                Found::OfTheFuture => memory.add(self.settings.to_string(), None),
                Found::Foreign(label, age) => memory.add(label, age),
            }
        }
        Ok(memory)
    }

    /// Makes a claim on the node's lock for administrators, to be attempted; `None` where it has no marks.
    pub(crate) fn reservation(&self) -> Result<Option<NodeClaim>, Failure> {
        let key = SETUP.clone().filter(|_| self.may_forget());
        let claim =
            |key| Ok(self.node().claim(ClaimRequest::of_backend(key, RESERVED, MARKING, ADMINISTRATOR)?));
        key.map(claim).transpose()
    }

    /// Lets no client have its vote until it is vouched for. Its marks go on naming its quorum, and the time since
    /// which it remembers.
    pub(crate) async fn suspend(&self) -> Result<(), Failure> {
        if self.longest.is_none() {
            return Err(Failure::invalid_config(
                "it is durable and has no marks, so that clients cannot be kept from it; stop them instead",
            ));
        }
        let memory = self.memory().await?;
        let label = format!("{SUSPENDED} {}", memory.settings().unwrap_or_default());
        // Its memory is carried over up to the longest lease that there can be: the more is carried over, the sooner
        // the mark ends.
        let lease = MARK - memory.reach.min(MAX_LEASE);
        for _ in 0..REPLACING {
            let mut changed = false;
            for mark in [0, 1] {
                if !matches!(self.look(mark).await?, Found::Foreign(label, _) if label.starts_with(SUSPENDED))
                {
                    changed = true;
                    self.unmark([mark]).await?;
                    self.mark_as(mark, lease, label.trim_end()).await?;
                }
            }
            // A client may have left another mark between the look and the change.
            if !changed {
                return Ok(());
            }
        }
        Err(Failure::unavailable("clients leave their marks at the same moment; call it again"))
    }

    /// Vouches that no lock is held on this node: sees to it that it has a mark that counts as old enough, and none of
    /// another quorum.
    pub(crate) async fn bootstrap(&self) -> Result<NodeSetup, Failure> {
        let Some(longest) = self.longest else { return Ok(NodeSetup::Durable) };
        let (mut votes, mut young, mut wrong) = (false, Vec::new(), Vec::new());
        for mark in [0, 1] {
            match self.look(mark).await? {
                Found::Nothing => {}
                Found::Aged(age) if age >= longest => votes = true,
                Found::Aged(_) => young.push(mark),
                Found::OfTheFuture | Found::Foreign(..) => wrong.push(mark),
            }
        }
        if votes && wrong.is_empty() {
            return Ok(NodeSetup::Kept);
        }
        let had_none = !votes && young.is_empty() && wrong.is_empty();
        // The wrong marks go first: with one of them there, clients are refused whatever the other one is.
        self.unmark(wrong).await?;
        if !votes {
            self.unmark(young).await?;
            self.mark(0, MARK.saturating_sub(longest)).await?;
            // A client may have left a young mark between the two requests, in which case this one was not granted.
            if !matches!(self.look(0).await?, Found::Aged(age) if age >= longest) {
                return Err(Failure::unavailable(
                    "somebody else left a mark at the same moment; call it again",
                ));
            }
        }
        Ok(if had_none { NodeSetup::Marked } else { NodeSetup::Repaired })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Quorum;
    use dlock_core::{Locks, ManualClock, Memory};

    #[tokio::test]
    async fn a_mark_of_the_future_is_replaced_and_keeps_its_node_out_no_longer_than_none() {
        let clock = ManualClock::running();
        let (hour, longest) = (Duration::from_secs(3_600), Duration::from_secs(60));
        for vouched in [true, false] {
            let node = Memory::with_clock(clock.clock());
            let nodes = [Node::from(node.clone())];
            let ahead =
                Member::new(1, Node::from(node.clone()), Some(longest), settings(&nodes, None, longest));
            ahead.mark(0, MARK + hour).await.unwrap();
            let quorum = Quorum::new([node]).unwrap();
            if vouched {
                assert_eq!(quorum.bootstrap().await.unwrap(), [NodeSetup::Repaired]);
            }
            let locks = Locks::new(quorum);
            if !vouched {
                locks.lock("k").try_acquire().await.unwrap_err();
                while !matches!(ahead.look(0).await.unwrap(), Found::Aged(_)) {
                    tokio::task::yield_now().await;
                }
                clock.advance(longest);
            }
            drop(locks.lock("k").try_acquire().await.unwrap().expect("it has remembered for long enough"));
        }
    }
}
