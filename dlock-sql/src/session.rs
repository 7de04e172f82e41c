//! Locks that live as long as a connection: names that a session of the server locks, and rows that a transaction does.
//!
//! A [`Desk`](desk::Desk) is one connection with the locks on it, driven by a task on the keeper's thread. What the session itself
//! would let through, a second lock of the same name, is kept apart there.

mod act;
mod administration;
mod desk;
mod line;
mod mode;
mod name;
mod seats;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{
    Attempt, Busy, Claim, ClaimRequest, Grant, LockId, Renewed, Signal, Term, Withdrawal,
};
use dlock_core::{Backend, Capabilities, Error, Failure, Fence, Holder, Key, Operation, Result};

use crate::failure::unchanged;
use crate::options::{Opened, ServerOptions};
use crate::rows::{Connections, QUESTION};
use crate::server::{Answer, Conn, Server, Taken};
use act::WhoAmI;
use desk::{Leave, Order, Take, another_session};
use line::Line;
pub(crate) use mode::{ByName, ByRow, Mode};
pub(crate) use name::Name;
#[cfg(feature = "mysql")]
pub(crate) use name::{FENCE, ROW};
use seats::{Seat, Seats};

/// How often waiters ask.
const POLLING: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(150));
/// After how long a silence the server ends a session of ours, where it can do that. No lock counts as held for longer than
/// this after the last sign of life.
const SILENCE: Duration = Duration::from_secs(60);

/// A lock that is wanted.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub(crate) name: Name,
    pub(crate) holder: String,
    /// How long who wants it waits for the answer.
    pub(crate) limit: Duration,
}

/// The answer to an attempt.
#[derive(Debug)]
pub struct Asked {
    /// The session that answered.
    pub(crate) session: i64,
    pub(crate) taken: Taken,
}

/// Which session keeps a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeper {
    Nobody,
    Session(i64),
    /// There is one, and this user may not know which.
    Hidden,
}

/// How a row was found.
#[derive(Debug)]
pub enum Found {
    /// It is locked now, in a transaction that has begun.
    Free,
    /// Somebody else has it, if it is known who.
    Locked(Option<Box<Holder>>),
    /// There is no such row.
    Missing,
}

/// A server whose sessions and transactions keep locks. The first number of an answer is the session that gave it.
pub trait SessionServer: Server {
    /// The backends' names.
    const SESSIONS: &'static str;
    /// See [`SESSIONS`](Self::SESSIONS).
    const LOCKED_ROWS: &'static str;
    /// How many bytes of the digest the server is told.
    const DIGEST: usize;

    /// Makes a new connection ready: the server ends its session after this silence. Leaves no prepared statement.
    fn keep_alive<'c>(
        &'c self,
        on: &'c mut Conn<Self>,
        silence: Duration,
    ) -> impl Future<Output = Answer<()>> + Send + 'c;
    /// The table among all that a name may be of.
    fn place(&self) -> String;
    /// The session. Leaves no prepared statement.
    fn ping<'c>(&'c self, on: &'c mut Conn<Self>) -> impl Future<Output = Answer<i64>> + Send + 'c;
    /// Takes the named lock if nobody has it, with a fence.
    fn take_name<'c>(
        &'c self,
        on: &'c mut Conn<Self>,
        wanted: &'c Wanted,
    ) -> impl Future<Output = Answer<Asked>> + Send + 'c;
    /// Gives the named lock back, and says whether this session had it.
    fn free_name<'c>(
        &'c self,
        on: &'c mut Conn<Self>,
        name: &'c Name,
    ) -> impl Future<Output = Answer<(i64, bool)>> + Send + 'c;
    /// Takes several named locks, each as [`take_name`](Self::take_name) does, in one round trip.
    fn take_names<'c>(
        &'c self,
        on: &'c mut Conn<Self>,
        wanted: &'c [Wanted],
    ) -> impl Future<Output = Answer<(i64, Vec<Taken>)>> + Send + 'c;
    /// Gives several named locks back, and says which this session had.
    fn free_names<'c>(
        &'c self,
        on: &'c mut Conn<Self>,
        names: &'c [Name],
    ) -> impl Future<Output = Answer<(i64, Vec<bool>)>> + Send + 'c;
    /// Who has the named lock.
    fn holder_of_name<'c>(
        &'c self,
        on: &'c mut Conn<Self>,
        name: &'c Name,
    ) -> impl Future<Output = Answer<Option<Holder>>> + Send + 'c;
    /// Which session has the named lock.
    fn keeper_of_name<'c>(
        &'c self,
        on: &'c mut Conn<Self>,
        name: &'c Name,
    ) -> impl Future<Output = Answer<Keeper>> + Send + 'c;
    /// The named locks that are held.
    fn held_names<'c>(
        &'c self,
        on: &'c mut Conn<Self>,
    ) -> impl Future<Output = Answer<Vec<(Key, Holder)>>> + Send + 'c;
    /// Begins a transaction, and locks the row in it if nobody has it. Ends it when it fails.
    fn lock_row<'c>(
        &'c self,
        on: &'c mut Conn<Self>,
        name: &'c Name,
    ) -> impl Future<Output = Answer<(i64, Found)>> + Send + 'c;
    /// Ends the transaction.
    fn free_row<'c>(&'c self, on: &'c mut Conn<Self>) -> impl Future<Output = Answer<i64>> + Send + 'c;
    /// Makes the row that is to be locked; whether it was missing.
    fn make_row<'c>(
        &'c self,
        on: &'c mut Conn<Self>,
        name: &'c Name,
    ) -> impl Future<Output = Answer<bool>> + Send + 'c;
    /// Counts a grant to this session.
    fn count<'c>(
        &'c self,
        on: &'c mut Conn<Self>,
        wanted: &'c Wanted,
        session: i64,
    ) -> impl Future<Output = Answer<Fence>> + Send + 'c;
    /// Who has the row locked.
    fn holder_of_row<'c>(
        &'c self,
        on: &'c mut Conn<Self>,
        name: &'c Name,
    ) -> impl Future<Output = Answer<Option<Holder>>> + Send + 'c;
    /// Which session has the row locked.
    fn keeper_of_row<'c>(
        &'c self,
        on: &'c mut Conn<Self>,
        name: &'c Name,
    ) -> impl Future<Output = Answer<Keeper>> + Send + 'c;
    /// The rows that are locked.
    fn held_rows<'c>(
        &'c self,
        on: &'c mut Conn<Self>,
    ) -> impl Future<Output = Answer<Vec<(Key, Holder)>>> + Send + 'c;
    /// Ends a session, if it is still there.
    fn end<'c>(
        &'c self,
        on: &'c mut Conn<Self>,
        session: i64,
    ) -> impl Future<Output = Answer<()>> + Send + 'c;
}

/// Locks that live as long as a connection to the database: see [`PostgresSessions`](crate::PostgresSessions),
/// [`PostgresRowLocks`](crate::PostgresRowLocks), [`MysqlSessions`](crate::MysqlSessions) and
/// [`MysqlRowLocks`](crate::MysqlRowLocks).
///
/// A lock ends with its connection, so that the locks of a process that dies are free at once. The price is that they also end
/// when only the connection dies.
///
/// # What it relies on, and what it does not guarantee
///
/// * **The connection.** It is asked for a sign of life at each sixth of the shortest lease of a lock on it, at least every 5 s. A
///   lock for which there was none for a third of its lease is [suspect](dlock_core::ErrorKind::Suspect); when the connection
///   breaks, or is answered by another session, it is closed and all its locks are lost. Until that is noticed somebody else may
///   already have the lock; fences tell them apart. A lock counts as lost a lease after the last sign of life at the latest.
/// * **Silence.** The server is told to end a session that says nothing for a minute (PostgreSQL from 14 on: `idle_session_timeout`;
///   MariaDB, MySQL: `wait_timeout`), so that a host that is cut off does not keep its locks. No lock counts as held for
///   longer than a minute after the last sign of life, whatever the lease.
/// * **No proxy that shares sessions.** Behind one that pools transactions or statements there are no sessions to rely on. It is
///   refused with [`ErrorKind::InvalidConfig`](dlock_core::ErrorKind::InvalidConfig) as soon as two connections, or two
///   statements on one, show it; use lease rows there.
/// * **One primary.** Connections end at a failover, and so do the locks.
///
/// Locks by sessions, by rows and by leases do not see each other. Fences are counted in the same table.
///
/// # Administration
///
/// [`Locks::force_release`](dlock_core::Locks::force_release) ends the connection that keeps the lock (`pg_terminate_backend`,
/// `KILL`), and with it **all** locks of that process by sessions; a locked row has a connection of its own. It needs the right
/// to end the session. On MariaDB and MySQL [`Locks::holders`](dlock_core::Locks::holders) lists the locked rows of those
/// sessions that the user may see: its own, or all with the right `PROCESS`.
pub struct Sessions<M: Mode> {
    seats: Arc<Seats<M>>,
    /// For questions, and for what must not be part of the transaction that keeps a lock.
    others: Arc<Connections<M::Server>>,
}

impl<M: Mode> Sessions<M> {
    /// Connects to the server that `url` names, as [`LeaseRows::connect`](crate::LeaseRows::connect) does; the fences are counted
    /// in the same table.
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

    /// The same with options. No connection that keeps locks is anybody else's: of a pool in them only the settings are used, and
    /// what it does to new connections.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn with_options(options: ServerOptions<M::Server>) -> Result<Self> {
        let starting = async { Self::start(options.open().await?).await };
        starting.await.map_err(|failure| Error::new(Operation::Configure, unchanged(failure)).on(M::NAME))
    }

    /// Checks the table and what is between here and the server.
    async fn start(opened: Opened<M::Server>) -> Result<Self, Failure> {
        let (server, connector, settings) =
            (Arc::clone(&opened.server), Arc::clone(&opened.connector), opened.settings.clone());
        let others = opened.connections(None)?;
        // Two connections that are open have two sessions. Nothing is prepared until that is known.
        others.ask(WhoAmI, QUESTION).await?;
        let mode = Arc::new(M::new(server, Arc::clone(&others)));
        let seats = Arc::new(Seats::new(mode, connector, &settings));
        let seat = seats.seat(settings.connect_timeout).await?;
        let kept = seat.order(Order::Open).await?;
        if kept == others.ask(WhoAmI, QUESTION).await? {
            return Err(another_session());
        }
        seats.put_back(seat);
        others.verify().await?;
        Ok(Self { seats, others })
    }
}

impl<M: Mode> Backend for Sessions<M> {
    type Claim = SessionClaim<M>;

    fn name(&self) -> &'static str {
        M::NAME
    }

    fn capabilities(&self) -> Capabilities {
        let basic = Capabilities::basic().with_fencing().with_session().with_administration();
        basic.with_polling(POLLING.0, POLLING.1)
    }

    fn lock_id(&self, key: &Key) -> LockId {
        LockId::new(format_args!("{}+{}", M::NAME, self.others.address()), key.as_str())
    }

    fn claim(&self, request: ClaimRequest) -> SessionClaim<M> {
        let seats = Arc::clone(&self.seats);
        SessionClaim { seats, request, line: Arc::default(), seat: None }
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Holder>, Failure> {
        self.holder(key).await
    }

    async fn holders(&self) -> Result<Vec<(Key, Holder)>, Failure> {
        self.list().await
    }

    async fn force_release(&self, key: &Key) -> Result<bool, Failure> {
        self.force(key).await
    }

    async fn close(&self) {
        self.seats.close().await;
        self.others.close().await;
    }
}

impl<M: Mode> Clone for Sessions<M> {
    fn clone(&self) -> Self {
        Self { seats: Arc::clone(&self.seats), others: Arc::clone(&self.others) }
    }
}

impl<M: Mode> fmt::Debug for Sessions<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").field("backend", &M::NAME).field("connections", &self.others).finish()
    }
}

/// A claim on a lock that a connection keeps.
pub struct SessionClaim<M: Mode> {
    seats: Arc<Seats<M>>,
    request: ClaimRequest,
    line: Arc<Line>,
    /// Where something of ours may be.
    seat: Option<Seat>,
}

impl<M: Mode> Claim for SessionClaim<M> {
    async fn attempt(&mut self) -> Result<Attempt, Failure> {
        self.seats.check()?;
        let seat = match &mut self.seat {
            Some(seat) => seat,
            // Less than the engine waits, so that nothing was sent when it is told of a lack of connections.
            none => none.insert(self.seats.seat(self.request.request_timeout * 3 / 4).await?),
        };
        let (request, line) = (self.request.clone(), Arc::clone(&self.line));
        let taken = seat.order(|answer| Order::Take(Take { request, line, answer })).await;
        if let Ok(Taken::Granted(fence)) = taken {
            let term = Term::Session(Some(self.request.lease.min(SILENCE)));
            return Ok(Attempt::Granted(Grant::new(term).with_fence(fence)));
        }
        // Nothing of ours is there, and no order of ours is on its way.
        self.seat.take().into_iter().for_each(|seat| self.seats.put_back(seat));
        let mut busy = Busy::default();
        if let Taken::Busy(holder) = taken? {
            busy.holder = holder;
        }
        Ok(Attempt::Busy(busy))
    }

    fn granted(&mut self, signal: Signal) {
        self.line.connect(signal);
    }

    async fn renew(&mut self) -> Result<Renewed, Failure> {
        // The connection is kept alive, not the lock.
        Ok(Renewed::Extended)
    }

    async fn withdraw(&mut self) -> Result<Withdrawal, Failure> {
        let Some(seat) = &self.seat else { return Ok(Withdrawal::ABSENT) };
        let ClaimRequest { key, token, .. } = self.request.clone();
        // Orders are carried out one after the other: what this claim has asked for comes before.
        let left = seat.order(|answer| Order::Leave(Leave { key, token, answer: Some(answer) })).await;
        // What could not be confirmed has ended with its connection.
        self.seat.take().into_iter().for_each(|seat| self.seats.put_back(seat));
        left
    }

    fn is_clean(&self) -> bool {
        self.seat.is_none()
    }
}

impl<M: Mode> Drop for SessionClaim<M> {
    fn drop(&mut self) {
        if let Some(seat) = self.seat.take() {
            let ClaimRequest { key, token, .. } = self.request.clone();
            seat.send(Order::Leave(Leave { key, token, answer: None }));
        }
    }
}

impl<M: Mode> fmt::Debug for SessionClaim<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionClaim").field("key", &self.request.key).finish_non_exhaustive()
    }
}
