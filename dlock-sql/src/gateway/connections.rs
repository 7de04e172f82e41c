//! Lends the connections of one backend, and opens them.

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

use super::lane::{FRESH, IDLE, Lane};
use super::route::{Kind, Lanes, Origin, Route};
use crate::connector::{Connector, end};
use crate::driver::Conn;
use crate::failure::{closed, unchanged};
use crate::keeper_task::gone;
use crate::options::ServerOptions;
use crate::server::Server;
use crate::settings::Settings;

/// How long a request waits for a connection that is in use, while the server opens no more; and the pause between
/// looks.
const SPARE_WAIT: Duration = Duration::from_millis(200);
const LOOK: Duration = Duration::from_millis(2);

pub struct Connections<S: Server> {
    server: Arc<S>,
    connector: Arc<Connector<S>>,
    pub(super) lanes: Lanes<S>,
    /// By which the table is made, before it is looked at.
    pub(super) maker: Option<ServerOptions<S>>,
    /// One turn in the line for the pool's connections is waited for although its caller had to go.
    pool_turn: Arc<Semaphore>,
    reserve: Arc<Semaphore>,
    renewal: Arc<Semaphore>,
    /// Each lock that is held has one more.
    held: Arc<()>,
    closed: AtomicBool,
}

/// Something is held as long as this is there: the last connection is not closed.
pub(crate) struct Holding(#[expect(dead_code, reason = "it is counted")] Arc<()>);

/// A connection, and whose it is.
pub(super) enum Lent<S: Server> {
    Own(Conn<S>, Arc<Lane<S>>),
    Pooled(Box<PoolConnection<S::Database>>),
}

/// When half of what is left until then has passed.
fn half_way_to(end: Instant) -> Instant {
    let now = Instant::now();
    now + end.saturating_duration_since(now) / 2
}

/// No connection was free for so long.
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
            lanes: Lanes::new(runtime.clone(), pool, has_home, settings.connections()),
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

    /// Whether attempts use the connections of a pool, whose line is the pool's.
    pub(crate) const fn has_pool(&self) -> bool {
        self.lanes.pool.is_some()
    }

    /// How many connections attempts may use at a time.
    pub(crate) const fn limit(&self) -> usize {
        self.lanes.limit
    }

    /// How many connections there may be at the most: attempts' here and elsewhere, and one each in reserve, for
    /// renewals and for waiting.
    pub(crate) fn most(&self) -> usize {
        self.lanes.limit * 2 + 3
    }

    /// The server, the database and the table, without a password.
    pub(crate) fn address(&self) -> String {
        format!("{}/{}", S::address(&self.connector.driver), self.server.table())
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Decides which connection a request takes that is made now, and here.
    pub(crate) fn route(&self, kind: Kind) -> Route<S> {
        self.lanes.route(kind)
    }

    /// A lock is held from now on.
    pub(crate) fn hold(&self) -> Holding {
        Holding(Arc::clone(&self.held))
    }

    /// The right to use one more connection.
    async fn permit(
        &self,
        kind: Kind,
        lane: &Lane<S>,
        end: Instant,
    ) -> Result<OwnedSemaphorePermit, Failure> {
        let begun = Instant::now();
        let line = match kind {
            Kind::Ordinary => &lane.permits,
            Kind::Renewal => &self.renewal,
            Kind::Release if self.lanes.pool.is_some() => &self.reserve,
            Kind::Release => match Arc::clone(&lane.permits).try_acquire_owned() {
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

    /// A connection of dlock's own thread that works, as far as can be told.
    pub(crate) async fn connection(
        self: &Arc<Self>,
        permit: OwnedSemaphorePermit,
        patience: Duration,
    ) -> Result<(Conn<S>, OwnedSemaphorePermit), Failure> {
        self.connection_of(&self.lanes.own, permit, Instant::now() + patience).await
    }

    async fn connection_of(
        self: &Arc<Self>,
        lane: &Arc<Lane<S>>,
        permit: OwnedSemaphorePermit,
        end: Instant,
    ) -> Result<(Conn<S>, OwnedSemaphorePermit), Failure> {
        while let Some(mut idle) = lane.pop() {
            let trusted = idle.breaks == self.lanes.breaks();
            if trusted && idle.since.elapsed() < FRESH {
                return Ok((idle.connection, permit));
            }
            let now = Instant::now();
            let limit = end.saturating_duration_since(now).min(self.connector.limit) / 2;
            // One to a server that can only be read since would fail for ever.
            if matches!(by_then(now + limit, S::is_fit(&mut idle.connection)).await, Some(Ok(true))) {
                return Ok((idle.connection, permit));
            }
        }
        // Opening goes on when it takes longer than this caller can wait: the next one finds the connection.
        let (done, opened) = oneshot::channel();
        let (connections, lane, begun) = (Arc::clone(self), Arc::clone(lane), Instant::now());
        lane.runtime.clone().spawn(async move {
            let opened = connections.open(&lane).await;
            if let Err(Ok((connection, _permit))) = done.send(opened.map(|connection| (connection, permit))) {
                connections.keep(&lane, connection);
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

    async fn open(&self, lane: &Arc<Lane<S>>) -> Result<Conn<S>, Failure> {
        let mut connection = self.connector.open().await?;
        if !Arc::ptr_eq(lane, &self.lanes.own) {
            // A release is then one message, which is written by the first poll.
            let prepared = within(self.connector.limit, self.server.prepare(&mut connection)).await;
            match prepared {
                Some(prepared) => prepared.map_err(|error| unchanged(self.server.fault(error).failure))?,
                None => return Err(Failure::unavailable("a new connection does not answer")),
            }
        }
        Ok(connection)
    }

    /// Keeps a connection of dlock's own thread for the next who needs one.
    pub(crate) fn put_back(&self, connection: Conn<S>) {
        self.keep(&self.lanes.own, connection);
    }

    fn keep(&self, lane: &Lane<S>, connection: Conn<S>) {
        if !self.is_closed() {
            lane.put(connection, self.lanes.breaks());
        }
    }

    /// A connection, and the right to use it, which others may have once it is dropped.
    pub(super) async fn lend(
        self: &Arc<Self>,
        route: Route<S>,
        patience: Duration,
    ) -> Result<(Lent<S>, Option<OwnedSemaphorePermit>), Failure> {
        let pool = match route.origin {
            Origin::Ready(lane, connection, permit) => {
                return Ok((Lent::Own(connection, lane), Some(permit)));
            }
            Origin::Lane(lane) => return self.lend_from(route.kind, lane, patience).await,
            Origin::Pool(pool) => pool,
        };
        let mut acquiring = Box::pin(pool.acquire());
        match within(patience, &mut acquiring).await {
            Some(Ok(connection)) => Ok((Lent::Pooled(Box::new(connection)), None)),
            Some(Err(error)) => Err(unchanged(self.server.fault(error).failure)),
            None => {
                // The pool may be opening a connection for it, which would be lost, and begun again by the next caller.
                // It has a time of its own for that.
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
        lane: Arc<Lane<S>>,
        patience: Duration,
    ) -> Result<(Lent<S>, Option<OwnedSemaphorePermit>), Failure> {
        let begun = Instant::now();
        let end = begun + patience;
        let is_ordinary = kind == Kind::Ordinary;
        // Where the server opens none more, all that is asked takes turns on what there is; and asks for one more after
        // a while, since that may be over.
        if !(is_ordinary && self.lanes.pool.is_some())
            && self.lacks_room(&lane)
            && let Some(spare) = self.spare(end, begun + SPARE_WAIT.min(patience / 2)).await
        {
            return Ok(spare);
        }
        let opens = std::time::Instant::now();
        let is_refused = || self.connector.room.was_lacking_after(opens);
        let spare_in_turn =
            || self.spare(end, if is_ordinary { end.min(Instant::now() + SPARE_WAIT) } else { end });
        let mut lending = pin!(async {
            let permit = self.permit(kind, &lane, end).await?;
            let (connection, permit) = self.connection_of(&lane, permit, end).await?;
            Ok((Lent::Own(connection, Arc::clone(&lane)), Some(permit)))
        });
        if is_ordinary {
            return match lending.await {
                Err(failure) if is_refused() && self.lanes.pool.is_none() => {
                    spare_in_turn().await.ok_or(failure)
                }
                lent => lent,
            };
        }
        match by_then(half_way_to(end), &mut lending).await {
            Some(Ok(lent)) => Ok(lent),
            Some(Err(failure)) if is_refused() => spare_in_turn().await.ok_or(failure),
            Some(Err(failure)) => self.spare(end, Instant::now()).await.ok_or(failure),
            // What is being opened is kept for the next who needs it.
            None => match self.spare(end, Instant::now()).await {
                Some(spare) => Ok(spare),
                None => lending.await,
            },
        }
    }

    /// Whether there is none here, and the server refused to open one a moment ago.
    fn lacks_room(&self, lane: &Lane<S>) -> bool {
        self.lacks_room_now() && lane.idle().is_empty()
    }

    /// Whether the server refused to open a connection a moment ago, and has opened none since.
    pub(super) fn lacks_room_now(&self) -> bool {
        self.connector.room.is_lacking(FRESH)
    }

    /// A connection that somebody has left, when the server gives no other one; waits for it until `wait`.
    async fn spare(&self, end: Instant, wait: Instant) -> Option<(Lent<S>, Option<OwnedSemaphorePermit>)> {
        if let Some(pool) = &self.lanes.pool {
            return Some((Lent::Pooled(Box::new(pool.try_acquire()?)), None));
        }
        loop {
            for lane in self.lanes.all() {
                let Ok(permit) = Arc::clone(&lane.permits).try_acquire_owned() else { continue };
                let Some(mut idle) = lane.pop() else { continue };
                // Another one may do where this one does not answer.
                let fit = by_then(half_way_to(end), S::is_fit(&mut idle.connection)).await;
                if matches!(fit, Some(Ok(true))) {
                    return Some((Lent::Own(idle.connection, lane), Some(permit)));
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
                self.lanes.note_break();
                drop(connection);
            }
            Lent::Own(connection, lane) => self.keep(&lane, connection),
            Lent::Pooled(mut connection) if broken => connection.close_on_drop(),
            Lent::Pooled(connection) => drop(connection),
        }
    }

    /// Closes what is open, and opens no more. Waits a little for what is under way.
    pub(crate) async fn close(self: &Arc<Self>) {
        self.closed.store(true, Ordering::Release);
        if let Some(releases) = self.server.releases() {
            releases.close();
        }
        let connections = Arc::clone(self);
        let Ok(keeper) = keeper::runtime() else { return };
        let closing = keeper.spawn(async move {
            for lane in connections.lanes.all() {
                while let Some(idle) = lane.pop() {
                    end(idle.connection).await;
                }
            }
        });
        let _ = closing.await;
    }
}

/// Closes connections that nobody has needed for a while.
async fn close_idle<S: Server>(connections: Weak<Connections<S>>) {
    loop {
        sleep(IDLE / 4).await;
        let Some(connections) = connections.upgrade() else { return };
        // The server may have no other one for what is held.
        let mut keeps_one = Arc::strong_count(&connections.held) > 1;
        for lane in connections.lanes.all() {
            for idle in lane.too_old(&mut keeps_one) {
                end(idle.connection).await;
            }
        }
    }
}

impl<S: Server> fmt::Debug for Connections<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections")
            .field("server", &self.server)
            .field("idle", &self.lanes.own.idle().len())
            .finish_non_exhaustive()
    }
}
