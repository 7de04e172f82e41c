//! What users of `rooms` see when its store of locks fails, and what the service does about it.
//!
//! `cargo bench -p rooms --bench chaos -- [--backend redis|zk|postgres|mysql|sqlite]... [--only FAULT]...`
//!
//! The exit code is 1 when a room was booked twice, a booking that was confirmed is missing, a lock is left, a lock was
//! lost without need, or the service did not become ready again.

#![forbid(unsafe_code)]

mod fleet;
mod held;
mod load;
mod store;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};

use fleet::Fleet;
use held::{HELD, Held, LEASE};
use load::Tally;
use store::{Kind, Store};

/// How long a fault lasts that has no time of its own: the leases outlive it.
const SHORT: Duration = Duration::from_secs(4);
/// Longer than the lease.
const LONG: Duration = Duration::from_secs(15);
const BLOCKED: Duration = Duration::from_secs(60);
/// How far a clock is set.
pub(crate) const STEP: Duration = Duration::from_secs(3600);
/// How long it may take to be ready again.
const PATIENCE: Duration = Duration::from_secs(20);

/// Breaks the store of the locks under `rooms`, and prints what came of it.
#[derive(Debug, Parser)]
struct Arguments {
    /// A backend, as often as wanted; all when left out
    #[arg(long)]
    backend: Vec<Kind>,
    /// Only these faults
    #[arg(long)]
    only: Vec<Fault>,
    /// What cargo adds.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Fault {
    Killed,
    Frozen,
    FrozenLong,
    Full,
    ReadOnly,
    Slow,
    ClockBehind,
    ClockAhead,
    Deploys,
    Descriptors,
    Blocked,
}

impl Fault {
    const fn name(self) -> &'static str {
        match self {
            Self::Killed => "killed, started again after 4 s",
            Self::Frozen => "frozen for 4 s",
            Self::FrozenLong => "frozen for 15 s",
            Self::Full => "full for 4 s",
            Self::ReadOnly => "read-only for 4 s",
            Self::Slow => "slow by 2 s, for 15 s",
            Self::ClockAhead => "its clock set ahead by an hour",
            Self::ClockBehind => "its clock set back by an hour",
            Self::Deploys => "9 rolling deploys",
            Self::Descriptors => "no descriptors for 4 s, connections cut",
            Self::Blocked => "runtimes blocked for 60 s",
        }
    }
}

/// A line of the table.
struct Row {
    fault: Fault,
    tally: Tally,
    lost: usize,
    /// Why they had to be lost, if so.
    had_to: Option<&'static str>,
    lines: usize,
    ready_after: Duration,
}

impl Row {
    fn to_line(&self) -> String {
        let Self { fault, tally, lost, lines, ready_after, .. } = self;
        let lost = match (lost, self.had_to) {
            (0, _) => "0".to_owned(),
            (lost, Some(why)) => format!("{lost}: {why}"),
            (lost, None) => format!("**{lost}, without need**"),
        };
        format!("| {} | {tally} | {lost} | {lines} | {:.1} s |", fault.name(), ready_after.as_secs_f64())
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let kinds = if arguments.backend.is_empty() { Kind::value_variants() } else { &arguments.backend };
    let faults = if arguments.only.is_empty() { Fault::value_variants() } else { &arguments.only };
    let mut kept = true;
    for kind in kinds {
        match backend(*kind, faults).await {
            Ok(good) => kept &= good,
            Err(error) => {
                eprintln!("{kind:?}: {error:#}");
                kept = false;
            }
        }
    }
    if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn backend(kind: Kind, faults: &[Fault]) -> Result<bool> {
    let mut store = Store::start(kind).await?;
    let mut fleet = Fleet::start(&store.url, 3).await?;
    let held = Held::start(store.url.clone())?;
    println!("\n{kind:?}: {HELD} locks held beside it, leases of {LEASE:?}\n");
    println!("| what happens | requests, failed and why | locks lost | lines of dlock | ready again after |");
    println!("|---|---|---|---|---|");
    let (mut kept, mut confirmed) = (true, 0);
    for fault in faults {
        if let Some(why) = store.cannot(*fault) {
            println!("| {} | {why} | | | |", fault.name());
            continue;
        }
        let row = one(*fault, &mut store, &mut fleet, &held).await?;
        println!("{}", row.to_line());
        kept &= row.lost == 0 || row.had_to.is_some();
        confirmed += row.tally.confirmed;
    }
    drop(held);
    let sums = fleet.stop().await?;
    println!("\n{confirmed} bookings confirmed, {} there, {} of them double", sums.bookings, sums.double);
    let left = store.locks_left().await?;
    println!("{left} locks left");
    Ok(kept && sums.double == 0 && sums.bookings >= confirmed && left == 0)
}

/// Makes it happen under load, and waits until the service is ready again.
async fn one(fault: Fault, store: &mut Store, fleet: &mut Fleet, held: &Held) -> Result<Row> {
    held.take_all().await?;
    fleet.all_ready(PATIENCE).await.context("it was not ready before")?;
    let lines = fleet.lines();
    let load = load::start(fleet.addresses());
    tokio::time::sleep(Duration::from_secs(1)).await;
    let begun = Instant::now();
    match fault {
        Fault::Killed => store.kill_for(SHORT).await?,
        Fault::Frozen => store.freeze_for(SHORT).await?,
        Fault::FrozenLong => store.freeze_for(LONG).await?,
        Fault::Full | Fault::ReadOnly => {
            store.refuse_writes(fault == Fault::Full, true)?;
            tokio::time::sleep(SHORT).await;
            store.refuse_writes(fault == Fault::Full, false)?;
        }
        Fault::Slow => store.slow_for(Duration::from_secs(2), LONG).await?,
        Fault::ClockAhead | Fault::ClockBehind => {
            store.step_clock(fault == Fault::ClockAhead)?;
            tokio::time::sleep(SHORT).await;
        }
        Fault::Deploys => {
            for _ in 0..9 {
                fleet.deploy().await?;
            }
        }
        Fault::Descriptors => {
            fleet.descriptors(false)?;
            store.cut();
            tokio::time::sleep(SHORT).await;
            fleet.descriptors(true)?;
        }
        Fault::Blocked => {
            held.block(BLOCKED);
            fleet.block_one(BLOCKED).await?;
            tokio::time::sleep(BLOCKED).await;
        }
    }
    let mended = Instant::now();
    if fleet.all_ready(PATIENCE).await.is_err() {
        bail!("after {}: not ready for {PATIENCE:?}; the store said: {}", fault.name(), store.output());
    }
    let ready_after = mended.elapsed();
    // What was renewed just before a renewal was due has two thirds left.
    let left = store.believed() * 2 / 3;
    let silent = !matches!(fault, Fault::Deploys | Fault::Blocked) && begun.elapsed() > left;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let tally = load.stop().await?;
    let had_to = match fault {
        Fault::ClockAhead => Some("the server let their leases end"),
        Fault::Slow => Some("each answer later than a request may take"),
        _ => silent.then_some("no answer in time"),
    };
    Ok(Row { fault, tally, lost: held.lost().await?, had_to, lines: fleet.lines() - lines, ready_after })
}
