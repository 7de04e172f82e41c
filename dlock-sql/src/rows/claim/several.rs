//! The attempts by a transaction: of a claim on a share, of a writer that found shares, and of a claim that waits for
//! its turn.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::Failure;
use dlock_core::backend::{Attempt, Busy, Mode, Withdrawal};
use tokio::time::Instant;

use super::RowClaim;
use crate::failure::unchanged;
use crate::gateway::Kind;
use crate::rows::lease_table::LeaseTable;
use crate::rows::line::{Place, Stand};
use crate::rows::shares::{ShareAsk, ShareTaken};
use crate::rows::steps::{LeaveShare, LookInLine, ReleaseShare, TakeShare};
use crate::stored;

impl<S: LeaseTable> RowClaim<S> {
    /// Makes one attempt, as one transaction of the server.
    pub(super) async fn attempt_share(&mut self) -> Result<Attempt, Failure> {
        self.since = Instant::now();
        // Several fences only where no earlier attempt can have taken the lock with one.
        let fresh = self.in_flight.is_empty();
        let fences = if fresh && self.request.mode == Mode::Exclusive { self.reserves } else { 1 };
        let step = TakeShare(ShareAsk::new(&self.request, fences, self.stand()));
        let connections = Arc::clone(&self.rows.connections);
        let (attempt, route) = (self.in_flight.begin(&self.clock), connections.route(Kind::Ordinary));
        let answer = connections.begin(route, step, self.limits(), Arc::clone(&attempt)).await;
        self.in_flight.answered(&attempt, &answer);
        match answer? {
            ShareTaken::Granted(fence) => {
                (self.held, self.listener, self.keeps_out) = (Some(connections.hold()), None, false);
                self.place = Place::default();
                // A late attempt may still leave a preference or a place: then a release has to look for these too.
                self.shared = self.request.mode != Mode::Exclusive || !self.in_flight.is_empty();
                Ok(Attempt::Granted(stored::grant(self.request.lease, fence, fences)))
            }
            ShareTaken::Busy { holder, free_in, prefers, place } => {
                self.contended = true;
                // Until it is granted or withdrawn: its row stays when the others have gone.
                self.keeps_out |= prefers;
                self.seen = holder.as_ref().and_then(|holder| holder.fence);
                let mut busy = stored::busy(holder, Some(free_in));
                self.stands(place, &mut busy);
                Ok(Attempt::Busy(busy))
            }
            ShareTaken::Elsewhere => Ok(self.is_elsewhere()),
            // A take-over is for what was left: where the key is used in another way by now, there is nothing for it.
            ShareTaken::Conflict(_) if self.request.takes_over.is_some() => {
                Ok(Attempt::Busy(Busy::default()))
            }
            ShareTaken::Conflict(other) => Err(self.conflict(other)),
        }
    }

    /// Answers that the key is of sessions or locked rows, where nothing can be taken over.
    pub(super) fn is_elsewhere(&mut self) -> Attempt {
        self.elsewhere = self.request.takes_over.is_none();
        Attempt::Busy(Busy::default())
    }

    /// Reports that others use the key in this way.
    pub(super) fn conflict(&self, other: Mode) -> Failure {
        let what = || Failure::unavailable("the key is used in another way");
        self.request.mode.conflict(&other).unwrap_or_else(what)
    }

    /// Leaves what this claim has for so long, or no longer than it is left already.
    pub(super) async fn leave_share(&self, taken_for: Duration) -> Result<Withdrawal, Failure> {
        let request = &self.request;
        let step = LeaveShare(request.key.clone(), request.token, taken_for);
        let left = self.rows.connections.within(Kind::Release, step, request.request_timeout).await?;
        Ok(if left { Withdrawal::REMOVED } else { Withdrawal::ABSENT })
    }

    /// Removes what this claim has, its preference, and its place in line.
    pub(super) async fn release_share(&self) -> Result<Withdrawal, Failure> {
        let request = &self.request;
        let step = ReleaseShare(request.key.clone(), request.token, request.fair);
        let removed = self.rows.connections.within(Kind::Release, step, request.request_timeout).await?;
        Ok(if removed { Withdrawal::REMOVED } else { Withdrawal::ABSENT })
    }

    /// Makes one attempt of a claim that is to have its turn, in a request of its own once it has to stand in line.
    pub(super) async fn attempt_in_line(&mut self) -> Result<Attempt, Failure> {
        // Cheapest first: no request, then a question, then the transaction that also keeps the place.
        if self.place.pauses() {
            return Ok(Attempt::Busy(Busy::default()));
        }
        if let Some(busy) = self.look_in_line().await? {
            return Ok(Attempt::Busy(busy));
        }
        self.attempt_share().await
    }

    /// Returns what the claim says of its place.
    pub(super) fn stand(&self) -> Option<Stand> {
        let request = &self.request;
        (request.fair && request.mode == Mode::Exclusive)
            .then_some(Stand { waits: request.waits, known: self.place.number })
    }

    /// Returns the answer to an attempt, where that can be found without writing: the place is kept for long enough,
    /// and it is not its turn.
    async fn look_in_line(&mut self) -> Result<Option<Busy>, Failure> {
        let server = self.rows.connections.server();
        let (Some(number), true) = (self.place.number, self.in_flight.is_empty()) else { return Ok(None) };
        if server.releases().is_some() {
            // Notified claims ask seldom, and keep their place with each attempt.
            return Ok(None);
        }
        let step = LookInLine(self.request.key.clone(), self.request.token, number);
        let connections = Arc::clone(&self.rows.connections);
        let seen = connections.within(Kind::Ordinary, step, self.request.request_timeout).await;
        let Some(seen) = seen.map_err(unchanged)? else { return Ok(None) };
        let place = Place::of(number, seen.before, false);
        // Half of the time in which the place is kept is left for the write.
        if seen.is_free && seen.before <= 0 || seen.kept < place.kept() / 2 {
            return Ok(None);
        }
        self.place = place;
        let left = place.retry_after(seen.holder.as_ref().and_then(|of| of.expires_in), false);
        Ok(Some(stored::busy(seen.holder, left)))
    }

    /// Notes the place that an attempt has come to.
    pub(super) fn stands(&mut self, place: Option<(i64, i64)>, busy: &mut Busy) {
        let Some((number, before)) = place else { return };
        let is_told = self.rows.connections.server().releases().is_some();
        busy.requeued = self.place.number.is_some_and(|known| known != number);
        self.place = Place::of(number, before, is_told);
        busy.retry_after = self.place.retry_after(busy.retry_after, is_told);
    }
}
