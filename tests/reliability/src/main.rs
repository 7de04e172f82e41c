//! Measures how dlock behaves when things go wrong, and says whether it kept its promises.
//!
//! `cargo run --release -p dlock-reliability -- [--quick] [--hours N] [--seed N]
//! [--backend memory|sqlite|redis|zk|etcd|etcd-cluster|postgres|mysql|postgres-session|mysql-session]...`, and for a
//! node of a quorum that hangs `--only hung [--hang SECONDS] [--rate N]`, and for jobs that run once `--only once
//! [--firings N]`.
//!
//! The exit code is 1 when a promise was broken.

mod blocked;
mod cancelled;
mod clock;
mod cluster;
mod deleted;
mod disconnected;
mod dropped;
mod endurance;
mod failover;
mod faults;
mod figure;
mod firings;
mod frozen;
mod hung;
mod killed;
mod leader;
mod modes;
mod resident;
mod sessions;
mod store;
mod thawed;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand, ValueEnum};

use figure::Report;
use store::{Kind, Store};

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Measures how dlock behaves when things go wrong.
#[derive(Debug, Parser)]
struct Arguments {
    /// A backend, as often as wanted; all when left out. Processes are killed and frozen where the locks are not in
    /// one of them.
    #[arg(long)]
    backend: Vec<Kind>,
    /// Goes on for so many hours, all backends in turn, under faults; watches what this process keeps.
    #[arg(long, conflicts_with_all = ["quick", "only"])]
    hours: Option<f64>,
    /// A short run, for continuous integration.
    #[arg(long)]
    quick: bool,
    /// The seed of everything that is random.
    #[arg(long)]
    seed: Option<u64>,
    /// For how many seconds a node of a quorum hangs.
    #[arg(long)]
    hang: Option<u64>,
    /// How many sections of a quorum are asked for each second.
    #[arg(long)]
    rate: Option<u64>,
    /// How many firings of jobs there are on each backend.
    #[arg(long)]
    firings: Option<usize>,
    /// Only these measurements.
    #[arg(long)]
    only: Vec<Measurement>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Measurement {
    /// Acquires that are cancelled at every await point.
    Cancelled,
    /// Guards that are dropped: at once, by panics, without a runtime.
    Dropped,
    /// Runtimes that are blocked for three leases.
    Blocked,
    /// Processes that are frozen for longer than their lease.
    Frozen,
    /// Processes that are killed while they hold a lock.
    Killed,
    /// Leaders that are killed, frozen, cut off, or blocked meanwhile.
    Leader,
    /// Leaders that resign, and how soon the next one leads.
    Resign,
    /// Jobs that run once, of processes whose clocks differ and some of which are killed meanwhile, see `--firings`.
    Once,
    /// Processes whose session keeps their locks, killed and frozen.
    Sessions,
    /// Random faults, with a record that is checked.
    Faults,
    /// Readers, permits and fair locks under random faults, and holders of permits that are killed.
    Modes,
    /// Acquires that give up on a frozen server, which then thaws.
    Thawed,
    /// Locks that an administrator deletes.
    Deleted,
    /// Replicas that take over without knowing everything.
    Failover,
    /// Connections that end while a session goes on, and sessions that run out.
    Disconnected,
    /// A node of a quorum that hangs, see `--hang` and `--rate`.
    Hung,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Works as a process that is killed and frozen by the measurement.
    #[command(hide = true)]
    Worker,
}

/// How much is done.
#[derive(Clone, Copy, Debug)]
struct Volume {
    quick: bool,
    seed: u64,
}

impl Volume {
    const fn of(self, full: usize, quick: usize) -> usize {
        if self.quick { quick } else { full }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.command {
        Some(Command::Worker) => {
            dlock_rig::worker::serve(async |url: String| dlock::from_url(&url).await?.from_env())
                .map(|()| true)
                .map_err(Failed::from)
        }
        None => measure(&arguments),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("the measurement could not be made: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(arguments: &Arguments) -> Result<bool, Failed> {
    let volume = Volume { quick: arguments.quick, seed: arguments.seed.unwrap_or_else(|| fastrand::u64(..)) };
    println!("seed {} (repeat with --seed {})", volume.seed, volume.seed);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let wanted = |measurement| arguments.only.is_empty() || arguments.only.contains(&measurement);
    let started = Instant::now();
    let mut report = Report::default();
    let kinds = if arguments.backend.is_empty() { Kind::value_variants() } else { &arguments.backend };
    if let Some(hours) = arguments.hours {
        endurance::measure(&runtime, kinds, hours, volume.seed, &mut report)?;
    }
    // The quorum that hangs has servers of its own.
    let needs_stores = arguments.hours.is_none() && arguments.only != [Measurement::Hung];
    for kind in kinds.iter().copied().filter(|_| needs_stores) {
        let store = Store::new(kind)?;
        // What a process does with a store it does with one server and with several.
        if kind == Kind::EtcdCluster {
            if wanted(Measurement::Faults) {
                runtime.block_on(faults::measure(&store, volume, &mut report))?;
            }
            if wanted(Measurement::Modes) {
                runtime.block_on(modes::measure(&store, volume, &mut report))?;
            }
            continue;
        }
        if wanted(Measurement::Cancelled) {
            // What is cancelled runs on one thread, so that each await point is the same in every run.
            cancelled::measure(&store, volume, &mut report)?;
        }
        if wanted(Measurement::Dropped) {
            runtime.block_on(dropped::measure(&store, volume, &mut report))?;
        }
        if wanted(Measurement::Blocked) {
            runtime.block_on(blocked::measure(&store, volume, &mut report))?;
        }
        if kind != Kind::Memory {
            if !kind.is_session() && wanted(Measurement::Frozen) {
                runtime.block_on(frozen::measure(&store, volume, &mut report))?;
            }
            if wanted(Measurement::Killed) {
                runtime.block_on(killed::measure(&store, volume, &mut report))?;
            }
            if kind.has_session_records() && wanted(Measurement::Sessions) {
                runtime.block_on(sessions::measure(&store, volume, &mut report))?;
            }
            // A process that is frozen in the middle of a transaction keeps the file of SQLite locked for all.
            if !kind.is_session() && kind != Kind::Sqlite && wanted(Measurement::Leader) {
                runtime.block_on(leader::measure(&store, volume, &mut report))?;
            }
            if !kind.is_session() && wanted(Measurement::Resign) {
                runtime.block_on(leader::resign(&store, volume, &mut report))?;
            }
            // A session of a database has no time for which a key stays taken.
            if !kind.is_session() && wanted(Measurement::Once) {
                runtime.block_on(firings::measure(&store, volume, arguments.firings, &mut report))?;
            }
            if !kind.is_session() && wanted(Measurement::Faults) {
                runtime.block_on(faults::measure(&store, volume, &mut report))?;
            }
            if !kind.is_session() && wanted(Measurement::Modes) {
                runtime.block_on(modes::measure(&store, volume, &mut report))?;
            }
        }
        if !kind.is_session() && !matches!(kind, Kind::Memory | Kind::Sqlite) {
            if wanted(Measurement::Thawed) {
                runtime.block_on(thawed::measure(&store, volume, &mut report))?;
            }
            if wanted(Measurement::Deleted) {
                runtime.block_on(deleted::measure(&store, volume, &mut report))?;
            }
        }
        if kind == Kind::Redis && wanted(Measurement::Failover) {
            runtime.block_on(failover::measure(volume, &mut report))?;
        }
        if kind == Kind::Zk && wanted(Measurement::Disconnected) {
            runtime.block_on(disconnected::measure(&store, volume, &mut report))?;
        }
    }
    // It measures speed, and is made only when it is asked for.
    if arguments.only.contains(&Measurement::Hung) {
        let hang = arguments.hang.map(Duration::from_secs);
        runtime.block_on(hung::measure(volume, arguments.rate, hang, &mut report))?;
    }
    println!("{report}");
    let kept = report.is_kept();
    let verdict = if kept { "every promise was kept" } else { "a promise was broken" };
    println!("{verdict} (seed {}, {:.0?})", volume.seed, started.elapsed());
    Ok(kept)
}
