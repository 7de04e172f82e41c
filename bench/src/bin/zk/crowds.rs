//! Thousands of waiters of one key, and thousands of acquires that are dropped.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use dlock_bench::measure::{runtime, server_time};
use dlock_bench::report::Row;
use dlock_interop::peer::{Peer, Setting};
use dlock_rig::proxy::{Jute, Proxy};
use dlock_testkit::now_ns;

use crate::Bench;
use crate::clients::{self, SESSION};

/// How many nodes a process has in one queue.
const NODES: usize = 16;

/// How long anything may take that is certain to come.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn of_one_process(bench: &Bench) -> Result<Vec<Row>> {
    runtime(true)?.block_on(wait(bench, 1, if bench.quick { 500 } else { 5_000 }))
}

pub(crate) fn of_eight(bench: &Bench) -> Result<Vec<Row>> {
    runtime(true)?.block_on(wait(bench, 8, if bench.quick { 50 } else { 200 }))
}

pub(crate) fn dropped(bench: &Bench) -> Result<Vec<Row>> {
    runtime(true)?.block_on(drop_many(bench, if bench.quick { 2_000 } else { 10_000 }))
}

async fn processes(url: &str, count: u32, histories: &Path) -> Result<Vec<Peer>> {
    let mut processes = Vec::new();
    for process in 0..count {
        let setting = Setting { url, lease: SESSION, process, histories };
        processes.push(Peer::own(&["client", "dlock"], setting).await?);
    }
    Ok(processes)
}

async fn wait(bench: &Bench, processes: u32, each: usize) -> Result<Vec<Row>> {
    let key = format!("crowd_{processes}_{each}");
    let proxy = Proxy::speaking(Jute::default(), bench.server.address())?;
    let histories = tempfile::tempdir()?;
    let holder = clients::dlock(&bench.server.url()).await?;
    let guard = holder.lock(&key).acquire().await?;
    let url = format!("zk://{}/", proxy.address());
    let mut crowd = self::processes(&url, processes, histories.path()).await?;
    for process in &mut crowd {
        process.ask(&format!("wait {key} {each}")).await?;
    }
    let nodes = processes as usize * NODES.min(each);
    let limit = Instant::now() + PATIENCE;
    while bench.server.admin().children(&format!("/dlock/{key}")).len() <= nodes {
        if Instant::now() > limit {
            bail!("not everybody came into line");
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // What coming into line took is over by then.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (bytes, used, start) = (traffic(&proxy), server_time(bench.server.pid())?, Instant::now());
    tokio::time::sleep(Duration::from_secs(if bench.quick { 3 } else { 12 })).await;
    let idle = start.elapsed().as_secs_f64();
    let bytes = (traffic(&proxy) - bytes) / idle / 1e3;
    let share = (server_time(bench.server.pid())? - used) / idle * 100.0;
    let start = now_ns();
    guard.release().await?;
    let (mut turns, mut lost, mut end) = (0, 0, start);
    for process in &mut crowd {
        let answer = process.ask("turns").await?;
        let figures: Vec<u64> = answer.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        let [had, gone, last] = figures[..] else { bail!("an answer to turns has three parts: {answer}") };
        (turns, lost, end) = (turns + had, lost + gone, end.max(last));
    }
    holder.shutdown(SESSION).await?;
    let all = f64::from(processes) * each as f64;
    let took = Duration::from_nanos(end - start).as_secs_f64();
    let who =
        if processes == 1 { format!("{each} waiters") } else { format!("{processes} x {each} waiters") };
    let row = |what: &str, value, unit| Row::new(format!("{who} of one key: {what}"), value, unit);
    Ok(vec![
        row("kB/s while they wait", bytes, "kB/s").at_most(bytes, 100.0, "kB/s"),
        row("of a server's core while they wait", share, "%").at_most(share, 2.0, "%"),
        row("had their turn", turns as f64, "").at_least(turns as f64, all, ""),
        row("turns a second", turns as f64 / took, ""),
        row("other locks lost", lost as f64, "").at_most(lost as f64, 0.0, ""),
    ])
}

async fn drop_many(bench: &Bench, count: usize) -> Result<Vec<Row>> {
    let histories = tempfile::tempdir()?;
    let mut process =
        processes(&bench.server.url(), 1, histories.path()).await?.pop().context("a process")?;
    let free: f64 = process.ask(&format!("drop {count}")).await?.parse()?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let admin = bench.server.admin();
    let nodes = admin.figure("zk_ephemerals_count") as f64 - admin.children("/dlock/%sessions").len() as f64;
    let row = |what: &str, value, unit| Row::new(format!("{count} acquires dropped: {what}"), value, unit);
    Ok(vec![
        row("until a free lock is had", free, "ms").at_most(free, 100.0, "ms"),
        row("nodes after a second", nodes, "").at_most(nodes, 0.0, ""),
    ])
}

fn traffic(proxy: &Proxy) -> f64 {
    let traffic = proxy.traffic();
    (traffic.bytes_to_server + traffic.bytes_to_client) as f64
}
