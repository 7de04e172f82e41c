//! Locks that go round between processes in several languages, each of which hands them on by a baton.
//!
//! Each key has a ring: a worker takes the baton over, writes under the lock, and hands it over; the baton goes to
//! another worker, now and then to two at once. The giver then writes with its old fence. Workers are killed at any
//! moment, and some have a wire that loses answers. What was promised is judged by what all of them have noted, on one
//! clock.

mod crew;
mod ring;
mod stores;
mod verdict;
pub(crate) mod worker;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use rustix::time::{ClockId, clock_gettime};
use tokio::task::JoinSet;

use crew::Crew;
use ring::Ring;
use stores::Store;
use verdict::{Tally, Verdict};

/// How many locks go round at the same time.
const KEYS: usize = 8;
const LEASE: Duration = Duration::from_secs(3);
/// For how long a lock is handed over.
const BATON: Duration = Duration::from_secs(2);
/// Of so many hops, one has its baton in two copies.
const COPIES: u32 = 8;
/// Of so many hops, one has its worker killed.
const KILLS: u32 = 100;
/// How long a ring without a baton pauses between acquires.
const PAUSE: Duration = Duration::from_millis(20);

fn key(number: usize) -> String {
    format!("ring_{number}")
}

/// Nanoseconds by the clock that all processes of this host share.
fn clock() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

fn wall_millis() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Has locks of this store go round until they were handed over so many times, and prints the verdict. Returns it in
/// one line.
pub(crate) async fn go_round(store: &str, hops: u64, seed: u64) -> Result<String> {
    let verdict = run(store, hops, seed, "-").await?;
    println!("{verdict}");
    let broken = verdict.broken();
    ensure!(broken.is_empty(), "with the seed {seed}: {}", broken.join("; "));
    Ok(verdict.summary())
}

/// Has workers break a promise on purpose, in each of the ways that the worker in Python knows.
pub(crate) async fn found_out(store: &str, hops: u64, seed: u64) -> Result<String> {
    let mut found = Vec::new();
    for broken in ["adopts", "believes", "writes"] {
        let verdict = run(store, hops, seed, broken).await?.broken();
        ensure!(!verdict.is_empty(), "a worker that {broken} was not found out");
        found.push(format!("{broken}: {}", verdict.join(", ")));
    }
    Ok(found.join("; "))
}

async fn run(store: &str, hops: u64, seed: u64, broken: &'static str) -> Result<Verdict> {
    let store = Arc::new(Store::start(store, broken).await?);
    let (crew, left) = (Arc::new(Crew::start(&store, seed)?), Arc::new(AtomicU64::new(hops)));
    let mut rings = JoinSet::new();
    for number in 0..KEYS {
        rings.spawn(Ring::new(&crew, &left, number, seed).go_round());
    }
    let limit = Duration::from_secs(120) + Duration::from_millis(100) * u32::try_from(hops)?;
    let tallies = tokio::time::timeout(limit, rings.join_all()).await.context("the rings stand still")?;
    let crew = Arc::into_inner(crew).context("a ring goes on")?;
    // Why a worker ended says more than that it did.
    let fates = crew.end().await?;
    let tally = tallies.into_iter().try_fold(Tally::default(), |all, one| anyhow::Ok(all.with(one?)))?;
    Verdict::new(&store, &fates, tally, seed)
}
