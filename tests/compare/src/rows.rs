//! The faults, each written once for all libraries.

mod abandoned;
mod crowd;
mod lost_reply;
mod paused;
mod taken_over;
mod told;

use std::time::{Duration, Instant};

use anyhow::Result;
use clap::ValueEnum;

use crate::contender::{Call, Contender, Said};
use crate::stage::Stage;

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Row {
    Cancelled,
    TimedOut,
    ReplyCut,
    ReplySilent,
    Paused,
    BlackHole,
    Killed,
    Deleted,
    SessionEnded,
    Crowd,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cell {
    Text(String),
    /// What has to be compared with dlock on the same store: how long it took, and the rest of the text.
    Timed(Duration, String),
}

impl Cell {
    /// What the library does not offer.
    fn none(why: &str) -> Self {
        Self::Text(why.to_owned())
    }
}

impl Row {
    /// What stands in front of the line.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Cancelled => "cancelled acquires: keys left blocked",
            Self::TimedOut => "timed-out acquires: keys left blocked",
            Self::ReplyCut => "the answer that grants is lost, and its connection reset",
            Self::ReplySilent => "the answer that grants is lost, and its connection goes silent",
            Self::Paused => {
                "paused for longer than the lease: believes to hold the lock; writes past a fence"
            }
            Self::BlackHole => "network drops all packets: holder is notified after; next holder after",
            Self::Killed => "holder killed: next holder after p50 / max",
            Self::Deleted => "lock deleted on the server: holder is notified after p50 / max",
            Self::SessionEnded => {
                "sessions and connections ended by the server: holder is notified after p50 / max"
            }
            Self::Crowd => {
                "1,000 waiters: time against dlock's; requests for each turn; requests a second while they wait; connections"
            }
        }
    }

    pub(crate) async fn measure(self, stage: &Stage<'_>) -> Result<Cell> {
        match self {
            Self::Cancelled => abandoned::measure(stage, true).await,
            Self::TimedOut => abandoned::measure(stage, false).await,
            Self::ReplyCut => lost_reply::measure(stage, dlock_rig::proxy::Loss::Cut).await,
            Self::ReplySilent => lost_reply::measure(stage, dlock_rig::proxy::Loss::Silence).await,
            Self::Paused => paused::measure(stage).await,
            Self::BlackHole => taken_over::cut_off(stage).await,
            Self::Killed => taken_over::killed(stage).await,
            Self::Deleted => told::of_a_deletion(stage).await,
            Self::SessionEnded => told::of_the_sessions_end(stage).await,
            Self::Crowd => crowd::measure(stage).await,
        }
    }
}

/// How many leases are waited for what should come after one.
const LIMIT: u32 = 3;

/// In leases.
fn leases(stage: &Stage<'_>, time: Duration) -> String {
    format!("{:.2}", time.as_secs_f64() / stage.lease.as_secs_f64())
}

/// The median and the highest of some times, in leases; how many there are, where some are missing of `count`.
fn spread(stage: &Stage<'_>, mut times: Vec<Duration>, count: usize) -> String {
    times.sort();
    let (Some(median), Some(last)) = (times.get(times.len() / 2), times.last()) else {
        return "never".to_owned();
    };
    let text = format!("{} / {}", leases(stage, *median), leases(stage, *last));
    if times.len() == count { text } else { format!("{text} for {} of {count}, others never", times.len()) }
}

/// The answers of some calls, each within `limit` from `since`.
async fn answers(calls: &mut [Call], since: Instant, limit: Duration) -> Vec<Option<Said>> {
    let mut said = Vec::new();
    for call in calls {
        said.push(call.answer((since + limit).saturating_duration_since(Instant::now())).await);
    }
    said
}

/// Begins to acquire keys, for ever.
async fn wait_for(contender: &mut Contender, keys: &[String], fenced: bool) -> Result<Vec<Call>> {
    let mut calls = Vec::new();
    for key in keys {
        calls.push(contender.acquire(key, Duration::ZERO, fenced).await?);
    }
    Ok(calls)
}

/// Which keys a new process of the same library does not get at once, and for how long; at least three leases where it
/// is that long.
struct Blocked {
    count: usize,
    longest: Duration,
    beyond: bool,
}

impl Blocked {
    /// Looks at all keys at the same time.
    async fn look(stage: &Stage<'_>, keys: &[String]) -> Result<Self> {
        let mut probe = stage.open().await?;
        // What a process does once, it has done.
        let others = probe.take(&stage.keys(keys.len()), false).await?;
        probe.release(others.into_iter().map(|(id, _)| id)).await?;
        let calls = wait_for(&mut probe, keys, false).await?;
        Ok(Self::of(stage, calls).await)
    }

    async fn of(stage: &Stage<'_>, mut calls: Vec<Call>) -> Self {
        // Those that poll get what is free at their next look.
        let at_once = stage.lease / 4;
        let since = calls.first().map_or_else(Instant::now, |call| call.given);
        let all = answers(&mut calls, since, stage.lease * LIMIT).await;
        let mut blocked = Self { count: 0, longest: Duration::ZERO, beyond: false };
        for (said, call) in all.iter().zip(&calls) {
            let took = said.as_ref().filter(|said| said.is_acquired()).map(|said| said.at - call.given);
            blocked.beyond |= took.is_none();
            if took.is_none_or(|took| took > at_once) {
                blocked.count += 1;
                blocked.longest = blocked.longest.max(took.unwrap_or(stage.lease * LIMIT));
            }
        }
        blocked
    }

    fn time(&self, stage: &Stage<'_>) -> String {
        if self.beyond { format!("more than {LIMIT}") } else { leases(stage, self.longest) }
    }
}
