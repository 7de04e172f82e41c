//! Failures, as backends report them.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt::{self, Write as _};

/// The kind of an error, by which a program decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Another holder has the lock, and the caller asked not to wait.
    Busy,
    /// Another holder had the lock for as long as the caller was willing to wait.
    TimedOut,
    /// The lock was held and is no longer: its lease ran out, or the backend gave it up.
    Lost,
    /// The backend cannot be reached to confirm that the lock is still held. It may become held again.
    Suspect,
    /// There was nothing to release: the lock had been lost, or this view of it has been released.
    NotHeld,
    /// A request was sent, and its outcome could not be found out. The lock may be held until its lease ends, although
    /// no process uses it; clean-up goes on in the background.
    Unknown,
    /// The backend could not be reached, or cannot serve at the moment; nothing was changed.
    Unavailable,
    /// The backend refused the credentials or the rights of this client.
    Denied,
    /// Fewer than a majority of the nodes of a quorum took part: the others were away, or answered that they do not
    /// vote.
    QuorumNotReached,
    /// Every segment of a segmented lock is exhausted: its body found nothing left in it.
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
    /// Others use the key in another way: as a semaphore of another number of permits, or as a lock. Or a lock cannot
    /// be [downgraded](crate::Guard::downgrade), since a further share of the same hold relies on being alone.
    Conflict,
    /// The locks were shut down, or belong to the parent of this process, which forked.
    Closed,
}

impl ErrorKind {
    /// Returns the kind as a stable lower-case word, as used in spans and metrics.
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
            Self::Conflict => "conflict",
            Self::Closed => "closed",
        }
    }

    /// Is `true` if the servers refuse a request that the program has a right to make. An operator can change that, so
    /// that another try may succeed later. Options, keys and abilities of the backend are checked before any request.
    pub(crate) const fn is_refusal(self) -> bool {
        matches!(self, Self::Denied | Self::Unsupported | Self::InvalidConfig | Self::Conflict)
    }

    /// Is `true` if the servers refuse a holder or a waiter what they have allowed before. A conflict is none: it comes
    /// from the way in which others use the key.
    pub(crate) const fn is_revocation(self) -> bool {
        self.is_refusal() && !matches!(self, Self::Conflict)
    }

    const fn sentence(self) -> &'static str {
        match self {
            Self::Busy => "somebody else holds it",
            Self::TimedOut => "timed out",
            Self::Lost => "the lock was lost",
            Self::Suspect => "the lock cannot be confirmed at the moment",
            Self::NotHeld => "the lock is not held",
            Self::Unknown => "the outcome is unknown",
            Self::Unavailable => "the backend is unavailable",
            Self::Denied => "the backend denied access",
            Self::QuorumNotReached => "no majority of the nodes took part",
            Self::Exhausted => "there is nothing left in any segment",
            Self::Unsupported => "the backend does not support this",
            Self::InvalidKey => "invalid key",
            Self::InvalidConfig => "invalid configuration",
            Self::UnknownBackend => "unknown backend",
            Self::Deadlock => "the caller would wait for itself",
            Self::Conflict => "others use the key in another way",
            Self::Closed => "closed",
        }
    }
}

/// A failure that a backend reports: a kind, a sentence, and the underlying error.
///
/// The engine adds operation, key and backend and makes an [`Error`](crate::Error) of it. The sentence says what is
/// wrong and what to do, and never contains credentials.
#[derive(Debug)]
pub struct Failure {
    kind: ErrorKind,
    message: Cow<'static, str>,
    source: Option<Box<dyn StdError + Send + Sync>>,
    worthless: bool,
}

impl Failure {
    /// Creates a failure of this kind.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, message: message.into(), source: None, worthless: false }
    }

    /// Creates a failure of a request that was sent and may or may not have taken effect. The engine asks again under
    /// the same token.
    #[must_use]
    pub fn unknown(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Unknown, message)
    }

    /// Creates a failure of a backend that could not serve and certainly changed nothing. The engine tries again while
    /// the caller waits.
    #[must_use]
    pub fn unavailable(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Unavailable, message)
    }

    /// Creates a failure for credentials or rights that are missing. It ends an acquire that has not begun to wait.
    /// Whatever goes on already, such as a wait, a release or a campaign, asks again, ever more rarely.
    #[must_use]
    pub fn denied(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Denied, message)
    }

    /// Creates a failure for a key that cannot name a lock. It is final.
    #[must_use]
    pub fn invalid_key(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::InvalidKey, message)
    }

    /// Creates a failure for a configuration (option, URL, table) that cannot work. The engine treats it like
    /// [`denied`](Self::denied).
    #[must_use]
    pub fn invalid_config(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::InvalidConfig, message)
    }

    /// Creates a failure for an ability that the backend lacks. The engine treats it like [`denied`](Self::denied).
    pub(crate) fn unsupported(what: &str) -> Self {
        Self::new(ErrorKind::Unsupported, format!("this backend cannot {what}"))
    }

    /// Marks the failure as that of a grant that was made and is worth nothing, such as one that too few replicas know
    /// of. The engine withdraws it, and makes any further try with a new claim.
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

    /// Returns the kind.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the sentence, without the underlying error.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Is `true` if there is a grant that has to be withdrawn: see [`of_worthless_grant`](Self::of_worthless_grant).
    #[must_use]
    pub fn is_worthless(&self) -> bool {
        self.worthless
    }

    /// Returns whether another try may succeed without any change to program or servers.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self.kind, ErrorKind::Unknown | ErrorKind::Unavailable | ErrorKind::QuorumNotReached)
    }
}

/// A writer that replaces each line break and each other control character by a blank, since texts of servers and
/// libraries may hold any.
struct OneLine<'a, 'f>(&'a mut fmt::Formatter<'f>);

impl fmt::Write for OneLine<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for (number, part) in text.split(char::is_control).enumerate() {
            if number > 0 {
                self.0.write_str(" ")?;
            }
            self.0.write_str(part)?;
        }
        Ok(())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.sentence())?;
        if !self.message.is_empty() {
            write!(OneLine(f), ": {}", self.message)?;
        }
        if let Some(source) = &self.source {
            write!(OneLine(f), ": {source}")?;
        }
        Ok(())
    }
}

impl StdError for Failure {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
