//! From the release in one process to the acquire in another that waits for it.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use dlock_bench::measure::runtime;
use dlock_bench::report::{Row, Spread};
use dlock_interop::peer::{Peer, Setting};
use dlock_interop::{handoffs, percentile, read_all};
use dlock_testkit::checkers::overlap;

use crate::Bench;
use crate::clients::{Bare, SESSION};

/// Hand-overs a round and side.
const EACH: usize = 100;

pub(crate) fn between_processes(bench: &Bench) -> Result<Vec<Row>> {
    runtime(true)?.block_on(measure(bench))
}

async fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let rounds = (bench.rounds / 6) | 1;
    let [mut bare, mut ours, mut theirs, mut ratio] = [const { Vec::new() }; 4];
    for round in 0..rounds {
        let told = p50(&told_of_deletion(bench).await?);
        let p50_of = async |java| -> Result<f64> {
            Ok(p50(&hand_to_and_fro(bench, java, &format!("handed_{java}_{round}")).await?))
        };
        let (rust, java) = (p50_of(false).await?, p50_of(true).await?);
        bare.push(told);
        ours.push(rust);
        theirs.push(java);
        ratio.push(rust / told);
    }
    let ratio = Spread::of(ratio);
    Ok(vec![
        Row::spread("from a deletion to the watcher's event, bare client, p50", Spread::of(bare), "ms"),
        Row::spread("handoff between processes, p50: dlock", Spread::of(ours), "ms"),
        Row::spread("handoff between processes, p50: Curator", Spread::of(theirs), "ms"),
        Row::spread("    dlock / deletion to event", ratio, "x").at_most(ratio.median, 1.3, "x"),
    ])
}

fn p50(took: &[Duration]) -> f64 {
    percentile(took, 50).as_secs_f64() * 1e3
}

/// How long it takes from the call of a deletion until another session is notified of it.
async fn told_of_deletion(bench: &Bench) -> Result<Vec<Duration>> {
    let (deleting, watching) = (
        Bare::connect(bench.server.address(), false).await?,
        Bare::connect(bench.server.address(), false).await?,
    );
    deleting.prepare(1).await?;
    let mut took = Vec::new();
    for _ in 0..2 * EACH {
        let path = deleting.acquire("room_0").await?;
        let (_, watcher) = watching.client.check_and_watch_stat(&path).await?;
        let watched = tokio::spawn(async move {
            watcher.changed().await;
            Instant::now()
        });
        // As a lock is held for a while: both sides are at rest when it begins.
        tokio::time::sleep(Duration::from_millis(5)).await;
        let start = Instant::now();
        deleting.release(&path).await?;
        took.push(watched.await?.saturating_duration_since(start));
    }
    took.sort();
    Ok(took)
}

/// Two processes take turns. Each holds the lock long enough that the other one is waiting again.
async fn hand_to_and_fro(bench: &Bench, java: bool, key: &str) -> Result<Vec<Duration>> {
    const HOLD_US: u64 = 5_000;
    const PAUSE_US: u64 = 1_000;
    let (url, histories) = (bench.server.url(), tempfile::tempdir()?);
    let mut workers = Vec::new();
    for process in 0..2 {
        let setting = Setting { url: &url, lease: SESSION, process, histories: histories.path() };
        workers.push(if java {
            Peer::java(&bench.jar, &[], setting).await?
        } else {
            Peer::rust(setting).await?
        });
    }
    for worker in &mut workers {
        worker.tell(&format!("sections mutex {key} counter {EACH} {HOLD_US} {PAUSE_US}")).await?;
    }
    for worker in &mut workers {
        worker.answer().await?;
    }
    let events = read_all(histories.path())?;
    ensure!(overlap(&events).overlaps.is_empty(), "two processes had {key} at the same time");
    Ok(handoffs(&events, key, |_| true, |_| true))
}
