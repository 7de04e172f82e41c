//! Acquire and release of locks that nobody else wants, on a server that is some way off, and on a cluster.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use dlock_bench::distance;
use dlock_bench::measure::{Pace, Pairs, drive, pace_row};
use dlock_bench::report::{Row, Spread};
use dlock_core::Locks;
use dlock_rig::servers::redis::RedisCluster;
use redis::aio::MultiplexedConnection;

use crate::Bench;
use crate::clients::{self, Rslock, SetNx};
use crate::stats;

const TASKS: [usize; 3] = [1, 8, 64];

/// How far off the server is, each way.
const DISTANCE: Duration = Duration::from_micros(500);

/// What takes turns.
enum Client {
    Dlock(Arc<Locks>),
    SetNx(Arc<SetNx>),
    Rslock(Arc<Rslock>),
    Routed(Arc<Routed>),
}

impl Client {
    const fn name(&self) -> &'static str {
        match self {
            Self::Dlock(_) => "dlock",
            Self::SetNx(_) | Self::Routed(_) => "SET NX PX + compare-and-delete, bare client",
            Self::Rslock(_) => "rslock",
        }
    }

    async fn drive(&self, tasks: usize, slice: Duration) -> Result<Pace> {
        match self {
            Self::Dlock(client) => drive(client, tasks, slice).await,
            Self::SetNx(client) => drive(client, tasks, slice).await,
            Self::Rslock(client) => drive(client, tasks, slice).await,
            Self::Routed(client) => drive(client, tasks, slice).await,
        }
    }
}

/// The bare client on a cluster: a connection to each master, and for each key its master.
struct Routed {
    masters: Vec<SetNx>,
    homes: HashMap<String, usize>,
}

impl Pairs for Routed {
    async fn pair(&self, key: &str) -> Result<()> {
        self.masters[*self.homes.get(key).context("a key that is not known")?].pair(key).await
    }
}

pub(crate) fn at_a_distance(bench: &Bench) -> Result<Vec<Row>> {
    bench.runtime()?.block_on(async {
        let url = bench.server.url_through(distance::away(bench.server.address(), DISTANCE)?);
        let clients = [
            Client::Dlock(Arc::new(clients::dlock(&url).await?)),
            Client::SetNx(Arc::new(SetNx::new(clients::connection(&url).await?))),
            Client::Rslock(Arc::new(Rslock::new(&url))),
        ];
        measure(bench, "0.5 ms away", &clients, vec![bench.server().await?]).await
    })
}

pub(crate) fn on_a_cluster(bench: &Bench) -> Result<Vec<Row>> {
    let cluster = RedisCluster::start()?;
    bench.runtime()?.block_on(async {
        let keys = (0..TASKS[TASKS.len() - 1]).map(|task| format!("room_{task}"));
        let homes = keys.map(|key| (key.clone(), cluster.master_of(&key))).collect();
        let (mut masters, mut servers) = (Vec::new(), Vec::new());
        for node in &cluster.nodes()[..3] {
            masters.push(SetNx::new(clients::connection(&node.url()).await?));
            servers.push(clients::connection(&node.url()).await?);
        }
        let clients = [
            Client::Dlock(Arc::new(clients::dlock(&cluster.url()).await?)),
            Client::Routed(Arc::new(Routed { masters, homes })),
        ];
        measure(bench, "a cluster of three", &clients, servers).await
    })
}

async fn measure(
    bench: &Bench,
    place: &str,
    clients: &[Client],
    mut servers: Vec<MultiplexedConnection>,
) -> Result<Vec<Row>> {
    // paces[tasks][client][round]
    let mut paces = vec![vec![Vec::new(); clients.len()]; TASKS.len()];
    // The first round warms up and is not counted.
    for round in 0..=bench.settings.rounds {
        for (&tasks, paces) in TASKS.iter().zip(&mut paces) {
            for turn in 0..clients.len() {
                let which = (turn + round) % clients.len();
                let before = used(&mut servers).await?;
                let mut pace = clients[which].drive(tasks, bench.settings.slice).await?;
                let used = used(&mut servers).await? - before;
                pace.server = used * 1e6 / (pace.rate * bench.settings.slice.as_secs_f64());
                if round > 0 {
                    paces[which].push(pace);
                }
            }
        }
    }
    let mut rows = Vec::new();
    for (&tasks, paces) in TASKS.iter().zip(&paces) {
        for (client, theirs) in clients.iter().zip(paces) {
            let name = client.name();
            rows.push(pace_row(&format!("pairs a second, {place}, {tasks} at a time: {name}"), theirs));
            if !matches!(client, Client::Dlock(_)) {
                let ratio = paces[0].iter().zip(theirs).map(|(ours, theirs)| ours.rate / theirs.rate);
                rows.push(Row::spread(format!("    dlock / {name}"), Spread::of(ratio.collect()), "x"));
            }
        }
    }
    Ok(rows)
}

/// The seconds of processor time of all servers.
async fn used(servers: &mut [MultiplexedConnection]) -> Result<f64> {
    let mut sum = 0.0;
    for server in servers {
        sum += stats::cpu(server).await?;
    }
    Ok(sum)
}
