//! What stands in the rows of a key that several may hold.

use std::time::Duration;

use dlock_core::backend::{ClaimRequest, Mode, PREFERENCE, PREFERENCE_ALIVE};
use dlock_core::{Holder, Key, Token};
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use crate::sqlite::database::Database;
use crate::sqlite::statements::line::{self, First};
use crate::sqlite::statements::shares::{beyond, common, own};
use crate::sqlite::time;
use crate::stored::{self, SHARED};

/// What stands there at one moment.
pub(in crate::sqlite) struct State {
    pub(in crate::sqlite) now: i64,
    /// The highest fence of all rows that were deleted.
    mark: i64,
    main: Option<Main>,
    /// How many permits there are; 0 of a lock.
    of: i64,
    preferred: Option<Preferred>,
    /// The share of the one who asks, with its fence and what else its row says.
    pub(super) own: Option<(i64, String)>,
    /// When that ends.
    pub(super) own_until: i64,
    /// How much of it is taken, by all of them.
    pub(super) taken: i64,
    /// Who is first of those who wait in order.
    first_in_line: Option<First>,
    /// When the first and the last of them end.
    pub(super) first: i64,
    pub(super) last: i64,
}

/// The row of the key.
struct Main {
    token: Option<Vec<u8>>,
    fence: i64,
    expires: i64,
    holder: String,
    /// Whether somebody has it, alone or not.
    is_held: bool,
}

/// One who waits and keeps newcomers out.
struct Preferred {
    token: String,
    since: i64,
    /// When it has not asked again until then, it is no more.
    alive_until: i64,
}

impl Preferred {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(' ');
        let token = parts.next()?.to_owned();
        let (since, alive_until) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(Self { token, since, alive_until })
    }

    fn to_text(&self) -> String {
        format!("{} {} {}", self.token, self.since, self.alive_until)
    }

    /// Until when newcomers are kept out.
    fn keeps_out_until(&self) -> i64 {
        self.alive_until.min(later(self.since, PREFERENCE))
    }

    /// Whether another one may take its place, or it may begin anew.
    fn is_over(&self, now: i64) -> bool {
        self.alive_until <= now || later(self.since, PREFERENCE * 2) <= now
    }
}

/// What is to come of an attempt.
pub(super) enum Verdict {
    /// It is free, or ours already.
    Free,
    /// Not before this moment, unless somebody leaves.
    Busy(i64),
    /// The key is used in this way.
    Conflict(Mode),
}

pub(in crate::sqlite) fn later(at: i64, by: Duration) -> i64 {
    at.saturating_add(time::nanos(by))
}

impl State {
    /// Reads it. `token` is that of the one who asks.
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
        Self::parse(&state.fetch_one(on).await?, &database.boot, now)
    }

    fn parse(row: &SqliteRow, this_boot: &[u8], now: i64) -> Result<Self, sqlx::Error> {
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
        let mut state = Self {
            now,
            mark: row.try_get(0)?,
            main,
            of: 0,
            preferred: None,
            own: None,
            own_until: now,
            taken: 0,
            first_in_line: row.try_get::<Option<&str>, _>(16)?.and_then(First::parse),
            first: now,
            last: now,
        };
        if is_of_now(7)? {
            state.preferred = Preferred::parse(row.try_get(8)?).filter(|preferred| !preferred.is_over(now));
        }
        if !state.is_shared() {
            return Ok(state);
        }
        state.of = row.try_get::<Option<i64>, _>(6)?.unwrap_or(0);
        if let (true, Some(fence)) = (is_of_now(10)?, row.try_get::<Option<i64>, _>(9)?)
            && let until = row.try_get::<i64, _>(11)?
            && until > now
        {
            (state.own, state.own_until) = (Some((fence, row.try_get(12)?)), until);
        }
        if let Some(taken) = row.try_get::<Option<i64>, _>(13)? {
            (state.taken, state.first, state.last) = (taken, row.try_get(14)?, row.try_get(15)?);
        }
        Ok(state)
    }

    /// Who is first of those who wait in order.
    pub(in crate::sqlite) const fn first(&self) -> Option<&First> {
        self.first_in_line.as_ref()
    }

    /// Whether several hold it, or it is remembered as a semaphore.
    pub(super) fn is_shared(&self) -> bool {
        self.main.as_ref().is_some_and(|main| main.is_held && main.token.as_deref() == Some(&SHARED))
    }

    /// Whether this one has it alone.
    pub(super) fn is_alone(&self, token: &Token) -> bool {
        let ours = |main: &Main| main.is_held && main.token.as_deref() == Some(token.as_bytes());
        self.main.as_ref().is_some_and(ours)
    }

    /// Who has it alone.
    pub(super) fn exclusive(&self, now: i64) -> Option<Holder> {
        let main = self.main.as_ref().filter(|main| main.is_held && !self.is_shared())?;
        let left = Duration::from_nanos(main.expires.saturating_sub(now).max(0).unsigned_abs());
        Some(stored::holder(&main.holder, main.fence, left))
    }

    pub(super) fn permits(&self) -> Option<u32> {
        u32::try_from(self.of).ok().filter(|of| *of > 0)
    }

    pub(super) fn set_permits(&mut self, permits: u32) {
        self.of = i64::from(permits);
    }

    /// The fence of the next grant.
    pub(super) fn next_fence(&self) -> i64 {
        let least = time::wall_micros().max(self.mark.saturating_add(1));
        self.main.as_ref().map_or(least, |main| least.max(main.fence.saturating_add(1)))
    }

    /// The fence of the last grant.
    pub(super) fn last_fence(&self) -> i64 {
        self.main.as_ref().map_or(0, |main| main.fence)
    }

    /// Until when the row of the key is taken.
    pub(super) fn until(&self) -> i64 {
        self.main.as_ref().map_or(self.now, |main| main.expires)
    }

    /// The line about the one who was granted last.
    pub(super) fn last_line(&self) -> &str {
        self.main.as_ref().map_or("", |main| &main.holder)
    }

    /// What is to come of an attempt, as far as somebody else is concerned.
    pub(super) fn judge(&self, request: &ClaimRequest) -> Verdict {
        let mode = request.mode;
        if let Some(main) = self.main.as_ref().filter(|main| main.is_held && !self.is_shared()) {
            return match mode.conflict(&Mode::Exclusive) {
                Some(_) => Verdict::Conflict(Mode::Exclusive),
                None if self.is_alone(&request.token) => Verdict::Free,
                None => Verdict::Busy(main.expires),
            };
        }
        if let Some(of) = self.permits() {
            let others = Mode::Permits { of, take: 1 };
            if mode.conflict(&others).is_some() {
                return Verdict::Conflict(others);
            }
        } else if mode.permits().is_some() && self.taken > 0 {
            return Verdict::Conflict(Mode::Shared);
        }
        if self.own.is_some() {
            return Verdict::Free;
        }
        let has_room = match mode {
            Mode::Shared => true,
            Mode::Permits { of, take } => self.taken.saturating_add(i64::from(take)) <= i64::from(of),
            _ => self.taken == 0,
        };
        // Whose turn it is, is said by the line alone.
        let other =
            self.preferred.as_ref().filter(|other| !request.fair && other.token != request.token.to_hex());
        match other.map(Preferred::keeps_out_until).filter(|until| *until > self.now) {
            Some(until) if has_room => Verdict::Busy(until),
            None if has_room => match self.first().filter(|first| !first.is(&request.token)) {
                Some(other) => Verdict::Busy(other.until),
                None => Verdict::Free,
            },
            _ => Verdict::Busy(self.first),
        }
    }

    /// This one waits: it is preferred, unless another one is. Whether it is now.
    pub(super) fn prefer(&mut self, token: &Token) -> bool {
        let (token, alive_until) = (token.to_hex(), later(self.now, PREFERENCE_ALIVE));
        match &mut self.preferred {
            Some(preferred) if preferred.token != token => return false,
            Some(preferred) => preferred.alive_until = alive_until,
            none => *none = Some(Preferred { token, since: self.now, alive_until }),
        }
        true
    }

    /// Whether somebody keeps newcomers out.
    pub(super) const fn has_preferred(&self) -> bool {
        self.preferred.is_some()
    }

    /// This one keeps nobody out any more. Whether it did.
    pub(super) fn prefer_no_more(&mut self, token: &Token) -> bool {
        self.preferred.take_if(|preferred| preferred.token == token.to_hex()).is_some()
    }

    /// Writes what all of them have in common.
    pub(super) async fn write_common(
        &self,
        database: &Database,
        on: &mut SqliteConnection,
        key: &Key,
    ) -> Result<(), sqlx::Error> {
        if self.of == 0 && self.preferred.is_none() {
            let delete = sqlx::query(database.statements.shares.delete.clone()).bind(common(key));
            return delete.execute(on).await.map(drop);
        }
        // So that it is not pruned before the row of the key.
        let until = self.preferred.as_ref().map_or(0, |preferred| preferred.alive_until);
        let until = self.main.as_ref().filter(|_| self.of > 0).map_or(until, |main| until.max(main.expires));
        let preferred = self.preferred.as_ref().map(Preferred::to_text).unwrap_or_default();
        put(database, on, common(key), Some(&SHARED), (self.of, until), preferred).await
    }

    /// Writes the row of the key as one that several hold, or that is free.
    pub(super) async fn write_main(
        &mut self,
        database: &Database,
        on: &mut SqliteConnection,
        key: &Key,
        (fence, line): (i64, &str),
        until: Option<i64>,
    ) -> Result<(), sqlx::Error> {
        let (token, expires) = (until.map(|_| SHARED), until.unwrap_or(self.now));
        let name = key.as_str().as_bytes().to_vec();
        put(database, on, name, token.as_ref(), (fence, expires), line.to_owned()).await?;
        let (token, holder) = (token.map(|token| token.to_vec()), line.to_owned());
        self.main = Some(Main { token, fence, expires, holder, is_held: until.is_some() });
        Ok(())
    }
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
