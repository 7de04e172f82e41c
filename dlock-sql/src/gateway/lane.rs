//! The connections that one runtime drives.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Mutex, MutexGuard};
use dlock_core::{Key, Token};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::waiters::Line;
use crate::driver::{Conn, Driver};
use crate::protocol::{Ask, Released, Taken};

/// A connection that was idle for this long is tested before it is used.
pub(super) const FRESH: Duration = Duration::from_secs(5);

/// A connection that was idle for this long is closed.
pub(super) const IDLE: Duration = Duration::from_secs(60);

/// The connections that one runtime drives, and the right to use them.
///
/// An answer wakes the runtime on which its connection was opened. Where that is the caller's own, it costs no detour
/// over another thread; so callers of one runtime, the home of these locks, have connections there. What must not wait
/// for a runtime that is blocked or gone, and callers from elsewhere, use those of dlock's own thread.
pub(crate) struct Lane<S: Driver> {
    pub(super) runtime: Handle,
    pub(super) permits: Arc<Semaphore>,
    limit: usize,
    idle: Mutex<Vec<Idle<S>>>,
    /// What waits for a connection.
    pub(crate) takes: Line<Ask, Taken>,
    pub(crate) releases: Line<(Key, Token), Released>,
}

/// A connection that nobody uses at the moment.
pub(super) struct Idle<S: Driver> {
    pub(super) connection: Conn<S>,
    pub(super) since: Instant,
    /// How many connections had been found broken by then.
    pub(super) breaks: u64,
}

impl<S: Driver> Idle<S> {
    fn is_ready(&self, breaks: u64) -> bool {
        self.breaks == breaks && self.since.elapsed() < FRESH
    }
}

impl<S: Driver> Lane<S> {
    pub(super) fn new(runtime: Handle, limit: usize) -> Arc<Self> {
        Arc::new(Self {
            runtime,
            permits: Arc::new(Semaphore::new(limit)),
            limit,
            idle: Mutex::default(),
            takes: Line::default(),
            releases: Line::default(),
        })
    }

    pub(super) fn idle(&self) -> MutexGuard<'_, Vec<Idle<S>>> {
        self.idle.lock()
    }

    pub(super) fn pop(&self) -> Option<Idle<S>> {
        self.idle().pop()
    }

    pub(super) fn put(&self, connection: Conn<S>, breaks: u64) {
        self.idle().push(Idle { connection, since: Instant::now(), breaks });
    }

    /// Takes out those that are too old, but for the last one where one is kept.
    pub(super) fn too_old(&self, keeps_one: &mut bool) -> Vec<Idle<S>> {
        old(&mut self.idle(), keeps_one, |idle| idle.since.elapsed())
    }

    /// Whether the runtime has asked for nothing for a while. It may be gone, which it does not tell.
    pub(super) fn is_at_rest(&self) -> bool {
        self.permits.available_permits() == self.limit
            && self.idle().iter().all(|idle| idle.since.elapsed() >= FRESH)
    }

    /// A connection that can be written to at once, without a test, if there is one and a permit for it.
    pub(super) fn try_take(&self, breaks: u64) -> Option<(Conn<S>, OwnedSemaphorePermit)> {
        let permit = Arc::clone(&self.permits).try_acquire_owned().ok()?;
        Some((self.idle().pop_if(|idle| idle.is_ready(breaks))?.connection, permit))
    }
}

fn old<T>(idle: &mut Vec<T>, keeps_one: &mut bool, age: impl Fn(&T) -> Duration) -> Vec<T> {
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
        let left = |mut keeps_one: bool, lanes: [&[Duration]; 2]| {
            lanes.map(|idle| {
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
