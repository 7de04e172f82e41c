//! Taking locks: attempts, waiting, and what to do when an outcome is unknown.
//!
//! One lock and many are taken in the same way; only the request differs. While one of many is busy, none is held: they
//! wait for that one, in line with the others who want it, and then all are tried for again. Under much contention the
//! next try can meet another one that is busy, and so on; after some tries in vain they are therefore taken one after
//! the other, where every place in line that was reached is kept.

mod attempt;
mod begin;
mod failed;
mod limits;
mod line;
mod listen;
mod taking_over;

use std::sync::Arc;
use std::time::Duration;

use smallvec::{SmallVec, smallvec};
use tokio::time::Instant;

use crate::backend::request_clock::UNSENT;
use crate::backend::{Backoff, Grant};
use crate::clock::Timestamp;
use crate::engine::acquire::attempt::{AttemptOutcome, gone, not_there, request, used_up};
pub(crate) use crate::engine::acquire::begin::{Start, acquire_all, begin, only_share};
use crate::engine::acquire::limits::{
    NotificationPace, is_over, pause_after, pause_until, timed_out_unpolled, within,
};
use crate::engine::acquire::listen::listen;
use crate::engine::bounds::{RequestBounds, Unanswered};
use crate::engine::handoff::Handoff;
use crate::engine::hold::{Condition, Hold};
use crate::engine::pending::Pending;
use crate::engine::refusals::Refusals;
use crate::engine::share::Share;
use crate::engine::wait_queue::{Ticket, Turn};
use crate::engine::{Engine, Spec, scope};
use crate::error::{Error, ErrorKind, Failure, Operation};
use crate::holder::Holder;
use crate::options::Wait;
use crate::telemetry::AcquireSpan;

/// How often all of many are tried for before they are taken one after the other.
const MOST_TRIES: u32 = 8;

/// What is wanted, or the guards of it; one lock needs no memory for the list.
pub(super) type Specs = SmallVec<[Spec; 1]>;
pub(crate) type Shares = SmallVec<[Share; 1]>;

/// One acquire.
struct Acquire<'a> {
    engine: &'a Arc<Engine>,
    specs: &'a [Spec],
    pendings: SmallVec<[Pending<'a>; 1]>,
    started: Instant,
    /// Whether a busy lock is waited for.
    waits: bool,
    /// When all of it ends, requests too; `None` without an end.
    until: Option<Instant>,
    /// When a busy lock is waited for no longer.
    patient_until: Option<Instant>,
    request_timeout: Duration,
    rechecks: Option<u32>,
    span: AcquireSpan<'a>,
    /// When the backend was asked last, or will be at once.
    asked_at: Instant,
    /// Whether `asked_at` is that of an attempt that is about to begin.
    asks_at_once: bool,
    /// Whether the acquire was begun before, and taken back.
    is_again: bool,
    /// When the first request was sent whose effect may still be standing.
    first_sent: Option<Timestamp>,
    /// Something took effect perhaps, and its lease has ended since.
    may_have_ended: bool,
    /// When the last request was sent.
    last_sent: Timestamp,
    /// Attempts since the outcome was last known.
    unknowns: u32,
    /// Attempts that found one of many busy.
    tries: u32,
    /// Whether somebody was before us: in the backend, or in the line of this process.
    was_busy: bool,
    /// Whether the lock has another holder than at the last attempt.
    changed_hands: bool,
    /// Which of them is in the way.
    place: usize,
    /// How long a recent answer took, at most half of the request timeout.
    round_trip: Duration,
    /// The clock that waits are measured with stands still and jumps: it is paused, in a test.
    virtual_time: bool,
    /// Between polls of a busy lock without a line.
    polls: Backoff,
    pace: NotificationPace,
    failures: Backoff,
    unknown_outcomes: Backoff,
    /// Made when it is refused after it had begun to wait.
    refusals: Option<Box<Refusals<'a>>>,
    holder: Option<Holder>,
}

/// The place in line, and that of the lock in the list.
type QueuePlace<'a> = Option<(usize, Ticket<'a>)>;

impl<'a> Acquire<'a> {
    fn new(specs: &'a [Spec], start: Start) -> Result<Self, Error> {
        let (asks_at_once, is_again, started) = match start {
            Start::Now => (true, false, Instant::now()),
            Start::At(started) => (false, false, started),
            Start::Again(started) => (false, true, started),
        };
        let first = &specs[0];
        let (engine, options) = (&first.engine, &first.options);
        let timeouts = specs.iter().map(|spec| spec.options.request_timeout());
        let request_timeout = timeouts.min().unwrap_or_default();
        let until = match options.wait {
            _ if !options.waits() => {
                Some(Instant::now() + options.patience.unwrap_or(Duration::MAX).min(request_timeout))
            }
            Wait::For(limit) => Some(started + limit),
            Wait::No | Wait::Forever => None,
        };
        let patient_until = options.patience.and_then(|patience| started.checked_add(patience));
        Ok(Self {
            engine,
            specs,
            pendings: pendings(specs).map_err(|failure| first.error(Operation::Acquire, failure))?,
            started,
            waits: options.waits(),
            until,
            patient_until: until.into_iter().chain(patient_until).min(),
            request_timeout,
            // The least of those that have a bound.
            rechecks: specs.iter().filter_map(|spec| spec.options.rechecks).min(),
            span: AcquireSpan::begin(&engine.telemetry, &engine.wait_queue, first.subject(), started),
            asked_at: started,
            asks_at_once,
            is_again,
            first_sent: None,
            may_have_ended: false,
            last_sent: Timestamp::from_nanos(0),
            unknowns: 0,
            tries: 0,
            was_busy: false,
            changed_hands: false,
            place: 0,
            round_trip: Duration::ZERO,
            virtual_time: false,
            polls: Backoff::new(engine.capabilities.poll_from, engine.capabilities.poll_to),
            pace: NotificationPace::new(engine.capabilities.poll_from),
            failures: Backoff::of_failures(),
            unknown_outcomes: Backoff::of_unknown_outcomes(),
            refusals: None,
            holder: None,
        })
    }

    async fn run(&mut self) -> Result<Option<Shares>, Error> {
        match self.attempt_until_done().await {
            Ok(Some(shares)) => {
                let fence = if shares.len() == 1 { shares[0].hold().fence } else { None };
                self.span.acquired(fence);
                Ok(Some(shares))
            }
            Ok(None) => {
                self.span.set_aside();
                Ok(None)
            }
            Err(failure) => {
                let waited = self.started.elapsed();
                let mut error = self.specs[self.place].error(Operation::Acquire, self.last_word(failure));
                match error.kind() {
                    ErrorKind::Conflict if self.specs[0].options.resizable => self.span.set_aside(),
                    _ => self.span.not_acquired(&error, waited),
                }
                if error.kind() == ErrorKind::Unknown {
                    error = error.maybe_held_for(self.maybe_held_for());
                }
                Err(error.after(waited, self.span.attempts()).held_by(self.holder.take()))
            }
        }
    }

    /// What to say when an earlier request may have taken effect, whatever came after it.
    fn last_word(&self, failure: Failure) -> Failure {
        if self.first_sent.is_none() || failure.kind() == ErrorKind::Unknown {
            return failure;
        }
        Failure::unknown("an earlier request may have taken effect, and could not be asked about")
            .with_source(failure)
    }

    async fn attempt_until_done(&mut self) -> Result<Option<Shares>, Failure> {
        let engine = self.engine;
        let in_order = engine.capabilities.fair || self.specs.iter().any(|spec| spec.options.fair);
        let takes_over = self.takes_over();
        let lines = self.waits && !in_order && !takes_over;
        let mut line: QueuePlace<'a> = None;
        self.until_withdrawn().await?;
        // With a line before us there is no point in asking: the first in line does. And others are to have their turn.
        let is_taken =
            |spec: &Spec| engine.wait_queue.has(&spec.key) || engine.tenures.stands_back(&spec.key).is_some();
        if lines && let Some(place) = self.specs.iter().position(is_taken) {
            self.turn_to(place);
            scope::refuse_own(&self.specs[place])?;
            self.span.wait();
            (self.asks_at_once, self.was_busy) = (false, true);
            let ticket = self.join(place, None);
            Box::pin(within(engine, self.patient_until, ticket.turn())).await?;
            if !self.leaves_time_for_an_answer(Some(&ticket)).await? {
                drop(ticket);
                return Err(self.time_out().await);
            }
            line = Some((place, ticket));
            self.span.turn();
        }
        // Why the last attempt took nothing, where that was not somebody else.
        let mut failed: Option<Failure> = None;
        loop {
            scope::may_acquire(engine)?;
            if let Some((_, ticket)) = &line
                && let Some(handoff) = ticket.take_parcel().and_then(Handoff::of)
                && let Some(share) = self.accept_handoff(handoff)?
            {
                if let Some((_, ticket)) = line {
                    ticket.win(self.next_poll(None));
                }
                return Ok(Some(smallvec![share]));
            }
            // The first one is made in any case.
            if self.waits && (self.is_again || self.span.attempts() > 0) && is_over(self.until) {
                return Err(failed.unwrap_or_else(|| timed_out_unpolled(self.span.attempts())));
            }
            // What is known ends it, rather than a request that is cut off.
            if let Some(failure) = failed.take_if(|failure| failure.kind() != ErrorKind::Unknown)
                && !self.leaves_time_for_an_answer(None).await?
            {
                return Err(failure);
            }
            // Before the request: a release while it is under way may not be in its answer.
            let releases: SmallVec<[u32; 1]> = match lines {
                true => self.specs.iter().map(|spec| engine.wait_queue.releases(&spec.key)).collect(),
                false => SmallVec::new(),
            };
            if let Some((_, ticket)) = &line {
                ticket.ask();
            }
            self.reserve(line.as_ref());
            let before = failed.take();
            // It may be withdrawn between the answer and a look after it.
            let is_its_own = self.may_be_its_own();
            match self.attempt().await {
                AttemptOutcome::Granted(grants) => {
                    if let Some(shares) = self.accept(grants)? {
                        if let Some((place, ticket)) = line {
                            self.leave_line(place, ticket);
                        }
                        return Ok(Some(shares));
                    }
                    // Never at once: a backend that is always late would be asked without end.
                    let pause = self.failures.pause(engine.entropy.fraction());
                    Box::pin(within(engine, self.until, engine.timers.sleep(pause))).await?;
                }
                AttemptOutcome::Separately => return Ok(None),
                AttemptOutcome::Busy(place, busy) => {
                    self.turn_to(place);
                    let (retry_after, was_run) = (busy.retry_after, self.finds_a_run(&busy));
                    self.note_busy(busy);
                    if takes_over {
                        let by_itself = self.may_have_ended;
                        return Err(if by_itself { used_up() } else { not_there(self.holder.as_ref()) });
                    }
                    if !self.waits {
                        if !is_its_own && !self.may_be_its_own() {
                            return Err(Failure::new(ErrorKind::Busy, ""));
                        }
                        self.until_withdrawn().await?;
                        continue;
                    }
                    if was_run {
                        if let Some((_, ticket)) = &line {
                            // Those behind find it too, one after the other, without the pause after one that gave up.
                            ticket.tell();
                        }
                        return Err(Failure::new(ErrorKind::Busy, ""));
                    }
                    scope::refuse_own(&self.specs[place])?;
                    if let Some((_, ticket)) = line.take_if(|(at, _)| *at != place) {
                        // The lock of that line may well be free: the next one is to look.
                        ticket.tell();
                    }
                    self.tries += 1;
                    self.was_busy = true;
                    engine.tenures.ended(&self.specs[place].key);
                    if self.specs.len() > 1 && self.tries >= MOST_TRIES {
                        if let Some((_, ticket)) = &line {
                            ticket.tell();
                        }
                        return Ok(None);
                    }
                    self.span.wait();
                    if lines && line.is_none() {
                        let seen = releases.get(place).copied();
                        let ticket = self.join(place, seen);
                        self.step_back(&ticket)?;
                        line = Some((place, ticket));
                    }
                    // Boxed: an acquire that does not wait needs no memory for it.
                    let may_ask = Box::pin(async {
                        if self.virtual_time {
                            engine.finish_background().await;
                        }
                        self.wait_for_change(retry_after, line.as_ref().map(|(_, ticket)| ticket)).await
                    });
                    if !may_ask.await? {
                        drop(line);
                        return Err(self.time_out().await);
                    }
                    self.span.woken();
                }
                AttemptOutcome::Unknown(failure) => {
                    // The last one was cut off; the one before may have been told why.
                    let failure = match before {
                        Some(before) if is_over(self.until) => failure.with_source(before),
                        _ => failure,
                    };
                    let again = self.rechecks.is_none_or(|limit| self.unknowns < limit);
                    self.span.unknown(&failure, again);
                    if !again {
                        return Err(failure);
                    }
                    self.unknowns += 1;
                    let pause = self.unknown_outcomes.pause(engine.entropy.fraction());
                    failed = Some(pause_after(engine, self.until, failure, pause, None).await?);
                }
                AttemptOutcome::Failed(failure) => {
                    if !self.goes_on_after(&failure) || takes_over && failure.is_worthless() {
                        return Err(failure);
                    }
                    // Servers that cannot answer are not asked by everybody who waits, but by the first in line. One of
                    // whom something may be there does not wait for those who then wait for it.
                    let joins = lines && line.is_none() && self.specs.len() == 1 && self.first_sent.is_none();
                    let joined = if joins { Some(self.join(0, None)) } else { None };
                    let pause = self.pause_after_failure(&failure);
                    // A refusal is paused after for long: a release in this process is worth another look.
                    let ticket = line.as_ref().map(|(_, ticket)| ticket).or(joined.as_ref());
                    let failure = pause_after(engine, self.until, failure, pause, ticket).await?;
                    if let Some(ticket) = joined {
                        scope::refuse_own(&self.specs[0])?;
                        self.span.wait();
                        match Box::pin(within(engine, self.patient_until, ticket.turn())).await {
                            Err(end) if end.kind() == ErrorKind::TimedOut => return Err(failure),
                            turn => drop(turn?),
                        }
                        if !self.leaves_time_for_an_answer(Some(&ticket)).await? {
                            return Err(failure);
                        }
                        line = Some((0, ticket));
                        self.span.turn();
                    }
                    failed = Some(failure);
                }
            }
        }
    }

    async fn attempt(&mut self) -> AttemptOutcome {
        let rechecks = self.unknowns > 0;
        self.span.attempt(rechecks);
        let step = self.ask().await;
        if rechecks {
            self.span.rechecked(step.outcome());
        }
        if let (AttemptOutcome::Granted(_) | AttemptOutcome::Busy(..), Some(refusals)) =
            (&step, &mut self.refusals)
        {
            refusals.are_over();
        }
        step
    }

    async fn ask(&mut self) -> AttemptOutcome {
        let sent = self.engine.clock.now();
        if !std::mem::take(&mut self.asks_at_once) {
            self.asked_at = Instant::now();
        }
        let first_sent = self.first_sent;
        let unsettled = self.pendings.iter().any(|pending| pending.in_flight.may_arrive());
        // Noted before the request goes out: from now on something of ours may be on the server.
        self.first_sent.get_or_insert(sent);
        self.last_sent = sent;
        self.pendings.iter_mut().for_each(|pending| pending.in_flight.begin(()));
        let written = self.pendings[0].begin_request();
        let bounds = RequestBounds {
            clock: &self.engine.clock,
            timers: &self.engine.timers,
            written,
            from: self.asked_at,
            limit: self.request_timeout,
            until: self.until,
        };
        let step = bounds.answer(request(self.engine, &mut self.pendings)).await;
        let step = step.unwrap_or_else(|unanswered| match unanswered {
            Unanswered::Unsent if self.was_busy => {
                AttemptOutcome::Failed(Failure::new(ErrorKind::TimedOut, UNSENT))
            }
            Unanswered::Unsent => AttemptOutcome::Failed(unanswered.into_failure()),
            unanswered => AttemptOutcome::Unknown(unanswered.into_failure()),
        });
        if let AttemptOutcome::Granted(_) = &step {
            // Nothing below matters any more, and a look at the clock costs as much as all else here; but where there
            // was a wait, others will have to know how long an answer takes.
            if self.was_busy {
                self.engine.round_trip.note(self.asked_at.elapsed().min(self.request_timeout / 2));
            }
            self.note_written(bounds.written_at(), sent, first_sent);
            return step;
        }
        let took = self.asked_at.elapsed();
        // One slow answer, or a pause of this process, is forgotten soon.
        let bounded = took.min(self.request_timeout / 2);
        self.round_trip = bounded.max(self.round_trip / 2);
        self.engine.round_trip.note(bounded);
        let passed = self.engine.clock.now().since(sent);
        self.virtual_time =
            (took.is_zero() && passed > Duration::from_micros(1)) || took > passed + Duration::from_millis(1);
        self.note_written(bounds.written_at(), sent, first_sent);
        match step {
            AttemptOutcome::Granted(_) | AttemptOutcome::Unknown(_) => return step,
            // Others of them may have been taken all the same, and are not wanted without this one.
            AttemptOutcome::Busy(..) if unsettled && self.specs.len() > 1 => {
                if let Err(failure) = self.begin_anew() {
                    return AttemptOutcome::Failed(failure);
                }
            }
            AttemptOutcome::Busy(..) => {
                // Somebody else has it, so an earlier attempt of ours does not. It may still be on its way, which is
                // why it stays in flight.
                self.may_have_ended = unsettled && first_sent.is_some_and(|first| self.outlived(first));
                (self.first_sent, self.unknowns) = (None, 0);
                self.took_nothing();
            }
            // What was taken over and is given back cannot be taken over again.
            AttemptOutcome::Failed(ref failure) if failure.is_worthless() && self.takes_over() => {}
            AttemptOutcome::Failed(ref failure) if failure.is_worthless() => {
                if let Err(failure) = self.begin_anew() {
                    return AttemptOutcome::Failed(failure);
                }
            }
            // This attempt took nothing. What an earlier one may have taken is still open.
            AttemptOutcome::Separately | AttemptOutcome::Failed(_) => {
                self.first_sent = first_sent;
                self.took_nothing();
            }
        }
        step
    }

    /// Counts from when the request was written, where that is known.
    fn note_written(
        &mut self,
        written_at: Option<Timestamp>,
        sent: Timestamp,
        first_sent: Option<Timestamp>,
    ) {
        if let Some(at) = written_at {
            self.last_sent = at.max(sent);
            self.first_sent = first_sent.or(Some(self.last_sent));
        }
    }

    /// Notes that the last attempt changed nothing; earlier ones stay in flight.
    fn took_nothing(&mut self) {
        self.pendings.iter_mut().for_each(|pending| pending.in_flight.took_nothing(&()));
    }

    /// Leaves what was tried to the keeper, which withdraws it, and makes new claims. Until that is withdrawn, it may
    /// be what these find.
    fn begin_anew(&mut self) -> Result<(), Failure> {
        self.pendings = pendings(self.specs)?;
        (self.first_sent, self.unknowns, self.is_again) = (None, 0, true);
        Ok(())
    }

    /// Makes shares of grants; `None` when they came so late that they are worth nothing any more.
    fn accept(&mut self, grants: SmallVec<[Grant; 1]>) -> Result<Option<Shares>, Failure> {
        let sent = self.first_sent.take().unwrap_or_else(|| self.engine.clock.now());
        let mut shares = Shares::with_capacity(grants.len());
        for (pending, grant) in self.pendings.iter_mut().zip(grants) {
            let Some(claim) = pending.claim.take() else { return Err(gone()) };
            let hold = Hold::new(pending.spec, claim, grant, sent);
            self.engine.registry.list(&hold);
            // Dropping a share releases the lock, also one that comes too late.
            shares.push(Share::first(hold));
        }
        scope::may_acquire(self.engine)?;
        if shares.iter().all(|share| share.hold().condition_when_granted() != Condition::Lost) {
            return Ok(Some(shares));
        }
        drop(shares);
        // The keeper may have died since, which loses all.
        scope::may_acquire(self.engine)?;
        if !self.waits || is_over(self.until) {
            return Err(Failure::new(ErrorKind::TimedOut, "the grant arrived after its lease had ended"));
        }
        if self.takes_over() {
            return Err(used_up());
        }
        self.begin_anew()?;
        Ok(None)
    }

    /// From here on it is this one that is waited for.
    fn turn_to(&mut self, place: usize) {
        self.place = place;
        self.span.turn_to(&self.specs[place].key);
    }

    /// Waits until another attempt may be worth while, or the time is up: when the lock was released, the backend
    /// tells of a change, the holder's lease has ended, or after a pause. Returns whether there is time for one.
    async fn wait_for_change(
        &mut self,
        retry_after: Option<Duration>,
        ticket: Option<&Ticket<'a>>,
    ) -> Result<bool, Failure> {
        let (began, poll) = (Instant::now(), self.next_poll(ticket));
        let pause = retry_after.map_or(poll, |left| poll.min(left.saturating_add(Duration::from_millis(1))));
        if let Some(ticket) = ticket {
            ticket.poll_after(pause);
            if self.accepts_handoff() {
                ticket.accept(self.specs[self.place].options.lease);
            }
        }
        let (engine, place, patient_until) = (self.engine, self.place, self.patient_until);
        let Some(claim) = self.pendings[place].claim.as_mut() else { return Err(gone()) };
        let changed = async {
            let turn = async {
                match ticket {
                    Some(ticket) => ticket.turn().await,
                    None => {
                        engine.timers.sleep(pause).await;
                        Turn::Due
                    }
                }
            };
            let told = listen(engine, claim, &self.specs[place].key, ticket);
            tokio::select! {
                biased;
                turn = turn => Ok(if turn == Turn::Due && pause < poll { None } else { Some(turn) }),
                told = told => told.map(|()| None),
            }
        };
        match within(engine, patient_until, changed).await?? {
            Some(Turn::Due) => self.pace.reset(),
            Some(Turn::Released) => {}
            None => {
                // Told of, and not yet asked about: whoever follows is to know.
                if let Some(ticket) = ticket {
                    ticket.tell();
                }
                if let Some(at) = self.pace.next(began.elapsed(), self.asked_at, engine.entropy.fraction()) {
                    pause_until(engine, at, patient_until, ticket).await?;
                }
            }
        }
        self.leaves_time_for_an_answer(ticket).await
    }

    /// When to ask again if nobody tells.
    fn next_poll(&mut self, ticket: Option<&Ticket<'_>>) -> Duration {
        let fraction = self.engine.entropy.fraction();
        if self.engine.capabilities.notified {
            // A notification will come; the poll is only the safety net.
            return self.engine.capabilities.poll_to.mul_f64(0.75 + fraction / 4.0);
        }
        // Pauses about as long as the lock is held for: who pauses for longer than others loses against them each time.
        if std::mem::take(&mut self.changed_hands) {
            ticket.map_or_else(|| self.polls.quicken(), Ticket::quicken);
        }
        ticket.and_then(|ticket| ticket.next_pause(fraction)).unwrap_or_else(|| self.polls.pause(fraction))
    }

    fn maybe_held_for(&self) -> Duration {
        let now = self.engine.clock.now();
        let lease = self.specs.iter().map(|spec| spec.options.lease).max().unwrap_or_default();
        // A request that is still on its way starts its lease when it arrives.
        (self.last_sent + lease + self.request_timeout).since(now)
    }
}

fn pendings(specs: &[Spec]) -> Result<SmallVec<[Pending<'_>; 1]>, Failure> {
    specs.iter().map(Pending::new).collect()
}
