//! Acquire and release of locks that nobody else wants.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use dlock_core::Locks;
use dlock_interop::peer::{Peer, Setting};
use redis::aio::MultiplexedConnection;

use crate::Bench;
use crate::clients::{self, LEASE, Rslock, Scripts, SetNx};
use crate::recorded::Recorded;
use crate::stats;
use dlock_bench::measure::{Pace, best, drive, pace_row, peer_pairs};
use dlock_bench::report::{Row, Spread};

const TASKS: [usize; 3] = [1, 8, 64];

/// The client, and what ours has to achieve in relation to it: at every concurrency, or at the highest.
const OTHERS: [(&str, Option<f64>, bool); 6] = [
    ("the same scripts, bare client", Some(0.95), true),
    ("the same scripts, bare client with Nagle", None, true),
    ("SET NX PX + compare-and-delete, bare client", Some(0.8), true),
    ("SET NX PX + compare-and-delete, bare client with Nagle", None, true),
    ("rslock", Some(1.0), false),
    ("Redisson", Some(1.5), true),
];

struct Contenders {
    server: MultiplexedConnection,
    ours: Arc<Locks>,
    scripts: [Arc<Scripts>; 2],
    set_nx: [Arc<SetNx>; 2],
    rslock: Arc<Rslock>,
    redisson: Peer,
}

impl Contenders {
    async fn run(&mut self, which: usize, tasks: usize, slice: Duration) -> Result<Pace> {
        let before = stats::cpu(&mut self.server).await?;
        let mut pace = self.drive(which, tasks, slice).await?;
        pace.server =
            (stats::cpu(&mut self.server).await? - before) * 1e6 / (pace.rate * slice.as_secs_f64());
        Ok(pace)
    }

    async fn drive(&mut self, which: usize, tasks: usize, slice: Duration) -> Result<Pace> {
        match which {
            0 => drive(&self.ours, tasks, slice).await,
            1 | 2 => drive(&self.scripts[which - 1], tasks, slice).await,
            3 | 4 => drive(&self.set_nx[which - 3], tasks, slice).await,
            5 => drive(&self.rslock, tasks, slice).await,
            _ => peer_pairs(&mut self.redisson, "rlock", tasks, slice).await,
        }
    }
}

pub(crate) fn uncontended(bench: &Bench) -> Result<Vec<Row>> {
    bench.runtime()?.block_on(measure(bench))
}

async fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let url = &*bench.server.url();
    let histories = tempfile::tempdir()?;
    let setting = Setting { url, lease: LEASE, process: 0, histories: histories.path() };
    let ours = Arc::new(clients::dlock(url).await?);
    let scripts = async |connection| {
        anyhow::Ok(Arc::new(Scripts { connection, recorded: Recorded::of(&*ours, url).await? }))
    };
    let mut contenders = Contenders {
        server: bench.server().await?,
        scripts: [
            scripts(clients::connection(url).await?).await?,
            scripts(clients::default_connection(url).await?).await?,
        ],
        set_nx: [
            Arc::new(SetNx::new(clients::connection(url).await?)),
            Arc::new(SetNx::new(clients::default_connection(url).await?)),
        ],
        rslock: Arc::new(Rslock::new(url)),
        redisson: Peer::java(&bench.jar, &[], setting).await?,
        ours,
    };
    // The virtual machine compiles while it runs.
    for tasks in [64, 8, 1] {
        peer_pairs(&mut contenders.redisson, "rlock", tasks, Duration::from_secs(2)).await?;
    }
    // paces[tasks][client][round]
    let mut paces = vec![vec![Vec::new(); OTHERS.len() + 1]; TASKS.len()];
    // The first round warms up and is not counted.
    for round in 0..=bench.settings.rounds {
        for (&tasks, paces) in TASKS.iter().zip(&mut paces) {
            for turn in 0..=OTHERS.len() {
                // Each round begins with another one.
                let which = (turn + round) % (OTHERS.len() + 1);
                let pace = contenders.run(which, tasks, bench.settings.slice).await?;
                if round > 0 {
                    paces[which].push(pace);
                }
            }
        }
    }
    contenders.ours.shutdown(Duration::from_secs(10)).await?;
    let mut rows = Vec::new();
    for (&tasks, paces) in TASKS.iter().zip(&paces) {
        let (ours, others) = paces.split_first().context("no figures")?;
        rows.push(pace_row(&format!("pairs a second, {tasks} at a time: dlock"), ours));
        for ((name, limit, always), theirs) in OTHERS.iter().zip(others) {
            rows.push(pace_row(&format!("pairs a second, {tasks} at a time: {name}"), theirs));
            let ratio = Spread::of(ours.iter().zip(theirs).map(|(a, b)| a.rate / b.rate).collect());
            let what = format!("    dlock / {name} (of the best rounds: {:.2})", best(ours) / best(theirs));
            let row = Row::spread(what, ratio, "x");
            rows.push(match limit {
                Some(limit) if *always || tasks == 64 => row.at_least(ratio.median, *limit, "x"),
                _ => row,
            });
        }
    }
    Ok(rows)
}
