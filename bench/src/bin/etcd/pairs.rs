//! Acquire and release of locks that nobody else wants, as many as go over one client.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use dlock_bench::distance;
use dlock_bench::measure::{Pace, best, pace_row, peer_pairs, runtime, server_time};
use dlock_bench::report::{Row, Spread};
use dlock_interop::peer::{Peer, Setting};

use crate::Bench;
use crate::clients::LEASE;

const TASKS: [usize; 3] = [1, 8, 64];

/// How far off the server is in the second bench, each way.
const DISTANCE: Duration = Duration::from_micros(500);

/// What ours has to achieve in relation to a client.
struct Goal {
    client: &'static str,
    name: &'static str,
    pairs: Option<f64>,
    /// Processor time of a pair.
    used: Option<f64>,
}

const OTHERS: [Goal; 2] = [
    Goal {
        client: "same",
        name: "two Txn, and a keep-alive every 1.9 s, bare client",
        pairs: Some(0.95),
        used: Some(1.25),
    },
    Goal { client: "go", name: "Mutex of etcd's Go client", pairs: Some(1.0), used: None },
];

pub(crate) fn near(bench: &Bench) -> Result<Vec<Row>> {
    runtime(true)?.block_on(measure(bench, bench.server.address(), ""))
}

pub(crate) fn far(bench: &Bench) -> Result<Vec<Row>> {
    let address = distance::away(bench.server.address(), DISTANCE)?;
    runtime(true)?.block_on(measure(bench, address, ", 0.5 ms away"))
}

/// The processes of all clients, ours first, and what ours has to achieve beside each of the others.
async fn contenders(bench: &Bench, url: &str, histories: &Path) -> Result<(Vec<Peer>, Vec<&'static Goal>)> {
    let setting = |process| Setting { url, lease: LEASE, process, histories };
    let (mut contenders, mut goals) = (vec![Peer::own(&["client", "dlock"], setting(0)).await?], Vec::new());
    for (number, goal) in (1..).zip(&OTHERS) {
        contenders.push(match (goal.client, &bench.go) {
            ("go", None) => continue,
            ("go", Some(program)) => Peer::etcd(program, setting(number)).await?,
            (bare, _) => Peer::own(&["client", bare], setting(number)).await?,
        });
        goals.push(goal);
    }
    Ok((contenders, goals))
}

async fn measure(bench: &Bench, address: SocketAddr, way: &str) -> Result<Vec<Row>> {
    let histories = tempfile::tempdir()?;
    let (mut contenders, goals) = contenders(bench, &format!("etcd://{address}"), histories.path()).await?;
    // Connections and leases are made first.
    for tasks in TASKS.into_iter().rev() {
        for contender in &mut contenders {
            peer_pairs(contender, "mutex", tasks, bench.slice).await?;
        }
    }
    // paces[tasks][client][round]
    let mut paces = vec![vec![Vec::new(); contenders.len()]; TASKS.len()];
    for round in 0..bench.rounds {
        for (&tasks, paces) in TASKS.iter().zip(&mut paces) {
            for turn in 0..contenders.len() {
                // Each round begins with another one.
                let which = (turn + round) % contenders.len();
                let before = server_time(bench.server.pid())?;
                let mut pace = peer_pairs(&mut contenders[which], "mutex", tasks, bench.slice).await?;
                let used = server_time(bench.server.pid())? - before;
                pace.server = used * 1e6 / (pace.rate * bench.slice.as_secs_f64());
                paces[which].push(pace);
            }
        }
    }
    let mut rows = Vec::new();
    for (&tasks, paces) in TASKS.iter().zip(&paces) {
        let (ours, others) = paces.split_first().context("no figures")?;
        rows.push(pace_row(&format!("pairs a second, {tasks} at a time{way}: dlock"), ours));
        for (goal, theirs) in goals.iter().zip(others) {
            let name = goal.name;
            rows.push(pace_row(&format!("pairs a second, {tasks} at a time{way}: {name}"), theirs));
            let ratio = ratio(ours, theirs, |pace| pace.rate);
            let what = format!("    dlock / {name} (of the best rounds: {:.2})", best(ours) / best(theirs));
            let row = Row::spread(what, ratio, "x");
            rows.push(match goal.pairs {
                Some(limit) => row.at_least(ratio.median, limit, "x"),
                None => row,
            });
            if let Some(limit) = goal.used {
                let ratio = self::ratio(ours, theirs, |pace| pace.client);
                let row =
                    Row::spread(format!("    dlock / {name}: processor time of the client"), ratio, "x");
                rows.push(row.at_most(ratio.median, limit, "x"));
            }
        }
    }
    Ok(rows)
}

fn ratio(ours: &[Pace], theirs: &[Pace], figure: fn(&Pace) -> f64) -> Spread {
    Spread::of(ours.iter().zip(theirs).map(|(a, b)| figure(a) / figure(b)).collect())
}
