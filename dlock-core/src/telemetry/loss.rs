//! The causes by which locks are lost.

use std::borrow::Cow;

/// The cause of a loss, as a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The lease ran out before a renewal was confirmed.
    Expired,
    /// It was held for `max_hold`.
    MaxHold,
    /// The backend no longer had it under the claim's token.
    Gone,
    /// The backend reported it by itself: a session ended.
    Backend,
    /// The session that kept it is over.
    Session,
    /// The locks were shut down.
    Shutdown,
    /// The candidate that led is not eligible any more.
    Ineligible,
    /// The keeper has ended, so that the lock is not renewed.
    Keeper,
}

impl Loss {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "lease_expired",
            Self::MaxHold => "max_hold",
            Self::Gone => "gone",
            Self::Backend => "backend",
            Self::Session => "session",
            Self::Shutdown => "shutdown",
            Self::Ineligible => "ineligible",
            Self::Keeper => "keeper",
        }
    }

    /// Returns the cause in words.
    pub(crate) const fn sentence(self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::Expired => "its lease ran out before a renewal was confirmed",
            Self::MaxHold => "it was held for max_hold",
            Self::Gone => "the backend no longer has it under our token",
            Self::Backend => "the backend said that it is gone",
            Self::Session => "the session of this process, which kept it, is over",
            Self::Shutdown => "these locks were shut down",
            Self::Ineligible => "this candidate is not eligible any more",
            Self::Keeper => "dlock's own thread has ended, so that it is not renewed",
        })
    }
}
