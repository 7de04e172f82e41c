//! The state that a session keeps behind its mutex.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::Timestamp;
use dlock_core::backend::Signal;

/// A share of the session timeout, for what has to happen several times within it.
pub(super) const BEATS: u32 = 10;
/// A lock that is held for longer than this is watched, so that a deletion of its node is known at once. Most are not,
/// and need no watch.
pub(super) const WATCHED_AFTER: Duration = Duration::from_millis(20);

/// The connection of a session, the locks that it keeps, and when it is due for what.
pub(super) struct Kept {
    pub(super) state: Connection,
    pub(super) locks: HashMap<u64, KeptLock>,
    pub(super) next: u64,
    /// How many claims wait for a lock.
    pub(super) waiting: usize,
    /// When the last write was sent that a majority has.
    pub(super) proven_at: Timestamp,
    /// When the next proof is due.
    pub(super) beat_at: Timestamp,
    /// When the session will be looked after next.
    pub(super) look_at: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Connection {
    Up,
    Down,
    /// The session is over, for this reason.
    Ended(&'static str),
}

#[derive(Clone)]
pub(super) struct KeptLock {
    pub(super) signal: Signal,
    pub(super) path: Arc<str>,
    pub(super) czxid: i64,
    /// The `czxid` of the node by which it was granted.
    pub(super) fence: i64,
    /// The node that is about to replace this one, or has replaced it.
    pub(super) moves: Option<Arc<str>>,
    /// When its node is to be watched; `NEVER` while it is.
    pub(super) watch_at: Timestamp,
    /// When it was last seen on the server.
    pub(super) seen: Timestamp,
    /// When the last proof of life was sent that counted for it.
    pub(super) proven_at: Timestamp,
    /// How many losses of the connection were noted for it.
    pub(super) losses: u64,
    /// The connection was lost, and its node was not seen since.
    pub(super) suspect: bool,
    /// The server said that its node is gone.
    pub(super) gone: bool,
}

impl Kept {
    /// Returns the state of a session that was asked for at `opened`.
    pub(super) fn new(opened: Timestamp) -> Self {
        Self {
            state: Connection::Up,
            locks: HashMap::new(),
            next: 0,
            waiting: 0,
            proven_at: opened,
            beat_at: Timestamp::NEVER,
            look_at: Timestamp::NEVER,
        }
    }

    /// Notes that the session is to be looked after within this time. Returns whether its task has to be woken.
    pub(super) fn look_by(&mut self, now: Timestamp, timeout: Duration, within: Duration) -> bool {
        if self.beat_at == Timestamp::NEVER {
            self.beat_at = now + timeout / BEATS;
        }
        let at = now + within;
        let wakes = self.look_at > at;
        self.look_at = self.look_at.min(at);
        wakes
    }
}
