//! What sessions ask a server for, and what it answers.

use std::time::Duration;

use dlock_core::{ErrorKind, Failure, Fence, Holder, Key};

use super::name::Name;
use crate::protocol::Taken;

/// How often those ask who wait without a connection for it.
pub(super) const POLLING: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(150));
/// How long one statement waits on the server: a transaction that is open for long is in the way of the server's
/// cleaning up.
pub(crate) const TURN: Duration = Duration::from_secs(30);
/// After how long a silence the server ends a session of ours, where it can do that. No lock counts as held for longer
/// than this after the last sign of life.
pub(crate) const SESSION_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// A lock that is wanted.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub(crate) name: Name,
    pub(crate) holder: String,
    /// How long who wants it waits for the answer.
    pub(crate) limit: Duration,
    /// Whether it has the turn among those who wait: who reads without it asks only where nobody waits.
    pub(crate) has_turn: bool,
}

/// Which session keeps a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwningSession {
    Known(i64),
    /// There is one, and this user may not know which.
    Hidden,
}

/// Why a lock could not be asked for.
#[derive(Debug)]
pub enum TakeError {
    /// The statement failed and took nothing.
    Refused(sqlx::Error),
    /// The same, and the next one will not fail so.
    Again(sqlx::Error),
    /// What had to be done on another connection failed; this one is as it was.
    Elsewhere(Failure),
    /// Nobody can tell what this connection has now.
    Unknown(sqlx::Error),
}

impl TakeError {
    /// The error of a statement that takes nothing where the server refuses it.
    pub(crate) fn of(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::Database(_) => Self::Refused(error),
            error => Self::Unknown(error),
        }
    }
}

/// What a release found.
#[derive(Clone, Copy, Debug)]
pub struct Freed {
    /// Whether the session had the lock.
    pub(crate) held: bool,
    /// Whether some session, perhaps of this process, has the turn among those who wait for it.
    pub(crate) awaited: bool,
}

/// The session of a connection, as far as its client knows it.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    #[cfg_attr(not(feature = "mysql"), expect(dead_code, reason = "only MariaDB is asked by it"))]
    pub(crate) id: i64,
    /// Nothing was asked for on the connection.
    pub(crate) is_new: bool,
}

/// What came of asking: the session that answered, and what became of each lock.
pub(crate) type TakeResult = Result<(i64, Vec<Taken>), TakeError>;

/// The sessions that have a lock, and what is known of who that is: one for each reader.
pub(crate) type Owners = Vec<(OwningSession, Holder)>;

/// How a row was found.
#[derive(Debug)]
pub enum Found {
    /// It is locked now, in a transaction that has begun; with its fence, where that was counted at the same time.
    Free(Option<Fence>),
    /// Somebody else has it, if it is known who.
    Locked(Option<Box<Holder>>),
    /// There is no such row.
    Missing,
}

/// Refuses a key whose name on the server is that of another key, which this process holds.
pub(super) fn collision(other: &Key) -> Failure {
    Failure::new(
        ErrorKind::InvalidKey,
        format!("the server cannot tell it from {other}, which this process holds; rename one of them"),
    )
}

/// Reports that the statements of one connection ran in different sessions.
pub(super) fn another_session() -> Failure {
    Failure::invalid_config(
        "a proxy gives the statements of one connection to different sessions, which cannot keep locks; connect to the \
         server itself or by a proxy that pools sessions, or use lease rows",
    )
}
