//! Taking locks: attempts, waiting, and the way on from an unknown outcome.
//!
//! ```text
//!              ┌──────── its turn, a change, or the end of a pause ─────────┐
//!              ▼                                                            │
//!   begin ──▶ ask ──┬── granted ──────────────▶ held                        │
//!     │             ├── busy ─────────────────▶ waits, in line or polling ──┤
//!     │             ├── busy by its own ──────▶ awaits the withdrawal ──────┤
//!     │             ├── unknown ──────────────▶ pauses, same claims ────────┤
//!     │             ├── granted too late ─────▶ pauses, new claims ─────────┤
//!     │             ├── failed ───────────────▶ pauses, then in line ───────┤
//!     │             └── not in one step ──────▶ one after the other         │
//!     │                                                                     │
//!     └── this process has waiters ───────────▶ waits in line ──────────────┘
//!                                                   └── handed over ──▶ held
//! ```
//!
//! Each state ends when the time is up or the locks are shut down. An acquire that is dropped, in whatever state,
//! leaves its place in the queue to the next waiter, and the claims that may have taken something to the keeper.
//!
//! [`decide`] decides what follows an answer, and [`unsettled`] keeps what may be on the servers; neither has I/O or a
//! clock. [`Acquire`] asks, and carries out what was decided.
//!
//! One lock and many are taken in the same way; only the request differs. While one of many is busy, none is held: the
//! acquire waits for that lock, in the queue with its other waiters, and then tries for all again. Under much
//! contention the next try can meet another lock that is busy, and so on; after some tries in vain they are therefore
//! taken one after the other, where every place in a queue that was reached is kept.

mod attempt;
mod begin;
mod contention;
mod dead_holder;
pub(super) mod decide;
mod line;
mod listen;
mod outcomes;
mod pace;
mod taking_over;
pub(super) mod unsettled;
mod wait;

use std::sync::Arc;
use std::time::Duration;

use smallvec::{SmallVec, smallvec};
use tokio::time::Instant;

use crate::engine::acquire::attempt::{Pending, RequestTimes, pendings};
pub(crate) use crate::engine::acquire::begin::{Start, acquire_all, begin, only_share};
use crate::engine::acquire::contention::Contention;
use crate::engine::acquire::decide::{Next, Outcome, Terms};
use crate::engine::acquire::pace::Pauses;
use crate::engine::acquire::unsettled::Unsettled;
use crate::engine::acquire::wait::{timed_out_unpolled, within};
use crate::engine::release::Share;
use crate::engine::wait_queue::Ticket;
use crate::engine::{Engine, Spec, scope};
use crate::error::{Error, ErrorKind, Failure, Operation};
use crate::options::Wait;
use crate::telemetry::AcquireSpan;

/// The locks that are wanted, or the guards of them; one lock needs no memory for the list.
pub(super) type Specs = SmallVec<[Spec; 1]>;
pub(crate) type Shares = SmallVec<[Share; 1]>;

/// The place of a lock in the list, and a place in its line.
type QueuePlace<'a> = (usize, Ticket<'a>);

/// One acquire.
struct Acquire<'a> {
    engine: &'a Arc<Engine>,
    specs: &'a [Spec],
    /// The claims that are being made, one for each lock.
    pendings: SmallVec<[Pending<'a>; 1]>,
    terms: Terms,
    limits: Limits,
    requests: RequestTimes,
    unsettled: Unsettled,
    contention: Contention,
    span: AcquireSpan<'a>,
    /// Made at the first pause.
    pauses: Option<Pauses<'a>>,
    /// Is `true` if earlier claims of this acquire were left to the keeper, so that the present ones may meet them.
    is_again: bool,
}

/// The bounds of an acquire and of each of its requests.
#[derive(Clone, Copy, Debug)]
struct Limits {
    started: Instant,
    /// The end of the acquire and of its requests; `None` without an end.
    until: Option<Instant>,
    /// The end of the wait for a busy lock.
    patient_until: Option<Instant>,
    request_timeout: Duration,
}

impl Limits {
    fn of(specs: &[Spec], started: Instant) -> Self {
        let options = &specs[0].options;
        // One request takes all locks, so that the shortest timeout bounds it.
        let timeouts = specs.iter().map(|spec| spec.options.request_timeout());
        let request_timeout = timeouts.min().unwrap_or_default();
        let until = match options.wait {
            // From now, not from `started`: an acquire that does not wait makes its one request whenever it is polled.
            _ if !options.waits() => {
                Some(Instant::now() + options.patience.unwrap_or(Duration::MAX).min(request_timeout))
            }
            Wait::For(limit) => Some(started + limit),
            Wait::No | Wait::Forever => None,
        };
        // `checked_add`: a patience that no clock can represent is a wait without an end. The wait of `Wait::For` is
        // bounded when the options are checked, so that the plain addition above cannot overflow.
        let patient_until = options.patience.and_then(|patience| started.checked_add(patience));
        Self { started, until, patient_until: until.into_iter().chain(patient_until).min(), request_timeout }
    }

    fn is_over(&self) -> bool {
        self.until.is_some_and(|until| until <= Instant::now())
    }
}

impl<'a> Acquire<'a> {
    fn new(specs: &'a [Spec], start: Start) -> Result<Self, Error> {
        let (asks_at_once, is_again, started) = match start {
            Start::Now => (true, false, Instant::now()),
            Start::At(started) => (false, false, started),
            Start::Again(started) => (false, true, started),
        };
        let first = &specs[0];
        let engine = &first.engine;
        Ok(Self {
            engine,
            specs,
            limits: Limits::of(specs, started),
            pendings: pendings(specs).map_err(|failure| first.error(Operation::Acquire, failure))?,
            terms: terms(specs),
            requests: RequestTimes::new(started, asks_at_once),
            // Also where earlier claims of this acquire were left to the keeper: what they have is withdrawn under
            // their own tokens, and no grant to the claims made here can be theirs.
            unsettled: Unsettled::NOTHING,
            contention: Contention::default(),
            span: AcquireSpan::begin(&engine.telemetry, &engine.wait_queue, first.subject(), started),
            pauses: None,
            is_again,
        })
    }

    async fn run(&mut self) -> Result<Option<Shares>, Error> {
        match self.attempt_until_done().await {
            Ok(Some(shares)) => {
                let fence = if shares.len() == 1 { shares[0].hold().fence() } else { None };
                self.span.acquired(fence);
                Ok(Some(shares))
            }
            Ok(None) => {
                self.span.set_aside();
                Ok(None)
            }
            Err(failure) => {
                // The error has what is known at its end: how long it waited, who has the lock, and for how long it may
                // be blocked.
                let waited = self.limits.started.elapsed();
                let mut error =
                    self.specs[self.contention.place].error(Operation::Acquire, self.last_word(failure));
                // `take_resized` tries once more after a conflict and reports the end itself, so that the span of this
                // attempt must not report one.
                match error.kind() {
                    ErrorKind::Conflict if self.specs[0].options.resizable => self.span.set_aside(),
                    _ => self.span.not_acquired(&error, waited),
                }
                if error.kind() == ErrorKind::Unknown {
                    error = error.maybe_held_for(self.maybe_held_for());
                }
                Err(error.after(waited, self.span.attempts()).held_by(self.contention.holder.take()))
            }
        }
    }

    /// Returns the failure of the whole acquire: an earlier request may have taken effect, whatever came after it.
    fn last_word(&self, failure: Failure) -> Failure {
        if !self.unsettled.may_stand() || failure.kind() == ErrorKind::Unknown {
            return failure;
        }
        Failure::unknown("an earlier request may have taken effect, and could not be asked about")
            .with_source(failure)
    }

    /// Asks, and does what follows, until the locks are held or not to be had; `None` when they have to be taken one
    /// after the other.
    async fn attempt_until_done(&mut self) -> Result<Option<Shares>, Failure> {
        // An acquire that begins anew must not take its own earlier claim for another holder's.
        self.until_withdrawn().await?;
        // The queue is joined before the first request: an acquire that asked past the waiters of this process could
        // get the lock ahead of them.
        let mut line = match self.taken_here() {
            Some(place) => Some(self.wait_behind_others(place).await?),
            None => None,
        };
        // The reason why the last attempt took nothing, where that was not another holder.
        let mut failed: Option<Failure> = None;
        loop {
            // In each round: a shutdown or a drain may have come during a wait. In the first one, since a shutdown that
            // came before the claims were counted does not wait for them.
            scope::may_acquire(self.engine)?;
            // Before the time is looked at: a lock that was handed over is taken also by a waiter whose time is up.
            if let Some((_, ticket)) = &line
                && let Some(share) = self.handed_over(ticket)?
            {
                if let Some((_, ticket)) = line {
                    ticket.win(self.next_poll(None));
                }
                return Ok(Some(smallvec![share]));
            }
            self.is_in_time(&mut failed).await?;
            // Read before the request goes out, so that `join` sees a release that is not in the answer.
            let releases = self.releases();
            if let Some((_, ticket)) = &line {
                self.prepare(ticket);
            }
            // An earlier claim may be withdrawn between the answer and a look after it.
            let may_be_own = self.may_be_its_own();
            let outcome = match self.have_session().await? {
                None => {
                    let answer = self.attempt().await?;
                    self.outcome_of(answer, failed.take(), may_be_own)?
                }
                Some(failure) => Outcome::Failed(failure),
            };
            match self.after(outcome, line.as_ref()) {
                Next::Held(shares) => {
                    // The ticket leaves only now: until the hold is listed, a waiter behind that became the first would
                    // ask for a lock that is about to be held here.
                    if let Some((place, ticket)) = line {
                        self.leave_line(place, ticket);
                    }
                    return Ok(Some(shares));
                }
                Next::End(end) => return self.end(end, line),
                Next::AwaitWithdrawal => self.until_withdrawn().await?,
                Next::WaitForChange { retry_after, joins } => {
                    self.wait(retry_after, joins, &releases, &mut line).await?;
                }
                Next::Pause(pause) => failed = self.pause(pause, &mut line).await?,
            }
        }
    }

    /// Returns the place of a lock that the acquire need not ask for at once: with waiters before it there is no point,
    /// since the first of them asks; and a process that yields leaves the turn to others.
    fn taken_here(&self) -> Option<usize> {
        let engine = self.engine;
        let is_taken = |spec: &Spec| {
            engine.wait_queue.has(&spec.key) || engine.tenures.yields_until(&spec.key).is_some()
        };
        // The first such lock alone: an acquire stands in one queue at a time, and asks for all locks when it has its
        // turn there.
        if self.terms.lines { self.specs.iter().position(is_taken) } else { None }
    }

    /// Has claims under a session that is live, where a session keeps the locks: it is opened by the first acquire, and
    /// by the first one after a loss. Returns the failure where there is none, and nothing was asked for.
    async fn have_session(&mut self) -> Result<Option<Failure>, Failure> {
        if !self.pendings.iter().any(Pending::lacks_session) {
            return Ok(None);
        }
        let engine = self.engine;
        // Boxed: few acquires come here.
        let opened =
            Box::pin(within(engine, self.limits.until, engine.sessions.open(&engine.registry))).await;
        self.requests.look_again();
        match opened {
            Ok(Ok(())) => {
                self.begin_anew()?;
                // It may be over already: its lease is short, and this process may have been paused. No claim goes out
                // without it, which would be for hours.
                let lacks = self.pendings.iter().any(Pending::lacks_session);
                Ok(lacks.then(|| Failure::unavailable("the session was over as soon as it was opened")))
            }
            Ok(Err(failure)) => Ok(Some(failure)),
            // Nothing is known of the lock, and of another holder least of all.
            Err(end) if end.kind() == ErrorKind::TimedOut => {
                Err(Failure::unavailable("the record of the session could not be written in time"))
            }
            Err(end) => Err(end),
        }
    }

    /// Returns the number of releases in this process of each lock that has a queue: a release while the request is
    /// under way may not be in its answer.
    fn releases(&self) -> SmallVec<[u32; 1]> {
        match self.terms.lines {
            true => self.specs.iter().map(|spec| self.engine.wait_queue.releases(&spec.key)).collect(),
            false => SmallVec::new(),
        }
    }

    /// Ends the acquire, instead of another attempt, where no time is left for it.
    async fn is_in_time(&mut self, failed: &mut Option<Failure>) -> Result<(), Failure> {
        // The first attempt is made in any case.
        if self.terms.waits && (self.is_again || self.span.attempts() > 0) && self.limits.is_over() {
            return Err(failed.take().unwrap_or_else(|| timed_out_unpolled(self.span.attempts())));
        }
        // A known failure ends the acquire, rather than a request that is cut off.
        if let Some(failure) = failed.take_if(|failure| failure.kind() != ErrorKind::Unknown)
            && !self.leaves_time_for_an_answer(None).await?
        {
            return Err(failure);
        }
        Ok(())
    }

    /// Has the acquire wait for the lock at this place from here on.
    fn turn_to(&mut self, place: usize) {
        self.contention.place = place;
        self.span.turn_to(&self.specs[place].key);
    }

    fn pauses(&mut self) -> &mut Pauses<'a> {
        self.pauses.get_or_insert_with(|| Pauses::new(&self.engine.capabilities))
    }

    fn maybe_held_for(&self) -> Duration {
        let lease = self.specs.iter().map(|spec| spec.options.lease).max().unwrap_or_default();
        // The longest lease of the locks: the outcome is unknown for all of them, and the caller has one figure to wait
        // for.
        let until = self.unsettled.may_hold_until(lease, self.limits.request_timeout);
        until.since(self.engine.clock.now())
    }
}

fn terms(specs: &[Spec]) -> Terms {
    let waits = specs[0].options.waits();
    let in_order = specs[0].engine.capabilities.fair || specs.iter().any(|spec| spec.options.fair);
    let takes_over = specs.iter().any(|spec| spec.options.takes_over.is_some());
    Terms {
        waits,
        // A backend with a fair queue has to see each waiter, or the local queue would decide the order; and a baton
        // has nothing to wait for, since the lock is there or is not.
        lines: waits && !in_order && !takes_over,
        takes_over,
        many: specs.len() > 1,
        // The least of the bounds that are set.
        rechecks: specs.iter().filter_map(|spec| spec.options.rechecks).min(),
    }
}
