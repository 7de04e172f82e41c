//! Random faults over processes that work on one register, and the judges' verdict.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use dlock_testkit::history::{self, Event};
use dlock_testkit::judges::{Updates, fence_order, lost_updates, overlap};
use dlock_testkit::register::{Register, RegisterServer};
use dlock_testkit::worker::{Order, Report as Said, Work, Worker};
use tokio::task::JoinSet;

use crate::figure::{Report, progress};
use crate::store::Store;
use crate::{Failed, Volume};

const LEASE: Duration = Duration::from_millis(500);
const ARENAS: usize = 6;
const WORKERS: usize = 3;

/// What happened in one arena: a key, a register, and processes that fight for them.
#[derive(Default)]
struct Fought {
    events: Vec<Event>,
    updates: Updates,
    kills: usize,
    freezes: usize,
}

pub(crate) async fn measure(store: &Store, volume: Volume, report: &mut Report) -> Result<(), Failed> {
    let fenced = fight(store, true, volume.of(34, 4), volume, report).await?;
    let unfenced = fight(store, false, volume.of(9, 4), volume, report).await?;
    let bit = fenced.stale_tried > 0 && unfenced.stale_tried > 0;
    let value = format!("{} with fences, {} without", fenced.stale_tried, unfenced.stale_tried);
    report.add(store.name(), "the same: stale writes tried (do the faults bite?)", value, "more than 0", bit);
    Ok(())
}

async fn fight(
    store: &Store,
    fenced: bool,
    rounds: usize,
    volume: Volume,
    report: &mut Report,
) -> Result<Updates, Failed> {
    let what = if fenced { "faults, register with fences" } else { "faults, register without fences" };
    let bar = Arc::new(progress(what, store.name(), rounds * ARENAS));
    let mut arenas = JoinSet::new();
    for arena in 0..ARENAS {
        let seed = volume.seed ^ (u64::try_from(arena)? << 8) ^ u64::from(fenced);
        let register = if fenced { Register::fenced() } else { Register::unfenced() };
        let arena = Arena::open(store, register, seed).await?;
        let bar = Arc::clone(&bar);
        arenas.spawn(async move { arena.run(rounds, &bar).await });
    }
    let mut all = Fought::default();
    let (mut inversions, mut overlaps, mut grants) = (Vec::new(), Vec::new(), 0);
    while let Some(arena) = arenas.join_next().await {
        let fought = arena??;
        let order = fence_order(&fought.events);
        grants += order.grants;
        inversions.extend(order.inversions);
        overlaps.extend(overlap(&fought.events).overlaps);
        all.updates.tried += fought.updates.tried;
        all.updates.stale_tried += fought.updates.stale_tried;
        all.updates.stale_accepted += fought.updates.stale_accepted;
        all.updates.lost_updates += fought.updates.lost_updates;
        all.kills += fought.kills;
        all.freezes += fought.freezes;
    }
    bar.finish_and_clear();
    for inversion in &inversions {
        eprintln!("{inversion:?}");
    }
    for overlap in &overlaps {
        eprintln!("{overlap:?}");
    }
    let name = store.name();
    let Fought { updates, kills, freezes, .. } = all;
    if fenced {
        let what = format!("{kills} kills and {freezes} freezes over {grants} grants");
        report.add(
            name,
            format!("{what}: fences out of order"),
            inversions.len(),
            "0",
            inversions.is_empty() && grants > 0,
        );
        report.add(name, "the same: overlaps of believed holds", overlaps.len(), "0", overlaps.is_empty());
        let value = format!("{} of {}", updates.stale_accepted, updates.stale_tried);
        report.add(name, "the same: stale writes accepted", value, "0", updates.stale_accepted == 0);
        let value = format!("{} of {}", updates.lost_updates, updates.tried);
        report.add(name, "the same: updates lost", value, "0", updates.lost_updates == 0);
    } else {
        let value = format!("{} of {}", updates.lost_updates, updates.tried);
        report.add(
            name,
            format!("without fences, {kills} kills and {freezes} freezes: updates lost"),
            value,
            "more than 0: the lock alone cannot",
            updates.lost_updates > 0 && inversions.is_empty() && overlaps.is_empty(),
        );
    }
    Ok(updates)
}

struct Arena {
    command: Command,
    url: String,
    locks: dlock::Locks,
    server: RegisterServer,
    key: String,
    histories: std::path::PathBuf,
    random: fastrand::Rng,
    workers: Vec<Worker>,
    processes: u32,
}

impl Arena {
    async fn open(store: &Store, register: Register, seed: u64) -> Result<Self, Failed> {
        let histories = store.file("histories");
        std::fs::create_dir(&histories)?;
        let mut arena = Self {
            command: store.command()?,
            url: store.url(),
            locks: store.locks(LEASE).await?,
            server: RegisterServer::start(register).await?,
            key: store.key(),
            histories,
            random: fastrand::Rng::with_seed(seed),
            workers: Vec::new(),
            processes: 0,
        };
        for _ in 0..WORKERS {
            let worker = arena.start().await?;
            arena.workers.push(worker);
        }
        Ok(arena)
    }

    /// One more process that works.
    async fn start(&mut self) -> Result<Worker, Failed> {
        let mut command = Command::new(self.command.get_program());
        command.args(self.command.get_args());
        let mut worker = Worker::open(command, &self.url, LEASE).await?;
        let process = self.processes;
        self.processes += 1;
        let task = Work {
            process,
            key: self.key.clone(),
            register: self.server.address(),
            pause_ms: (40, 160),
            seed: self.random.u64(..),
            history: self.histories.join(format!("{process}.jsonl")),
        };
        worker.ask(&Order::Work(task)).await?;
        Ok(worker)
    }

    /// Who is to be hit: mostly the holder, since the others have little to lose.
    async fn victim(&mut self) -> Result<usize, Failed> {
        if self.random.u8(0..10) < 8
            && let Some(holder) = self.locks.inspect(&self.key).await?
            && let Some(at) = self.workers.iter().position(|worker| Some(worker.pid()) == holder.pid)
        {
            return Ok(at);
        }
        Ok(self.random.usize(0..WORKERS))
    }

    async fn run(mut self, rounds: usize, bar: &indicatif::ProgressBar) -> Result<Fought, Failed> {
        let mut fought = Fought::default();
        for _ in 0..rounds {
            tokio::time::sleep(LEASE.mul_f64(self.random.f64() / 2.0)).await;
            let victim = self.victim().await?;
            if self.random.u8(0..10) < 4 {
                self.workers[victim].kill().await?;
                self.workers[victim] = self.start().await?;
                fought.kills += 1;
            } else {
                self.workers[victim].freeze()?;
                tokio::time::sleep(LEASE.mul_f64(1.2 + self.random.f64())).await;
                self.workers[victim].thaw()?;
                fought.freezes += 1;
            }
            bar.inc(1);
        }
        for worker in &mut self.workers {
            if !matches!(worker.ask(&Order::Stop).await?, Said::Worked { .. }) {
                return Err("a worker did not work to the end".into());
            }
        }
        for process in 0..self.processes {
            let path = self.histories.join(format!("{process}.jsonl"));
            if path.exists() {
                let events = history::read(path)?;
                fought.events.extend(events);
            }
        }
        fought.updates = lost_updates(&self.server.register().record());
        Ok(fought)
    }
}
