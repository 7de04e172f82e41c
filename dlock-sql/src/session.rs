//! Locks that a session of the database server keeps.
//!
//! All locks of a backend lie on one connection of its own, which one task on the keeper's thread drives. What the session
//! itself would let through, a second lock of the same name, is kept apart here.

mod desk;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlock_core::backend::{Attempt, Busy, Claim, ClaimRequest, Grant, Renewed, Signal, Term, Withdrawn};
use dlock_core::{Backend, Capabilities, Error, Failure, Fence, Holder, Key, Operation, Result, Token, keeper};
use tokio::sync::{mpsc, oneshot};

use crate::digest::digest;
use crate::failure::{closed, unchanged};
use crate::rows::{Conn, Server};
use desk::{Desk, Order};

/// How often waiters ask.
const POLLING: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));

type Answer<T> = Result<T, sqlx::Error>;

/// What the server calls a lock, and the row with its fence.
#[derive(Clone, Debug)]
pub struct Name {
    pub(crate) digest: [u8; 32],
    /// No text begins like this: lease rows and counters are never mixed up.
    pub(crate) row: Vec<u8>,
}

impl Name {
    fn of(place: &str, table: &str, key: &Key) -> Self {
        let digest = digest("session", &[place, table, key.as_str()]);
        let row = std::iter::once(0xff).chain(digest).collect();
        Self { digest, row }
    }
}

/// The answer to an attempt.
#[derive(Debug)]
pub struct Asked {
    /// The session that answered.
    pub(crate) session: i64,
    /// If the lock is ours.
    pub(crate) fence: Option<Fence>,
}

/// A server whose sessions keep locks.
pub trait SessionServer: Server {
    /// The backend's name.
    const SESSIONS: &'static str;

    /// Prepares a new connection. Its session, and where in the server it is.
    fn settle<'c>(
        &'c self,
        on: &'c mut Conn<Self>,
    ) -> impl Future<Output = Answer<(i64, String)>> + Send + 'c;
    /// Takes the lock if nobody has it, with a fence.
    fn ask<'c>(
        &'c self,
        on: &'c mut Conn<Self>,
        name: &'c Name,
        token: &'c Token,
        holder: &'c str,
    ) -> impl Future<Output = Answer<Asked>> + Send + 'c;
    /// Gives the lock back, if this session has it. The session.
    fn leave<'c>(
        &'c self,
        on: &'c mut Conn<Self>,
        name: &'c Name,
    ) -> impl Future<Output = Answer<i64>> + Send + 'c;
    /// The session.
    fn ping<'c>(&'c self, on: &'c mut Conn<Self>) -> impl Future<Output = Answer<i64>> + Send + 'c;
    /// Who has the lock.
    fn holder<'c>(
        &'c self,
        on: &'c mut Conn<Self>,
        name: &'c Name,
    ) -> impl Future<Output = Answer<Option<Holder>>> + Send + 'c;
}

/// Locks that a session of the database server keeps, see [`PostgresSessions`](crate::PostgresSessions) and
/// [`MysqlSessions`](crate::MysqlSessions).
///
/// A lock ends with the session, so that the locks of a process that dies are free at once. The price is that they also end
/// when only the connection dies.
///
/// # What it relies on, and what it does not guarantee
///
/// * **The connection.** It is asked for a sign of life at each third of the shortest lease of a lock that is held. When it
///   breaks, answers late or is answered by another session, it is closed and all its locks are lost. Until that is
///   noticed, up to a third of the lease and the time the answer may take, somebody else may already have the lock; fences
///   tell them apart. A lock counts as lost a lease after the last sign of life at the latest.
/// * **No proxy that shares sessions.** Behind one that pools transactions or statements there are no sessions to rely on. An
///   answer of another session is refused with [`ErrorKind::InvalidConfig`](dlock_core::ErrorKind::InvalidConfig); use lease
///   rows there.
/// * **One primary.** Sessions end at a failover, and so do the locks.
/// * **A half-open connection.** If the server does not learn that a process is gone (a cut cable), it keeps the locks until
///   its TCP keepalive notices.
///
/// Locks by sessions and locks by lease rows do not see each other. Fences are counted in the same table.
pub struct Sessions<S: SessionServer> {
    orders: mpsc::UnboundedSender<Order>,
    closed: Arc<AtomicBool>,
    server: Arc<S>,
}

impl<S: SessionServer> Sessions<S> {
    /// Opens the connection, and checks the table with the fences.
    pub(crate) async fn start(server: Arc<S>, connect_timeout: Duration) -> Result<Self> {
        let refuse = |failure| Error::new(Operation::Configure, failure).on(S::SESSIONS);
        let (orders, inbox) = mpsc::unbounded_channel();
        let desk = Desk::new(Arc::clone(&server), connect_timeout);
        keeper::runtime().map_err(refuse)?.spawn(desk.run(inbox));
        let sessions = Self { orders, closed: Arc::default(), server };
        sessions.order(Order::Open).await.map_err(|failure| refuse(unchanged(failure)))?;
        Ok(sessions)
    }

    async fn order<T>(
        &self,
        order: impl FnOnce(oneshot::Sender<Result<T, Failure>>) -> Order,
    ) -> Result<T, Failure> {
        if self.closed.load(Ordering::Acquire) {
            return Err(closed());
        }
        let (answer, told) = oneshot::channel();
        self.orders.send(order(answer)).map_err(|_| closed())?;
        told.await.unwrap_or_else(|_| Err(closed()))
    }
}

impl<S: SessionServer> Backend for Sessions<S> {
    type Claim = SessionClaim<S>;

    fn name(&self) -> &'static str {
        S::SESSIONS
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::basic().with_fencing().with_session().with_polling(POLLING.0, POLLING.1)
    }

    fn claim(&self, request: ClaimRequest) -> SessionClaim<S> {
        SessionClaim { sessions: self.clone(), request, open: false }
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Holder>, Failure> {
        let key = key.clone();
        self.order(|answer| Order::Read { key, answer }).await.map_err(unchanged)
    }

    async fn close(&self) {
        let _ = self.order(Order::Close).await;
        self.closed.store(true, Ordering::Release);
    }
}

impl<S: SessionServer> Clone for Sessions<S> {
    fn clone(&self) -> Self {
        let (orders, closed) = (self.orders.clone(), Arc::clone(&self.closed));
        Self { orders, closed, server: Arc::clone(&self.server) }
    }
}

impl<S: SessionServer> fmt::Debug for Sessions<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sessions").field(&self.server).finish()
    }
}

/// A claim on a lock that a session keeps.
pub struct SessionClaim<S: SessionServer> {
    sessions: Sessions<S>,
    request: ClaimRequest,
    /// Something of ours may be there.
    open: bool,
}

impl<S: SessionServer> Claim for SessionClaim<S> {
    async fn attempt(&mut self) -> Result<Attempt, Failure> {
        self.open = true;
        let request = self.request.clone();
        match self.sessions.order(|answer| Order::Take { request, answer }).await? {
            Some(fence) => {
                let term = Term::Session(Some(self.request.lease));
                Ok(Attempt::Granted(Grant::new(term).with_fence(fence)))
            }
            None => {
                self.open = false;
                Ok(Attempt::Busy(Busy::default()))
            }
        }
    }

    fn granted(&mut self, signal: Signal) {
        let ClaimRequest { key, token, .. } = &self.request;
        let watch = Order::Watch { key: key.clone(), token: *token, signal };
        if let Err(mpsc::error::SendError(Order::Watch { signal, .. })) = self.sessions.orders.send(watch) {
            signal.lost("the session of the lock is over");
        }
    }

    async fn renew(&mut self) -> Result<Renewed, Failure> {
        // Sessions are not renewed.
        Ok(Renewed::Extended)
    }

    async fn withdraw(&mut self) -> Result<Withdrawn, Failure> {
        let ClaimRequest { key, token, request_timeout: limit, .. } = self.request.clone();
        // Orders are carried out one after the other: what this claim has asked for comes before.
        let withdrawn = self.sessions.order(|answer| Order::Leave { key, token, limit, answer }).await?;
        self.open = false;
        Ok(withdrawn)
    }

    fn is_clean(&self) -> bool {
        !self.open
    }
}

impl<S: SessionServer> fmt::Debug for SessionClaim<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionClaim").field("key", &self.request.key).finish_non_exhaustive()
    }
}
