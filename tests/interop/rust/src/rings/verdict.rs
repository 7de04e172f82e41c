//! What came of it, and whether anything was broken that was promised.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::crew::Fates;
use super::stores::{Language, Store};
use super::{BATON, LEASE};

/// For so much longer than the lease a store may refuse what a killed worker had: its last request may have arrived
/// after its end.
const SLACK: Duration = Duration::from_secs(1);

/// What the rings have counted.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) pairs: BTreeMap<(Language, Language), u64>,
    pub(super) acquires: u64,
    pub(super) copies_refused: u64,
    pub(super) taken_twice: u64,
    pub(super) refused_wrongly: u64,
    pub(super) too_late: u64,
    pub(super) stale_refused: u64,
    pub(super) stale_written: u64,
    pub(super) holders_refused: u64,
    pub(super) failures: Vec<String>,
    pub(super) blocks: Vec<Duration>,
    pub(super) refusals: Vec<Duration>,
    pub(super) hops: BTreeMap<Language, Vec<Duration>>,
    pub(super) gaps: Vec<Duration>,
    pub(super) requests: Vec<u64>,
}

impl Tally {
    pub(super) fn failed(&mut self, why: String) {
        self.failures.push(why);
    }

    pub(super) fn with(mut self, other: Self) -> Self {
        for (pair, count) in other.pairs {
            *self.pairs.entry(pair).or_default() += count;
        }
        for (language, took) in other.hops {
            self.hops.entry(language).or_default().extend(took);
        }
        self.acquires += other.acquires;
        self.copies_refused += other.copies_refused;
        self.taken_twice += other.taken_twice;
        self.refused_wrongly += other.refused_wrongly;
        self.too_late += other.too_late;
        self.stale_refused += other.stale_refused;
        self.stale_written += other.stale_written;
        self.holders_refused += other.holders_refused;
        self.failures.extend(other.failures);
        self.blocks.extend(other.blocks);
        self.refusals.extend(other.refusals);
        self.gaps.extend(other.gaps);
        self.requests.extend(other.requests);
        self
    }
}

/// From when until when a worker believed that it had a lock.
#[derive(Clone, Copy, Debug)]
struct Belief {
    fence: u64,
    begun: u64,
    ended: u64,
}

/// How many beliefs began before an earlier one had ended, and how many had no higher fence than all before.
fn judge(beliefs: &mut [Belief]) -> (u64, u64) {
    beliefs.sort_by_key(|belief| belief.begun);
    let (mut overlaps, mut not_higher, mut last, mut highest) = (0, 0, 0, 0);
    for belief in beliefs {
        overlaps += u64::from(belief.begun < last);
        not_higher += u64::from(belief.fence <= highest);
        last = last.max(belief.ended);
        highest = highest.max(belief.fence);
    }
    (overlaps, not_higher)
}

/// Reads what a process has noted, by key. `killed` is when it was, and ends what it believed then.
fn read(journal: &str, killed: Option<u64>, beliefs: &mut BTreeMap<String, Vec<Belief>>) -> Result<()> {
    let mut open: BTreeMap<&str, Belief> = BTreeMap::new();
    let mut close = |key: &str, belief: Belief| beliefs.entry(key.to_owned()).or_default().push(belief);
    for line in journal.lines() {
        let mut words = line.split(' ');
        let (what, key) = (words.next().unwrap_or_default(), words.next().context("no key")?);
        let fence = words.next().context("no fence")?.parse()?;
        let when = words.next().context("no time")?.parse()?;
        if let Some(mut belief) = open.remove(key) {
            belief.ended = if what == "end" { when } else { belief.ended };
            close(key, belief);
        }
        if what == "begin" {
            open.insert(key, Belief { fence, begun: when, ended: when });
        }
    }
    for (key, mut belief) in open {
        belief.ended = belief.ended.max(killed.unwrap_or_default());
        close(key, belief);
    }
    Ok(())
}

pub(super) struct Verdict {
    store: &'static str,
    seed: u64,
    tally: Tally,
    processes: usize,
    kills: usize,
    lost: usize,
    beliefs: usize,
    overlaps: u64,
    not_higher: u64,
}

impl Verdict {
    pub(super) fn new(store: &Store, fates: &Fates, mut tally: Tally, seed: u64) -> Result<Self> {
        let processes = fates.processes.load(Ordering::SeqCst);
        let killed: BTreeMap<usize, u64> =
            fates.killed.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect();
        let mut beliefs = BTreeMap::new();
        for number in 0..processes {
            let path = store.journal(number);
            let journal = std::fs::read_to_string(&path).unwrap_or_default();
            read(&journal, killed.get(&number).copied(), &mut beliefs)
                .with_context(|| path.display().to_string())?;
        }
        let count = beliefs.values().map(Vec::len).sum();
        let (overlaps, not_higher) = beliefs
            .values_mut()
            .map(|beliefs| judge(beliefs))
            .fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
        tally.blocks.sort();
        tally.gaps.sort();
        tally.requests.sort_unstable();
        tally.hops.values_mut().for_each(|took| took.sort());
        Ok(Self {
            store: store.name,
            seed,
            tally,
            processes,
            kills: fates.kills.load(Ordering::SeqCst),
            lost: fates.lost.load(Ordering::SeqCst),
            beliefs: count,
            overlaps,
            not_higher,
        })
    }

    fn hand_overs(&self) -> u64 {
        self.tally.pairs.values().sum()
    }

    fn longest_refusal(&self) -> Duration {
        self.tally.refusals.iter().max().copied().unwrap_or_default()
    }

    /// What was promised and is broken.
    pub(super) fn broken(&self) -> Vec<String> {
        let tally = &self.tally;
        let counts = [
            (self.overlaps, "overlaps of belief"),
            (self.not_higher, "fences that are not higher"),
            (tally.stale_written, "stale writes accepted"),
            (tally.holders_refused, "writes of holders refused"),
            (tally.taken_twice, "batons taken over twice"),
            (tally.refused_wrongly, "batons refused before their end"),
        ];
        let mut broken: Vec<String> = counts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        if self.longest_refusal() > LEASE + SLACK {
            broken.push(format!("a lock refused {:.2?} after its holder was killed", self.longest_refusal()));
        }
        broken
    }

    pub(super) fn summary(&self) -> String {
        let tally = &self.tally;
        format!(
            "{} hand-overs, {} copies and {} stale writes refused, {} kills, {} answers lost",
            self.hand_overs(),
            tally.copies_refused,
            tally.stale_refused,
            self.kills,
            self.lost
        )
    }
}

fn median<T: Copy>(sorted: &[T]) -> Option<T> {
    sorted.get(sorted.len() / 2).copied()
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tally = &self.tally;
        let none = "-".to_owned();
        writeln!(f, "| {}, seed {} | |\n|---|---|", self.store, self.seed)?;
        writeln!(f, "| hand-overs | {} |", self.hand_overs())?;
        for ((from, to), count) in &tally.pairs {
            writeln!(f, "| from {from:?} to {to:?} | {count} |")?;
        }
        for (what, count) in [
            ("acquires without a baton", tally.acquires),
            ("beliefs that were noted", self.beliefs as u64),
            ("processes", self.processes as u64),
            ("kills", self.kills as u64),
            ("kills that cost the lock or its baton", tally.blocks.len() as u64),
            ("answers lost", self.lost as u64),
            ("commands that failed", tally.failures.len() as u64),
            ("batons that came too late", tally.too_late),
            ("copies refused", tally.copies_refused),
            ("stale writes refused", tally.stale_refused),
            ("**overlaps of belief**", self.overlaps),
            ("**fences not higher**", self.not_higher),
            ("**stale writes accepted**", tally.stale_written),
            ("**writes of holders refused**", tally.holders_refused),
            ("**batons taken over twice**", tally.taken_twice),
            ("**batons refused before their end**", tally.refused_wrongly),
        ] {
            writeln!(f, "| {what} | {count} |")?;
        }
        writeln!(f, "| lease; time of a baton | {LEASE:?}; {BATON:?} |")?;
        writeln!(f, "| latest refusal by the store after a kill | {:.2?} |", self.longest_refusal())?;
        for (what, block) in [("median", median(&tally.blocks)), ("longest", tally.blocks.last().copied())] {
            let block = block.map_or_else(|| none.clone(), |block| format!("{block:.2?}"));
            writeln!(f, "| from a kill to the next holder, {what} | {block} |")?;
        }
        for (language, took) in &tally.hops {
            let took = median(took).map_or_else(|| none.clone(), |took| format!("{took:.2?}"));
            writeln!(f, "| a hop in {language:?}: take-over, write, hand-over; median | {took} |")?;
        }
        let gap = median(&tally.gaps).map_or_else(|| none.clone(), |gap| format!("{gap:.2?}"));
        writeln!(f, "| from the giver's belief to the taker's, median | {gap} |")?;
        let requests = median(&tally.requests).map_or(none, |requests| requests.to_string());
        writeln!(f, "| requests of a hop in Rust for the lock, median | {requests} |")?;
        for why in tally.failures.iter().take(5) {
            writeln!(f, "\n{why}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_belief_of_a_killed_process_lasts_until_its_end_and_overlaps_are_found() {
        let mut beliefs = BTreeMap::new();
        read("begin k 1 10\nend k 1 20\nbegin k 2 30\n", Some(50), &mut beliefs).unwrap();
        read("begin k 3 40\nend k 3 60\nbegin l 1 1\nend l 1 2\n", None, &mut beliefs).unwrap();
        assert_eq!(judge(beliefs.get_mut("k").unwrap()), (1, 0));
        assert_eq!(judge(beliefs.get_mut("l").unwrap()), (0, 0));
        read("begin l 1 3\nend l 1 4\n", None, &mut beliefs).unwrap();
        assert_eq!(judge(beliefs.get_mut("l").unwrap()), (0, 1));
    }
}
