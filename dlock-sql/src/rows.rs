//! Lease rows on a database server.
//!
//! A row is one key. It is free when its token is null or its lease has ended by the server's clock; it stays after a
//! release, since it keeps the key's fence. The row of the empty key, which no lock can have, is the table's mark: its version,
//! and the highest fence of all rows that were pruned.
//!
//! What is the same for all servers is here; a [`Server`] has the statements.

pub(crate) mod claim;
mod connections;
mod driven;
mod progress;
mod settings;
mod steps;
mod waiters;

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlock_core::backend::{ClaimRequest, LockId};
use dlock_core::{Failure, Fence, Holder, Key, Token};
use sqlx::Database;

pub(crate) use claim::RowClaim;
pub(crate) use connections::{Connections, Kind};
pub(crate) use settings::{Settings, split};
pub(crate) use steps::Step;
pub(crate) use waiters::Listener;
#[cfg(feature = "postgres")]
pub(crate) use waiters::{Channels, Order};

use crate::failure::{closed, unchanged};
use crate::renewals::{Extended, Renew, Renewal, Renewals, shortest_limit};
use steps::{Force, List, Prune, Read};

/// What the mark row's `holder` says.
pub(crate) const MARK: &str = "dlock table, version 1";
/// How long a question outside of a lock may take.
pub(crate) const QUESTION: Duration = Duration::from_secs(5);
/// How many rows are pruned, or listed, in one statement.
pub(crate) const AT_ONCE: u32 = 1_000;

pub(crate) type Conn<S> = <<S as Server>::Database as Database>::Connection;

/// What an attempt is made with.
#[derive(Debug)]
pub struct Ask {
    pub(crate) key: Key,
    pub(crate) token: Token,
    pub(crate) lease: Duration,
    pub(crate) holder: String,
}

/// What an attempt came to.
#[derive(Debug)]
pub enum Taken {
    /// With this fence.
    Granted(Fence),
    /// Somebody else has it, if it is known who.
    Busy(Option<Box<Holder>>),
}

/// What an error of a statement means.
#[derive(Debug)]
pub struct Fault {
    pub(crate) failure: Failure,
    /// Nothing was changed, and the same statement may succeed at once.
    pub(crate) again: bool,
    /// The connection is of no use any more.
    pub(crate) broken: bool,
}

type Answer<T> = Result<T, sqlx::Error>;

/// A kind of database server: its statements, each of which is one transaction by itself.
///
/// They run to their end even if nobody waits for the answer any more, unless the connection breaks.
pub trait Server: fmt::Debug + Send + Sync + Sized + 'static {
    /// The driver.
    type Database: Database;

    /// The backend's name.
    const NAME: &'static str;
    /// How many leases one statement renews.
    const RENEWED_AT_ONCE: usize;

    /// Opens a connection.
    fn connect(&self) -> impl Future<Output = Answer<Conn<Self>>> + Send;
    /// The mark of the lock table, if it has one. Fails where the table or a right to it is missing.
    fn mark<'c>(&'c self, on: &'c mut Conn<Self>)
    -> impl Future<Output = Answer<Option<String>>> + Send + 'c;
    /// Makes the table and the mark where they are missing.
    fn make<'c>(&'c self, on: &'c mut Conn<Self>) -> impl Future<Output = Answer<()>> + Send + 'c;
    /// Whether the error says that the table is missing.
    fn is_missing(&self, error: &sqlx::Error) -> bool;
    /// The name of the table.
    fn table(&self) -> String;
    /// The server, the database and the table, without a password.
    fn address(&self) -> String;
    /// Takes the lock if it is free or ours. `contended`: somebody had it a moment ago.
    fn take<'c>(
        &'c self,
        on: &'c mut Conn<Self>,
        ask: &'c Ask,
        contended: bool,
    ) -> impl Future<Output = Answer<Taken>> + Send + 'c;
    /// Gives the lock back and wakes who waits: whether its lease was still running, or nothing when it was not ours.
    fn release<'c>(
        &'c self,
        on: &'c mut Conn<Self>,
        key: &'c Key,
        token: &'c Token,
    ) -> impl Future<Output = Answer<Option<bool>>> + Send + 'c;
    /// Extends what is still ours, and says which of these it is; nothing when all of them are.
    fn renew<'c>(
        &'c self,
        on: &'c mut Conn<Self>,
        leases: &'c [Lease],
    ) -> impl Future<Output = Answer<Option<HashSet<usize>>>> + Send + 'c;
    /// Who has the lock.
    fn read<'c>(
        &'c self,
        on: &'c mut Conn<Self>,
        key: &'c Key,
    ) -> impl Future<Output = Answer<Option<Holder>>> + Send + 'c;
    /// Some locks that are held, in the order of their keys' bytes, after this one.
    fn list<'c>(
        &'c self,
        on: &'c mut Conn<Self>,
        after: &'c [u8],
    ) -> impl Future<Output = Answer<Vec<(Vec<u8>, Holder)>>> + Send + 'c;
    /// Frees the lock whoever has it, with a higher fence, and wakes who waits: whether somebody had it.
    fn force<'c>(
        &'c self,
        on: &'c mut Conn<Self>,
        key: &'c Key,
    ) -> impl Future<Output = Answer<bool>> + Send + 'c;
    /// Deletes some free rows that nobody used for this long, and says how many.
    fn prune<'c>(
        &'c self,
        on: &'c mut Conn<Self>,
        unused: Duration,
    ) -> impl Future<Output = Answer<u64>> + Send + 'c;
    /// What an error means.
    fn classify(&self, error: sqlx::Error) -> Fault;
    /// An ear for releases of a key; none where the server does not tell of them.
    fn listen(&self, key: &Key) -> Result<Option<Listener>, Failure>;
    /// The same, if somebody of this process listens already.
    fn join(&self, key: &Key) -> Option<Listener>;
    /// Notes with the lock that somebody waits for it; whether anybody has it.
    fn await_release<'c>(
        &'c self,
        on: &'c mut Conn<Self>,
        key: &'c Key,
    ) -> impl Future<Output = Answer<bool>> + Send + 'c;
    /// Stops listening.
    fn close(&self);
}

/// A lease that is to be extended.
#[derive(Clone, Debug)]
pub struct Lease {
    pub(crate) key: Key,
    pub(crate) token: Token,
    pub(crate) length: Duration,
}

/// What the claims of a backend share.
pub(crate) struct Rows<S: Server> {
    pub(crate) connections: Arc<Connections<S>>,
    pub(crate) renewals: Renewals,
    closed: AtomicBool,
}

impl<S: Server> Rows<S> {
    pub(crate) fn start(
        server: Arc<S>,
        pool: Option<sqlx::Pool<S::Database>>,
        settings: &Settings,
    ) -> Result<Arc<Self>, Failure> {
        let (renewals, inbox) = Renewals::new();
        let connections = Connections::start(server, pool, settings)?;
        let rows = Arc::new(Self { connections, renewals, closed: AtomicBool::new(false) });
        crate::renewals::look_after(&rows, inbox)?;
        Ok(rows)
    }

    pub(crate) fn lock_id(&self, key: &Key) -> LockId {
        LockId::new(self.connections.server().address(), key.as_str())
    }

    pub(crate) fn claim(self: &Arc<Self>, request: ClaimRequest) -> RowClaim<S> {
        RowClaim::new(Arc::clone(self), request)
    }

    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.closed.load(Ordering::Acquire) { Err(closed()) } else { Ok(()) }
    }

    /// Who has the lock.
    pub(crate) async fn inspect(&self, key: &Key) -> Result<Option<Holder>, Failure> {
        self.check()?;
        self.connections.ask(Read(key.clone()), QUESTION).await.map_err(unchanged)
    }

    /// All locks that are held, in order.
    pub(crate) async fn holders(&self) -> Result<Vec<(Key, Holder)>, Failure> {
        self.check()?;
        let mut all: Vec<(Key, Holder)> = Vec::new();
        let mut after = Vec::new();
        loop {
            let some = self.connections.ask(List(after), QUESTION).await.map_err(unchanged)?;
            let Some((last, _)) = some.last() else { return Ok(all) };
            after = last.clone();
            // A row with another key is none of ours.
            all.extend(
                some.into_iter().filter_map(|(key, holder)| {
                    Some((Key::new(std::str::from_utf8(&key).ok()?).ok()?, holder))
                }),
            );
        }
    }

    /// Frees the lock whoever has it.
    pub(crate) async fn force(&self, key: &Key) -> Result<bool, Failure> {
        self.check()?;
        self.connections.ask(Force(key.clone()), QUESTION).await
    }

    /// Deletes free rows.
    pub(crate) async fn prune(&self, unused: Duration) -> Result<u64, Failure> {
        self.check()?;
        // A row that was in use a moment ago may be taken right now by somebody who has read its last fence.
        let unused = unused.max(Duration::from_secs(60));
        let mut pruned = 0;
        loop {
            let some = self.connections.ask(Prune(unused), QUESTION).await?;
            pruned += some;
            if some < u64::from(AT_ONCE) {
                return Ok(pruned);
            }
        }
    }

    pub(crate) async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.connections.server().close();
        self.connections.close().await;
    }
}

impl<S: Server> Renew for Rows<S> {
    const AT_ONCE: usize = S::RENEWED_AT_ONCE;

    async fn renew(&self, renewals: &[Renewal]) -> Result<Extended, Failure> {
        self.check()?;
        let limit = shortest_limit(renewals);
        let leases = renewals
            .iter()
            .map(|renewal| Lease { key: renewal.key.clone(), token: renewal.token, length: renewal.lease })
            .collect();
        let extended = self.connections.within(Kind::Renewal, steps::Renew(leases), limit).await?;
        Ok(extended.map_or(Extended::All, Extended::Some))
    }
}

impl<S: Server> fmt::Debug for Rows<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows").field("connections", &self.connections).finish_non_exhaustive()
    }
}

/// Checks whether there is the lock table, and whether this user has the rights.
pub(crate) async fn verify<S: Server>(server: &S, on: &mut Conn<S>) -> Result<(), Failure> {
    let mark = server.mark(on).await.map_err(|error| unchanged(server.classify(error).failure))?;
    let table = server.table();
    match mark.as_deref() {
        Some(MARK) => Ok(()),
        Some(mark) => Err(Failure::invalid_config(format!(
            "table {table} is of another version of dlock ({mark:?}); use that version or another table name"
        ))),
        None => Err(Failure::invalid_config(format!(
            "table {table} has lost its mark row; stop all its users and call migrate(), which makes another"
        ))),
    }
}

/// Makes the table where it is missing, and does nothing to one that is there.
pub(crate) async fn migrate<S: Server>(server: &S, limit: Duration) -> Result<(), Failure> {
    let failed = |error| unchanged(server.classify(error).failure);
    let connected = tokio::time::timeout(limit, server.connect()).await;
    let mut connection = match connected {
        Ok(connected) => connected.map_err(failed)?,
        Err(_) => return Err(Failure::unavailable(format!("no connection within {limit:?}"))),
    };
    match server.mark(&mut connection).await {
        Ok(Some(_)) => {}
        Err(error) if !server.is_missing(&error) => return Err(failed(error)),
        Ok(None) | Err(_) => server.make(&mut connection).await.map_err(failed)?,
    }
    let verified = verify(server, &mut connection).await;
    let _ = tokio::time::timeout(limit, sqlx::Connection::close(connection)).await;
    verified
}
