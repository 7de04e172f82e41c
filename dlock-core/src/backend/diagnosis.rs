//! What a backend finds out about its server's settings, and about the nodes of a quorum.

use std::time::Duration;

/// How much a [`Finding`] matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// As it should be, or only to be known.
    Fine,
    /// Locks are correct, and may be less available than they could be.
    Warning,
    /// Locks may be lost or granted twice, or none can be granted.
    Danger,
}

impl Severity {
    /// Returns it as a word: `fine`, `warning` or `danger`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::Warning => "warning",
            Self::Danger => "danger",
        }
    }
}

/// One thing that [`Locks::diagnose`](crate::Locks::diagnose) looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// What was looked at, such as `maxmemory-policy`.
    pub subject: &'static str,
    /// How much it matters.
    pub severity: Severity,
    /// What was found. It may contain text of the server.
    pub found: String,
    /// What to do about it; empty where nothing is to be done.
    pub advice: &'static str,
}

impl Finding {
    /// Notes something that is as it should be.
    pub fn fine(subject: &'static str, found: impl Into<String>) -> Self {
        Self { subject, severity: Severity::Fine, found: found.into(), advice: "" }
    }

    /// Notes something that makes locks less available.
    pub fn warning(subject: &'static str, found: impl Into<String>, advice: &'static str) -> Self {
        Self { subject, severity: Severity::Warning, found: found.into(), advice }
    }

    /// Notes something by which locks may be lost or granted twice, or none can be granted.
    pub fn danger(subject: &'static str, found: impl Into<String>, advice: &'static str) -> Self {
        Self { subject, severity: Severity::Danger, found: found.into(), advice }
    }
}

/// What this process knows of one node of a quorum.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeState {
    /// Its number, from 1, as errors say it.
    pub number: usize,
    /// Its backend.
    pub backend: &'static str,
    /// How long ago it answered last; `None` when it never did.
    pub answered: Option<Duration>,
    /// Whether it left several requests in a row without an answer, so that it is only asked now and then.
    pub is_silent: bool,
}
