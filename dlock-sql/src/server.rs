//! What the database servers differ in: a [`Server`] has the statements, everything else is written once.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::notify::Listener;
use dlock_core::{Failure, Fence, Holder, Key, Token};
use sqlx::database::HasStatementCache;
use sqlx::{Connection, Database};

use crate::connector::Connector;
use crate::settings::Settings;
use crate::table::TableName;

/// A connection to a server.
pub(crate) type Conn<S> = <<S as Server>::Database as Database>::Connection;
/// The driver's options of a connection.
pub(crate) type DriverOptions<S> = <Conn<S> as Connection>::Options;

pub(crate) type SqlResult<T> = Result<T, sqlx::Error>;

/// What an attempt is made with.
#[derive(Clone, Debug)]
pub struct Ask {
    pub(crate) key: Key,
    pub(crate) token: Token,
    pub(crate) lease: Duration,
    pub(crate) holder: String,
}

/// What an attempt came to.
#[derive(Debug)]
pub enum Taken {
    /// With this fence, if grants are counted.
    Granted(Option<Fence>),
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

/// What came of deleting some rows.
#[derive(Debug)]
pub struct Pruned {
    pub(crate) count: u64,
    /// The last key that was looked at; none when there are no more.
    pub(crate) last: Option<Vec<u8>>,
}

/// A lease that is to be extended.
#[derive(Clone, Debug)]
pub struct Lease {
    pub(crate) key: Key,
    pub(crate) token: Token,
    pub(crate) length: Duration,
}

/// A kind of database server: PostgreSQL, or MariaDB and MySQL. Its statements are those on one table, each of which is
/// one transaction by itself.
///
/// They run to their end even if nobody waits for the answer any more, unless the connection breaks.
#[doc(hidden)]
pub trait Server: fmt::Debug + Send + Sync + Sized + 'static {
    /// The driver.
    type Database: Database<Connection: Connection<Options: FromStr<Err = sqlx::Error>>> + HasStatementCache;

    /// The backend's name.
    const NAME: &'static str;
    /// What a URL begins with; the first is the one that the driver knows.
    const SCHEMES: &'static [&'static str];
    /// The parameters of a URL that are the driver's.
    const PARAMETERS: &'static [&'static str];
    /// What a name is quoted with.
    const QUOTE: char;
    /// How many leases one statement renews.
    const RENEWED_AT_ONCE: usize;
    /// How many locks one statement takes or releases at the most.
    const TOGETHER: usize;
    /// How often waiters ask that are not notified.
    const POLLING: (Duration, Duration);

    /// The options of a connection of our own: what the driver would set by itself is not.
    fn own(options: &DriverOptions<Self>) -> DriverOptions<Self>;
    /// The options with another password.
    fn with_password(options: DriverOptions<Self>, password: &str) -> DriverOptions<Self>;
    /// The server and the database, without a password.
    fn address(options: &DriverOptions<Self>) -> String;
    /// The statements on a table. `connector` opens connections for what listens.
    fn on_table(table: &TableName, connector: &Arc<Connector<Self>>, settings: &Settings) -> Self;
    /// The table.
    fn table(&self) -> &TableName;

    /// Makes a connection of our own what the statements rely on. Leaves no prepared statement, and nothing behind on a
    /// proxy.
    fn settle(on: &mut Conn<Self>) -> impl Future<Output = SqlResult<()>> + Send;
    /// Has the server know the statement that releases before it is needed, where statements are prepared.
    fn prepare<'c>(&'c self, on: &'c mut Conn<Self>) -> impl Future<Output = SqlResult<()>> + Send + 'c;
    /// Whether a connection is still good for writing.
    fn is_fit(on: &mut Conn<Self>) -> impl Future<Output = SqlResult<bool>> + Send;
    /// Refuses a connection of a pool on which a statement would not be a transaction by itself.
    fn check_pooled(on: &mut Conn<Self>) -> impl Future<Output = SqlResult<()>> + Send;
    /// The schema of a table that was named without. Leaves no prepared statement.
    fn schema_of<'c>(
        on: &'c mut Conn<Self>,
        table: &'c TableName,
    ) -> impl Future<Output = SqlResult<Option<String>>> + Send + 'c;

    /// The mark of the lock table, if it has one. Fails where the table or a right to it is missing.
    fn mark<'c>(
        &'c self,
        on: &'c mut Conn<Self>,
    ) -> impl Future<Output = SqlResult<Option<String>>> + Send + 'c;
    /// Makes the table and the mark where they are missing.
    fn make<'c>(&'c self, on: &'c mut Conn<Self>) -> impl Future<Output = SqlResult<()>> + Send + 'c;
    /// Whether the error says that the table is missing.
    fn is_missing(error: &sqlx::Error) -> bool;
    /// What an error means.
    fn classify(error: sqlx::Error, table: &TableName) -> Fault;

    /// Takes the lock if it is free or ours. `contended`: somebody had it a moment ago. Changes nothing on a connection
    /// on which it would not be a transaction by itself, and fails.
    fn take<'c>(
        &'c self,
        on: &'c mut Conn<Self>,
        ask: &'c Ask,
        contended: bool,
    ) -> impl Future<Output = SqlResult<Taken>> + Send + 'c;
    /// Gives the lock back and wakes who waits: whether its lease was still running, or nothing when it was not ours.
    fn release<'c>(
        &'c self,
        on: &'c mut Conn<Self>,
        key: &'c Key,
        token: &'c Token,
    ) -> impl Future<Output = SqlResult<Option<bool>>> + Send + 'c;
    /// Takes locks with different keys that are free or ours: what became of each, or nothing where that has to be
    /// asked for by itself.
    fn take_all<'c>(
        &'c self,
        on: &'c mut Conn<Self>,
        asks: &'c [Ask],
    ) -> impl Future<Output = SqlResult<Vec<Option<Taken>>>> + Send + 'c;
    /// Releases locks with different keys: whether the lease of each was still running, or nothing where that has to be
    /// asked for by itself.
    fn release_all<'c>(
        &'c self,
        on: &'c mut Conn<Self>,
        held: &'c [(Key, Token)],
    ) -> impl Future<Output = SqlResult<Vec<Option<bool>>>> + Send + 'c;
    /// Extends what is still ours, and says which of these it is; nothing when all of them are.
    fn renew<'c>(
        &'c self,
        on: &'c mut Conn<Self>,
        leases: &'c [Lease],
    ) -> impl Future<Output = SqlResult<Option<HashSet<usize>>>> + Send + 'c;
    /// Who has the lock.
    fn read<'c>(
        &'c self,
        on: &'c mut Conn<Self>,
        key: &'c Key,
    ) -> impl Future<Output = SqlResult<Option<Holder>>> + Send + 'c;
    /// Some locks that are held, in the order of their keys' bytes, after this one.
    fn list<'c>(
        &'c self,
        on: &'c mut Conn<Self>,
        after: &'c [u8],
    ) -> impl Future<Output = SqlResult<Vec<(Vec<u8>, Holder)>>> + Send + 'c;
    /// Frees the lock whoever has it, with a higher fence, and wakes who waits: whether somebody had it.
    fn force<'c>(
        &'c self,
        on: &'c mut Conn<Self>,
        key: &'c Key,
    ) -> impl Future<Output = SqlResult<bool>> + Send + 'c;
    /// Deletes some free rows that nobody used for this long, of those after a key.
    fn prune<'c>(
        &'c self,
        on: &'c mut Conn<Self>,
        unused: Duration,
        after: &'c [u8],
    ) -> impl Future<Output = SqlResult<Pruned>> + Send + 'c;

    /// Whether waiters are notified of releases.
    fn tells(&self) -> bool {
        false
    }
    /// An ear for releases of a key; none where the server does not tell of them.
    fn listen(&self, _key: &Key) -> Result<Option<Listener>, Failure> {
        Ok(None)
    }
    /// The same, if somebody of this process listens already.
    fn join(&self, _key: &Key) -> Option<Listener> {
        None
    }
    /// Notes with the lock that somebody waits for it; whether anybody has it.
    fn await_release<'c>(
        &'c self,
        on: &'c mut Conn<Self>,
        key: &'c Key,
    ) -> impl Future<Output = SqlResult<bool>> + Send + 'c;
    /// Stops listening.
    fn close(&self) {}

    /// The table as it stands in a statement.
    fn quoted(&self) -> String {
        self.table().quoted(Self::QUOTE)
    }
    /// Whether the server has not carried out a statement because it was prepared for a table that was altered since,
    /// or is not prepared any more.
    fn is_outdated(_: &sqlx::Error) -> bool {
        false
    }
    /// What an error of a statement on the table means.
    fn fault(&self, error: sqlx::Error) -> Fault {
        Self::classify(error, self.table())
    }
}
