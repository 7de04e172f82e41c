//! Processes whose tasks want one key, for a while.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail, ensure};
use dlock_core::{Guard, Locks, Wait};
use tokio::process::{Child, Command};

/// The part of one process.
#[derive(Clone, Debug, clap::Args)]
pub struct Part {
    /// The server
    pub url: String,
    /// The lock
    pub key: String,
    /// How: alone, without (handoff), fair, read, permits-N, or mixed, where one in twenty is alone and the others read
    pub mode: String,
    /// How many tasks want it
    pub tasks: usize,
    /// For how many microseconds each has it
    pub hold: u64,
    /// For how many milliseconds this goes on
    pub time: u64,
    /// How many milliseconds after the Unix epoch it begins, for all processes alike
    #[arg(default_value_t = 0)]
    begin: u64,
}

impl Part {
    /// A part in `key` of the server at `url`, of so many tasks in this mode, which have it for so many microseconds,
    /// for so many milliseconds.
    #[must_use]
    pub fn new(url: &str, key: &str, mode: &str, tasks: usize, hold: u64, time: u64) -> Self {
        let (url, key, mode) = (url.to_owned(), key.to_owned(), mode.to_owned());
        Self { url, key, mode, tasks, hold, time, begin: 0 }
    }

    /// Starts a process for it: this program, called again as `crowd`.
    fn start(&self, begin: u64) -> Result<Child> {
        let Self { url, key, mode, tasks, hold, time, .. } = self;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["crowd", url, key, mode]);
        command.args([tasks.to_string(), hold.to_string(), time.to_string(), begin.to_string()]);
        command.stdout(std::process::Stdio::piped()).kill_on_drop(true);
        command.spawn().context("cannot start a process of this program")
    }

    /// Does it, and prints what came of it.
    ///
    /// # Errors
    ///
    /// When a lock cannot be taken or released.
    pub async fn play(&self, locks: Locks) -> Result<()> {
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
        let lock = locks.lock(&self.key).with_wait(Wait::Forever);
        Ok(match &*self.mode {
            "alone" => lock.acquire().await?,
            "without" => lock.with_handoff(false).acquire().await?,
            "fair" => lock.with_fairness(true).acquire().await?,
            "mixed" if round.is_multiple_of(20) => lock.acquire().await?,
            "read" | "mixed" => lock.read().acquire().await?,
            mode => match mode.strip_prefix("permits-") {
                Some(permits) => {
                    let semaphore = locks.semaphore(&self.key, permits.parse()?);
                    semaphore.with_wait(Wait::Forever).acquire().await?
                }
                None => bail!("no mode {mode}"),
            },
        })
    }
}

/// Lets a process for each of the parts have the lock, and returns how long each of its grants was waited for, in
/// microseconds.
///
/// # Errors
///
/// When a process does not start, or fails.
pub async fn play(parts: impl IntoIterator<Item = Part>) -> Result<Vec<Vec<u32>>> {
    let begin = SystemTime::now().duration_since(UNIX_EPOCH)? + Duration::from_millis(500);
    let begin = u64::try_from(begin.as_millis())?;
    let children = parts.into_iter().map(|part| part.start(begin)).collect::<Result<Vec<_>>>()?;
    let mut all = Vec::new();
    for child in children {
        let output = child.wait_with_output().await?;
        ensure!(output.status.success(), "a process failed");
        let waits = String::from_utf8(output.stdout)?;
        all.push(waits.split_whitespace().map(str::parse).collect::<Result<_, _>>()?);
    }
    Ok(all)
}
