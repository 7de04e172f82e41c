//! A lock on a majority of five servers, beside a lock on one, and beside five locks on five taken at once by hand.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use dlock_bench::measure::{Pace, Pairs, drive, pace_row};
use dlock_bench::report::{Row, Spread};
use dlock_core::{Locks, Wait};
use dlock_quorum::Quorum;
use dlock_redis::Redis;
use dlock_rig::servers::redis::RedisServer;

use crate::Bench;
use crate::clients::{self, LEASE};

/// Five locks on five servers: the least that a client of five has to do.
struct AllFive([Locks; 5]);

impl Pairs for AllFive {
    async fn pair(&self, key: &str) -> Result<()> {
        let [a, b, c, d, e] = self.0.each_ref().map(|locks| locks.lock(key));
        let (a, b, c, d, e) =
            tokio::try_join!(a.acquire(), b.acquire(), c.acquire(), d.acquire(), e.acquire())?;
        tokio::try_join!(a.release(), b.release(), c.release(), d.release(), e.release())?;
        Ok(())
    }
}

const NAMES: [&str; 4] = [
    "dlock on one server",
    "dlock on five servers at once, by hand",
    "dlock on a majority of five that never forget",
    "dlock on a majority of five that may forget",
];

struct Contenders {
    one: Arc<Locks>,
    by_hand: Arc<AllFive>,
    durable: Arc<Locks>,
    forgetful: Arc<Locks>,
}

impl Contenders {
    async fn run(&self, which: usize, tasks: usize, slice: Duration) -> Result<Pace> {
        match which {
            0 => drive(&self.one, tasks, slice).await,
            1 => drive(&self.by_hand, tasks, slice).await,
            2 => drive(&self.durable, tasks, slice).await,
            _ => drive(&self.forgetful, tasks, slice).await,
        }
    }
}

pub(crate) fn of_five(bench: &Bench) -> Result<Vec<Row>> {
    bench.runtime()?.block_on(measure(bench))
}

async fn quorum(urls: &[String], durable: bool) -> Result<Locks> {
    let mut nodes = Vec::new();
    for url in urls {
        nodes.push(Redis::builder(url).with_prefix("majority:").connect().await?);
    }
    let builder = Quorum::builder(nodes).with_node_timeout(Duration::from_secs(2));
    let quorum = if durable { builder.with_durable_nodes().build()? } else { builder.build()? };
    quorum.bootstrap().await?;
    Ok(Locks::builder(quorum).with_lease(LEASE).with_wait(Wait::Forever).build()?)
}

async fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let servers = (0..5).map(|_| RedisServer::start()).collect::<Result<Vec<_>, _>>()?;
    let urls: Vec<_> = servers.iter().map(RedisServer::url).collect();
    let one = async |place: usize| clients::dlock(&urls[place]).await;
    let contenders = Contenders {
        one: Arc::new(one(0).await?),
        by_hand: Arc::new(AllFive([
            one(0).await?,
            one(1).await?,
            one(2).await?,
            one(3).await?,
            one(4).await?,
        ])),
        durable: Arc::new(quorum(&urls, true).await?),
        forgetful: Arc::new(quorum(&urls, false).await?),
    };
    let mut rows = Vec::new();
    for tasks in [1, 8] {
        let mut paces = vec![Vec::new(); NAMES.len()];
        // The first round warms up and is not counted.
        for round in 0..=bench.settings.rounds {
            for turn in 0..NAMES.len() {
                // Each round begins with another one.
                let which = (turn + round) % NAMES.len();
                let pace = contenders.run(which, tasks, bench.settings.slice).await?;
                if round > 0 {
                    paces[which].push(pace);
                }
            }
        }
        for (name, paces) in NAMES.iter().zip(&paces) {
            rows.push(pace_row(&format!("pairs a second, {tasks} at a time: {name}"), paces));
        }
        for (which, limit) in [(2, Some(1.3)), (3, None)] {
            let times = paces[which].iter().zip(&paces[1]).map(|(ours, by_hand)| ours.p50 / by_hand.p50);
            let ratio = Spread::of(times.collect());
            let row = Row::spread(format!("    time of a pair: {} / by hand", NAMES[which]), ratio, "x");
            rows.push(match limit {
                Some(limit) if tasks == 1 => row.at_most(ratio.median, limit, "x"),
                _ => row,
            });
        }
    }
    Ok(rows)
}
