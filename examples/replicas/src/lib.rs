//! Starts the replicas of an example, prints what they say, and kills them.

#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{Semaphore, mpsc};

const NAME: &str = "REPLICA";

/// How often this replica may go on.
static GO: Semaphore = Semaphore::const_new(0);

/// Processes of the running program, which are killed when this is dropped.
#[derive(Debug)]
pub struct Replicas {
    fleet: Vec<Replica>,
    said: mpsc::UnboundedReceiver<(usize, Option<String>)>,
    begun: Instant,
    bar: ProgressBar,
}

#[derive(Debug)]
struct Replica {
    child: Child,
    killed: bool,
}

impl Replicas {
    /// Starts so many processes with these arguments; shows progress up to `steps` where there is a terminal.
    ///
    /// # Errors
    ///
    /// A process does not start.
    pub fn start<A: AsRef<OsStr>>(number: u8, arguments: &[A], steps: u64) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find this program to start it as a replica")?;
        let (say, said) = mpsc::unbounded_channel();
        let mut fleet = Vec::new();
        for number in 0..usize::from(number) {
            let mut child = Command::new(&program)
                .args(arguments)
                .env(NAME, format!("replica {}", number + 1))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .kill_on_drop(true)
                .spawn()
                .context("cannot start a replica")?;
            let output = child.stdout.take().context("its output is a pipe")?;
            let say = say.clone();
            tokio::spawn(async move {
                let mut lines = BufReader::new(output).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    let _ = say.send((number, Some(line)));
                }
                let _ = say.send((number, None));
            });
            fleet.push(Replica { child, killed: false });
        }
        let bar = ProgressBar::new(steps);
        if let Ok(style) = ProgressStyle::with_template("  {wide_bar}  {pos} of {len}  {msg}") {
            bar.set_style(style);
        }
        Ok(Self { fleet, said, begun: Instant::now(), bar })
    }

    /// Prints what a replica says next, and returns who and what; `None` when all have ended.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when it is dropped.
    pub async fn next(&mut self) -> Option<(usize, String)> {
        let (number, line) = self.said.recv().await?;
        let line = line.unwrap_or_else(|| "has ended".to_owned());
        self.print(&format!("replica {}: {line}", number + 1));
        Some((number, line))
    }

    /// Prints a line, with the time since the start.
    pub fn print(&self, line: &str) {
        let at = self.begun.elapsed().as_millis();
        self.bar.suspend(|| println!("{at:>6} ms  {line}"));
    }

    /// Shows how far it is.
    pub fn progress(&self, done: u64, what: &'static str) {
        self.bar.set_position(done);
        self.bar.set_message(what);
    }

    /// Kills a replica: it gets no chance to clean up.
    ///
    /// # Errors
    ///
    /// It cannot be killed.
    pub fn kill(&mut self, number: usize, when: &str) -> Result<()> {
        let replica = &mut self.fleet[number];
        replica.child.start_kill().context("cannot kill a replica")?;
        replica.killed = true;
        self.print(&format!("replica {} is killed {when}", number + 1));
        Ok(())
    }

    /// Lets a replica go on, once, that waits for it by [`may_go_on`].
    pub async fn go_on(&mut self, number: usize) {
        if let Some(input) = &mut self.fleet[number].child.stdin {
            // One that has ended says so by itself.
            let _ = input.write_all(b"\n").await;
        }
    }

    /// Asks a replica to stop, by the end of its input.
    pub fn stop(&mut self, number: usize) {
        self.fleet[number].child.stdin = None;
    }

    /// Asks all replicas to stop.
    pub fn stop_all(&mut self) {
        (0..self.fleet.len()).for_each(|number| self.stop(number));
        self.bar.finish_and_clear();
    }

    /// Waits for the end of all of them, and returns how many were not killed.
    ///
    /// # Errors
    ///
    /// One failed that was not killed.
    ///
    /// # Cancel safety
    ///
    /// When dropped, those that are left are killed.
    pub async fn ended(mut self) -> Result<usize> {
        while self.next().await.is_some() {}
        let mut survivors = 0;
        for (number, replica) in self.fleet.iter_mut().enumerate() {
            let status = replica.child.wait().await.context("cannot wait for a replica")?;
            if replica.killed {
                continue;
            }
            if !status.success() {
                bail!("replica {} failed: {status}", number + 1);
            }
            survivors += 1;
        }
        Ok(survivors)
    }
}

/// Waits, as a replica, until it is asked to stop, or until whoever started it is gone.
pub async fn asked_to_stop() {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(_)) = lines.next_line().await {
        GO.add_permits(1);
    }
    GO.close();
}

/// Waits, as a replica that listens by [`asked_to_stop`], until it may go on, or is asked to stop.
pub async fn may_go_on() {
    if let Ok(permit) = GO.acquire().await {
        permit.forget();
    }
}

/// Returns the name of this process, as it is printed.
pub fn name() -> String {
    std::env::var(NAME).unwrap_or_default()
}
