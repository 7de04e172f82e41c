//! The command's process, with what it starts.

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::{
    Pid, Signal, getpgrp, kill_process, kill_process_group, test_kill_process, test_kill_process_group,
};
use rustix::termios::tcgetpgrp;
use tokio::process::{Child, Command};
use tokio::time::Instant;

/// How often to look whether all of a group are gone.
pub(crate) const LOOK: Duration = Duration::from_millis(10);

/// Whom signals reach.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Members {
    pub(crate) pid: Pid,
    /// The whole group that the process leads.
    pub(crate) all: bool,
}

impl Members {
    /// Reads what was written of them.
    pub(crate) fn parse(pid: &str, all: &str) -> Option<Self> {
        Some(Self { pid: pid.parse().ok().and_then(Pid::from_raw)?, all: all.parse().ok()? })
    }

    /// Sends a signal; those who are gone need none.
    pub(crate) fn send(self, signal: Signal) {
        let _ = if self.all { kill_process_group(self.pid, signal) } else { kill_process(self.pid, signal) };
    }

    pub(crate) fn are_there(self) -> bool {
        if self.all { test_kill_process_group(self.pid) } else { test_kill_process(self.pid) }.is_ok()
    }
}

/// A command that runs.
///
/// Beside a terminal it stays in the terminal's foreground, so that it can read from it, and the terminal itself sends
/// it what is typed. Otherwise it leads a group of its own, so that signals reach also what it starts.
#[derive(Debug)]
pub(crate) struct Group {
    child: Child,
    pub(crate) members: Members,
}

impl Group {
    pub(crate) fn start(mut command: Command) -> io::Result<Self> {
        let leads = !in_foreground();
        if leads {
            command.process_group(0);
        }
        let child = command.spawn()?;
        let id = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let pid = id.ok_or_else(|| io::Error::other("the command has no process"))?;
        Ok(Self { child, members: Members { pid, all: leads } })
    }

    /// Passes on a signal that this process was sent.
    pub(crate) fn pass_on(&self, signal: Signal) {
        // What is typed at the terminal went to the command already.
        if self.members.all || !matches!(signal, Signal::INT | Signal::QUIT) {
            self.send(signal);
        }
    }

    /// Sends a signal.
    pub(crate) fn send(&self, signal: Signal) {
        self.members.send(signal);
    }

    /// The end of the command itself.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub(crate) async fn ended(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Ends what the command has left behind, by force from `limit` on.
    pub(crate) async fn sweep(&self, limit: Instant) {
        while self.members.all && self.members.are_there() {
            if Instant::now() >= limit {
                return self.send(Signal::KILL);
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// Whether what is typed at the terminal comes to us.
fn in_foreground() -> bool {
    tcgetpgrp(io::stdin()).is_ok_and(|group| group == getpgrp())
}
