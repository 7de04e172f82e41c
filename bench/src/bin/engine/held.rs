//! Many locks held for a while: what they weigh, and what it takes to keep them.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use dlock::{Guard, Locks, Memory};

use crate::measure::{self, Cpu, Settings};
use crate::sqlite;
use dlock_bench::report::Row;

const LOCKS: u32 = 10_000;

pub(crate) fn in_memory(settings: &Settings) -> Result<Vec<Row>> {
    let runtime = measure::runtime()?;
    let locks = Locks::builder(Memory::new()).build()?;
    let mut guards = Vec::with_capacity(LOCKS as usize);
    let mut result = Ok(());
    let allocated = allocation_counter::measure(|| result = runtime.block_on(hold(&locks, &mut guards)));
    result?;
    let bytes = allocated.bytes_current as f64 / f64::from(LOCKS);
    let mut rows = vec![
        Row::new(format!("memory: bytes of each of {LOCKS} locks held"), bytes, "B")
            .at_most(bytes, 1_000.0, "B"),
    ];
    rows.extend(runtime.block_on(keep("memory", &locks, guards, settings))?);
    Ok(rows)
}

pub(crate) fn in_sqlite(settings: &Settings) -> Result<Vec<Row>> {
    let runtime = measure::runtime()?;
    let dir = tempfile::tempdir()?;
    let url = sqlite::url(&dir);
    let locks = runtime.block_on(async { dlock::connect(&url).await })?;
    let mut guards = Vec::with_capacity(LOCKS as usize);
    let before = measure::resident()?;
    runtime.block_on(hold(&locks, &mut guards))?;
    // Its driver allocates on a thread of its own, which only the whole process shows.
    let resident = measure::resident()?.saturating_sub(before) as f64 / f64::from(LOCKS);
    let mut rows = vec![
        Row::new(format!("sqlite: resident bytes of each of {LOCKS} locks held"), resident, "B")
            .at_most(resident, 1_000.0, "B"),
    ];
    rows.extend(runtime.block_on(keep("sqlite", &locks, guards, settings))?);
    Ok(rows)
}

async fn hold(locks: &Locks, guards: &mut Vec<Guard>) -> Result<()> {
    for n in 0..LOCKS {
        guards.push(locks.lock(format!("room_{n}")).acquire().await?);
    }
    Ok(())
}

/// Holds them for the time of the settings, in which the default lease of 30 s is renewed every 10 s.
async fn keep(name: &str, locks: &Locks, guards: Vec<Guard>, settings: &Settings) -> Result<Vec<Row>> {
    let (before, stats, start) = (Cpu::now()?, locks.stats(), Instant::now());
    tokio::time::sleep(settings.hold).await;
    let (after, took) = (Cpu::now()?, start.elapsed());
    let renewals = locks.stats().renewals - stats.renewals;
    for guard in &guards {
        guard.check().context("a lock was lost while it was only held")?;
    }
    drop(guards);
    locks.shutdown(Duration::from_secs(60)).await?;
    let share = |used: Duration| 100.0 * used.as_secs_f64() / took.as_secs_f64();
    let keeper = share(after.keeper.saturating_sub(before.keeper));
    let all = share(after.all.saturating_sub(before.all));
    let seconds = took.as_secs();
    Ok(vec![
        Row::new(format!("{name}: the keeper thread's share of a core over {seconds} s"), keeper, "%")
            .at_most(keeper, 5.0, "%"),
        Row::new(format!("{name}: the share of all threads, driver included"), all, "%"),
        Row::new(format!("{name}: renewals in that time"), renewals as f64, ""),
    ])
}
