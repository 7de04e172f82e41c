//! What dlock costs on ZooKeeper, beside the bare client and Curator.
//!
//! ```text
//! cargo xtask bench zk            # all of it
//! cargo xtask bench zk pairs      # the benches with this in their name
//! cargo xtask bench zk --quick    # shorter, for a first look
//! ```
//!
//! Starts a ZooKeeper, and builds a Java program for Curator. All clients take turns in every round, so that they see
//! the same machine; what counts is the median of the rounds' ratios. Figures of different runs or machines do not
//! compare. A missed target is shown, and is not a failure of the run: a loaded machine is no reason to stop.

#![forbid(unsafe_code)]

mod client;
mod clients;
mod crowds;
mod handoff;
mod pairs;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand};
use dlock_bench::measure::{Options, SLICE, runtime};
use dlock_bench::peers::Profile;
use dlock_interop::{java, worker};
use dlock_rig::servers::zookeeper::ZooKeeperServer;

#[derive(Debug, Parser)]
#[command(about = "Measures what dlock costs on ZooKeeper", args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Make pairs with one client only, for a profiler to look at
    Profile(Profile),
}

/// What all benches share.
struct Bench {
    /// Rounds; odd, so that there is a middle one.
    rounds: usize,
    quick: bool,
    /// How long each client works in one round. Short: what else runs on the machine then meets neighbours alike.
    slice: Duration,
    server: ZooKeeperServer,
    jar: PathBuf,
}

const BENCHES: &[dlock_bench::Bench<Bench>] = &[
    ("pairs near", pairs::near),
    ("pairs far", pairs::far),
    ("handoff", handoff::between_processes),
    ("crowd of one process", crowds::of_one_process),
    ("crowd of eight processes", crowds::of_eight),
    ("dropped", crowds::dropped),
];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        // As the interoperability checks start their processes.
        ["worker", url, lease, process, _, history] => be_worker(url, lease, process, history),
        ["client", which, url, ..] => client::serve(which, url),
        _ => {
            let cli = Cli::parse();
            cli.role
                .map_or_else(|| measure_all(&cli.options), |Role::Profile(profile)| client::profile(&profile))
        }
    }
}

fn be_worker(url: &str, lease: &str, process: &str, history: &str) -> Result<()> {
    let lease = Duration::from_millis(lease.parse()?);
    runtime(true)?.block_on(worker::serve(url, lease, process.parse()?, Path::new(history)))
}

fn measure_all(options: &Options) -> Result<()> {
    dlock_bench::run(BENCHES, options.filter.as_deref(), || {
        Ok(Bench {
            rounds: options.rounds(),
            quick: options.quick,
            slice: SLICE,
            jar: runtime(true)?.block_on(java::build())?,
            // As it has to be in production: what is confirmed is on the disk.
            server: ZooKeeperServer::options().property("zookeeper.forceSync", "yes").start()?,
        })
    })
}
