//! Three replicas of a service elect a leader, which does what only one may do. The first leader is killed: the next
//! one leads when the lease has ended. That one stops as a service does that is deployed anew: the last one leads at
//! once, or after one look of a backend that has to be asked.
//!
//! ```text
//! cargo run -p leader
//! cargo run -p leader --features redis -- --locks redis://localhost
//! ```

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, Subcommand};
use dlock::{ErrorKind, leader};
use replicas::Replicas;

/// Starts replicas of which one leads; kills the first leader, and stops the second one.
#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    service: Service,
    /// Replicas of the service
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(3..=16))]
    replicas: u8,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Clone, Debug, clap::Args)]
struct Service {
    /// Where the election is, as `dlock::connect` takes it [default: a SQLite file in a temporary directory]
    #[arg(long, global = true, value_name = "URL")]
    locks: Option<String>,
    /// Lease of the leader, in milliseconds: how long a killed one leaves the service without a leader
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
        Some(Role::Replica) => serve(&cli.service).await,
        None => show(cli).await,
    };
    if let Err(error) = done {
        eprintln!("error: {error:#}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// The body is the term: it is dropped when the term is lost, and runs anew in the next term of this replica.
#[leader(key = "billing", term = term)]
async fn bill() -> Result<(), dlock::Error> {
    let number = term.number().unwrap_or_default();
    println!("leads, term {number}");
    loop {
        tokio::time::sleep(Duration::from_millis(200)).await;
        println!("bills, term {number}");
    }
}

/// Serves until it is asked to stop.
async fn serve(service: &Service) -> Result<()> {
    let url = service.locks.as_deref().context("a replica is given --locks")?;
    let lease = Duration::from_millis(service.lease);
    let locks = dlock::from_url(url).await?.with_lease(lease).with_label(replicas::name()).build()?;
    // The only registered backend is the default one of the attributes.
    dlock::register("leader", locks.clone())?;
    let stopped = async {
        replicas::asked_to_stop().await;
        // The body is dropped, and the term resigned. In an outage it ends with its lease, which is no failure of ours.
        if let Err(late) = locks.shutdown(Duration::from_secs(5)).await {
            eprintln!("{late}");
        }
    };
    match tokio::join!(bill(), stopped) {
        (Err(error), ()) if error.kind() == ErrorKind::Closed => Ok(()),
        (ended, ()) => Ok(ended?),
    }
}

/// What becomes of the leaders, one after the other.
const FATES: [&str; 3] = ["is killed", "stops", "is the last one"];

/// A leader that was seen.
struct Led {
    number: usize,
    term: u64,
    /// Since the end of the one before.
    after: Duration,
    steps: u32,
}

async fn show(cli: Cli) -> Result<()> {
    let directory = tempfile::Builder::new().prefix("leader-").tempdir().context("no temporary directory")?;
    let file = || format!("sqlite://{}", directory.path().join("locks.db").display());
    let locks = cli.service.locks.unwrap_or_else(file);
    let lease = cli.service.lease.to_string();
    let arguments = ["replica", "--locks", &locks, "--lease", &lease];
    let mut replicas = Replicas::start(cli.replicas, &arguments, FATES.len().try_into()?)?;

    let (mut vacant, mut leaders): (Instant, Vec<Led>) = (Instant::now(), Vec::new());
    while let Some((number, line)) = replicas.next().await {
        let Some((what, term)) = line.split_once(", term ") else { continue };
        let term: u64 = term.parse().context("a term has a number")?;
        if what == "leads" {
            ensure!(
                leaders.last().is_none_or(|before| before.term < term),
                "a term is not later than the last"
            );
            leaders.push(Led { number, term, after: vacant.elapsed(), steps: 0 });
            replicas.progress(leaders.len().try_into()?, "leaders");
            continue;
        }
        let leader = leaders.last_mut().context("nobody leads")?;
        if (leader.number, leader.term) != (number, term) {
            // Said before it was killed or stopped, or else a leader of the past is at work.
            bail!("replica {} is at work in term {term}, after term {} has begun", number + 1, leader.term);
        }
        leader.steps += 1;
        if leader.steps == 2 {
            match FATES[leaders.len() - 1] {
                "is killed" => replicas.kill(number, "while it leads")?,
                "stops" => {
                    replicas.print(&format!("replica {} is asked to stop", number + 1));
                    replicas.stop(number);
                }
                _ => break,
            }
            vacant = Instant::now();
        }
    }
    replicas.stop_all();
    replicas.ended().await?;

    println!("\nterm  leader     without a leader before");
    for (led, fate) in leaders.iter().zip(FATES) {
        println!("{:>4}  replica {}  {:>6} ms  {fate}", led.term, led.number + 1, led.after.as_millis());
    }
    ensure!(leaders.len() == FATES.len(), "only {} led", leaders.len());
    Ok(())
}
