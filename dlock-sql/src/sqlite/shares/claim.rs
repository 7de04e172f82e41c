//! The claim on a lock that several may hold: a reader's, one on permits, or that of a writer that found shares.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use dlock_core::backend::shares::{Answer, Downgraded, Granted};
use dlock_core::backend::{
    Attempt, Busy, ClaimRequest, Grant, LEFT_BEHIND, Mode, Renewed, Validity, Withdrawal,
};
use dlock_core::{Failure, Key};
use sqlx::sqlite::SqliteConnection;

use super::state::{State, delete};
use crate::sqlite::claim::SqliteClaim;
use crate::sqlite::connections::{Turn, Until, Writer};
use crate::sqlite::database::Database;
use crate::sqlite::failure::classify;
use crate::sqlite::line::{self, Place};
use crate::sqlite::statements::shares::{beyond, common, own};
use crate::sqlite::time;
use crate::stored;

/// The outcome of an attempt.
enum Taken {
    Granted(Grant),
    /// Busy; whether the claim keeps newcomers out from now on, and its place.
    Busy(Busy, bool, Place),
    Conflict(Mode),
}

impl SqliteClaim {
    /// Makes one attempt, as one transaction.
    pub(in crate::sqlite) async fn attempt_share(
        &mut self,
        database: &Arc<Database>,
        writer: Writer,
        until: Until,
    ) -> Result<Attempt, Failure> {
        let used = Arc::new(OnceLock::new());
        let (noted, database, request) = (Arc::clone(&used), Arc::clone(database), self.request.clone());
        let (of_claim, fresh) = ((self.reserves, self.place.number), self.in_flight.is_empty());
        // As a task of its own: a transaction that was begun must be ended whatever becomes of the caller, or the
        // writer would stay in it.
        let step = async move {
            let (mut turn, slot) = database.connections.writer(writer, until).await?;
            let _ = noted.set(slot);
            let taken = take(&database, &mut turn, &request, of_claim, fresh, until).await;
            drop(turn);
            taken.map_err(|error| classify(error, database.connections.path()))
        };
        match self.detached(&used, step).await? {
            Taken::Granted(grant) => {
                // Everything on the writer came before this answer.
                self.in_flight.clear();
                (self.held, self.keeps_out) = (true, false);
                self.place = Place::default();
                Ok(Attempt::Granted(grant))
            }
            Taken::Busy(busy, keeps_out, place) => {
                self.in_flight.clear();
                // Until it is granted or withdrawn: its row stays when the others have gone.
                self.keeps_out |= keeps_out;
                self.place = place;
                // A lock that several hold is not passed on, and so no holder has to know of a waiter.
                self.seen = busy.holder.as_ref().and_then(|holder| holder.fence);
                self.noted = self.seen;
                Ok(Attempt::Busy(busy))
            }
            Taken::Conflict(other) => {
                let what = || Failure::unavailable("the key is used in another way");
                Err(self.request.mode.conflict(&other).unwrap_or_else(what))
            }
        }
    }
}

async fn take(
    database: &Database,
    turn: &mut Turn<'_>,
    request: &ClaimRequest,
    (reserves, place): (u32, Option<i64>),
    fresh: bool,
    until: Until,
) -> Result<Taken, sqlx::Error> {
    // Begins by locking the file: all that is read below stays as it is until the commit.
    let mut writing = turn.begin_writing(&database.statements.shares.lock, until).await?;
    let (key, token, now) = (&request.key, &request.token, time::now());
    let mut state = State::read(database, &mut writing, key, Some(token), now).await?;
    let asked = request.to_lock_request().with_fences(if fresh { reserves } else { 1 }, state.least_fence());
    let share = || stored::share_line(request.mode, &request.describe());
    let answer = match &request.takes_over {
        None => state.rules.attempt(&asked, state.at(), share),
        Some(left) => {
            // First what the claim has itself, by an attempt whose answer was lost; only then what was left for it.
            if state.rules.holder(token, state.at()).is_none() {
                state = State::read(database, &mut writing, key, Some(left), now).await?;
            }
            state.rules.take_over(&asked, left, state.at(), share)
        }
    };
    let taken = match answer {
        // Nothing was written.
        Answer::Conflict(other) => return Ok(Taken::Conflict(other)),
        Answer::Busy { until } => {
            let prefers = asked.prefers && state.rules.prefers(token);
            if prefers {
                state.write_common(database, &mut writing, key).await?;
            }
            let mut busy = Busy::default();
            busy.retry_after = Some(until.since(state.at()).max(Duration::from_nanos(1)));
            let holder = match state.is_shared() {
                true => database.shares(&mut writing, key, &state).await?.into_iter().next(),
                false => state.exclusive(now),
            };
            busy.holder = holder.map(Box::new);
            let mut stands = Place::default();
            if request.fair && request.waits {
                // The place last: it is written only where the rules have refused the claim.
                let known = (place, !fresh);
                let of = (key, token);
                (stands, busy.requeued) = line::stand(database, &mut writing, of, known, &state).await?;
                busy.retry_after = stands.retry_after(busy.retry_after);
            }
            Taken::Busy(busy, prefers, stands)
        }
        Answer::Granted(granted) => {
            write_grant(database, &mut writing, request, (&state, granted)).await?;
            let grant = Grant::new(Validity::Lease(request.lease)).with_reserved(granted.reserved);
            // A fence below zero was never given, and is none.
            let fence = Some(granted.fence).filter(|fence| fence.get() > 0);
            Taken::Granted(fence.into_iter().fold(grant, Grant::with_fence))
        }
    };
    writing.commit().await?;
    Ok(taken)
}

/// Writes a grant.
async fn write_grant(
    database: &Database,
    on: &mut SqliteConnection,
    request: &ClaimRequest,
    (state, granted): (&State, Granted),
) -> Result<(), sqlx::Error> {
    let (key, token) = (&request.key, &request.token);
    let held = state.rules.holder(token, state.at());
    let is_alone = held.is_some_and(|held| held.mode == Mode::Exclusive);
    // In this order: what ends with the grant goes first, so that nothing of it counts in the rows that are written
    // after.
    if let Some(left) = &request.takes_over {
        delete(database, &mut *on, own(key, left)).await?;
    }
    if !granted.adopted && (is_alone || !state.is_shared()) {
        // Rows of earlier holders, also of a semaphore.
        clear(database, &mut *on, key).await?;
    }
    if is_alone && request.fair {
        line::pass(database, &mut *on, (key, token), state).await?;
    }
    match is_alone {
        true => {
            let line = stored::line(request, granted.reserved);
            state.write_alone(database, on, (key, token), line).await
        }
        false => {
            let line = if granted.adopted { state.last_line().to_owned() } else { request.describe() };
            state.write(database, on, (key, token), line).await
        }
    }
}

/// Deletes all rows beside that of the key.
async fn clear(database: &Database, on: &mut SqliteConnection, key: &Key) -> Result<(), sqlx::Error> {
    let clear = sqlx::query(database.statements.shares.clear.clone());
    clear.bind(common(key)).bind(beyond(key)).execute(on).await.map(drop)
}

impl SqliteClaim {
    /// Lets others read what this claim has alone, as one transaction.
    pub(in crate::sqlite) async fn let_others_read(
        &mut self,
        database: &Arc<Database>,
        until: Until,
    ) -> Result<Renewed, Failure> {
        let writer = self.writer();
        let used = Arc::new(OnceLock::new());
        let (noted, database, request) = (Arc::clone(&used), Arc::clone(database), self.request.clone());
        let step = async move {
            let (mut turn, slot) = database.connections.writer(writer, until).await?;
            let _ = noted.set(slot);
            let downgraded = downgrade(&database, &mut turn, &request, until).await;
            drop(turn);
            downgraded.map_err(|error| classify(error, database.connections.path()))
        };
        let downgraded = self.detached(&used, step).await;
        // Only with an answer: otherwise the claim's rows are in either form.
        if downgraded.is_ok() {
            self.in_flight.clear();
        }
        downgraded
    }

    /// Leaves what this claim has for so long, or no longer than it is left already, as one transaction.
    pub(in crate::sqlite) async fn leave_share(
        &mut self,
        database: &Arc<Database>,
        writer: Writer,
        (taken_for, until): (Duration, Until),
    ) -> Result<Withdrawal, Failure> {
        let used = Arc::new(OnceLock::new());
        let (noted, database, request) = (Arc::clone(&used), Arc::clone(database), self.request.clone());
        let step = async move {
            let (mut turn, slot) = database.connections.writer(writer, until).await?;
            let _ = noted.set(slot);
            let left = leave(&database, &mut turn, &request, (taken_for, until)).await;
            drop(turn);
            left.map_err(|error| classify(error, database.connections.path()))
        };
        self.detached(&used, step).await
    }

    /// Removes what this claim has, and its preference, as one transaction.
    pub(in crate::sqlite) async fn release_share(
        &mut self,
        database: &Arc<Database>,
        writer: Writer,
        until: Until,
    ) -> Result<Withdrawal, Failure> {
        let used = Arc::new(OnceLock::new());
        let (noted, database, request) = (Arc::clone(&used), Arc::clone(database), self.request.clone());
        let place = self.place.number;
        let step = async move {
            let (mut turn, slot) = database.connections.writer(writer, until).await?;
            let _ = noted.set(slot);
            let released = release(&database, &mut turn, &request, place, until).await;
            drop(turn);
            released.map_err(|error| classify(error, database.connections.path()))
        };
        self.detached(&used, step).await
    }
}

async fn downgrade(
    database: &Database,
    turn: &mut Turn<'_>,
    request: &ClaimRequest,
    until: Until,
) -> Result<Renewed, sqlx::Error> {
    let mut writing = turn.begin_writing(&database.statements.shares.lock, until).await?;
    let (key, token, now) = (&request.key, &request.token, time::now());
    let mut state = State::read(database, &mut writing, key, Some(token), now).await?;
    match state.rules.downgrade(token, request.lease, state.at()) {
        // Nothing was written.
        Downgraded::Gone => return Ok(Renewed::Gone),
        // The reply of an earlier request was lost.
        Downgraded::Before => {}
        Downgraded::Now => {
            // Rows of earlier readers and semaphores would count again.
            clear(database, &mut writing, key).await?;
            if let Some(entry) = state.rules.entry_mut(token) {
                entry.detail = stored::share_line(Mode::Shared, &entry.detail);
            }
        }
    }
    let line = state.last_line().to_owned();
    state.write(database, &mut writing, (key, token), line).await?;
    writing.commit().await?;
    Ok(Renewed::Extended)
}

async fn leave(
    database: &Database,
    turn: &mut Turn<'_>,
    request: &ClaimRequest,
    (taken_for, until): (Duration, Until),
) -> Result<Withdrawal, sqlx::Error> {
    let mut writing = turn.begin_writing(&database.statements.shares.lock, until).await?;
    let (key, token, left, now) = (&request.key, &request.token, request.token.left_behind(), time::now());
    let mut state = State::read(database, &mut writing, key, Some(&left), now).await?;
    // An earlier request may have left it: it stands under the other token then.
    let is_left = state.rules.holder(&left, state.at()).is_some();
    if !is_left {
        state = State::read(database, &mut writing, key, Some(token), now).await?;
    }
    if !state.is_shared() {
        return Ok(Withdrawal::ABSENT);
    }
    let at = state.at();
    let Some(entry) = state.rules.leave(token, taken_for, at) else { return Ok(Withdrawal::ABSENT) };
    let fence = entry.fence;
    if !is_left {
        entry.detail = stored::left_share(&entry.detail);
        delete(database, &mut writing, own(key, token)).await?;
    }
    let mut last_line = state.last_line().to_owned();
    if fence == state.rules.last_fence() && !last_line.starts_with(LEFT_BEHIND) {
        last_line.insert_str(0, LEFT_BEHIND);
    }
    state.write(database, &mut writing, (key, &left), last_line).await?;
    writing.commit().await?;
    Ok(Withdrawal::REMOVED)
}

async fn release(
    database: &Database,
    turn: &mut Turn<'_>,
    request: &ClaimRequest,
    place: Option<i64>,
    until: Until,
) -> Result<Withdrawal, sqlx::Error> {
    let mut writing = turn.begin_writing(&database.statements.shares.lock, until).await?;
    let (key, token, now) = (&request.key, &request.token, time::now());
    // The place first, so that the state below is that of the waiters that are left.
    if request.fair {
        line::leave(database, &mut writing, (key, token), place).await?;
    }
    let mut state = State::read(database, &mut writing, key, Some(token), now).await?;
    delete(database, &mut writing, own(key, token)).await?;
    let withdrawn = state.rules.withdraw(token, state.at());
    // A share changes the row of the key too, whose lease is the longest of all; a preference only what they have in
    // common.
    if withdrawn.entry.is_some() {
        let line = state.last_line().to_owned();
        state.write(database, &mut writing, (key, token), line).await?;
    } else if withdrawn.preferred {
        state.write_common(database, &mut writing, key).await?;
    }
    writing.commit().await?;
    Ok(if withdrawn.entry.is_some() { Withdrawal::REMOVED } else { Withdrawal::ABSENT })
}
