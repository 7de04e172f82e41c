//! Who holds a lock, and taking it away: what a majority says.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::marks::is_mark;
use super::node::Member;
use super::round::Round;
use super::{QuorumShared, too_few};
use crate::backend::{Finding, Host};
use crate::error::{ErrorKind, Failure};
use crate::holder::Holder;
use crate::key::Key;

/// How long the lists of all nodes may take.
const LISTING: Duration = Duration::from_secs(25);
/// How long a node may take to be connected to.
const CONNECTING: Duration = Duration::from_secs(5);
/// How long a node may take to look at itself.
const DIAGNOSIS: Duration = Duration::from_secs(3);

impl QuorumShared {
    /// Who holds it on a majority.
    pub(super) async fn holder(&self, key: &Key) -> Result<Option<Holder>, Failure> {
        let mut round = Round::new(self.node_timeout, &Host::default());
        for (place, member) in self.members.iter().enumerate() {
            let (member, key) = (Arc::clone(member), key.clone());
            round.ask(place, async move { member.backend().inspect(&key).await });
        }
        let mut holders = Vec::<Holder>::new();
        let mut count = AnswerCount::new(self);
        while let Some((place, answer)) = round.next().await {
            holders.extend(count.add(place, answer).flatten());
            if count.settles(&holders) {
                return Ok(elected(&holders, count.needed));
            }
        }
        Err(count.too_few(&round))
    }

    /// All that is held on a majority.
    pub(super) async fn list(&self) -> Result<Vec<(Key, Holder)>, Failure> {
        let mut round = Round::new(LISTING, &Host::default());
        for (place, member) in self.members.iter().enumerate() {
            let member = Arc::clone(member);
            round.ask(place, async move { member.backend().holders().await });
        }
        let mut listed = BTreeMap::<Key, Vec<Holder>>::new();
        let mut count = AnswerCount::new(self);
        while let Some((place, answer)) = round.next().await {
            for (key, holder) in count.add(place, answer).into_iter().flatten() {
                if !is_mark(&key) {
                    listed.entry(key).or_default().push(holder);
                }
            }
            if count.settles(&[]) && listed.values().all(|holders| count.settles(holders)) {
                let held = listed.into_iter();
                return Ok(held.filter_map(|(key, all)| Some((key, elected(&all, count.needed)?))).collect());
            }
        }
        Err(count.too_few(&round))
    }

    /// All that is held on any node, if a majority answers.
    pub(super) async fn list_of_any(&self) -> Result<Vec<(Key, Holder)>, Failure> {
        let mut round = Round::new(LISTING, &Host::default());
        for (place, member) in self.members.iter().enumerate() {
            let member = Arc::clone(member);
            round.ask(place, async move { member.backend().holders().await });
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
    pub(super) async fn connect(&self) -> Result<(), Failure> {
        let mut round = Round::new(CONNECTING, &Host::default());
        for (place, member) in self.members.iter().enumerate() {
            let member = Arc::clone(member);
            round.ask(place, async move { member.backend().ping().await });
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

    /// What each node says of itself; one that does not answer is a finding.
    pub(super) async fn diagnose(&self) -> Result<Vec<Finding>, Failure> {
        let mut round = Round::new(DIAGNOSIS, &Host::default());
        for (place, member) in self.members.iter().enumerate() {
            let member = Arc::clone(member);
            round.ask(place, async move {
                member.backend().ping().await?;
                member.backend().diagnose().await
            });
        }
        let mut findings = Vec::new();
        while let Some((place, answer)) = round.next().await {
            let member = &self.members[place];
            match answer {
                Ok(found) => findings.extend(found.into_iter().map(|mut finding| {
                    finding.found = member.says(&finding.found);
                    finding
                })),
                Err(failure) => findings.push(unreachable(member, &failure)),
            }
        }
        let silent = Failure::unknown("no answer in time");
        findings.extend(round.silent().map(|place| unreachable(&self.members[place], &silent)));
        Ok(findings)
    }

    /// Frees it on all nodes that answer, which are a majority; whether somebody can have held it.
    pub(super) async fn force(&self, key: &Key) -> Result<bool, Failure> {
        let mut round = Round::new(self.node_timeout, &Host::default());
        for (place, member) in self.members.iter().enumerate() {
            let (member, key) = (Arc::clone(member), key.clone());
            round.ask(place, async move { member.backend().force_release(&key).await });
        }
        let mut freed = 0;
        let mut count = AnswerCount::new(self);
        while let Some((place, answer)) = round.next().await {
            freed += usize::from(count.add(place, answer).unwrap_or(false));
        }
        if count.answered < count.needed {
            let unheard = |(_, failure): &(_, Failure)| failure.kind() == ErrorKind::Unknown;
            let unchanged = freed == 0 && round.open() == 0 && !count.failures.iter().any(unheard);
            let failure = count.too_few(&round);
            return Err(if unchanged {
                failure
            } else {
                let what = "some nodes may have freed it, and no majority said so; do it again";
                Failure::unknown(what).with_source(failure)
            });
        }
        Ok(freed > 0 && freed + count.unheard() >= count.needed)
    }
}

fn unreachable(member: &Member, failure: &Failure) -> Finding {
    let advice = "bring the node back: a quorum works while a majority answers, and has no reserve meanwhile";
    Finding::warning("node", member.says(failure), advice)
}

/// What the nodes said.
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

    /// How many have not answered.
    fn unheard(&self) -> usize {
        self.members.len() - self.answered
    }

    /// Whether the others can no longer change who holds it.
    fn settles(&self, holders: &[Holder]) -> bool {
        let most = holders.iter().map(|holder| same(holders, holder).count()).max().unwrap_or(0);
        most >= self.needed || most + self.unheard() < self.needed
    }

    fn too_few<T: Send + 'static>(mut self, round: &Round<T>) -> Failure {
        let silent = round.silent().map(|place| (place, Failure::unknown("no answer in time")));
        self.failures.extend(silent);
        too_few(self.members, self.answered, self.failures)
    }
}

/// Whom a majority names.
fn elected(holders: &[Holder], needed: usize) -> Option<Holder> {
    let holder = holders.iter().find(|holder| same(holders, holder).count() >= needed)?;
    let mut ends: Vec<_> = same(holders, holder).filter_map(|holder| holder.expires_in).collect();
    ends.sort_unstable();
    let expires_in = ends.len().checked_sub(needed).map(|at| ends[at]);
    Some(Holder { expires_in, fence: None, ..holder.clone() })
}

/// Those of `holders` that are the same as `holder`. When it was taken differs from node to node.
fn same<'a>(holders: &'a [Holder], holder: &'a Holder) -> impl Iterator<Item = &'a Holder> {
    let who = |of: &Holder| (of.host.clone(), of.pid, of.label.clone());
    holders.iter().filter(move |other| who(other) == who(holder))
}
