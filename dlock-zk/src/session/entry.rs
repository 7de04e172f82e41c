//! A lock in the book of the session that keeps it.

use std::sync::Arc;

use super::{Session, WATCHED_AFTER};

/// A lock's entry in its session's book; it is taken out when this is dropped.
pub(crate) struct Entry {
    session: Arc<Session>,
    number: u64,
}

impl Entry {
    pub(super) fn new(session: &Arc<Session>, number: u64) -> Self {
        Self { session: Arc::clone(session), number }
    }

    /// Whether the servers certainly have nothing of the lock any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.session.kept().locks.get(&self.number).is_some_and(|lock| lock.gone)
    }

    /// The fence of the lock.
    pub(crate) fn fence(&self) -> Option<i64> {
        self.session.kept().locks.get(&self.number).map(|lock| lock.fence)
    }

    /// This node is about to take the place of its own, whose end is none of the lock from here on.
    pub(crate) fn moves(&self, to: &Arc<str>) {
        if let Some(lock) = self.session.kept().locks.get_mut(&self.number) {
            lock.moves = Some(Arc::clone(to));
        }
    }

    /// No other node takes the place of its own.
    pub(crate) fn stays(&self) {
        if let Some(lock) = self.session.kept().locks.get_mut(&self.number) {
            lock.moves = None;
        }
    }

    /// The lock has this node now.
    pub(crate) fn moved(&self, path: &Arc<str>, czxid: i64) {
        let now = self.session.clock.now();
        let mut kept = self.session.kept();
        if let Some(lock) = kept.locks.get_mut(&self.number) {
            (lock.path, lock.czxid, lock.moves) = (Arc::clone(path), czxid, None);
            lock.watch_at = now + WATCHED_AFTER;
        }
        let wakes = self.session.look_by(&mut kept, WATCHED_AFTER);
        drop(kept);
        if wakes {
            self.session.wake.notify_one();
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let lock = self.session.kept().locks.remove(&self.number);
        // Outside of the mutex.
        drop(lock);
    }
}
