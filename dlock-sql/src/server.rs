//! What the database servers differ in: a [`Server`] has the statements, everything else is written once.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::notify::Listener;
use dlock_core::backend::{Mode, Occupancy};
use dlock_core::{Failure, Fence, Holder, Key, Token};
use sqlx::database::HasStatementCache;
use sqlx::{Connection, Database};

use crate::connector::Connector;
use crate::diagnosis::{Facts, Judge};
use crate::rows::{LineSeen, Resized, ShareAsk, ShareTaken};
use crate::session::{Found, Name, Wanted};
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
    /// How many fences are reserved with it.
    pub(crate) fences: u32,
}

/// What an attempt came to.
#[derive(Debug)]
pub enum Taken {
    /// With this fence, the last of those that were reserved, if grants are counted.
    Granted(Option<Fence>),
    /// Somebody else has it, if it is known who.
    Busy(Option<Box<Holder>>),
}

/// What a release found: our lock.
#[derive(Clone, Copy, Debug)]
pub struct Released {
    /// Whether its lease was still running.
    pub(crate) running: bool,
    /// Whether somebody noted that the lock is waited for.
    pub(crate) awaited: bool,
}

/// The schemas that have a table of some name.
#[derive(Debug, Default)]
pub struct Schemas {
    /// Those whose table was made by nobody whom this user need not trust.
    pub(crate) trusted: Vec<String>,
    /// The others, each with the owner of its table: to look into it could run his code.
    pub(crate) strange: Vec<(String, String)>,
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

/// What tells the grant that stands in the row of a key from all later ones.
#[derive(Debug)]
pub struct RowIdentity {
    pub(crate) token: Vec<u8>,
    pub(crate) fence: i64,
}

/// A lease that is to be extended.
#[derive(Clone, Debug)]
pub struct Lease {
    pub(crate) key: Key,
    pub(crate) token: Token,
    pub(crate) mode: Mode,
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
    /// The host, where it stands in brackets that do not belong to it.
    fn host(options: &DriverOptions<Self>) -> Option<&str>;
    /// The options with another host.
    fn with_host(options: DriverOptions<Self>, host: &str) -> DriverOptions<Self>;
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
    fn prepare(&self, on: &mut Conn<Self>) -> impl Future<Output = SqlResult<()>> + Send;
    /// Whether a connection is still good for writing.
    fn is_fit(on: &mut Conn<Self>) -> impl Future<Output = SqlResult<bool>> + Send;
    /// Refuses a connection of a pool on which a statement would not be a transaction by itself.
    fn check_pooled(on: &mut Conn<Self>) -> impl Future<Output = SqlResult<()>> + Send;
    /// All schemas with a table of this name, which was named without one; on MariaDB and MySQL the database of the
    /// connection. Leaves no prepared statement.
    fn schemas_of(on: &mut Conn<Self>, table: &TableName) -> impl Future<Output = SqlResult<Schemas>> + Send;
    /// What is said of a table that is in none.
    fn nowhere(table: &TableName) -> Failure;

    /// What there is to be said of the settings. One that the server does not have is left out.
    const SETTINGS: &'static [(&'static str, Judge)];
    /// The settings, and how many `connections` there are. Leaves no prepared statement.
    fn facts(&self, on: &mut Conn<Self>) -> impl Future<Output = SqlResult<Facts>> + Send;

    /// The mark of the lock table, if it has one. Fails where the table or a right to it is missing.
    fn mark(&self, on: &mut Conn<Self>) -> impl Future<Output = SqlResult<Option<String>>> + Send;
    /// Makes the table and the mark where they are missing.
    fn make(&self, on: &mut Conn<Self>) -> impl Future<Output = SqlResult<()>> + Send;
    /// Whether the error says that the table is missing.
    fn is_missing(error: &sqlx::Error) -> bool;
    /// Whether the error says that the server opens no connection more, or none more of this user.
    fn has_no_room(error: &sqlx::Error) -> bool;
    /// What an error means.
    fn classify(error: sqlx::Error, table: &TableName) -> Fault;

    /// Takes the lock if it is free or ours. `contended`: somebody had it a moment ago. Changes nothing on a connection
    /// on which it would not be a transaction by itself, and fails.
    fn take(
        &self,
        on: &mut Conn<Self>,
        ask: &Ask,
        contended: bool,
    ) -> impl Future<Output = SqlResult<Taken>> + Send;
    /// Takes over what stands under the token that was left behind, and adopts what is ours, while its time has not
    /// ended; those who wait stay noted. Changes nothing else.
    fn take_over(
        &self,
        on: &mut Conn<Self>,
        ask: &Ask,
        left: &Token,
    ) -> impl Future<Output = SqlResult<Taken>> + Send;
    /// Gives the lock back and wakes who waits; nothing when it was not ours.
    fn release(
        &self,
        on: &mut Conn<Self>,
        key: &Key,
        token: &Token,
    ) -> impl Future<Output = SqlResult<Option<Released>>> + Send;
    /// Gives the lock back, leaves its row taken for so long, and wakes who waits; nothing when it was not ours.
    fn leave_taken(
        &self,
        on: &mut Conn<Self>,
        key: &Key,
        token: &Token,
        taken_for: Duration,
    ) -> impl Future<Output = SqlResult<Option<Released>>> + Send;
    /// Takes locks with different keys that are free or ours: what became of each, or nothing where that has to be
    /// asked for by itself.
    fn take_all(
        &self,
        on: &mut Conn<Self>,
        asks: &[Ask],
    ) -> impl Future<Output = SqlResult<Vec<Option<Taken>>>> + Send;
    /// Releases locks with different keys: what was found of each, or nothing where that has to be asked for by itself.
    fn release_all(
        &self,
        on: &mut Conn<Self>,
        held: &[(Key, Token)],
    ) -> impl Future<Output = SqlResult<Vec<Option<Released>>>> + Send;
    /// Extends what is still ours, and says which of these it is; nothing when all of them are.
    fn renew(
        &self,
        on: &mut Conn<Self>,
        leases: &[Lease],
    ) -> impl Future<Output = SqlResult<Option<HashSet<usize>>>> + Send;
    /// Takes the lock, or a share of it, if what others have of it allows that.
    fn take_share(
        &self,
        on: &mut Conn<Self>,
        ask: &ShareAsk,
    ) -> impl Future<Output = SqlResult<ShareTaken>> + Send;
    /// Releases what this token has, with its preference and its place in line if it may have one, and wakes who waits;
    /// whether it had the lock.
    fn release_share(
        &self,
        on: &mut Conn<Self>,
        key: &Key,
        token: &Token,
        fair: bool,
    ) -> impl Future<Output = SqlResult<bool>> + Send;
    /// Reads the line for a key as the waiter with this place finds it, and changes nothing; `None` where it has lost
    /// its place.
    fn look_in_line(
        &self,
        on: &mut Conn<Self>,
        key: &Key,
        token: &Token,
        place: i64,
    ) -> impl Future<Output = SqlResult<Option<LineSeen>>> + Send;
    /// As [`renew`](Self::renew), for shares.
    fn renew_shares(
        &self,
        on: &mut Conn<Self>,
        leases: &[Lease],
    ) -> impl Future<Output = SqlResult<Option<HashSet<usize>>>> + Send;
    /// Turns a lock that this token has into a share, and extends that, or the share that it has already; wakes who
    /// waits. Whether it had any.
    fn downgrade(
        &self,
        on: &mut Conn<Self>,
        key: &Key,
        token: &Token,
        lease: Duration,
    ) -> impl Future<Output = SqlResult<bool>> + Send;
    /// Leaves the share that this token has for a baton, for so long, or no longer than it is left already. Whether
    /// there was one.
    fn leave_share(
        &self,
        on: &mut Conn<Self>,
        key: &Key,
        token: &Token,
        taken_for: Duration,
    ) -> impl Future<Output = SqlResult<bool>> + Send;
    /// All who have the lock, or a share of it.
    fn occupancy(&self, on: &mut Conn<Self>, key: &Key) -> impl Future<Output = SqlResult<Occupancy>> + Send;
    /// Changes how many permits there are, and wakes who waits.
    fn resize(
        &self,
        on: &mut Conn<Self>,
        key: &Key,
        permits: u32,
    ) -> impl Future<Output = SqlResult<Resized>> + Send;
    /// Who has the lock; of several holders the last that was granted it.
    fn read(&self, on: &mut Conn<Self>, key: &Key) -> impl Future<Output = SqlResult<Option<Holder>>> + Send;
    /// Some locks that are held, in the order of their keys' bytes, after this one.
    fn list(
        &self,
        on: &mut Conn<Self>,
        after: &[u8],
    ) -> impl Future<Output = SqlResult<Vec<(Vec<u8>, Holder)>>> + Send;
    /// Which grant stands in the row of a key; `None` where there is no row, or nobody has it.
    fn identify(
        &self,
        on: &mut Conn<Self>,
        key: &Key,
    ) -> impl Future<Output = SqlResult<Option<RowIdentity>>> + Send;
    /// Frees the lock whoever has it, or only of this grant, with a higher fence, and wakes who waits: whether somebody
    /// had it.
    fn force(
        &self,
        on: &mut Conn<Self>,
        key: &Key,
        only: Option<&RowIdentity>,
    ) -> impl Future<Output = SqlResult<bool>> + Send;
    /// Deletes some free rows that nobody used for this long, of those after a key.
    fn prune(
        &self,
        on: &mut Conn<Self>,
        unused: Duration,
        after: &[u8],
    ) -> impl Future<Output = SqlResult<Pruned>> + Send;

    /// How many bytes of a name's digest the server gets.
    const DIGEST: usize;
    /// The table among all that a lock of a session may be of.
    fn place(&self) -> String;
    /// Whether grants of sessions and locked rows are counted.
    fn counts(&self) -> bool;
    /// Makes a new connection ready to keep locks: the server ends its session after this silence. Leaves no prepared
    /// statement.
    fn keep_alive(
        on: &mut Conn<Self>,
        silence: Duration,
        locks_rows: bool,
    ) -> impl Future<Output = SqlResult<()>> + Send;
    /// The session. Leaves no prepared statement.
    fn ping(&self, on: &mut Conn<Self>) -> impl Future<Output = SqlResult<i64>> + Send;
    /// Cancels what a session is doing, if it is doing anything.
    fn cancel(&self, on: &mut Conn<Self>, session: i64) -> impl Future<Output = SqlResult<()>> + Send;
    /// Ends a session, if it is still there.
    fn end(&self, on: &mut Conn<Self>, session: i64) -> impl Future<Output = SqlResult<()>> + Send;
    /// Waits for the turn among all who wait for this name, or its row; whether it came. The session has it until it
    /// leaves.
    fn queue(on: &mut Conn<Self>, name: &Name, is_row: bool) -> impl Future<Output = SqlResult<bool>> + Send;
    /// Gives the turn to the next one.
    fn leave(on: &mut Conn<Self>, name: &Name, is_row: bool) -> impl Future<Output = SqlResult<()>> + Send;

    /// Begins a transaction, and locks the row in it if nobody has it: the session, and how the row was found. Ends the
    /// transaction when somebody has it, and when the server refuses. Nothing is prepared yet on a connection that
    /// `is_new`.
    fn lock_row(
        &self,
        on: &mut Conn<Self>,
        wanted: &Wanted,
        is_new: bool,
    ) -> impl Future<Output = SqlResult<(i64, Found)>> + Send;
    /// Makes the row that is to be locked; whether it was missing.
    fn make_row(&self, on: &mut Conn<Self>, name: &Name) -> impl Future<Output = SqlResult<bool>> + Send;
    /// Counts a grant to a session.
    fn count(
        &self,
        on: &mut Conn<Self>,
        wanted: &Wanted,
        session: i64,
    ) -> impl Future<Output = SqlResult<Fence>> + Send;

    /// Whether waiters are notified of releases.
    fn tells(&self) -> bool {
        false
    }
    /// An ear for releases of a key; none where the server does not tell of them.
    fn listen(&self, _key: &Key) -> Result<Option<Listener>, Failure> {
        Ok(None)
    }
    /// Listens for the turn of a waiter in line.
    fn listen_turn(&self, _token: &Token) -> Result<Option<Listener>, Failure> {
        Ok(None)
    }
    /// As [`listen`](Self::listen), where this process listens for the key already.
    fn join(&self, _key: &Key) -> Option<Listener> {
        None
    }
    /// Notes with the lock that somebody waits for it; whether anybody has it.
    fn await_release(&self, on: &mut Conn<Self>, key: &Key) -> impl Future<Output = SqlResult<bool>> + Send;
    /// Stops listening.
    fn close(&self) {}

    /// What the lock of a session is called.
    fn name(&self, key: &Key) -> Name {
        Name::of(&self.place(), key)
    }
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
