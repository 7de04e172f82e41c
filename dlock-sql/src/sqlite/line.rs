//! The waiters for a lock, in the order in which they came.
//!
//! Each of them has a row beside the row of the key, with its place as the fence, its token as the holder, and no
//! token, so that the row is not taken for a lock. It expires when the waiter has not asked for some time; then it
//! counts for nothing, and is deleted by the next claim that gets the lock. Numbers begin anew when a line is empty, so
//! that a place is only ever found together with its token.
//!
//! ```text
//!     asks, is not first          asks again: kept            its turn, and the lock is free: `pass`
//!     --------- `stand` ---> place ---------------> place ---------------------------------------------> granted
//!                              |
//!                              +- silent for too long: counts for nothing, deleted by the next `pass`
//! ```

use std::time::{Duration, Instant};

use dlock_core::backend::PREFERENCE_ALIVE;
use dlock_core::{Key, Token};
use sqlx::Row;
use sqlx::sqlite::SqliteConnection;

use super::database::Database;
use super::shares::{State, later, put};
use super::statements::line::{bounds, row};

/// The pause of a waiter for each place before its own; twice that is how much longer its place is kept. Each has a
/// bound.
const PER_PLACE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
const KEPT_LONGEST: Duration = Duration::from_secs(8);
/// The pause of the first in line before it asks again.
const FIRST_ASKS: Duration = Duration::from_millis(4);

/// Returns for how long a place is kept with so many before it.
pub(super) fn kept(before: u32) -> Duration {
    PREFERENCE_ALIVE + PER_PLACE.saturating_mul(before.saturating_mul(2)).min(KEPT_LONGEST)
}

/// The place of a claim, as it knows it.
#[derive(Debug, Default)]
pub(super) struct Place {
    pub(super) number: Option<i64>,
    /// The number of waiters that were before it.
    before: u32,
    /// The moment from which it is worth while to ask again.
    asks_at: Option<Instant>,
}

impl Place {
    pub(super) fn of(number: i64, before: u32) -> Self {
        let pause = (PER_PLACE * before.min(1_000)).min(LONGEST_PAUSE);
        // The first, and the second, ask whenever they may.
        Self { number: Some(number), before, asks_at: (before > 1).then(|| Instant::now() + pause) }
    }

    /// Returns `true` if it is not worth while yet to ask again.
    pub(super) fn pauses(&self) -> bool {
        self.asks_at.is_some_and(|at| Instant::now() < at)
    }

    /// Returns the time after which the engine is to ask again, which may be before the holder's lease ends.
    pub(super) fn retry_after(&self, left: Option<Duration>) -> Option<Duration> {
        if self.before == 0 { Some(left.unwrap_or(FIRST_ASKS).min(FIRST_ASKS)) } else { None }
    }
}

/// Finds the place of a token whose number is not known.
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

/// Takes a place at the end, or keeps the place of the claim. Returns the place, and whether that was lost. `may_have`
/// says that the claim may have a place without knowing it.
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
    // The number may be another waiter's by now: the row is kept only if it has this token.
    if let Some(number) = number {
        let before = before(number);
        let keep = sqlx::query(database.statements.line.keep.clone()).bind(row(key, number));
        let keep = keep.bind(database.boot.clone()).bind(later(state.now, kept(before))).bind(token.to_hex());
        if keep.execute(&mut *on).await?.rows_affected() > 0 {
            return Ok((Place::of(number, before), false));
        }
    }
    // Behind the last row, also that of a silent waiter, which may still come back to its place.
    let [low, high] = bounds(key);
    let last = sqlx::query(database.statements.line.last.clone()).bind(low).bind(high);
    let last = last.fetch_optional(&mut *on).await?.map(|row| row.try_get::<i64, _>(0)).transpose()?;
    let place = last.unwrap_or(0).saturating_add(1);
    let before = before(place);
    let until = later(state.now, kept(before));
    put(database, on, row(key, place), None, (place, until), token.to_hex()).await?;
    Ok((Place::of(place, before), known.is_some()))
}

/// Deletes the place of a waiter that has got the lock, and those before it, whose waiters are silent.
pub(super) async fn pass(
    database: &Database,
    on: &mut SqliteConnection,
    (key, token): (&Key, &Token),
    state: &State,
) -> Result<(), sqlx::Error> {
    let [low, high] = bounds(key);
    let last = match state.first() {
        Some(first) if first.is(token) => row(key, first.place),
        // The claim has the lock already, and others wait.
        Some(_) => return Ok(()),
        // If no waiter is alive there is no place to be kept.
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
