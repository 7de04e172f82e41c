//! Fencing tokens.

use std::fmt;

/// A fencing token: a number that grows with every grant of a key.
///
/// A lock with a lease can be lost while its holder is paused and does not know it yet. The holder sends the fence
/// along with every write; the resource remembers the highest fence it has seen and refuses lower ones, so that a
/// stale writer changes nothing whatever the timing (Kleppmann, *How to do distributed locking*, 2016; Chubby's
/// sequencers, 2006). A nested acquire of a lock that is held already sees the same fence.
///
/// ```
/// use dlock_core::Fence;
///
/// let seen = Fence::new(7);
/// assert!(Fence::new(8).supersedes(seen));
/// assert!(Fence::new(7).supersedes(seen), "the same grant may write again");
/// assert!(!Fence::new(6).supersedes(seen));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Fence(u64);

impl Fence {
    /// Creates a fence with this number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number, to be stored with the resource.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns whether a resource that has seen `seen` may accept a write under this fence.
    #[must_use]
    pub const fn supersedes(self, seen: Self) -> bool {
        self.0 >= seen.0
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}
