//! Errors, as users see them.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

pub use crate::failure::{ErrorKind, Failure};
use crate::holder::Holder;
use crate::key::Key;

/// The result of most calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The operation during which an [`Error`] came up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Taking a lock.
    Acquire,
    /// Checking or using a lock that is held.
    Hold,
    /// Turning a lock that is held alone into a reader's.
    Downgrade,
    /// Handing a lock over by a baton.
    HandOver,
    /// Releasing a lock.
    Release,
    /// Asking for the holder of a lock.
    Inspect,
    /// Building, connecting or registering.
    Configure,
    /// Shutting down.
    Shutdown,
}

impl Operation {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Hold => "hold",
            Self::Downgrade => "downgrade",
            Self::HandOver => "hand over",
            Self::Release => "release",
            Self::Inspect => "inspect",
            Self::Configure => "configure",
            Self::Shutdown => "shut down",
        }
    }
}

/// An error of a lock: its [kind](Error::kind), and what was done with which key on which backend.
///
/// One pointer wide, so that `Result<Guard>` stays small. `Display` is one line with the cause and what to do;
/// the underlying error is also available from [`source`](StdError::source). Neither contains credentials.
pub struct Error(Box<ErrorDetails>);

#[derive(Debug)]
struct ErrorDetails {
    operation: Operation,
    backend: Option<&'static str>,
    key: Option<Key>,
    waited: Option<Duration>,
    attempts: u32,
    holder: Option<Holder>,
    held_for_at_most: Option<Duration>,
    failure: Failure,
}

impl Error {
    /// Creates an error of this operation. Users get errors from dlock; this is for code that extends it.
    #[must_use]
    pub fn new(operation: Operation, failure: Failure) -> Self {
        Self(Box::new(ErrorDetails {
            operation,
            backend: None,
            key: None,
            waited: None,
            attempts: 0,
            holder: None,
            held_for_at_most: None,
            failure,
        }))
    }

    /// Names the backend.
    #[must_use]
    pub fn on(mut self, backend: &'static str) -> Self {
        self.0.backend = Some(backend);
        self
    }

    /// Names the key.
    #[must_use]
    pub fn of(mut self, key: &Key) -> Self {
        self.0.key = Some(key.clone());
        self
    }

    pub(crate) fn after(mut self, waited: Duration, attempts: u32) -> Self {
        self.0.waited = Some(waited);
        self.0.attempts = attempts;
        self
    }

    /// Replaces the wait by that for more than this one lock.
    pub(crate) fn after_all(mut self, waited: Duration) -> Self {
        self.0.waited = self.0.waited.map(|_| waited);
        self
    }

    pub(crate) fn held_by(mut self, holder: Option<Holder>) -> Self {
        self.0.holder = holder;
        self
    }

    pub(crate) fn maybe_held_for(mut self, left: Duration) -> Self {
        self.0.held_for_at_most = Some(left);
        self
    }

    /// Returns the kind, to decide by.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.failure.kind()
    }

    /// Returns the failure that the backend reported. Unlike the whole error it does not contain the key.
    pub(crate) fn failure(&self) -> &Failure {
        &self.0.failure
    }

    /// Returns the operation that failed.
    #[must_use]
    pub fn operation(&self) -> Operation {
        self.0.operation
    }

    /// Returns the backend, if one was involved.
    #[must_use]
    pub fn backend(&self) -> Option<&str> {
        self.0.backend
    }

    /// Returns the key, if one was involved.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        self.0.key.as_ref().map(Key::as_str)
    }

    /// Returns how long the caller waited, for errors of acquiring.
    #[must_use]
    pub fn waited(&self) -> Option<Duration> {
        self.0.waited
    }

    /// Returns the holder of the lock when the backend was last asked, if it named one.
    #[must_use]
    pub fn holder(&self) -> Option<&Holder> {
        self.0.holder.as_ref()
    }

    /// Returns how much longer, at the most, the lock may be held by this failed attempt, for [`ErrorKind::Unknown`].
    #[must_use]
    pub fn maybe_held_for_at_most(&self) -> Option<Duration> {
        self.0.held_for_at_most
    }

    /// Returns whether another holder had the lock: [`ErrorKind::Busy`] or [`ErrorKind::TimedOut`].
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self.kind(), ErrorKind::Busy | ErrorKind::TimedOut)
    }

    /// Returns whether the same call may succeed later without any change to program or servers.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.kind(),
            ErrorKind::Busy
                | ErrorKind::TimedOut
                | ErrorKind::Lost
                | ErrorKind::Suspect
                | ErrorKind::Unknown
                | ErrorKind::Unavailable
                | ErrorKind::QuorumNotReached
        )
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        f.write_str(inner.operation.as_str())?;
        if let Some(key) = &inner.key {
            write!(f, " {key:?}")?;
        }
        if let Some(backend) = inner.backend {
            write!(f, " on {backend}")?;
        }
        write!(f, ": {}", inner.failure)?;
        if let Some(waited) = inner.waited {
            let times = if inner.attempts == 1 { "attempt" } else { "attempts" };
            write!(f, " (after {waited:.1?} and {} {times})", inner.attempts)?;
        }
        if let Some(left) = inner.held_for_at_most {
            write!(f, "; it may be held for up to {left:.1?} more and is being withdrawn in the background")?;
        }
        if let Some(holder) = &inner.holder {
            write!(f, "; held by {holder}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({:?}: {self})", self.kind())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        StdError::source(&self.0.failure)
    }
}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        let kind = match error.kind() {
            ErrorKind::Busy => std::io::ErrorKind::WouldBlock,
            ErrorKind::TimedOut => std::io::ErrorKind::TimedOut,
            ErrorKind::Denied => std::io::ErrorKind::PermissionDenied,
            ErrorKind::InvalidKey | ErrorKind::InvalidConfig => std::io::ErrorKind::InvalidInput,
            ErrorKind::Unsupported => std::io::ErrorKind::Unsupported,
            _ => std::io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_pointer_wide() {
        assert_eq!(size_of::<Error>(), size_of::<usize>());
        assert_eq!(size_of::<Result<()>>(), size_of::<usize>());
    }

    #[test]
    fn an_error_is_one_line_whatever_a_server_or_a_library_says() {
        let said = "no connection (Parse error\nUnexpected\r\n\u{1b}[2J)";
        let cause = std::io::Error::other("DETAIL: a\tb\u{85}c\n");
        let error = Error::new(Operation::Configure, Failure::unavailable(said).with_source(cause));
        for text in [error.to_string(), format!("{error:?}")] {
            assert!(!text.contains(char::is_control), "{text:?}");
            assert!(text.contains("Parse error Unexpected") && text.contains("a b c"), "{text}");
        }
    }

    #[test]
    fn display_names_operation_key_backend_cause_and_holder() {
        let holder = Holder { host: Some("web-1".into()), pid: Some(42), ..Holder::default() };
        let text = Error::new(
            Operation::Acquire,
            Failure::new(ErrorKind::TimedOut, "").with_source(std::io::Error::other("boom")),
        )
        .on("redis")
        .of(&Key::new("room\n7").unwrap())
        .after(Duration::from_millis(5_000), 3)
        .held_by(Some(holder))
        .to_string();
        for part in
            ["acquire", r#""room\n7""#, "on redis", "timed out", "boom", "5.0s", "3 attempts", "web-1", "42"]
        {
            assert!(text.contains(part), "{part} is missing in: {text}");
        }
        assert!(!text.contains('\n'));
    }
}
