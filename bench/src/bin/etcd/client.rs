//! A process with one client, which makes pairs on request: what clients of one process have in common, such as
//! the reactor of their sockets, would blur the figures of each.
//!
//! A profiler can look at one:
//!
//! ```text
//! perf record -g target/release/bench-etcd profile dlock etcd://127.0.0.1:2379 --tasks 64
//! ```

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use dlock_bench::measure::{Pace, drive, runtime};
use dlock_core::Locks;
use dlock_rig::servers::etcd::EtcdServer;
use dlock_testkit::now_ns;
use tokio::io::{AsyncBufReadExt as _, BufReader, stdin};

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
            "same" => Self::Bare(Arc::new(Bare::connect(url).await?)),
            other => bail!("no client is called {other}"),
        })
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
                _ => bail!("no command: {command}"),
            }
        }
        if let Client::Ours(locks) = client {
            locks.shutdown(clients::LEASE).await?;
        }
        Ok(())
    })
}

/// Makes pairs with one client only, for a profiler to look at.
#[derive(Debug, Args)]
pub(crate) struct Profile {
    /// dlock or same
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
        let server = if self.url.is_some() { None } else { Some(EtcdServer::start()?) };
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
