//! The connections of one backend, and what is done on them.
//!
//! They are opened when they are needed and belong to dlock's own thread. An attempt or a question is driven by the caller for
//! as long as he waits, and then by that thread; releases and renewals by that thread alone, since they must not wait for a
//! runtime that is blocked. So all are carried out to their end, and their outcome noted, whatever becomes of the caller.
//! With a pool of the user, attempts go over its connections, and what must not wait for one (renewals, releases) over our
//! own.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use dlock_core::backend::Backoff;
use dlock_core::{ErrorKind, Failure, keeper};
use sqlx::pool::{Pool, PoolConnection};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;

use super::driven::{Caller, Driven, gone, unless_late};
use super::progress::Progress;
use super::steps::{Mark, Step};
use crate::connector::{Connector, end};
use crate::failure::{closed, unchanged};
use crate::server::{Conn, Fault, Server};
use crate::settings::Settings;

/// A connection that was idle for this long is tested before it is used.
const FRESH: Duration = Duration::from_secs(5);
/// A connection that was idle for this long is closed.
const IDLE: Duration = Duration::from_secs(60);
/// The pauses before a statement is tried again that got into the way of another.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

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

/// How long a request may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// To get a connection.
    pub(crate) patience: Duration,
    /// To be answered. Afterwards others need not wait for this connection any more.
    pub(crate) answer: Duration,
    /// To be heard of at all.
    pub(crate) last: Duration,
}

impl Limits {
    pub(crate) fn of(answer: Duration, last: Duration) -> Self {
        // So that a server that is away is seen to be away, and not taken for one that may have got the request.
        Self { patience: answer * 3 / 4, answer, last: last.max(answer) }
    }
}

pub struct Connections<S: Server> {
    server: Arc<S>,
    connector: Arc<Connector<S>>,
    /// Of the user, for attempts and questions.
    pool: Option<Pool<S::Database>>,
    ordinary: Arc<Semaphore>,
    /// One turn in the line for the pool's connections is waited for although its caller had to go.
    turn: Arc<Semaphore>,
    reserve: Arc<Semaphore>,
    renewal: Arc<Semaphore>,
    idle: Mutex<Vec<Idle<S>>>,
    /// How often a connection was found broken: those that were idle at that time are not trusted.
    breaks: AtomicU64,
    closed: AtomicBool,
}

struct Idle<S: Server> {
    connection: Conn<S>,
    since: Instant,
    breaks: u64,
}

/// A connection, and whose it is.
enum Lent<S: Server> {
    Own(Conn<S>),
    Pooled(Box<PoolConnection<S::Database>>),
}

impl<S: Server> Connections<S> {
    pub(crate) fn start(
        server: Arc<S>,
        connector: Arc<Connector<S>>,
        pool: Option<Pool<S::Database>>,
        settings: &Settings,
    ) -> Result<Arc<Self>, Failure> {
        let connections = Arc::new(Self {
            server,
            connector,
            pool,
            ordinary: Arc::new(Semaphore::new(settings.connections())),
            turn: Arc::new(Semaphore::new(1)),
            reserve: Arc::new(Semaphore::new(1)),
            renewal: Arc::new(Semaphore::new(1)),
            idle: Mutex::default(),
            breaks: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        });
        keeper::runtime()?.spawn(close_idle(Arc::downgrade(&connections)));
        Ok(connections)
    }

    pub(crate) fn server(&self) -> &Arc<S> {
        &self.server
    }

    /// The server, the database and the table, without a password.
    pub(crate) fn address(&self) -> String {
        format!("{}/{}", S::address(&self.connector.driver), self.server.table())
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Idle<S>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a step done, whatever becomes of the caller.
    pub(crate) fn begin<P: Step<S>>(
        self: &Arc<Self>,
        kind: Kind,
        step: P,
        limits: Limits,
        progress: Arc<Progress>,
    ) -> Result<Driven<P::Reply>, Failure> {
        let caller = Caller::new(kind == Kind::Ordinary);
        let connections = Arc::clone(self);
        let pool = self.pool.clone().filter(|_| kind == Kind::Ordinary).zip(Handle::try_current().ok());
        let request =
            Request { connections, kind, step, limits, progress: Pending(progress), caller: caller.clone() };
        // The pool's connections may belong to the caller's runtime.
        let (pool, runtime) = match pool {
            Some((pool, runtime)) => (Some(pool), runtime),
            None => (None, keeper::runtime()?.clone()),
        };
        Ok(Driven::new(request.carry_out(pool), runtime, caller))
    }

    /// The answer to a step within `limit`.
    pub(crate) async fn within<P: Step<S>>(
        self: &Arc<Self>,
        kind: Kind,
        step: P,
        limit: Duration,
    ) -> Result<P::Reply, Failure> {
        let told = self.begin(kind, step, Limits::of(limit, limit), Arc::new(Progress::new()))?;
        match tokio::time::timeout(limit, told).await {
            Ok(answer) => answer,
            Err(_) => Err(Failure::unknown(format!("no answer within {limit:?}"))),
        }
    }

    /// The answer to a question or order that is no lock's.
    pub(crate) async fn ask<P: Step<S>>(
        self: &Arc<Self>,
        step: P,
        limit: Duration,
    ) -> Result<P::Reply, Failure> {
        self.within(Kind::Ordinary, step, limit).await
    }

    /// Checks the table and the rights, on a connection of our own.
    pub(crate) async fn verify(self: &Arc<Self>) -> Result<(), Failure> {
        let mark = self.within(Kind::Renewal, Mark(), super::QUESTION).await.map_err(unchanged)?;
        crate::options::verify(mark.as_deref(), self.server.table())
    }

    /// The right to use one more connection.
    async fn permit(&self, kind: Kind, patience: Duration) -> Result<OwnedSemaphorePermit, Failure> {
        let line = match kind {
            Kind::Ordinary => &self.ordinary,
            Kind::Renewal => &self.renewal,
            Kind::Release if self.pool.is_some() => &self.reserve,
            Kind::Release => match Arc::clone(&self.ordinary).try_acquire_owned() {
                Ok(permit) => return Ok(permit),
                Err(_) => &self.reserve,
            },
        };
        match tokio::time::timeout(patience, Arc::clone(line).acquire_owned()).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) => Err(closed()),
            Err(_) => Err(Failure::unavailable(format!(
                "all connections of this process for locks were busy for {patience:?}; allow more of them"
            ))),
        }
    }

    /// A connection that works, as far as can be told.
    pub(crate) async fn connection(
        self: &Arc<Self>,
        permit: Option<OwnedSemaphorePermit>,
        patience: Duration,
    ) -> Result<(Conn<S>, Option<OwnedSemaphorePermit>), Failure> {
        let end = Instant::now() + patience;
        while let Some(mut idle) = self.pop() {
            let trusted = idle.breaks == self.breaks.load(Ordering::Acquire);
            if trusted && idle.since.elapsed() < FRESH {
                return Ok((idle.connection, permit));
            }
            let limit = end.saturating_duration_since(Instant::now()).min(self.connector.limit) / 2;
            // One to a server that can only be read since would fail for ever.
            if matches!(tokio::time::timeout(limit, S::is_fit(&mut idle.connection)).await, Ok(Ok(true))) {
                return Ok((idle.connection, permit));
            }
        }
        // Opening goes on when it takes longer than this caller can wait: the next one finds the connection.
        let (done, opened) = oneshot::channel();
        let connections = Arc::clone(self);
        tokio::spawn(async move {
            let opened = connections.connector.open().await;
            if let Err(Ok((connection, _permit))) = done.send(opened.map(|connection| (connection, permit))) {
                connections.put_back(connection);
            }
        });
        match tokio::time::timeout(end.saturating_duration_since(Instant::now()), opened).await {
            Ok(opened) => opened.unwrap_or_else(|_| Err(unchanged(gone()))),
            Err(_) => Err(Failure::unavailable(format!(
                "no connection within {patience:?}; it is still being opened"
            ))),
        }
    }

    fn pop(&self) -> Option<Idle<S>> {
        self.idle().pop()
    }

    pub(crate) fn put_back(&self, connection: Conn<S>) {
        if !self.closed.load(Ordering::Acquire) {
            let breaks = self.breaks.load(Ordering::Acquire);
            self.idle().push(Idle { connection, since: Instant::now(), breaks });
        }
    }

    /// A connection, and the right to use it, which others may have once it is dropped.
    async fn lend(
        self: &Arc<Self>,
        kind: Kind,
        pool: Option<&Pool<S::Database>>,
        patience: Duration,
    ) -> Result<(Lent<S>, Option<OwnedSemaphorePermit>), Failure> {
        let Some(pool) = pool else {
            let begun = Instant::now();
            let permit = self.permit(kind, patience).await?;
            let left = patience.saturating_sub(begun.elapsed());
            let (connection, permit) = self.connection(Some(permit), left).await?;
            return Ok((Lent::Own(connection), permit));
        };
        let mut turn = Box::pin(pool.acquire());
        match tokio::time::timeout(patience, &mut turn).await {
            Ok(Ok(connection)) => Ok((Lent::Pooled(Box::new(connection)), None)),
            Ok(Err(error)) => Err(unchanged(self.server.fault(error).failure)),
            Err(_) => {
                // The pool may be opening a connection for it, which would be lost, and begun again by the next caller. It
                // has a time of its own for that.
                if let Ok(only) = Arc::clone(&self.turn).try_acquire_owned() {
                    tokio::spawn(async move {
                        drop(turn.await);
                        drop(only);
                    });
                }
                Err(Failure::unavailable(format!(
                    "the pool had no free connection within {patience:?}; locks that are held are not affected"
                )))
            }
        }
    }

    fn done_with(&self, lent: Lent<S>, broken: bool) {
        match lent {
            Lent::Own(connection) if broken => {
                self.breaks.fetch_add(1, Ordering::AcqRel);
                drop(connection);
            }
            Lent::Own(connection) => self.put_back(connection),
            Lent::Pooled(mut connection) if broken => connection.close_on_drop(),
            Lent::Pooled(connection) => drop(connection),
        }
    }

    /// Closes what is open, and opens no more. Waits a little for what is under way.
    pub(crate) async fn close(self: &Arc<Self>) {
        self.closed.store(true, Ordering::Release);
        let connections = Arc::clone(self);
        let Ok(keeper) = keeper::runtime() else { return };
        let closing = keeper.spawn(async move {
            while let Some(idle) = connections.pop() {
                end(idle.connection).await;
            }
        });
        let _ = closing.await;
    }
}

/// Closes connections that nobody has needed for a while.
async fn close_idle<S: Server>(connections: Weak<Connections<S>>) {
    loop {
        tokio::time::sleep(IDLE / 4).await;
        let Some(connections) = connections.upgrade() else { return };
        let old: Vec<Idle<S>> =
            connections.idle().extract_if(.., |idle| idle.since.elapsed() >= IDLE).collect();
        for idle in old {
            end(idle.connection).await;
        }
    }
}

/// A request that is lost when it is dropped.
struct Pending(Arc<Progress>);

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.lose();
    }
}

struct Request<S: Server, P: Step<S>> {
    connections: Arc<Connections<S>>,
    kind: Kind,
    step: P,
    limits: Limits,
    progress: Pending,
    caller: Caller,
}

impl<S: Server, P: Step<S>> Request<S, P> {
    async fn carry_out(self, pool: Option<Pool<S::Database>>) -> Result<P::Reply, Failure> {
        let Self { connections, kind, step, limits, progress, caller } = self;
        let result = async {
            if connections.closed.load(Ordering::Acquire) {
                return Err(closed());
            }
            let (mut lent, permit) = connections.lend(kind, pool.as_ref(), limits.patience).await?;
            if !progress.0.send() {
                connections.done_with(lent, false);
                return Err(Failure::unavailable("nobody wants it any more"));
            }
            let done = connections.perform(&step, &mut lent, limits, permit, &caller).await;
            let broken = matches!(&done, Err(fault) if fault.broken);
            connections.done_with(lent, broken);
            done.map_err(|fault| fault.failure)
        }
        .await;
        match &result {
            Err(failure) if failure.kind() == ErrorKind::Unknown => progress.0.lose(),
            _ => progress.0.settle(),
        }
        result
    }
}

impl<S: Server> Connections<S> {
    /// Performs the step, again if it got into the way of another.
    async fn perform<P: Step<S>>(
        &self,
        step: &P,
        lent: &mut Lent<S>,
        limits: Limits,
        mut permit: Option<OwnedSemaphorePermit>,
        caller: &Caller,
    ) -> Result<P::Reply, Fault> {
        let begun = Instant::now();
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
        loop {
            let (on, is_pooled): (&mut Conn<S>, bool) = match lent {
                Lent::Own(connection) => (connection, false),
                Lent::Pooled(connection) => (connection, true),
            };
            let answer = {
                let performing = async {
                    if is_pooled && !P::CHECKS {
                        S::check_pooled(on).await?;
                    }
                    step.perform(&self.server, on).await
                };
                tokio::pin!(performing);
                match unless_late(performing.as_mut(), begun + limits.answer, caller).await {
                    Some(answer) => Some(answer),
                    None => {
                        // Others may need the turn; this one stays for what comes of it.
                        drop(permit.take());
                        let left = limits.last.saturating_sub(begun.elapsed());
                        tokio::time::timeout(left, performing).await.ok()
                    }
                }
            };
            let fault = match answer {
                Some(Ok(reply)) => return Ok(reply),
                Some(Err(error)) => self.server.fault(error),
                None => {
                    let failure = Failure::unknown(format!("no answer within {:?}", limits.last));
                    return Err(Fault { failure, again: false, broken: true });
                }
            };
            if !fault.again || !caller.waits() || begun.elapsed() >= limits.answer / 2 {
                return Err(fault);
            }
            tokio::time::sleep(backoff.next_pause()).await;
        }
    }
}

impl<S: Server> fmt::Debug for Connections<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections")
            .field("server", &self.server)
            .field("idle", &self.idle().len())
            .finish_non_exhaustive()
    }
}
