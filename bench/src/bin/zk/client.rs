//! A process with one client, which makes pairs on request: what clients of one process have in common, such as
//! the reactor of their sockets, would blur the figures of each.
//!
//! A profiler can look at one:
//!
//! ```text
//! perf record -g target/release/bench-zk profile dlock zk://127.0.0.1:2181 --tasks 64
//! ```

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use dlock_bench::measure::{Pace, drive, runtime};
use dlock_core::{Guard, Locks};
use dlock_rig::servers::zookeeper::ZooKeeperServer;
use dlock_testkit::now_ns;
use tokio::io::{AsyncBufReadExt as _, BufReader, stdin};
use tokio::task::JoinSet;

use crate::clients::{self, Bare};

/// One of the clients in Rust.
enum Client {
    Ours(Arc<Locks>),
    Bare(Arc<Bare>),
}

impl Client {
    async fn connect(which: &str, url: &str) -> Result<Self> {
        Ok(match which {
            "dlock" => Self::Ours(Arc::new(clients::dlock(url).await?)),
            "together" | "in-turn" => {
                let address: SocketAddr = url.trim_start_matches("zk://").trim_end_matches('/').parse()?;
                let bare = Bare::connect(address, which == "in-turn").await?;
                bare.prepare(64).await?;
                Self::Bare(Arc::new(bare))
            }
            other => bail!("no client is called {other}"),
        })
    }

    fn ours(&self) -> Result<&Arc<Locks>> {
        match self {
            Self::Ours(locks) => Ok(locks),
            Self::Bare(_) => bail!("the bare client does not wait"),
        }
    }

    async fn pairs(&self, tasks: usize, time: Duration) -> Result<Pace> {
        match self {
            Self::Ours(locks) => drive(locks, tasks, time).await,
            Self::Bare(bare) => drive(bare, tasks, time).await,
        }
    }
}

/// Answers what standard input asks, until it ends.
pub(crate) fn serve(which: &str, url: &str) -> Result<()> {
    runtime(false)?.block_on(async {
        let client = Client::connect(which, url).await?;
        println!("ready");
        let mut crowd = None;
        let mut commands = BufReader::new(stdin()).lines();
        while let Some(command) = commands.next_line().await? {
            match command.split(' ').collect::<Vec<_>>()[..] {
                ["clock"] => println!("{}", now_ns()),
                ["bench", _, _, tasks, millis] => {
                    let time = Duration::from_millis(millis.parse()?);
                    let pace = client.pairs(tasks.parse()?, time).await?;
                    let (p50, p99) = (pace.p50 * 1e3, pace.p99 * 1e3);
                    println!("{} {p50} {p99} {}", pace.rate * time.as_secs_f64(), pace.client);
                }
                ["wait", key, count] => {
                    let waiters = Crowd::waits(client.ours()?, key, count.parse()?).await?;
                    crowd = Some(waiters);
                }
                ["turns"] => println!("{}", crowd.take().context("nobody waits")?.turns().await?),
                ["drop", count] => println!("{}", drop_many(client.ours()?, count.parse()?).await?),
                _ => bail!("no command: {command}"),
            }
        }
        if let Client::Ours(locks) = client {
            locks.shutdown(clients::SESSION).await?;
        }
        Ok(())
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

/// Makes pairs with one client only, for a profiler to look at.
#[derive(Debug, Args)]
pub(crate) struct Profile {
    /// dlock, together or in-turn
    client: String,
    /// The server; by default one is started
    url: Option<String>,
    /// How many locks at a time
    #[arg(long, default_value_t = 64)]
    tasks: usize,
    /// For how many seconds
    #[arg(long, default_value_t = 3)]
    seconds: u64,
}

impl Profile {
    pub(crate) fn run(&self) -> Result<()> {
        let server = if self.url.is_some() { None } else { Some(ZooKeeperServer::start()?) };
        let url = self.url.clone().or_else(|| Some(server.as_ref()?.url())).context("no server")?;
        runtime(false)?.block_on(async {
            let client = Client::connect(&self.client, &url).await?;
            let pace = client.pairs(self.tasks, Duration::from_secs(self.seconds)).await?;
            println!(
                "{} at {}: {:.0}/s, p50 {:.0} us; processor time of a pair {:.2} us",
                self.client, self.tasks, pace.rate, pace.p50, pace.client
            );
            Ok(())
        })
    }
}
