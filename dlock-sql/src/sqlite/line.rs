//! Who waits for a lock in the order in which they came.
//!
//! Each of them has a row beside the row of the key, with its place as the fence, its token as the holder, and no
//! token, so that nobody takes it for a lock. It expires when nothing is heard of the waiter; then it counts for
//! nothing, and is deleted by the next one who gets the lock. Numbers begin anew when a line is empty, so that a place
//! is only ever found together with its token.

use std::time::{Duration, Instant};

use dlock_core::backend::{Attempt, Busy, PREFERENCE_ALIVE};
use dlock_core::{Failure, Key, Token};
use sqlx::sqlite::SqliteConnection;
use sqlx::{Row, SqlStr};

use super::claim::{SqliteClaim, Standing, understand};
use super::connections::Until;
use super::database::Database;
use super::failure::classify;
use super::shares::{State, later, put};
use super::time;
use crate::failure::unchanged;
use crate::table::TableName;
use crate::text::sql;

/// What begins the keys of these rows, which no text begins with, and what follows the key there.
const LINE: u8 = 0xfc;
const END: u8 = 0xfe;

/// How much longer a waiter pauses for each place before its own, and twice that is how much longer its place is kept,
/// each up to a bound.
const PER_PLACE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
const KEPT_LONGEST: Duration = Duration::from_secs(8);
/// How long the first in line pauses before it asks again.
const FIRST_ASKS: Duration = Duration::from_millis(4);

/// What is lower than the keys of all places, and what is higher.
pub(super) fn bounds(key: &Key) -> [Vec<u8>; 2] {
    [END, END + 1].map(|end| [&[LINE], key.as_str().as_bytes(), &[end]].concat())
}

fn row(key: &Key, place: i64) -> Vec<u8> {
    let [mut name, _] = bounds(key);
    name.extend_from_slice(&place.to_be_bytes());
    name
}

/// Whether somebody has a place, in a statement where these are the bounds, the boot and now.
pub(super) fn exists(table: &TableName, [low, high, boot, now]: [&str; 4]) -> String {
    format!(
        r#"EXISTS (SELECT 1 FROM "{table}" AS line WHERE line.key > {low} AND line.key < {high}
            AND line.boot = {boot} AND line.expires > {now})"#
    )
}

#[derive(Debug)]
pub(super) struct LineStatements {
    /// bounds, holder: the place.
    find: SqlStr,
    /// bounds: the last place.
    last: SqlStr,
    /// key, boot, expiry, holder: keeps a place.
    keep: SqlStr,
    /// key, holder: gives one up.
    leave: SqlStr,
    /// key below, key that is the last: deletes places.
    clear: SqlStr,
    /// key of the lock, key of the place, bounds, boot, now, holder: the row of the lock, until when the place is kept,
    /// and who is first.
    look: SqlStr,
}

impl LineStatements {
    pub(super) fn of(table: &TableName) -> Self {
        Self {
            find: sql(format!(
                r#"SELECT fence FROM "{table}" WHERE key > ?1 AND key < ?2 AND holder = ?3 LIMIT 1"#
            )),
            last: sql(format!(
                r#"SELECT fence FROM "{table}" WHERE key > ?1 AND key < ?2 ORDER BY key DESC LIMIT 1"#
            )),
            keep: sql(format!(
                r#"UPDATE "{table}" SET boot = ?2, expires = ?3 WHERE key = ?1 AND holder = ?4"#
            )),
            leave: sql(format!(r#"DELETE FROM "{table}" WHERE key = ?1 AND holder = ?2"#)),
            clear: sql(format!(r#"DELETE FROM "{table}" WHERE key > ?1 AND key <= ?2"#)),
            look: sql(format!(
                r#"SELECT main.token, main.fence, main.boot, main.expires, main.holder,
                    (SELECT expires FROM "{table}" WHERE key = ?2 AND holder = ?7), {}
                FROM "{table}" AS main WHERE main.key = ?1"#,
                first_of(table, ["?3", "?4", "?5", "?6", "?7"])
            )),
        }
    }
}

/// The first in line, as [`First::parse`] reads it, in a statement where these are the bounds, the boot, now, and who
/// asks, who is alive in any case.
pub(super) fn first_of(table: &TableName, [low, high, boot, now, asking]: [&str; 5]) -> String {
    format!(
        r#"(SELECT fence || ' ' || expires || ' ' || holder FROM "{table}" WHERE key > {low} AND key < {high}
            AND boot = {boot} AND (expires > {now} OR holder = {asking}) ORDER BY key LIMIT 1)"#
    )
}

/// The first in line.
pub(super) struct First {
    place: i64,
    /// Until when its place is kept if nothing is heard of it.
    pub(super) until: i64,
    token: String,
}

impl First {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(' ');
        let (place, until) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(Self { place, until, token: parts.next()?.to_owned() })
    }

    pub(super) fn is(&self, token: &Token) -> bool {
        self.token == token.to_hex()
    }

    /// How many are before this place, at the most.
    fn before(&self, place: i64) -> u32 {
        u32::try_from(place.saturating_sub(self.place)).unwrap_or(u32::MAX)
    }
}

/// For how long a place is kept with so many before it.
fn kept(before: u32) -> Duration {
    PREFERENCE_ALIVE + PER_PLACE.saturating_mul(before.saturating_mul(2)).min(KEPT_LONGEST)
}

/// What a claim knows of its place.
#[derive(Debug, Default)]
pub(super) struct Place {
    pub(super) number: Option<i64>,
    /// How many were before it.
    before: u32,
    /// When it is worth while to ask again.
    asks_at: Option<Instant>,
}

impl Place {
    fn of(number: i64, before: u32) -> Self {
        let pause = (PER_PLACE * before.min(1_000)).min(LONGEST_PAUSE);
        // The first, and the second, ask whenever they may.
        Self { number: Some(number), before, asks_at: (before > 1).then(|| Instant::now() + pause) }
    }

    /// When the engine is to ask again, which may be before the holder's lease ends.
    pub(super) fn retry_after(&self, left: Option<Duration>) -> Option<Duration> {
        if self.before == 0 { Some(left.unwrap_or(FIRST_ASKS).min(FIRST_ASKS)) } else { None }
    }
}

/// The place of a token, where its number is not known.
async fn find(
    database: &Database,
    on: &mut SqliteConnection,
    key: &Key,
    token: &Token,
) -> Result<Option<i64>, sqlx::Error> {
    let [low, high] = bounds(key);
    let find = sqlx::query(database.statements.line.find.clone()).bind(low).bind(high).bind(token.to_hex());
    find.fetch_optional(on).await?.map(|row| row.try_get(0)).transpose()
}

/// Takes a place at the end, or keeps the one that the claim has; and whether that was lost. `may_have` tells that it
/// may have one that it does not know of.
pub(super) async fn stand(
    database: &Database,
    on: &mut SqliteConnection,
    (key, token): (&Key, &Token),
    (known, may_have): (Option<i64>, bool),
    state: &State,
) -> Result<(Place, bool), sqlx::Error> {
    let before = |place| state.first().map_or(0, |first| first.before(place));
    let number = match known {
        None if may_have => find(database, &mut *on, key, token).await?,
        known => known,
    };
    if let Some(number) = number {
        let before = before(number);
        let keep = sqlx::query(database.statements.line.keep.clone()).bind(row(key, number));
        let keep = keep.bind(database.boot.clone()).bind(later(state.now, kept(before))).bind(token.to_hex());
        if keep.execute(&mut *on).await?.rows_affected() > 0 {
            return Ok((Place::of(number, before), false));
        }
    }
    let [low, high] = bounds(key);
    let last = sqlx::query(database.statements.line.last.clone()).bind(low).bind(high);
    let last = last.fetch_optional(&mut *on).await?.map(|row| row.try_get::<i64, _>(0)).transpose()?;
    let place = last.unwrap_or(0).saturating_add(1);
    let before = before(place);
    let until = later(state.now, kept(before));
    put(database, on, row(key, place), None, (place, until), token.to_hex()).await?;
    Ok((Place::of(place, before), known.is_some()))
}

/// Deletes the place of a waiter that has got the lock, and those before it, of whose waiters nothing is heard.
pub(super) async fn pass(
    database: &Database,
    on: &mut SqliteConnection,
    (key, token): (&Key, &Token),
    state: &State,
) -> Result<(), sqlx::Error> {
    let [low, high] = bounds(key);
    let last = match state.first() {
        Some(first) if first.is(token) => row(key, first.place),
        // It has the lock already, and others wait.
        Some(_) => return Ok(()),
        // Without anybody who is alive there is none to be kept.
        None => high,
    };
    let clear = sqlx::query(database.statements.line.clear.clone()).bind(low).bind(last);
    clear.execute(on).await.map(drop)
}

/// Gives a place up.
pub(super) async fn leave(
    database: &Database,
    on: &mut SqliteConnection,
    (key, token): (&Key, &Token),
    known: Option<i64>,
) -> Result<(), sqlx::Error> {
    let number = match known {
        None => find(database, &mut *on, key, token).await?,
        known => known,
    };
    let Some(number) = number else { return Ok(()) };
    let leave = sqlx::query(database.statements.line.leave.clone()).bind(row(key, number));
    leave.bind(token.to_hex()).execute(on).await.map(drop)
}

impl SqliteClaim {
    /// Returns the answer to an attempt of a waiter in line where none has to be written: its place is kept for long
    /// enough, and it is not its turn.
    pub(super) async fn look_in_line(
        &mut self,
        database: &Database,
        until: Until,
    ) -> Result<Option<Attempt>, Failure> {
        let (Some(number), None) = (self.place.number, self.unsettled) else { return Ok(None) };
        if self.place.asks_at.is_some_and(|at| Instant::now() < at) {
            return Ok(Some(Attempt::Busy(Busy::default())));
        }
        let request = &self.request;
        let mut turn = database.connections.reader(until).await?;
        let answer = turn
            .run(until, |now| {
                let [low, high] = bounds(&request.key);
                let look = sqlx::query(database.statements.line.look.clone());
                let look =
                    look.bind(request.key.as_str().as_bytes().to_vec()).bind(row(&request.key, number));
                let look = look.bind(low).bind(high).bind(database.boot.clone()).bind(now);
                look.bind(request.token.to_hex())
            })
            .await;
        drop(turn);
        let now = time::now();
        let found = answer.and_then(|answer| {
            let Some(row) = answer.rows.first() else { return Ok(None) };
            let (kept_until, first): (Option<i64>, Option<&str>) = (row.try_get(5)?, row.try_get(6)?);
            Ok(Some((understand(row, &database.boot, now)?, kept_until, first.and_then(First::parse))))
        });
        let found = found.map_err(|error| unchanged(classify(error, database.connections.path())))?;
        let Some((standing, Some(kept_until), Some(first))) = found else { return Ok(None) };
        let before = first.before(number);
        if kept_until < later(now, kept(before) / 2) {
            return Ok(None);
        }
        let place = Place::of(number, before);
        let mut busy = Busy::default();
        match standing {
            Standing::Held(holder) => {
                busy.retry_after = place.retry_after(holder.expires_in);
                busy.holder = Some(holder);
            }
            Standing::Free if !first.is(&request.token) => {}
            Standing::Free | Standing::Shared => return Ok(None),
        }
        self.place = place;
        Ok(Some(Attempt::Busy(busy)))
    }
}
