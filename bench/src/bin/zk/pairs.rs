//! Acquire and release of locks that nobody else wants, as many as go over one session.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use dlock_bench::measure::{Pace, best, drive, java_pairs, pace_row};
use dlock_bench::report::{Row, Spread};
use dlock_core::Locks;
use dlock_interop::peer::{Peer, Setting};

use crate::Bench;
use crate::clients::{self, Bare, SESSION};

const TASKS: [usize; 3] = [1, 8, 64];

/// The client, and what ours has to achieve in relation to it with how many tasks.
const OTHERS: [(&str, [Option<f64>; TASKS.len()]); 3] = [
    ("create and list together, then delete, bare client", [None, None, Some(0.9)]),
    ("create, list, delete in turn, bare client", [None, None, None]),
    ("Curator", [Some(1.3), Some(1.3), Some(1.3)]),
];

struct Contenders {
    ours: Arc<Locks>,
    together: Arc<Bare>,
    in_turn: Arc<Bare>,
    curator: Peer,
}

impl Contenders {
    async fn run(&mut self, which: usize, tasks: usize, slice: Duration) -> Result<Pace> {
        match which {
            0 => drive(&self.ours, tasks, slice).await,
            1 => drive(&self.together, tasks, slice).await,
            2 => drive(&self.in_turn, tasks, slice).await,
            _ => java_pairs(&mut self.curator, "mutex", tasks, slice).await,
        }
    }
}

pub(crate) fn uncontended(bench: &Bench) -> Result<Vec<Row>> {
    bench.runtime()?.block_on(measure(bench))
}

async fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let (url, histories) = (&*bench.server.url(), tempfile::tempdir()?);
    let setting = Setting { url, lease: SESSION, process: 0, histories: histories.path() };
    let mut contenders = Contenders {
        ours: Arc::new(clients::dlock(url).await?),
        together: Arc::new(Bare::connect(&bench.server, false).await?),
        in_turn: Arc::new(Bare::connect(&bench.server, true).await?),
        curator: Peer::java(&bench.jar, &[], setting).await?,
    };
    contenders.together.prepare(64).await?;
    // The virtual machines compile while they run.
    for tasks in [64, 8, 1] {
        java_pairs(&mut contenders.curator, "mutex", tasks, Duration::from_secs(2)).await?;
    }
    // paces[tasks][client][round]
    let mut paces = vec![vec![Vec::new(); OTHERS.len() + 1]; TASKS.len()];
    // The first round warms up and is not counted.
    for round in 0..=bench.rounds {
        for (&tasks, paces) in TASKS.iter().zip(&mut paces) {
            for turn in 0..=OTHERS.len() {
                // Each round begins with another one.
                let which = (turn + round) % (OTHERS.len() + 1);
                let pace = contenders.run(which, tasks, bench.slice).await?;
                if round > 0 {
                    paces[which].push(pace);
                }
            }
        }
    }
    contenders.ours.shutdown(SESSION).await?;
    let mut rows = Vec::new();
    for (at, (&tasks, paces)) in TASKS.iter().zip(&paces).enumerate() {
        let (ours, others) = paces.split_first().context("no figures")?;
        rows.push(pace_row(&format!("pairs a second, {tasks} at a time: dlock"), ours));
        for ((name, limits), theirs) in OTHERS.iter().zip(others) {
            rows.push(pace_row(&format!("pairs a second, {tasks} at a time: {name}"), theirs));
            let ratio = Spread::of(ours.iter().zip(theirs).map(|(a, b)| a.rate / b.rate).collect());
            let what = format!("    dlock / {name} (of the best rounds: {:.2})", best(ours) / best(theirs));
            let row = Row::spread(what, ratio, "x");
            rows.push(match limits[at] {
                Some(limit) => row.at_least(ratio.median, limit, "x"),
                None => row,
            });
        }
    }
    Ok(rows)
}
