//! Bounds the watches of one session.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The bytes of paths that waiters may watch. The client library sets all watches again over a new connection; with
/// more than 128 KiB of paths, the request that does so ends that connection too, and with it the session.
const BY_WAITERS: usize = 96 << 10;
/// The bytes of paths that holders and directories may use. They manage without a watch.
const BY_OTHERS: usize = 28 << 10;

/// Allows one path to be watched, until this is dropped.
pub(crate) type WatchPass = OwnedSemaphorePermit;

/// The bytes of paths that one session may still watch.
pub(crate) struct Watches {
    by_waiters: Arc<Semaphore>,
    by_others: Arc<Semaphore>,
}

impl Watches {
    pub(super) fn new() -> Self {
        Self {
            by_waiters: Arc::new(Semaphore::new(BY_WAITERS)),
            by_others: Arc::new(Semaphore::new(BY_OTHERS)),
        }
    }

    /// Allows a waiter to watch the node before its own. Without a pass, the waiter polls.
    pub(crate) fn previous(&self, path: &str) -> Option<WatchPass> {
        pass(&self.by_waiters, path, 0)
    }

    /// Allows a waiter to watch its own node, unless less than half of the bytes are left.
    pub(crate) fn own(&self, path: &str) -> Option<WatchPass> {
        pass(&self.by_waiters, path, BY_WAITERS / 2)
    }

    /// Allows a holder to watch its node.
    pub(crate) fn held(&self, path: &str) -> Option<WatchPass> {
        pass(&self.by_others, path, 0)
    }

    /// Allows a directory to be watched, unless less than half of the bytes are left for holders.
    pub(crate) fn directory(&self, path: &str) -> Option<WatchPass> {
        pass(&self.by_others, path, BY_OTHERS / 2)
    }
}

fn pass(free: &Arc<Semaphore>, path: &str, left: usize) -> Option<WatchPass> {
    // Bytes, and not watches: it is the length of the request that sets them again which is bounded.
    let bytes = u32::try_from(path.len()).ok()?;
    // Acquired before the check, so that two callers cannot both take what is left; a pass beyond the limit is dropped.
    let pass = Arc::clone(free).try_acquire_many_owned(bytes).ok()?;
    (free.available_permits() >= left).then_some(pass)
}
