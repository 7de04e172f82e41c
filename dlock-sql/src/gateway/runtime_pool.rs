//! The connections that one runtime drives.
//!
//! A pool is at rest when no permit is taken and no connection was used within 5 s: then another runtime may take its
//! place as the home of these locks.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Mutex, MutexGuard};
use dlock_core::{Key, Token};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::waiters::PendingBatch;
use crate::driver::{Conn, Driver};
use crate::protocol::{Ask, Released, Taken};

/// The time after which an idle connection is tested before it is used.
pub(super) const FRESH: Duration = Duration::from_secs(5);

/// The time after which an idle connection is closed.
pub(super) const IDLE: Duration = Duration::from_secs(60);

/// The connections that one runtime drives, and the right to use them.
///
/// An answer wakes the runtime on which its connection was opened. Where that is the caller's own, it costs no detour
/// over another thread; so callers of one runtime, the home of these locks, have connections there. What must not wait
/// for a runtime that is blocked or gone, and callers from elsewhere, use those of dlock's own thread.
pub(crate) struct RuntimePool<S: Driver> {
    pub(super) runtime: Handle,
    pub(super) permits: Arc<Semaphore>,
    limit: usize,
    idle: Mutex<Vec<Idle<S>>>,
    /// The attempts that wait for a connection.
    pub(crate) takes: PendingBatch<Ask, Taken>,
    /// The releases that wait for a connection.
    pub(crate) releases: PendingBatch<(Key, Token), Released>,
}

/// A connection that is not in use.
pub(super) struct Idle<S: Driver> {
    pub(super) connection: Conn<S>,
    pub(super) since: Instant,
    /// The number of connections that had been found broken by then.
    pub(super) breaks: u64,
}

impl<S: Driver> Idle<S> {
    fn is_ready(&self, breaks: u64) -> bool {
        // A break since then casts doubt on it: what broke the one connection may have broken all.
        self.breaks == breaks && self.since.elapsed() < FRESH
    }
}

impl<S: Driver> RuntimePool<S> {
    pub(super) fn new(runtime: Handle, limit: usize) -> Arc<Self> {
        Arc::new(Self {
            runtime,
            permits: Arc::new(Semaphore::new(limit)),
            limit,
            idle: Mutex::default(),
            takes: PendingBatch::default(),
            releases: PendingBatch::default(),
        })
    }

    pub(super) fn idle(&self) -> MutexGuard<'_, Vec<Idle<S>>> {
        self.idle.lock()
    }

    pub(super) fn pop(&self) -> Option<Idle<S>> {
        // The last that was put back. Those below it grow old, and are closed when fewer are needed.
        self.idle().pop()
    }

    pub(super) fn put(&self, connection: Conn<S>, breaks: u64) {
        // `breaks` is the number of now: the connection has just been opened, or has answered.
        self.idle().push(Idle { connection, since: Instant::now(), breaks });
    }

    /// Takes out those that are too old, but for the last one where one is kept.
    pub(super) fn too_old(&self, keeps_one: &mut bool) -> Vec<Idle<S>> {
        old(&mut self.idle(), keeps_one, |idle| idle.since.elapsed())
    }

    /// Returns `true` if the runtime has asked for nothing for a while. It may be gone without notice.
    pub(super) fn is_at_rest(&self) -> bool {
        // A runtime that has ended neither takes permits nor uses connections, and so seems to rest.
        self.permits.available_permits() == self.limit
            && self.idle().iter().all(|idle| idle.since.elapsed() >= FRESH)
    }

    /// Returns a connection that can be written to at once, without a test, if there is one and a permit for it.
    pub(super) fn try_take(&self, breaks: u64) -> Option<(Conn<S>, OwnedSemaphorePermit)> {
        // The permit first, and let go where no connection is ready: a connection without one would be used beyond the
        // limit. Only the youngest is looked at, since the others are older.
        let permit = Arc::clone(&self.permits).try_acquire_owned().ok()?;
        Some((self.idle().pop_if(|idle| idle.is_ready(breaks))?.connection, permit))
    }
}

fn old<T>(idle: &mut Vec<T>, keeps_one: &mut bool, age: impl Fn(&T) -> Duration) -> Vec<T> {
    // The youngest is at the end, and is kept, in the first pool that has any.
    let kept = if *keeps_one { idle.pop() } else { None };
    *keeps_one &= kept.is_none();
    let old = idle.extract_if(.., |idle| age(idle) >= IDLE).collect();
    idle.extend(kept);
    old
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_connection_is_kept_while_something_is_held() {
        let (young, old_one) = (Duration::ZERO, IDLE);
        let left = |mut keeps_one: bool, pools: [&[Duration]; 2]| {
            pools.map(|idle| {
                let mut idle = idle.to_vec();
                let closed = old(&mut idle, &mut keeps_one, |age| *age);
                assert!(closed.iter().all(|age| *age >= IDLE));
                idle.len()
            })
        };
        assert_eq!(left(false, [&[old_one, old_one], &[old_one]]), [0, 0]);
        assert_eq!(left(true, [&[old_one, old_one], &[old_one]]), [1, 0]);
        assert_eq!(left(true, [&[], &[old_one, old_one]]), [0, 1]);
        assert_eq!(left(true, [&[old_one, young], &[young, old_one]]), [1, 1]);
    }
}
