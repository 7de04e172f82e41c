//! One claim on a row.

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

/// How often a claim takes a key back that others of its ways take at the same time.
const TRIES: u32 = 3;

/// A claim on a lease row of a database server.
pub struct RowClaim<S: LeaseTable> {
    rows: Arc<Rows<S>>,
    request: ClaimRequest,
    clock: RequestClock,
    /// How many fences the next attempt reserves.
    reserves: u32,
    in_flight: Attempts,
    held: Option<Holding>,
    /// From when the lease counts.
    since: Instant,
    /// Somebody had the lock at the last attempt.
    contended: bool,
    /// Several may hold the lock, or were seen to.
    shared: bool,
    /// It was to become a reader's, and the outcome is not known.
    downgrades: bool,
    /// It keeps newcomers out.
    keeps_out: bool,
    /// The last attempt found a key of sessions or locked rows.
    elsewhere: bool,
    /// Its place among those who wait in order.
    place: Place,
    listener: Option<Listener>,
    /// The grant that somebody else had at the last attempt, and the one whose release is known to be told.
    seen: Option<Fence>,
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
        Limits::of(self.request.request_timeout, self.request.lease)
    }

    async fn release(&self, taken_for: Option<Duration>) -> Result<Withdrawal, Failure> {
        let ClaimRequest { key, token, request_timeout: limit, .. } = &self.request;
        let connections = &self.rows.connections;
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
        self.in_flight.end(self.request.lease).await;
        let withdrawn = self.release(taken_for).await?;
        (self.held, self.keeps_out, self.place) = (None, false, Place::default());
        Ok(if self.in_flight.withdrawn() { withdrawn } else { withdrawn.unsettled() })
    }

    /// Makes one attempt, and notes when the key turns out to be of sessions or locked rows.
    async fn attempt_once(&mut self) -> Result<Attempt, Failure> {
        self.in_flight.look();
        // Nothing was sent when there is no time left for it.
        self.rows.ready(self.request.request_timeout * 3 / 4).await?;
        let server = Arc::clone(self.rows.connections.server());
        match &mut self.listener {
            // What has happened until now does not count.
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
        self.since = Instant::now();
        let ClaimRequest { key, token, lease, .. } = &self.request;
        // What others of this process learn does not say whether it is this token that holds the lock.
        let left = self.request.takes_over;
        let fresh = self.in_flight.is_empty() && left.is_none();
        let fences = if fresh { self.reserves } else { 1 };
        let holder = stored::line(&self.request, fences);
        let ask = Ask { key: key.clone(), token: *token, lease: *lease, holder, fences };
        let contended = self.contended && self.in_flight.is_empty();
        let (connections, mut limits) = (Arc::clone(&self.rows.connections), self.limits());
        let rows = Arc::clone(&self.rows);
        let mut asking = None;
        let mut route = connections.route(Kind::Ordinary);
        let joint = match fresh {
            false => Ok(None),
            true if connections.has_pool() => {
                self.clock.queued();
                let end = Instant::now() + limits.patience;
                match rows.questions.turn(&ask.key, end).await {
                    Ok(Turn::Ask(turn)) => {
                        asking = Some(turn);
                        // This may be polled elsewhere by now, where the pool cannot be used.
                        route = connections.route(Kind::Ordinary);
                        // What is left of it is for the pool.
                        limits.patience = end.saturating_duration_since(Instant::now());
                        Ok(None)
                    }
                    Ok(Turn::Taken(holder)) => Ok(Some(Taken::Busy(holder))),
                    Err(failure) => Err(failure),
                }
            }
            true => match route.line() {
                Some(lane) => {
                    let attempt = self.in_flight.begin(&self.clock);
                    let answer = ask_together(&connections, &lane, ask.clone(), limits, &attempt).await;
                    self.in_flight.answered(&attempt, &answer);
                    answer
                }
                None => Ok(None),
            },
        };
        let answer = match joint.transpose() {
            Some(answer) => answer,
            None => {
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
        // What is refused for good each finds out by itself.
        if let (Some(asking), Ok(taken @ (Taken::Granted(_) | Taken::Busy(_)))) = (asking, &answer) {
            asking.found_taken(ask.seen_by_others(taken));
        }
        match answer? {
            Taken::Granted(fence) => {
                (self.held, self.listener) = (Some(self.rows.connections.hold()), None);
                // Were the next attempt to look first, it would take its own lock for another owner's.
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
                    // From now on it has a place.
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
            // The first news is that it is heard now: what was said before is found out by asking once more.
            return match &mut self.listener {
                Some(listener) => listener.changed().await,
                None => std::future::pending().await,
            };
        }
        if self.listener.is_none() {
            let releases = self.rows.connections.server().releases();
            self.listener = releases.map(|releases| releases.listen(&self.request.key)).transpose()?;
        }
        // Releases are published, and left to others, where somebody is known to wait; that is noted once for each
        // grant.
        let is_quiet = self.listener.as_ref().is_none_or(Listener::is_quiet);
        if is_quiet && (self.seen.is_none() || self.seen != self.noted) {
            let step = AwaitRelease(self.request.key.clone());
            let limit = self.request.request_timeout;
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
            // In which form it is held is not known, and this extends it in either.
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
