//! Who waits for a lock in the order in which they came.
//!
//! Each of them has a row beside the row of the key, with its place as the fence, its token as the holder, and no
//! token, so that nobody takes it for a lock. It expires when nothing is heard of the waiter; then it counts for
//! nothing, and is deleted by the next one who gets the lock. Numbers begin anew when a line is empty, so that a place
//! is only ever found together with its token.

use std::time::{Duration, Instant};

use dlock_core::backend::PREFERENCE_ALIVE;
use dlock_core::{Key, Token};
use sqlx::Row;
use sqlx::sqlite::SqliteConnection;

use super::database::Database;
use super::shares::{State, later, put};
use super::statements::line::{bounds, row};

/// How much longer a waiter pauses for each place before its own, and twice that is how much longer its place is kept,
/// each up to a bound.
const PER_PLACE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
const KEPT_LONGEST: Duration = Duration::from_secs(8);
/// How long the first in line pauses before it asks again.
const FIRST_ASKS: Duration = Duration::from_millis(4);

/// For how long a place is kept with so many before it.
pub(super) fn kept(before: u32) -> Duration {
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
    pub(super) fn of(number: i64, before: u32) -> Self {
        let pause = (PER_PLACE * before.min(1_000)).min(LONGEST_PAUSE);
        // The first, and the second, ask whenever they may.
        Self { number: Some(number), before, asks_at: (before > 1).then(|| Instant::now() + pause) }
    }

    /// Whether it is not worth while yet to ask again.
    pub(super) fn pauses(&self) -> bool {
        self.asks_at.is_some_and(|at| Instant::now() < at)
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
