//! Acquire and release of locks that nobody else wants, as many as go over one session.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use dlock_bench::distance;
use dlock_bench::measure::runtime;
use dlock_bench::peers::{self, Goal, Turns};
use dlock_bench::report::Row;
use dlock_interop::peer::{Peer, Setting};

use crate::Bench;
use crate::clients::SESSION;

/// How far off the server is in the second bench, each way.
const DISTANCE: Duration = Duration::from_micros(500);

/// What ours has to achieve beside each of the others; `curator` is beside Curator.
const fn goals(curator: f64) -> [Goal; 3] {
    let together = "create and list together, then delete, bare client";
    let in_turn = "create, list, delete in turn, bare client";
    [
        Goal { name: together, pairs: Some(0.95), used: Some(1.25) },
        Goal { name: in_turn, pairs: None, used: None },
        Goal { name: "Curator", pairs: Some(curator), used: None },
    ]
}

pub(crate) fn near(bench: &Bench) -> Result<Vec<Row>> {
    runtime(true)?.block_on(measure(bench, bench.server.address(), "", &goals(1.1)))
}

pub(crate) fn far(bench: &Bench) -> Result<Vec<Row>> {
    let address = distance::away(bench.server.address(), DISTANCE)?;
    runtime(true)?.block_on(measure(bench, address, ", 0.5 ms away", &goals(1.3)))
}

async fn measure(bench: &Bench, address: SocketAddr, way: &str, goals: &[Goal]) -> Result<Vec<Row>> {
    let (histories, url) = (tempfile::tempdir()?, format!("zk://{address}/"));
    let setting = |process| Setting { url: &url, lease: SESSION, process, histories: histories.path() };
    let mut contenders = Vec::new();
    for (number, client) in (0..).zip(["dlock", "together", "in-turn"]) {
        contenders.push(Peer::own(&["client", client], setting(number)).await?);
    }
    contenders.push(Peer::java(&bench.jar, &[], setting(3)).await?);
    let &Bench { rounds, slice, .. } = bench;
    let turns = Turns { rounds, slice, warm_up: slice * 3, server: None };
    peers::measure(&mut contenders, goals, turns, way).await
}
