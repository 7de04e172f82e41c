//! A lock on a majority of five servers, beside a lock on one, and beside five locks on five taken at once by hand.

use std::time::Duration;

use anyhow::Result;
use dlock_bench::contest::{Client, not_asked, take_turns};
use dlock_bench::measure::{Pairs, pace_row};
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
    let by_hand = AllFive([one(0).await?, one(1).await?, one(2).await?, one(3).await?, one(4).await?]);
    let clients = [
        Client::new("dlock on one server", one(0).await?),
        Client::new("dlock on five servers at once, by hand", by_hand),
        Client::new("dlock on a majority of five that never forget", quorum(&urls, true).await?),
        Client::new("dlock on a majority of five that may forget", quorum(&urls, false).await?),
    ];
    let (clients, at_a_time) = (clients.each_ref(), [1, 8]);
    let all =
        take_turns(&clients, &at_a_time, bench.settings.rounds, bench.settings.slice, not_asked).await?;
    let mut rows = Vec::new();
    for (tasks, paces) in at_a_time.into_iter().zip(&all) {
        for (client, paces) in clients.iter().zip(paces) {
            rows.push(pace_row(&format!("pairs a second, {tasks} at a time: {}", client.name), paces));
        }
        for (which, limit) in [(2, Some(1.3)), (3, None)] {
            let times = paces[which].iter().zip(&paces[1]).map(|(ours, by_hand)| ours.p50 / by_hand.p50);
            let ratio = Spread::of(times.collect());
            let row =
                Row::spread(format!("    time of a pair: {} / by hand", clients[which].name), ratio, "x");
            rows.push(match limit {
                Some(limit) if tasks == 1 => row.at_most(ratio.median, limit, "x"),
                _ => row,
            });
        }
    }
    Ok(rows)
}
