//! What dlock costs on Redis, beside the bare client and other lock libraries.
//!
//! ```text
//! cargo xtask bench redis            # all of it
//! cargo xtask bench redis pairs      # the benches with this in their name
//! cargo xtask bench redis --quick    # shorter, for a first look
//! ```
//!
//! Starts a `redis-server`, and builds a Java program for Redisson. All clients take turns in every round, so that they
//! see the same machine; what counts is the median of the rounds' ratios. Figures of different runs or machines do not
//! compare. A missed target is shown, and is not a failure of the run: a loaded machine is no reason to stop.

#![forbid(unsafe_code)]

mod batches;
mod clients;
mod contend;
mod elsewhere;
mod handoff;
mod held;
mod majority;
mod measure;
mod modes;
mod pairs;
mod profile;
mod recorded;
mod stats;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, Subcommand};
use dlock_bench::crowd::Part;
use dlock_bench::measure::{Options, runtime};
use dlock_interop::java;
use dlock_rig::servers::redis::RedisServer;
use redis::aio::MultiplexedConnection;
use tokio::runtime::Runtime;

use crate::measure::Settings;

#[derive(Debug, Parser)]
#[command(about = "Measures what dlock costs on Redis", args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// One of the processes that contend for a lock, started by the bench itself
    #[command(hide = true)]
    Contend(contend::Part),
    /// One of the processes that want one key in some mode, started by the bench itself
    #[command(hide = true)]
    Crowd(Part),
    /// One that answers messages, started by the bench itself
    #[command(hide = true)]
    Echo {
        url: String,
        /// Another thread reads them
        #[arg(long)]
        apart: bool,
    },
    /// Make pairs with one client only, for a profiler to look at
    Profile(profile::Part),
}

/// What all benches share.
struct Bench {
    settings: Settings,
    threads: bool,
    server: RedisServer,
    jar: PathBuf,
}

impl Bench {
    /// A connection to ask the server what it did.
    async fn server(&self) -> Result<MultiplexedConnection> {
        clients::connection(&self.server.url()).await
    }

    fn runtime(&self) -> Result<Runtime> {
        runtime(self.threads)
    }
}

const BENCHES: &[dlock_bench::Bench<Bench>] = &[
    ("pairs", pairs::uncontended),
    ("distance", elsewhere::at_a_distance),
    ("cluster", elsewhere::on_a_cluster),
    ("handoff", handoff::between_processes),
    ("batches", batches::of_ten),
    ("majority", majority::of_five),
    ("held", held::many),
    ("modes-readers", modes::readers),
    ("modes-endless", modes::endless),
    ("modes-permits", modes::permits),
    ("modes-fair", modes::fair),
    ("modes-postgres", modes::postgres),
];

fn main() -> Result<()> {
    let cli = Cli::parse();
    match &cli.role {
        Some(Role::Contend(part)) => runtime(false)?.block_on(part.play()),
        Some(Role::Crowd(part)) => {
            runtime(true)?.block_on(async { part.play(clients::of_url(&part.url).await?).await })
        }
        Some(Role::Echo { url, apart }) => runtime(false)?.block_on(modes::echo(url, *apart)),
        Some(Role::Profile(part)) => part.play(),
        None => dlock_bench::run(BENCHES, cli.options.filter.as_deref(), || {
            Ok(Bench {
                settings: if cli.options.quick { Settings::quick() } else { Settings::full() },
                threads: cli.options.threads,
                jar: runtime(true)?.block_on(java::build())?,
                server: RedisServer::start()?,
            })
        }),
    }
}
