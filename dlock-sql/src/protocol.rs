//! The requests to a server, and its answers.

use std::time::Duration;

use dlock_core::backend::Mode;
use dlock_core::{Fence, Holder, Key, Token};

use crate::way::Way;

pub(crate) type SqlResult<T> = Result<T, sqlx::Error>;

/// The number of rows that are pruned, or listed, in one statement.
pub(crate) const AT_ONCE: u32 = 1_000;

/// An attempt.
#[derive(Clone, Debug)]
pub struct Ask {
    pub(crate) key: Key,
    pub(crate) token: Token,
    pub(crate) lease: Duration,
    pub(crate) holder: String,
    /// The number of fences that are reserved with it.
    pub(crate) fences: u32,
}

/// The answer to an attempt.
#[derive(Debug)]
pub enum Taken {
    /// Granted with this fence, the last of those that were reserved, if grants are counted.
    Granted(Option<Fence>),
    /// Held by another, with its holder if that is known.
    Busy(Option<Box<Holder>>),
    /// The key is held in this other way. Of a lease row that is only what its row says.
    Elsewhere(Way),
    /// The session has the lock, and is to count its grant in a transaction of its own.
    Uncounted,
}

/// The answer to a release of the claim's own lock.
#[derive(Clone, Copy, Debug)]
pub struct Released {
    /// Is `true` if the lease was still running.
    pub(crate) running: bool,
    /// Is `true` if it was noted that a claim waits for the lock.
    pub(crate) awaited: bool,
}

/// The schemas that have a table of some name.
#[derive(Debug, Default)]
pub struct Schemas {
    /// The schemas whose table was made by a user that this one has to trust in any case.
    pub(crate) trusted: Vec<String>,
    /// The others, each with the owner of its table: looking into it could run code of that owner.
    pub(crate) strange: Vec<(String, String)>,
}

/// The result of deleting some rows.
#[derive(Debug)]
pub struct Pruned {
    pub(crate) count: u64,
    /// The last key that was looked at; `None` when there are no more.
    pub(crate) last: Option<Vec<u8>>,
}

/// The identity of a grant: it distinguishes the one in the row of a key from all later ones.
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
