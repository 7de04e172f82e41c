//! Which connection a request takes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dlock_core::backend::Mutex;
use dlock_core::keeper;
use sqlx::Pool;
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;

use super::lane::Lane;
use crate::driver::{Conn, Driver};

/// What a connection is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An attempt or a question, which may have to wait for its turn.
    Ordinary,
    /// A release, which has a connection in reserve.
    Release,
    /// Renewals, which have a connection of their own.
    Renewal,
}

/// Which connection a request takes. It is decided when the request is made, and anew for a question that is asked
/// again.
pub(crate) struct Route<S: Driver> {
    pub(super) kind: Kind,
    pub(super) origin: Origin<S>,
    /// Whether it may wait along with others. A pool of the user has a line of its own.
    joins: bool,
}

/// Where a request gets its connection from.
pub(super) enum Origin<S: Driver> {
    Lane(Arc<Lane<S>>),
    /// From there already: it can be written to at once.
    Ready(Arc<Lane<S>>, Conn<S>, OwnedSemaphorePermit),
    Pool(Pool<S::Database>),
}

impl<S: Driver> Route<S> {
    /// Whether the caller drives the request while he waits for its answer.
    pub(super) const fn is_driven_by_caller(&self) -> bool {
        // What is written to the wire at once is on its way whatever becomes of the caller's runtime.
        matches!((self.kind, &self.origin), (Kind::Ordinary, _) | (_, Origin::Ready(..)))
    }

    /// The lane where the request waits for a connection along with others; `None` where it goes out by itself.
    pub(crate) fn line(&self) -> Option<Arc<Lane<S>>> {
        let Origin::Lane(lane) = &self.origin else { return None };
        let is_free = self.kind == Kind::Ordinary && lane.permits.available_permits() > 0;
        (self.joins && !is_free).then(|| Arc::clone(lane))
    }
}

/// The connections that are open, by whose they are.
pub(super) struct Lanes<S: Driver> {
    /// Of the user, for attempts and questions.
    pub(super) pool: Option<Pool<S::Database>>,
    /// Those of dlock's own thread.
    pub(super) own: Arc<Lane<S>>,
    /// Those of the runtime that locks here, if it is to have any.
    home: Mutex<Option<Arc<Lane<S>>>>,
    has_home: bool,
    /// How many connections attempts may use at a time.
    pub(super) limit: usize,
    /// How often a connection was found broken: those that were idle at that time are not trusted.
    breaks: AtomicU64,
}

impl<S: Driver> Lanes<S> {
    pub(super) fn new(
        runtime: Handle,
        pool: Option<Pool<S::Database>>,
        has_home: bool,
        limit: usize,
    ) -> Self {
        let own = Lane::new(runtime, limit);
        Self { pool, own, home: Mutex::default(), has_home, limit, breaks: AtomicU64::new(0) }
    }

    /// First the one that renewals are made on.
    pub(super) fn all(&self) -> impl Iterator<Item = Arc<Lane<S>>> + use<S> {
        let home = self.home.lock().clone();
        std::iter::once(Arc::clone(&self.own)).chain(home)
    }

    /// The connections of the calling runtime, if it is at home here or nobody else is.
    fn lane_of(&self, current: &Handle) -> Option<Arc<Lane<S>>> {
        if !self.has_home || current.id() == self.own.runtime.id() {
            return None;
        }
        let mut home = self.home.lock();
        match &*home {
            Some(home) if home.runtime.id() == current.id() => Some(Arc::clone(home)),
            Some(other) if !other.is_at_rest() => None,
            _ => Some(Arc::clone(home.insert(Lane::new(current.clone(), self.limit)))),
        }
    }

    /// The same, without making this runtime a home.
    fn home_of(&self, current: &Handle) -> Option<Arc<Lane<S>>> {
        self.home.lock().clone().filter(|home| home.runtime.id() == current.id())
    }

    /// Decides which connection a request takes that is made now, and here.
    pub(super) fn route(&self, kind: Kind) -> Route<S> {
        let current = Handle::try_current().ok();
        let origin = match (kind, &self.pool, current) {
            (Kind::Ordinary, Some(pool), Some(_)) if keeper::may_have_timers() => {
                Some(Origin::Pool(pool.clone()))
            }
            (Kind::Ordinary, None, Some(current)) => self.lane_of(&current).map(Origin::Lane),
            (Kind::Release, None, Some(current)) => {
                let home = self.home_of(&current);
                home.and_then(|home| home.try_take(self.breaks()).map(|(c, p)| Origin::Ready(home, c, p)))
            }
            _ => None,
        };
        let origin = origin.unwrap_or_else(|| Origin::Lane(Arc::clone(&self.own)));
        Route { kind, origin, joins: self.pool.is_none() && kind != Kind::Renewal }
    }

    pub(super) fn breaks(&self) -> u64 {
        self.breaks.load(Ordering::Acquire)
    }

    /// A connection was found broken.
    pub(super) fn note_break(&self) {
        self.breaks.fetch_add(1, Ordering::AcqRel);
    }
}
