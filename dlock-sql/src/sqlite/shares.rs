//! What several hold at a time: readers, and those with permits of a semaphore.
//!
//! Each of them has a row of its own beside the row of the key, which somebody else seems to have as long as any of
//! them is there, or the number of permits is remembered: its token is [`SHARED`], and its lease ends no earlier than
//! theirs. So whoever wants the lock alone, and knows nothing of all this, finds it taken. They mean nothing when that
//! row is free, or another one's.
//!
//! One more row has what all of them have in common: how many permits there are, and who keeps newcomers out.

mod claim;
mod state;

use std::time::Duration;

use dlock_core::backend::{Forced, Mode, Occupancy, PERMITS_REMEMBERED};
use dlock_core::{Failure, Holder, Key, Token};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqlStr};

use super::connections::Until;
use super::database::Database;
use super::failure::classify;
use super::line::first_of;
use super::time;
use crate::failure::unchanged;
use crate::stored::{self, SHARED};
use crate::table::TableName;
use crate::text::sql;

pub(super) use state::{State, later, put};

/// What begins the keys of the rows beside a key, which no text begins with.
const BESIDE: u8 = 0xfd;
/// What follows the key there.
const END: u8 = 0xfe;

/// The key of the row that all have in common.
fn common(key: &Key) -> Vec<u8> {
    [&[BESIDE], key.as_str().as_bytes(), &[END]].concat()
}

/// The key of the row of one of them.
pub(super) fn own(key: &Key, token: &Token) -> Vec<u8> {
    [&common(key), token.as_bytes().as_slice()].concat()
}

/// What is higher than the keys of all of them.
fn beyond(key: &Key) -> Vec<u8> {
    [&[BESIDE], key.as_str().as_bytes(), &[END + 1]].concat()
}

/// Whether the token in the row of a key says that several hold it.
pub(super) fn is_shared(token: Option<&[u8]>) -> bool {
    token == Some(&SHARED)
}

/// For how long the row of the key stays taken by one of them.
pub(super) fn kept(mode: Mode, lease: Duration) -> Duration {
    if mode.permits().is_some() { lease.max(PERMITS_REMEMBERED) } else { lease }
}

/// The statements. A list is as in those that renew, with how long the row of the key is kept
/// and the key of what is extended after that.
#[derive(Debug)]
pub(super) struct ShareStatements {
    /// Changes nothing, and lets nobody else write.
    lock: SqlStr,
    /// key, key of what is in common, key of ours, what is higher than all keys, boot, now, bounds of the line, who
    /// asks: the state.
    state: SqlStr,
    /// key, token, fence, boot, expiry, holder: writes a row.
    put: SqlStr,
    /// key: deletes a row, and gives its boot and expiry.
    delete: SqlStr,
    /// key of what is in common, what is higher than all keys: deletes that row and those between.
    clear: SqlStr,
    /// key of what is in common, what is higher than all keys, boot, now: the rows between, the first to end first.
    all: SqlStr,
    /// now, list, boot: keeps the rows of keys that several hold.
    keep: SqlStr,
    /// now, list, boot: extends what is ours.
    pub(super) renew: SqlStr,
    /// now, list, boot: the places in the list of what is ours.
    pub(super) ours: SqlStr,
}

impl ShareStatements {
    pub(super) fn of(table: &TableName) -> Self {
        let shared = format!("x'{}'", SHARED.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
        let listed = "(SELECT json_each.key AS place, unhex(value ->> 0) AS key, unhex(value ->> 1) AS token, \
                      value ->> 2 AS lease, value ->> 3 AS kept, unhex(value ->> 4) AS beside FROM json_each(?2)) AS listed";
        let is_shared = format!("main.token = {shared} AND main.boot = ?3 AND main.expires > ?1");
        let is_ours = format!(
            r#"held.key = listed.beside AND held.token = listed.token AND held.boot = ?3 AND held.expires > ?1
            AND EXISTS (SELECT 1 FROM "{table}" AS main WHERE main.key = listed.key AND {is_shared})"#
        );
        Self {
            lock: sql(format!(r#"DELETE FROM "{table}" WHERE false"#)),
            state: sql(format!(
                r#"SELECT mark.fence, main.token, main.fence, main.boot, main.expires, main.holder,
                    common.fence, common.boot, common.holder, own.fence, own.boot, own.expires, own.holder,
                    others.taken, others.first, others.last, {}
                FROM "{table}" AS mark LEFT JOIN "{table}" AS main ON main.key = ?1
                LEFT JOIN "{table}" AS common ON common.key = ?2 LEFT JOIN "{table}" AS own ON own.key = ?3
                LEFT JOIN (SELECT sum(CAST(holder AS INTEGER)) AS taken, min(expires) AS first, max(expires) AS last
                    FROM "{table}" WHERE key > ?2 AND key < ?4 AND boot = ?5 AND expires > ?6) AS others
                WHERE mark.key = x''"#,
                first_of(table, ["?7", "?8", "?5", "?6", "?9"])
            )),
            put: sql(format!(
                r#"INSERT INTO "{table}" (key, token, fence, boot, expires, holder) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
                ON CONFLICT (key) DO UPDATE SET token = excluded.token, fence = excluded.fence, boot = excluded.boot,
                    expires = excluded.expires, holder = excluded.holder"#
            )),
            delete: sql(format!(r#"DELETE FROM "{table}" WHERE key = ?1"#)),
            clear: sql(format!(r#"DELETE FROM "{table}" WHERE key >= ?1 AND key < ?2"#)),
            all: sql(format!(
                r#"SELECT fence, expires, holder FROM "{table}"
                WHERE key > ?1 AND key < ?2 AND boot = ?3 AND expires > ?4 ORDER BY expires"#
            )),
            keep: sql(format!(
                r#"UPDATE "{table}" AS main SET expires = max(main.expires, ?1 + listed.kept)
                FROM (SELECT listed.key, max(listed.kept) AS kept FROM {listed} CROSS JOIN "{table}" AS held
                    WHERE {is_ours} GROUP BY listed.key) AS listed
                WHERE main.key = listed.key AND {is_shared}"#
            )),
            renew: sql(format!(
                r#"UPDATE "{table}" AS held SET expires = ?1 + listed.lease FROM {listed} WHERE {is_ours}"#
            )),
            ours: sql(format!(
                r#"SELECT listed.place FROM {listed} CROSS JOIN "{table}" AS held WHERE {is_ours}"#
            )),
        }
    }

    pub(super) const fn keep(&self) -> &SqlStr {
        &self.keep
    }
}

/// One of them, as its row says: fence, expiry and holder are in these columns.
pub(super) fn holder(
    row: &SqliteRow,
    [fence, expires, holder]: [usize; 3],
    of: Option<u32>,
    now: i64,
) -> Result<Holder, sqlx::Error> {
    let left =
        Duration::from_nanos(row.try_get::<i64, _>(expires)?.saturating_sub(now).max(0).unsigned_abs());
    Ok(stored::share(row.try_get(holder)?, row.try_get(fence)?, left, of))
}

/// The key that a row is beside of; and whether it is the one that all have in common.
pub(super) fn parse(bytes: &[u8]) -> Option<(&str, bool)> {
    let rest = bytes.strip_prefix(&[BESIDE])?;
    let end = rest.iter().position(|byte| *byte == END)?;
    Some((std::str::from_utf8(&rest[..end]).ok()?, end + 1 == rest.len()))
}

impl Database {
    /// All who hold a key.
    pub(super) async fn occupancy(&self, key: &Key) -> Result<Occupancy, Failure> {
        let failed = |error| unchanged(classify(error, self.connections.path()));
        let until = Until::after(super::database::OPENING);
        let mut turn = self.connections.reader(until).await?;
        // In a transaction, so that all is of one moment.
        let mut reading = turn.begin().await.map_err(failed)?;
        let now = time::now();
        let state = State::read(self, &mut reading, key, None, now).await.map_err(failed)?;
        let holders = match state.is_shared() {
            true => self.shares(&mut reading, key, &state).await.map_err(failed)?,
            false => state.exclusive(now).into_iter().collect(),
        };
        reading.commit().await.map_err(failed)?;
        Ok(Occupancy::new(state.permits(), holders))
    }

    /// Those who hold it together, the first to end first.
    async fn shares(
        &self,
        on: &mut sqlx::SqliteConnection,
        key: &Key,
        state: &State,
    ) -> Result<Vec<Holder>, sqlx::Error> {
        let all = sqlx::query(self.statements.shares.all.clone());
        let all = all.bind(common(key)).bind(beyond(key)).bind(self.boot.clone()).bind(state.now);
        let rows = all.fetch_all(on).await?;
        rows.iter().map(|row| holder(row, [0, 1, 2], state.permits(), state.now)).collect()
    }

    /// Frees the lock whoever holds it, or only if all of them were seen.
    pub(super) async fn force(&self, key: &Key, seen: Option<&[Holder]>) -> Result<Forced, Failure> {
        let failed = |error| classify(error, self.connections.path());
        let until = Until::after(super::database::OPENING);
        let (mut turn, _) = self.connections.writer(super::connections::Writer::Any, until).await?;
        let mut writing = turn.begin_writing(&self.statements.shares.lock, until).await.map_err(failed)?;
        let now = time::now();
        let state = State::read(self, &mut writing, key, None, now).await.map_err(failed)?;
        let holders = match state.is_shared() {
            true => self.shares(&mut writing, key, &state).await.map_err(failed)?,
            false => state.exclusive(now).into_iter().collect(),
        };
        if let Some(answer) = seen.and_then(|seen| Forced::without_release(&holders, seen)) {
            return Ok(answer);
        }
        let force = sqlx::query(self.statements.force.clone()).bind(key.as_str().as_bytes().to_vec());
        let forced = force.bind(self.boot.clone()).bind(now).execute(&mut *writing).await.map_err(failed)?;
        writing.commit().await.map_err(failed)?;
        // The row of a semaphore seems to be held also while it is only remembered.
        Ok(if forced.rows_affected() == 1 && !holders.is_empty() { Forced::Released } else { Forced::Free })
    }

    /// Changes how many permits there are; how many there were.
    pub(super) async fn resize(&self, key: &Key, permits: u32) -> Result<Option<u32>, Failure> {
        let failed = |error| classify(error, self.connections.path());
        let until = Until::after(super::database::OPENING);
        let (mut turn, _) = self.connections.writer(super::connections::Writer::Any, until).await?;
        let mut writing = turn.begin_writing(&self.statements.shares.lock, until).await.map_err(failed)?;
        let mut state = State::read(self, &mut writing, key, None, time::now()).await.map_err(failed)?;
        let before = state.permits();
        if before.is_none() {
            let is_lock = state.exclusive(state.now).is_some() || state.taken > 0;
            let conflict = Mode::Permits { of: permits, take: 1 }.conflict(&Mode::Shared);
            return conflict.filter(|_| is_lock).map_or(Ok(None), Err);
        }
        state.set_permits(permits);
        state.write_common(self, &mut writing, key).await.map_err(failed)?;
        writing.commit().await.map_err(failed)?;
        Ok(before)
    }
}
