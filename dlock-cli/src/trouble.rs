//! Why something did not work, as one line and an exit code.

use std::fmt;
use std::io;
use std::process::ExitCode;

use dlock::{Error, ErrorKind};

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

/// The exit codes, for the help.
pub(crate) const CODES: &str = "Exit codes of dlock itself (`run` passes on those of its command):
  0    done
  64   a wrong argument, URL or key, such as one that the backend cannot keep, or another number of permits
  69   the backend cannot be reached, or it is not known what became of a request
  70   another error
  75   somebody else holds the lock, or locks are held on the nodes of a quorum that is to be set up
  77   the backend refused the user or the password, or the user said no
  78   `doctor` found something by which locks may be lost or granted twice, or `quorum show` no majority that votes
  79   the lock was lost while the command ran
  80   with `--once` the command was skipped, since it ran elsewhere
  126  the command cannot be executed
  127  there is no such command";

/// What went wrong.
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

    /// One line to standard error, whatever is in the text.
    pub(crate) fn tell(self) -> ExitCode {
        if !self.what.is_empty() {
            eprintln!("dlock: {}", one_line(&self.what));
        }
        ExitCode::from(self.code)
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&one_line(&self.what))
    }
}

/// Without line breaks and without what a terminal would obey.
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
            // Whoever read our output has seen enough.
            io::ErrorKind::BrokenPipe => Self::new(0, ""),
            _ => Self::new(OTHER, error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_with_line_breaks_and_escapes_stays_one_harmless_line() {
        assert_eq!(one_line("a\nb\u{1b}[2Jc"), "a b [2Jc");
    }
}
