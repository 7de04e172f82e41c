//! An acquire in the line of its process: what it reserves for those behind it, and the lock that the section before
//! passes on to it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use super::Acquire;
use super::limits::{leaves_time_for_an_answer, within};
use crate::engine::handoff::Handoff;
use crate::engine::hold::Condition;
use crate::engine::pending::Pending;
use crate::engine::scope;
use crate::engine::share::Share;
use crate::engine::tenure::MOST_FOLLOWERS;
use crate::engine::wait_queue::Ticket;
use crate::error::Failure;

impl<'a> Acquire<'a> {
    /// Makes a share of a lock that was passed on; `None` when nobody can rely on it any more.
    pub(super) fn accept_handoff(&mut self, handoff: Handoff) -> Result<Option<Share>, Failure> {
        let before = Arc::clone(handoff.before());
        let Some((hold, activity)) = handoff.take(&self.specs[self.place]) else { return Ok(None) };
        self.engine.registry.list(&hold);
        drop(activity);
        // Dropping the share releases the lock.
        let share = Share::first(hold);
        scope::may_acquire(self.engine)?;
        if share.hold().condition_when_granted() != Condition::Held {
            return Ok(None);
        }
        self.span.passed_on(&before.trace);
        Ok(Some(share))
    }

    /// Joins the line of this lock.
    pub(super) fn join(&self, place: usize, seen: Option<u32>) -> Ticket<'a> {
        let spec = &self.specs[place];
        let ticket = self.engine.wait_queue.join(&spec.key, seen);
        if let Some(until) = self.engine.tenures.stands_back(&spec.key) {
            ticket.stand_back(until);
        }
        if self.accepts_handoff() {
            ticket.accept(spec.options.lease);
        }
        ticket
    }

    /// Leaves nothing on the server where others of this process stand before: the first of them asks for all, and is
    /// not to be kept out by a preference, or by a request under way, of a claim that itself asks no more.
    pub(super) fn step_back(&mut self, ticket: &Ticket<'_>) -> Result<(), Failure> {
        if ticket.is_first() || !self.pendings.iter().any(Pending::leaves_something) {
            return Ok(());
        }
        self.begin_anew()
    }

    /// Leaves the line with the lock. What others may hold at the same time, the next one asks for at once.
    pub(super) fn leave_line(&mut self, place: usize, ticket: Ticket<'_>) {
        if self.specs[place].options.mode.is_exclusive() {
            ticket.win(self.next_poll(None));
        } else {
            ticket.tell();
        }
    }

    /// Whether a lock may be passed on to this acquire: one that is held alone, and not while something of the acquire
    /// may be on the server.
    pub(super) fn accepts_handoff(&self) -> bool {
        matches!(self.specs, [only] if only.options.handoff && only.options.mode.is_exclusive())
            && self.first_sent.is_none()
    }

    /// Has the next attempt reserve fences for those who wait behind.
    pub(super) fn reserve(&mut self, line: Option<&(usize, Ticket<'_>)>) {
        let Some((_, ticket)) = line else { return };
        let [spec] = self.specs else { return };
        let Some(claim) = self.pendings[0].claim.as_mut() else { return };
        let passes_on = spec.options.handoff && spec.options.mode.is_exclusive();
        let followers = if passes_on { ticket.followers(MOST_FOLLOWERS) } else { 0 };
        claim.reserve(self.engine.tenures.block(&spec.key, followers, self.tries > 0));
    }

    /// Waits for what is left, which is too little for an answer, with nothing that keeps others from the lock.
    pub(super) async fn time_out(&mut self) -> Failure {
        self.pendings.clear();
        let left = within(self.engine, self.until, std::future::pending::<Infallible>());
        match Box::pin(left).await {
            Err(failure) => failure,
            Ok(never) => match never {},
        }
    }

    /// Whether enough of the wait is left for an answer.
    pub(super) fn leaves_time_for_an_answer<'t>(
        &self,
        ticket: Option<&'t Ticket<'a>>,
    ) -> impl Future<Output = Result<bool, Failure>> + use<'a, 't> {
        let wait = self.until.map_or(Duration::ZERO, |until| until.saturating_duration_since(self.started));
        // What was slow for others ends no wait much earlier than it was to end.
        let recent = self.engine.round_trip.recent().min(wait / 8);
        leaves_time_for_an_answer(self.engine, self.until, self.round_trip.max(recent) * 2, ticket)
    }
}
