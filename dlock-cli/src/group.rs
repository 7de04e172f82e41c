//! The process of the command, with all that it starts.

use std::fs::File;
use std::io;
use std::process::ExitStatus;

use rustix::process::{Pid, Signal, getpgrp};
use rustix::termios::tcgetpgrp;
use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::members::{MARK, Members};
use crate::signals::ends;
use crate::sweep::{Remains, Sweep};

/// A command that runs.
///
/// Where there is a terminal, the command stays in the process group of this program, which is one job to a shell. In
/// the foreground the command reads from the terminal, which sends it the signals that are typed. In the background, a
/// command that reads is stopped together with this program, which the shell sees. Without a terminal the command leads
/// a group of its own.
#[derive(Debug)]
pub(crate) struct Group {
    child: Child,
    pub(crate) members: Members,
}

impl Group {
    pub(crate) fn start(mut command: Command, mark: u64) -> io::Result<Self> {
        let leads = foreground().is_none();
        if leads {
            command.process_group(0);
        }
        let child = command.env(MARK, Members::marked(mark)).spawn()?;
        let id = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let pid = id.ok_or_else(|| io::Error::other("the command has no process"))?;
        Ok(Self { child, members: Members::new(Some(pid), leads, mark) })
    }

    /// Passes on a signal that was sent to this process.
    pub(crate) fn pass_on(&self, signal: Signal) {
        // The terminal has sent what is typed to the command already.
        if self.members.all || !matches!(signal, Signal::INT | Signal::QUIT) || !in_foreground() {
            self.members.send_group(signal);
            // A process that was stopped cannot end.
            if ends(signal) {
                self.members.send_group(Signal::CONT);
            }
        }
    }

    /// Sends a signal to the command and to all that it started.
    pub(crate) fn send_all(&self, signal: Signal) {
        self.members.send_all(signal);
    }

    /// Waits for the end of the command itself.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub(crate) async fn ended(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Ends the processes that the command has left behind, by force from `limit` on.
    pub(crate) async fn sweep(&self, limit: Instant) {
        let (mut sweep, left) = (Sweep::new(limit.into_std()), Remains::of_ended(self.members));
        while let Some(pause) = sweep.round(&left) {
            tokio::time::sleep(pause).await;
        }
    }
}

/// Is `true` if this process gets what is typed at the terminal. Standard input does not show it: it may be a pipe
/// while the command asks the terminal for a password, which stops a process that is not in the foreground.
pub(crate) fn in_foreground() -> bool {
    foreground() == Some(getpgrp())
}

/// Returns the group in the foreground of the terminal, if there is one.
fn foreground() -> Option<Pid> {
    tcgetpgrp(File::open("/dev/tty").ok()?).ok()
}
