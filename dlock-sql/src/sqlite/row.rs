//! The reading of the rows of a key.

use std::time::Duration;

use dlock_core::Holder;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use crate::stored::{self, SHARED};

/// The state of a lock, by its row.
pub(super) enum Standing {
    Free,
    Held(Box<Holder>),
    /// Several hold it, or it is a semaphore.
    Shared,
}

/// Returns `true` if the token in the row of a key says that several hold it.
fn is_shared(token: Option<&[u8]>) -> bool {
    token == Some(&SHARED)
}

/// Reads the row of a key, as it is to be understood in this boot at this moment.
pub(super) fn understand(row: &SqliteRow, this_boot: &[u8], now: i64) -> Result<Standing, sqlx::Error> {
    let (token, boot): (Option<&[u8]>, &[u8]) = (row.try_get(0)?, row.try_get(2)?);
    let expires: i64 = row.try_get(3)?;
    if token.is_none() || boot != this_boot || expires <= now {
        return Ok(Standing::Free);
    }
    let left = Duration::from_nanos(expires.abs_diff(now));
    if is_shared(token) {
        return Ok(Standing::Shared);
    }
    Ok(Standing::Held(Box::new(stored::holder(row.try_get(4)?, row.try_get(1)?, left))))
}

/// Reads the row of one of several holders: fence, expiry and holder are in these columns.
pub(super) fn share(
    row: &SqliteRow,
    [fence, expires, holder]: [usize; 3],
    of: Option<u32>,
    now: i64,
) -> Result<Holder, sqlx::Error> {
    let left =
        Duration::from_nanos(row.try_get::<i64, _>(expires)?.saturating_sub(now).max(0).unsigned_abs());
    Ok(stored::share(row.try_get(holder)?, row.try_get(fence)?, left, of))
}
