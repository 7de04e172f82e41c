//! Ten locks at once, beside ten locks one after the other.

use std::time::{Duration, Instant};

use anyhow::Result;
use dlock_core::Locks;

use crate::Bench;
use crate::clients;
use dlock_bench::report::{Row, Spread};

const KEYS: usize = 10;
/// Batches a round.
const BATCHES: usize = 50;

pub(crate) fn of_ten(bench: &Bench) -> Result<Vec<Row>> {
    bench.runtime()?.block_on(measure(bench))
}

async fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let locks = clients::dlock(&bench.server.url()).await?;
    let keys: Vec<String> = (0..KEYS).map(|n| format!("account_{n}")).collect();
    // Connections are made and scripts are loaded before it counts.
    locks.lock_all(&keys).run(async {}).await?;
    one_by_one(&locks, &keys).await?;

    let (mut together, mut apart, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.settings.rounds {
        let (mut all, mut each) = (Duration::ZERO, Duration::ZERO);
        // They take turns, so that they see the same machine.
        for _ in 0..BATCHES {
            let start = Instant::now();
            let guard = locks.lock_all(&keys).acquire().await?;
            all += start.elapsed();
            guard.release().await?;
            each += one_by_one(&locks, &keys).await?;
        }
        let micros = |time: Duration| time.as_secs_f64() * 1e6 / BATCHES as f64;
        together.push(micros(all));
        apart.push(micros(each));
        ratios.push(each.as_secs_f64() / all.as_secs_f64());
    }
    locks.shutdown(Duration::from_secs(10)).await?;
    let ratio = Spread::of(ratios);
    Ok(vec![
        Row::spread(format!("acquire of {KEYS} locks at once"), Spread::of(together), "us"),
        Row::spread(format!("acquires of {KEYS} locks one after the other"), Spread::of(apart), "us"),
        Row::spread("    one after the other / at once", ratio, "x").at_least(ratio.median, 5.0, "x"),
    ])
}

/// How long it takes to take them one after the other.
async fn one_by_one(locks: &Locks, keys: &[String]) -> Result<Duration> {
    let mut guards = Vec::with_capacity(keys.len());
    let start = Instant::now();
    for key in keys {
        guards.push(locks.lock(key).acquire().await?);
    }
    let took = start.elapsed();
    for guard in guards {
        guard.release().await?;
    }
    Ok(took)
}
