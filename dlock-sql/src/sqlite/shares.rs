//! Locks that several hold at a time: readers, and claims with permits of a semaphore.
//!
//! Each of them has a row of its own beside the row of the key, which seems to have another holder as long as any of
//! them is there, or the number of permits is remembered: its token is [`SHARED`](crate::stored::SHARED), and its lease
//! ends no earlier than theirs. So a claim that wants the lock alone, and knows nothing of all this, finds it taken.
//! They mean nothing when that row is free, or another one's.
//!
//! One more row has what all of them have in common: the number of permits, and the claim that keeps newcomers out.

mod claim;
mod state;

use std::time::Duration;

use dlock_core::backend::{Forced, Mode, Occupancy, PERMITS_REMEMBERED};
use dlock_core::{Failure, Holder, Key};

use super::connections::Until;
use super::database::Database;
use super::failure::classify;
use super::statements::shares::{beyond, common};
use super::{row, time};
use crate::failure::unchanged;

pub(super) use state::{State, later, put};

/// Returns the time for which the row of the key stays taken by one of them.
pub(super) fn kept(mode: Mode, lease: Duration) -> Duration {
    if mode.permits().is_some() { lease.max(PERMITS_REMEMBERED) } else { lease }
}

impl Database {
    /// Returns all holders of a key.
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

    /// Returns those that hold it together, the first to end first.
    async fn shares(
        &self,
        on: &mut sqlx::SqliteConnection,
        key: &Key,
        state: &State,
    ) -> Result<Vec<Holder>, sqlx::Error> {
        let all = sqlx::query(self.statements.shares.all.clone());
        let all = all.bind(common(key)).bind(beyond(key)).bind(self.boot.clone()).bind(state.now);
        let rows = all.fetch_all(on).await?;
        rows.iter().map(|found| row::share(found, [0, 1, 2], state.permits(), state.now)).collect()
    }

    /// Frees the lock of any holder, or only if all its holders were seen.
    pub(super) async fn force(&self, key: &Key, seen: Option<&[Holder]>) -> Result<Forced, Failure> {
        let failed = |error| classify(error, self.connections.path());
        let until = Until::after(super::database::OPENING);
        let (mut turn, _) = self.connections.writer(super::connections::Writer::Any, until).await?;
        // The file is locked before the holders are read: none is granted the lock between the look and the change.
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

    /// Changes the number of permits. Returns the number before.
    pub(super) async fn resize(&self, key: &Key, permits: u32) -> Result<Option<u32>, Failure> {
        let failed = |error| classify(error, self.connections.path());
        let until = Until::after(super::database::OPENING);
        let (mut turn, _) = self.connections.writer(super::connections::Writer::Any, until).await?;
        let mut writing = turn.begin_writing(&self.statements.shares.lock, until).await.map_err(failed)?;
        let mut state = State::read(self, &mut writing, key, None, time::now()).await.map_err(failed)?;
        let before = match state.rules.resize(permits, state.at()) {
            Ok(Some(before)) => Some(before),
            Ok(None) => return Ok(None),
            Err(other) => {
                let conflict = Mode::Permits { of: permits, take: 1 }.conflict(&other);
                return conflict.map_or(Ok(None), Err);
            }
        };
        state.write_common(self, &mut writing, key).await.map_err(failed)?;
        writing.commit().await.map_err(failed)?;
        Ok(before)
    }
}
