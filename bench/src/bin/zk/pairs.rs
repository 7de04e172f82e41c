//! Acquire and release of locks that nobody else wants, as many as go over one session.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use dlock_bench::distance;
use dlock_bench::measure::{Pace, best, pace_row, peer_pairs, runtime};
use dlock_bench::report::{Row, Spread};
use dlock_interop::peer::{Peer, Setting};

use crate::Bench;
use crate::clients::SESSION;

const TASKS: [usize; 3] = [1, 8, 64];

/// How far off the server is in the second bench, each way.
const DISTANCE: Duration = Duration::from_micros(500);

/// What ours has to achieve in relation to a client.
struct Goal {
    client: &'static str,
    name: &'static str,
    pairs: Option<f64>,
    far_pairs: Option<f64>,
    /// Processor time of a pair.
    used: Option<f64>,
}

const OTHERS: [Goal; 3] = [
    Goal {
        client: "together",
        name: "create and list together, then delete, bare client",
        pairs: Some(0.95),
        far_pairs: Some(0.95),
        used: Some(1.25),
    },
    Goal {
        client: "in-turn",
        name: "create, list, delete in turn, bare client",
        pairs: None,
        far_pairs: None,
        used: None,
    },
    Goal { client: "curator", name: "Curator", pairs: Some(1.1), far_pairs: Some(1.3), used: None },
];

pub(crate) fn near(bench: &Bench) -> Result<Vec<Row>> {
    runtime(true)?.block_on(measure(bench, bench.server.address(), "", |goal| goal.pairs))
}

pub(crate) fn far(bench: &Bench) -> Result<Vec<Row>> {
    let address = distance::away(bench.server.address(), DISTANCE)?;
    runtime(true)?.block_on(measure(bench, address, ", 0.5 ms away", |goal| goal.far_pairs))
}

/// The processes of all clients, ours first.
async fn contenders(bench: &Bench, url: &str, histories: &std::path::Path) -> Result<Vec<Peer>> {
    let setting = |process| Setting { url, lease: SESSION, process, histories };
    let mut contenders = vec![Peer::own(&["client", "dlock"], setting(0)).await?];
    for (number, goal) in (1..).zip(&OTHERS) {
        contenders.push(match goal.client {
            "curator" => Peer::java(&bench.jar, &[], setting(number)).await?,
            bare => Peer::own(&["client", bare], setting(number)).await?,
        });
    }
    Ok(contenders)
}

async fn measure(
    bench: &Bench,
    address: SocketAddr,
    way: &str,
    limit: impl Fn(&Goal) -> Option<f64>,
) -> Result<Vec<Row>> {
    let histories = tempfile::tempdir()?;
    let mut contenders = contenders(bench, &format!("zk://{address}/"), histories.path()).await?;
    // The virtual machines compile while they run.
    for tasks in [64, 8, 1] {
        for contender in &mut contenders {
            peer_pairs(contender, "mutex", tasks, bench.slice * 3).await?;
        }
    }
    // paces[tasks][client][round]
    let mut paces = vec![vec![Vec::new(); contenders.len()]; TASKS.len()];
    for round in 0..bench.rounds {
        for (&tasks, paces) in TASKS.iter().zip(&mut paces) {
            for turn in 0..contenders.len() {
                // Each round begins with another one.
                let which = (turn + round) % contenders.len();
                let pace = peer_pairs(&mut contenders[which], "mutex", tasks, bench.slice).await?;
                paces[which].push(pace);
            }
        }
    }
    let mut rows = Vec::new();
    for (&tasks, paces) in TASKS.iter().zip(&paces) {
        let (ours, others) = paces.split_first().context("no figures")?;
        rows.push(pace_row(&format!("pairs a second, {tasks} at a time{way}: dlock"), ours));
        for (goal, theirs) in OTHERS.iter().zip(others) {
            let name = goal.name;
            rows.push(pace_row(&format!("pairs a second, {tasks} at a time{way}: {name}"), theirs));
            let ratio = ratio(ours, theirs, |pace| pace.rate);
            let what = format!("    dlock / {name} (of the best rounds: {:.2})", best(ours) / best(theirs));
            let row = Row::spread(what, ratio, "x");
            rows.push(match limit(goal) {
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
