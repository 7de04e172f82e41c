//! One claim on a row.
//!
//! ```text
//!     clean --> attempt --+-- busy: `contended`, perhaps `place`, `keeps_out` ---> attempt, withdraw
//!                         +-- not known: `in_flight` keeps it -------------------> attempt, withdraw
//!                         +-- granted: `held` ---> renew, downgrade -------------> withdraw, leave
//!
//!     downgrade not answered: `downgrades`, sent again by each renewal
//!     withdraw, leave: `in_flight.end`, then the release; unsettled while an attempt may still arrive
//! ```
//!
//! An attempt that finds the key with sessions or locked rows sets `elsewhere`, and [`attempt`](Claim::attempt) moves
//! the key. From the moment at which a claim finds shares, or becomes one, `shared` sends it by the transaction for
//! those.

mod attempts;
mod several;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::notify::Listener;
use dlock_core::backend::{
    Attempt, Busy, Claim, ClaimRequest, Mode, Renewed, RequestClock, Signal, Withdrawal,
};
use dlock_core::{Clock, ErrorKind, Failure, Fence};
use tokio::time::Instant;

use self::attempts::Attempts;
use super::Rows;
use super::lease_table::LeaseTable;
use super::line::Place;
use super::steps::{AwaitRelease, Downgrade, Leave, Take, TakeBack, TakeOver};
use super::together::release_together;
use crate::failure::unchanged;
use crate::gateway::{Holding, Kind, ask_together};
use crate::limits::Limits;
use crate::protocol::{Ask, Released, Taken};
use crate::questions::Turn;
use crate::stored;
use crate::way::Way;

/// The number of times that a claim takes a key back that claims of its other ways take at the same time.
const TRIES: u32 = 3;

/// A claim on a lease row of a database server.
pub struct RowClaim<S: LeaseTable> {
    rows: Arc<Rows<S>>,
    request: ClaimRequest,
    clock: RequestClock,
    /// The number of fences that the next attempt reserves.
    reserves: u32,
    in_flight: Attempts,
    held: Option<Holding>,
    /// The moment from which the lease counts.
    since: Instant,
    /// Set if the lock was held at the last attempt.
    contended: bool,
    /// Set if several may hold the lock, or were seen to.
    shared: bool,
    /// Set while the lock is to become a reader's, and the outcome is not known.
    downgrades: bool,
    /// Set while it keeps newcomers out.
    keeps_out: bool,
    /// Set if the last attempt found a key of sessions or locked rows.
    elsewhere: bool,
    /// The place among those that wait in order.
    place: Place,
    listener: Option<Listener>,
    /// The fence of the holder at the last attempt.
    seen: Option<Fence>,
    /// The fence of the grant whose release will be published, since a waiter is noted with it.
    noted: Option<Fence>,
}

impl<S: LeaseTable> RowClaim<S> {
    pub(crate) fn new(rows: Arc<Rows<S>>, request: ClaimRequest) -> Self {
        Self {
            rows,
            shared: request.mode != Mode::Exclusive,
            keeps_out: false,
            elsewhere: false,
            downgrades: false,
            place: Place::default(),
            request,
            clock: RequestClock::new(Clock::system()),
            reserves: 1,
            in_flight: Attempts::default(),
            held: None,
            since: Instant::now(),
            contended: false,
            listener: None,
            seen: None,
            noted: None,
        }
    }

    fn limits(&self) -> Limits {
        Limits::of(self.request.request_timeout, self.request.usual_lease)
    }

    async fn release(&self, taken_for: Option<Duration>) -> Result<Withdrawal, Failure> {
        let ClaimRequest { key, token, request_timeout: limit, .. } = &self.request;
        let connections = &self.rows.connections;
        // A claim that may have a share, a preference or a place is withdrawn by the transaction that knows of these; a
        // granted one in line has none of them any more.
        let is_in_line = self.request.fair && self.held.is_none();
        if (self.shared || is_in_line) && taken_for.is_none() {
            return self.release_share().await;
        }
        if let Some(taken_for) = taken_for
            && self.request.mode != Mode::Exclusive
        {
            return self.leave_share(taken_for).await;
        }
        let released = if let Some(taken_for) = taken_for {
            connections.within(Kind::Release, Leave(key.clone(), *token, taken_for), *limit).await?
        } else {
            release_together(connections, key, token, *limit).await?
        };
        let Some(Released { running, awaited }) = released else { return Ok(Withdrawal::ABSENT) };
        let withdrawal = if running { Withdrawal::REMOVED } else { Withdrawal::ABSENT };
        Ok(withdrawal.with_others_waiting(u32::from(awaited)))
    }

    /// Releases the lock, and leaves its row taken if it is to be.
    async fn give_back(&mut self, taken_for: Option<Duration>) -> Result<Withdrawal, Failure> {
        self.listener = None;
        self.rows.check()?;
        // Before the release, and for a short time only: an attempt that arrives after it would take the lock for a
        // claim that is gone.
        self.in_flight.end(self.request.usual_lease).await;
        let withdrawn = self.release(taken_for).await?;
        // Noted after the answer: a dropped or failed withdrawal is made once more.
        (self.held, self.keeps_out, self.place) = (None, false, Place::default());
        Ok(if self.in_flight.withdrawn() { withdrawn } else { withdrawn.unsettled() })
    }

    /// Makes one attempt, and notes when the key turns out to be of sessions or locked rows.
    async fn attempt_once(&mut self) -> Result<Attempt, Failure> {
        self.in_flight.look();
        // If this fails, nothing was sent: its bound is less than the time that the engine waits.
        self.rows.ready(self.request.request_timeout * 3 / 4).await?;
        let server = Arc::clone(self.rows.connections.server());
        match &mut self.listener {
            // Earlier notifications do not count.
            Some(listener) => listener.forget(),
            // Listening begins before the question, so that no release is missed.
            none if self.contended && !self.request.fair => {
                *none = server.releases().and_then(|releases| releases.join(&self.request.key));
            }
            _ => {}
        }
        if self.shared {
            return self.attempt_share().await;
        }
        // The first attempt needs no place: a lock for which waiters stand in line is not free.
        if self.request.fair && (self.contended || !self.in_flight.is_empty()) {
            return self.attempt_in_line().await;
        }
        // Taken before the request may be sent: the lease counts from here.
        self.since = Instant::now();
        let ClaimRequest { key, token, lease, .. } = &self.request;
        // The answer to another claim of this process does not say whether it is this token that holds the lock.
        let left = self.request.takes_over;
        let fresh = self.in_flight.is_empty() && left.is_none();
        let fences = if fresh { self.reserves } else { 1 };
        let holder = stored::line(&self.request, fences);
        let ask = Ask { key: key.clone(), token: *token, lease: *lease, holder, fences };
        // Looking before writing disturbs the holder less. Not while an attempt is in flight: its grant would look like
        // that of another owner.
        let contended = self.contended && self.in_flight.is_empty();
        let (connections, mut limits) = (Arc::clone(&self.rows.connections), self.limits());
        let rows = Arc::clone(&self.rows);
        let mut asking = None;
        let mut route = connections.route(Kind::Ordinary);
        let joint = match fresh {
            false => Ok(None),
            true if connections.has_pool() => {
                // The time in the queue of this process is no part of the request.
                self.clock.queued();
                let end = Instant::now() + limits.patience;
                match rows.questions.turn(&ask.key, end).await {
                    Ok(Turn::Ask(turn)) => {
                        asking = Some(turn);
                        // This may be polled elsewhere by now, where the pool cannot be used.
                        route = connections.route(Kind::Ordinary);
                        // The rest of the time is for the pool.
                        limits.patience = end.saturating_duration_since(Instant::now());
                        Ok(None)
                    }
                    Ok(Turn::Taken(holder)) => Ok(Some(Taken::Busy(holder))),
                    Err(failure) => Err(failure),
                }
            }
            true => match route.batching_pool() {
                Some(runtime_pool) => {
                    // In flight before it is queued: it may be sent at any moment, also after this call was dropped.
                    let attempt = self.in_flight.begin(&self.clock);
                    let answer =
                        ask_together(&connections, &runtime_pool, ask.clone(), limits, &attempt).await;
                    self.in_flight.answered(&attempt, &answer);
                    answer
                }
                None => Ok(None),
            },
        };
        let answer = match joint.transpose() {
            Some(answer) => answer,
            None => {
                // By itself: it was not sent with others, or their answer did not decide on it.
                let (ask, attempt) = (ask.clone(), self.in_flight.begin(&self.clock));
                let sent = Arc::clone(&attempt);
                let answer = match left {
                    None => connections.begin(route, Take(ask, contended), limits, sent).await,
                    Some(left) => connections.begin(route, TakeOver(ask, left), limits, sent).await,
                };
                self.in_flight.answered(&attempt, &answer);
                answer
            }
        };
        // A refusal for good is not passed on: each claim finds out by itself.
        if let (Some(asking), Ok(taken @ (Taken::Granted(_) | Taken::Busy(_)))) = (asking, &answer) {
            asking.found_taken(ask.seen_by_others(taken));
        }
        match answer? {
            Taken::Granted(fence) => {
                (self.held, self.listener) = (Some(self.rows.connections.hold()), None);
                // The attempt that follows must not look first: it would take its own lock for that of another owner.
                self.contended = false;
                Ok(Attempt::Granted(stored::grant(self.request.lease, fence, fences)))
            }
            Taken::Busy(mut holder) => {
                self.contended = true;
                match holder.as_ref().map(|holder| holder.mode) {
                    Some(Mode::Shared | Mode::Permits { .. }) if left.is_some() => {
                        holder = self.rows.inspect(&self.request.key).await?.map(Box::new);
                    }
                    Some(mode @ Mode::Permits { .. }) => return Err(self.conflict(mode)),
                    // From now on the claim has a place.
                    _ if self.request.fair && self.request.waits => return self.attempt_share().await,
                    Some(Mode::Shared) if self.request.has_preference() => {
                        self.shared = true;
                        return self.attempt_share().await;
                    }
                    _ => {}
                }
                self.seen = holder.as_ref().and_then(|holder| holder.fence);
                // The row of a key that several read lasts as long as the last of them.
                let shown = holder.as_ref().filter(|of| left.is_some() || of.mode == Mode::Exclusive);
                let ends = shown.and_then(|holder| holder.expires_in);
                Ok(Attempt::Busy(stored::busy(holder, ends)))
            }
            Taken::Elsewhere(_) | Taken::Uncounted => Ok(self.is_elsewhere()),
        }
    }
}

impl<S: LeaseTable> Claim for RowClaim<S> {
    fn reserve(&mut self, fences: u32) {
        self.reserves = fences.max(1);
    }

    async fn attempt(&mut self) -> Result<Attempt, Failure> {
        for _ in 0..TRIES {
            let attempt = self.attempt_once().await?;
            if !std::mem::take(&mut self.elsewhere) {
                return Ok(attempt);
            }
            // Moved by a step of its own, and only once an attempt has found it so: attempts that find lease rows pay
            // nothing for it.
            let (step, limit) = (TakeBack(self.request.key.clone()), self.request.request_timeout);
            let held = self.rows.connections.within(Kind::Ordinary, step, limit).await;
            if let Some(theirs) = held.map_err(unchanged)? {
                return Err(Way::Lease.conflict(theirs));
            }
        }
        Ok(Attempt::Busy(Busy::default()))
    }

    async fn changed(&mut self) -> Result<(), Failure> {
        if self.request.fair {
            if self.listener.is_none() {
                let releases = self.rows.connections.server().releases();
                self.listener =
                    releases.map(|releases| releases.listen_turn(&self.request.token)).transpose()?;
            }
            // The first notification says that the server sends them from now on: what happened before is found out by
            // asking once more.
            return match &mut self.listener {
                Some(listener) => listener.changed().await,
                None => std::future::pending().await,
            };
        }
        if self.listener.is_none() {
            let releases = self.rows.connections.server().releases();
            self.listener = releases.map(|releases| releases.listen(&self.request.key)).transpose()?;
        }
        // A holder publishes its release, and leaves the lock to others, only where its row says that a claim waits;
        // that is noted once for each grant. Not before the server sends notifications: the release could come in
        // between.
        let is_quiet = self.listener.as_ref().is_none_or(Listener::is_quiet);
        if is_quiet && (self.seen.is_none() || self.seen != self.noted) {
            let step = AwaitRelease(self.request.key.clone());
            let limit = self.request.request_timeout;
            // The lock is free by now: ask at once.
            if !self.rows.connections.within(Kind::Ordinary, step, limit).await? {
                return Ok(());
            }
            self.noted = self.seen;
        }
        match &mut self.listener {
            Some(listener) => listener.changed().await,
            None => std::future::pending().await,
        }
    }

    fn granted(&mut self, _signal: Signal) {
        self.listener = None;
    }

    async fn renew(&mut self) -> Result<Renewed, Failure> {
        if self.downgrades {
            // It is not known in which form it is held; this extends it in either.
            return self.downgrade().await;
        }
        self.rows.renewals.extend(&self.request, &self.clock, &mut self.since).await
    }

    async fn downgrade(&mut self) -> Result<Renewed, Failure> {
        let before = (self.request.mode, self.shared, self.downgrades);
        // A release has to look for either form from now on.
        (self.request.mode, self.shared, self.downgrades) = (Mode::Shared, true, true);
        let since = Instant::now();
        let ClaimRequest { key, token, lease, request_timeout: limit, .. } = &self.request;
        let step = Downgrade(key.clone(), *token, *lease);
        let answer = self.rows.connections.within(Kind::Renewal, step, *limit).await;
        if matches!(&answer, Err(failure) if failure.kind() == ErrorKind::Denied) {
            // The step changed nothing. Renewals and releases of a lock that is held alone need fewer rights.
            (self.request.mode, self.shared, self.downgrades) = before;
        }
        let is_ours = answer?;
        // Only with an answer: until then the next renewal sends the step again.
        (self.downgrades, self.since) = (false, since);
        Ok(if is_ours { Renewed::Extended } else { Renewed::Gone })
    }

    async fn withdraw(&mut self) -> Result<Withdrawal, Failure> {
        self.give_back(None).await
    }

    async fn leave(&mut self, taken_for: Duration) -> Result<Withdrawal, Failure> {
        self.give_back(Some(taken_for)).await
    }

    fn request_clock(&self) -> Option<RequestClock> {
        Some(self.clock.clone())
    }

    fn is_clean(&self) -> bool {
        self.held.is_none() && !self.keeps_out && self.place.number.is_none() && self.in_flight.is_clean()
    }
}

impl<S: LeaseTable> fmt::Debug for RowClaim<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowClaim")
            .field("key", &self.request.key)
            .field("held", &self.held.is_some())
            .finish_non_exhaustive()
    }
}
