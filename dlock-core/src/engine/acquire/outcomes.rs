//! From an answer to its outcome, and carrying out what is [decided](super::decide) on it.

use std::time::Duration;

use smallvec::SmallVec;

use super::attempt::gone;
use super::decide::{Answer, BusyOutcome, End, Failed, Next, Outcome, Pause, Progress};
use super::taking_over::{not_there, used_up};
use super::wait::{pause_after, within};
use super::{Acquire, QueuePlace, Shares};
use crate::backend::{Busy, Grant};
use crate::engine::hold::{Condition, Hold};
use crate::engine::refusals::Refusals;
use crate::engine::release::Share;
use crate::engine::scope;
use crate::error::{ErrorKind, Failure};
use crate::options::Role;

impl<'a> Acquire<'a> {
    /// Makes an outcome of an answer. `before` is the reason why the attempt before has no certain outcome, and
    /// `may_be_own` is `true` if a claim of this acquire may have been in the way when the attempt began.
    pub(super) fn outcome_of(
        &mut self,
        answer: Answer,
        before: Option<Failure>,
        may_be_own: bool,
    ) -> Result<Outcome<Shares>, Failure> {
        Ok(match answer {
            Answer::Granted(grants) => match self.accept(grants)? {
                Some(shares) => Outcome::Granted(shares),
                None => Outcome::Late { is_over: self.limits.is_over() },
            },
            Answer::Busy(place, busy) => {
                self.turn_to(place);
                Outcome::Busy(self.note_busy(busy, may_be_own))
            }
            Answer::Separately => Outcome::Separately,
            // The last attempt was cut off; the one before may have learned why.
            Answer::Unknown(failure) => Outcome::Unknown(match before {
                Some(before) if self.limits.is_over() => failure.with_source(before),
                _ => failure,
            }),
            Answer::Failed(failure) => Outcome::Failed(failure),
        })
    }

    /// Makes shares of grants; `None` when they came so late that they are of no use any more.
    fn accept(&mut self, grants: SmallVec<[Grant; 1]>) -> Result<Option<Shares>, Failure> {
        // `begin` notes a moment before each request, so that there is one.
        let sent = self.unsettled.granted().unwrap_or_else(|| self.engine.clock.now());
        let mut shares = Shares::with_capacity(grants.len());
        for (pending, grant) in self.pendings.iter_mut().zip(grants) {
            let Some(claim) = pending.claim.take() else { return Err(gone()) };
            let hold = Hold::new(pending.spec, (claim, pending.session.take()), grant, sent);
            self.engine.registry.list(&hold);
            // Dropping a share releases the lock, also one that comes too late.
            shares.push(Share::first(hold));
        }
        // After all holds are listed: a shutdown that closed the locks before has not seen them.
        scope::may_acquire(self.engine)?;
        if shares.iter().all(|share| share.hold().condition_when_granted() != Condition::Lost) {
            if self.specs[0].options.role == Some(Role::Leader) {
                self.engine.announce(&self.specs[0].key);
            }
            return Ok(Some(shares));
        }
        // All of a batch, also those that are valid still: the caller wants all or none, and the next attempt must not
        // find its own locks taken.
        drop(shares);
        // The keeper may have died since, which loses all.
        scope::may_acquire(self.engine)?;
        Ok(None)
    }

    /// Notes that another claim has the lock.
    fn note_busy(&mut self, busy: Busy, may_be_own: bool) -> BusyOutcome {
        self.span.busy(busy.holder.as_deref(), busy.retry_after);
        // Another holder ends the tenure of this process. If the holder is in this process, its grant has taken the
        // entry out already.
        let key = &self.specs[self.contention.place].key;
        self.engine.tenures.found_taken(key, busy.holder.as_deref());
        if busy.requeued {
            self.span.requeued();
        }
        let is_left = busy.holder.as_ref().is_some_and(|holder| holder.left_behind);
        let outcome = BusyOutcome {
            retry_after: busy.retry_after,
            // Looked at again: `settle` may have left the claims of this very attempt to the keeper.
            may_be_own: may_be_own || self.may_be_its_own(),
            is_run: is_left && self.specs[0].options.role == Some(Role::Job),
            may_have_ended: self.unsettled.may_have_ended(),
        };
        self.contention.note(busy, self.terms.many);
        outcome
    }

    /// Decides what follows an outcome.
    pub(super) fn after(&self, outcome: Outcome<Shares>, line: Option<&QueuePlace<'a>>) -> Next<Shares> {
        let progress = Progress {
            in_line: line.is_some_and(|(place, _)| *place == self.contention.place),
            was_busy: self.contention.was_busy,
            tries: self.contention.tries,
            unknowns: self.unsettled.unknowns(),
            may_stand: self.unsettled.may_stand(),
        };
        self.terms.after(outcome, progress)
    }

    /// Ends the acquire without a lock.
    pub(super) fn end(
        &mut self,
        end: End,
        mut line: Option<QueuePlace<'a>>,
    ) -> Result<Option<Shares>, Failure> {
        if let End::OneByOne = end {
            self.leave_to_others(&mut line)?;
        }
        if let (End::OneByOne | End::Busy, Some((_, ticket))) = (&end, &line) {
            // The waiters behind do not wait for the pause after a waiter that gave up: jobs find the run too, one
            // after the other.
            ticket.tell();
        }
        match end {
            End::Separately | End::OneByOne => Ok(None),
            End::Busy => Err(Failure::new(ErrorKind::Busy, "")),
            End::NotThere => Err(not_there(self.contention.holder.as_ref())),
            End::UsedUp => Err(used_up()),
            End::TooLate => {
                Err(Failure::new(ErrorKind::TimedOut, "the grant arrived after its lease had ended"))
            }
            End::Unknown(failure) => {
                // Any other unknown outcome is reported by `pause`, after which it is asked about.
                self.span.unknown(&failure, false);
                Err(failure)
            }
            End::Failed(failure) => Err(failure),
        }
    }

    /// Leaves the lock in the way to its holder, and the queue of any other lock.
    fn leave_to_others(&mut self, line: &mut Option<QueuePlace<'a>>) -> Result<(), Failure> {
        let place = self.contention.place;
        scope::refuse_own(&self.specs[place])?;
        if let Some((_, ticket)) = line.take_if(|(at, _)| *at != place) {
            // The lock of that queue may well be free: the next waiter is to look.
            ticket.tell();
        }
        self.contention.waits();
        Ok(())
    }

    /// Waits until another attempt may be worth while, in the queue if it `joins` that. `seen` has the numbers of
    /// releases before the attempt.
    pub(super) async fn wait(
        &mut self,
        retry_after: Option<Duration>,
        joins: bool,
        seen: &[u32],
        line: &mut Option<QueuePlace<'a>>,
    ) -> Result<(), Failure> {
        self.leave_to_others(line)?;
        self.span.wait();
        let (engine, place) = (self.engine, self.contention.place);
        if joins {
            *line = Some((place, self.join(place, seen.get(place).copied())));
        }
        if let Some((_, ticket)) = line {
            self.step_back(ticket)?;
        }
        // Boxed: an acquire that does not wait needs no memory for it.
        let may_ask = Box::pin(async {
            if self.requests.virtual_time {
                // Under a paused clock the wait below takes no real time, so that a release which is on the keeper's
                // thread would never be seen by it.
                engine.finish_background().await;
            }
            self.wait_for_change(retry_after, line.as_ref().map(|(_, ticket)| ticket)).await
        });
        if !may_ask.await? {
            // Before the rest of the time passes: the waiter behind may have time to ask.
            drop(line.take());
            return Err(self.time_out().await);
        }
        self.span.woken();
        Ok(())
    }

    fn refusals(&mut self) -> &mut Refusals<'a> {
        let (engine, site) = (self.engine, self.specs[self.contention.place].site);
        self.pauses().refusals.get_or_insert_with(|| Box::new(Refusals::new(engine, site)))
    }

    /// Pauses before another attempt. Returns the reason why the last one took nothing, where that was not another
    /// holder.
    pub(super) async fn pause(
        &mut self,
        pause: Pause,
        line: &mut Option<QueuePlace<'a>>,
    ) -> Result<Option<Failure>, Failure> {
        let (engine, until) = (self.engine, self.limits.until);
        let fraction = || engine.entropy.fraction();
        let (Failed { failure, joins }, is_refused) = match pause {
            Pause::NewClaims => {
                self.begin_anew()?;
                // Never at once: a backend that is always late would be asked without end.
                let pause = self.pauses().failures.pause(fraction());
                Box::pin(within(engine, until, engine.timers.sleep(pause))).await?;
                return Ok(None);
            }
            Pause::Recheck(failure) => {
                self.span.unknown(&failure, true);
                self.unsettled.recheck();
                let pause = self.pauses().unknown_outcomes.pause(fraction());
                return pause_after(engine, until, failure, pause, None).await.map(Some);
            }
            Pause::Away(failed) => (failed, false),
            Pause::Refused(failed) => (failed, true),
        };
        // Joined before the pause: waiters that come during it stand behind this one. A reader that was invited past
        // others goes back to its place: the first of them asks servers that cannot answer, and not each.
        let joined = match joins {
            true => Some((0, self.join(0, None))),
            false if self.unsettled.may_stand() => None,
            false => line.take_if(|(_, ticket)| ticket.back_in_line()),
        };
        if let Some((_, ticket)) = &joined {
            self.step_back(ticket)?;
        }
        let pause = match is_refused {
            false => self.pauses().failures.pause(fraction()),
            true => self.refusals().pause(&failure),
        };
        // A refusal is followed by a long pause: a release in this process is worth another look.
        let ticket = line.as_ref().or(joined.as_ref()).map(|(_, ticket)| ticket);
        let failure = pause_after(engine, until, failure, pause, ticket).await?;
        let Some((place, ticket)) = joined else { return Ok(Some(failure)) };
        scope::refuse_own(&self.specs[place])?;
        self.span.wait();
        match Box::pin(within(engine, self.limits.patient_until, ticket.turn())).await {
            Err(end) if end.kind() == ErrorKind::TimedOut => return Err(failure),
            // The turn itself is of no interest: whether it came by a release or by a pause, the acquire asks now.
            turn => drop(turn?),
        }
        if !self.leaves_time_for_an_answer(Some(&ticket)).await? {
            return Err(failure);
        }
        *line = Some((place, ticket));
        self.span.turn();
        Ok(Some(failure))
    }
}
