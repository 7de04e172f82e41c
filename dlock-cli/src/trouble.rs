//! Errors of this program, as one line and an exit code.

use std::fmt;
use std::io::{self, Write, stderr};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use dlock::{Error, ErrorKind};
use rustix::termios::{LocalModes, tcgetattr};

use crate::group::in_foreground;
use crate::show::is_printable;

pub(crate) const USAGE: u8 = 64;
pub(crate) const UNAVAILABLE: u8 = 69;
pub(crate) const OTHER: u8 = 70;
pub(crate) const BUSY: u8 = 75;
pub(crate) const DENIED: u8 = 77;
pub(crate) const DANGER: u8 = 78;
pub(crate) const LOST: u8 = 79;
pub(crate) const SKIPPED: u8 = 80;
pub(crate) const CANNOT_EXECUTE: u8 = 126;
pub(crate) const NO_SUCH_COMMAND: u8 = 127;

/// The exit codes, for the help: in lines that fit a terminal, since the second line of a code is indented.
pub(crate) const CODES: &str =
    "Exit codes of dlock itself (`run` and `baton exec` pass on those of their command):
  0    done
  64   a wrong argument, URL, key or number of permits; or a file that holds no
       baton or no audit, cannot be written, or exists already
  69   the store cannot be reached, or the outcome of a request is unknown; or
       `audit` misses records
  70   another error, such as a baton that could not be written
  75   another process holds the lock, or locks are held on the nodes of a
       quorum that is to be set up
  77   the store refused the user or the password, or you did not say yes
  78   `doctor` found a danger to locks, `quorum show` no majority that votes, or
       `audit` holders that overlapped
  79   the lock was lost while the command ran, or directly before; or a baton
       was taken over before, or its time is over
  80   with `--once`: the command was skipped, since another one ran
  126  the command cannot be executed
  127  the command does not exist
  128 and the number of the signal that ended the command or dlock
A command that changes something on a server ends with 0 when that is done,
also when its output cannot be written: standard error then has the output.";

/// An error that ends the program.
#[derive(Debug)]
pub(crate) struct Trouble {
    code: u8,
    what: String,
}

impl Trouble {
    pub(crate) fn new(code: u8, what: impl Into<String>) -> Self {
        Self { code, what: what.into() }
    }

    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Self::new(USAGE, what)
    }

    pub(crate) const fn code(&self) -> u8 {
        self.code
    }

    /// Prints one line to standard error, whatever is in the text, and returns the exit code.
    pub(crate) fn print(self) -> u8 {
        if !self.what.is_empty() {
            say(&self.what);
        }
        self.code
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&one_line(&self.what))
    }
}

/// The channel to the thread that writes lines; `None` if no thread could be started.
static WRITER: OnceLock<Option<Sender<Said>>> = OnceLock::new();
/// The time to wait at the end for the reader of standard error.
const READING: Duration = Duration::from_secs(1);

enum Said {
    Line(String),
    All(Sender<()>),
}

/// Prints one line to standard error. A reader that has gone is no failure, and a reader that reads no further does not
/// stop this program, which has a command to end.
pub(crate) fn say(what: &str) {
    let line = format!("dlock: {}\n", one_line(what));
    let writer = WRITER.get_or_init(|| {
        let (said, lines) = channel();
        std::thread::Builder::new().spawn(move || lines.iter().for_each(write)).ok().map(|_| said)
    });
    match writer {
        Some(writer) => drop(writer.send(Said::Line(line))),
        None => write(Said::Line(line)),
    }
}

/// Waits until all lines are written, if they are read.
pub(crate) fn said() {
    if let Some(Some(writer)) = WRITER.get() {
        let (all, written) = channel();
        let _ = writer.send(Said::All(all));
        let _ = written.recv_timeout(READING);
    }
}

fn write(said: Said) {
    match said {
        Said::Line(line) if !stops_who_writes() => drop(stderr().write_all(line.as_bytes())),
        Said::Line(_) => {}
        Said::All(all) => drop(all.send(())),
    }
}

/// Is `true` if a terminal would stop this program for writing to it in the background.
fn stops_who_writes() -> bool {
    tcgetattr(stderr()).is_ok_and(|terminal| terminal.local_modes.contains(LocalModes::TOSTOP))
        && !in_foreground()
}

/// Ignores a broken pipe: its reader has seen enough, and what was found out stays as it is.
pub(crate) fn seen(written: io::Result<()>) -> io::Result<()> {
    written.or_else(|error| if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) })
}

/// Removes from the text of an error the arguments that may be URLs with a password.
pub(crate) fn without_urls(text: &str, arguments: impl Iterator<Item = String>) -> String {
    let values = arguments.flat_map(|argument| {
        let value = argument.split_once('=').map(|(_, value)| value.to_owned());
        [Some(argument), value].into_iter().flatten()
    });
    let mut urls: Vec<String> = values.filter(|value| value.contains("://") || value.contains('@')).collect();
    // A URL may be a part of another one, which has to be replaced first.
    urls.sort_by_key(|url| std::cmp::Reverse(url.len()));
    urls.iter().fold(text.to_owned(), |text, url| text.replace(url, "<URL>"))
}

/// Returns the text without line breaks and without what a terminal would obey.
pub(crate) fn one_line(text: &str) -> String {
    text.chars().map(|c| if is_printable(c) { c } else { ' ' }).collect()
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        let code = match error.kind() {
            ErrorKind::Busy | ErrorKind::TimedOut => BUSY,
            ErrorKind::InvalidKey
            | ErrorKind::InvalidConfig
            | ErrorKind::UnknownBackend
            | ErrorKind::Unsupported
            | ErrorKind::Conflict => USAGE,
            ErrorKind::Unavailable | ErrorKind::Unknown | ErrorKind::QuorumNotReached => UNAVAILABLE,
            ErrorKind::Denied => DENIED,
            ErrorKind::Lost | ErrorKind::Suspect | ErrorKind::NotHeld => LOST,
            _ => OTHER,
        };
        Self::new(code, error.to_string())
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // The reader of the output has seen enough.
            io::ErrorKind::BrokenPipe => Self::new(0, ""),
            _ => Self::new(OTHER, error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_a_password_is_not_repeated() {
        let shown =
            |text: &str, arguments: &[&str]| without_urls(text, arguments.iter().map(ToString::to_string));
        let (url, option) = ("redis://u:p@h/", "--every=redis://u:p@h/?a=b");
        assert_eq!(shown("'redis://u:p@h/' is wrong", &["ls", url]), "'<URL>' is wrong");
        assert_eq!(shown("'redis://u:p@h/?a=b' for --every", &[url, option]), "'<URL>' for --every");
        assert_eq!(shown("a b", &["a", "b"]), "a b");
    }

    #[test]
    fn a_reader_who_has_gone_changes_no_result_and_a_full_disk_does() {
        let failed = |kind: io::ErrorKind| seen(Err(kind.into()));
        assert!(failed(io::ErrorKind::BrokenPipe).is_ok());
        assert!(failed(io::ErrorKind::StorageFull).is_err());
    }

    #[test]
    fn text_with_line_breaks_and_escapes_stays_one_harmless_line() {
        assert_eq!(one_line("a\nb\u{1b}[2Jc"), "a b [2Jc");
    }
}
