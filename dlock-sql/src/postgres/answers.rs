//! The answers of PostgreSQL.

use std::time::Duration;

use dlock_core::{Holder, Key};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::protocol::{Released, SqlResult, Taken};
use crate::stored::{self, TURN};
use crate::way::{HELD_ELSEWHERE, Way};

/// The pause before the next question about a row that is kept for those in line after its lease.
const KEPT_BEYOND: Duration = Duration::from_millis(50);

/// Reads the holder by fence, remaining time and description from this column on.
pub(super) fn holder(row: &PgRow, from: usize) -> SqlResult<Holder> {
    let left = Duration::from_micros(row.try_get::<i64, _>(from + 1)?.max(0).unsigned_abs());
    Ok(stored::holder(row.try_get(from + 2)?, row.try_get(from)?, left))
}

/// Reads the answer to an attempt: the holder from this column on, of which a grant has only the fence.
pub(super) fn taken(row: &PgRow, from: usize) -> SqlResult<Taken> {
    if row.try_get::<Option<i64>, _>(from + 1)?.is_some() {
        // A row that is kept for those in line has no holder.
        if row.try_get::<Option<&[u8]>, _>(from + 3)? == Some(TURN.as_slice()) {
            return Ok(Taken::Busy(None));
        }
        if row.try_get::<&str, _>(from + 2)?.starts_with(HELD_ELSEWHERE) {
            return Ok(Taken::Elsewhere(Way::Session));
        }
        let mut holder = holder(row, from)?;
        // The lease may have ended, and the row is kept for those in line: they ask soon.
        holder.expires_in = holder.expires_in.map(|left| if left.is_zero() { KEPT_BEYOND } else { left });
        return Ok(Taken::Busy(Some(Box::new(holder))));
    }
    Ok(Taken::Granted(stored::fence(row.try_get(from)?)))
}

/// Reads the answer to a release, from this column on.
pub(super) fn released(row: &PgRow, from: usize) -> SqlResult<Released> {
    Ok(Released { running: row.try_get(from)?, awaited: row.try_get(from + 1)? })
}

/// Reads the rows about so many requests, whose place in their list is the first column.
pub(super) fn placed<T>(
    rows: &[PgRow],
    count: usize,
    read: impl Fn(&PgRow) -> SqlResult<T>,
) -> SqlResult<Vec<Option<T>>> {
    let mut all: Vec<Option<T>> = std::iter::repeat_with(|| None).take(count).collect();
    for row in rows {
        let place = usize::try_from(row.try_get::<i64, _>(0)? - 1).unwrap_or(usize::MAX);
        if let Some(of) = all.get_mut(place) {
            *of = Some(read(row)?);
        }
    }
    Ok(all)
}

pub(super) fn bytes(key: &Key) -> &[u8] {
    key.as_str().as_bytes()
}
