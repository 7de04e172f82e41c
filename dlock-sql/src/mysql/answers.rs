//! The answers of MariaDB and MySQL.

use std::time::Duration;

use dlock_core::{Fence, Holder, Key};
use sqlx::Row;
use sqlx::mysql::{MySqlQueryResult, MySqlRow};

use crate::protocol::{SqlResult, Taken};
use crate::stored;

/// Returns the grant, whose fence is the last insert id, if the one row was written.
pub(super) fn granted(done: &MySqlQueryResult) -> Option<Taken> {
    let fence = || stored::fence(done.last_insert_id().cast_signed());
    (done.rows_affected() == 1).then(|| Taken::Granted(fence()))
}

/// Returns the fence of a grant that was counted now, which is not below zero, if the one row was written.
pub(super) fn counted(done: &MySqlQueryResult) -> Option<Fence> {
    match granted(done) {
        Some(Taken::Granted(fence)) => fence,
        _ => None,
    }
}

/// The state of a lock, by its row.
pub(super) enum Standing {
    Missing,
    Free,
    Kept,
    Held(Box<Holder>),
    /// Held by a session or a transaction.
    Elsewhere,
}

/// Reads the holder by fence, remaining time and description from this column on.
pub(super) fn holder(row: &MySqlRow, from: usize) -> SqlResult<Holder> {
    let left = Duration::from_micros(row.try_get::<i64, _>(from + 1)?.max(0).unsigned_abs());
    Ok(stored::holder(&String::from_utf8_lossy(row.try_get(from + 2)?), row.try_get(from)?, left))
}

pub(super) fn bytes(key: &Key) -> &[u8] {
    key.as_str().as_bytes()
}
