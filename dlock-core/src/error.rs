//! What can go wrong, as users see it ([`Error`]) and as backends report it ([`Failure`]).

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use crate::holder::Holder;
use crate::key::Key;

/// The result of most calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

type Source = Box<dyn StdError + Send + Sync>;

/// What kind of error it is: the part a program decides by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Somebody else holds the lock and the caller asked not to wait.
    Busy,
    /// Somebody else held the lock for as long as the caller was willing to wait.
    TimedOut,
    /// The lock was held and is no longer: its lease ran out, or the backend gave it up.
    Lost,
    /// The backend cannot be reached to confirm that the lock is still held. It may become held again.
    Suspect,
    /// There was nothing to release: the lock had been lost, or this view of it has been released.
    NotHeld,
    /// A request was sent and its outcome could not be found out. The lock may be held, by nobody who knows, until
    /// its lease ends; clean-up goes on in the background.
    Unknown,
    /// The backend could not be reached, or cannot serve at the moment; nothing was changed.
    Unavailable,
    /// The backend refused the credentials or the rights of this client.
    Denied,
    /// Fewer than a majority of the backends of a quorum could be asked.
    QuorumNotReached,
    /// Every segment of a segmented lock said that there is nothing left in it.
    Exhausted,
    /// The backend has no such ability.
    Unsupported,
    /// The key is empty, too long, or has characters that no lock name may have.
    InvalidKey,
    /// An option is outside its bounds, or a URL or table is not what it must be.
    InvalidConfig,
    /// No backend is registered under the name.
    UnknownBackend,
    /// The caller would wait for itself, or nests deeper than allowed.
    Deadlock,
    /// The locks were shut down, or there is no runtime to wait on.
    Closed,
}

impl ErrorKind {
    /// The kind as a stable lower-case word, as used in spans and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::TimedOut => "timed_out",
            Self::Lost => "lost",
            Self::Suspect => "suspect",
            Self::NotHeld => "not_held",
            Self::Unknown => "unknown",
            Self::Unavailable => "unavailable",
            Self::Denied => "denied",
            Self::QuorumNotReached => "quorum_not_reached",
            Self::Exhausted => "exhausted",
            Self::Unsupported => "unsupported",
            Self::InvalidKey => "invalid_key",
            Self::InvalidConfig => "invalid_config",
            Self::UnknownBackend => "unknown_backend",
            Self::Deadlock => "deadlock",
            Self::Closed => "closed",
        }
    }

    const fn sentence(self) -> &'static str {
        match self {
            Self::Busy => "somebody else holds it",
            Self::TimedOut => "timed out waiting for it",
            Self::Lost => "the lock was lost",
            Self::Suspect => "the lock cannot be confirmed at the moment",
            Self::NotHeld => "the lock is not held",
            Self::Unknown => "the outcome is unknown",
            Self::Unavailable => "the backend is unavailable",
            Self::Denied => "the backend denied access",
            Self::QuorumNotReached => "no majority of the backends could be asked",
            Self::Exhausted => "there is nothing left in any segment",
            Self::Unsupported => "the backend does not support this",
            Self::InvalidKey => "invalid key",
            Self::InvalidConfig => "invalid configuration",
            Self::UnknownBackend => "unknown backend",
            Self::Deadlock => "the caller would wait for itself",
            Self::Closed => "closed",
        }
    }
}

/// What was being done when an [`Error`] came up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Taking a lock.
    Acquire,
    /// Checking or using a lock that is held.
    Hold,
    /// Giving a lock back.
    Release,
    /// Asking who holds a lock.
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
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
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
    /// An error of this operation. Users get errors from dlock; this is for code that extends it.
    #[must_use]
    pub fn new(operation: Operation, failure: Failure) -> Self {
        Self(Box::new(Inner {
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

    /// The wait for more than this one lock.
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

    /// The kind, to decide by.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.failure.kind
    }

    /// What the backend reported; unlike the whole error it does not contain the key.
    pub(crate) fn failure(&self) -> &Failure {
        &self.0.failure
    }

    /// What was being done.
    #[must_use]
    pub fn operation(&self) -> Operation {
        self.0.operation
    }

    /// The backend, where one was involved.
    #[must_use]
    pub fn backend(&self) -> Option<&str> {
        self.0.backend
    }

    /// The key, where one was involved.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        self.0.key.as_ref().map(Key::as_str)
    }

    /// How long the caller waited, for errors of acquiring.
    #[must_use]
    pub fn waited(&self) -> Option<Duration> {
        self.0.waited
    }

    /// Who held the lock when it was last looked at, where the backend told.
    #[must_use]
    pub fn holder(&self) -> Option<&Holder> {
        self.0.holder.as_ref()
    }

    /// For [`ErrorKind::Unknown`]: how much longer, at the most, the lock may be held by this failed attempt.
    #[must_use]
    pub fn maybe_held_for_at_most(&self) -> Option<Duration> {
        self.0.held_for_at_most
    }

    /// Whether the lock was somebody else's: [`ErrorKind::Busy`] or [`ErrorKind::TimedOut`].
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self.kind(), ErrorKind::Busy | ErrorKind::TimedOut)
    }

    /// Whether the same call may succeed later without anybody changing anything.
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
        self.0.failure.source.as_deref().map(|source| source as _)
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

/// What a backend reports: a kind, a sentence, and the underlying error.
///
/// The engine adds operation, key and backend and makes an [`Error`] of it. The sentence says what is wrong and what
/// to do, and never contains credentials.
#[derive(Debug)]
pub struct Failure {
    kind: ErrorKind,
    message: Cow<'static, str>,
    source: Option<Source>,
    worthless: bool,
}

impl Failure {
    /// A failure of this kind.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, message: message.into(), source: None, worthless: false }
    }

    /// The request was sent, and whether it took effect is not known. The engine asks again under the same token.
    #[must_use]
    pub fn unknown(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Unknown, message)
    }

    /// The backend could not serve and certainly changed nothing. The engine tries again while the caller waits.
    #[must_use]
    pub fn unavailable(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Unavailable, message)
    }

    /// Credentials or rights are missing. Final.
    #[must_use]
    pub fn denied(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Denied, message)
    }

    /// The key cannot name a lock. Final.
    #[must_use]
    pub fn invalid_key(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::InvalidKey, message)
    }

    /// The configuration (option, URL, table) cannot work. Final.
    #[must_use]
    pub fn invalid_config(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::InvalidConfig, message)
    }

    /// The backend has no such ability. Final.
    pub(crate) fn unsupported(what: &str) -> Self {
        Self::new(ErrorKind::Unsupported, format!("this backend cannot {what}"))
    }

    /// Says that the lock was granted, and the grant is worth nothing, such as one that too few replicas know of. The engine
    /// withdraws it, and tries again with a new claim if it tries again.
    #[must_use]
    pub fn of_worthless_grant(mut self) -> Self {
        self.worthless = true;
        self
    }

    /// Attaches the underlying error. Its text becomes part of the message: redact credentials first.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The kind.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The sentence, without the underlying error.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Whether something was granted that is to be withdrawn.
    pub(crate) fn is_worthless(&self) -> bool {
        self.worthless
    }

    /// Whether another try may succeed without anybody changing anything.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self.kind, ErrorKind::Unknown | ErrorKind::Unavailable | ErrorKind::QuorumNotReached)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.sentence())?;
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        if let Some(source) = &self.source {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl StdError for Failure {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
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
