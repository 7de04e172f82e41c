//! The modes in which a lock is held: exclusive, or by several holders at a time.

use std::fmt;
use std::time::Duration;

use crate::error::{ErrorKind, Failure};

/// The mode in which a lock is held.
///
/// A key is used in one way: as a lock, which is [exclusive](Self::Exclusive) or [shared](Self::Shared) from hold to
/// hold, or as a [semaphore](Self::Permits).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// One holder: a lock, or the write lock of a lock that has readers too.
    #[default]
    Exclusive,
    /// Any number of readers, while there is no exclusive holder.
    /// [`Capabilities::shared`](crate::Capabilities::shared).
    Shared,
    /// As many holders as there are permits for. [`Capabilities::permits`](crate::Capabilities::permits).
    Permits {
        /// The number of permits of the semaphore.
        of: u32,
        /// The number of permits of this hold.
        take: u32,
    },
}

/// The most permits that a semaphore may have.
pub const MOST_PERMITS: u32 = 1_000_000;

/// The time for which a waiting claim that wants all of a shared lock, or several permits, keeps newcomers out, and
/// then the time for which it lets them pass while it waits on. So neither of them starves.
pub const PREFERENCE: Duration = Duration::from_secs(10);

/// The time after its last attempt for which a waiting claim can keep newcomers out. A claim that waits asks more
/// often, and a claim whose process died asks no more.
pub const PREFERENCE_ALIVE: Duration = Duration::from_secs(2);

/// The least time for which a semaphore without holders remembers its number of permits.
pub const PERMITS_REMEMBERED: Duration = Duration::from_secs(24 * 3_600);

impl Mode {
    /// Returns the mode in one word, as the label `dlock.mode` of spans and metrics.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Exclusive => "write",
            Self::Shared => "read",
            Self::Permits { .. } => "permits",
        }
    }

    /// Returns the number of permits of the semaphore; `None` if the mode is not that of a semaphore.
    #[must_use]
    pub const fn permits(&self) -> Option<u32> {
        match self {
            Self::Permits { of, .. } => Some(*of),
            Self::Exclusive | Self::Shared => None,
        }
    }

    /// Returns the share of the lock that one hold has: its permits, and 1 of any other lock.
    #[must_use]
    pub const fn taken(&self) -> u32 {
        match self {
            Self::Permits { take, .. } => *take,
            Self::Exclusive | Self::Shared => 1,
        }
    }

    /// Returns whether a hold of this mode has the same part of a lock as one of `other`: both are exclusive, both are
    /// readers, or both have as many permits, out of any number.
    #[must_use]
    pub fn has_same_part(&self, other: &Self) -> bool {
        (self.as_str(), self.taken()) == (other.as_str(), other.taken())
    }

    /// Is `true` if the lock has only one holder at a time.
    pub(crate) const fn is_exclusive(&self) -> bool {
        matches!(self, Self::Exclusive)
    }

    /// Returns whether a waiting claim of this mode keeps newcomers out for a while, since what it wants may never be
    /// free at one moment: the whole lock, or several permits.
    #[must_use]
    pub const fn has_preference(&self) -> bool {
        match self {
            Self::Exclusive => true,
            Self::Shared => false,
            Self::Permits { take, .. } => *take > 1,
        }
    }

    /// Returns the label of spans and metrics; `None` for the common mode.
    pub(crate) const fn label(&self) -> Option<&'static str> {
        if self.is_exclusive() { None } else { Some(self.as_str()) }
    }

    pub(crate) fn check(&self) -> Result<(), Failure> {
        let Self::Permits { of, take } = *self else { return Ok(()) };
        if !(1..=MOST_PERMITS).contains(&of) {
            let what = format!("a semaphore of {of} permits; use 1 to {MOST_PERMITS}");
            return Err(Failure::invalid_config(what));
        }
        if !(1..=of).contains(&take) {
            let what = format!("{take} permits at once of a semaphore of {of}; take 1 to {of}");
            return Err(Failure::invalid_config(what));
        }
        Ok(())
    }

    /// Returns the failure of a claim of this mode on a key that others use as `other`, or `None` if the two go
    /// together. Only the number of permits that there are matters, not the number taken.
    #[must_use]
    pub fn conflict(&self, other: &Self) -> Option<Failure> {
        let what = match (self.permits(), other.permits()) {
            (ours, theirs) if ours == theirs => return None,
            (Some(ours), Some(theirs)) => format!(
                "the semaphore has {theirs} permits, and this asks for one of {ours}; give all processes the same \
                 number, or have it changed by `Locks::resize_semaphore`"
            ),
            (Some(_), None) => "as a lock, and this asks for permits; use another key".to_owned(),
            (None, _) => "as a semaphore, and this asks for a lock; use another key".to_owned(),
        };
        Some(Failure::new(ErrorKind::Conflict, what))
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => f.write_str("write"),
            Self::Shared => f.write_str("read"),
            Self::Permits { of, take } => write!(f, "{take} of {of} permits"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absurd_numbers_of_permits_are_refused_with_the_bounds() {
        for (of, take, text) in [
            (0, 1, "use 1 to 1000000"),
            (u32::MAX, 1, "use 1 to 1000000"),
            (MOST_PERMITS + 1, 1, "use 1 to 1000000"),
            (4, 0, "take 1 to 4"),
            (4, 5, "take 1 to 4"),
            (4, u32::MAX, "take 1 to 4"),
        ] {
            let failure = Mode::Permits { of, take }.check().unwrap_err();
            assert_eq!(failure.kind(), ErrorKind::InvalidConfig);
            assert!(failure.message().contains(text), "{failure}");
        }
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { of: MOST_PERMITS, take: MOST_PERMITS }] {
            mode.check().unwrap();
        }
    }

    #[test]
    fn a_key_is_used_in_one_way_and_whoever_differs_learns_how() {
        let (four, five) = (Mode::Permits { of: 4, take: 1 }, Mode::Permits { of: 5, take: 1 });
        assert!(four.conflict(&Mode::Permits { of: 4, take: 3 }).is_none());
        assert!(Mode::Shared.conflict(&Mode::Exclusive).is_none());
        for (ours, theirs, text) in [
            (five, four, "has 4 permits"),
            (four, Mode::Shared, "as a lock"),
            (Mode::Shared, four, "as a semaphore"),
        ] {
            let failure = ours.conflict(&theirs).unwrap();
            assert_eq!(failure.kind(), ErrorKind::Conflict);
            assert!(failure.message().contains(text), "{failure}");
        }
    }

    #[test]
    fn a_conflict_says_once_that_others_use_the_key_in_another_way() {
        let (semaphore, other) = (Mode::Permits { of: 2, take: 1 }, Mode::Permits { of: 3, take: 1 });
        for (ours, theirs) in [(semaphore, other), (semaphore, Mode::Shared), (Mode::Exclusive, semaphore)] {
            let text = ours.conflict(&theirs).unwrap().to_string();
            assert_eq!(text.matches("others use").count(), 1, "{text}");
        }
        assert!(semaphore.conflict(&semaphore).is_none());
    }
}
