//! How many commands the operations take, counted at the server.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use dlock_core::Locks;
use redis::aio::MultiplexedConnection;
use tokio::process::Command;
use tokio::task::JoinHandle;

use crate::Bench;
use crate::clients;
use crate::contend::Part;
use crate::stats::Calls;
use dlock_bench::report::Row;

const PAIRS: usize = 1_000;
const WAITERS: usize = 200;
const TURNS: usize = 5;

pub(crate) fn commands(bench: &Bench) -> Result<Vec<Row>> {
    bench.runtime()?.block_on(async {
        let mut rows = round_trips(bench).await?;
        rows.push(herd(bench, false).await?);
        rows.push(herd(bench, true).await?);
        Ok(rows)
    })
}

async fn round_trips(bench: &Bench) -> Result<Vec<Row>> {
    let mut server = bench.server().await?;
    let locks = clients::dlock(&bench.server.url()).await?;
    // Connections are made and scripts are loaded before it counts. That of the renewals is opened in the background at
    // the first grant, and is there when one was made.
    let first = locks.lock("counted").with_lease(Duration::from_millis(300)).acquire().await?;
    while locks.stats().renewals == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    first.release().await?;
    let mut guards = Vec::with_capacity(PAIRS);
    let start = Calls::now(&mut server).await?;
    for n in 0..PAIRS {
        guards.push(locks.lock(format!("counted_{n}")).acquire().await?);
    }
    let acquired = Calls::now(&mut server).await?;
    for guard in guards {
        guard.release().await?;
    }
    let released = Calls::now(&mut server).await?;
    let outer = locks.lock("counted");
    let (before, after) = outer
        .run(async {
            let before = Calls::now(&mut server).await?;
            for _ in 0..PAIRS {
                outer.acquire().await?.release().await?;
            }
            anyhow::Ok((before, Calls::now(&mut server).await?))
        })
        .await??;
    locks.shutdown(Duration::from_secs(10)).await?;
    let row = |what: &str, from: &Calls, to: &Calls, limit: f64| {
        let sent = to.sent_since(from);
        let each = sent.total() as f64 / PAIRS as f64;
        Row::new(format!("commands of {what}"), each, "").at_most(each, limit, "").beside(sent.listed())
    };
    Ok(vec![
        row("an acquire", &start, &acquired, 1.0),
        row("a release", &acquired, &released, 1.0),
        row("a re-entrant acquire and release", &before, &after, 0.0),
    ])
}

/// Many tasks of this process want one lock, with or without another process that wants it too. It counts from when
/// they all are in line: the first try of each, before it knows of the others, is no part of a handoff.
async fn herd(bench: &Bench, rival: bool) -> Result<Row> {
    let (mut server, url) = (bench.server().await?, bench.server.url());
    let locks = Arc::new(clients::dlock(&url).await?);
    let first = locks.lock("herd").acquire().await?;
    let idle = Calls::now(&mut server).await?;
    let waiters = line_up(&locks);
    loop {
        let sent = Calls::now(&mut server).await?.sent_since(&idle);
        // The first in line listens for the release.
        if sent.of("evalsha") >= WAITERS as u64 && sent.of("subscribe") > 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let histories = tempfile::tempdir()?;
    let part = Part {
        client: "dlock".to_owned(),
        url: url.clone(),
        key: "herd".to_owned(),
        process: 0,
        count: WAITERS as u64,
        hold: 1_000,
        pause: 1_000,
        history: histories.path().join("rival"),
    };
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("contend").args(part.arguments()).stdout(Stdio::null()).kill_on_drop(true);
    let before = Calls::now(&mut server).await?;
    let other = if rival { Some(command.spawn().context("cannot start the rival")?) } else { None };
    first.release().await?;
    for waiter in waiters {
        waiter.await??;
    }
    let mut handoffs = WAITERS * TURNS;
    if let Some(mut other) = other {
        other.wait().await?;
        handoffs += WAITERS;
    }
    let sent = since(&mut server, &before).await?;
    locks.shutdown(Duration::from_secs(10)).await?;
    let each = sent.total() as f64 / handoffs as f64;
    let what = if rival { "and another process" } else { "in one process" };
    let row = Row::new(format!("commands of a handoff, {WAITERS} waiters {what}"), each, "");
    Ok(row.at_most(each, if rival { 3.0 } else { 2.05 }, "").beside(sent.listed()))
}

async fn since(server: &mut MultiplexedConnection, before: &Calls) -> Result<Calls> {
    Ok(Calls::now(server).await?.sent_since(before))
}

fn line_up(locks: &Arc<Locks>) -> Vec<JoinHandle<Result<()>>> {
    let waiter = |_| {
        let locks = Arc::clone(locks);
        tokio::spawn(async move {
            for _ in 0..TURNS {
                let guard = locks.lock("herd").acquire().await?;
                tokio::time::sleep(Duration::from_millis(1)).await;
                guard.release().await?;
            }
            Ok(())
        })
    };
    (0..WAITERS).map(waiter).collect()
}
