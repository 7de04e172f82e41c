//! A process that ends the command when this program was killed.
//!
//! It is this program again, and reads from a pipe that only the first one writes: when that one dies, by whatever
//! signal, the pipe ends without the word that all is done.

use std::io::{self, BufRead, Read, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::group::{KILLS, LOOK};
use crate::members::Members;

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
        let line = format!("{} {}\n", members.line(), grace.as_millis());
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
    let mut word = || words.next().unwrap_or_default();
    let members = Members::parse(word(), word(), word());
    let (Some(members), Ok(millis)) = (members, word().parse()) else { return Ok(()) };
    let mut grace = Duration::from_millis(millis);
    for byte in input.bytes() {
        match byte {
            Ok(DONE) => return Ok(()),
            Ok(TOLD) => grace = Duration::ZERO,
            Ok(_) => {}
            Err(_) => break,
        }
    }
    members.send_all(Signal::TERM);
    members.send_all(Signal::CONT);
    let end = Instant::now() + grace;
    let mut kills = KILLS;
    while kills > 0 {
        let looked = Instant::now();
        if !members.are_there() && members.others().is_empty() {
            break;
        }
        if Instant::now() >= end {
            members.send_all(Signal::KILL);
            kills -= 1;
        }
        std::thread::sleep(LOOK.max(looked.elapsed() * 4));
    }
    Ok(())
}
