//! Findings about a server's settings, and about the nodes of a quorum.

use std::time::Duration;

/// The weight of a [`Finding`].
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
    /// Returns the severity as a word: `fine`, `warning` or `danger`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::Warning => "warning",
            Self::Danger => "danger",
        }
    }
}

/// One subject that [`Locks::diagnose`](crate::Locks::diagnose) looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The setting or right in question, such as `maxmemory-policy`.
    pub subject: &'static str,
    /// The weight of the finding.
    pub severity: Severity,
    /// The state that was found. It may contain text of the server.
    pub found: String,
    /// The advice; empty if nothing is to be done.
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

/// The state of one node of a quorum, as this process knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeState {
    /// The number of the node, from 1, as in errors.
    pub number: usize,
    /// The backend of the node.
    pub backend: &'static str,
    /// The time since its last answer; `None` if it never answered.
    pub answered: Option<Duration>,
    /// Is `true` if it left several requests in a row without an answer, so that it is only asked now and then.
    pub is_silent: bool,
}

impl NodeState {
    /// Creates the state of a node; see the fields.
    #[must_use]
    pub const fn new(
        number: usize,
        backend: &'static str,
        answered: Option<Duration>,
        is_silent: bool,
    ) -> Self {
        Self { number, backend, answered, is_silent }
    }
}
