//! The locks of a batch that are held.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::release::{self, Share};
use crate::error::Result;
use crate::fence::Fence;
use crate::handles::guard::Guard;
use crate::handles::held::{Ended, Held};

/// All locks of a [`Batch`](crate::Batch), until this is released or dropped. As for the limits of a guard, see
/// [`Guard`]; a batch is held as long as all of its locks are.
#[must_use = "the locks are released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct BatchGuard {
    /// The guards, in the order in which they were taken.
    guards: Vec<Guard>,
    held: Held,
}

impl BatchGuard {
    pub(super) fn new(shares: impl Iterator<Item = Share>) -> Self {
        let guards: Vec<_> = shares.map(Guard::new).collect();
        let held = Held::all(guards.iter().map(|guard| Arc::clone(guard.hold())));
        Self { guards, held }
    }

    pub(super) fn guards_mut(&mut self) -> &mut [Guard] {
        &mut self.guards
    }

    /// Returns a view that can be cloned and given to other tasks. It does not keep the locks.
    #[must_use]
    pub fn held(&self) -> Held {
        self.held.clone()
    }

    /// Returns the keys, each with its fencing token, in the order in which they were taken.
    pub fn fences(&self) -> impl Iterator<Item = (&str, Option<Fence>)> {
        self.held.fences()
    }

    /// Returns the fencing token of one key; see [`Held::fence_of`].
    #[must_use]
    pub fn fence_of(&self, key: &str) -> Option<Fence> {
        self.held.fence_of(key)
    }

    /// Checks that all locks are held at this moment: a local test, no I/O. See [`Guard::check`].
    ///
    /// # Errors
    ///
    /// As [`Guard::check`], for the first lock that is not held.
    pub fn check(&self) -> Result<()> {
        self.held.check()
    }

    /// Returns how long all locks stay valid if no renewal succeeds: the shortest of them. See [`Guard::remaining`].
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.held.remaining()
    }

    /// Waits until one of the locks is lost; never resolves once they were released. See [`ended`](Self::ended).
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again at any time.
    pub async fn lost(&self) {
        self.held.lost().await;
    }

    /// Waits until one of the locks is no longer held, and returns how it ended. See [`Held::ended`].
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again at any time.
    pub async fn ended(&self) -> Ended {
        self.held.ended().await
    }

    /// Turns each of the locks into a reader's, all at once, each in a step of its own; see [`Guard::downgrade`]. Locks
    /// that are read already stay as they are.
    ///
    /// # Errors
    ///
    /// As [`Guard::downgrade`], the first in the order of the locks. A lock that cannot be downgraded keeps none of the
    /// others from it.
    ///
    /// # Cancel safety
    ///
    /// As [`Guard::downgrade`], for each of them: if dropped midway, all that had begun read.
    pub async fn downgrade(&mut self) -> Result<()> {
        let all = self.guards.iter_mut().map(Guard::downgrade);
        futures_util::future::join_all(all).await.into_iter().collect()
    }

    /// Releases all locks, the last one first and without waiting in between, and waits until the backend has confirmed
    /// it. A release that fails keeps none of the others.
    ///
    /// # Errors
    ///
    /// As [`Guard::release`]: the first error, while further ones are logged. A release that was not confirmed goes on
    /// in the background.
    ///
    /// # Cancel safety
    ///
    /// If dropped midway, the release goes on in the background.
    pub async fn release(mut self) -> Result<()> {
        let Some(first) = self.guards.first().map(|guard| Arc::clone(guard.hold())) else { return Ok(()) };
        let guards = std::mem::take(&mut self.guards);
        release::all(&first, guards.into_iter().rev().map(Guard::release)).await
    }

    /// Releases the locks that were taken before another one could not be had.
    pub(super) async fn give_back(self, limit: Duration) {
        let Some(first) = self.guards.first() else { return };
        let first = Arc::clone(first.hold());
        release::give_back(&first, limit, self.release()).await;
    }
}

impl Drop for BatchGuard {
    fn drop(&mut self) {
        while let Some(guard) = self.guards.pop() {
            drop(guard);
        }
    }
}

impl fmt::Debug for BatchGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BatchGuard").field(&self.held.holds()).finish()
    }
}
