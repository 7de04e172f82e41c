//! The view of a hold.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::engine::held_locks::HeldLocks;
use crate::engine::hold::{Condition, Hold};
use crate::engine::scope;
use crate::error::{Error, ErrorKind, Failure, Operation, Result};
use crate::fence::Fence;

/// The end of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ended {
    /// Its owner released it.
    Released,
    /// It was lost: it ran out, was taken away, or reached its `max_hold`; see [`Held::check`] for the reason.
    Lost,
}

/// A view of a lock, or of all locks of a [`Batch`](crate::Batch): for the body that runs under it, and for other tasks
/// that depend on it.
///
/// Cheap to clone. It neither keeps nor releases the lock, but can [hand it over](Self::hand_over). A batch is held as
/// long as all of its locks are.
#[derive(Clone)]
pub struct Held(HeldLocks);

/// Returns the view of the innermost body that runs under a lock here; `None` outside any.
#[must_use]
pub fn current_hold() -> Option<Held> {
    scope::innermost().map(Held)
}

impl Held {
    pub(super) const fn nothing() -> Self {
        Self(HeldLocks::None)
    }

    pub(crate) const fn of(hold: Arc<Hold>) -> Self {
        Self(HeldLocks::One(hold))
    }

    pub(crate) fn all(holds: impl IntoIterator<Item = Arc<Hold>>) -> Self {
        Self(HeldLocks::All(holds.into_iter().collect()))
    }

    /// Returns the holds, for the scope of a body.
    pub(super) fn locks(&self) -> HeldLocks {
        self.0.clone()
    }

    /// Returns the holds, in the order in which they were taken.
    pub(crate) fn holds(&self) -> &[Arc<Hold>] {
        self.0.holds()
    }

    fn only(&self) -> Option<&Arc<Hold>> {
        match self.holds() {
            [hold] => Some(hold),
            _ => None,
        }
    }

    /// Returns the key; `None` for a body that runs without the lock, and for a batch of several.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        self.only().map(|hold| hold.key.as_str())
    }

    /// Returns the fencing token of this grant; `None` on backends without fences, without the lock, and for a batch of
    /// several, where every key has [its own](Self::fence_of).
    #[must_use]
    pub fn fence(&self) -> Option<Fence> {
        self.only().and_then(|hold| hold.fence())
    }

    /// Returns the fencing token of one key of a batch; `None` on backends without fences, and for a key that is not in
    /// it. Where two backends hold the same key, that of the first.
    #[must_use]
    pub fn fence_of(&self, key: &str) -> Option<Fence> {
        self.holds().iter().find(|hold| hold.key.as_str() == key).and_then(|hold| hold.fence())
    }

    /// Returns the keys, each with its fencing token, in the order in which they were taken.
    pub fn fences(&self) -> impl Iterator<Item = (&str, Option<Fence>)> {
        self.holds().iter().map(|hold| (hold.key.as_str(), hold.fence()))
    }

    /// Checks that the lock is held at this moment: a local test, no I/O. See [`Guard::check`](crate::Guard::check).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`], [`ErrorKind::Suspect`], or [`ErrorKind::NotHeld`] once it was released or when the body
    /// runs without the lock; [`ErrorKind::Closed`] in a child made by `fork`, whose parent holds it. For a batch, that
    /// of the first lock that has one.
    pub fn check(&self) -> Result<()> {
        if let HeldLocks::None = self.0 {
            let failure = Failure::new(ErrorKind::NotHeld, "this body runs without the lock");
            return Err(Error::new(Operation::Hold, failure));
        }
        self.holds().iter().try_for_each(|hold| hold.check())
    }

    /// Returns whether [`check`](Self::check) would succeed.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.holds().is_empty() && self.find(|condition| condition != Condition::Held).is_none()
    }

    /// Returns a hold that is lost, if any is.
    pub(super) fn find_lost(&self) -> Option<&Arc<Hold>> {
        self.find(|condition| condition == Condition::Lost)
    }

    fn find(&self, test: impl Fn(Condition) -> bool) -> Option<&Arc<Hold>> {
        let process = std::process::id();
        self.holds().iter().find(|hold| test(hold.condition_in(process)))
    }

    /// Returns how long the lock stays valid if no renewal succeeds; of a batch, the shortest. See
    /// [`Guard::remaining`](crate::Guard::remaining).
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        match &self.0 {
            HeldLocks::None => Some(Duration::ZERO),
            _ => self.holds().iter().filter_map(|hold| hold.remaining()).min(),
        }
    }

    /// Returns for how long the lock stays valid after each confirmation by the backend, which is what
    /// [`remaining`](Self::remaining) begins with: the lease, or where a session keeps the lock, as on ZooKeeper, the
    /// time for which the backend trusts a session that is silent. Of a batch, the shortest; `None` when a session
    /// keeps it without a known end, and zero for a body that runs without the lock.
    ///
    /// It serves to keep time free at the end of a lock, such as a third of it to stop the work.
    #[must_use]
    pub fn trusted_for(&self) -> Option<Duration> {
        match &self.0 {
            HeldLocks::None => Some(Duration::ZERO),
            _ => self.holds().iter().filter_map(|hold| hold.trusted_for()).min(),
        }
    }

    /// Waits until the lock, or one of the batch, is lost. Never resolves once it was released, and never without the
    /// lock: a task that watches a lock waits for [`ended`](Self::ended) instead, and does not stay behind.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again at any time.
    pub async fn lost(&self) {
        self.any(|hold| hold.condition_here() == Condition::Lost).await;
    }

    /// Waits until the lock, or one of the batch, is no longer held, and returns how it ended: for tasks that watch a
    /// lock. Resolves at once for a body that runs without the lock, as for a lock that was released.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
    /// use dlock_core::{Ended, Locks, Memory};
    ///
    /// let locks = Locks::new(Memory::new());
    /// let guard = locks.lock("room_7").acquire().await?;
    /// let held = guard.held();
    /// let watcher = tokio::spawn(async move {
    ///     if held.ended().await == Ended::Lost {
    ///         eprintln!("stop the work: {:?}", held.check());
    ///     }
    /// });
    /// guard.release().await?;
    /// watcher.await.unwrap();
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again at any time.
    pub async fn ended(&self) -> Ended {
        if let HeldLocks::None = self.0 {
            return Ended::Released;
        }
        self.any(|hold| matches!(hold.condition_here(), Condition::Lost | Condition::Released)).await;
        if self.find_lost().is_some() { Ended::Lost } else { Ended::Released }
    }

    /// Waits until a renewal is late: the lock is still held, and will be lost if the next renewals fail too. Resolves
    /// at once while that is so, and when the lock is lost.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again at any time.
    pub async fn at_risk(&self) {
        match self.holds() {
            [] => std::future::pending().await,
            holds => {
                let mut all: FuturesUnordered<_> = holds.iter().map(|hold| hold.at_risk()).collect();
                all.next().await;
            }
        }
    }

    /// Returns whether a renewal is late at this moment.
    #[must_use]
    pub fn is_at_risk(&self) -> bool {
        self.holds().iter().any(|hold| hold.is_at_risk())
    }

    /// Waits until the holder is asked to release the lock, as by Curator's `Revoker` on ZooKeeper, or the lock is
    /// lost. Nothing else follows from it: the body decides. Other backends have no such request.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again at any time.
    pub async fn release_requested(&self) {
        self.any(|hold| hold.is_release_requested() || hold.condition_here() == Condition::Lost).await;
    }

    /// Returns `true` if the holder was asked to release the lock.
    #[must_use]
    pub fn is_release_requested(&self) -> bool {
        self.holds().iter().any(|hold| hold.is_release_requested())
    }

    /// Resolves when `test` holds for one of the holds.
    async fn any(&self, test: impl Fn(&Hold) -> bool + Copy) {
        match self.holds() {
            [] => std::future::pending().await,
            [hold] => hold.when(test).await,
            holds => {
                let mut all: FuturesUnordered<_> = holds.iter().map(|hold| hold.when(test)).collect();
                all.next().await;
            }
        }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Held").field(&self.holds()).finish()
    }
}
