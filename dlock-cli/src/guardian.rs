//! A process that ends the command when this program was killed.
//!
//! It is this program again, and reads from a pipe that only the first one writes: when that one dies, by whatever
//! signal, the pipe ends without the word that all is done.

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

/// The command was asked to end.
const TOLD: u8 = b't';
/// The command has ended.
const DONE: u8 = b'd';

/// The guardian of a command. When it is dropped before that is [done](Self::done), the command is ended.
#[derive(Debug)]
pub(crate) struct Guardian(ChildStdin);

impl Guardian {
    /// Starts it, in a group of its own: what is typed at a terminal is not for it. It knows the command by its mark
    /// before that has a process.
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

    /// Says which process the command is.
    pub(crate) fn guard(&mut self, members: Members) -> io::Result<()> {
        self.0.write_all(format!("{}\n", members.line()).as_bytes())
    }

    /// Says that the command was asked to end: from now on it has had its time.
    pub(crate) fn told(&mut self) {
        let _ = self.0.write_all(&[TOLD]);
    }

    /// Says that the command has ended.
    pub(crate) fn done(mut self) {
        let _ = self.0.write_all(&[DONE]);
    }
}

/// This program, also when its file was replaced or removed meanwhile.
fn ourselves() -> io::Result<PathBuf> {
    let here = std::env::current_exe()?;
    let running = PathBuf::from("/proc/self/exe");
    Ok(if !here.exists() && running.exists() { running } else { here })
}

/// Is the guardian.
pub(crate) fn be() -> io::Result<()> {
    // A signal to all processes, as a service manager sends it, does not end the guardian: the end of the first process
    // does.
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
            Ok(TOLD) => grace = Duration::ZERO,
            Ok(_) => {}
            Err(_) => break,
        }
    }
    // To find all of them, so as to ask them to end, is a part of their time.
    let limit = Instant::now() + grace;
    members.send_all(Signal::TERM);
    members.send_all(Signal::CONT);
    let (mut sweep, left) = (Sweep::new(limit), Remains::of(members));
    while let Some(pause) = sweep.round(&left) {
        std::thread::sleep(pause);
    }
    Ok(())
}
