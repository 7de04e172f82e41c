//! One process whose tasks want one key in one of the modes, for a while.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use dlock_core::{Guard, Locks};
use tokio::process::{Child, Command};

use crate::clients;

/// What the process does.
#[derive(Clone, Debug, Args)]
pub(crate) struct Part {
    /// The server
    pub(crate) url: String,
    /// The lock
    pub(crate) key: String,
    /// In which mode: alone, fair, read, permits-N, or mixed, where one in twenty is alone and the others read
    pub(crate) mode: String,
    /// How many tasks want it
    pub(crate) tasks: usize,
    /// For how many microseconds each has it
    pub(crate) hold: u64,
    /// For how many milliseconds this goes on
    pub(crate) time: u64,
    /// How many milliseconds after the Unix epoch it begins, for all processes alike
    pub(crate) begin: u64,
}

/// When all processes that are started now begin.
pub(crate) fn begin_after(pause: Duration) -> Result<u64> {
    Ok(u64::try_from((SystemTime::now().duration_since(UNIX_EPOCH)? + pause).as_millis())?)
}

impl Part {
    /// Starts a process for it.
    pub(crate) fn start(&self) -> Result<Child> {
        let Self { url, key, mode, tasks, hold, time, begin } = self;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["crowd", url, key, mode]);
        command.args([tasks.to_string(), hold.to_string(), time.to_string(), begin.to_string()]);
        command.stdout(std::process::Stdio::piped()).kill_on_drop(true);
        command.spawn().context("cannot start a process of this program")
    }

    /// Reads what a process says at its end: how long each grant was waited for, in microseconds.
    pub(crate) async fn read(child: Child) -> Result<Vec<u32>> {
        let output = child.wait_with_output().await?;
        ensure!(output.status.success(), "a process failed");
        Ok(String::from_utf8(output.stdout)?.split_whitespace().map(str::parse).collect::<Result<_, _>>()?)
    }

    /// Does it, and prints what came of it.
    pub(crate) async fn play(&self) -> Result<()> {
        let locks = clients::of_url(&self.url).await?;
        let begin = UNIX_EPOCH + Duration::from_millis(self.begin);
        let begin = Instant::now() + begin.duration_since(SystemTime::now()).unwrap_or_default();
        let end = begin + Duration::from_millis(self.time);
        let tasks: Vec<_> = (0..self.tasks)
            .map(|task| {
                let (part, locks) = (self.clone(), locks.clone());
                tokio::spawn(async move {
                    tokio::time::sleep_until(begin.into()).await;
                    let (mut waits, mut round) = (Vec::new(), task);
                    loop {
                        let asked = Instant::now();
                        let acquired = tokio::time::timeout_at(end.into(), part.acquire(&locks, round)).await;
                        let Ok(acquired) = acquired else { return anyhow::Ok(waits) };
                        let guard = acquired?;
                        waits.push(u32::try_from(asked.elapsed().as_micros()).unwrap_or(u32::MAX));
                        if part.hold > 0 {
                            tokio::time::sleep(Duration::from_micros(part.hold)).await;
                        }
                        guard.release().await?;
                        round += 1;
                    }
                })
            })
            .collect();
        let mut waits = Vec::new();
        for task in tasks {
            waits.append(&mut task.await??);
        }
        let waits: Vec<_> = waits.iter().map(u32::to_string).collect();
        println!("{}", waits.join(" "));
        locks.shutdown(Duration::from_secs(5)).await?;
        Ok(())
    }

    async fn acquire(&self, locks: &Locks, round: usize) -> Result<Guard> {
        let lock = locks.lock(&self.key);
        Ok(match &*self.mode {
            "alone" => lock.acquire().await?,
            "fair" => lock.with_fairness(true).acquire().await?,
            "mixed" if round.is_multiple_of(20) => lock.acquire().await?,
            "read" | "mixed" => lock.read().acquire().await?,
            mode => match mode.strip_prefix("permits-") {
                Some(permits) => locks.semaphore(&self.key, permits.parse()?).acquire().await?,
                None => bail!("no mode {mode}"),
            },
        })
    }
}
