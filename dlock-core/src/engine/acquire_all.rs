//! Taking several locks of one backend in one step.
//!
//! While one of them is busy, none is held: the batch waits for that one, in line with the others who want it, and then tries
//! for all again. Under much contention the next try can meet another one that is busy, and so on; after some tries in
//! vain the locks are therefore taken one after the other, where every place in line that was reached is kept.

use std::time::Duration;

use tokio::time::Instant;

use crate::backend::Backoff;
use crate::backend::{BatchAttempt, Busy, Grant};
use crate::clock::Timestamp;
use crate::engine::acquire::{Pending, change, left, poll, stand_in_line, within};
use crate::engine::hold::{Condition, Hold};
use crate::engine::wait_queue::Ticket;
use crate::error::{Error, ErrorKind, Failure, Operation};
use crate::handles::batch::Wanted;
use crate::handles::guard::Guard;
use crate::handles::options::Wait;
use crate::holder::Holder;
use crate::telemetry::acquire::AcquireSpan;
use crate::telemetry::span::Spanned;
use crate::telemetry::spans;

/// How often all are tried for before they are taken one after the other.
const MOST_TRIES: u32 = 8;

/// How one attempt went.
enum Step {
    Granted(Vec<Grant>),
    Busy(usize, Busy),
    Separately,
    /// Nothing was changed.
    Failed(Failure),
    /// Something may have been changed.
    Unknown(Failure),
}

/// Takes all of `wanted`, which are of one engine; `None` when they have to be taken one after the other.
pub(crate) async fn acquire(
    wanted: &[&Wanted<'_>],
    wait: Wait,
    started: Instant,
) -> Result<Option<Vec<Guard>>, Error> {
    let [first, ..] = wanted else { return Ok(Some(Vec::new())) };
    let engine = first.engine;
    let refuse = |failure: Failure| engine.error(Operation::Acquire, failure).of(first.key);
    engine.refuse_when_closed().map_err(refuse)?;
    if tokio::runtime::Handle::try_current().is_err() {
        // Said by the acquire of the first.
        return Ok(None);
    }
    let span = spans::acquire_span(engine, first.key, first.site, Some(wanted.len()));
    let timeouts = wanted.iter().map(|one| one.options.request_timeout());
    let acquire = Acquire {
        // Inside of the span, whose trace goes along with the claims.
        pendings: span.in_scope(|| pendings(wanted)).map_err(refuse)?,
        wanted,
        wait,
        started,
        request_timeout: timeouts.min().unwrap_or_default(),
        rechecks: wanted.iter().map(|one| one.options.rechecks).min().unwrap_or_default(),
        course: AcquireSpan::begin(engine, first.key, first.site, started),
        first_sent: None,
        unknowns: 0,
        tries: 0,
        polls: Backoff::new(engine.capabilities.poll_from, engine.capabilities.poll_to),
        failures: Backoff::of_failures(),
        place: 0,
        holder: None,
    };
    Box::pin(acquire.go().in_span(span)).await
}

fn pendings(wanted: &[&Wanted<'_>]) -> Result<Vec<Pending>, Failure> {
    wanted.iter().map(|one| Pending::new(one.engine, one.key, one.site, &one.options)).collect()
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

struct Acquire<'a> {
    wanted: &'a [&'a Wanted<'a>],
    wait: Wait,
    started: Instant,
    request_timeout: Duration,
    rechecks: u32,
    pendings: Vec<Pending>,
    course: AcquireSpan<'a>,
    /// When the first request was sent whose effect may still be standing.
    first_sent: Option<Timestamp>,
    /// Attempts since the outcome was last known.
    unknowns: u32,
    /// Attempts that found one of them busy.
    tries: u32,
    polls: Backoff,
    failures: Backoff,
    /// Which of them is in the way.
    place: usize,
    holder: Option<Holder>,
}

impl<'a> Acquire<'a> {
    async fn go(mut self) -> Result<Option<Vec<Guard>>, Error> {
        let result = self.attempt_until_done().await;
        let (waited, one) = (self.started.elapsed(), self.wanted[self.place]);
        match result {
            Ok(guards) => {
                match guards {
                    Some(_) => self.course.acquired(None, waited),
                    None => self.course.set_aside(),
                }
                Ok(guards)
            }
            Err(failure) => {
                let mut error = one.engine.error(Operation::Acquire, failure).of(one.key);
                self.course.not_acquired(&error, waited);
                if error.kind() == ErrorKind::Unknown {
                    error = error.maybe_held_for(self.maybe_held_for());
                }
                Err(error.after(waited, self.course.attempts()).held_by(self.holder.take()))
            }
        }
    }

    async fn attempt_until_done(&mut self) -> Result<Option<Vec<Guard>>, Failure> {
        let engine = self.wanted[0].engine;
        let mut ticket = None;
        // Whoever waits for one of them was there first.
        if self.wait != Wait::No
            && let Some(place) = self.wanted.iter().position(|one| engine.wait_queue.has(one.key))
        {
            self.place = place;
            self.course.turn_to(self.wanted[place].key);
            self.course.wait();
            ticket = Some((place, self.stand_in_line(place).await?));
            self.course.turn();
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
                    self.place = place;
                    self.course.turn_to(self.wanted[place].key);
                    self.course.busy(busy.holder.as_deref(), busy.retry_after);
                    self.holder = busy.holder.map(|holder| *holder);
                    if self.wait == Wait::No {
                        return Err(Failure::new(ErrorKind::Busy, ""));
                    }
                    self.tries += 1;
                    if self.tries >= MOST_TRIES {
                        return Ok(None);
                    }
                    self.course.wait();
                    if ticket.as_ref().is_none_or(|(at, _)| *at != place) {
                        drop(ticket.take());
                        let first = !engine.wait_queue.has(self.wanted[place].key);
                        ticket = Some((place, self.stand_in_line(place).await?));
                        if !first {
                            self.course.turn();
                            continue;
                        }
                    }
                    self.wait_for_change(busy.retry_after, ticket.as_ref().map(|(_, ticket)| ticket)).await?;
                    self.course.woken();
                }
                Step::Unknown(failure) => {
                    let again = self.unknowns < self.rechecks;
                    self.course.unknown(&failure, again);
                    if !again {
                        return Err(failure);
                    }
                    self.unknowns += 1;
                    // Not bounded by the wait: whether we hold them has to be found out in any case.
                    tokio::time::sleep(self.failures.next()).await;
                }
                Step::Failed(failure) => {
                    let asks_again = failure.is_transient() && self.wait != Wait::No;
                    let pause = tokio::time::sleep(self.failures.next());
                    if !asks_again {
                        return Err(self.last_word(failure));
                    }
                    match within(engine, self.left(), pause).await {
                        Err(end) if end.kind() == ErrorKind::TimedOut => return Err(self.last_word(failure)),
                        slept => slept?,
                    }
                }
            }
        }
    }

    /// What to say when an attempt certainly changed nothing, but an earlier one may have.
    fn last_word(&self, failure: Failure) -> Failure {
        match self.first_sent {
            None => failure,
            Some(_) => {
                let earlier = "an earlier request may have taken effect, and could not be asked about";
                Failure::unknown(earlier).with_source(failure)
            }
        }
    }

    async fn attempt(&mut self) -> Step {
        self.course.attempt();
        let rechecks = self.unknowns > 0;
        if rechecks {
            self.wanted[0].engine.registry.count(|counters| &counters.rechecks);
        }
        let step = self.ask().await;
        if rechecks {
            self.course.rechecked(step.outcome());
        }
        step
    }

    async fn ask(&mut self) -> Step {
        let engine = self.wanted[0].engine;
        let sent = engine.clock.now();
        let (first_sent, unsettled) =
            (self.first_sent, self.pendings.iter().any(|pending| pending.unsettled));
        // Noted before the request goes out: from now on something of ours may be on the server.
        self.first_sent.get_or_insert(sent);
        self.set_unsettled(true);
        let limit = self.request_timeout;
        let claims = self.pendings.iter_mut().filter_map(|pending| pending.claim.as_mut()).collect();
        let answer = tokio::time::timeout(limit, engine.backend.attempt_all(claims)).await;
        let step = match answer {
            Ok(Ok(BatchAttempt::Granted(grants))) if grants.len() == self.wanted.len() => {
                return Step::Granted(grants);
            }
            Ok(Ok(BatchAttempt::Granted(_))) => {
                return Step::Unknown(Failure::unknown("the backend lost count of the locks"));
            }
            Err(_) => return Step::Unknown(Failure::unknown(format!("no answer within {limit:?}"))),
            Ok(Err(failure)) if failure.kind() == ErrorKind::Unknown => return Step::Unknown(failure),
            Ok(Err(failure)) => Step::Failed(failure),
            Ok(Ok(BatchAttempt::Separately)) => Step::Separately,
            Ok(Ok(BatchAttempt::Busy { place, busy })) => Step::Busy(place.min(self.wanted.len() - 1), busy),
        };
        // This attempt took nothing. What an earlier one may have taken is still open.
        self.first_sent = first_sent;
        self.set_unsettled(unsettled);
        match step {
            // Others of them may have been taken all the same, and are not wanted without this one.
            Step::Busy(..) if unsettled => match self.begin_anew() {
                Ok(()) => step,
                Err(failure) => Step::Failed(failure),
            },
            step => step,
        }
    }

    fn set_unsettled(&mut self, unsettled: bool) {
        self.pendings.iter_mut().for_each(|pending| pending.unsettled = unsettled);
    }

    /// Leaves what was tried to the keeper, which withdraws it, and makes new claims.
    fn begin_anew(&mut self) -> Result<(), Failure> {
        self.pendings = pendings(self.wanted)?;
        (self.first_sent, self.unknowns) = (None, 0);
        Ok(())
    }

    /// Makes guards of grants; `None` when they came so late that they are worth nothing any more.
    fn accept(&mut self, grants: Vec<Grant>) -> Result<Option<Vec<Guard>>, Failure> {
        let engine = self.wanted[0].engine;
        let sent = self.first_sent.unwrap_or_else(|| engine.clock.now());
        let mut guards = Vec::with_capacity(grants.len());
        for ((one, pending), grant) in self.wanted.iter().zip(&mut self.pendings).zip(grants) {
            let Some(claim) = pending.claim.take() else {
                return Err(Failure::new(ErrorKind::Closed, "the claim is gone"));
            };
            let hold = Hold::new(engine.clone(), one.key.clone(), one.site, &one.options, claim, grant, sent);
            engine.registry.list(&hold);
            // Dropping a guard gives the lock back, also one that comes too late.
            guards.push(Guard::new(hold));
        }
        engine.refuse_when_closed()?;
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

    async fn wait_for_change(
        &mut self,
        retry_after: Option<Duration>,
        ticket: Option<&Ticket<'_>>,
    ) -> Result<(), Failure> {
        let engine = self.wanted[0].engine;
        let (pause, left) = (poll(engine, &mut self.polls), self.left());
        let Some(claim) = self.pendings[self.place].claim.as_mut() else {
            return Err(Failure::new(ErrorKind::Closed, "the claim is gone"));
        };
        change(engine, claim, (retry_after, pause), ticket, left).await
    }

    fn stand_in_line(&mut self, place: usize) -> impl Future<Output = Result<Ticket<'a>, Failure>> + use<'a> {
        let one = self.wanted[place];
        stand_in_line(one.engine, one.key, self.left(), poll(one.engine, &mut self.polls))
    }

    fn left(&self) -> Option<Duration> {
        left(self.wait, self.started)
    }

    fn maybe_held_for(&self) -> Duration {
        let now = self.wanted[0].engine.clock.now();
        let lease = self.wanted.iter().map(|one| one.options.lease).max().unwrap_or_default();
        // A request that is still on its way starts its leases when it arrives.
        (self.first_sent.unwrap_or(now) + lease + self.request_timeout).since(now)
    }
}
