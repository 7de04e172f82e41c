//! One claim on a row.
//!
//! ```text
//!                 busy: `contended`, perhaps `place`, `keeps_out`, `shared_lock`
//!              +------------------------------------------------------+
//!              v                                                      |
//!     clean -> attempt --- granted: `held` ---> held ---> withdraw, leave --------> clean
//!              |   |                             |             ^
//!              |   | not known: `in_flight`,     | downgrade   |
//!              |   | by its writer               | not known: `downgrades`, sent again by each renewal
//!              |   +--> the next step goes by the same writer, after it
//!              | dropped: `detached`
//!              +------> `settle` waits for its end, then as not known
//!
//!     the file was replaced or deleted, in any state: `forget`, nothing is left
//! ```

pub(super) mod batch;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use dlock_core::backend::{
    Attempt, Busy, ClaimRequest, Grant, InFlight, Mode, Renewed, RequestClock, Signal, Withdrawal,
};
use dlock_core::{Claim, Clock, ErrorKind, Failure, Fence, Holder, Key};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::connections::{Until, Writer};
use super::database::{Database, FileState};
use super::failure::classify;
use super::line::{Place, kept};
use super::row::{Standing, understand};
use super::shared::Shared;
use super::shares::later;
use super::statements::line;
use super::time;
use crate::failure::unchanged;
use crate::keeper_task::detached;
use crate::stored;

/// A claim on a lock of [`Sqlite`](crate::Sqlite).
pub struct SqliteClaim {
    shared: Arc<Shared>,
    pub(super) request: ClaimRequest,
    /// The database at which the latest attempt was made.
    database: Option<Arc<Database>>,
    /// The attempts in flight, by their writer. All go by the same one, see [`writer`](Self::writer).
    pub(super) in_flight: InFlight<usize>,
    /// A step that may go on without its caller.
    pub(super) detached: Option<Detached>,
    pub(super) held: bool,
    /// The moment from which the lease counts.
    since: Instant,
    /// The clock of renewals, which wait for each other.
    clock: RequestClock,
    /// The number of fences that the next attempt reserves.
    pub(super) reserves: u32,
    /// Set if several held it at an earlier attempt.
    shared_lock: bool,
    /// Set while the lock is to become a reader's, and the outcome is not known.
    downgrades: bool,
    /// The place among those that wait in order.
    pub(super) place: Place,
    /// Set while it may keep newcomers out.
    pub(super) keeps_out: bool,
    /// Set if the lock was held at the last attempt: look before the next one writes.
    contended: bool,
    /// The fence of the holder at the last attempt.
    pub(super) seen: Option<Fence>,
    /// The fence of the grant with which it is noted that this claim waits.
    pub(super) noted: Option<Fence>,
}

/// A step of a claim that is under way.
pub(super) struct Detached {
    /// The writer that it uses, once it has one.
    writer: Arc<OnceLock<usize>>,
    /// Closed when the step has ended.
    ended: oneshot::Receiver<()>,
}

impl SqliteClaim {
    pub(super) fn new(shared: Arc<Shared>, request: ClaimRequest) -> Self {
        Self {
            shared,
            request,
            database: None,
            in_flight: InFlight::default(),
            detached: None,
            held: false,
            since: Instant::now(),
            clock: RequestClock::new(Clock::system()),
            reserves: 1,
            shared_lock: false,
            downgrades: false,
            place: Place::default(),
            keeps_out: false,
            contended: false,
            seen: None,
            noted: None,
        }
    }

    /// Returns until when a step may wait for its turn and try again while others are in the way: well within the
    /// engine's limit for a request, so that it is not taken for a lost one.
    fn until(&self) -> Until {
        let limit = (self.request.usual_lease / 12).min(self.request.request_timeout / 2);
        Until::after(limit.min(Duration::from_secs(2)))
    }

    /// Returns the database that the path leads to, and the writer that must be used there.
    async fn database(&mut self) -> Result<(Arc<Database>, Writer), Failure> {
        let database = self.shared.current().await?;
        let same = self.database.as_ref().is_some_and(|earlier| Arc::ptr_eq(earlier, &database));
        if !same {
            // A lock in an earlier file is worth nothing.
            self.forget();
            self.database = Some(Arc::clone(&database));
        }
        Ok((database, self.writer()))
    }

    /// Returns the writer that must be used: what is in flight comes first there, so that an answer settles it.
    pub(super) fn writer(&self) -> Writer {
        self.in_flight.ways().next().map_or(Writer::Any, |slot| Writer::Same(*slot))
    }

    /// Takes the lock's row if it is free or the claim's own, or was left for this claim to take over. Returns the
    /// grant, or `None` when another claim has the row.
    async fn take(
        &mut self,
        database: &Database,
        writer: Writer,
        until: Until,
        fences: u32,
    ) -> Result<Option<Grant>, Failure> {
        let (mut turn, slot) = database.connections.writer(writer, until).await?;
        let request = &self.request;
        let holder = stored::line(request, fences);
        let (statement, [low, high]) = match request.takes_over {
            // The bounds of the line are for the first statement only: what was left for a baton is taken over past all
            // waiters.
            None => (&database.statements.take, line::bounds(&request.key)),
            Some(left) => (&database.statements.take_over, [left.as_bytes().to_vec(), Vec::new()]),
        };
        // In flight before the first poll of the statement, which goes on to its end without its caller.
        self.in_flight.begin(slot);
        let answer = turn
            .run(until, |now| {
                sqlx::query(statement.clone())
                    .bind(request.key.as_str().as_bytes().to_vec())
                    .bind(request.token.as_bytes().to_vec())
                    .bind(time::wall_micros())
                    .bind(database.boot.clone())
                    .bind(now.saturating_add(time::nanos(request.lease)))
                    .bind(holder.clone())
                    .bind(now)
                    .bind(fences)
                    .bind(low.clone())
                    .bind(high.clone())
            })
            .await;
        drop(turn);
        // A row is a grant, and no row a refusal: only an error leaves open what was done.
        match answer.and_then(|answer| answer.rows.first().map(|row| row.try_get::<i64, _>(0)).transpose()) {
            Ok(fence) => {
                self.in_flight.answered(&slot);
                let lease = self.request.lease;
                Ok(fence.map(|last| stored::grant(lease, stored::fence(last), fences)))
            }
            Err(error) => {
                let failure = classify(error, database.connections.path());
                if failure.kind() != ErrorKind::Unknown {
                    self.in_flight.took_nothing(&slot);
                }
                Err(failure)
            }
        }
    }

    /// Returns where, by which writer, and until when a release is carried out; `None` where there is nothing to
    /// release.
    async fn releasing(&mut self) -> Option<(Arc<Database>, Writer, Until)> {
        // A step without its caller may take the lock still: the release has to come after it.
        self.settle().await;
        let database = self.database.clone()?;
        if matches!(database.file_state(), Ok(FileState::Replaced | FileState::Gone)) {
            // A lock in a file that no other process can see excludes none of them.
            self.forget();
            return None;
        }
        Some((database, self.writer(), self.until()))
    }

    fn forget(&mut self) {
        self.has_nothing();
        self.database = None;
    }

    fn has_nothing(&mut self) {
        if let Some(database) = self.database.as_ref().filter(|_| self.held) {
            // Not notified any more: what is lost from here on is no hold of this claim.
            database.ended(&self.request.token);
        }
        self.in_flight.clear();
        (self.held, self.keeps_out, self.place) = (false, false, Place::default());
    }

    /// Runs a step that notes in `writer` which one it uses. If the outcome is not known, what follows goes after it on
    /// the same connection.
    ///
    /// # Cancel safety
    ///
    /// The step goes on to its end when this is dropped; [`settle`](Self::settle) waits for it.
    pub(super) async fn detached<T: Send + 'static>(
        &mut self,
        writer: &Arc<OnceLock<usize>>,
        step: impl Future<Output = Result<T, Failure>> + Send + 'static,
    ) -> Result<T, Failure> {
        let (ends, ended) = oneshot::channel();
        // Noted before the step begins, so that a dropped call leaves it behind.
        self.detached = Some(Detached { writer: Arc::clone(writer), ended });
        let answer = detached(async move {
            let answer = step.await;
            drop::<oneshot::Sender<()>>(ends);
            answer
        })
        .await;
        self.detached = None;
        // From here on it counts as an attempt: a writer that was never taken means that nothing was sent.
        if matches!(&answer, Err(failure) if failure.kind() == ErrorKind::Unknown) {
            writer.get().into_iter().for_each(|slot| self.in_flight.begin(*slot));
        }
        answer
    }

    /// Waits for the end of a step whose caller was dropped. Its outcome is not known.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again.
    pub(super) async fn settle(&mut self) {
        if let Some(Detached { writer, ended }) = &mut self.detached {
            let _ = ended.await;
            writer.get().into_iter().for_each(|slot| self.in_flight.begin(*slot));
            // Only now: a dropped call waits again.
            self.detached = None;
        }
    }

    /// Returns the answer to an attempt of a waiter in line where nothing has to be written: its place is kept for long
    /// enough, and it is not its turn.
    async fn look_in_line(&mut self, database: &Database, until: Until) -> Result<Option<Attempt>, Failure> {
        let (Some(number), true) = (self.place.number, self.in_flight.is_empty()) else { return Ok(None) };
        if self.place.pauses() {
            return Ok(Some(Attempt::Busy(Busy::default())));
        }
        let request = &self.request;
        let mut turn = database.connections.reader(until).await?;
        let answer = turn
            .run(until, |now| {
                let [low, high] = line::bounds(&request.key);
                let look = sqlx::query(database.statements.line.look.clone());
                let look =
                    look.bind(request.key.as_str().as_bytes().to_vec()).bind(line::row(&request.key, number));
                let look = look.bind(low).bind(high).bind(database.boot.clone()).bind(now);
                look.bind(request.token.to_hex())
            })
            .await;
        drop(turn);
        let now = time::now();
        let found = answer.and_then(|answer| {
            let Some(row) = answer.rows.first() else { return Ok(None) };
            let (kept_until, first): (Option<i64>, Option<&str>) = (row.try_get(5)?, row.try_get(6)?);
            Ok(Some((understand(row, &database.boot, now)?, kept_until, first.and_then(line::First::parse))))
        });
        let found = found.map_err(|error| unchanged(classify(error, database.connections.path())))?;
        let Some((standing, Some(kept_until), Some(first))) = found else { return Ok(None) };
        let before = first.before(number);
        // Half of the time in which the place is kept is left for the write.
        if kept_until < later(now, kept(before) / 2) {
            return Ok(None);
        }
        let place = Place::of(number, before);
        let busy = match standing {
            Standing::Held(holder) => {
                let left = place.retry_after(holder.expires_in);
                stored::busy(Some(holder), left)
            }
            Standing::Free if !first.is(&request.token) => Busy::default(),
            Standing::Free | Standing::Shared => return Ok(None),
        };
        self.place = place;
        Ok(Some(Attempt::Busy(busy)))
    }
}

impl Claim for SqliteClaim {
    fn reserve(&mut self, fences: u32) {
        self.reserves = fences.max(1);
    }

    async fn attempt(&mut self) -> Result<Attempt, Failure> {
        self.settle().await;
        let until = self.until();
        // Before the request may be sent: the lease counts from here.
        self.since = Instant::now();
        let (database, writer) = self.database().await?;
        // Asked at each attempt: while others may still hold locks in an earlier file, nothing is granted here.
        database.may_grant(self.request.usual_lease)?;
        if self.request.fair
            && let Some(busy) = self.look_in_line(&database, until).await?
        {
            return Ok(busy);
        }
        if self.shared_lock || self.request.mode != Mode::Exclusive || self.request.fair {
            return self.attempt_share(&database, writer, until).await;
        }
        let mut refused = false;
        // Writing first costs one statement when the lock is free. When it is not, reading disturbs others least.
        for _ in 0..3 {
            if self.contended && self.in_flight.is_empty() {
                match read(&database, &self.request.key, until).await {
                    Ok(Standing::Free) => {}
                    Ok(Standing::Held(holder)) => {
                        self.seen = holder.fence;
                        let left = holder.expires_in;
                        return Ok(Attempt::Busy(stored::busy(Some(holder), left)));
                    }
                    Ok(Standing::Shared) if self.request.takes_over.is_some() => {
                        let holder = holder(database, &self.request.key, until).await?.map(Box::new);
                        return Ok(Attempt::Busy(stored::busy(holder, None)));
                    }
                    Ok(Standing::Shared) => {
                        self.shared_lock = true;
                        return self.attempt_share(&database, writer, until).await;
                    }
                    // The write has already answered: the lock is held.
                    Err(_) if refused => break,
                    Err(failure) => return Err(failure),
                }
            }
            let is_first = self.in_flight.is_empty() && self.request.takes_over.is_none();
            let fences = if is_first { self.reserves } else { 1 };
            if let Some(grant) = self.take(&database, writer, until, fences).await? {
                // The attempt that follows must not look first: it would take its own lock for that of another owner.
                (self.held, self.contended) = (true, false);
                return Ok(Attempt::Granted(grant));
            }
            (refused, self.contended) = (true, true);
        }
        Ok(Attempt::Busy(Busy::default()))
    }

    async fn changed(&mut self) -> Result<(), Failure> {
        // Noted once for each grant, in the row of the holder: its release then reports that others wait.
        if (self.seen.is_none() || self.seen != self.noted)
            && let Some(database) = self.database.clone()
        {
            note(&database, &self.request.key, self.until()).await?;
            self.noted = self.seen;
        }
        // Releases are not notified: the engine polls.
        std::future::pending().await
    }

    fn granted(&mut self, signal: Signal) {
        if let Some(database) = &self.database {
            database.granted(self.request.token, signal);
        }
    }

    async fn renew(&mut self) -> Result<Renewed, Failure> {
        if self.downgrades {
            // It is not known in which form it is held; this extends it in either.
            return self.downgrade().await;
        }
        let Some(database) = &self.database else { return Ok(Renewed::Gone) };
        database.renewals.extend(&self.request, &self.clock, &mut self.since).await
    }

    async fn downgrade(&mut self) -> Result<Renewed, Failure> {
        self.settle().await;
        let Some(database) = self.database.clone() else { return Ok(Renewed::Gone) };
        // A lock in another file than the path leads to is lost.
        if database.file_state()? != FileState::Same {
            return Ok(Renewed::Gone);
        }
        // A release has to look for either form from now on.
        (self.request.mode, self.downgrades) = (Mode::Shared, true);
        let since = Instant::now();
        let downgraded = self.let_others_read(&database, self.until()).await?;
        (self.downgrades, self.since) = (false, since);
        Ok(downgraded)
    }

    async fn withdraw(&mut self) -> Result<Withdrawal, Failure> {
        let Some((database, writer, until)) = self.releasing().await else {
            return Ok(Withdrawal::ABSENT);
        };
        let request = &self.request;
        // Without a grant there may be a preference or a place; a claim that holds the lock alone has neither any more.
        if request.mode != Mode::Exclusive || (self.shared_lock || request.fair) && !self.held {
            let released = self.release_share(&database, writer, until).await?;
            self.forget();
            return Ok(released);
        }
        // By the writer of what is in flight, so that the release certainly comes after it.
        let (mut turn, _) = database.connections.writer(writer, until).await?;
        let answer = turn
            .run(until, |now| {
                sqlx::query(database.statements.release.clone())
                    .bind(request.key.as_str().as_bytes().to_vec())
                    .bind(request.token.as_bytes().to_vec())
                    .bind(database.boot.clone())
                    .bind(now)
            })
            .await;
        drop(turn);
        let released = |row: &SqliteRow| Ok((row.try_get::<bool, _>(0)?, row.try_get::<bool, _>(1)?));
        let released = answer
            .and_then(|answer| answer.rows.first().map(released).transpose())
            .map_err(|error| classify(error, database.connections.path()))?;
        // Also without a row: the lock had ended, or was never taken.
        self.forget();
        let Some((running, awaited)) = released else { return Ok(Withdrawal::ABSENT) };
        let withdrawal = if running { Withdrawal::REMOVED } else { Withdrawal::ABSENT };
        Ok(withdrawal.with_others_waiting(u32::from(awaited)))
    }

    async fn leave(&mut self, taken_for: Duration) -> Result<Withdrawal, Failure> {
        let Some((database, writer, until)) = self.releasing().await else {
            return Ok(Withdrawal::ABSENT);
        };
        if self.request.mode != Mode::Exclusive {
            let left = self.leave_share(&database, writer, (taken_for, until)).await?;
            self.has_nothing();
            return Ok(left);
        }
        let (mut turn, _) = database.connections.writer(writer, until).await?;
        let ClaimRequest { key, token, .. } = &self.request;
        let answer = turn
            .run(until, |now| {
                sqlx::query(database.statements.leave.clone())
                    .bind(key.as_str().as_bytes().to_vec())
                    .bind(token.as_bytes().to_vec())
                    .bind(database.boot.clone())
                    .bind(now)
                    .bind(token.left_behind().as_bytes().to_vec())
                    .bind(now.saturating_add(time::nanos(taken_for)))
            })
            .await;
        drop(turn);
        let awaited = answer
            .and_then(|answer| answer.rows.first().map(|row| row.try_get::<bool, _>(0)).transpose())
            .map_err(|error| classify(error, database.connections.path()))?;
        // The database stays known: what was left may be asked to end sooner.
        self.has_nothing();
        Ok(awaited.map_or(Withdrawal::ABSENT, |wait| Withdrawal::REMOVED.with_others_waiting(wait.into())))
    }

    fn request_clock(&self) -> Option<RequestClock> {
        Some(self.clock.clone())
    }

    fn is_clean(&self) -> bool {
        self.detached.is_none()
            && self.in_flight.is_empty()
            && !self.held
            && !self.keeps_out
            && self.place.number.is_none()
    }
}

impl Drop for SqliteClaim {
    fn drop(&mut self) {
        self.forget();
    }
}

impl fmt::Debug for SqliteClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteClaim").field("key", &self.request.key).finish_non_exhaustive()
    }
}

/// Notes with a lock that is held that it is waited for.
async fn note(database: &Database, key: &Key, until: Until) -> Result<(), Failure> {
    let (mut turn, _) = database.connections.writer(Writer::Any, until).await?;
    let noted = turn.run(until, |now| {
        let note = sqlx::query(database.statements.note.clone());
        note.bind(key.as_str().as_bytes().to_vec()).bind(database.boot.clone()).bind(now)
    });
    noted.await.map(drop).map_err(|error| classify(error, database.connections.path()))
}

/// Reads the row of `key`. Changes nothing, however it fails.
pub(super) async fn read(database: &Database, key: &Key, until: Until) -> Result<Standing, Failure> {
    let mut turn = database.connections.reader(until).await?;
    let answer = turn
        .run(until, |_| sqlx::query(database.statements.read.clone()).bind(key.as_str().as_bytes().to_vec()))
        .await;
    drop(turn);
    let now = time::now();
    answer
        .and_then(|answer| {
            answer.rows.first().map_or(Ok(Standing::Free), |row| understand(row, &database.boot, now))
        })
        .map_err(|error| unchanged(classify(error, database.connections.path())))
}

/// Returns the holder of the lock of `key`; of several holders the first.
pub(super) async fn holder(
    database: Arc<Database>,
    key: &Key,
    until: Until,
) -> Result<Option<Holder>, Failure> {
    match read(&database, key, until).await? {
        Standing::Free => Ok(None),
        Standing::Held(holder) => Ok(Some(*holder)),
        Standing::Shared => {
            let key = key.clone();
            let occupancy = detached(async move { database.occupancy(&key).await }).await?;
            Ok(occupancy.holders.into_iter().next())
        }
    }
}
