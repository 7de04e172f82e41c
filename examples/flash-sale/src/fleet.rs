//! The worker processes, as their parent sees them.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin};
use tokio::sync::mpsc;

use crate::protocol::{Command, Event, Job};
use crate::screen::Bar;

/// What comes from a worker.
pub(crate) enum News {
    Said(Event),
    /// Its output has ended.
    Gone,
}

/// The workers of one round. Dropping it ends them.
pub(crate) struct Fleet {
    workers: Vec<Worker>,
    news: mpsc::UnboundedReceiver<(usize, News)>,
    inbox: mpsc::UnboundedSender<(usize, News)>,
}

pub(crate) struct Worker {
    child: Child,
    commands: ChildStdin,
    pub(crate) bar: Bar,
    /// Customers that nothing was heard of yet.
    pub(crate) waiting: BTreeSet<u32>,
    /// We killed it.
    pub(crate) killed: bool,
}

impl Fleet {
    pub(crate) fn new() -> Self {
        let (inbox, news) = mpsc::unbounded_channel();
        Self { workers: Vec::new(), news, inbox }
    }

    /// Starts one more worker and gives it its job.
    pub(crate) async fn hire(&mut self, job: Job, bar: Bar) -> Result<usize> {
        let program = std::env::current_exe().context("cannot find this program to start it as a worker")?;
        let mut child = tokio::process::Command::new(program)
            .arg("worker")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start a worker")?;
        let (Some(commands), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("both are pipes");
        };
        let number = self.workers.len();
        let inbox = self.inbox.clone();
        tokio::spawn(async move {
            let mut lines = BufReader::new(output).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                match serde_json::from_str(&line) {
                    Ok(event) => drop(inbox.send((number, News::Said(event)))),
                    Err(_) => eprintln!("worker {number}: {line}"),
                }
            }
            let _ = inbox.send((number, News::Gone));
        });
        let waiting = job.customers.iter().copied().collect();
        self.workers.push(Worker { child, commands, bar, waiting, killed: false });
        self.tell(number, &Command::Job(job)).await;
        Ok(number)
    }

    /// What is heard next, and of whom.
    pub(crate) async fn next(&mut self) -> (usize, News) {
        match self.news.recv().await {
            Some(news) => news,
            None => unreachable!("the fleet keeps a sender"),
        }
    }

    pub(crate) fn worker(&mut self, number: usize) -> &mut Worker {
        &mut self.workers[number]
    }

    pub(crate) fn workers(&self) -> impl Iterator<Item = &Worker> {
        self.workers.iter()
    }

    /// Sends a command. A worker that has ended in the meantime needs none.
    pub(crate) async fn tell(&mut self, number: usize, command: &Command) {
        if let Ok(mut line) = serde_json::to_string(command) {
            line.push('\n');
            let _ = self.workers[number].commands.write_all(line.as_bytes()).await;
        }
    }

    pub(crate) async fn tell_all(&mut self, command: &Command, but: Option<usize>) {
        for number in (0..self.workers.len()).filter(|number| Some(*number) != but) {
            self.tell(number, command).await;
        }
    }
}

impl Drop for Fleet {
    /// Kills what still runs, frozen or not, and waits for it, so that nobody writes to files that are then removed.
    fn drop(&mut self) {
        for worker in &mut self.workers {
            let _ = worker.child.start_kill();
        }
        let patience = Instant::now() + Duration::from_secs(2);
        let ended = |worker: &mut Worker| !matches!(worker.child.try_wait(), Ok(None));
        while !self.workers.iter_mut().all(ended) && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Worker {
    /// Sends a signal to this child. Its number stays its own until we have waited for it, which only
    /// [`ended`](Self::ended) does and the end of the fleet.
    pub(crate) fn signal(&mut self, signal: Signal) -> Result<()> {
        let pid = self.child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let pid = pid.context("the worker has ended already")?;
        self.killed |= signal == Signal::KILL;
        kill_process(pid, signal).with_context(|| format!("cannot send {signal:?} to worker process {pid:?}"))
    }

    /// Waits for its end. An error when it failed of itself.
    pub(crate) async fn ended(&mut self) -> Result<()> {
        let status = self.child.wait().await?;
        anyhow::ensure!(status.success() || self.killed, "a worker failed with {status}");
        Ok(())
    }
}
