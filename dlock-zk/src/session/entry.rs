//! The entries of claims in their session: locks that are held, and claims that wait.

use std::sync::Arc;

use dlock_core::Timestamp;
use dlock_core::backend::Signal;

use super::Session;
use super::kept::{BEATS, Connection, KeptLock, WATCHED_AFTER};

/// A claim that waits. The session proves that it lives until this is dropped.
pub(crate) struct WaitEntry(Arc<Session>);

impl Drop for WaitEntry {
    fn drop(&mut self) {
        // The task is not woken: it finds at its next look that nothing is kept, and sleeps from then on.
        self.0.kept.lock().waiting -= 1;
    }
}

/// A lock that the session keeps until this is dropped.
pub(crate) struct LockEntry {
    session: Arc<Session>,
    number: u64,
}

impl Session {
    /// Enters a claim that waits.
    pub(crate) fn wait(self: &Arc<Self>) -> WaitEntry {
        let mut kept = self.kept.lock();
        kept.waiting += 1;
        // A place in the queue is kept by the session too, so that it has to prove its life.
        let wakes = kept.look_by(self.clock.now(), self.timeout, self.timeout / BEATS);
        drop(kept);
        if wakes {
            self.wake.notify_one();
        }
        WaitEntry(Arc::clone(self))
    }

    /// Enters a lock that was granted. `signal` gets what becomes of it. The last proof of life was sent at
    /// `proven_at`.
    pub(crate) fn enter(
        self: &Arc<Self>,
        signal: Signal,
        path: Arc<str>,
        czxid: i64,
        proven_at: Timestamp,
    ) -> LockEntry {
        // Held until the signal below is sent, so that it is sent before that of any later change of the connection.
        let signalling = self.signalling.lock();
        let now = self.clock.now();
        let mut kept = self.kept.lock();
        let (number, state) = (kept.next, kept.state);
        // Never used twice, so that a task which still has the number of a dropped entry finds nothing.
        kept.next += 1;
        let lock = KeptLock {
            signal: signal.clone(),
            path,
            czxid,
            // Stays when another node takes the place of this one.
            fence: czxid,
            moves: None,
            watch_at: now + WATCHED_AFTER,
            seen: now,
            proven_at,
            // Losses that are counted already are older than this entry.
            losses: self.driver.losses(),
            suspect: state == Connection::Down,
            gone: false,
        };
        kept.locks.insert(number, lock);
        let wakes = kept.look_by(now, self.timeout, WATCHED_AFTER);
        drop(kept);
        match state {
            Connection::Up => {}
            Connection::Down => signal.suspect(),
            Connection::Ended(cause) => signal.lost(cause),
        }
        drop(signalling);
        if wakes {
            self.wake.notify_one();
        }
        LockEntry { session: Arc::clone(self), number }
    }

    /// Returns the path of the node of the lock with this fence.
    pub(crate) fn node_of(&self, fence: i64) -> Option<Arc<str>> {
        self.kept.lock().locks.values().find(|lock| lock.fence == fence).map(|lock| Arc::clone(&lock.path))
    }
}

impl LockEntry {
    /// Returns `true` if the server reported that the node of the lock is gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.session.kept.lock().locks.get(&self.number).is_some_and(|lock| lock.gone)
    }

    /// Returns the fence of the lock: the `czxid` of the node by which it was granted.
    pub(crate) fn fence(&self) -> Option<i64> {
        self.session.kept.lock().locks.get(&self.number).map(|lock| lock.fence)
    }

    /// Notes that the node `to` is about to replace that of the lock, whose deletion is no loss from now on.
    pub(crate) fn moves(&self, to: &Arc<str>) {
        if let Some(lock) = self.session.kept.lock().locks.get_mut(&self.number) {
            // Noted before the transaction is sent, whose deletion a watch may report ahead of its answer.
            lock.moves = Some(Arc::clone(to));
        }
    }

    /// Notes that no other node replaces that of the lock.
    pub(crate) fn stays(&self) {
        if let Some(lock) = self.session.kept.lock().locks.get_mut(&self.number) {
            lock.moves = None;
        }
    }

    /// Notes that the lock has this node now.
    pub(crate) fn moved(&self, path: &Arc<str>, czxid: i64) {
        let now = self.session.clock.now();
        let mut kept = self.session.kept.lock();
        if let Some(lock) = kept.locks.get_mut(&self.number) {
            (lock.path, lock.czxid, lock.moves) = (Arc::clone(path), czxid, None);
            // The new node is not watched yet.
            lock.watch_at = now + WATCHED_AFTER;
        }
        let wakes = kept.look_by(now, self.session.timeout, WATCHED_AFTER);
        drop(kept);
        if wakes {
            self.session.wake.notify_one();
        }
    }
}

impl Drop for LockEntry {
    fn drop(&mut self) {
        let lock = self.session.kept.lock().locks.remove(&self.number);
        // Freed after the mutex is unlocked.
        drop(lock);
    }
}
