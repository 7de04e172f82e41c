//! Acquire and release of locks that nobody else wants, as many as go over one client.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use dlock_bench::contest::{Client, Goal};
use dlock_bench::distance;
use dlock_bench::measure::runtime;
use dlock_bench::peers::{self, Turns};
use dlock_bench::report::Row;
use dlock_interop::peer::{Peer, Setting};

use crate::Bench;
use crate::clients::LEASE;

/// How far off the server is in the second bench, each way.
const DISTANCE: Duration = Duration::from_micros(500);

/// What dlock has to achieve beside the bare client, and beside etcd's own.
const GOALS: [Goal; 2] =
    [Goal { pairs: Some(0.95), used: Some(1.25) }, Goal { pairs: Some(1.0), used: None }];

pub(crate) fn near(bench: &Bench) -> Result<Vec<Row>> {
    runtime(true)?.block_on(measure(bench, bench.server.address(), ""))
}

pub(crate) fn far(bench: &Bench) -> Result<Vec<Row>> {
    let address = distance::away(bench.server.address(), DISTANCE)?;
    runtime(true)?.block_on(measure(bench, address, ", 0.5 ms away"))
}

/// The processes of all clients, ours first.
async fn contenders(bench: &Bench, url: &str, histories: &Path) -> Result<Vec<Client>> {
    let setting = |process| Setting { url, lease: LEASE, process, histories };
    let client = |name, peer| Client::of_peer(name, "mutex", peer);
    let bare = "two Txn, and a keep-alive every 1.9 s, bare client";
    let mut contenders = vec![
        client("dlock", Peer::own(&["client", "dlock"], setting(0)).await?),
        client(bare, Peer::own(&["client", "same"], setting(1)).await?),
    ];
    if let Some(program) = &bench.go {
        contenders.push(client("Mutex of etcd's Go client", Peer::etcd(program, setting(2)).await?));
    }
    Ok(contenders)
}

async fn measure(bench: &Bench, address: SocketAddr, way: &str) -> Result<Vec<Row>> {
    let histories = tempfile::tempdir()?;
    let contenders = contenders(bench, &format!("etcd://{address}"), histories.path()).await?;
    let &Bench { rounds, slice, .. } = bench;
    let turns = Turns { rounds, slice, warm_up: slice, server: Some(bench.server.pid()) };
    peers::measure(&contenders, &GOALS, turns, way).await
}
