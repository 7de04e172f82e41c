//! Rounds, medians, and what the system says of memory and threads.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use dlock_bench::report::{Row, Spread};
use dlock_bench::thread_time;
use tokio::runtime::{Builder, Runtime};

/// How long to measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Rounds of each measurement; odd, so that there is a middle one.
    pub(crate) rounds: usize,
    /// Calls a round where a call takes microseconds.
    pub(crate) calls: u32,
    /// Rounds of what writes to a file: many and short ones, so that few of them are disturbed.
    pub(crate) short_rounds: usize,
    /// Calls of a short round.
    pub(crate) short_calls: u32,
    /// Acquire and release, to count how often the keeper was woken.
    pub(crate) wakes_over: u32,
    /// How long many locks are held.
    pub(crate) hold: Duration,
}

impl Settings {
    pub(crate) const fn full() -> Self {
        let hold = Duration::from_secs(30);
        Self { rounds: 11, calls: 50_000, short_rounds: 401, short_calls: 25, wakes_over: 1_000_000, hold }
    }

    pub(crate) const fn quick() -> Self {
        let hold = Duration::from_secs(10);
        Self { rounds: 7, calls: 10_000, short_rounds: 101, short_calls: 25, wakes_over: 100_000, hold }
    }
}

/// One thread, so that no figure contains the way between two.
pub(crate) fn runtime() -> Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("no runtime")
}

/// Nanoseconds of this thread's processor time a call, of `calls` calls that `work` makes. For work that never waits;
/// what else the machine does counts little.
pub(crate) fn busy_time(calls: u32, work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = thread_time();
    work()?;
    Ok(per_call(thread_time().saturating_sub(start), calls))
}

/// Nanoseconds a call, of `calls` calls that `work` makes, as a clock on the wall shows them. For work of several
/// threads.
pub(crate) fn wall_time(calls: u32, work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    work()?;
    Ok(per_call(start.elapsed(), calls))
}

pub(crate) fn per_call(took: Duration, calls: u32) -> f64 {
    took.as_secs_f64() * 1e9 / f64::from(calls)
}

/// Nanoseconds a call over the rounds. One round before is not counted.
pub(crate) fn rounds(rounds: usize, mut round: impl FnMut() -> Result<f64>) -> Result<Spread> {
    round()?;
    Ok(Spread::of((0..rounds).map(|_| round()).collect::<Result<_>>()?))
}

/// What `ours` takes against `theirs`, measured in turns that change places each round.
pub(crate) struct Comparison {
    pub(crate) ours: Spread,
    pub(crate) theirs: Spread,
    pub(crate) ratio: Spread,
}

impl Comparison {
    /// Both sides, and their ratio.
    pub(crate) fn rows(&self, ours: impl Into<String>, theirs: impl Into<String>, limit: f64) -> Vec<Row> {
        let (ours, theirs) = (ours.into(), theirs.into());
        let what = format!("{ours} / {theirs}");
        vec![
            Row::spread(ours, self.ours, "ns"),
            Row::spread(theirs, self.theirs, "ns"),
            Row::spread(what, self.ratio, "x").at_most(self.ratio.median, limit, "x"),
        ]
    }
}

pub(crate) fn compare(
    rounds: usize,
    mut ours: impl FnMut() -> Result<f64>,
    mut theirs: impl FnMut() -> Result<f64>,
) -> Result<Comparison> {
    // Not counted: caches and connections warm up.
    ours()?;
    theirs()?;
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        if round % 2 == 0 {
            a.push(ours()?);
            b.push(theirs()?);
        } else {
            b.push(theirs()?);
            a.push(ours()?);
        }
    }
    let ratio = Spread::of(a.iter().zip(&b).map(|(a, b)| a / b).collect());
    Ok(Comparison { ours: Spread::of(a), theirs: Spread::of(b), ratio })
}

/// The memory of this process that is in use, in bytes.
pub(crate) fn resident() -> Result<u64> {
    let status =
        fs::read_to_string("/proc/self/status").context("this bench reads /proc, which only Linux has")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kilobytes: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kilobytes * 1_024)
}

/// The processor time that the threads of this process have used so far: the keeper's, and all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cpu {
    pub(crate) keeper: Duration,
    pub(crate) all: Duration,
}

impl Cpu {
    pub(crate) fn now() -> Result<Self> {
        let mut cpu = Self { keeper: Duration::ZERO, all: Duration::ZERO };
        for thread in
            fs::read_dir("/proc/self/task").context("this bench reads /proc, which only Linux has")?
        {
            let thread = thread?.path();
            // A thread may end between the listing and this.
            let (Ok(name), Ok(times)) =
                (fs::read_to_string(thread.join("comm")), fs::read_to_string(thread.join("schedstat")))
            else {
                continue;
            };
            let nanos = times.split_whitespace().next().context("no run time in schedstat")?.parse()?;
            let used = Duration::from_nanos(nanos);
            cpu.all += used;
            if name.trim() == "dlock-keeper" {
                cpu.keeper += used;
            }
        }
        Ok(cpu)
    }
}
