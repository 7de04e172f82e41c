//! The requests of sessions to a server, and its answers.

use std::time::Duration;

use dlock_core::{ErrorKind, Failure, Fence, Holder, Key};

use super::name::Name;
use crate::protocol::Taken;

/// The pauses between the questions of a claim that waits without a connection for it.
pub(super) const POLLING: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(150));
/// The longest wait of one statement on the server: a transaction that is open for long keeps the server from cleaning
/// up.
pub(crate) const TURN: Duration = Duration::from_secs(30);
/// The silence after which the server ends a session of dlock, where it can do that. No lock counts as held for longer
/// than this after the last sign of life.
pub(crate) const SESSION_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// A request for a lock.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub(crate) name: Name,
    pub(crate) holder: String,
    /// The time that the claim waits for the answer.
    pub(crate) limit: Duration,
    /// Is `true` if the claim has the turn among those that wait: a reader without it asks only where no session waits.
    pub(crate) has_turn: bool,
}

/// The session that keeps a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwningSession {
    Known(i64),
    /// There is one, and this user may not know which.
    Hidden,
}

/// The reasons why a lock could not be asked for.
#[derive(Debug)]
pub enum TakeError {
    /// The statement failed and took nothing.
    Refused(sqlx::Error),
    /// The statement failed and took nothing, and the next one will not fail for this reason.
    Again(sqlx::Error),
    /// The part on another connection failed; this connection is as it was.
    Elsewhere(Failure),
    /// It is not known which locks this connection has now.
    Unknown(sqlx::Error),
}

impl TakeError {
    /// Makes the error of a statement that takes nothing where the server refuses it.
    pub(crate) fn of(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::Database(_) => Self::Refused(error),
            error => Self::Unknown(error),
        }
    }
}

/// The result of a release.
#[derive(Clone, Copy, Debug)]
pub struct Freed {
    /// Is `true` if the session had the lock.
    pub(crate) held: bool,
    /// Is `true` if some session, perhaps of this process, has the turn among those that wait for it.
    pub(crate) awaited: bool,
}

/// The session of a connection, as far as its client knows it.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    #[cfg_attr(not(feature = "mysql"), expect(dead_code, reason = "only MariaDB is asked by it"))]
    pub(crate) id: i64,
    /// Set as long as nothing was asked for on the connection.
    pub(crate) is_new: bool,
}

/// The session that answered, and the result for each lock.
pub(crate) type TakeResult = Result<(i64, Vec<Taken>), TakeError>;

/// The sessions that have a lock, with what is known of the holder: one entry for each reader.
pub(crate) type Owners = Vec<(OwningSession, Holder)>;

/// The state in which a row was found.
#[derive(Debug)]
pub enum Found {
    /// It is locked now, in a transaction that has begun; with its fence, where that was counted at the same time.
    Free(Option<Fence>),
    /// Another session has it, with its holder if that is known.
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
