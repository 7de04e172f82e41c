//! What PostgreSQL answers.

use std::time::Duration;

use dlock_core::{Holder, Key};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::protocol::{Released, SqlResult, Taken};
use crate::stored::{self, TURN};
use crate::way::{HELD_ELSEWHERE, Way};

/// When to ask again for a row that is kept for those in line after its lease.
const KEPT_BEYOND: Duration = Duration::from_millis(50);

/// The holder by fence, remaining time and description from this column on.
pub(super) fn holder(row: &PgRow, from: usize) -> SqlResult<Holder> {
    let left = Duration::from_micros(row.try_get::<i64, _>(from + 1)?.max(0).unsigned_abs());
    Ok(stored::holder(row.try_get(from + 2)?, row.try_get(from)?, left))
}

/// What an attempt came to: the holder from this column on, of which a grant has only the fence.
pub(super) fn taken(row: &PgRow, from: usize) -> SqlResult<Taken> {
    if row.try_get::<Option<i64>, _>(from + 1)?.is_some() {
        // Nobody has what is kept for those in line.
        if row.try_get::<Option<&[u8]>, _>(from + 3)? == Some(TURN.as_slice()) {
            return Ok(Taken::Busy(None));
        }
        if row.try_get::<&str, _>(from + 2)?.starts_with(HELD_ELSEWHERE) {
            return Ok(Taken::Elsewhere(Way::Session));
        }
        let mut holder = holder(row, from)?;
        // Its lease may have ended, and it is kept for those in line: they ask soon.
        holder.expires_in = holder.expires_in.map(|left| if left.is_zero() { KEPT_BEYOND } else { left });
        return Ok(Taken::Busy(Some(Box::new(holder))));
    }
    Ok(Taken::Granted(stored::fence(row.try_get(from)?)))
}

/// What a release found, from this column on.
pub(super) fn released(row: &PgRow, from: usize) -> SqlResult<Released> {
    Ok(Released { running: row.try_get(from)?, awaited: row.try_get(from + 1)? })
}

/// What the rows say of each of so many requests, whose place in their list is the first column.
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
