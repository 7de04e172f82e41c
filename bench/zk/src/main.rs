//! What dlock costs on ZooKeeper, beside the bare client and Curator.
//!
//! ```text
//! cargo run --release -p dlock-bench-zk                 # all of it
//! cargo run --release -p dlock-bench-zk -- pairs        # the benches with this in their name
//! cargo run --release -p dlock-bench-zk -- --quick      # shorter, for a first look
//! ```
//!
//! Starts a ZooKeeper, and builds a Java program for Curator. All clients take turns in every round, so that they see the
//! same machine; what counts is the median of the rounds' ratios. Figures of different runs or machines do not compare. A
//! missed target is shown, and is not a failure of the run: a loaded machine is no reason to stop.

#![forbid(unsafe_code)]

mod acquire;
mod clients;
mod hand_over;
mod pairs;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use dlock_bench_common::measure::runtime;
use dlock_bench_common::report::{self, Row};
use dlock_interop::{java, worker};
use dlock_rig::servers::zookeeper::ZooKeeperServer;
use tokio::runtime::Runtime;

#[derive(Debug, Parser)]
#[command(about = "Measures what dlock costs on ZooKeeper")]
struct Cli {
    /// Only the benches whose name contains this: acquire, pairs, hand-over
    filter: Option<String>,
    /// Fewer rounds
    #[arg(long)]
    quick: bool,
    /// Run the clients in Rust on as many threads as there are cores, instead of one
    #[arg(long)]
    threads: bool,
}

/// What all benches share.
struct Bench {
    /// Rounds; odd, so that there is a middle one.
    rounds: usize,
    /// How long each client works in one round. Short: what else runs on the machine then meets neighbours alike.
    slice: Duration,
    threads: bool,
    server: ZooKeeperServer,
    jar: PathBuf,
}

impl Bench {
    fn runtime(&self) -> Result<Runtime> {
        runtime(self.threads)
    }
}

type Measure = fn(&Bench) -> Result<Vec<Row>>;

const BENCHES: &[(&str, Measure)] = &[
    ("acquire", acquire::uncontended),
    ("pairs", pairs::uncontended),
    ("hand-over", hand_over::between_processes),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments[..] {
        // As the interoperability checks start their processes.
        ["worker", url, lease, process, _, history] => be_worker(url, lease, process, history),
        _ => measure_all(&Cli::parse()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn be_worker(url: &str, lease: &str, process: &str, history: &str) -> Result<()> {
    let lease = Duration::from_millis(lease.parse()?);
    runtime(true)?.block_on(worker::serve(url, lease, process.parse()?, Path::new(history)))
}

fn measure_all(cli: &Cli) -> Result<()> {
    let chosen = report::choose(BENCHES, cli.filter.as_deref())?;
    let bench = Bench {
        rounds: if cli.quick { 9 } else { 31 },
        slice: Duration::from_millis(200),
        threads: cli.threads,
        jar: runtime(true)?.block_on(java::build())?,
        // As it has to be in production: what is confirmed is on the disk.
        server: ZooKeeperServer::options().property("zookeeper.forceSync", "yes").start()?,
    };
    let mut rows = Vec::new();
    for (name, measure) in chosen {
        eprintln!("{name} ...");
        rows.extend(measure(&bench)?);
    }
    println!("{}", report::table(&rows));
    Ok(())
}
