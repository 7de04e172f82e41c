//! What a server is asked, and what it answers.

use std::time::Duration;

use dlock_core::backend::Mode;
use dlock_core::{Fence, Holder, Key, Token};

use crate::way::Way;

pub(crate) type SqlResult<T> = Result<T, sqlx::Error>;

/// How many rows are pruned, or listed, in one statement.
pub(crate) const AT_ONCE: u32 = 1_000;

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
    /// It is held in this other way. Of a lease row that is only what its row says.
    Elsewhere(Way),
    /// The session has it, and is to count its grant in a transaction of its own.
    Uncounted,
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
