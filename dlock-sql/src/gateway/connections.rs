//! The lending of one backend's connections, and their opening.
//!
//! ```text
//!                  `permit`                  `connection_of`
//!     request ---------------> right to one ----------------> idle and young --------------------> lent
//!                                               |  idle for 5 s, or older than a break: `is_fit` --> lent
//!                                               |      no: closed, and the next one
//!                                               +- none left: opened, by a task of its own ------> lent
//!     lent: answered -> idle     broken -> closed, and the break counted: idle ones are tested from then on
//!     idle for 60 s: closed, but the last one while a lock is held
//! ```
//!
//! Once the server opens no more connections, requests take turns on those that are open (`spare`).

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use dlock_core::backend::{by_then, sleep, sleep_until, within};
use dlock_core::{Failure, keeper};
use sqlx::pool::{Pool, PoolConnection};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;

use super::route::{Kind, Origin, Pools, Route};
use super::runtime_pool::{FRESH, IDLE, RuntimePool};
use crate::connector::{Connector, end};
use crate::driver::Conn;
use crate::failure::{closed, unchanged};
use crate::keeper_task::gone;
use crate::options::ServerOptions;
use crate::server::Server;
use crate::settings::Settings;

/// The longest wait of a request for a connection that is in use, while the server opens no more; and the pause between
/// looks.
const SPARE_WAIT: Duration = Duration::from_millis(200);
const LOOK: Duration = Duration::from_millis(2);

pub struct Connections<S: Server> {
    server: Arc<S>,
    connector: Arc<Connector<S>>,
    pub(super) pools: Pools<S>,
    /// The options by which the table is made, before it is looked at.
    pub(super) maker: Option<ServerOptions<S>>,
    /// The right to wait in the pool's queue although the caller had to go; one waits at a time.
    pool_turn: Arc<Semaphore>,
    reserve: Arc<Semaphore>,
    renewal: Arc<Semaphore>,
    /// Cloned for each lock that is held.
    held: Arc<()>,
    closed: AtomicBool,
}

/// A lock that is held: as long as there is one, the last connection is not closed.
pub(crate) struct Holding(#[expect(dead_code, reason = "it is counted")] Arc<()>);

/// A connection, and its owner.
pub(super) enum Lent<S: Server> {
    Own(Conn<S>, Arc<RuntimePool<S>>),
    Pooled(Box<PoolConnection<S::Database>>),
}

/// Returns the moment at which half of the time that is left until `end` will have passed.
fn half_way_to(end: Instant) -> Instant {
    let now = Instant::now();
    now + end.saturating_duration_since(now) / 2
}

/// Reports that no connection was free for so long.
pub(super) fn busy(patience: Duration) -> Failure {
    Failure::unavailable(format!(
        "all connections of this process for locks were busy for {patience:?}; allow more of them"
    ))
}

impl<S: Server> Connections<S> {
    pub(crate) fn start(
        server: Arc<S>,
        connector: Arc<Connector<S>>,
        pool: Option<Pool<S::Database>>,
        has_home: bool,
        settings: &Settings,
        maker: Option<ServerOptions<S>>,
    ) -> Result<Arc<Self>, Failure> {
        let runtime = keeper::runtime()?;
        let connections = Arc::new(Self {
            server,
            connector,
            pools: Pools::new(runtime.clone(), pool, has_home, settings.connections()),
            maker,
            pool_turn: Arc::new(Semaphore::new(1)),
            reserve: Arc::new(Semaphore::new(1)),
            renewal: Arc::new(Semaphore::new(1)),
            held: Arc::default(),
            closed: AtomicBool::new(false),
        });
        runtime.spawn(close_idle(Arc::downgrade(&connections)));
        Ok(connections)
    }

    pub(crate) fn server(&self) -> &Arc<S> {
        &self.server
    }

    pub(crate) fn connector(&self) -> &Arc<Connector<S>> {
        &self.connector
    }

    /// Returns `true` if attempts use the connections of a pool, which has a queue of its own.
    pub(crate) const fn has_pool(&self) -> bool {
        self.pools.given.is_some()
    }

    /// Returns how many connections attempts may use at a time.
    pub(crate) const fn limit(&self) -> usize {
        self.pools.limit
    }

    /// Returns the largest number of connections: those of attempts here and elsewhere, and one each in reserve, for
    /// renewals and for waiting.
    pub(crate) fn most(&self) -> usize {
        self.pools.limit * 2 + 3
    }

    /// Returns the address of server, database and table, without a password.
    pub(crate) fn address(&self) -> String {
        format!("{}/{}", S::address(&self.connector.driver), self.server.table())
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Decides which connection a request takes that is made now, and here.
    pub(crate) fn route(&self, kind: Kind) -> Route<S> {
        self.pools.route(kind)
    }

    /// Counts a lock that is held from now on.
    pub(crate) fn hold(&self) -> Holding {
        Holding(Arc::clone(&self.held))
    }

    /// Waits for the right to use one more connection.
    async fn permit(
        &self,
        kind: Kind,
        runtime_pool: &RuntimePool<S>,
        end: Instant,
    ) -> Result<OwnedSemaphorePermit, Failure> {
        let begun = Instant::now();
        let line = match kind {
            // Attempts may use all permits of the pool and wait for them; what ends or keeps a lock must not wait
            // behind them.
            Kind::Ordinary => &runtime_pool.permits,
            Kind::Renewal => &self.renewal,
            // With a pool of the user, these permits are for attempts which that pool cannot serve; a release does not
            // compete with them.
            Kind::Release if self.pools.given.is_some() => &self.reserve,
            Kind::Release => match Arc::clone(&runtime_pool.permits).try_acquire_owned() {
                Ok(permit) => return Ok(permit),
                Err(_) => &self.reserve,
            },
        };
        match by_then(end, Arc::clone(line).acquire_owned()).await {
            Some(Ok(permit)) => Ok(permit),
            Some(Err(_)) => Err(closed()),
            None => Err(busy(end.saturating_duration_since(begun))),
        }
    }

    /// Returns a connection of dlock's own thread that works, as far as is known.
    pub(crate) async fn connection(
        self: &Arc<Self>,
        permit: OwnedSemaphorePermit,
        patience: Duration,
    ) -> Result<(Conn<S>, OwnedSemaphorePermit), Failure> {
        self.connection_of(&self.pools.own, permit, Instant::now() + patience).await
    }

    async fn connection_of(
        self: &Arc<Self>,
        runtime_pool: &Arc<RuntimePool<S>>,
        permit: OwnedSemaphorePermit,
        end: Instant,
    ) -> Result<(Conn<S>, OwnedSemaphorePermit), Failure> {
        // The connection that was put back last comes first: it is the least likely to have been closed meanwhile.
        while let Some(mut idle) = runtime_pool.pop() {
            let trusted = idle.breaks == self.pools.breaks();
            if trusted && idle.since.elapsed() < FRESH {
                return Ok((idle.connection, permit));
            }
            let now = Instant::now();
            // Half of what is left, so that there is time to open one where this does not answer.
            let limit = end.saturating_duration_since(now).min(self.connector.limit) / 2;
            // A connection to a server that has become read-only would fail for ever.
            if matches!(by_then(now + limit, S::is_fit(&mut idle.connection)).await, Some(Ok(true))) {
                return Ok((idle.connection, permit));
            }
        }
        // Opening goes on when it takes longer than this caller can wait: the next one finds the connection. The permit
        // goes along, and comes back with the answer, so that no more are opened than may be used.
        let (done, opened) = oneshot::channel();
        let (connections, runtime_pool, begun) = (Arc::clone(self), Arc::clone(runtime_pool), Instant::now());
        runtime_pool.runtime.clone().spawn(async move {
            let opened = connections.open(&runtime_pool).await;
            if let Err(Ok((connection, _permit))) = done.send(opened.map(|connection| (connection, permit))) {
                connections.keep(&runtime_pool, connection);
            }
        });
        match by_then(end, opened).await {
            Some(opened) => opened.unwrap_or_else(|_| Err(unchanged(gone()))),
            None => Err(Failure::unavailable(format!(
                "no connection within {:?}; it is still being opened",
                end.saturating_duration_since(begun)
            ))),
        }
    }

    async fn open(&self, runtime_pool: &Arc<RuntimePool<S>>) -> Result<Conn<S>, Failure> {
        let mut connection = self.connector.open().await?;
        // Connections of a caller's runtime may carry releases that the caller drives.
        if !Arc::ptr_eq(runtime_pool, &self.pools.own) {
            // With its statements prepared, a release is one message, which is written by the first poll.
            let prepared = within(self.connector.limit, self.server.prepare(&mut connection)).await;
            match prepared {
                Some(prepared) => prepared.map_err(|error| unchanged(self.server.fault(error).failure))?,
                None => return Err(Failure::unavailable("a new connection does not answer")),
            }
        }
        Ok(connection)
    }

    /// Keeps a connection of dlock's own thread for the next request.
    pub(crate) fn put_back(&self, connection: Conn<S>) {
        self.keep(&self.pools.own, connection);
    }

    fn keep(&self, runtime_pool: &RuntimePool<S>, connection: Conn<S>) {
        if !self.is_closed() {
            runtime_pool.put(connection, self.pools.breaks());
        }
    }

    /// Lends a connection, with the right to use it, which others may have once it is dropped.
    pub(super) async fn lend(
        self: &Arc<Self>,
        route: Route<S>,
        patience: Duration,
    ) -> Result<(Lent<S>, Option<OwnedSemaphorePermit>), Failure> {
        let pool = match route.origin {
            Origin::Ready(runtime_pool, connection, permit) => {
                return Ok((Lent::Own(connection, runtime_pool), Some(permit)));
            }
            Origin::OfRuntime(runtime_pool) => {
                return self.lend_from(route.kind, runtime_pool, patience).await;
            }
            Origin::Pool(pool) => pool,
        };
        let mut acquiring = Box::pin(pool.acquire());
        match within(patience, &mut acquiring).await {
            Some(Ok(connection)) => Ok((Lent::Pooled(Box::new(connection)), None)),
            Some(Err(error)) => Err(unchanged(self.server.fault(error).failure)),
            None => {
                // The pool may be opening a connection for it, which would be lost, and begun again by the next caller.
                // The pool has a time limit of its own for that.
                if let Ok(only) = Arc::clone(&self.pool_turn).try_acquire_owned() {
                    tokio::spawn(async move {
                        drop(acquiring.await);
                        drop(only);
                    });
                }
                Err(Failure::unavailable(format!(
                    "the pool had no free connection within {patience:?}; locks that are held are not affected"
                )))
            }
        }
    }

    pub(super) async fn lend_from(
        self: &Arc<Self>,
        kind: Kind,
        runtime_pool: Arc<RuntimePool<S>>,
        patience: Duration,
    ) -> Result<(Lent<S>, Option<OwnedSemaphorePermit>), Failure> {
        let begun = Instant::now();
        let end = begun + patience;
        let is_ordinary = kind == Kind::Ordinary;
        // If the server opens no more, all requests take turns on what there is; each asks for one more after a while,
        // since that may be over.
        if !(is_ordinary && self.pools.given.is_some())
            && self.lacks_room(&runtime_pool)
            && let Some(spare) = self.spare(end, begun + SPARE_WAIT.min(patience / 2)).await
        {
            return Ok(spare);
        }
        // Only a refusal from here on makes this request wait for what others leave.
        let opens = std::time::Instant::now();
        let is_refused = || self.connector.room.was_lacking_after(opens);
        let spare_in_turn =
            || self.spare(end, if is_ordinary { end.min(Instant::now() + SPARE_WAIT) } else { end });
        let mut lending = pin!(async {
            let permit = self.permit(kind, &runtime_pool, end).await?;
            let (connection, permit) = self.connection_of(&runtime_pool, permit, end).await?;
            Ok((Lent::Own(connection, Arc::clone(&runtime_pool)), Some(permit)))
        });
        // An attempt waits for its permit to the end: it may be late, and its caller tries again.
        if is_ordinary {
            return match lending.await {
                Err(failure) if is_refused() && self.pools.given.is_none() => {
                    spare_in_turn().await.ok_or(failure)
                }
                lent => lent,
            };
        }
        // A release or a renewal has half of its time to get a connection in the usual way. After that any idle one
        // will do.
        match by_then(half_way_to(end), &mut lending).await {
            Some(Ok(lent)) => Ok(lent),
            Some(Err(failure)) if is_refused() => spare_in_turn().await.ok_or(failure),
            Some(Err(failure)) => self.spare(end, Instant::now()).await.ok_or(failure),
            // The connection that is being opened is kept for the next request. Without a spare one there is nothing
            // better than to go on waiting.
            None => match self.spare(end, Instant::now()).await {
                Some(spare) => Ok(spare),
                None => lending.await,
            },
        }
    }

    /// Returns `true` if no connection is idle here, and the server refused to open one a moment ago.
    fn lacks_room(&self, runtime_pool: &RuntimePool<S>) -> bool {
        self.lacks_room_now() && runtime_pool.idle().is_empty()
    }

    /// Returns `true` if the server refused to open a connection a moment ago, and has opened none since.
    pub(super) fn lacks_room_now(&self) -> bool {
        self.connector.room.is_lacking(FRESH)
    }

    /// Returns a connection that another request has left, when the server gives no other one; waits for it until
    /// `wait`.
    async fn spare(&self, end: Instant, wait: Instant) -> Option<(Lent<S>, Option<OwnedSemaphorePermit>)> {
        // The pool opens connections of its own where it may: only an idle one can be had here.
        if let Some(pool) = &self.pools.given {
            return Some((Lent::Pooled(Box::new(pool.try_acquire()?)), None));
        }
        loop {
            for runtime_pool in self.pools.all() {
                // The permit first, as everywhere: a connection without one would be used beyond the limit.
                let Ok(permit) = Arc::clone(&runtime_pool.permits).try_acquire_owned() else { continue };
                let Some(mut idle) = runtime_pool.pop() else { continue };
                // Another one may do where this one does not answer, so that it has half of the time only.
                let fit = by_then(half_way_to(end), S::is_fit(&mut idle.connection)).await;
                if matches!(fit, Some(Ok(true))) {
                    return Some((Lent::Own(idle.connection, runtime_pool), Some(permit)));
                }
            }
            if Instant::now() >= wait {
                return None;
            }
            sleep_until(Instant::now() + LOOK).await;
        }
    }

    pub(super) fn done_with(&self, lent: Lent<S>, broken: bool) {
        match lent {
            Lent::Own(connection, _) if broken => {
                // The connections that were idle when this one broke may have broken with it: each is tested before its
                // next use.
                self.pools.note_break();
                drop(connection);
            }
            Lent::Own(connection, runtime_pool) => self.keep(&runtime_pool, connection),
            Lent::Pooled(mut connection) if broken => connection.close_on_drop(),
            Lent::Pooled(connection) => drop(connection),
        }
    }

    /// Refuses requests from now on, and closes the idle connections. A connection in use is dropped when its request
    /// has ended.
    pub(crate) async fn close(self: &Arc<Self>) {
        // The flag first: what is put back from now on is dropped instead of kept.
        self.closed.store(true, Ordering::Release);
        if let Some(releases) = self.server.releases() {
            releases.close();
        }
        let connections = Arc::clone(self);
        // By dlock's own thread, which ends connections in order whatever becomes of the caller.
        let Ok(keeper) = keeper::runtime() else { return };
        let closing = keeper.spawn(async move {
            for runtime_pool in connections.pools.all() {
                while let Some(idle) = runtime_pool.pop() {
                    end(idle.connection).await;
                }
            }
        });
        let _ = closing.await;
    }
}

/// Closes connections that were not needed for a while.
async fn close_idle<S: Server>(connections: Weak<Connections<S>>) {
    loop {
        sleep(IDLE / 4).await;
        // The last handle is gone: so is the need for this task.
        let Some(connections) = connections.upgrade() else { return };
        // The server may have no other connection for the renewals of what is held.
        let mut keeps_one = Arc::strong_count(&connections.held) > 1;
        for runtime_pool in connections.pools.all() {
            for idle in runtime_pool.too_old(&mut keeps_one) {
                end(idle.connection).await;
            }
        }
    }
}

impl<S: Server> fmt::Debug for Connections<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections")
            .field("server", &self.server)
            .field("idle", &self.pools.own.idle().len())
            .finish_non_exhaustive()
    }
}
