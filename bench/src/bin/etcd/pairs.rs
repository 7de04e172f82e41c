//! Acquire and release of locks that nobody else wants, as many as go over one client.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use dlock_bench::distance;
use dlock_bench::measure::runtime;
use dlock_bench::peers::{self, Goal, Turns};
use dlock_bench::report::Row;
use dlock_interop::peer::{Peer, Setting};

use crate::Bench;
use crate::clients::LEASE;

/// How far off the server is in the second bench, each way.
const DISTANCE: Duration = Duration::from_micros(500);

const BARE: Goal =
    Goal { name: "two Txn, and a keep-alive every 1.9 s, bare client", pairs: Some(0.95), used: Some(1.25) };
const GO: Goal = Goal { name: "Mutex of etcd's Go client", pairs: Some(1.0), used: None };

pub(crate) fn near(bench: &Bench) -> Result<Vec<Row>> {
    runtime(true)?.block_on(measure(bench, bench.server.address(), ""))
}

pub(crate) fn far(bench: &Bench) -> Result<Vec<Row>> {
    let address = distance::away(bench.server.address(), DISTANCE)?;
    runtime(true)?.block_on(measure(bench, address, ", 0.5 ms away"))
}

/// The processes of all clients, ours first, and what ours has to achieve beside each of the others.
async fn contenders(bench: &Bench, url: &str, histories: &Path) -> Result<(Vec<Peer>, Vec<Goal>)> {
    let setting = |process| Setting { url, lease: LEASE, process, histories };
    let ours = Peer::own(&["client", "dlock"], setting(0)).await?;
    let bare = Peer::own(&["client", "same"], setting(1)).await?;
    let (mut contenders, mut goals) = (vec![ours, bare], vec![BARE]);
    if let Some(program) = &bench.go {
        contenders.push(Peer::etcd(program, setting(2)).await?);
        goals.push(GO);
    }
    Ok((contenders, goals))
}

async fn measure(bench: &Bench, address: SocketAddr, way: &str) -> Result<Vec<Row>> {
    let histories = tempfile::tempdir()?;
    let (mut contenders, goals) = contenders(bench, &format!("etcd://{address}"), histories.path()).await?;
    let &Bench { rounds, slice, .. } = bench;
    let turns = Turns { rounds, slice, warm_up: slice, server: Some(bench.server.pid()) };
    peers::measure(&mut contenders, &goals, turns, way).await
}
