//! Taking locks: attempts, waiting, and what to do when an outcome is unknown.
//!
//! One lock and many are taken in the same way; only the request differs. While one of many is busy, none is held: they
//! wait for that one, in line with the others who want it, and then all are tried for again. Under much contention the
//! next try can meet another one that is busy, and so on; after some tries in vain they are therefore taken one after
//! the other, where every place in line that was reached is kept.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use smallvec::{SmallVec, smallvec};
use tokio::time::Instant;

use crate::backend::dynamic::DynClaim;
use crate::backend::{Attempt, Backoff, BatchAttempt, Busy, Grant};
use crate::clock::Timestamp;
use crate::engine::Engine;
use crate::engine::hold::{Condition, Hold};
use crate::engine::pending::{Pending, Spec};
use crate::engine::threads;
use crate::engine::wait_queue::Ticket;
use crate::error::{Error, ErrorKind, Failure, Operation};
use crate::handles::guard::Guard;
use crate::handles::options::Wait;
use crate::holder::Holder;
use crate::telemetry::acquire::AcquireSpan;
use crate::telemetry::span::Spanned;
use crate::telemetry::spans;

/// How often all of many are tried for before they are taken one after the other.
const MOST_TRIES: u32 = 8;

/// What is wanted, or the guards of it; one lock needs no memory for the list.
pub(crate) type Specs = SmallVec<[Spec; 1]>;
pub(crate) type Guards = SmallVec<[Guard; 1]>;

type Taking = Pin<Box<dyn Future<Output = Result<Option<Guards>, Error>> + Send>>;

/// Takes one lock, without a look at what the caller holds already. The wait counts from `started`.
pub(crate) fn acquire(spec: Spec, started: Instant) -> impl Future<Output = Result<Guard, Error>> {
    let taking = take(smallvec![spec], started);
    async move {
        match taking?.await?.and_then(|guards| guards.into_iter().next()) {
            Some(guard) => Ok(guard),
            None => unreachable!("one lock is never set aside"),
        }
    }
}

/// Takes several locks of one engine, with one wait for all, in one step; `None` when they have to be taken one after
/// the other. The guards are in the order of `specs`.
pub(crate) fn acquire_all(
    specs: Specs,
    started: Instant,
) -> impl Future<Output = Result<Option<Guards>, Error>> {
    let taking = take(specs, started);
    async move { taking?.await }
}

/// Boxed, and made outside of any future: the state of a wait would make the future of every annotated fn four times as
/// large.
fn take(specs: Specs, started: Instant) -> Result<Taking, Error> {
    let first = &specs[0];
    let refuse = |failure: Failure| first.error(Operation::Acquire, failure);
    first.engine.refuse_when_closed().map_err(refuse)?;
    let keys = (specs.len() > 1).then_some(specs.len());
    let span = spans::acquire_span(&first.engine, &first.key, first.site, keys);
    // Inside of the span, whose trace goes along with the claims.
    let engine = Arc::clone(&first.engine);
    let acquire = async move { Acquire::new(&specs, started)?.run().await }.in_span(span);
    if threads::has_timers() {
        return Ok(Box::pin(acquire));
    }
    // On the keeper's thread, for a caller who has no tokio runtime with timers.
    Ok(Box::pin(async move {
        let closed = || Err(engine.error(Operation::Acquire, engine.registry.closed()));
        engine.registry.tasks.run(acquire).await.unwrap_or_else(closed)
    }))
}

/// How one attempt went.
enum Step {
    /// A grant for each.
    Granted(SmallVec<[Grant; 1]>),
    /// Somebody else has this one.
    Busy(usize, Busy),
    /// They have to be taken one after the other.
    Separately,
    /// Nothing was changed.
    Failed(Failure),
    /// Something may have been changed.
    Unknown(Failure),
}

impl Step {
    const fn outcome(&self) -> &'static str {
        match self {
            Self::Granted(_) => "acquired",
            Self::Busy(..) => "busy",
            Self::Separately | Self::Failed(_) => "failed",
            Self::Unknown(_) => "unknown",
        }
    }
}

/// One acquire.
struct Acquire<'a> {
    engine: &'a Arc<Engine>,
    specs: &'a [Spec],
    pendings: SmallVec<[Pending<'a>; 1]>,
    wait: Wait,
    started: Instant,
    request_timeout: Duration,
    rechecks: u32,
    span: AcquireSpan<'a>,
    /// When the first request was sent whose effect may still be standing.
    first_sent: Option<Timestamp>,
    /// Attempts since the outcome was last known.
    unknowns: u32,
    /// Attempts that found one of many busy.
    tries: u32,
    /// Which of them is in the way.
    place: usize,
    /// Between polls of a busy lock.
    polls: Backoff,
    /// After failures.
    failures: Backoff,
    holder: Option<Holder>,
}

impl<'a> Acquire<'a> {
    fn new(specs: &'a [Spec], started: Instant) -> Result<Self, Error> {
        let first = &specs[0];
        let engine = &first.engine;
        let timeouts = specs.iter().map(|spec| spec.options.request_timeout());
        Ok(Self {
            engine,
            specs,
            pendings: pendings(specs).map_err(|failure| first.error(Operation::Acquire, failure))?,
            wait: first.options.wait,
            started,
            request_timeout: timeouts.min().unwrap_or_default(),
            rechecks: specs.iter().map(|spec| spec.options.rechecks).min().unwrap_or_default(),
            span: AcquireSpan::begin(engine, &first.key, first.site, started),
            first_sent: None,
            unknowns: 0,
            tries: 0,
            place: 0,
            polls: Backoff::new(engine.capabilities.poll_from, engine.capabilities.poll_to),
            failures: Backoff::of_failures(),
            holder: None,
        })
    }

    async fn run(mut self) -> Result<Option<Guards>, Error> {
        let result = self.attempt_until_done().await;
        let waited = self.started.elapsed();
        match result {
            Ok(Some(guards)) => {
                let fence = if guards.len() == 1 { guards[0].fence() } else { None };
                self.span.acquired(fence, waited);
                Ok(Some(guards))
            }
            Ok(None) => {
                self.span.set_aside();
                Ok(None)
            }
            Err(failure) => {
                let mut error = self.specs[self.place].error(Operation::Acquire, self.last_word(failure));
                self.span.not_acquired(&error, waited);
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

    async fn attempt_until_done(&mut self) -> Result<Option<Guards>, Failure> {
        let engine = self.engine;
        let mut ticket = None;
        // With a line before us there is no point in asking: the first in line does.
        if self.wait != Wait::No
            && !engine.capabilities.fair
            && let Some(place) = self.specs.iter().position(|spec| engine.wait_queue.has(&spec.key))
        {
            self.turn_to(place);
            self.span.wait();
            ticket = Some((place, self.stand_in_line().await?));
            self.span.turn();
        }
        loop {
            engine.refuse_when_closed()?;
            match self.attempt().await {
                Step::Granted(grants) => {
                    if let Some(guards) = self.accept(grants)? {
                        if let Some((_, ticket)) = ticket {
                            ticket.win();
                        }
                        return Ok(Some(guards));
                    }
                }
                Step::Separately => return Ok(None),
                Step::Busy(place, busy) => {
                    self.turn_to(place);
                    let retry_after = busy.retry_after;
                    self.note_busy(busy);
                    if self.wait == Wait::No {
                        return Err(Failure::new(ErrorKind::Busy, ""));
                    }
                    self.tries += 1;
                    if self.specs.len() > 1 && self.tries >= MOST_TRIES {
                        return Ok(None);
                    }
                    self.span.wait();
                    if !engine.capabilities.fair && ticket.as_ref().is_none_or(|(at, _)| *at != place) {
                        drop(ticket.take());
                        let first = !engine.wait_queue.has(&self.specs[place].key);
                        ticket = Some((place, self.stand_in_line().await?));
                        if !first {
                            self.span.turn();
                            continue;
                        }
                    }
                    let ticket = ticket.as_ref().map(|(_, ticket)| ticket);
                    self.wait_for_change(retry_after, ticket).await?;
                    self.span.woken();
                }
                Step::Unknown(failure) => {
                    let again = self.unknowns < self.rechecks;
                    self.span.unknown(&failure, again);
                    if !again {
                        return Err(failure);
                    }
                    self.unknowns += 1;
                    // Not bounded by the wait: whether we hold the lock has to be found out in any case.
                    tokio::time::sleep(self.failures.next_pause()).await;
                }
                Step::Failed(failure) => {
                    if !failure.is_transient() || self.wait == Wait::No {
                        return Err(failure);
                    }
                    let pause = tokio::time::sleep(self.failures.next_pause());
                    match within(engine, self.left(), pause).await {
                        Err(end) if end.kind() == ErrorKind::TimedOut => return Err(failure),
                        slept => slept?,
                    }
                }
            }
        }
    }

    async fn attempt(&mut self) -> Step {
        self.span.attempt();
        let rechecks = self.unknowns > 0;
        if rechecks {
            self.engine.registry.count(|counters| &counters.rechecks);
        }
        let step = self.ask().await;
        if rechecks {
            self.span.rechecked(step.outcome());
        }
        step
    }

    async fn ask(&mut self) -> Step {
        let sent = self.engine.clock.now();
        let first_sent = self.first_sent;
        let unsettled = self.pendings.iter().any(|pending| pending.unsettled);
        // Noted before the request goes out: from now on something of ours may be on the server.
        self.first_sent.get_or_insert(sent);
        self.set_unsettled(true);
        let limit = self.request_timeout;
        let step = match tokio::time::timeout(limit, request(self.engine, &mut self.pendings)).await {
            Ok(step) => step,
            Err(_) => Step::Unknown(Failure::unknown(format!("no answer within {limit:?}"))),
        };
        match step {
            Step::Granted(_) | Step::Unknown(_) => return step,
            // Others of them may have been taken all the same, and are not wanted without this one.
            Step::Busy(..) if unsettled && self.specs.len() > 1 => {
                if let Err(failure) = self.begin_anew() {
                    return Step::Failed(failure);
                }
            }
            Step::Busy(..) => {
                // Somebody else has it, so an earlier attempt of ours does not. It may still be on its way, which is
                // why the claim stays unsettled when there was one.
                (self.first_sent, self.unknowns) = (None, 0);
                self.set_unsettled(unsettled);
            }
            // This attempt took nothing. What an earlier one may have taken is still open.
            Step::Separately | Step::Failed(_) => {
                self.first_sent = first_sent;
                self.set_unsettled(unsettled);
            }
        }
        step
    }

    fn set_unsettled(&mut self, unsettled: bool) {
        self.pendings.iter_mut().for_each(|pending| pending.unsettled = unsettled);
    }

    /// Leaves what was tried to the keeper, which withdraws it, and makes new claims.
    fn begin_anew(&mut self) -> Result<(), Failure> {
        self.pendings = pendings(self.specs)?;
        (self.first_sent, self.unknowns) = (None, 0);
        Ok(())
    }

    /// Makes guards of grants; `None` when they came so late that they are worth nothing any more.
    fn accept(&mut self, grants: SmallVec<[Grant; 1]>) -> Result<Option<Guards>, Failure> {
        let sent = self.first_sent.take().unwrap_or_else(|| self.engine.clock.now());
        let mut guards = Guards::with_capacity(grants.len());
        for (pending, grant) in self.pendings.iter_mut().zip(grants) {
            let Some(claim) = pending.claim.take() else { return Err(gone()) };
            let hold = Hold::new(pending.spec, claim, grant, sent);
            self.engine.registry.list(&hold);
            // Dropping a guard gives the lock back, also one that comes too late.
            guards.push(Guard::new(hold));
        }
        self.engine.refuse_when_closed()?;
        if guards.iter().all(|guard| guard.hold().condition() != Condition::Lost) {
            return Ok(Some(guards));
        }
        drop(guards);
        if self.wait == Wait::No || self.left().is_some_and(|left| left.is_zero()) {
            return Err(Failure::new(ErrorKind::TimedOut, "the grant arrived after its lease had ended"));
        }
        self.begin_anew()?;
        Ok(None)
    }

    /// From here on it is this one that is waited for.
    fn turn_to(&mut self, place: usize) {
        self.place = place;
        self.span.turn_to(&self.specs[place].key);
    }

    fn note_busy(&mut self, busy: Busy) {
        self.span.busy(busy.holder.as_deref(), busy.retry_after);
        if busy.requeued {
            self.span.requeued();
        }
        if self.specs.len() > 1 || busy.holder.is_some() {
            self.holder = busy.holder.map(|holder| *holder);
        }
    }

    /// Waits until another attempt may be worth while, or the time is up: when the lock was given back, the backend
    /// tells of a change, the holder's lease has ended, or after a pause.
    async fn wait_for_change(
        &mut self,
        retry_after: Option<Duration>,
        ticket: Option<&Ticket<'_>>,
    ) -> Result<(), Failure> {
        let (pause, left) = (self.next_poll(), self.left());
        let pause = retry_after.map_or(pause, |left| pause.min(left + Duration::from_millis(1)));
        let Some(claim) = self.pendings[self.place].claim.as_mut() else { return Err(gone()) };
        let changed = async {
            let poll = tokio::time::sleep(pause);
            let released = async {
                match ticket {
                    Some(ticket) => ticket.released().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = poll => Ok(()),
                () = released => Ok(()),
                told = watch(claim) => told,
            }
        };
        within(self.engine, left, changed).await?
    }

    /// Waits until it is our turn among the waiters of this process, and asking is worth while. The place is taken at
    /// once.
    fn stand_in_line(&mut self) -> impl Future<Output = Result<Ticket<'a>, Failure>> + use<'a> {
        let (engine, left, poll) = (self.engine, self.left(), self.next_poll());
        let ticket = engine.wait_queue.join(&self.specs[self.place].key);
        async move {
            let turn = async {
                ticket.first().await;
                if ticket.follows_holder() {
                    let _ = tokio::time::timeout(poll, ticket.released()).await;
                }
            };
            within(engine, left, turn).await?;
            Ok(ticket)
        }
    }

    /// When to ask again if nobody tells.
    fn next_poll(&mut self) -> Duration {
        match self.engine.capabilities.notified {
            // A notification will come; the poll is only the safety net.
            true => self.engine.capabilities.poll_to.mul_f64(0.75 + fastrand::f64() / 4.0),
            false => self.polls.next_pause(),
        }
    }

    /// What is left of the wait; `None` when it has no end.
    fn left(&self) -> Option<Duration> {
        left(self.wait, self.started)
    }

    fn maybe_held_for(&self) -> Duration {
        let now = self.engine.clock.now();
        let lease = self.specs.iter().map(|spec| spec.options.lease).max().unwrap_or_default();
        // A request that is still on its way starts its lease when it arrives.
        (self.first_sent.unwrap_or(now) + lease + self.request_timeout).since(now)
    }
}

fn pendings(specs: &[Spec]) -> Result<SmallVec<[Pending<'_>; 1]>, Failure> {
    specs.iter().map(Pending::new).collect()
}

fn gone() -> Failure {
    Failure::new(ErrorKind::Closed, "the claim is gone")
}

/// The one request that differs between one lock and many.
async fn request(engine: &Engine, pendings: &mut [Pending<'_>]) -> Step {
    let wanted = pendings.len();
    let mut claims = pendings.iter_mut().filter_map(|pending| pending.claim.as_mut());
    let failure = if wanted == 1 {
        let Some(claim) = claims.next() else { return Step::Failed(gone()) };
        match claim.attempt().await {
            Ok(Attempt::Granted(grant)) => return Step::Granted(smallvec![grant]),
            Ok(Attempt::Busy(busy)) => return Step::Busy(0, busy),
            Err(failure) => failure,
        }
    } else {
        match engine.backend.attempt_all(claims.collect()).await {
            Ok(BatchAttempt::Granted(grants)) if grants.len() == wanted => {
                return Step::Granted(grants.into());
            }
            Ok(BatchAttempt::Granted(_)) => Failure::unknown("the backend lost count of the locks"),
            Ok(BatchAttempt::Busy { place, busy }) => return Step::Busy(place.min(wanted - 1), busy),
            Ok(BatchAttempt::Separately) => return Step::Separately,
            Err(failure) => failure,
        }
    };
    if failure.kind() == ErrorKind::Unknown { Step::Unknown(failure) } else { Step::Failed(failure) }
}

/// A backend that cannot tell of changes is polled; one that says the claim is finished ends the acquire.
async fn watch(claim: &mut Box<dyn DynClaim>) -> Result<(), Failure> {
    match claim.changed().await {
        Err(failure) if failure.is_transient() => std::future::pending().await,
        told => told,
    }
}

/// What is left of a wait that began at `started`; `None` when it has no end.
pub(crate) fn left(wait: Wait, started: Instant) -> Option<Duration> {
    match wait {
        Wait::No => Some(Duration::ZERO),
        Wait::For(limit) => Some(limit.saturating_sub(started.elapsed())),
        Wait::Forever => None,
    }
}

/// Waits, unless the time is up or the locks are shut down.
async fn within<T>(
    engine: &Engine,
    left: Option<Duration>,
    future: impl Future<Output = T>,
) -> Result<T, Failure> {
    let open = async {
        tokio::select! {
            biased;
            () = engine.registry.shut() => Err(engine.registry.closed()),
            output = future => Ok(output),
        }
    };
    match left {
        None => open.await,
        Some(left) => match tokio::time::timeout(left, open).await {
            Ok(output) => output,
            Err(_) => Err(Failure::new(ErrorKind::TimedOut, "")),
        },
    }
}
