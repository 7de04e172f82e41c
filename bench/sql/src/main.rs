//! What dlock costs on PostgreSQL and MariaDB, beside the same statements through the bare driver.
//!
//! ```text
//! cargo run --release -p dlock-bench-sql                 # all of it
//! cargo run --release -p dlock-bench-sql -- postgres     # the benches with this in their name
//! cargo run --release -p dlock-bench-sql -- --quick      # shorter, for a first look
//! cargo run --release -p dlock-bench-sql -- --no-sync    # servers that do not wait for their disk
//! ```
//!
//! Starts the servers. All clients take turns in every round, so that they see the same machine; what counts is the median
//! of the rounds' ratios. Figures of different runs or machines do not compare. A missed target is shown, and is not a
//! failure of the run: a loaded machine is no reason to stop.

#![forbid(unsafe_code)]

mod bare;
mod clients;
mod hand_over;
mod pairs;
mod sessions;
mod statements;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use dlock_bench_common::measure::runtime;
use dlock_bench_common::report::{self, Row};
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;
use tokio::runtime::Runtime;

#[derive(Debug, Parser)]
#[command(about = "Measures what dlock costs on PostgreSQL and MariaDB")]
struct Cli {
    /// Only the benches whose name contains this: postgres-pairs, postgres-hand-over, mysql-pairs
    filter: Option<String>,
    /// Fewer rounds
    #[arg(long)]
    quick: bool,
    /// Run the clients on as many threads as there are cores, instead of one
    #[arg(long)]
    threads: bool,
    /// Servers that do not wait for their disk at a commit: shows what the client costs
    #[arg(long)]
    no_sync: bool,
}

/// What all benches share.
struct Bench {
    /// Rounds; odd, so that there is a middle one.
    rounds: usize,
    /// How long each client works in one round. Short: what else runs on the machine then meets neighbours alike.
    slice: Duration,
    threads: bool,
    no_sync: bool,
}

impl Bench {
    fn runtime(&self) -> Result<Runtime> {
        runtime(self.threads)
    }

    /// Safe from power failures, as in production, unless told otherwise.
    fn postgres(&self) -> Result<PostgresServer> {
        let server = PostgresServer::options().setting("track_activity_query_size", "16384");
        let server = if self.no_sync {
            server
        } else {
            server.setting("fsync", "on").setting("full_page_writes", "on").setting("max_wal_size", "1GB")
        };
        Ok(server.start()?)
    }

    /// The same.
    fn mysql(&self) -> Result<MysqlServer> {
        let server = MysqlServer::options();
        let server = if self.no_sync {
            server
        } else {
            server.setting("innodb-flush-log-at-trx-commit", "1").setting("innodb-flush-method", "fsync")
        };
        Ok(server.start()?)
    }
}

type Measure = fn(&Bench) -> Result<Vec<Row>>;

const BENCHES: &[(&str, Measure)] = &[
    ("postgres-pairs", pairs::postgres),
    ("postgres-hand-over", hand_over::postgres),
    ("mysql-pairs", pairs::mysql),
];

fn main() -> ExitCode {
    match measure_all(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure_all(cli: &Cli) -> Result<()> {
    let chosen = report::choose(BENCHES, cli.filter.as_deref())?;
    let bench = Bench {
        rounds: if cli.quick { 9 } else { 31 },
        slice: Duration::from_millis(200),
        threads: cli.threads,
        no_sync: cli.no_sync,
    };
    let mut rows = Vec::new();
    for (name, measure) in chosen {
        eprintln!("{name} ...");
        rows.extend(measure(&bench)?);
    }
    println!("{}", report::table(&rows));
    Ok(())
}
