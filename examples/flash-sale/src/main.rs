//! A flash sale: more customers than vouchers, several worker processes, one stock.
//!
//! Each buyer reads the stock, works for about a millisecond and writes it back. Without a lock the shop oversells.
//! With `#[distributed_lock]` on that one function it sells exactly what it has, also while one worker is killed inside
//! its critical section and another is frozen there for longer than its lease. Split into 20 segments, each with a lock
//! of its own, the same stock is sold to many buyers at a time.
//!
//! ```text
//! cargo run --release -p flash-sale
//! cargo run --release -p flash-sale -- --stock 100 --customers 300 --workers 2
//! cargo run --release -p flash-sale --features etcd -- --locks etcd://localhost/shop
//! ```

#![forbid(unsafe_code)]

mod fleet;
mod protocol;
mod report;
mod round;
mod screen;
mod shop;
mod worker;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};

use crate::report::Outcome;
use crate::round::Kind;
use crate::screen::Screen;

#[derive(Debug, Parser)]
#[command(
    about = "Sells vouchers from several processes: without a lock, with one, and with workers that die or freeze"
)]
struct Cli {
    #[command(flatten)]
    sale: Sale,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// One worker process; told by its parent over standard input what to do.
    #[command(hide = true)]
    Worker,
}

/// What is sold, by whom, and under which locks.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Sale {
    /// Where the locks are, as `dlock::connect` takes it [default: a SQLite database in a temporary directory]
    #[arg(long, value_name = "URL")]
    locks: Option<String>,
    /// Worker processes
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=64))]
    workers: u32,
    /// Concurrent buyers in each worker
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    buyers: u32,
    /// Vouchers in stock
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(20..=1_000_000))]
    stock: u32,
    /// Customers who try to buy one voucher each
    #[arg(long, alias = "attempts", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..))]
    customers: u32,
    /// Seed of how long each customer's sale takes
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How long a sale works between its look at the stock and its write, in milliseconds: on average, half of it less
    /// or more
    #[arg(long, value_name = "MS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    work: u64,
    /// Lease of the locks, in milliseconds: how long a dead worker's lock blocks the others
    #[arg(long, value_name = "MS", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(500..=60_000))]
    lease: u64,
    /// Print the result as one JSON document instead of a table
    #[arg(long)]
    json: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.role {
        Some(Role::Worker) => worker::work().await.map(|()| ExitCode::SUCCESS),
        // Dropping the sale kills the workers and removes the temporary directory.
        None => tokio::select! {
            sold = sell(&cli.sale) => sold,
            signal = told_to_stop() => {
                eprintln!("stopped; the workers are ended");
                Ok(ExitCode::from(signal))
            }
        },
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::from(2)
    })
}

/// Runs the four rounds. The exit code is 1 when a locked round was not exact.
async fn sell(sale: &Sale) -> Result<ExitCode> {
    let dir = tempfile::Builder::new().prefix("flash-sale-").tempdir().context("no temporary directory")?;
    let locks = locks_url(sale, &dir)?;
    if sale.customers < sale.stock {
        bail!(
            "--customers {} is less than --stock {}: there is nothing to fight over",
            sale.customers,
            sale.stock
        );
    }
    let mut outcomes: Vec<Outcome> = Vec::new();
    for kind in [Kind::Unlocked, Kind::Locked, Kind::Incidents, Kind::Segments] {
        eprintln!("round {}: {}", outcomes.len() + 1, kind.title());
        let screen = Screen::new(sale.json);
        let outcome = round::run(kind, sale, &locks, dir.path(), &screen).await;
        let outcome =
            outcome.with_context(|| format!("the round \"{}\" could not be finished", kind.title()))?;
        eprintln!("  {}", outcome.sentence());
        outcomes.push(outcome);
    }
    let exact = outcomes.iter().all(Outcome::is_right);
    println!("{}", if sale.json { report::json(sale, &outcomes) } else { report::table(&outcomes) });
    Ok(if exact { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn locks_url(sale: &Sale, dir: &tempfile::TempDir) -> Result<String> {
    match &sale.locks {
        Some(url) if url.starts_with("memory:") => bail!(
            "--locks memory: cannot work here: such locks are inside one process, and the workers of this sale are \
             processes of their own; use for example --locks sqlite:///tmp/locks.db"
        ),
        Some(url) => Ok(url.clone()),
        None => Ok(format!("sqlite://{}", dir.path().join("locks.db").display())),
    }
}

/// Resolves with the exit code of a program that was asked to stop.
async fn told_to_stop() -> u8 {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => 130,
        _ = terminate.recv() => 143,
    }
}

impl Sale {
    pub(crate) const fn lease(&self) -> Duration {
        Duration::from_millis(self.lease)
    }
}
