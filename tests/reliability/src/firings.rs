//! Jobs that run once, of processes whose clocks differ and some of which are killed in the middle of a run.

use std::time::Duration;

use dlock_rig::worker::{Order, Report as Said, Worker};
use fastrand::Rng;
use futures_util::future::{select_all, try_join_all};
use indicatif::ProgressBar;

use crate::clock::WallClock;
use crate::figure::{Report, progress};
use crate::store::{Kind, Store};
use crate::{Failed, Volume};

const LEASE: Duration = Duration::from_secs(1);
/// Schedules at a time.
const LANES: usize = 6;
/// How far the clocks of the replicas of a schedule are from the machine's, in seconds.
const CLOCKS: [i64; 3] = [0, 300, -300];
const RUN_MS: u64 = 20;
const WINDOW_MS: u64 = 3_600_000;
/// Of so many firings one job is killed that is to run again, and one that is not, where that can be.
const KILLED: usize = 25;

/// What is to become of a firing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    Sound,
    /// The process that runs the job is killed, and another one runs it again.
    Rerun,
    /// The process that runs the job is killed, and nobody runs it again.
    Skip,
}

/// How many firings went as they should, and how many did not.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    sound: usize,
    rerun: usize,
    skipped: usize,
    /// Killed after the last step of the job, so that it may run again.
    late: usize,
    wrong: usize,
}

pub(crate) async fn measure(
    store: &Store,
    volume: Volume,
    firings: Option<usize>,
    report: &mut Report,
) -> Result<(), Failed> {
    let lanes = volume.of(LANES, 2);
    let each = firings.unwrap_or_else(|| volume.of(6_000, 60)).div_ceil(lanes);
    let bar = progress("firings", store.name(), lanes * each);
    let schedules = (0..lanes).map(|lane| {
        let random = Rng::with_seed(volume.seed ^ u64::try_from(lane).unwrap_or_default());
        schedule(store, each, random, bar.clone())
    });
    let counts = try_join_all(schedules).await?;
    bar.finish_and_clear();
    let sum = |of: fn(&Counts) -> usize| counts.iter().map(of).sum::<usize>();
    let (sound, wrong) = (sum(|counts| counts.sound), sum(|counts| counts.wrong));
    let killed = [sum(|counts| counts.rerun), sum(|counts| counts.skipped), sum(|counts| counts.late)];
    let what = format!(
        "{} firings, each in {} processes with clocks 5 minutes apart: jobs that did not run once, or after a kill \
         otherwise than was said",
        lanes * each,
        CLOCKS.len()
    );
    report.add(store.name(), what, wrong, "0", wrong == 0);
    let what = "the same: sound; run again after a kill, skipped after a kill, killed after the last step";
    report.note(store.name(), what, format!("{sound}; {}, {}, {}", killed[0], killed[1], killed[2]));
    Ok(())
}

/// One program on three machines.
struct Schedule<'a> {
    store: &'a Store,
    replicas: Vec<Worker>,
    clocks: Vec<WallClock>,
}

async fn schedule(
    store: &Store,
    firings: usize,
    mut random: Rng,
    bar: ProgressBar,
) -> Result<Counts, Failed> {
    let (mut replicas, mut clocks) = (Vec::new(), Vec::new());
    for seconds in CLOCKS {
        let clock = WallClock::new(store.file("clock"))?;
        clock.set(seconds)?;
        replicas.push(start(store, &clock).await?);
        clocks.push(clock);
    }
    let mut schedule = Schedule { store, replicas, clocks };
    let mut counts = Counts::default();
    for firing in 0..firings {
        let plan = match firing % KILLED {
            // Its sessions end after a crash, whatever was said.
            20 if store.kind() != Kind::Zk => Plan::Skip,
            10 | 20 => Plan::Rerun,
            _ => Plan::Sound,
        };
        schedule.fire(plan, &mut random, &mut counts).await?;
        bar.inc(1);
    }
    Ok(counts)
}

async fn start(store: &Store, clock: &WallClock) -> Result<Worker, Failed> {
    let mut command = store.command()?;
    clock.give_to(&mut command);
    Ok(Worker::open(command, &store.url(LEASE), LEASE).await?)
}

impl Schedule<'_> {
    async fn fire(&mut self, plan: Plan, random: &mut Rng, counts: &mut Counts) -> Result<(), Failed> {
        let order = Order::Fire {
            key: self.store.key(),
            window_ms: WINDOW_MS,
            run_ms: RUN_MS,
            skip_after_crash: plan == Plan::Skip,
        };
        for replica in &mut self.replicas {
            replica.order(&order).await?;
        }
        let mut open: Vec<usize> = (0..self.replicas.len()).collect();
        let (mut began, mut ended, mut killed, mut late) = (0, 0, None, false);
        while !open.is_empty() {
            let (place, said) = {
                let reports = self.replicas.iter_mut().enumerate().filter(|(place, _)| open.contains(place));
                let next =
                    reports.map(|(place, replica)| Box::pin(async move { (place, replica.report().await) }));
                select_all(next).await.0
            };
            match said? {
                Said::Began => {
                    began += 1;
                    if plan != Plan::Sound && killed.is_none() {
                        tokio::time::sleep(Duration::from_millis(random.u64(0..RUN_MS / 2))).await;
                        let replica = &mut self.replicas[place];
                        replica.kill().await?;
                        // What it said before it was killed is in the pipe.
                        while let Ok(said) = replica.report().await {
                            late |= said == Said::Ended;
                        }
                        killed = Some(place);
                        open.retain(|of| *of != place);
                    }
                }
                Said::Ended => ended += 1,
                Said::Fired { .. } => open.retain(|of| *of != place),
                other => return Err(format!("unexpected: {other:?}").into()),
            }
        }
        if let Some(place) = killed {
            self.replicas[place] = start(self.store, &self.clocks[place]).await?;
        }
        match (plan, began, ended) {
            (Plan::Sound, 1, 1) => counts.sound += 1,
            (Plan::Rerun | Plan::Skip, 1 | 2, 0 | 1) if late => counts.late += 1,
            (Plan::Rerun, 2, 1) => counts.rerun += 1,
            (Plan::Skip, 1, 0) => counts.skipped += 1,
            _ => {
                eprintln!("{plan:?}: began {began} times, ended {ended} times");
                counts.wrong += 1;
            }
        }
        Ok(())
    }
}
