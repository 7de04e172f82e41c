//! What dlock costs on PostgreSQL and MariaDB, beside the same statements through the bare driver.
//!
//! ```text
//! cargo xtask bench sql              # all of it
//! cargo xtask bench sql postgres     # the benches with this in their name
//! cargo xtask bench sql --quick      # shorter, for a first look
//! cargo xtask bench sql --no-sync    # servers that do not wait for their disk
//! cargo xtask bench sql pairs --client "lease rows"
//! ```
//!
//! Starts the servers. All clients take turns in every round, so that they see the same machine; what counts is the
//! median of the rounds' ratios. Figures of different runs or machines do not compare. A missed target is shown, and is
//! not a failure of the run: a loaded machine is no reason to stop.

#![forbid(unsafe_code)]

mod bare;
mod clients;
mod crowd;
mod handoff;
mod pairs;
mod sessions;
mod statements;

use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use dlock_bench::measure::{Options, SLICE, runtime};
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;
use tokio::runtime::Runtime;

#[derive(Debug, Parser)]
#[command(about = "Measures what dlock costs on PostgreSQL and MariaDB")]
struct Cli {
    #[command(flatten)]
    options: Options,
    /// Servers that do not wait for their disk at a commit: shows what the client costs
    #[arg(long)]
    no_sync: bool,
    /// Only the pairs of clients of dlock whose name contains this, such as `locked rows`
    #[arg(long)]
    client: Option<String>,
}

/// What all benches share.
struct Bench {
    /// Rounds; odd, so that there is a middle one.
    rounds: usize,
    /// How long each client works in one round. Short: what else runs on the machine then meets neighbours alike.
    slice: Duration,
    threads: bool,
    no_sync: bool,
    client: Option<String>,
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

const BENCHES: &[dlock_bench::Bench<Bench>] = &[
    ("postgres-pairs", pairs::postgres),
    ("postgres-handoff", handoff::postgres),
    ("postgres-crowd", crowd::postgres),
    ("mysql-pairs", pairs::mysql),
    ("mysql-crowd", crowd::mysql),
];

fn main() -> Result<()> {
    let cli = Cli::parse();
    dlock_bench::run(BENCHES, cli.options.filter.as_deref(), || {
        Ok(Bench {
            rounds: cli.options.rounds(),
            slice: SLICE,
            threads: cli.options.threads,
            no_sync: cli.no_sync,
            client: cli.client.clone(),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // The bare clients have statements of dlock's with values of their own, and stop working when those change.
    #[test]
    fn every_client_that_is_measured_makes_its_pairs() {
        let bench = Bench {
            rounds: 1,
            slice: Duration::from_millis(20),
            threads: false,
            no_sync: true,
            client: None,
        };
        for pairs in [pairs::postgres, pairs::mysql] {
            let rows = pairs(&bench).unwrap();
            let failed: Vec<_> = rows.iter().filter_map(|row| row.failure()).collect();
            assert!(failed.is_empty() && rows.len() > 10, "{failed:?}");
        }
    }
}
