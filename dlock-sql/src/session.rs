//! Locks that live as long as a connection: names that a session locks, and rows that a transaction locks.
//!
//! A [`ConnectionActor`](actor::ConnectionActor) is one connection with the locks on it, driven by a task on the
//! keeper's thread. A second lock of the same name, which the session itself would let through, is refused there.
//! Between two calls a claim is in one of these states:
//!
//! | state | `handle` | in the queue | left by |
//! |---|---|---|---|
//! | out | none | no | an attempt; `changed`, which waits in the queue |
//! | waiting | none | yes | an attempt; a withdrawal, which waits until the queue was left |
//! | asked, not known | some | perhaps | the next attempt, which finds what was taken; a withdrawal |
//! | granted | some | no | a withdrawal; dropping the claim, which sends the release and waits for no answer |
//!
//! A refused attempt puts its connection back and leaves the claim out or waiting.

mod actor;
mod administration;
mod command;
mod driving;
mod handles;
mod held;
mod hold_signal;
pub(crate) mod name;
#[cfg(feature = "tx")]
mod on_connection;
pub(crate) mod protocol;
mod queue;
pub(crate) mod session_server;
mod statement;
mod steps;
pub(crate) mod strategy;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{
    Administration, Announcements, Attempt, Busy, Claim, ClaimRequest, Finding, Grant, LockId, Mode,
    Occupancy, PREFERENCE, Renewed, RequestClock, ServerAddress, Signal, Validity, Withdrawal, within,
};
use dlock_core::{Backend, Capabilities, Error, Failure, Holder, Key, Operation, Result, keeper};

use crate::diagnosis;
use crate::failure::unchanged;
use crate::limits::QUESTION;
use crate::options::ServerOptions;
use crate::protocol::Taken;
use crate::question::asked;
use crate::server::Server;
use crate::stored;
use tokio::time::Instant;

use command::{Command, Downgrade, Release, Take};
use handles::{ConnectionHandle, ConnectionHandles};
use hold_signal::HoldSignal;
#[cfg(feature = "tx")]
pub use on_connection::ConnectionLock;
use protocol::{POLLING, SESSION_IDLE_TIMEOUT};
use queue::{Queue, Waiting};
use session_server::SessionServer;
use strategy::{Others, Strategy};

/// The pause between the attempts of a waiter that is notified of releases, in case a notification is lost.
const SAFETY_NET: Duration = Duration::from_secs(1);
/// The longest time that a reader's release waits until its claim has left the queue in which it waited for the lock.
const LEAVING: Duration = Duration::from_millis(150);
/// The time for the questions at the start, which are three.
const STARTING: Duration = Duration::from_secs(15);

/// Locks that live as long as a connection to the database: see [`PostgresSessions`](crate::PostgresSessions),
/// [`PostgresRowLocks`](crate::PostgresRowLocks), [`MysqlSessions`](crate::MysqlSessions) and
/// [`MysqlRowLocks`](crate::MysqlRowLocks).
///
/// A lock ends with its connection, so that the locks of a process that dies are free at once. The price is that they
/// also end when only the connection dies.
///
/// # What it relies on, and what it does not guarantee
///
/// * **The connection.** It is asked for a sign of life at each sixth of the shortest lease of a lock on it, at least
///   every 5 s. A lock for which there was none for a third of its lease is [suspect](dlock_core::ErrorKind::Suspect);
///   when the connection breaks, or is answered by another session, it is closed and all its locks are lost. Until that
///   is noticed another process may already have the lock; fences distinguish the two. A lock counts as lost a lease
///   after the last sign of life at the latest.
/// * **Silence.** The server is asked to end a session that says nothing for a minute (PostgreSQL from 14 on:
///   `idle_session_timeout`; MariaDB, MySQL: `wait_timeout`), so that a host that is cut off does not keep its locks,
///   and not before, whatever limits it has for others. A server that ends transactions sooner all the same (Percona's
///   `kill_idle_transaction`) is refused for locked rows, with
///   [`ErrorKind::InvalidConfig`](dlock_core::ErrorKind::InvalidConfig). No lock counts as held for longer than a
///   minute after the last sign of life, whatever the lease.
/// * **No proxy that shares sessions.** Behind a proxy that pools transactions or statements there are no sessions to
///   rely on. Such a proxy is refused with [`ErrorKind::InvalidConfig`](dlock_core::ErrorKind::InvalidConfig) as soon
///   as two connections, or two statements on one, show it; use lease rows there.
/// * **One primary.** Connections end at a failover, and so do the locks.
///
/// # Readers
///
/// Sessions of PostgreSQL and locked rows have readers ([`Lock::read`](dlock_core::Lock::read)); sessions of MariaDB
/// and MySQL refuse them, since `GET_LOCK` has one holder. Readers and writers that wait for a free lock are served in
/// the order in which they came to the server, but for readers that have waited for 10 s.
///
/// # Beside other ways
///
/// A key that is held by a session, as a locked row or as a lease row is refused with
/// [`ErrorKind::Conflict`](dlock_core::ErrorKind::Conflict) to claims in another of these ways, unless fences are
/// switched off. When it is free, the next claim decides on its way.
///
/// # Administration
///
/// [`Locks::force_release`](dlock_core::Locks::force_release) ends the connection that keeps the lock
/// (`pg_terminate_backend`, `KILL`), and with it **all** locks of that process by sessions; a locked row has a
/// connection of its own. It needs the right to end the session.
/// [`Locks::force_release_of`](dlock_core::Locks::force_release_of) looks which session keeps the lock and since which
/// grant, and then ends that session: no server does both in one step. Another session that is granted the lock in
/// between keeps it; what the session itself has let go by then and taken anew is lost with it. On MariaDB and MySQL
/// [`Locks::holders`](dlock_core::Locks::holders) lists the locked rows of those sessions that the user may see: its
/// own, or all with the right `PROCESS`.
pub struct Sessions<M: Strategy> {
    handles: Arc<ConnectionHandles<M>>,
    queue: Arc<Queue<M>>,
    /// Connections for questions, and for what must not be part of the transaction that keeps a lock.
    others: Others<M::Server>,
}

impl<M: Strategy> Sessions<M> {
    /// Connects to the server that `url` names, as [`LeaseRows::connect`](crate::LeaseRows::connect) does; the fences
    /// are counted in that table too.
    ///
    /// # Errors
    ///
    /// As [`ServerOptions::from_url`] and [`ServerOptions::connect`]; also
    /// [`ErrorKind::InvalidConfig`](dlock_core::ErrorKind::InvalidConfig) behind a proxy that shares sessions.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::with_options(ServerOptions::from_url(url)?).await
    }

    /// Creates locks with options. Connections that keep locks are used for nothing else: of a pool in the options only
    /// the settings are used, and what it does to new connections.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn with_options(options: ServerOptions<M::Server>) -> Result<Self> {
        let starting = async move {
            let started = Self::start(options.open(false).await?);
            started.handles.ready(STARTING).await?;
            Ok(started)
        };
        keeper::anywhere(starting).await.and_then(|started| started).map_err(Self::refused)
    }

    /// Creates locks without a connection: they connect, and check the table and what is between here and the server,
    /// when they are first used. As [`ServerOptions::build`] otherwise.
    ///
    /// # Errors
    ///
    /// As [`ServerOptions::build`].
    pub fn build(options: ServerOptions<M::Server>) -> Result<Self> {
        options.open_later(false).map(Self::start).map_err(Self::refused)
    }

    fn refused(failure: Failure) -> Error {
        Error::new(Operation::Configure, unchanged(failure)).on(M::NAME)
    }

    fn start(others: Others<M::Server>) -> Self {
        let queue = Queue::new(Arc::clone(&others));
        let handles = Arc::new(ConnectionHandles::new(Arc::clone(&others)));
        Self { handles, queue, others }
    }
}

impl<M: Strategy> Backend for Sessions<M> {
    type Claim = SessionClaim<M>;

    fn name(&self) -> &'static str {
        M::NAME
    }

    fn capabilities(&self) -> Capabilities {
        let basic = Capabilities::basic().with_session();
        let basic = if self.others.server().counts() { basic.with_fencing() } else { basic };
        let basic = if M::READS { basic.with_sharing() } else { basic };
        let basic = if M::DOWNGRADES { basic.with_downgrading() } else { basic };
        let is_told = self.others.server().releases().is_some();
        let basic = if is_told { basic.with_announcements() } else { basic };
        basic.with_polling(POLLING.0, POLLING.1).with_notifications(SAFETY_NET)
    }

    fn server_address(&self) -> Option<ServerAddress> {
        ServerAddress::in_url(&self.others.address())
    }

    fn lock_id(&self, key: &Key) -> LockId {
        LockId::new(format_args!("{}+{}", M::NAME, self.others.address()), key.as_str())
    }

    fn claim(&self, request: ClaimRequest) -> SessionClaim<M> {
        let (handles, waiting) = (Arc::clone(&self.handles), Waiting::new(Arc::clone(&self.queue)));
        let clock = RequestClock::new(self.clock());
        SessionClaim { handles, request, clock, signal: Arc::default(), handle: None, waiting, refused: None }
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Holder>, Failure> {
        Ok(self.occupancy(key).await?.holders.into_iter().next())
    }

    async fn occupancy(&self, key: &Key) -> Result<Occupancy, Failure> {
        let (sessions, key) = (self.clone(), key.clone());
        let holders = asked(async move { sessions.holders_of(&key).await }).await?;
        Ok(Occupancy::new(None, holders))
    }

    async fn announce(&self, key: &Key) -> Result<(), Failure> {
        self.others.announce(key).await
    }

    fn announcements(&self, key: &Key) -> Announcements {
        self.others.announcements(key)
    }

    fn administration(&self) -> Option<&dyn Administration> {
        Some(self)
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, Failure> {
        let Self { handles, others, .. } = self.clone();
        asked(async move {
            handles.ready(QUESTION).await?;
            diagnosis::diagnose(&others).await
        })
        .await
    }

    async fn close(&self) {
        self.queue.close();
        self.handles.close().await;
        self.others.close().await;
    }
}

impl<M: Strategy> Clone for Sessions<M> {
    fn clone(&self) -> Self {
        let Self { handles, queue, others } = self;
        Self { handles: Arc::clone(handles), queue: Arc::clone(queue), others: Arc::clone(others) }
    }
}

impl<M: Strategy> fmt::Debug for Sessions<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").field("backend", &M::NAME).field("connections", &self.others).finish()
    }
}

/// A claim on a lock that a connection keeps.
pub struct SessionClaim<M: Strategy> {
    handles: Arc<ConnectionHandles<M>>,
    request: ClaimRequest,
    clock: RequestClock,
    signal: Arc<HoldSignal>,
    /// The connection on which something of this claim may be.
    handle: Option<ConnectionHandle<M>>,
    waiting: Waiting<M>,
    /// The moment of the first refusal.
    refused: Option<Instant>,
}

impl<M: Strategy> SessionClaim<M> {
    /// Returns `true` if other readers may hold the lock too.
    fn reads(&self) -> bool {
        self.request.mode == Mode::Shared
    }
}

impl<M: Strategy> Claim for SessionClaim<M> {
    async fn attempt(&mut self) -> Result<Attempt, Failure> {
        // All that comes before the command is bounded by less than the engine waits: when it fails for want of a
        // connection, the engine still learns that nothing was sent.
        let limit = self.request.request_timeout * 3 / 4;
        self.handles.ready(limit).await?;
        self.waiting.begin();
        self.clock.queued();
        let end = Instant::now() + limit;
        let (key, reads) = (self.request.key.clone(), self.reads());
        let (handle, asking) = match &mut self.handle {
            Some(handle) => (handle, None),
            // If each lock has a connection of its own, one claim of this process asks for a key at a moment, and the
            // others take its answer: each of them would open a connection to find the lock taken.
            none => {
                let asking = match self.handles.turn(&key, reads, end).await? {
                    Ok(asking) => asking,
                    Err(holder) => return Ok(Attempt::Busy(stored::busy(holder, None))),
                };
                (
                    none.insert(self.handles.handle(end.saturating_duration_since(Instant::now())).await?),
                    asking,
                )
            }
        };
        let (request, clock, signal) = (self.request.clone(), self.clock.clone(), Arc::clone(&self.signal));
        // A claim that has the turn may be stopped or cut off: a reader respects it for `PREFERENCE`, and asks without
        // a turn from then on.
        let joins = if reads && !self.waiting.has_turn() { self.waiting.joins(&request.key) } else { None };
        let has_turn = self.waiting.has_turn()
            || joins.is_some()
            || self.refused.is_some_and(|since| since.elapsed() >= PREFERENCE);
        let take = |answer| Command::Take(Take { request, clock, signal, has_turn, answer });
        let taken = handle.call(take).await;
        // The turn that this reader came in by is kept until here, so that it does not end between question and answer.
        drop(joins);
        if let (Some(asking), Ok(taken)) = (asking, &taken) {
            match taken {
                Taken::Granted(fence) => {
                    let mut holder = Holder::parse(&self.request.describe());
                    holder.fence = *fence;
                    asking.found_taken(Some(Box::new(holder)));
                }
                Taken::Busy(holder) => asking.found_taken(holder.clone()),
                // The answer is about this claim's way or fence: the others ask by themselves.
                Taken::Elsewhere(_) | Taken::Uncounted => {}
            }
        }
        if let Ok(Taken::Granted(fence)) = taken {
            // Its connection in the queue keeps the turn, and with it all other waiters, until the claim has left.
            self.waiting.leave();
            let term = Validity::Session(Some(self.request.lease.min(SESSION_IDLE_TIMEOUT)));
            return Ok(Attempt::Granted(fence.into_iter().fold(Grant::new(term), Grant::with_fence)));
        }
        // Every other answer says that nothing of this claim is on the connection, and no command of it under way.
        // Without an answer this line is not reached: the handle stays, and the next call goes by it.
        self.handle.take().into_iter().for_each(|handle| self.handles.put_back(handle));
        let taken = taken?;
        self.refused.get_or_insert_with(Instant::now);
        match taken {
            Taken::Busy(holder) => Ok(Attempt::Busy(stored::busy(holder, None))),
            Taken::Elsewhere(theirs) => Err(M::WAY.conflict(theirs)),
            Taken::Granted(_) | Taken::Uncounted => Ok(Attempt::Busy(Busy::default())),
        }
    }

    async fn changed(&mut self) -> Result<(), Failure> {
        let ClaimRequest { key, token, .. } = &self.request;
        let name = self.handles.name(key);
        let name = if self.reads() { name.read_by(token, false) } else { name };
        self.waiting.changed(name).await
    }

    fn granted(&mut self, signal: Signal) {
        self.signal.connect(signal);
    }

    async fn renew(&mut self) -> Result<Renewed, Failure> {
        // Nothing to do: the signs of life of the connection prove all its locks.
        Ok(Renewed::Extended)
    }

    async fn downgrade(&mut self) -> Result<Renewed, Failure> {
        let Some(handle) = &self.handle else { return Ok(Renewed::Gone) };
        let ClaimRequest { key, token, request_timeout: limit, .. } = self.request.clone();
        handle.call(|answer| Command::Downgrade(Downgrade { key, token, limit, answer })).await
    }

    async fn withdraw(&mut self) -> Result<Withdrawal, Failure> {
        // Leaving the queue goes on beside the release.
        self.waiting.leave();
        let Some(handle) = &self.handle else {
            // An attempt has left nothing; the server may still give the lock for a moment to the place in the queue.
            self.waiting.left().await;
            return Ok(Withdrawal::ABSENT);
        };
        let ClaimRequest { key, token, .. } = self.request.clone();
        // The connection has carried out what this claim asked for before, or drops it, since no caller waits for its
        // answer.
        let left = handle.call(|answer| Command::Release(Release { key, token, answer: Some(answer) })).await;
        // A release that could not be confirmed has closed the connection, and the lock ends with it.
        self.handle.take().into_iter().for_each(|handle| self.handles.put_back(handle));
        // If this process has the turn, the next holder is one of its own waiters, which learns of the release from the
        // engine.
        let is_ours = self.waiting.has_turn_here(&self.request.key);
        if self.reads() {
            // A reader asks only where no session has the turn. The place of this claim would count as one until its
            // queue knows that it has left.
            within(LEAVING, self.waiting.left()).await;
        }
        left.map(|left| if is_ours { left.with_others_waiting(0) } else { left })
    }

    fn request_clock(&self) -> Option<RequestClock> {
        Some(self.clock.clone())
    }

    fn is_clean(&self) -> bool {
        self.handle.is_none() && self.waiting.is_out()
    }
}

impl<M: Strategy> Drop for SessionClaim<M> {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            // Dropping the handle of an unshared connection then closes it, since the task finds no sender any more.
            let ClaimRequest { key, token, .. } = self.request.clone();
            handle.send(Command::Release(Release { key, token, answer: None }));
        }
    }
}

impl<M: Strategy> fmt::Debug for SessionClaim<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionClaim").field("key", &self.request.key).finish_non_exhaustive()
    }
}
