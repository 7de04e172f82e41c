//! Pairs of one client only, for a profiler to look at.
//!
//! ```text
//! perf record -g target/release/bench-redis profile dlock --tasks 64
//! ```

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use dlock_bench::measure::{Pace, drive, runtime};
use dlock_rig::servers::redis::RedisServer;

use crate::clients::{self, Rslock, SetNx};
use crate::recorded::Recorded;
use crate::stats::{self, Calls, Traffic};

#[derive(Debug, Args)]
pub(crate) struct Part {
    /// dlock, set-nx or rslock; the scripts of dlock on the connection of the bare client (scripts), or on a socket
    /// that the caller's task itself writes and reads (own-task)
    client: String,
    /// How many locks at a time
    #[arg(long, default_value_t = 64)]
    tasks: usize,
    /// For how many seconds
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// The server; by default one is started
    #[arg(long)]
    url: Option<String>,
    /// How many rounds
    #[arg(long, default_value_t = 1)]
    rounds: usize,
}

impl Part {
    pub(crate) fn play(&self) -> Result<()> {
        let server = if self.url.is_some() { None } else { Some(RedisServer::start()?) };
        let url = self.url.clone().or_else(|| Some(server.as_ref()?.url())).unwrap_or_default();
        runtime(false)?.block_on(async {
            for _ in 0..self.rounds {
                self.round(&url).await?;
            }
            Ok(())
        })
    }

    async fn round(&self, url: &str) -> Result<()> {
        let mut server = clients::connection(url).await?;
        let used = stats::cpu(&mut server).await?;
        let (calls, traffic) = (Calls::now(&mut server).await?, Traffic::now(&mut server).await?);
        let (tasks, time) = (self.tasks, Duration::from_secs(self.seconds));
        let pace: Pace = match &*self.client {
            "dlock" => drive(&Arc::new(clients::dlock(url).await?), tasks, time).await?,
            "set-nx" => drive(&Arc::new(SetNx::new(clients::connection(url).await?)), tasks, time).await?,
            "scripts" => {
                let (connection, recorded) = (clients::connection(url).await?, recorded(url).await?);
                drive(&Arc::new(clients::Scripts { connection, recorded }), tasks, time).await?
            }
            "own-task" => {
                drive(&Arc::new(clients::OwnTask::new(url, recorded(url).await?).await?), tasks, time).await?
            }
            "rslock" => drive(&Arc::new(Rslock::new(url)), tasks, time).await?,
            other => bail!("no client is called {other}"),
        };
        let pairs = pace.rate * time.as_secs_f64();
        let used = (stats::cpu(&mut server).await? - used) * 1e6 / pairs;
        let (to, from) = Traffic::now(&mut server).await?.since(&traffic);
        println!(
            "{} at {tasks}: {:.0}/s, p50 {:.0} us; processor time of a pair: server {used:.2} us, client {:.2} us",
            self.client, pace.rate, pace.p50, pace.client
        );
        let calls = Calls::now(&mut server).await?.all_since(&calls);
        println!("  bytes of a pair: {:.0} to the server, {:.0} back", to / pairs, from / pairs);
        println!("  commands of a pair: {}", calls.listed_of(pairs));
        Ok(())
    }
}

async fn recorded(url: &str) -> Result<Recorded> {
    Recorded::of(&clients::dlock(url).await?, url).await
}
