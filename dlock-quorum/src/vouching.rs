//! The check before nodes are vouched for: for locks on them, and for locks that may be held where they cannot be seen.
//!
//! ```text
//! standing ── votes ─────────────────────────────────────────────────────────────────▶ nothing to do
//!    │
//!    ├── doubtful ─▶ look ─▶ check ──▶ reserve ─▶ suspend other quorums ─▶ look ─▶ check ─┐
//!    └── suspended ──────────────────▶ reserve ───────────────────────────────────────────┴─▶ mark ─▶ end
//! ```
//!
//! A check that fails ends it with an error. Reservations end in any case; votes that were taken from another quorum
//! are not restored.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::administration::LISTING;
use crate::marks::{MARKING, NodeMemory, NodeSetup, RESERVED, is_mark, named_settings};
use crate::node::Member;
use crate::round::Round;
use crate::{ONE_NODE, QuorumShared, no_answer};
use dlock_core::backend::{Attempt, Host, LockId, NodeClaim, within};
use dlock_core::{Claim, Clock, ErrorKind, Failure, Holder, Key, Timestamp};

/// The time that has to be left of a reservation when marks are written.
const WRITING: Duration = Duration::from_secs(60);
/// The way that is left to an administrator who knows better.
const FORCE: &str = "vouch all the same (`Quorum::force_bootstrap`, `--force`)";
/// The number of locks that an error names.
const NAMED: usize = 3;

/// A lock that stands on nodes of a quorum.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockOnNodes {
    /// Its key.
    pub key: Key,
    /// Its holder, by one of the nodes.
    pub holder: Holder,
    /// The numbers of the nodes that it is on, from 1.
    pub nodes: Vec<usize>,
    /// The numbers of the nodes of the quorum that is to be replaced, without those that are nodes of this quorum too.
    pub nodes_before: Vec<usize>,
}

/// The locks that stand on nodes for which [`Quorum::bootstrap`](crate::Quorum::bootstrap) was to vouch: the
/// [source](std::error::Error::source) of its error of the kind [`ErrorKind::Busy`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QuorumInUse {
    /// The locks, in the order of their keys.
    pub locks: Vec<LockOnNodes>,
}

impl std::error::Error for QuorumInUse {}

impl fmt::Display for QuorumInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, lock) in self.locks.iter().take(NAMED).enumerate() {
            let between = if at > 0 { "; " } else { "" };
            write!(f, "{between}{:?} on ", lock.key.as_str())?;
            let nodes = lock.nodes.iter().map(|number| format!("node {number}"));
            let before = lock.nodes_before.iter().map(|number| format!("node {number} of before"));
            write!(f, "{}, by {}", nodes.chain(before).collect::<Vec<_>>().join(" and "), lock.holder)?;
        }
        match self.locks.len().saturating_sub(NAMED) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

/// The nodes that an operator vouches for: those of one quorum, perhaps in the place of another.
pub(crate) struct Vouching<'a> {
    quorum: &'a QuorumShared,
    before: Option<&'a QuorumShared>,
    nodes: Vec<VouchedNode<'a>>,
}

/// The state of the nodes of the quorum.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// They vote, or need no mark for it.
    Votes,
    /// They would vote, had they not been suspended. They remember all locks of this quorum, which stay as safe as they
    /// are, whichever process holds them.
    Suspended,
    /// Some are of another quorum or of none, or have forgotten what they granted.
    Doubtful,
}

/// A node of the quorum, or of the one before it.
struct VouchedNode<'a> {
    member: &'a Arc<Member>,
    is_ours: bool,
    is_before: bool,
}

/// The answer of a node.
struct Seen {
    /// The place of the node in [`Vouching::nodes`].
    place: usize,
    held: Vec<(Key, Holder)>,
    memory: NodeMemory,
}

impl<'a> Vouching<'a> {
    pub(crate) fn new(quorum: &'a QuorumShared, before: Option<&'a QuorumShared>) -> Result<Self, Failure> {
        let key = Key::new("k")?;
        let ids = |shared: &QuorumShared| -> Vec<LockId> {
            shared.members.iter().map(|member| member.node().lock_id(&key)).collect()
        };
        let (ours, theirs) = (ids(quorum), before.map(ids).unwrap_or_default());
        let mut nodes: Vec<_> = quorum
            .members
            .iter()
            .zip(&ours)
            .map(|(member, id)| VouchedNode { member, is_ours: true, is_before: theirs.contains(id) })
            .collect();
        let others = before.iter().flat_map(|before| &before.members).zip(&theirs);
        nodes.extend(others.filter(|(_, id)| !ours.contains(id)).map(|(member, _)| VouchedNode {
            member,
            is_ours: false,
            is_before: true,
        }));
        let is_renamed = before.is_none_or(|before| before.settings() != quorum.settings());
        if !is_renamed && !nodes.iter().all(|node| node.is_ours && node.is_before) {
            return Err(Failure::invalid_config(
                "the quorum of before has the same name and other members, so that its clients would not be told from \
                 those of this one; give another name (`with_name`, `name=` in a URL)",
            ));
        }
        Ok(Self { quorum, before, nodes })
    }

    /// Gives the votes to the quorum, unless a lock may be held that a majority of it would not know of.
    ///
    /// Other administrators are kept from the nodes meanwhile. A quorum of other members loses its votes before the
    /// nodes are looked at for the last time: a vote counts only when its mark is found after it was given, so that
    /// every lock that can still be granted there is seen then, and none can be granted later.
    pub(crate) async fn set_up(&self) -> Result<Vec<NodeSetup>, Failure> {
        match self.standing().await? {
            Standing::Votes => {
                let kept = |member: &Arc<Member>| match member.may_forget() {
                    true => NodeSetup::Kept,
                    false => NodeSetup::Durable,
                };
                return Ok(self.quorum.members.iter().map(kept).collect());
            }
            Standing::Suspended => {}
            // A first check, before any vote is taken away.
            Standing::Doubtful => self.check(&self.look().await?, false)?,
        }
        let clock = &self.quorum.clock;
        let mut reserved = Reservation::new(clock);
        let done = async {
            reserved.take(&self.nodes).await?;
            // Read again: another administrator may have been at work before the reservation.
            if self.standing().await? == Standing::Doubtful {
                let is_any_suspended = self.suspend_others(&self.look().await?).await?;
                self.check(&self.look().await?, is_any_suspended)?;
            }
            // By this process's clock, which may have been stopped meanwhile: the reservation could be over.
            if clock.now() >= reserved.until {
                let what = "it took so long that another administrator may be at work by now; call it again";
                return Err(Failure::unavailable(what));
            }
            let late = || {
                Failure::unavailable(format!(
                    "nodes took longer than {WRITING:?} to be marked; call it again"
                ))
            };
            within(WRITING, self.quorum.set_up_all()).await.unwrap_or_else(|| Err(late()))
        }
        .await;
        reserved.end().await;
        done
    }

    /// Returns the state of the quorum's own nodes, by their marks.
    async fn standing(&self) -> Result<Standing, Failure> {
        let mut standing = Standing::Votes;
        if self.before.is_some() {
            return Ok(Standing::Doubtful);
        }
        for member in &self.quorum.members {
            let Some(longest) = member.longest else { continue };
            let memory = within(ONE_NODE, member.memory()).await;
            let memory =
                memory.unwrap_or_else(|| Err(no_answer())).map_err(|failure| refused(member, &failure))?;
            let is_ours = memory.settings() == Some(self.quorum.settings()) && !memory.is_mixed;
            // A node that has forgotten locks must not vote again because it was one of the quorum's.
            if !is_ours || memory.reach < longest {
                return Ok(Standing::Doubtful);
            }
            if memory.is_suspended {
                standing = Standing::Suspended;
            }
        }
        Ok(standing)
    }

    /// Asks all nodes for their locks, and then for their marks: these are lost with the locks.
    async fn look(&self) -> Result<Vec<Seen>, Failure> {
        let mut round = Round::new(LISTING, &Host::default());
        for (place, node) in self.nodes.iter().enumerate() {
            let member = Arc::clone(node.member);
            round.ask(place, async move {
                // The marks second: a node that forgets its locks in between has no mark either, and does not count.
                let mut held = member.node().holders().await?;
                held.retain(|(key, _)| !is_mark(key));
                Ok(Seen { place, held, memory: member.memory().await? })
            });
        }
        let mut seen = Vec::new();
        while let Some((place, answer)) = round.next().await {
            match answer {
                Ok(of_node) => seen.push(of_node),
                Err(failure) if self.nodes[place].is_ours => {
                    return Err(refused(self.nodes[place].member, &failure));
                }
                // `check` counts whether enough of the others are seen.
                Err(_) => {}
            }
        }
        if let Some(place) = round.silent().find(|place| self.nodes[*place].is_ours) {
            let silent = Failure::unavailable(format!("no answer within {LISTING:?}"));
            return Err(refused(self.nodes[place].member, &silent));
        }
        Ok(seen)
    }

    /// Checks that nothing is held, as far as the nodes know, and that enough of them know.
    fn check(&self, seen: &[Seen], is_any_suspended: bool) -> Result<(), Failure> {
        let locks = self.locks(seen);
        if !locks.is_empty() {
            let suspended = match is_any_suspended {
                true => {
                    "the quorum of before gives no votes any more, until it is set up again by its own members; "
                }
                false => "",
            };
            let what = format!(
                "locks stand on the nodes, and could be granted a second time; {suspended}wait until they are released \
                 or their leases end, which `dlock quorum change` does while services run, or {FORCE}"
            );
            return Err(Failure::new(ErrorKind::Busy, what).with_source(QuorumInUse { locks }));
        }
        for of in self.quorums(seen) {
            let witnesses = seen.iter().filter(|seen| self.remembers_for(seen, &of)).count();
            // So few others that each majority of them has a node that was seen.
            let needed = of.nodes - of.nodes / 2;
            if witnesses >= needed {
                continue;
            }
            return Err(if of.settings == self.quorum.settings() {
                Failure::unavailable(format!(
                    "{witnesses} of its {} nodes remember their locks, and {needed} have to: what the others forgot \
                     may be held; the nodes vote by themselves when clients have asked them for the longest lease, \
                     {:?}; wait for it, or {FORCE}",
                    of.nodes, of.longest
                ))
            } else {
                Failure::invalid_config(format!(
                    "{} to another quorum ({}); {witnesses} of its nodes can be asked for its locks here, and {needed} \
                     have to, since the others may hold some; use `dlock quorum change` with the URL of that one, or {FORCE}",
                    self.belonging(seen, &of),
                    of.settings.escape_debug(),
                ))
            });
        }
        Ok(())
    }

    fn belonging(&self, seen: &[Seen], of: &QuorumSettings<'_>) -> String {
        let theirs = seen.iter().filter(|seen| seen.memory.settings() == Some(of.settings));
        let nodes: Vec<_> = theirs
            .map(|seen| {
                let node = &self.nodes[seen.place];
                format!("node {}{}", node.member.number(), if node.is_ours { "" } else { " of before" })
            })
            .collect();
        match &*nodes {
            [] => "nodes belong".into(),
            [one] => format!("{one} belongs"),
            _ => format!("{} belong", nodes.join(" and ")),
        }
    }

    /// Returns the locks that are held on any of the nodes.
    fn locks(&self, seen: &[Seen]) -> Vec<LockOnNodes> {
        let mut locks = BTreeMap::<&Key, Vec<LockOnNodes>>::new();
        for Seen { place, held, .. } in seen {
            let node = &self.nodes[*place];
            for (key, holder) in held {
                let of_key = locks.entry(key).or_default();
                let known = of_key.iter().position(|lock| lock.holder.is_of_same_holder(holder));
                let at = known.unwrap_or_else(|| {
                    let (key, mut holder) = (key.clone(), holder.clone());
                    // Fences of single nodes do not identify a hold of the quorum.
                    holder.fence = None;
                    of_key.push(LockOnNodes { key, holder, nodes: Vec::new(), nodes_before: Vec::new() });
                    of_key.len() - 1
                });
                let lock = &mut of_key[at];
                let numbers = if node.is_ours { &mut lock.nodes } else { &mut lock.nodes_before };
                if !numbers.contains(&node.member.number()) {
                    numbers.push(node.member.number());
                    numbers.sort_unstable();
                }
            }
        }
        locks.into_values().flatten().collect()
    }

    /// Returns all quorums whose clients may hold locks: those that the nodes name, and the one that is to be replaced.
    /// The quorum itself is among them only if a node has had its mark for so long that it voted.
    fn quorums<'s>(&'s self, seen: &'s [Seen]) -> Vec<QuorumSettings<'s>> {
        let ours = self.quorum.settings();
        let voted =
            |seen: &Seen, of: &QuorumSettings<'_>| of.settings != ours || seen.memory.reach >= of.longest;
        let named = seen.iter().filter_map(|seen| {
            let of = QuorumSettings::parse(seen.memory.settings()?);
            voted(seen, &of).then_some(of)
        });
        let before = self.before.map(|before| QuorumSettings::parse(before.settings()));
        let mut all: Vec<_> = before.into_iter().chain(named).collect();
        all.sort_unstable_by_key(|of| of.settings);
        all.dedup_by_key(|of| of.settings);
        all
    }

    fn is_of_before(&self, of: &QuorumSettings<'_>) -> bool {
        self.before.is_some_and(|before| of.settings == before.settings())
    }

    /// Is `true` if a node has all votes that it gave to clients of that quorum, and is one of its members. A durable
    /// node does not count for a quorum before, whose clients it goes on giving votes to.
    fn remembers_for(&self, seen: &Seen, of: &QuorumSettings<'_>) -> bool {
        let node = &self.nodes[seen.place];
        let is_member = seen.memory.settings() == Some(of.settings)
            || (node.is_ours && of.settings == self.quorum.settings())
            || (node.is_before && self.is_of_before(of) && node.member.may_forget());
        is_member && seen.memory.reach >= of.longest
    }

    /// Takes away the votes that nodes give to clients of other quorums. Returns whether there were any.
    async fn suspend_others(&self, seen: &[Seen]) -> Result<bool, Failure> {
        let mut is_any = false;
        let ours = self.quorum.settings();
        let is_other = |memory: &NodeMemory| {
            memory.is_open && (memory.is_mixed || memory.settings().is_some_and(|of| of != ours))
        };
        for Seen { place, .. } in seen.iter().filter(|seen| is_other(&seen.memory)) {
            let member = self.nodes[*place].member;
            let suspended = within(ONE_NODE, member.suspend()).await;
            suspended.unwrap_or_else(|| Err(no_answer())).map_err(|failure| refused(member, &failure))?;
            is_any = true;
        }
        Ok(is_any)
    }
}

/// The settings of a quorum, by a mark.
struct QuorumSettings<'s> {
    settings: &'s str,
    nodes: usize,
    longest: Duration,
}

impl<'s> QuorumSettings<'s> {
    /// Parses the settings. Text that no version wrote counts as more nodes than there can be.
    fn parse(settings: &'s str) -> Self {
        let field =
            |name: &str| settings.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
        let nodes = field("nodes").and_then(|count| count.parse().ok()).unwrap_or(usize::MAX);
        let millis = field("longest").and_then(|longest| longest.strip_suffix("ms")?.parse().ok());
        Self { settings, nodes, longest: Duration::from_millis(millis.unwrap_or(u64::MAX)) }
    }
}

impl QuorumShared {
    /// Returns the settings of this quorum, as its marks have them.
    pub(crate) fn settings(&self) -> &str {
        self.members.first().map_or("", |member| named_settings(&member.settings))
    }

    /// Sees to it that all nodes vote in this quorum, whatever is held.
    pub(crate) async fn set_up_all(&self) -> Result<Vec<NodeSetup>, Failure> {
        let mut done = Vec::new();
        for member in &self.members {
            let set_up = within(ONE_NODE, member.bootstrap()).await;
            let set_up = set_up.unwrap_or_else(|| Err(no_answer()));
            done.push(set_up.map_err(|failure| Failure::new(failure.kind(), member.says(&failure)))?);
        }
        Ok(done)
    }
}

/// The nodes that one administrator has for itself.
struct Reservation {
    claims: Vec<NodeClaim>,
    /// The time from which on marks may not be written any more.
    until: Timestamp,
}

impl Reservation {
    fn new(clock: &Clock) -> Self {
        Self { claims: Vec::new(), until: clock.now() + (RESERVED - WRITING) }
    }

    /// Takes all nodes that have marks, in one order for all administrators. Nodes of the quorum before that do not
    /// answer are left out.
    async fn take(&mut self, nodes: &[VouchedNode<'_>]) -> Result<(), Failure> {
        let key = Key::new("k")?;
        let mut nodes: Vec<_> = nodes.iter().collect();
        // In one order: of two administrators at the same moment, one gets all nodes.
        nodes.sort_by_key(|node| node.member.node().lock_id(&key));
        for VouchedNode { member, is_ours, .. } in nodes {
            let Some(claim) = member.reservation()? else { continue };
            // Kept before it is attempted: a grant whose answer is lost is withdrawn too.
            self.claims.push(claim);
            let Some(claim) = self.claims.last_mut() else { continue };
            let answer = within(MARKING, claim.attempt()).await;
            match answer.unwrap_or_else(|| Err(no_answer())) {
                Ok(Attempt::Granted(_)) => {}
                Ok(Attempt::Busy(busy)) => {
                    let who = busy.holder.map(|holder| format!(" ({holder})")).unwrap_or_default();
                    let what = format!(
                        "another administrator sets it up{who}; look what became of it, and call again"
                    );
                    return Err(Failure::new(ErrorKind::Busy, member.says(&what)));
                }
                Err(failure) if *is_ours => return Err(refused(member, &failure)),
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Leaves the nodes to others. A withdrawal that is not confirmed ends with its lease.
    async fn end(self) {
        let withdraw = async |mut claim: NodeClaim| {
            let _ = within(MARKING, claim.withdraw()).await;
        };
        futures_util::future::join_all(self.claims.into_iter().map(withdraw)).await;
    }
}

/// Returns the failure of a node that has to answer and did not.
fn refused(member: &Member, failure: &Failure) -> Failure {
    let what = "whether a lock is held on it cannot be seen, and nothing was set up; bring it back, or";
    Failure::new(failure.kind(), format!("{}; {what} {FORCE}", member.says(failure)))
}
