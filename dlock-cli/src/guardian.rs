//! A process that ends the command when this program was killed.
//!
//! It is this program again, and reads from a pipe that only the first one writes: when that one dies, by whatever
//! signal, the pipe ends without the word that all is done.

use std::io::{self, BufRead, Read, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::group::{LOOK, Members};

/// The command under which this program is the guardian.
pub(crate) const NAME: &str = "guard-a-command";

/// The command was asked to end.
const TOLD: u8 = b't';
/// The command has ended.
const DONE: u8 = b'd';

/// The guardian of a command. When it is dropped, the command is done.
#[derive(Debug)]
pub(crate) struct Guardian(ChildStdin);

impl Guardian {
    /// Starts it, in a group of its own: what is typed at a terminal is not for it.
    pub(crate) fn start() -> io::Result<Self> {
        use std::os::unix::process::CommandExt;

        let mut command = Command::new(std::env::current_exe()?);
        command.arg(NAME).env_remove("DLOCK_URL").process_group(0);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        child.stdin.take().map(Self).ok_or_else(|| io::Error::other("the guardian has no input"))
    }

    /// Says whom to end, and how long they may take.
    pub(crate) fn guard(&mut self, members: Members, grace: Duration) -> io::Result<()> {
        let line = format!("{} {} {}\n", members.pid.as_raw_nonzero(), members.all, grace.as_millis());
        self.0.write_all(line.as_bytes())
    }

    /// Says that the command was asked to end: from now on it has had its time.
    pub(crate) fn told(&mut self) {
        let _ = self.0.write_all(&[TOLD]);
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        let _ = self.0.write_all(&[DONE]);
    }
}

/// Is the guardian.
pub(crate) fn be() -> io::Result<()> {
    let mut input = io::stdin().lock();
    let mut line = String::new();
    input.read_line(&mut line)?;
    let mut words = line.split_whitespace();
    let (Some(pid), Some(all), Some(millis)) = (words.next(), words.next(), words.next()) else {
        return Ok(());
    };
    let members = Members::parse(pid, all);
    let (Some(members), Ok(millis)) = (members, millis.parse()) else { return Ok(()) };
    let mut grace = Duration::from_millis(millis);
    for byte in input.bytes() {
        match byte {
            Ok(DONE) => return Ok(()),
            Ok(TOLD) => grace = Duration::ZERO,
            Ok(_) => {}
            Err(_) => break,
        }
    }
    members.send(Signal::TERM);
    members.send(Signal::CONT);
    let end = Instant::now() + grace;
    while members.are_there() && Instant::now() < end {
        std::thread::sleep(LOOK);
    }
    members.send(Signal::KILL);
    Ok(())
}
