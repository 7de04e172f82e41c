//! A second process of this program, which ends the command if the first one is killed.
//!
//! The guardian reads from a pipe that only the first process writes. If that process dies, by whatever signal, the
//! pipe ends without [`DONE`].
//!
//! ```text
//! first process               guardian
//! "<mark> <grace in ms>\n" -> finds the command, and what it starts, by the mark
//! "<pid> <is a group>\n"   -> knows the process of the command
//! ASKED                    -> the command has had its grace
//! DONE                     -> ends, and touches nothing
//! end of the pipe          -> sends TERM and CONT to all, and KILL after the grace
//! ```

use std::io::{self, BufRead, Read, Write};
use std::path::PathBuf;
use std::process::{ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::members::Members;
use crate::signals::Signals;
use crate::store::hide_urls;
use crate::sweep::{Remains, Sweep};

/// The command under which this program is the guardian.
pub(crate) const NAME: &str = "guard-a-command";

/// Says that the command was asked to end.
const ASKED: u8 = b't';
/// Says that the command has ended.
const DONE: u8 = b'd';

/// The guardian of a command. Dropped before it is [done](Self::done), it ends the command.
#[derive(Debug)]
pub(crate) struct Guardian(ChildStdin);

impl Guardian {
    /// Starts the guardian, in a group of its own: signals that are typed at a terminal are not for it. It knows the
    /// command by its mark before the command has a process.
    pub(crate) fn start(mark: u64, grace: Duration) -> io::Result<Self> {
        use std::os::unix::process::CommandExt;

        let mut command = Command::new(ourselves()?);
        command.arg(NAME).process_group(0);
        hide_urls(&mut command);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let mut input = child.stdin.take().ok_or_else(|| io::Error::other("the guardian has no input"))?;
        input.write_all(format!("{} {}\n", Members::mark_line(mark), grace.as_millis()).as_bytes())?;
        Ok(Self(input))
    }

    /// Sends the process of the command to the guardian.
    pub(crate) fn guard(&mut self, members: Members) -> io::Result<()> {
        self.0.write_all(format!("{}\n", members.line()).as_bytes())
    }

    /// Reports that the command was asked to end: from now on it has had its time.
    pub(crate) fn asked(&mut self) {
        let _ = self.0.write_all(&[ASKED]);
    }

    /// Reports that the command has ended.
    pub(crate) fn done(mut self) {
        let _ = self.0.write_all(&[DONE]);
    }
}

/// Returns the path of this program, also if its file was replaced or removed meanwhile.
fn ourselves() -> io::Result<PathBuf> {
    let here = std::env::current_exe()?;
    let running = PathBuf::from("/proc/self/exe");
    Ok(if !here.exists() && running.exists() { running } else { here })
}

/// Runs this process as the guardian.
pub(crate) fn be() -> io::Result<()> {
    // A signal to all processes, as a service manager sends it, must not end the guardian. Only the end of the first
    // process does.
    let _caught = Signals::catch()?;
    let mut input = io::stdin().lock();
    let (mut first, mut second) = (String::new(), String::new());
    input.read_line(&mut first)?;
    let Some((mark, millis)) = first.trim_end().split_once(' ') else { return Ok(()) };
    input.read_line(&mut second)?;
    let (Some(members), Ok(millis)) = (Members::parse(mark, &second), millis.parse()) else { return Ok(()) };
    let mut grace = Duration::from_millis(millis);
    for byte in input.bytes() {
        match byte {
            Ok(DONE) => return Ok(()),
            Ok(ASKED) => grace = Duration::ZERO,
            Ok(_) => {}
            Err(_) => break,
        }
    }
    // The time counts from here: finding all processes, so as to ask them to end, is a part of their grace.
    let limit = Instant::now() + grace;
    members.send_all(Signal::TERM);
    members.send_all(Signal::CONT);
    let (mut sweep, left) = (Sweep::new(limit), Remains::of(members));
    while let Some(pause) = sweep.round(&left) {
        std::thread::sleep(pause);
    }
    Ok(())
}
