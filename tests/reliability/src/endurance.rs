//! The faults over all backends in turn, for hours, and what this process keeps of each turn.

use std::fmt;
use std::time::{Duration, Instant};

use dlock_rig::worker::Way;
use tokio::runtime::Runtime;

use crate::faults::Fight;
use crate::figure::Report;
use crate::resident::Resident;
use crate::store::{Kind, Store};
use crate::{Failed, Volume, blocked, cancelled, dropped, killed};

/// Faults in each arena and turn: a few minutes.
const ROUNDS: usize = 60;
/// What a process may keep of one turn: connections that are still being closed.
const SLACK: u64 = 16;
const MEBIBYTE: u64 = 1 << 20;

/// What a process has of its machine.
#[derive(Clone, Copy, Debug)]
struct Kept {
    bytes: u64,
    descriptors: u64,
    threads: u64,
}

impl Kept {
    fn now() -> Result<Self, Failed> {
        let status = std::fs::read_to_string("/proc/self/status")?;
        let value = |name: &str| -> Option<u64> {
            status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
        };
        let (Some(kibibytes), Some(threads)) = (value("VmRSS:"), value("Threads:")) else {
            return Err("this system does not tell what a process keeps".into());
        };
        let descriptors = std::fs::read_dir("/proc/self/fd")?.count();
        Ok(Self { bytes: kibibytes << 10, descriptors: u64::try_from(descriptors)?, threads })
    }
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, descriptors, threads } = self;
        write!(f, "{} MiB, {descriptors} descriptors, {threads} threads", bytes / MEBIBYTE)
    }
}

/// Goes on for `hours`, and at least until each of `kinds` had one turn.
pub(crate) fn measure(
    runtime: &Runtime,
    kinds: &[Kind],
    hours: f64,
    seed: u64,
    report: &mut Report,
) -> Result<(), Failed> {
    let (started, length) = (Instant::now(), Duration::from_secs_f64(hours * 3600.0));
    let (mut kept, mut turns, mut not_made) = (Vec::new(), 0, 0);
    let mut random = fastrand::Rng::with_seed(seed);
    for turn in 0.. {
        if turn >= kinds.len() && started.elapsed() >= length {
            break;
        }
        let kind = kinds[turn % kinds.len()];
        let mut figures = Report::default();
        let taken = take_turn(runtime, kind, turn / kinds.len(), random.u64(..), &mut figures);
        let minutes = started.elapsed().as_secs() / 60;
        turns += 1;
        if let Err(error) = taken {
            // Such as a server that does not answer in time when it has just been started, on a busy machine.
            println!("{minutes:4} min, turn {turn}, {kind:?}: could not be made: {error}");
            not_made += 1;
            continue;
        }
        // What was closed in the background needs a moment.
        std::thread::sleep(Duration::from_secs(2));
        let now = Kept::now()?;
        kept.push(now);
        let verdict = if figures.is_kept() { "every promise was kept" } else { "a promise was broken" };
        println!("{minutes:4} min, turn {turn}, {kind:?}: {verdict}; this process: {now}\n{figures}");
        report.extend_with_broken(figures);
    }
    let bound = turns / 10;
    report.add(
        "all",
        "turns that could not be made",
        not_made,
        format!("{bound} of {turns}"),
        not_made <= bound,
    );
    judge(kinds.len(), &kept, report);
    Ok(())
}

fn take_turn(
    runtime: &Runtime,
    kind: Kind,
    lap: usize,
    seed: u64,
    report: &mut Report,
) -> Result<(), Failed> {
    let store = Store::new(kind)?;
    let small = Volume { quick: true, seed };
    let left = runtime.block_on(async {
        let resident = Resident::start(&store, seed).await?;
        if kind == Kind::Memory || kind.is_session() {
            dropped::measure(&store, small, report).await?;
            blocked::measure(&store, small, report).await?;
        }
        if kind.is_session() {
            killed::measure(&store, small, report).await?;
        } else if kind != Kind::Memory {
            // Every third lap of Redis loses data, where overlaps are allowed; the other two allow none.
            let loses_data = kind == Kind::Redis && lap % 3 == 2;
            let fight =
                Fight { fenced: true, rounds: ROUNDS, seed, sets_clocks: true, loses_data, way: Way::Alone };
            fight.fight(&store, report).await?;
        }
        resident.stop(&store).await
    })?;
    let what = format!(
        "{} acquires of this process meanwhile, {} failed, {} dropped: locks left",
        left.granted, left.failed, left.dropped
    );
    report.add(store.name(), what, left.locks, "0", left.locks == 0 && left.granted > 0);
    let unfinished = left.unfinished.as_deref().unwrap_or("no");
    report.add(
        store.name(),
        "the same: clean-up that did not end",
        unfinished,
        "no",
        left.unfinished.is_none(),
    );
    cancelled::measure(&store, small, report)
}

/// Says whether this process kept more and more. The first lap loads and caches what all need.
fn judge(lap: usize, kept: &[Kept], report: &mut Report) {
    let (first, rest) = kept.split_at(lap.min(kept.len()));
    if rest.is_empty() {
        return;
    }
    let grown = |of: fn(&Kept) -> u64| {
        let most = |some: &[Kept]| some.iter().map(of).max().unwrap_or_default();
        (most(first), most(rest))
    };
    let laps = kept.len() / lap.max(1);
    let (before, after) = grown(|kept| kept.bytes);
    let bound = before + before / 2 + 32 * MEBIBYTE;
    let value = format!("{} to {} MiB", before / MEBIBYTE, after / MEBIBYTE);
    let what = format!("{laps} laps: memory of this process, most in the first and later");
    report.add("all", what, value, format!("{} MiB at the most", bound / MEBIBYTE), after <= bound);
    let descriptors: fn(&Kept) -> u64 = |kept| kept.descriptors;
    for (what, of) in [("descriptors", descriptors), ("threads", |kept| kept.threads)] {
        let (before, after) = grown(of);
        let bound = before + SLACK;
        let what = format!("the same: {what}");
        report.add(
            "all",
            what,
            format!("{before} to {after}"),
            format!("{bound} at the most"),
            after <= bound,
        );
    }
}
