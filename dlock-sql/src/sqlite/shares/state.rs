//! The state of a key that several may hold, by its rows.

use std::time::Duration;

use dlock_core::backend::shares::{HolderEntry, KeyState, Others, Permits, Preference};
use dlock_core::backend::{LEFT_BEHIND, Mode};
use dlock_core::{Fence, Holder, Key, Timestamp, Token};
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use crate::sqlite::database::Database;
use crate::sqlite::statements::line::{self, First};
use crate::sqlite::statements::shares::{beyond, common, own};
use crate::sqlite::time::{self, reading, timestamp};
use crate::stored::{self, SHARED};

/// The rows as they were read, and the state of the key that is changed and written back.
pub(in crate::sqlite) struct State {
    pub(in crate::sqlite) now: i64,
    /// The highest fence of all rows that were deleted.
    mark: i64,
    main: Option<Main>,
    /// Is `true` if there is a row of what all have in common.
    has_common: bool,
    /// The holder whose token was asked for; all others as a sum. What is stored of a holder beside that is its line.
    pub(super) rules: KeyState<String>,
    /// The first of those that wait in order.
    first_in_line: Option<First>,
}

/// The row of the key.
struct Main {
    token: Option<Vec<u8>>,
    fence: i64,
    expires: i64,
    holder: String,
    /// Is `true` if it is held, alone or not.
    is_held: bool,
}

fn number(fence: Fence) -> i64 {
    i64::try_from(fence.get()).unwrap_or(i64::MAX)
}

fn preference(text: &str) -> Option<Preference> {
    let mut parts = text.split(' ');
    let token = Token::from_hex(parts.next()?)?;
    let mut moment = || Some(timestamp(parts.next()?.parse().ok()?));
    Some(Preference { token, since: moment()?, alive_until: moment()? })
}

pub(in crate::sqlite) fn later(at: i64, by: Duration) -> i64 {
    at.saturating_add(time::nanos(by))
}

impl State {
    /// Reads the rows. `token` is that of the claim that asks.
    pub(super) async fn read(
        database: &Database,
        on: &mut SqliteConnection,
        key: &Key,
        token: Option<&Token>,
        now: i64,
    ) -> Result<Self, sqlx::Error> {
        let state = sqlx::query(database.statements.shares.state.clone())
            .bind(key.as_str().as_bytes().to_vec())
            .bind(common(key))
            .bind(token.map(|token| own(key, token)))
            .bind(beyond(key))
            .bind(database.boot.clone())
            .bind(now);
        let [low, high] = line::bounds(key);
        let state = state.bind(low).bind(high).bind(token.map(Token::to_hex));
        Self::parse(&state.fetch_one(on).await?, &database.boot, token, now)
    }

    fn parse(
        row: &SqliteRow,
        this_boot: &[u8],
        token: Option<&Token>,
        now: i64,
    ) -> Result<Self, sqlx::Error> {
        let is_of_now =
            |column| Ok::<_, sqlx::Error>(row.try_get::<Option<&[u8]>, _>(column)? == Some(this_boot));
        let main = match row.try_get::<Option<i64>, _>(2)? {
            None => None,
            Some(fence) => {
                let (token, expires): (Option<Vec<u8>>, i64) = (row.try_get(1)?, row.try_get(4)?);
                let is_held = token.is_some() && expires > now && is_of_now(3)?;
                Some(Main { token, fence, expires, holder: row.try_get(5)?, is_held })
            }
        };
        let first_in_line = row.try_get::<Option<&str>, _>(16)?.and_then(First::parse);
        let has_common = row.try_get::<Option<i64>, _>(6)?.is_some();
        let (mark, rules) = (row.try_get(0)?, KeyState::new());
        let mut state = Self { now, mark, main, has_common, rules, first_in_line };
        let mut rules = KeyState::new()
            .with_last_fence(Fence::new(state.last_fence().max(0).unsigned_abs()))
            .with_first_in_queue(state.first_in_line.as_ref().and_then(First::to_entry));
        if is_of_now(7)? {
            let preferred =
                preference(row.try_get(8)?).filter(|preferred| !preferred.is_over(timestamp(now)));
            rules = rules.with_preference(preferred);
        }
        if !state.is_shared() {
            // All else that stands there is of earlier holders.
            let alone = state.main.as_ref().filter(|main| main.is_held).map(Main::to_entry);
            state.rules = alone.into_iter().fold(rules, KeyState::with_holder);
            return Ok(state);
        }
        let of = row.try_get::<Option<i64>, _>(6)?.and_then(|of| u32::try_from(of).ok()).filter(|of| *of > 0);
        rules = rules.with_permits(of.map(|of| Permits { of, remembered_until: timestamp(state.until()) }));
        if let (true, Some(token), Some(fence)) = (is_of_now(10)?, token, row.try_get::<Option<i64>, _>(9)?)
            && let expires = row.try_get::<i64, _>(11)?
            && expires > now
        {
            let detail: String = row.try_get(12)?;
            let Holder { mode, left_behind, .. } = stored::share(&detail, fence, Duration::ZERO, of);
            let fence = Fence::new(fence.max(0).unsigned_abs());
            let (token, expires) = (*token, timestamp(expires));
            rules = rules.with_holder(HolderEntry { token, mode, fence, expires, left_behind, detail });
        }
        if let Some(taken) = row.try_get::<Option<i64>, _>(13)? {
            rules = rules.with_others(Some(Others {
                taken: u32::try_from(taken).unwrap_or(u32::MAX),
                first_end: timestamp(row.try_get(14)?),
                last_end: timestamp(row.try_get(15)?),
            }));
        }
        state.rules = rules;
        Ok(state)
    }

    /// Returns the first of those that wait in order.
    pub(in crate::sqlite) const fn first(&self) -> Option<&First> {
        self.first_in_line.as_ref()
    }

    /// Returns `true` if several hold it, or it is remembered as a semaphore.
    pub(super) fn is_shared(&self) -> bool {
        self.main.as_ref().is_some_and(|main| main.is_held && main.token.as_deref() == Some(&SHARED))
    }

    /// Returns the holder of a lock that is held alone.
    pub(super) fn exclusive(&self, now: i64) -> Option<Holder> {
        let main = self.main.as_ref().filter(|main| main.is_held && !self.is_shared())?;
        let left = Duration::from_nanos(main.expires.saturating_sub(now).max(0).unsigned_abs());
        Some(stored::holder(&main.holder, main.fence, left))
    }

    /// Returns the moment for which the rows were read.
    pub(super) fn at(&self) -> Timestamp {
        timestamp(self.now)
    }

    pub(super) fn permits(&self) -> Option<u32> {
        self.rules.permits(self.at())
    }

    /// Returns the least fence of the next grant.
    pub(super) fn least_fence(&self) -> Fence {
        Fence::new(time::wall_micros().max(self.mark.saturating_add(1)).max(1).unsigned_abs())
    }

    /// Returns the fence in the row of the key, which is that of the last grant.
    fn last_fence(&self) -> i64 {
        self.main.as_ref().map_or(0, |main| main.fence)
    }

    /// Returns until when the row of the key is taken.
    fn until(&self) -> i64 {
        self.main.as_ref().map_or(self.now, |main| main.expires)
    }

    /// Returns the line about the holder that was granted last.
    pub(super) fn last_line(&self) -> &str {
        self.main.as_ref().map_or("", |main| &main.holder)
    }

    /// Writes the state of a key that is held alone from now on.
    pub(super) async fn write_alone(
        &self,
        database: &Database,
        on: &mut SqliteConnection,
        (key, token): (&Key, &Token),
        line: String,
    ) -> Result<(), sqlx::Error> {
        let Some(held) = self.rules.holder(token, self.at()) else { return Ok(()) };
        let last = self.rules.last_fence();
        let (name, expires) = (key.as_str().as_bytes().to_vec(), reading(held.expires));
        put(database, on, name, Some(token.as_bytes()), (number(last), expires), line).await
    }

    /// Writes the state of a key that several hold, or none: the row of the key, with the line about the holder that
    /// was granted last, what all have in common, and the share of this token.
    pub(super) async fn write(
        &self,
        database: &Database,
        on: &mut SqliteConnection,
        (key, token): (&Key, &Token),
        last_line: String,
    ) -> Result<(), sqlx::Error> {
        let now = self.at();
        let until = self.rules.taken_until(now).map(reading);
        let (shared, expires) = (until.map(|_| SHARED), until.unwrap_or(self.now));
        let name = key.as_str().as_bytes().to_vec();
        let fence = number(self.rules.last_fence());
        put(database, &mut *on, name, shared.as_ref(), (fence, expires), last_line).await?;
        self.write_common(database, &mut *on, key).await?;
        let Some(held) = self.rules.holder(token, now) else { return Ok(()) };
        let fence_and_end = (number(held.fence), reading(held.expires));
        put(database, on, own(key, token), Some(token.as_bytes()), fence_and_end, held.detail.clone()).await
    }

    /// Writes what all of them have in common.
    pub(super) async fn write_common(
        &self,
        database: &Database,
        on: &mut SqliteConnection,
        key: &Key,
    ) -> Result<(), sqlx::Error> {
        let (preferred, permits) = (self.rules.preferred(), self.rules.stored_permits());
        if permits.is_none() && preferred.is_none() {
            return if self.has_common { delete(database, on, common(key)).await } else { Ok(()) };
        }
        // So that it is not pruned before the row of the key.
        let until = preferred.map(|preferred| preferred.alive_until);
        let until = until.max(permits.and_then(|_| self.rules.taken_until(self.at())));
        let text = preferred.map(|Preference { token, since, alive_until }| {
            format!("{} {} {}", token.to_hex(), reading(since), reading(alive_until))
        });
        let of = permits.map_or(0, |permits| i64::from(permits.of));
        let until = until.map_or(0, reading);
        put(database, on, common(key), Some(&SHARED), (of, until), text.unwrap_or_default()).await
    }
}

impl Main {
    fn to_entry(&self) -> HolderEntry<String> {
        let token = self.token.as_deref().and_then(|token| token.try_into().ok()).map(Token::from_bytes);
        HolderEntry {
            token: token.unwrap_or(Token::from_bytes([0; 16])),
            mode: Mode::Exclusive,
            fence: Fence::new(self.fence.max(0).unsigned_abs()),
            expires: timestamp(self.expires),
            left_behind: self.holder.starts_with(LEFT_BEHIND),
            detail: self.holder.clone(),
        }
    }
}

/// Deletes a row.
pub(super) async fn delete(
    database: &Database,
    on: &mut SqliteConnection,
    key: Vec<u8>,
) -> Result<(), sqlx::Error> {
    sqlx::query(database.statements.shares.delete.clone()).bind(key).execute(on).await.map(drop)
}

/// Writes a row, whatever stands there.
pub(in crate::sqlite) async fn put(
    database: &Database,
    on: &mut SqliteConnection,
    key: Vec<u8>,
    token: Option<&[u8; 16]>,
    (fence, expires): (i64, i64),
    holder: String,
) -> Result<(), sqlx::Error> {
    let put = sqlx::query(database.statements.shares.put.clone());
    let put = put.bind(key).bind(token.map(|token| token.to_vec())).bind(fence);
    put.bind(database.boot.clone()).bind(expires).bind(holder).execute(on).await.map(drop)
}
