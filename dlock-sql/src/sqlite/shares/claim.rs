//! A claim on a lock that several may hold: a reader's, one of permits, or one of a writer who found such.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use dlock_core::backend::{
    Attempt, Busy, ClaimRequest, Grant, LEFT_BEHIND, Mode, Renewed, Validity, Withdrawal,
};
use dlock_core::{ErrorKind, Failure, Holder, Token};
use sqlx::sqlite::SqliteConnection;

use super::kept;
use super::state::{State, Verdict, later, put};
use crate::sqlite::claim::SqliteClaim;
use crate::sqlite::connections::{Turn, Until, Writer};
use crate::sqlite::database::Database;
use crate::sqlite::failure::classify;
use crate::sqlite::line::{self, Place};
use crate::sqlite::statements::shares::{beyond, common, own};
use crate::sqlite::time;
use crate::stored;

/// What an attempt came to.
enum Taken {
    Granted(Grant),
    /// It keeps newcomers out from now on, where that is said.
    Busy(Busy, bool, Place),
    Conflict(Mode),
}

impl SqliteClaim {
    /// One attempt, as one transaction.
    pub(in crate::sqlite) async fn attempt_share(
        &mut self,
        database: &Arc<Database>,
        writer: Writer,
        until: Until,
    ) -> Result<Attempt, Failure> {
        let used = Arc::new(OnceLock::new());
        let (noted, database, request) = (Arc::clone(&used), Arc::clone(database), self.request.clone());
        let (of_claim, fresh) = ((self.reserves, self.place.number), self.unsettled.is_none());
        let step = async move {
            let (mut turn, lane) = database.connections.writer(writer, until).await?;
            let _ = noted.set(lane);
            let taken = take(&database, &mut turn, &request, of_claim, fresh, until).await;
            drop(turn);
            taken.map_err(|error| classify(error, database.connections.path()))
        };
        match self.detached(&used, step).await? {
            Taken::Granted(grant) => {
                (self.unsettled, self.held, self.keeps_out) = (None, true, false);
                self.place = Place::default();
                Ok(Attempt::Granted(grant))
            }
            Taken::Busy(busy, keeps_out, place) => {
                // Until it is granted or withdrawn: the row that says so stays when the others have gone.
                self.keeps_out |= keeps_out;
                self.place = place;
                // Nobody passes on what several hold, and so nobody has to know who waits for it.
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
    let mut writing = turn.begin_writing(&database.statements.shares.lock, until).await?;
    let (key, now) = (&request.key, time::now());
    let mut state = State::read(database, &mut writing, key, Some(&request.token), now).await?;
    let verdict = match request.takes_over {
        None => state.judge(request),
        Some(left) => take_what_was_left(database, &mut writing, request, (&left, &state)).await?,
    };
    let taken = match verdict {
        // Nothing was written.
        Verdict::Conflict(other) => return Ok(Taken::Conflict(other)),
        Verdict::Busy(free_at) => {
            let prefers = state.is_shared() && request.has_preference() && state.prefer(&request.token);
            if prefers {
                state.write_common(database, &mut writing, key).await?;
            }
            let mut busy = Busy::default();
            busy.retry_after = Some(Duration::from_nanos(free_at.saturating_sub(now).max(1).unsigned_abs()));
            let holder = match state.is_shared() {
                true => database.shares(&mut writing, key, &state).await?.into_iter().next(),
                false => state.exclusive(now),
            };
            busy.holder = holder.map(Box::new);
            let mut stands = Place::default();
            if request.fair && request.waits {
                let known = (place, !fresh);
                let of = (key, &request.token);
                (stands, busy.requeued) = line::stand(database, &mut writing, of, known, &state).await?;
                busy.retry_after = stands.retry_after(busy.retry_after);
            }
            Taken::Busy(busy, prefers, stands)
        }
        Verdict::Free if request.mode == Mode::Exclusive => {
            if request.fair {
                line::pass(database, &mut writing, (key, &request.token), &state).await?;
            }
            let fences = if fresh { reserves } else { 1 };
            take_alone(database, &mut writing, request, &mut state, fences).await?
        }
        Verdict::Free => take_share(database, &mut writing, request, &mut state).await?,
    };
    writing.commit().await?;
    Ok(taken)
}

/// Makes room for the claim where a share was left under this token, which is another one from then on.
async fn take_what_was_left(
    database: &Database,
    on: &mut SqliteConnection,
    request: &ClaimRequest,
    (left, state): (&Token, &State),
) -> Result<Verdict, sqlx::Error> {
    if state.own.is_some() {
        return Ok(Verdict::Free);
    }
    let found = State::read(database, on, &request.key, Some(left), state.now).await?;
    let share = |(fence, line): &(i64, String)| stored::share(line, *fence, Duration::ZERO, found.permits());
    let is_left = |holder: &Holder| holder.left_behind && holder.mode.has_same_part(&request.mode);
    if found.own.as_ref().map(share).filter(is_left).is_none() {
        return Ok(Verdict::Busy(found.first));
    }
    let delete = sqlx::query(database.statements.shares.delete.clone()).bind(own(&request.key, left));
    delete.execute(on).await?;
    Ok(Verdict::Free)
}

/// The lock is held alone from now on.
async fn take_alone(
    database: &Database,
    on: &mut SqliteConnection,
    request: &ClaimRequest,
    state: &mut State,
    fences: u32,
) -> Result<Taken, sqlx::Error> {
    let (key, expires) = (&request.key, later(state.now, request.lease));
    let mut last = state.next_fence().saturating_add(i64::from(fences - 1));
    if state.is_alone(&request.token) {
        // The reply of an earlier attempt was lost: what that one reserved is not known, and its last fence is unused.
        last = state.last_fence();
    } else {
        let clear = sqlx::query(database.statements.shares.clear.clone());
        clear.bind(common(key)).bind(beyond(key)).execute(&mut *on).await?;
        state.prefer_no_more(&request.token);
        state.set_permits(0);
        state.write_common(database, on, key).await?;
    }
    let (name, line) = (key.as_str().as_bytes().to_vec(), stored::line(request, fences));
    put(database, on, name, Some(request.token.as_bytes()), (last, expires), line).await?;
    Ok(Taken::Granted(stored::grant(request.lease, stored::fence(last), fences)))
}

/// One more has it.
async fn take_share(
    database: &Database,
    on: &mut SqliteConnection,
    request: &ClaimRequest,
    state: &mut State,
) -> Result<Taken, sqlx::Error> {
    let (key, mode) = (&request.key, request.mode);
    let expires = later(state.now, request.lease);
    let until = later(state.now, kept(mode, request.lease)).max(state.last);
    let mut anew = false;
    let (fence, line) = match state.own.take() {
        // The reply of an earlier attempt was lost.
        Some(adopted) => {
            let (fence, line) = (state.last_fence(), state.last_line().to_owned());
            state.write_main(database, on, key, (fence, &line), Some(until)).await?;
            adopted
        }
        None => {
            if !state.is_shared() {
                // What is left of earlier ones, also of a semaphore.
                anew = true;
                let clear = sqlx::query(database.statements.shares.clear.clone());
                clear.bind(common(key)).bind(beyond(key)).execute(&mut *on).await?;
            }
            let (fence, line) = (state.next_fence(), request.describe());
            state.write_main(database, on, key, (fence, &line), Some(until)).await?;
            (fence, stored::share_line(mode, &line))
        }
    };
    let preferred = state.prefer_no_more(&request.token);
    if let Some(of) = mode.permits().filter(|_| request.takes_over.is_none()) {
        state.set_permits(of);
    }
    if preferred || mode.permits().is_some() || anew && state.has_preferred() {
        state.write_common(database, on, key).await?;
    }
    let name = own(key, &request.token);
    put(database, on, name, Some(request.token.as_bytes()), (fence, expires), line).await?;
    let grant = Grant::new(Validity::Lease(request.lease));
    Ok(Taken::Granted(stored::fence(fence).into_iter().fold(grant, Grant::with_fence)))
}

impl SqliteClaim {
    /// Lets others read what this claim has alone, as one transaction.
    pub(in crate::sqlite) async fn let_others_read(
        &mut self,
        database: &Arc<Database>,
        until: Until,
    ) -> Result<Renewed, Failure> {
        let writer = self.unsettled.map_or(Writer::Any, Writer::Same);
        let used = Arc::new(OnceLock::new());
        let (noted, database, request) = (Arc::clone(&used), Arc::clone(database), self.request.clone());
        let step = async move {
            let (mut turn, lane) = database.connections.writer(writer, until).await?;
            let _ = noted.set(lane);
            let downgraded = downgrade(&database, &mut turn, &request, until).await;
            drop(turn);
            downgraded.map_err(|error| classify(error, database.connections.path()))
        };
        let downgraded = self.detached(&used, step).await;
        if !matches!(&downgraded, Err(failure) if failure.kind() == ErrorKind::Unknown) {
            self.unsettled = None;
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
            let (mut turn, lane) = database.connections.writer(writer, until).await?;
            let _ = noted.set(lane);
            let left = leave(&database, &mut turn, &request, (taken_for, until)).await;
            drop(turn);
            left.map_err(|error| classify(error, database.connections.path()))
        };
        self.detached(&used, step).await
    }

    /// Takes away what this claim has, and its preference, as one transaction.
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
            let (mut turn, lane) = database.connections.writer(writer, until).await?;
            let _ = noted.set(lane);
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
    let expires = later(now, request.lease);
    let (fence, line) = (state.last_fence(), state.last_line().to_owned());
    let (own_fence, own_line) = match state.own.take() {
        // The reply of an earlier request was lost.
        Some(adopted) => adopted,
        None if state.is_alone(token) => {
            // What is left of earlier readers and semaphores, which would count again.
            let clear = sqlx::query(database.statements.shares.clear.clone());
            clear.bind(common(key)).bind(beyond(key)).execute(&mut *writing).await?;
            state.set_permits(0);
            state.write_common(database, &mut writing, key).await?;
            (fence, stored::share_line(Mode::Shared, &line))
        }
        // Nothing was written.
        None => return Ok(Renewed::Gone),
    };
    let last = if state.is_shared() { state.last } else { now };
    state.write_main(database, &mut writing, key, (fence, &line), Some(expires.max(last))).await?;
    put(database, &mut writing, own(key, token), Some(token.as_bytes()), (own_fence, expires), own_line)
        .await?;
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
    let (key, left, now) = (&request.key, request.token.left_behind(), time::now());
    let mut expires = later(now, taken_for);
    let mut state = State::read(database, &mut writing, key, Some(&left), now).await?;
    let (own_fence, line) = match state.own.take() {
        // An earlier request has left it.
        Some(before) => {
            expires = expires.min(state.own_until);
            before
        }
        None => {
            state = State::read(database, &mut writing, key, Some(&request.token), now).await?;
            let Some((fence, line)) = state.own.take() else { return Ok(Withdrawal::ABSENT) };
            let delete = sqlx::query(database.statements.shares.delete.clone());
            delete.bind(own(key, &request.token)).execute(&mut *writing).await?;
            (fence, stored::left_share(&line))
        }
    };
    let (fence, mut last_line, kept) = (state.last_fence(), state.last_line().to_owned(), state.until());
    if fence == own_fence && !last_line.starts_with(LEFT_BEHIND) {
        last_line.insert_str(0, LEFT_BEHIND);
    }
    state.write_main(database, &mut writing, key, (fence, &last_line), Some(kept.max(expires))).await?;
    put(database, &mut writing, own(key, &left), Some(left.as_bytes()), (own_fence, expires), line).await?;
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
    if request.fair {
        line::leave(database, &mut writing, (key, token), place).await?;
    }
    let before = State::read(database, &mut writing, key, Some(token), now).await?;
    let delete = sqlx::query(database.statements.shares.delete.clone()).bind(own(key, token));
    delete.execute(&mut *writing).await?;
    let mut removed = before.own.is_some();
    // Without it.
    let mut state = State::read(database, &mut writing, key, Some(token), now).await?;
    if state.is_alone(token) {
        let line = state.last_line().to_owned();
        let fence = state.last_fence();
        state.write_main(database, &mut writing, key, (fence, &line), None).await?;
        removed = true;
    }
    if state.is_shared() && removed {
        let line = state.last_line().to_owned();
        let until = match state.permits() {
            Some(_) => Some(later(now, kept(request.mode, Duration::ZERO)).max(state.last)),
            None => (state.taken > 0).then_some(state.last),
        };
        let fence = state.last_fence();
        state.write_main(database, &mut writing, key, (fence, &line), until).await?;
    }
    if state.prefer_no_more(token) || removed && state.permits().is_some() {
        state.write_common(database, &mut writing, key).await?;
    }
    writing.commit().await?;
    Ok(if removed { Withdrawal::REMOVED } else { Withdrawal::ABSENT })
}
