//! The side of the one who started the worker.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::{Order, Report};

/// How long a report may take that the caller sets no limit for.
const LIMIT: Duration = Duration::from_secs(30);

/// A worker that runs. Dropping it kills it.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    pid: Pid,
    orders: ChildStdin,
    reports: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    /// Starts `command`, which runs [`serve`](super::serve).
    ///
    /// # Errors
    ///
    /// Those of starting a process.
    pub fn start(command: std::process::Command) -> io::Result<Self> {
        let mut child =
            Command::from(command).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let raw = child.id().and_then(|id| i32::try_from(id).ok());
        match (raw.and_then(Pid::from_raw), child.stdin.take(), child.stdout.take()) {
            (Some(pid), Some(orders), Some(reports)) => {
                Ok(Self { child, pid, orders, reports: BufReader::new(reports).lines() })
            }
            _ => Err(io::Error::other("the worker ended at once")),
        }
    }

    /// Starts `command` and has it open `url`.
    ///
    /// # Errors
    ///
    /// Those of [`start`](Self::start) and [`ask`](Self::ask).
    ///
    /// # Cancel safety
    ///
    /// When dropped midway, the worker is killed.
    pub async fn open(command: std::process::Command, url: &str, lease: Duration) -> io::Result<Self> {
        let mut worker = Self::start(command)?;
        let lease_ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
        worker.ask(&Order::Open { url: url.to_owned(), lease_ms }).await?;
        Ok(worker)
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Gives an order, without waiting for what comes of it.
    ///
    /// # Errors
    ///
    /// Those of the pipe: the worker is gone.
    ///
    /// # Cancel safety
    ///
    /// Not cancel-safe: half an order may have been given.
    pub async fn order(&mut self, order: &Order) -> io::Result<()> {
        let mut line = serde_json::to_string(order)?;
        line.push('\n');
        self.orders.write_all(line.as_bytes()).await
    }

    /// The next report.
    ///
    /// # Errors
    ///
    /// When the worker is gone, there is none for 30 s, or it is [`Report::Failed`].
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn report(&mut self) -> io::Result<Report> {
        let line = tokio::time::timeout(LIMIT, self.reports.next_line()).await??;
        let line = line.ok_or(io::ErrorKind::UnexpectedEof)?;
        match serde_json::from_str(&line)? {
            Report::Failed { kind, error } => Err(io::Error::other(format!("{kind}: {error}"))),
            report => Ok(report),
        }
    }

    /// Gives an order and waits for the report.
    ///
    /// # Errors
    ///
    /// Those of [`order`](Self::order) and [`report`](Self::report).
    ///
    /// # Cancel safety
    ///
    /// Not cancel-safe: the report would be taken for the next one's.
    pub async fn ask(&mut self, order: &Order) -> io::Result<Report> {
        self.order(order).await?;
        self.report().await
    }

    /// `SIGKILL`: it ends at once and can do nothing more. Waits until it has.
    ///
    /// # Errors
    ///
    /// Those of the signal.
    ///
    /// # Cancel safety
    ///
    /// When dropped midway, it is killed all the same.
    pub async fn kill(&mut self) -> io::Result<()> {
        self.child.kill().await
    }

    /// `SIGSTOP`: it stands still, as in a long garbage collection or a suspended virtual machine.
    ///
    /// # Errors
    ///
    /// Those of the signal.
    pub fn freeze(&self) -> io::Result<()> {
        Ok(kill_process(self.pid, Signal::STOP)?)
    }

    /// `SIGCONT`: it goes on where it stood.
    ///
    /// # Errors
    ///
    /// Those of the signal.
    pub fn thaw(&self) -> io::Result<()> {
        Ok(kill_process(self.pid, Signal::CONT)?)
    }
}
