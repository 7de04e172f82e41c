//! Three replicas of a service have the same schedules: one by `tokio-cron-scheduler`, one by `apalis`. All of them
//! fire at the same time, and each firing is run by one replica. As soon as all of them serve, one is killed in the
//! middle of a job: another one, which waits for the outcome, runs it when the lease has ended.
//!
//! ```text
//! cargo run -p jobs
//! cargo run -p jobs --features redis -- --locks redis://localhost
//! ```

#![forbid(unsafe_code)]

mod replica;

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, Subcommand};
use replicas::Replicas;

/// Starts replicas whose schedulers fire at the same time, and kills one in the middle of a job.
#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    service: Service,
    /// Replicas of the service
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..=16))]
    replicas: u8,
    /// Firings of each of the two schedules
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(2..))]
    firings: u8,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Clone, Debug, clap::Args)]
struct Service {
    /// Where the locks are, as `dlock::connect` takes it [default: a SQLite file in a temporary directory]
    #[arg(long, global = true, value_name = "URL")]
    locks: Option<String>,
    /// Seconds from one firing to the next
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=30))]
    every: u64,
    /// Lease of a job, in milliseconds: how long the others wait for a killed replica
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
        Some(Role::Replica) => replica::serve(&cli.service).await,
        None => show(cli).await,
    };
    if let Err(error) = done {
        eprintln!("error: {error:#}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// What became of one firing, and by whom.
#[derive(Default)]
struct Firing {
    began: Vec<usize>,
    ran: Vec<usize>,
    lost: Vec<usize>,
    /// Who knows that it was run.
    settled: BTreeSet<usize>,
}

impl Firing {
    /// Whether this replica was killed in the middle of it.
    fn was_cut_short(&self, killed: Option<usize>) -> bool {
        let times = |all: &[usize]| all.iter().filter(|number| Some(**number) == killed).count();
        times(&self.began) > times(&self.ran) + times(&self.lost)
    }

    /// Whether it began although nobody who had begun before was killed or lost the lock.
    fn began_twice(&self, killed: Option<usize>) -> bool {
        self.began.len() > 1 + self.lost.len() + usize::from(self.was_cut_short(killed))
    }
}

async fn show(cli: Cli) -> Result<()> {
    let directory = tempfile::Builder::new().prefix("jobs-").tempdir().context("no temporary directory")?;
    let file = || format!("sqlite://{}", directory.path().join("locks.db").display());
    let Service { locks, every, lease } = cli.service;
    let locks = locks.unwrap_or_else(file);
    let (every, lease) = (every.to_string(), lease.to_string());
    let arguments = ["replica", "--locks", &locks, "--every", &every, "--lease", &lease];
    let wanted = usize::from(cli.firings);
    let mut replicas = Replicas::start(cli.replicas, &arguments, (2 * wanted).try_into()?)?;

    // By job and time.
    let mut firings: BTreeMap<String, Firing> = BTreeMap::new();
    let mut killed = None;
    let mut cut_short = String::new();
    let mut settled = BTreeSet::new();
    while let Some((number, line)) = replicas.next().await {
        let mut words = line.splitn(2, ' ');
        let (Some(verb), Some(what)) = (words.next(), words.next()) else { continue };
        // `invoices at 1793286002`, and then what there is to say about it.
        let which = what.split(',').next().unwrap_or_default().to_owned();
        match verb {
            "begins" => {
                let all_serve = settled.len() == usize::from(cli.replicas);
                firings.entry(which.clone()).or_default().began.push(number);
                if !all_serve || killed.is_some() {
                    replicas.go_on(number).await;
                } else {
                    replicas.kill(number, "in the middle of it")?;
                    killed = Some(number);
                    cut_short = which;
                }
            }
            "ran" => {
                let firing = firings.entry(which).or_default();
                firing.ran.push(number);
                firing.settled.insert(number);
            }
            "skips" => _ = firings.entry(which).or_default().settled.insert(number),
            "loses" => firings.entry(which).or_default().lost.push(number),
            "fails" => bail!("a job failed"),
            _ => {}
        }
        if matches!(verb, "ran" | "skips") {
            settled.insert(number);
        }
        let done = firings.values().filter(|firing| !firing.ran.is_empty()).count();
        replicas.progress(done.try_into()?, "firings");
        // Until all who are left know of each: a twin would have begun by then.
        let survivors = usize::from(cli.replicas) - usize::from(killed.is_some());
        let is_known = |firing: &Firing| {
            firing.settled.iter().filter(|number| Some(**number) != killed).count() == survivors
        };
        let known = |job: &str| {
            firings.iter().filter(|(which, firing)| which.starts_with(job) && is_known(firing)).count()
        };
        let run_again = firings.get(&cut_short).is_some_and(|firing| !firing.ran.is_empty());
        if run_again && known("invoices") >= wanted && known("report") >= wanted {
            break;
        }
    }
    replicas.stop_all();
    let survivors = replicas.ended().await?;

    println!("\n{:<26}  began on  ran on", "firing");
    for (which, firing) in &firings {
        println!("{which:<26}  {:<8}  {}", names(&firing.began), names(&firing.ran));
    }
    ensure!(killed.is_some(), "no replica was killed");
    let twice = firings.values().filter(|firing| firing.ran.len() > 1 || firing.began_twice(killed)).count();
    println!("\n{survivors} replicas are left; {} firings, {twice} of them ran twice", firings.len());
    ensure!(twice == 0, "a job ran twice");
    ensure!(firings[&cut_short].ran.len() == 1, "the job of the killed replica was not run again");
    Ok(())
}

fn names(replicas: &[usize]) -> String {
    replicas.iter().map(|number| (number + 1).to_string()).collect::<Vec<_>>().join(", ")
}
