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

use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

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

/// A line of a replica, or none when its output has ended.
type Said = (usize, Option<String>);

async fn deploy(mut service: Service, replicas: u8) -> Result<()> {
    let directory =
        tempfile::Builder::new().prefix("migrate-").tempdir().context("no temporary directory")?;
    let file = |name: &str| format!("sqlite://{}", directory.path().join(name).display());
    // Two files: a migration that holds the database for long must not hold up the renewals of the lock.
    let database = service.database.get_or_insert_with(|| file("shop.db"));
    if database.starts_with("sqlite:") {
        database.push_str("?mode=rwc");
    }
    service.locks.get_or_insert_with(|| file("locks.db"));

    let begun = Instant::now();
    let (say, mut said) = mpsc::unbounded_channel();
    let mut fleet: Vec<Child> = Vec::new();
    for number in 0..usize::from(replicas) {
        fleet.push(start(&service, number, say.clone())?);
    }
    drop(say);
    let (mut killed, mut ready, mut applied) = (None, 0, Vec::new());
    while let Some((number, line)) = said.recv().await {
        let line = line.unwrap_or_else(|| "has ended".to_owned());
        println!("{:>6} ms  replica {}: {line}", begun.elapsed().as_millis(), number + 1);
        match line.split_once(' ') {
            Some(("applies", what)) if what.starts_with("2 ") && killed.is_none() => {
                fleet[number].start_kill().context("cannot kill a replica")?;
                println!(
                    "{:>6} ms  replica {} is killed in the middle of it",
                    begun.elapsed().as_millis(),
                    number + 1
                );
                killed = Some(number);
            }
            Some(("applied", what)) => applied.push(what.to_owned()),
            Some(("ready,", _)) => ready += 1,
            _ => {}
        }
    }
    for (number, child) in fleet.iter_mut().enumerate() {
        let status = child.wait().await.context("cannot wait for a replica")?;
        if !status.success() && killed != Some(number) {
            bail!("replica {} failed: {status}", number + 1);
        }
    }
    applied.sort();
    let (all, survivors) = (schema::SIZE, usize::from(replicas) - usize::from(killed.is_some()));
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

fn start(service: &Service, number: usize, say: mpsc::UnboundedSender<Said>) -> Result<Child> {
    let program = std::env::current_exe().context("cannot find this program to start it as a replica")?;
    let mut child = Command::new(program)
        .arg("replica")
        .args(service.database.iter().flat_map(|url| ["--database", url]))
        .args(service.locks.iter().flat_map(|url| ["--locks", url]))
        .args(["--lease", &service.lease.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("cannot start a replica")?;
    let output = child.stdout.take().context("its output is a pipe")?;
    tokio::spawn(async move {
        let mut lines = BufReader::new(output).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let _ = say.send((number, Some(line)));
        }
        let _ = say.send((number, None));
    });
    Ok(child)
}

fn millis(lease: u64) -> Duration {
    Duration::from_millis(lease)
}
