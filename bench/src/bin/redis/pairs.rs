//! Acquire and release of locks that nobody else wants.

use std::time::Duration;

use anyhow::Result;
use dlock_bench::contest::{Client, Goal, compare, take_turns};
use dlock_bench::report::Row;
use dlock_interop::peer::{Peer, Setting};

use crate::Bench;
use crate::clients::{self, LEASE, Rslock, Scripts, SetNx};
use crate::recorded::Recorded;
use crate::stats;

const TASKS: [usize; 3] = [1, 8, 64];

/// What ours has to achieve in relation to each of the others: at every concurrency, or at the highest.
const GOALS: [(Option<f64>, bool); 6] = [
    (Some(0.95), true),
    (None, true),
    (Some(0.8), true),
    (None, true),
    (Some(1.0), false),
    (Some(1.5), true),
];

pub(crate) fn uncontended(bench: &Bench) -> Result<Vec<Row>> {
    bench.runtime()?.block_on(measure(bench))
}

async fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let url = &*bench.server.url();
    let histories = tempfile::tempdir()?;
    let setting = Setting { url, lease: LEASE, process: 0, histories: histories.path() };
    let ours = clients::dlock(url).await?;
    let (plain, nagle) = (clients::connection(url).await?, clients::default_connection(url).await?);
    let scripts =
        async |connection| anyhow::Ok(Scripts { connection, recorded: Recorded::of(&ours, url).await? });
    let (same, same_nagle) = (scripts(plain.clone()).await?, scripts(nagle.clone()).await?);
    let redisson = Client::of_peer("Redisson", "rlock", Peer::java(&bench.jar, &[], setting).await?);
    // The virtual machine compiles while it runs.
    for tasks in [64, 8, 1] {
        redisson.drive(tasks, Duration::from_secs(2)).await?;
    }
    let clients = [
        Client::new("dlock", ours.clone()),
        Client::new("the same scripts, bare client", same),
        Client::new("the same scripts, bare client with Nagle", same_nagle),
        Client::new("SET NX PX + compare-and-delete, bare client", SetNx::new(plain)),
        Client::new("SET NX PX + compare-and-delete, bare client with Nagle", SetNx::new(nagle)),
        Client::new("rslock", Rslock::new(url)),
        redisson,
    ];
    let (clients, mut server) = (clients.each_ref(), bench.server().await?);
    let used = async || stats::cpu(&mut server).await;
    let paces = take_turns(&clients, &TASKS, bench.settings.rounds, bench.settings.slice, used).await?;
    ours.shutdown(Duration::from_secs(10)).await?;
    let mut rows = Vec::new();
    for (&tasks, paces) in TASKS.iter().zip(&paces) {
        let goals =
            GOALS.map(|(pairs, always)| Goal { pairs: pairs.filter(|_| always || tasks == 64), used: None });
        rows.extend(compare(&format!("pairs a second, {tasks} at a time"), &clients, paces, &goals)?);
    }
    Ok(rows)
}
