//! Clients that make pairs in processes of their own: what clients of one process have in common, such as the reactor
//! of their sockets, would blur the figures of each.
//!
//! A profiler can look at one, as in `perf record -g target/release/bench-zk profile dlock --tasks 64`.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use dlock_core::Locks;
use dlock_testkit::now_ns;
use tokio::io::{AsyncBufReadExt as _, BufReader, stdin};

use crate::contest::{self, Goal, compare, take_turns};
use crate::measure::{Pace, Pairs, drive, server_time};
use crate::report::Row;

/// How many locks a client has at a time.
const TASKS: [usize; 3] = [1, 8, 64];

/// How the clients take turns.
#[derive(Clone, Copy, Debug)]
pub struct Turns {
    /// How often each has its turn.
    pub rounds: usize,
    /// How long it works then.
    pub slice: Duration,
    /// For how long each works before anything is counted.
    pub warm_up: Duration,
    /// The server whose processor time counts, if it does.
    pub server: Option<u32>,
}

/// Lets the clients, dlock the first, make pairs in turns, and compares dlock with each of the others; `way` says how
/// far off the server is.
///
/// # Errors
///
/// When a client fails.
pub async fn measure(
    clients: &[contest::Client],
    goals: &[Goal],
    turns: Turns,
    way: &str,
) -> Result<Vec<Row>> {
    let clients: Vec<_> = clients.iter().collect();
    // Connections and leases are made first, and virtual machines compile while they run.
    for tasks in TASKS.into_iter().rev() {
        for client in &clients {
            client.drive(tasks, turns.warm_up).await?;
        }
    }
    let used = async || turns.server.map_or(Ok(f64::NAN), server_time);
    let paces = take_turns(&clients, &TASKS, turns.rounds, turns.slice, used).await?;
    let mut rows = Vec::new();
    for (tasks, paces) in TASKS.iter().zip(&paces) {
        rows.extend(compare(&format!("pairs a second, {tasks} at a time{way}"), &clients, paces, goals)?);
    }
    Ok(rows)
}

/// One of the clients in Rust.
#[derive(Debug)]
pub enum Client<B> {
    /// dlock.
    Ours(Arc<Locks>),
    /// One that does no more than it has to.
    Bare(Arc<B>),
}

impl<B: Pairs> Client<B> {
    async fn pairs(&self, tasks: usize, time: Duration) -> Result<Pace> {
        match self {
            Self::Ours(locks) => drive(locks, tasks, time).await,
            Self::Bare(bare) => drive(bare, tasks, time).await,
        }
    }

    /// Answers what standard input asks, until it ends; what is no question for pairs, `other` answers.
    ///
    /// # Errors
    ///
    /// When the client fails, and when something else is asked.
    pub async fn serve(self, mut other: impl AsyncFnMut(&Self, &[&str]) -> Result<()>) -> Result<()> {
        println!("ready");
        let mut commands = BufReader::new(stdin()).lines();
        while let Some(command) = commands.next_line().await? {
            match command.split(' ').collect::<Vec<_>>()[..] {
                ["clock"] => println!("{}", now_ns()),
                ["bench", _, _, tasks, millis] => {
                    let time = Duration::from_millis(millis.parse()?);
                    let pace = self.pairs(tasks.parse()?, time).await?;
                    let (p50, p99) = (pace.p50 * 1e3, pace.p99 * 1e3);
                    println!("{} {p50} {p99} {}", pace.rate * time.as_secs_f64(), pace.client);
                }
                ref command => other(&self, command).await?,
            }
        }
        if let Self::Ours(locks) = self {
            locks.shutdown(Duration::from_secs(30)).await?;
        }
        Ok(())
    }
}

/// What a client answers that makes pairs only.
///
/// # Errors
///
/// Always.
pub fn nothing_else(command: &[&str]) -> Result<()> {
    bail!("no command: {}", command.join(" "))
}

/// Makes pairs with one client only, for a profiler to look at.
#[derive(Debug, clap::Args)]
pub struct Profile {
    /// One of the clients in Rust, such as dlock
    pub client: String,
    /// The server; by default one is started
    pub url: Option<String>,
    /// How many locks at a time
    #[arg(long, default_value_t = 64)]
    tasks: usize,
    /// For how many seconds
    #[arg(long, default_value_t = 3)]
    seconds: u64,
}

impl Profile {
    /// Makes them with `client`.
    ///
    /// # Errors
    ///
    /// When the client fails.
    pub async fn look_at<B: Pairs>(&self, client: Client<B>) -> Result<()> {
        let pace = client.pairs(self.tasks, Duration::from_secs(self.seconds)).await?;
        println!(
            "{} at {}: {:.0}/s, p50 {:.0} us; processor time of a pair {:.2} us",
            self.client, self.tasks, pace.rate, pace.p50, pace.client
        );
        Ok(())
    }
}
