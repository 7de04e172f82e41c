//! What dlock costs on etcd, beside the bare client and the Mutex of etcd's own Go client.
//!
//! ```text
//! cargo xtask bench etcd            # all of it
//! cargo xtask bench etcd near       # the benches with this in their name
//! cargo xtask bench etcd --quick    # shorter, for a first look
//! ```
//!
//! Starts an etcd, and builds a program in Go. All clients take turns in every round, so that they see the same
//! machine; what counts is the median of the rounds' ratios. Figures of different runs or machines do not compare. A
//! missed target is shown, and is not a failure of the run: a loaded machine is no reason to stop.

#![forbid(unsafe_code)]

mod client;
mod clients;
mod pairs;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand};
use dlock_bench::measure::{Options, SLICE, runtime};
use dlock_bench::peers::Profile;
use dlock_interop::{collector, other_clients};
use dlock_rig::servers::etcd::EtcdServer;

#[derive(Debug, Parser)]
#[command(about = "Measures what dlock costs on etcd", args_conflicts_with_subcommands = true)]
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
    /// How long each client works in one round. Short: what else runs on the machine then meets neighbours alike.
    slice: Duration,
    server: EtcdServer,
    /// The program in Go, where it can be built.
    go: Option<PathBuf>,
}

const BENCHES: &[dlock_bench::Bench<Bench>] = &[("pairs near", pairs::near), ("pairs far", pairs::far)];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["client", which, url, ..] => client::serve(which, url),
        _ => {
            let cli = Cli::parse();
            cli.role
                .map_or_else(|| measure_all(&cli.options), |Role::Profile(profile)| client::profile(&profile))
        }
    }
}

fn measure_all(options: &Options) -> Result<()> {
    dlock_bench::run(BENCHES, options.filter.as_deref(), || {
        Ok(Bench {
            rounds: options.rounds(),
            slice: SLICE,
            go: runtime(true)?.block_on(program_in_go())?,
            server: EtcdServer::start()?,
        })
    })
}

async fn program_in_go() -> Result<Option<PathBuf>> {
    if !collector::can_be_built().await {
        eprintln!("left out: etcd's own client needs Go 1.21 or later, see https://go.dev/dl");
        return Ok(None);
    }
    other_clients::etcd().await.map(Some)
}
