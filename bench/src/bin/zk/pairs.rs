//! Acquire and release of locks that nobody else wants, as many as go over one session.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use dlock_bench::contest::{Client, Goal};
use dlock_bench::distance;
use dlock_bench::measure::runtime;
use dlock_bench::peers::{self, Turns};
use dlock_bench::report::Row;
use dlock_interop::peer::{Peer, Setting};

use crate::Bench;
use crate::clients::SESSION;

/// How far off the server is in the second bench, each way.
const DISTANCE: Duration = Duration::from_micros(500);

pub(crate) fn near(bench: &Bench) -> Result<Vec<Row>> {
    runtime(true)?.block_on(measure(bench, bench.server.address(), "", 1.1))
}

pub(crate) fn far(bench: &Bench) -> Result<Vec<Row>> {
    let address = distance::away(bench.server.address(), DISTANCE)?;
    runtime(true)?.block_on(measure(bench, address, ", 0.5 ms away", 1.3))
}

/// `curator` is what dlock has to achieve beside Curator.
async fn measure(bench: &Bench, address: SocketAddr, way: &str, curator: f64) -> Result<Vec<Row>> {
    let (histories, url) = (tempfile::tempdir()?, format!("zk://{address}/"));
    let setting = |process| Setting { url: &url, lease: SESSION, process, histories: histories.path() };
    let mut contenders = Vec::new();
    for (number, (client, name)) in (0..).zip([
        ("dlock", "dlock"),
        ("together", "create and list together, then delete, bare client"),
        ("in-turn", "create, list, delete in turn, bare client"),
    ]) {
        contenders.push(Client::of_peer(
            name,
            "mutex",
            Peer::own(&["client", client], setting(number)).await?,
        ));
    }
    contenders.push(Client::of_peer("Curator", "mutex", Peer::java(&bench.jar, &[], setting(3)).await?));
    let goals = [
        Goal { pairs: Some(0.95), used: Some(1.25) },
        Goal::default(),
        Goal { pairs: Some(curator), used: None },
    ];
    let &Bench { rounds, slice, .. } = bench;
    let turns = Turns { rounds, slice, warm_up: slice * 3, server: None };
    peers::measure(&contenders, &goals, turns, way).await
}
