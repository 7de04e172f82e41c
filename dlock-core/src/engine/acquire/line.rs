//! An acquire in the queue of its process: the fences that it reserves for the waiters behind it, and the lock that the
//! section before passes on to it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use super::attempt::Pending;
use super::wait::{leaves_time_for_an_answer, within};
use super::{Acquire, QueuePlace};
use crate::engine::handoff::Handoff;
use crate::engine::hold::Condition;
use crate::engine::release::Share;
use crate::engine::scope;
use crate::engine::tenure::MOST_FOLLOWERS;
use crate::engine::wait_queue::Ticket;
use crate::error::Failure;
use crate::mode::Mode;

impl<'a> Acquire<'a> {
    /// Takes the lock that the section before passed on to this waiter, if there is one and it can be relied on.
    pub(super) fn handed_over(&mut self, ticket: &Ticket<'a>) -> Result<Option<Share>, Failure> {
        let Some(handoff) = ticket.take_offer().and_then(Handoff::of) else { return Ok(None) };
        let before = Arc::clone(handoff.before());
        let Some((hold, activity)) = handoff.take(&self.specs[self.contention.place]) else {
            return Ok(None);
        };
        // Listed before the token of the handoff goes: a shutdown finds the lock in the one place or the other.
        self.engine.registry.list(&hold);
        drop(activity);
        // Dropping the share releases the lock: also when the locks were shut down meanwhile.
        let share = Share::first(hold);
        scope::may_acquire(self.engine)?;
        // Also a hold that is only suspect: the section must not begin before the lock is certain. The drop of the
        // share releases it, and this waiter asks by itself.
        if share.hold().condition_when_granted() != Condition::Held {
            return Ok(None);
        }
        self.span.passed_on(&before.trace);
        Ok(Some(share))
    }

    /// Waits in the queue from the beginning, where this process has waiters for the lock at this place, or yields it
    /// for a moment.
    pub(super) async fn wait_behind_others(&mut self, place: usize) -> Result<QueuePlace<'a>, Failure> {
        self.turn_to(place);
        scope::refuse_own(&self.specs[place])?;
        self.span.wait();
        self.contention.was_busy = true;
        self.requests.look_again();
        // Without a count of releases: the lock was not asked for yet, so that a waiter that is the first may ask at
        // once.
        let ticket = self.join(place, None);
        // Boxed: an acquire that does not wait needs no memory for it.
        Box::pin(within(self.engine, self.limits.patient_until, ticket.turn())).await?;
        if !self.leaves_time_for_an_answer(Some(&ticket)).await? {
            drop(ticket);
            return Err(self.time_out().await);
        }
        self.span.turn();
        Ok((place, ticket))
    }

    /// Joins the queue of this lock.
    pub(super) fn join(&self, place: usize, seen: Option<u32>) -> Ticket<'a> {
        let spec = &self.specs[place];
        let ticket = self.engine.wait_queue.join(&spec.key, seen);
        // This process yields the lock still: the queue is new, and does not know that yet.
        if let Some(until) = self.engine.tenures.yields_until(&spec.key) {
            ticket.yield_until(until);
        }
        if self.accepts_handoff() {
            ticket.accept(spec.options.lease);
        }
        if self.engine.capabilities.pipelined
            && matches!(self.specs, [only] if only.options.mode == Mode::Shared)
        {
            ticket.reads();
        }
        ticket
    }

    /// Leaves nothing on the server where other waiters of this process stand before: the first of them asks for all,
    /// and must not be kept out by a preference, or by a request under way, of a claim that itself asks no more.
    pub(super) fn step_back(&mut self, ticket: &Ticket<'_>) -> Result<(), Failure> {
        if ticket.is_first() || !self.pendings.iter().any(Pending::leaves_something) {
            return Ok(());
        }
        self.begin_anew()
    }

    /// Leaves the queue with the lock. Where others may hold it at the same time, the next waiter asks at once, and so
    /// do other readers beside a reader.
    pub(super) fn leave_line(&mut self, place: usize, ticket: Ticket<'_>) {
        let mode = self.specs[place].options.mode;
        if mode.is_exclusive() {
            return ticket.win(self.next_poll(None));
        }
        if mode == Mode::Shared {
            ticket.invite_readers();
        }
        // A reader that asked past others leaves the first of them to its own pace: nothing was released.
        if ticket.is_first() {
            ticket.tell();
        }
    }

    /// Returns whether a lock may be passed on to this acquire: only one that is held alone, and not while something of
    /// the acquire may be on the server.
    pub(super) fn accepts_handoff(&self) -> bool {
        matches!(self.specs, [only] if only.options.handoff && only.options.mode.is_exclusive())
            && !self.unsettled.may_stand()
    }

    /// Notes that the backend is about to be asked, and has the attempt reserve fences for the waiters behind.
    pub(super) fn prepare(&mut self, ticket: &Ticket<'a>) {
        ticket.ask();
        let [spec] = self.specs else { return };
        let Some(claim) = self.pendings[0].claim.as_mut() else { return };
        let passes_on = spec.options.handoff && spec.options.mode.is_exclusive();
        // Without a handoff the fences beyond the first would be lost, and the counter would run ahead for nothing.
        let followers = if passes_on { ticket.followers(MOST_FOLLOWERS) } else { 0 };
        // `was_busy` is `true` behind waiters of this process as well, which shows nothing of other processes.
        claim.reserve(self.engine.tenures.block(&spec.key, followers, self.contention.tries > 0));
    }

    /// Waits for the rest of the time, which is too short for an answer, with nothing that keeps others from the lock.
    pub(super) async fn time_out(&mut self) -> Failure {
        // The claims first: their withdrawal need not wait for the end of this.
        self.pendings.clear();
        let left = within(self.engine, self.limits.until, std::future::pending::<Infallible>());
        match Box::pin(left).await {
            Err(failure) => failure,
            Ok(never) => match never {},
        }
    }

    /// Returns whether enough of the wait is left for an answer.
    pub(super) fn leaves_time_for_an_answer<'t>(
        &self,
        ticket: Option<&'t Ticket<'a>>,
    ) -> impl Future<Output = Result<bool, Failure>> + use<'a, 't> {
        let wait = self
            .limits
            .until
            .map_or(Duration::ZERO, |until| until.saturating_duration_since(self.limits.started));
        // An answer that was slow for others ends no wait much earlier than its time is up.
        let recent = self.engine.acquires.round_trip.recent().min(wait / 8);
        leaves_time_for_an_answer(
            self.engine,
            self.limits.until,
            self.requests.round_trip.max(recent) * 2,
            ticket,
        )
    }
}
