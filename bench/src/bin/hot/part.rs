//! One process whose tasks want one key, for a while.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;
use dlock::Wait;
use tokio::process::{Child, Command};
use tokio::time::sleep_until;

/// What the process does.
#[derive(Clone, Debug, Args)]
pub(crate) struct Part {
    /// The server
    pub(crate) url: String,
    /// The lock
    pub(crate) key: String,
    /// How many tasks want it
    pub(crate) tasks: usize,
    /// For how many microseconds each has it
    pub(crate) hold: u64,
    /// For how many milliseconds this goes on
    pub(crate) time: u64,
    /// How many milliseconds after the Unix epoch it begins, for all processes alike
    pub(crate) begin: u64,
    /// How it goes from one to the next
    pub(crate) way: Way,
}

/// How the lock goes from one to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Way {
    /// Passed on inside the process, which is the default
    Handoff,
    /// Released and acquired each time
    Without,
    /// In the order in which they came, those of all processes
    Fair,
}

impl Way {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Handoff => "handoff",
            Self::Without => "without",
            Self::Fair => "fair",
        }
    }
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Got {
    /// How long each grant was waited for, in microseconds, sorted.
    pub(crate) waits: Vec<u32>,
    pub(crate) handoffs: u64,
    /// Seconds of processor time.
    pub(crate) used: f64,
}

impl Got {
    pub(crate) fn grants(&self) -> f64 {
        self.waits.len() as f64
    }

    /// The wait of which so many of a hundred are not longer, in milliseconds.
    pub(crate) fn wait(&self, percent: usize) -> f64 {
        let at = (self.waits.len() * percent / 100).min(self.waits.len().saturating_sub(1));
        self.waits.get(at).map_or(f64::NAN, |micros| f64::from(*micros) / 1e3)
    }

    /// What all of them got.
    pub(crate) fn all(parts: &[Self]) -> Self {
        let mut all = Self::default();
        for part in parts {
            all.waits.extend(&part.waits);
            all.handoffs += part.handoffs;
            all.used += part.used;
        }
        all.waits.sort_unstable();
        all
    }
}

impl Part {
    /// Starts a process for it.
    pub(crate) fn start(&self) -> Result<Child> {
        let Self { url, key, tasks, hold, time, begin, way } = self;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("part").arg(url).arg(key);
        command.args([tasks.to_string(), hold.to_string(), time.to_string(), begin.to_string()]);
        command.arg(way.name()).stdout(std::process::Stdio::piped()).kill_on_drop(true);
        command.spawn().context("cannot start a process of this program")
    }

    /// Reads what a process says at its end.
    pub(crate) async fn read(child: Child) -> Result<Got> {
        let output = child.wait_with_output().await?;
        anyhow::ensure!(output.status.success(), "a process failed");
        let text = String::from_utf8(output.stdout)?;
        let mut words = text.split_whitespace();
        let handoffs = words.next().context("no figures")?.parse()?;
        let used = words.next().context("no figures")?.parse()?;
        let waits = words.map(str::parse).collect::<Result<_, _>>()?;
        Ok(Got { waits, handoffs, used })
    }

    /// Does it, and prints what came of it.
    pub(crate) async fn play(&self) -> Result<()> {
        let locks = dlock::connect(&self.url).await?;
        let epoch = Duration::from_millis(self.begin);
        let begin = std::time::UNIX_EPOCH + epoch;
        let begin = Instant::now() + begin.duration_since(std::time::SystemTime::now()).unwrap_or_default();
        let end = begin + Duration::from_millis(self.time);
        let tasks: Vec<_> = (0..self.tasks)
            .map(|_| {
                let lock = locks.lock(&self.key).with_wait(Wait::Forever);
                let lock = lock.with_handoff(self.way == Way::Handoff).with_fairness(self.way == Way::Fair);
                let hold = Duration::from_micros(self.hold);
                tokio::spawn(async move {
                    sleep_until(begin.into()).await;
                    let mut waits = Vec::new();
                    loop {
                        let asked = Instant::now();
                        // Who waits when the time is up has waited for so long.
                        let acquired = tokio::time::timeout_at(end.into(), lock.acquire()).await;
                        waits.push(u32::try_from(asked.elapsed().as_micros()).unwrap_or(u32::MAX));
                        let Ok(acquired) = acquired else { return anyhow::Ok((waits, true)) };
                        let guard = acquired?;
                        if !hold.is_zero() {
                            tokio::time::sleep(hold).await;
                        }
                        guard.release().await?;
                    }
                })
            })
            .collect();
        let mut waits = Vec::new();
        for task in tasks {
            let (mut own, cut_off) = task.await??;
            if cut_off {
                own.pop();
            }
            waits.append(&mut own);
        }
        waits.sort_unstable();
        let used = dlock_bench::process_time().as_secs_f64();
        let waits: Vec<_> = waits.iter().map(u32::to_string).collect();
        println!("{} {used} {}", locks.stats().handoffs, waits.join(" "));
        locks.shutdown(Duration::from_secs(5)).await?;
        Ok(())
    }
}
