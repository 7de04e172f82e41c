//! Acquire and release of locks that nobody else wants, on a server that is some way off, and on a cluster.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, Result};
use dlock_bench::contest::{Client, Goal, compare, take_turns};
use dlock_bench::distance;
use dlock_bench::measure::Pairs;
use dlock_bench::report::Row;
use dlock_rig::servers::redis::RedisCluster;
use redis::aio::MultiplexedConnection;

use crate::Bench;
use crate::clients::{self, Rslock, SetNx};
use crate::stats;

const TASKS: [usize; 3] = [1, 8, 64];

/// How far off the server is, each way.
const DISTANCE: Duration = Duration::from_micros(500);

const BARE: &str = "SET NX PX + compare-and-delete, bare client";

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
            Client::new("dlock", clients::dlock(&url).await?),
            Client::new(BARE, SetNx::new(clients::connection(&url).await?)),
            Client::new("rslock", Rslock::new(&url)),
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
            Client::new("dlock", clients::dlock(&cluster.url()).await?),
            Client::new(BARE, Routed { masters, homes }),
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
    let clients: Vec<_> = clients.iter().collect();
    let used = async || used(&mut servers).await;
    let paces = take_turns(&clients, &TASKS, bench.settings.rounds, bench.settings.slice, used).await?;
    let mut rows = Vec::new();
    for (tasks, paces) in TASKS.iter().zip(&paces) {
        let what = format!("pairs a second, {place}, {tasks} at a time");
        rows.extend(compare(&what, &clients, paces, &[Goal::default(); 2])?);
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
