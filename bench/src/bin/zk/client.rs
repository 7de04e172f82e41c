//! A process with one client, which makes pairs on request, and crowds of waiters.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use dlock_bench::measure::runtime;
use dlock_bench::peers::{Client, Profile, nothing_else};
use dlock_core::{Guard, Locks};
use dlock_rig::servers::zookeeper::ZooKeeperServer;
use dlock_testkit::now_ns;
use tokio::task::JoinSet;

use crate::clients::{self, Bare};

async fn connect(which: &str, url: &str) -> Result<Client<Bare>> {
    Ok(match which {
        "dlock" => Client::Ours(Arc::new(clients::dlock(url).await?)),
        "together" | "in-turn" => {
            let address: SocketAddr = url.trim_start_matches("zk://").trim_end_matches('/').parse()?;
            let bare = Bare::connect(address, which == "in-turn").await?;
            bare.prepare(64).await?;
            Client::Bare(Arc::new(bare))
        }
        other => bail!("no client is called {other}: dlock, together, in-turn"),
    })
}

fn ours(client: &Client<Bare>) -> Result<&Arc<Locks>> {
    match client {
        Client::Ours(locks) => Ok(locks),
        Client::Bare(_) => bail!("the bare client does not wait"),
    }
}

/// Answers what standard input asks, until it ends.
pub(crate) fn serve(which: &str, url: &str) -> Result<()> {
    runtime(false)?.block_on(async {
        let mut crowd = None;
        let answer = async |client: &Client<Bare>, command: &[&str]| {
            match *command {
                ["wait", key, count] => {
                    crowd = Some(Crowd::waits(ours(client)?, key, count.parse()?).await?);
                }
                ["turns"] => println!("{}", crowd.take().context("nobody waits")?.turns().await?),
                ["drop", count] => println!("{}", drop_many(ours(client)?, count.parse()?).await?),
                _ => nothing_else(command)?,
            }
            Ok(())
        };
        connect(which, url).await?.serve(answer).await
    })
}

/// Waiters of one key.
struct Crowd {
    locks: Arc<Locks>,
    waiters: JoinSet<Result<()>>,
    /// A lock that has nothing to do with them.
    other: Guard,
}

impl Crowd {
    async fn waits(locks: &Arc<Locks>, key: &str, count: usize) -> Result<Self> {
        let other = locks.lock(format!("other_{}", std::process::id())).acquire().await?;
        let mut waiters = JoinSet::new();
        for _ in 0..count {
            let lock = locks.lock(key);
            waiters.spawn(async move { Ok(lock.acquire().await?.release().await?) });
        }
        println!("waiting");
        Ok(Self { locks: Arc::clone(locks), waiters, other })
    }

    /// How many had their turn, how many other locks were lost, and when that was.
    async fn turns(mut self) -> Result<String> {
        let mut turns = 0;
        while let Some(turn) = self.waiters.join_next().await {
            turn??;
            turns += 1;
        }
        let lost = self.locks.stats().lost + u64::from(self.other.check().is_err());
        let answer = format!("{turns} {lost} {}", now_ns());
        self.other.release().await?;
        Ok(answer)
    }
}

/// Drops acquires as soon as each has sent what it may. Returns for how many milliseconds a free lock is waited for
/// then.
async fn drop_many(locks: &Arc<Locks>, count: usize) -> Result<f64> {
    let mut acquires: Vec<_> = (0..count)
        .map(|number| {
            let lock = locks.lock(format!("dropped_{number}"));
            Box::pin(async move { lock.acquire().await })
        })
        .collect();
    for acquire in &mut acquires {
        drop(acquire.as_mut().poll(&mut Context::from_waker(Waker::noop())));
    }
    let start = Instant::now();
    drop(acquires);
    locks.lock("free").acquire().await?.release().await?;
    Ok(start.elapsed().as_secs_f64() * 1e3)
}

/// Makes pairs with one client only.
pub(crate) fn profile(profile: &Profile) -> Result<()> {
    let server = if profile.url.is_some() { None } else { Some(ZooKeeperServer::start()?) };
    let url = profile.url.clone().or_else(|| Some(server.as_ref()?.url())).context("no server")?;
    runtime(false)?.block_on(async { profile.look_at(connect(&profile.client, &url).await?).await })
}
