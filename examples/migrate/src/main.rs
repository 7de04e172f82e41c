//! Five replicas of a service start at once, and all of them want the newest schema. One changes it, under a lock; the
//! others wait, find it done, and go on. The first one is killed in the middle of a migration: another one takes over
//! when its lease has ended, and begins with the migration that was rolled back.
//!
//! ```text
//! cargo run -p migrate
//! cargo run -p migrate --features postgres -- --database 'postgres://localhost/shop' \
//!     --locks 'postgres://localhost/shop?migrate=true'
//! ```

#![forbid(unsafe_code)]

mod replica;
mod schema;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use replicas::Replicas;

/// Starts replicas that migrate one database, and kills the first one that has begun.
#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    service: Service,
    /// Replicas that start at once
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(2..=32))]
    replicas: u8,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Clone, Debug, clap::Args)]
struct Service {
    /// The database that is migrated, of SQLite or PostgreSQL [default: a SQLite file in a temporary directory]
    #[arg(long, global = true, value_name = "URL")]
    database: Option<String>,
    /// Where the lock is, as `dlock::connect` takes it [default: a SQLite file in a temporary directory]
    #[arg(long, global = true, value_name = "URL")]
    locks: Option<String>,
    /// Lease of the lock, in milliseconds: how long a killed replica keeps the others waiting
    #[arg(long, global = true, value_name = "MS", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(500..=60_000))]
    lease: u64,
}

#[derive(Clone, Copy, Debug, Subcommand)]
enum Role {
    /// One replica, started by this program
    #[command(hide = true)]
    Replica,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.role {
        Some(Role::Replica) => replica::start(&cli.service).await,
        None => deploy(cli.service, cli.replicas).await,
    };
    if let Err(error) = done {
        eprintln!("error: {error:#}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

async fn deploy(mut service: Service, replicas: u8) -> Result<()> {
    let directory =
        tempfile::Builder::new().prefix("migrate-").tempdir().context("no temporary directory")?;
    let file = |name: &str| format!("sqlite://{}", directory.path().join(name).display());
    // Two files: a migration that holds the database for long must not hold up the renewals of the lock.
    let database = service.database.get_or_insert_with(|| file("shop.db"));
    if database.starts_with("sqlite:") {
        database.push_str("?mode=rwc");
    }
    let locks = service.locks.get_or_insert_with(|| file("locks.db"));

    let lease = service.lease.to_string();
    let arguments = ["replica", "--database", database, "--locks", locks, "--lease", &lease];
    let mut replicas = Replicas::start(replicas, &arguments, schema::SIZE.try_into()?)?;
    let (mut killed, mut ready, mut applied) = (false, 0, Vec::new());
    while let Some((number, line)) = replicas.next().await {
        match line.split_once(' ') {
            Some(("applies", what)) if what.starts_with("2 ") && !killed => {
                replicas.kill(number, "in the middle of it")?;
                killed = true;
            }
            Some(("applied", what)) => {
                applied.push(what.to_owned());
                replicas.progress(applied.len().try_into()?, "migrations");
            }
            Some(("ready,", _)) => ready += 1,
            _ => {}
        }
    }
    replicas.stop_all();
    let survivors = replicas.ended().await?;
    applied.sort();
    let all = schema::SIZE;
    println!(
        "\n{ready} of {survivors} surviving replicas are ready; {} of {all} migrations were applied",
        applied.len()
    );
    applied.dedup();
    if ready != survivors || applied.len() != all {
        bail!("not every migration was applied once, or a replica did not get ready");
    }
    Ok(())
}

fn millis(lease: u64) -> Duration {
    Duration::from_millis(lease)
}
