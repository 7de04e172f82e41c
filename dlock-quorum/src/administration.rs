//! The holders of locks, and taking a lock away: by what a majority answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Administration, BoxedFuture, Finding, Host, Occupancy, boxed};
use dlock_core::{ErrorKind, Failure, Forced, Holder, Key};
use tokio::time::Instant;

use crate::QuorumShared;
use crate::marks::is_mark;
use crate::node::Member;
use crate::round::Round;
use crate::votes::too_few;

/// The bound of the lists of all nodes.
pub(crate) const LISTING: Duration = Duration::from_secs(25);
/// The time that a node may take to be connected to.
const CONNECTING: Duration = Duration::from_secs(5);
/// The time that a node may take to look at itself.
const DIAGNOSIS: Duration = Duration::from_secs(3);

impl Administration for QuorumShared {
    fn holders(&self) -> BoxedFuture<'_, Result<Vec<(Key, Holder)>, Failure>> {
        boxed(self.list())
    }

    fn force_release(&self, key: Key, seen: Option<Vec<Holder>>) -> BoxedFuture<'_, Result<Forced, Failure>> {
        boxed(async move {
            match seen {
                Some(seen) => self.force_of(&key, &seen).await,
                None if self.force(&key).await? => Ok(Forced::Released),
                None => Ok(Forced::Free),
            }
        })
    }
}

impl QuorumShared {
    /// Returns one of the holders on a majority.
    pub(crate) async fn holder(&self, key: &Key) -> Result<Option<Holder>, Failure> {
        if self.capabilities.shared {
            return Ok(self.all_who_hold(key, false, |_| true).await?.holders.into_iter().next());
        }
        let mut round = Round::new(self.question_limit(), &Host::default());
        for (place, member) in self.members.iter().enumerate() {
            let (member, key) = (Arc::clone(member), key.clone());
            round.ask(place, async move { member.node().inspect(&key).await });
        }
        let mut holders = Vec::new();
        let mut count = AnswerCount::new(self);
        while let Some((place, answer)) = round.next().await {
            holders.extend(count.add(place, answer).flatten().map(|holder| (place, holder)));
            if count.settles(&holders) {
                return Ok(elected(&holders, count.needed).into_iter().next());
            }
        }
        Err(count.too_few(&round))
    }

    /// Returns all holders on a majority. Every node is waited for within its time, so that a release by force of those
    /// that were seen leaves no vote behind.
    pub(crate) async fn occupancy(&self, key: &Key) -> Result<Occupancy, Failure> {
        self.all_who_hold(key, true, |_| true).await
    }

    /// Returns all holders on a majority that are `meant`.
    async fn all_who_hold(
        &self,
        key: &Key,
        on_every_node: bool,
        meant: impl Fn(&Holder) -> bool,
    ) -> Result<Occupancy, Failure> {
        let mut round = Round::new(self.question_limit(), &Host::default());
        for (place, member) in self.members.iter().enumerate() {
            let (member, key) = (Arc::clone(member), key.clone());
            round.ask(place, async move { member.node().occupancy(&key).await });
        }
        let mut holders = Vec::new();
        let mut count = AnswerCount::new(self);
        while let Some((place, answer)) = round.next().await {
            let held = count.add(place, answer).into_iter().flat_map(|found| found.holders).filter(&meant);
            holders.extend(held.map(|holder| (place, holder)));
            if !on_every_node && count.settles(&holders) {
                break;
            }
        }
        if count.settles(&holders) {
            return Ok(Occupancy::new(None, elected(&holders, count.needed)));
        }
        Err(count.too_few(&round))
    }

    /// Returns all locks that are held on a majority.
    async fn list(&self) -> Result<Vec<(Key, Holder)>, Failure> {
        let mut round = Round::new(LISTING, &Host::default());
        for (place, member) in self.members.iter().enumerate() {
            let member = Arc::clone(member);
            round.ask(place, async move { member.node().holders().await });
        }
        let mut listed = BTreeMap::<Key, Vec<(usize, Holder)>>::new();
        let mut count = AnswerCount::new(self);
        while let Some((place, answer)) = round.next().await {
            for (key, holder) in count.add(place, answer).into_iter().flatten() {
                if !is_mark(&key) {
                    listed.entry(key).or_default().push((place, holder));
                }
            }
            if count.settles(&[]) && listed.values().all(|holders| count.settles(holders)) {
                let of_key = |(key, all): (Key, Vec<_>)| {
                    elected(&all, count.needed).into_iter().map(move |holder| (key.clone(), holder))
                };
                return Ok(listed.into_iter().flat_map(of_key).collect());
            }
        }
        Err(count.too_few(&round))
    }

    /// Returns all locks that are held on any node, if a majority answers.
    pub(crate) async fn list_of_any(&self) -> Result<Vec<(Key, Holder)>, Failure> {
        let mut round = Round::new(LISTING, &Host::default());
        for (place, member) in self.members.iter().enumerate() {
            let member = Arc::clone(member);
            round.ask(place, async move { member.node().holders().await });
        }
        let mut listed = BTreeMap::<Key, Holder>::new();
        let mut count = AnswerCount::new(self);
        while let Some((place, answer)) = round.next().await {
            let held = count.add(place, answer).into_iter().flatten();
            listed.extend(held.filter(|(key, _)| !is_mark(key)));
        }
        if count.answered < count.needed {
            return Err(count.too_few(&round));
        }
        Ok(listed.into_iter().collect())
    }

    /// Waits for a sign of life of a majority.
    pub(crate) async fn connect(&self) -> Result<(), Failure> {
        let mut round = Round::new(CONNECTING, &Host::default());
        for (place, member) in self.members.iter().enumerate() {
            let member = Arc::clone(member);
            round.ask(place, async move { member.node().ping().await });
        }
        let mut count = AnswerCount::new(self);
        while let Some((place, answer)) = round.next().await {
            let _ = count.add(place, answer);
            if count.answered >= count.needed {
                return Ok(());
            }
        }
        Err(count.too_few(&round))
    }

    /// Returns the findings of each node; a node that does not answer is a finding.
    pub(crate) async fn diagnose(&self) -> Result<Vec<Finding>, Failure> {
        let mut round = Round::new(DIAGNOSIS, &Host::default());
        for (place, member) in self.members.iter().enumerate() {
            let member = Arc::clone(member);
            round.ask(place, async move {
                member.node().ping().await?;
                Ok((member.node().diagnose().await?, member.read_marks().await))
            });
        }
        let (mut findings, mut voting) = (Vec::new(), 0);
        while let Some((place, answer)) = round.next().await {
            let member = &self.members[place];
            match answer {
                Ok((mut found, mark)) => {
                    found.push(match mark {
                        Ok(mark) => {
                            voting += usize::from(mark.votes());
                            mark.finding()
                        }
                        Err(failure) => {
                            let advice =
                                "it cannot be told whether the node votes: see what it says of itself";
                            Finding::warning("vote", failure.to_string(), advice)
                        }
                    });
                    findings.extend(found.into_iter().map(|mut finding| {
                        finding.found = member.says(&finding.found);
                        finding
                    }));
                }
                Err(failure) => findings.push(unreachable(member, &failure)),
            }
        }
        let silent = Failure::unknown("no answer in time");
        findings.extend(round.silent().map(|place| unreachable(&self.members[place], &silent)));
        let votes = format!("{voting} of {} nodes vote, and {} have to", self.members.len(), self.needed());
        findings.push(if voting >= self.needed() {
            Finding::fine("votes", votes)
        } else {
            let advice = "no lock is granted: bring nodes back, or wait until they have remembered for the longest \
                          lease; where all are new and no service runs, `dlock quorum bootstrap`";
            Finding::danger("votes", votes, advice)
        });
        Ok(findings)
    }

    /// Frees it on all nodes that answer, which are a majority. Returns `true` if it can have been held.
    async fn force(&self, key: &Key) -> Result<bool, Failure> {
        let since = Instant::now();
        match self.occupancy(key).await {
            // Nodes answer one after the other. A holder that leaves by itself meanwhile is followed by another one,
            // which has not been seen and keeps its votes.
            Ok(before) if !before.holders.is_empty() => {
                Ok(self.force_of(key, &before.holders).await? != Forced::Free)
            }
            before => {
                let held = self.force_all(key).await?;
                // A holder, which is not known, may get its votes anew on nodes that were freed first.
                if held && before.is_err() && self.is_kept(key, None, since).await? {
                    return Err(kept());
                }
                Ok(held)
            }
        }
    }

    /// Frees it on every node, whoever has its vote.
    async fn force_all(&self, key: &Key) -> Result<bool, Failure> {
        let mut round = Round::new(self.question_limit(), &Host::default());
        for (place, member) in self.members.iter().enumerate() {
            let (member, key) = (Arc::clone(member), key.clone());
            round.ask(place, async move { member.node().force_release(key, None).await });
        }
        let mut freed = 0;
        let mut count = AnswerCount::new(self);
        while let Some((place, answer)) = round.next().await {
            freed += usize::from(count.add(place, answer) == Some(Forced::Released));
        }
        if count.answered < count.needed {
            return Err(too_few_forced(freed, count, &round));
        }
        // Fewer were no majority: votes of a claim that was being withdrawn, or of a hold that was lost.
        Ok(freed > 0 && freed + count.unanswered() >= count.needed)
    }

    /// Frees it where each node finds no holder but those whom it named, and again where one of them has kept it.
    async fn force_of(&self, key: &Key, seen: &[Holder]) -> Result<Forced, Failure> {
        let since = Instant::now();
        let forced = self.force_once(key, seen).await?;
        if forced != Forced::Released || !self.is_kept(key, Some(seen), since).await? {
            return Ok(forced);
        }
        // Votes that the holder got since may be those of a later grant, and stay.
        let _ = self.force_once(key, seen).await.map_err(|failure| kept().with_source(failure))?;
        if self.is_kept(key, Some(seen), since).await? { Err(kept()) } else { Ok(Forced::Released) }
    }

    /// Returns `true` if one of the holders of the time when the nodes began to free it, `since`, has a majority all
    /// the same; where these are not known, if any has. While one node frees it after the other, a holder that still
    /// has a majority asks for the votes that it misses, at its renewals. If there was no time for a renewal, a holder
    /// that is found was granted it anew.
    async fn is_kept(&self, key: &Key, before: Option<&[Holder]>, since: Instant) -> Result<bool, Failure> {
        let left = |holder: &Holder| holder.of_nodes().iter().map(|(_, of)| of.expires_in).max().flatten();
        let can_renew = |holder: &&Holder| left(holder).is_none_or(|left| since.elapsed() >= left / 4);
        let before = before.map(|before| before.iter().filter(can_renew).collect::<Vec<_>>());
        if before.as_ref().is_some_and(Vec::is_empty) {
            return Ok(false);
        }
        let is_meant = |now: &Holder| {
            before.as_ref().is_none_or(|before| before.iter().any(|of| of.is_of_same_holder(now)))
        };
        let now = self.all_who_hold(key, false, is_meant).await;
        now.map(|now| !now.holders.is_empty()).map_err(|failure| kept().with_source(failure))
    }

    /// Frees it on all nodes that answer, which are a majority, and where each finds no holder but those whom it named.
    async fn force_once(&self, key: &Key, seen: &[Holder]) -> Result<Forced, Failure> {
        let mut round = Round::new(self.question_limit(), &Host::default());
        for (place, member) in self.members.iter().enumerate() {
            let named = seen.iter().flat_map(|holder| holder.of_nodes().iter());
            let named: Vec<Holder> =
                named.filter(|(at, _)| *at == place).map(|(_, holder)| holder.clone()).collect();
            let (member, key) = (Arc::clone(member), key.clone());
            round.ask(place, async move { member.node().force_release(key, Some(named)).await });
        }
        let (mut freed, mut kept) = (0, 0);
        let mut count = AnswerCount::new(self);
        while let Some((place, answer)) = round.next().await {
            match count.add(place, answer) {
                Some(Forced::Released) => freed += 1,
                Some(Forced::Free) | None => {}
                // Neither released nor free: it is held by others.
                Some(_) => kept += 1,
            }
        }
        if count.answered < count.needed {
            return Err(too_few_forced(freed, count, &round));
        }
        let (needed, unanswered) = (count.needed, count.unanswered());
        Ok(if self.members.len() - freed < needed {
            // The rest is no majority, whichever holder has it.
            Forced::Released
        } else if kept >= needed || freed == 0 && kept > 0 && kept + unanswered >= needed {
            Forced::HeldByOthers
        } else if kept + unanswered < needed {
            Forced::Free
        } else {
            return Err(too_few_forced(freed, count, &round));
        })
    }
}

/// Returns the failure where the holder may still hold it after a release by force.
fn kept() -> Failure {
    Failure::unknown(
        "nodes have freed it, and its holder may have a majority again: it renewed its votes meanwhile, or was granted \
         it anew; look who holds it, and do it again",
    )
}

/// Returns the failure where too few nodes confirmed a release by force, of which `freed` did.
fn too_few_forced<T: Send + 'static>(freed: usize, count: AnswerCount<'_>, round: &Round<T>) -> Failure {
    // An unknown answer may have freed it; a known failure has not.
    let unanswered = |(_, failure): &(_, Failure)| failure.kind() == ErrorKind::Unknown;
    let unchanged = freed == 0 && round.open() == 0 && !count.failures.iter().any(unanswered);
    let failure = count.too_few(round);
    if unchanged {
        return failure;
    }
    let what = "some nodes may have freed it, and no majority said so; do it again";
    Failure::unknown(what).with_source(failure)
}

fn unreachable(member: &Member, failure: &Failure) -> Finding {
    let advice = "bring the node back: a quorum works while a majority answers, and has no reserve meanwhile";
    Finding::warning("node", member.says(failure), advice)
}

/// The number of answers of the nodes, and the failures of the others.
struct AnswerCount<'a> {
    members: &'a [Arc<Member>],
    needed: usize,
    answered: usize,
    failures: Vec<(usize, Failure)>,
}

impl<'a> AnswerCount<'a> {
    fn new(shared: &'a QuorumShared) -> Self {
        Self { members: &shared.members, needed: shared.needed(), answered: 0, failures: Vec::new() }
    }

    fn add<T>(&mut self, place: usize, answer: Result<T, Failure>) -> Option<T> {
        match answer {
            Ok(answer) => {
                self.answered += 1;
                Some(answer)
            }
            Err(failure) => {
                self.failures.push((place, failure));
                None
            }
        }
    }

    /// Returns the number of nodes that have not answered.
    fn unanswered(&self) -> usize {
        self.members.len() - self.answered
    }

    /// Is `true` if the others can no longer change the holders.
    fn settles(&self, holders: &[(usize, Holder)]) -> bool {
        settles(holders, self.needed, self.unanswered())
    }

    fn too_few<T: Send + 'static>(mut self, round: &Round<T>) -> Failure {
        let silent = round.silent().map(|place| (place, Failure::unknown("no answer in time")));
        self.failures.extend(silent);
        too_few(self.members, self.answered, self.failures)
    }
}

/// Returns the holders that a majority names: of those that cannot be distinguished, as many as each node of a majority
/// has.
fn elected(holders: &[(usize, Holder)], needed: usize) -> Vec<Holder> {
    let mut elected = Vec::new();
    for (at, (_, holder)) in holders.iter().enumerate() {
        if same(&holders[..at], holder).next().is_some() {
            continue;
        }
        // Readers of one process look alike: a node lists each of them, and a majority has to have as many.
        let number = on_each(holders, holder, needed);
        let mut ends: Vec<_> = same(holders, holder).filter_map(|(_, holder)| holder.expires_in).collect();
        ends.sort_unstable();
        let expires_in = ends.len().checked_sub(needed).map(|at| ends[at]);
        let of_nodes: Vec<_> = same(holders, holder).cloned().collect();
        let mut named = holder.clone().with_nodes(of_nodes);
        (named.expires_in, named.fence) = (expires_in, None);
        elected.extend((0..number).map(|_| named.clone()));
    }
    elected
}

/// Is `true` if no answer of `unanswered` more nodes can change the holders that a majority names.
fn settles(holders: &[(usize, Holder)], needed: usize, unanswered: usize) -> bool {
    unanswered < needed
        && holders.iter().all(|(_, holder)| {
            // The least and the largest number: the nodes that have not answered may each have any number of it.
            on_each(holders, holder, needed) == on_each(holders, holder, needed - unanswered)
        })
}

/// Returns the number of holders that cannot be distinguished from `holder` which are on each of this many nodes.
fn on_each(holders: &[(usize, Holder)], holder: &Holder, nodes: usize) -> usize {
    let mut of_nodes = BTreeMap::<usize, usize>::new();
    for (node, _) in same(holders, holder) {
        *of_nodes.entry(*node).or_default() += 1;
    }
    let mut numbers: Vec<_> = of_nodes.into_values().collect();
    numbers.sort_unstable_by(|a, b| b.cmp(a));
    numbers.get(nodes - 1).copied().unwrap_or(0)
}

/// Returns those of `holders` that cannot be distinguished from `holder`.
fn same<'a>(holders: &'a [(usize, Holder)], holder: &'a Holder) -> impl Iterator<Item = &'a (usize, Holder)> {
    holders.iter().filter(move |(_, other)| other.is_of_same_holder(holder))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlock_core::backend::Mode;

    fn on(node: usize, pid: u32, mode: Mode) -> (usize, Holder) {
        let mut holder = Holder::default();
        (holder.pid, holder.mode) = (Some(pid), mode);
        (node, holder)
    }

    #[test]
    fn nodes_that_are_away_matter_only_where_they_could_change_who_holds_it() {
        let settled = |holders: &[(usize, Holder)], unanswered| settles(holders, 2, unanswered);
        for mode in [Mode::Exclusive, Mode::Shared] {
            assert!(settled(&[], 1) && !settled(&[], 2), "{mode:?}");
            assert!(settled(&[on(0, 1, mode), on(1, 1, mode)], 1), "a majority named it, {mode:?}");
            assert!(!settled(&[on(0, 1, mode)], 1), "the third node decides, {mode:?}");
            assert!(settled(&[on(0, 1, mode)], 0), "{mode:?}");
            assert!(!settled(&[on(0, 1, mode), on(1, 1, mode)], 2), "{mode:?}");
        }
        let two_of_one = [on(0, 1, Mode::Shared), on(0, 1, Mode::Shared), on(1, 1, Mode::Shared)];
        assert!(!settled(&two_of_one, 1), "of a second reader only one node knows");
        let another = [on(0, 1, Mode::Shared), on(1, 1, Mode::Shared), on(1, 2, Mode::Shared)];
        assert!(!settled(&another, 1));
    }
}
