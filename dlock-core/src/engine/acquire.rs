//! Taking a lock: attempts, waiting, and what to do when an outcome is unknown.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::backend::Backoff;
use crate::backend::dynamic::DynClaim;
use crate::backend::{Attempt, Busy, Grant};
use crate::clock::Timestamp;
use crate::engine::Engine;
use crate::engine::hold::{Condition, Hold};
use crate::engine::keeper::{Cleanup, Job};
use crate::engine::wait_queue::Ticket;
use crate::error::{Error, ErrorKind, Failure, Operation};
use crate::handles::guard::Guard;
use crate::handles::options::{Options, Site, Wait};
use crate::holder::Holder;
use crate::key::Key;
use crate::telemetry::acquire::AcquireSpan;
use crate::telemetry::span::Spanned;
use crate::telemetry::spans;

/// A claim that is being made. Dropping it, at whatever await, has the keeper withdraw what may be on the server.
pub(crate) struct Pending {
    engine: Arc<Engine>,
    key: Key,
    site: Site,
    options: Options,
    pub(crate) claim: Option<Box<dyn DynClaim>>,
    /// An attempt is under way, or the outcome of one was never found out.
    pub(crate) unsettled: bool,
}

impl Pending {
    pub(crate) fn new(
        engine: &Arc<Engine>,
        key: &Key,
        site: Site,
        options: &Options,
    ) -> Result<Self, Failure> {
        let claim = engine.claim(key, options)?;
        engine.registry.step_begins();
        Ok(Self {
            engine: Arc::clone(engine),
            key: key.clone(),
            site,
            options: *options,
            claim: Some(claim),
            unsettled: false,
        })
    }

    fn hand_over(&mut self) {
        let Some(claim) = self.claim.take() else { return };
        if self.unsettled || !claim.is_clean() {
            self.engine.later(Job::Withdraw(Cleanup {
                engine: Arc::clone(&self.engine),
                key: self.key.clone(),
                site: self.site,
                claim,
                lease: self.options.lease,
                request_timeout: self.options.request_timeout(),
            }));
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.hand_over();
        self.engine.registry.step_ends();
    }
}

/// How one attempt went.
enum Step {
    Granted(Grant),
    Busy(Busy),
    /// Nothing was changed.
    Failed(Failure),
    /// Something may have been changed.
    Unknown(Failure),
}

impl Step {
    const fn outcome(&self) -> &'static str {
        match self {
            Self::Granted(_) => "acquired",
            Self::Busy(_) => "busy",
            Self::Failed(_) => "failed",
            Self::Unknown(_) => "unknown",
        }
    }
}

/// One acquire.
struct Acquire<'a> {
    engine: &'a Arc<Engine>,
    key: &'a Key,
    site: Site,
    options: &'a Options,
    pending: Pending,
    started: Instant,
    course: AcquireSpan<'a>,
    /// When the first request was sent whose effect may still be standing.
    first_sent: Option<Timestamp>,
    /// Attempts since the outcome was last known.
    unknowns: u32,
    /// Between polls of a busy lock.
    polls: Backoff,
    /// After failures.
    failures: Backoff,
    holder: Option<Holder>,
}

/// Takes the lock, without a look at what the caller holds already.
pub(crate) async fn acquire(
    engine: &Arc<Engine>,
    key: &Key,
    site: Site,
    options: &Options,
) -> Result<Guard, Error> {
    let refuse = |failure: Failure| engine.error(Operation::Acquire, failure).of(key);
    engine.refuse_when_closed().map_err(refuse)?;
    if tokio::runtime::Handle::try_current().is_err() {
        return Err(refuse(Failure::new(
            ErrorKind::Closed,
            "there is no tokio runtime here to wait on; acquire inside of one",
        )));
    }
    let span = spans::acquire_span(engine, key, site, None);
    let started = Instant::now();
    let acquire = Acquire {
        // Inside of the span, whose trace goes along with the claim.
        pending: span.in_scope(|| Pending::new(engine, key, site, options)).map_err(refuse)?,
        engine,
        key,
        site,
        options,
        started,
        course: AcquireSpan::begin(engine, key, site, started),
        first_sent: None,
        unknowns: 0,
        polls: Backoff::new(engine.capabilities.poll_from, engine.capabilities.poll_to),
        failures: Backoff::of_failures(),
        holder: None,
    };
    // Boxed: the state of a wait would make the future of every annotated fn four times as large.
    Box::pin(acquire.go().in_span(span)).await
}

impl<'a> Acquire<'a> {
    async fn go(mut self) -> Result<Guard, Error> {
        let result = self.attempt_until_done().await;
        let waited = self.started.elapsed();
        match result {
            Ok(guard) => {
                self.course.acquired(guard.fence(), waited);
                Ok(guard)
            }
            Err(failure) => {
                let mut error = self.engine.error(Operation::Acquire, failure).of(self.key);
                self.course.not_acquired(&error, waited);
                if error.kind() == ErrorKind::Unknown {
                    error = error.maybe_held_for(self.maybe_held_for());
                }
                Err(error.after(waited, self.course.attempts()).held_by(self.holder.take()))
            }
        }
    }

    async fn attempt_until_done(&mut self) -> Result<Guard, Failure> {
        let engine = self.engine;
        let mut ticket = None;
        // With a line before us there is no point in asking: the first in line does.
        if self.options.wait != Wait::No && !engine.capabilities.fair && engine.wait_queue.has(self.key) {
            self.course.wait();
            ticket = Some(self.stand_in_line().await?);
            self.course.turn();
        }
        loop {
            engine.refuse_when_closed()?;
            match self.attempt().await {
                Step::Granted(grant) => {
                    if let Some(guard) = self.accept(grant)? {
                        if let Some(ticket) = ticket {
                            ticket.win();
                        }
                        return Ok(guard);
                    }
                }
                Step::Busy(busy) => {
                    let retry_after = busy.retry_after;
                    self.course.busy(busy.holder.as_deref(), retry_after);
                    if busy.requeued {
                        self.course.requeued();
                    }
                    if let Some(holder) = busy.holder {
                        self.holder = Some(*holder);
                    }
                    if self.options.wait == Wait::No {
                        return Err(Failure::new(ErrorKind::Busy, ""));
                    }
                    self.course.wait();
                    if ticket.is_none() && !engine.capabilities.fair {
                        let first = !engine.wait_queue.has(self.key);
                        ticket = Some(self.stand_in_line().await?);
                        if !first {
                            self.course.turn();
                            continue;
                        }
                    }
                    self.wait_for_change(retry_after, ticket.as_ref()).await?;
                    self.course.woken();
                }
                Step::Unknown(failure) => {
                    self.course.unknown(&failure, self.unknowns < self.options.rechecks);
                    self.recheck_after(failure).await?;
                }
                Step::Failed(failure) if self.first_sent.is_some() => {
                    // This attempt changed nothing; an earlier one may have. It was not asked about yet, and is for as
                    // long as the caller waits.
                    let pause = self.failures.next();
                    let asks_again = failure.is_transient() && self.options.wait != Wait::No;
                    if !asks_again || within(engine, self.left(), tokio::time::sleep(pause)).await.is_err() {
                        let earlier =
                            "an earlier request may have taken effect, and could not be asked about";
                        return Err(Failure::unknown(earlier).with_source(failure));
                    }
                }
                Step::Failed(failure) => {
                    if !failure.is_transient() || self.options.wait == Wait::No {
                        return Err(failure);
                    }
                    let pause = self.failures.next();
                    match within(engine, self.left(), tokio::time::sleep(pause)).await {
                        Err(end) if end.kind() == ErrorKind::TimedOut => return Err(failure),
                        slept => slept?,
                    }
                }
            }
        }
    }

    async fn attempt(&mut self) -> Step {
        let sent = self.engine.clock.now();
        self.course.attempt();
        let rechecks = self.unknowns > 0;
        if rechecks {
            self.engine.registry.count(|counters| &counters.rechecks);
        }
        let limit = self.options.request_timeout();
        let was_unsettled = std::mem::replace(&mut self.pending.unsettled, true);
        let Some(claim) = self.pending.claim.as_mut() else {
            return Step::Failed(Failure::new(ErrorKind::Closed, "the claim is gone"));
        };
        let first_sent = self.first_sent;
        // Noted before the request goes out: from now on something of ours may be on the server.
        self.first_sent.get_or_insert(sent);
        let step = match tokio::time::timeout(limit, claim.attempt()).await {
            Ok(Ok(Attempt::Granted(grant))) => Step::Granted(grant),
            Ok(Ok(Attempt::Busy(busy))) => {
                // Somebody else has it, so an earlier attempt of ours does not. It may still be on its way, which is
                // why the claim stays unsettled when there was one.
                self.first_sent = None;
                self.unknowns = 0;
                self.pending.unsettled = was_unsettled;
                Step::Busy(busy)
            }
            Ok(Err(failure)) if failure.kind() != ErrorKind::Unknown => {
                self.first_sent = first_sent;
                self.pending.unsettled = was_unsettled;
                Step::Failed(failure)
            }
            Ok(Err(failure)) => Step::Unknown(failure),
            Err(_) => Step::Unknown(Failure::unknown(format!("no answer within {limit:?}"))),
        };
        if rechecks {
            self.course.rechecked(step.outcome());
        }
        step
    }

    /// Makes a guard of a grant; `None` when the grant came so late that it is worth nothing any more.
    fn accept(&mut self, grant: Grant) -> Result<Option<Guard>, Failure> {
        let sent = self.first_sent.unwrap_or_else(|| self.engine.clock.now());
        let Some(claim) = self.pending.claim.take() else {
            return Err(Failure::new(ErrorKind::Closed, "the claim is gone"));
        };
        let hold =
            Hold::new(Arc::clone(self.engine), self.key.clone(), self.site, self.options, claim, grant, sent);
        self.engine.registry.list(&hold);
        // Dropping a guard gives the lock back, also one that comes too late.
        let guard = Guard::new(hold);
        self.engine.refuse_when_closed()?;
        if guard.hold().condition() != Condition::Lost {
            return Ok(Some(guard));
        }
        drop(guard);
        if self.options.wait == Wait::No || self.left().is_some_and(|left| left.is_zero()) {
            return Err(Failure::new(ErrorKind::TimedOut, "the grant arrived after its lease had ended"));
        }
        self.pending.claim = Some(self.engine.claim(self.key, self.options)?);
        self.pending.unsettled = false;
        (self.first_sent, self.unknowns) = (None, 0);
        Ok(None)
    }

    /// After an unknown outcome: a short pause, and then another attempt under the same token, if there is one left.
    async fn recheck_after(&mut self, failure: Failure) -> Result<(), Failure> {
        if self.unknowns >= self.options.rechecks {
            return Err(failure);
        }
        self.unknowns += 1;
        // Not bounded by the wait: whether we hold the lock has to be found out in any case.
        tokio::time::sleep(self.failures.next()).await;
        Ok(())
    }

    /// Waits until another attempt may be worth while, or the time is up.
    async fn wait_for_change(
        &mut self,
        retry_after: Option<Duration>,
        ticket: Option<&Ticket<'_>>,
    ) -> Result<(), Failure> {
        let (pause, left) = (poll(self.engine, &mut self.polls), self.left());
        let Some(claim) = self.pending.claim.as_mut() else {
            return Err(Failure::new(ErrorKind::Closed, "the claim is gone"));
        };
        change(self.engine, claim, (retry_after, pause), ticket, left).await
    }

    /// Waits until it is our turn among the waiters of this process, and asking is worth while.
    fn stand_in_line(&mut self) -> impl Future<Output = Result<Ticket<'a>, Failure>> + use<'a> {
        stand_in_line(self.engine, self.key, self.left(), poll(self.engine, &mut self.polls))
    }

    fn left(&self) -> Option<Duration> {
        left(self.options.wait, self.started)
    }

    fn maybe_held_for(&self) -> Duration {
        let sent = self.first_sent.unwrap_or_else(|| self.engine.clock.now());
        // A request that is still on its way starts its lease when it arrives.
        (sent + self.options.lease + self.options.request_timeout()).since(self.engine.clock.now())
    }
}

/// Waits until another attempt may be worth while: when the lock was given back, the backend tells of a change, the
/// holder's lease has ended, or after a pause.
pub(crate) async fn change(
    engine: &Engine,
    claim: &mut Box<dyn DynClaim>,
    (retry_after, pause): (Option<Duration>, Duration),
    ticket: Option<&Ticket<'_>>,
    left: Option<Duration>,
) -> Result<(), Failure> {
    let pause = retry_after.map_or(pause, |left| pause.min(left + Duration::from_millis(1)));
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
    within(engine, left, changed).await?
}

/// Waits until it is our turn among the waiters of this process, and asking is worth while. The place is taken at once.
pub(crate) fn stand_in_line<'a>(
    engine: &'a Engine,
    key: &'a Key,
    left: Option<Duration>,
    poll: Duration,
) -> impl Future<Output = Result<Ticket<'a>, Failure>> + use<'a> {
    let ticket = engine.wait_queue.join(key);
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
pub(crate) fn poll(engine: &Engine, polls: &mut Backoff) -> Duration {
    match engine.capabilities.notified {
        // A notification will come; the poll is only the safety net.
        true => engine.capabilities.poll_to.mul_f64(0.75 + fastrand::f64() / 4.0),
        false => polls.next(),
    }
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
pub(crate) async fn within<T>(
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
