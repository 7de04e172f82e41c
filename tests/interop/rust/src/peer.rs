//! A worker process that gets its orders line by line.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use dlock_testkit::now_ns;
use rustix::time::{ClockId, clock_gettime};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::other_clients::OtherClients;

/// How long any single answer may take.
const PATIENCE: Duration = Duration::from_secs(240);

/// A worker process. It ends with this value.
#[derive(Debug)]
pub struct Peer {
    side: &'static str,
    process: Child,
    commands: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

/// What a worker is started with.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    /// The server.
    pub url: &'a str,
    /// Its lease.
    pub lease: Duration,
    /// The number of the process in its test.
    pub process: u32,
    /// A directory; every worker writes a file of its own there.
    pub histories: &'a Path,
}

impl Peer {
    /// A worker in Java. `options` are options of the virtual machine.
    ///
    /// # Errors
    ///
    /// When it does not start, or its clock is not ours.
    pub async fn java(jar: &Path, options: &[&str], setting: Setting<'_>) -> Result<Self> {
        let mut command = Command::new("java");
        command.args(options).arg("-jar").arg(jar);
        Self::start("java", command, setting).await
    }

    /// A worker in Rust: this program, called again as `worker`.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub async fn rust(setting: Setting<'_>) -> Result<Self> {
        Self::own(&["worker"], setting).await
    }

    /// This program, called again with these arguments in front.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub async fn own(arguments: &[&str], setting: Setting<'_>) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(arguments);
        Self::start("rust", command, setting).await
    }

    /// A worker with kazoo, in Python.
    ///
    /// # Errors
    ///
    /// As [`java`](Self::java).
    pub async fn kazoo(clients: &OtherClients, setting: Setting<'_>) -> Result<Self> {
        let mut command = Command::new(&clients.python);
        command.arg(&clients.script);
        Self::start("kazoo", command, setting).await
    }

    /// A worker with go-zookeeper.
    ///
    /// # Errors
    ///
    /// As [`java`](Self::java).
    pub async fn go(clients: &OtherClients, setting: Setting<'_>) -> Result<Self> {
        Self::start("go", Command::new(&clients.go), setting).await
    }

    /// A worker with etcd's own client, in Go: the program at this path.
    ///
    /// # Errors
    ///
    /// As [`java`](Self::java).
    pub async fn etcd(program: &Path, setting: Setting<'_>) -> Result<Self> {
        Self::start("go", Command::new(program), setting).await
    }

    async fn start(side: &'static str, mut command: Command, setting: Setting<'_>) -> Result<Self> {
        let numbers = [setting.process.to_string(), clock_offset().to_string()];
        let mut process = command
            .args([setting.url, &setting.lease.as_millis().to_string()])
            .args(numbers)
            .arg(setting.histories.join(format!("{}.jsonl", setting.process)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start the {side} worker"))?;
        let commands = process.stdin.take().context("no standard input")?;
        let answers = BufReader::new(process.stdout.take().context("no standard output")?).lines();
        let mut peer = Self { side, process, commands, answers };
        ensure!(peer.answer().await? == "ready", "the {side} worker did not get ready");
        // The histories are compared.
        let before = now_ns();
        let theirs: u64 = peer.ask("clock").await?.parse()?;
        ensure!((before..=now_ns()).contains(&theirs), "the {side} worker's clock is not ours");
        Ok(peer)
    }

    /// Sends a command and waits for its answer.
    ///
    /// # Errors
    ///
    /// When the worker says so, is gone, or does not answer.
    pub async fn ask(&mut self, command: &str) -> Result<String> {
        self.tell(command).await?;
        self.answer().await.with_context(|| format!("{} worker: {command}", self.side))
    }

    /// Sends a command without waiting for its [`answer`](Self::answer).
    ///
    /// # Errors
    ///
    /// When the worker is gone.
    pub async fn tell(&mut self, command: &str) -> Result<()> {
        self.commands.write_all(format!("{command}\n").as_bytes()).await?;
        Ok(self.commands.flush().await?)
    }

    /// Waits for the answer to the oldest command that was not answered yet.
    ///
    /// # Errors
    ///
    /// As [`ask`](Self::ask).
    pub async fn answer(&mut self) -> Result<String> {
        let line = tokio::time::timeout(PATIENCE, self.answers.next_line()).await.context("no answer")??;
        match line {
            None => bail!("the {} worker is gone", self.side),
            Some(line) if line.starts_with("error") => bail!("the {} worker says: {line}", self.side),
            Some(line) => Ok(line),
        }
    }

    /// Kills the process, which has no chance to do anything about it. Returns when.
    ///
    /// # Errors
    ///
    /// When it was gone already.
    pub async fn kill(mut self) -> Result<u64> {
        let when = now_ns();
        self.process.kill().await?;
        Ok(when)
    }
}

/// The times of an answer to `acquire` or `release`: when it was called, and when it returned.
///
/// # Errors
///
/// When the answer has another form.
pub fn times(answer: &str) -> Result<(u64, u64)> {
    let mut words = answer.split(' ');
    let mut next = || -> Result<u64> { Ok(words.next().context("the answer is too short")?.parse()?) };
    Ok((next()?, next()?))
}

/// By how many nanoseconds the clock of histories is ahead of CLOCK_MONOTONIC, which Java's `System.nanoTime` reads.
fn clock_offset() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let monotonic = time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs();
    now_ns().saturating_sub(monotonic)
}
