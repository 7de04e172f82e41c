//! The state that a session keeps behind its mutex. `session.rs` shows how it changes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::Timestamp;
use dlock_core::backend::Signal;

/// The number of proofs of life within a session timeout.
pub(super) const BEATS: u32 = 10;
/// The time after which the node of a held lock is watched, so that its deletion is known at once. Most locks are held
/// for less, and need no watch.
pub(super) const WATCHED_AFTER: Duration = Duration::from_millis(20);

/// The connection of a session, the locks that it keeps, and the times of its next steps.
pub(super) struct Kept {
    pub(super) state: Connection,
    pub(super) locks: HashMap<u64, KeptLock>,
    pub(super) next: u64,
    /// The number of claims that wait for a lock.
    pub(super) waiting: usize,
    /// The send time of the last write that a majority has confirmed.
    pub(super) proven_at: Timestamp,
    /// The time at which the next proof of life is due.
    pub(super) beat_at: Timestamp,
    /// The time at which the session's task looks next.
    pub(super) look_at: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Connection {
    Up,
    Down,
    /// The session has ended, for this reason.
    Ended(&'static str),
}

#[derive(Clone)]
pub(super) struct KeptLock {
    pub(super) signal: Signal,
    pub(super) path: Arc<str>,
    pub(super) czxid: i64,
    /// The `czxid` of the node by which the lock was granted. `czxid` differs from it after a downgrade.
    pub(super) fence: i64,
    /// The node that is about to replace this one, or has replaced it.
    pub(super) moves: Option<Arc<str>>,
    /// The time at which the node is to be watched; `NEVER` while it is watched.
    pub(super) watch_at: Timestamp,
    /// The time at which the node was last seen on the server.
    pub(super) seen: Timestamp,
    /// The send time of the last proof of life that counted for the lock.
    pub(super) proven_at: Timestamp,
    /// The number of losses of the connection that were noted for the lock.
    pub(super) losses: u64,
    /// The connection was lost, and the node was not seen since.
    pub(super) suspect: bool,
    /// The server reported that the node is gone.
    pub(super) gone: bool,
}

impl Kept {
    /// Returns the state of a session that was requested at `opened`.
    pub(super) fn new(opened: Timestamp) -> Self {
        Self {
            state: Connection::Up,
            locks: HashMap::new(),
            next: 0,
            waiting: 0,
            // The servers have made the session after this moment, so that it counts as a proof of life.
            proven_at: opened,
            beat_at: Timestamp::NEVER,
            look_at: Timestamp::NEVER,
        }
    }

    /// Notes that the session is to be looked after within this time. Returns `true` if its task has to be woken.
    pub(super) fn look_by(&mut self, now: Timestamp, timeout: Duration, within: Duration) -> bool {
        // The session kept nothing so far, so that no proof of life was due.
        if self.beat_at == Timestamp::NEVER {
            self.beat_at = now + timeout / BEATS;
        }
        let at = now + within;
        // The task sleeps until `look_at`, and need not be woken if that is early enough.
        let wakes = self.look_at > at;
        self.look_at = self.look_at.min(at);
        wakes
    }
}
