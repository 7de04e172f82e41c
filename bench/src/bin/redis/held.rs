//! Many locks that are held for a while: what it costs the server to keep them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use dlock_core::{Guard, Locks};

use crate::Bench;
use crate::clients;
use crate::stats::{self, Calls};
use dlock_bench::report::Row;

const LOCKS: usize = 10_000;
const AT_A_TIME: usize = 64;

pub(crate) fn many(bench: &Bench) -> Result<Vec<Row>> {
    bench.runtime()?.block_on(measure(bench))
}

async fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let mut server = bench.server().await?;
    let locks = Arc::new(clients::dlock(&bench.server.url()).await?);
    locks.lock("held_before").run(async {}).await?;
    let idle = share(&mut server, bench.settings.hold / 4).await?;
    let guards = hold(&locks).await?;
    let (calls, renewals) = (Calls::now(&mut server).await?, locks.stats().renewals);
    let busy = share(&mut server, bench.settings.hold).await?;
    let sent = Calls::now(&mut server).await?.sent_since(&calls);
    let renewals = locks.stats().renewals - renewals;
    for guard in &guards {
        guard.check().context("a lock was lost while it was only held")?;
    }
    drop(guards);
    locks.shutdown(Duration::from_secs(60)).await?;
    let cost = busy - idle;
    Ok(vec![
        Row::new(format!("{LOCKS} locks held: the renewals' share of the server's core"), cost, "%")
            .at_most(cost, 2.0, "%"),
        Row::new("    the idle server before", idle, "%"),
        Row::new("    renewals meanwhile", renewals as f64, ""),
        Row::new("    renewals a command", renewals as f64 / sent.total() as f64, "").beside(sent.listed()),
    ])
}

/// The percentage of one core that the server uses meanwhile. It carries out commands on one thread.
async fn share(server: &mut redis::aio::MultiplexedConnection, over: Duration) -> Result<f64> {
    let (before, start) = (stats::cpu(server).await?, Instant::now());
    tokio::time::sleep(over).await;
    Ok(100.0 * (stats::cpu(server).await? - before) / start.elapsed().as_secs_f64())
}

async fn hold(locks: &Arc<Locks>) -> Result<Vec<Guard>> {
    let takers: Vec<_> = (0..AT_A_TIME)
        .map(|taker| {
            let locks = Arc::clone(locks);
            tokio::spawn(async move {
                let mut guards = Vec::new();
                for n in (taker..LOCKS).step_by(AT_A_TIME) {
                    guards.push(locks.lock(format!("held_{n}")).acquire().await?);
                }
                anyhow::Ok(guards)
            })
        })
        .collect();
    let mut guards = Vec::with_capacity(LOCKS);
    for taker in takers {
        guards.extend(taker.await??);
    }
    Ok(guards)
}
