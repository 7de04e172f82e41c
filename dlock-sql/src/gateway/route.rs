//! The choice of a connection for a request.
//!
//! ```text
//!                         with a pool of the user        without
//!     attempt, question   Pool, where there are timers   OfRuntime: the caller's, if it is the home or no other is;
//!                         OfRuntime: dlock's own         else dlock's own
//!     release             OfRuntime: dlock's own         Ready, if the caller's runtime is the home and one is idle
//!                                                        and young; else OfRuntime: dlock's own
//!     renewal             OfRuntime: dlock's own         OfRuntime: dlock's own
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dlock_core::backend::Mutex;
use dlock_core::keeper;
use sqlx::Pool;
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;

use super::runtime_pool::RuntimePool;
use crate::driver::{Conn, Driver};

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An attempt or a question, which may have to wait for its turn.
    Ordinary,
    /// A release, which has a connection in reserve.
    Release,
    /// Renewals, which have a connection of their own.
    Renewal,
}

/// The connection that a request takes. It is decided when the request is made, and anew for a question that is asked
/// again.
pub(crate) struct Route<S: Driver> {
    pub(super) kind: Kind,
    pub(super) origin: Origin<S>,
    /// Is `true` if it may wait along with others. A pool of the user has a queue of its own.
    joins: bool,
}

/// The source of a request's connection.
pub(super) enum Origin<S: Driver> {
    OfRuntime(Arc<RuntimePool<S>>),
    /// A connection of a pool of a runtime that was taken already: it can be written to at once.
    Ready(Arc<RuntimePool<S>>, Conn<S>, OwnedSemaphorePermit),
    Pool(Pool<S::Database>),
}

impl<S: Driver> Route<S> {
    /// Returns `true` if the caller drives the request while it waits for the answer.
    pub(super) const fn is_driven_by_caller(&self) -> bool {
        // A message that is written to the wire at once is on its way whatever becomes of the caller's runtime.
        matches!((self.kind, &self.origin), (Kind::Ordinary, _) | (_, Origin::Ready(..)))
    }

    /// Returns the pool where the request waits for a connection along with others; `None` where it goes out by
    /// itself.
    pub(crate) fn batching_pool(&self) -> Option<Arc<RuntimePool<S>>> {
        let Origin::OfRuntime(runtime_pool) = &self.origin else { return None };
        // An attempt that finds a permit has nothing to wait for. A release that comes here found no connection that is
        // ready, and goes with the others.
        let is_free = self.kind == Kind::Ordinary && runtime_pool.permits.available_permits() > 0;
        (self.joins && !is_free).then(|| Arc::clone(runtime_pool))
    }
}

/// The connections that are open, by owner.
pub(super) struct Pools<S: Driver> {
    /// The user's pool, for attempts and questions.
    pub(super) given: Option<Pool<S::Database>>,
    /// The connections of dlock's own thread.
    pub(super) own: Arc<RuntimePool<S>>,
    /// The connections of the runtime that locks here, if it is to have any.
    home: Mutex<Option<Arc<RuntimePool<S>>>>,
    has_home: bool,
    /// The number of connections that attempts may use at a time.
    pub(super) limit: usize,
    /// The number of connections that were found broken: those that were idle at that time are not trusted.
    breaks: AtomicU64,
}

impl<S: Driver> Pools<S> {
    pub(super) fn new(
        runtime: Handle,
        pool: Option<Pool<S::Database>>,
        has_home: bool,
        limit: usize,
    ) -> Self {
        let own = RuntimePool::new(runtime, limit);
        Self { given: pool, own, home: Mutex::default(), has_home, limit, breaks: AtomicU64::new(0) }
    }

    /// Returns the pools, that of dlock's own thread first, on which renewals are made.
    pub(super) fn all(&self) -> impl Iterator<Item = Arc<RuntimePool<S>>> + use<S> {
        let home = self.home.lock().clone();
        std::iter::once(Arc::clone(&self.own)).chain(home)
    }

    /// Returns the connections of the calling runtime, if it is at home here or no other runtime is.
    fn pool_of(&self, current: &Handle) -> Option<Arc<RuntimePool<S>>> {
        if !self.has_home || current.id() == self.own.runtime.id() {
            return None;
        }
        let mut home = self.home.lock();
        match &*home {
            // One home at a time: the next runtime takes its place once it asks for nothing any more. Requests that are
            // under way keep their pool.
            Some(home) if home.runtime.id() == current.id() => Some(Arc::clone(home)),
            Some(other) if !other.is_at_rest() => None,
            _ => Some(Arc::clone(home.insert(RuntimePool::new(current.clone(), self.limit)))),
        }
    }

    /// Returns the connections of the calling runtime, without making it the home.
    fn home_of(&self, current: &Handle) -> Option<Arc<RuntimePool<S>>> {
        self.home.lock().clone().filter(|home| home.runtime.id() == current.id())
    }

    /// Decides which connection a request takes that is made now, and here.
    pub(super) fn route(&self, kind: Kind) -> Route<S> {
        let current = Handle::try_current().ok();
        let origin = match (kind, &self.given, current) {
            // The pool's time limits need the timers of the caller's runtime: where there are none, dlock's own
            // connections serve.
            (Kind::Ordinary, Some(pool), Some(_)) if keeper::may_have_timers() => {
                Some(Origin::Pool(pool.clone()))
            }
            (Kind::Ordinary, None, Some(current)) => self.pool_of(&current).map(Origin::OfRuntime),
            (Kind::Release, None, Some(current)) => {
                // Only a connection that is ready can be written to at once. All else is for dlock's own thread, which
                // is not blocked: so a release makes no runtime the home.
                let home = self.home_of(&current);
                home.and_then(|home| home.try_take(self.breaks()).map(|(c, p)| Origin::Ready(home, c, p)))
            }
            _ => None,
        };
        let origin = origin.unwrap_or_else(|| Origin::OfRuntime(Arc::clone(&self.own)));
        Route { kind, origin, joins: self.given.is_none() && kind != Kind::Renewal }
    }

    pub(super) fn breaks(&self) -> u64 {
        self.breaks.load(Ordering::Acquire)
    }

    /// Counts a connection that was found broken.
    pub(super) fn note_break(&self) {
        self.breaks.fetch_add(1, Ordering::AcqRel);
    }
}
