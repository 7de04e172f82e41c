//! One attempt to take the locks that are wanted, the claims that it is made with, and the part of the acquire that it
//! leaves on the servers.

use std::sync::Arc;
use std::time::Duration;

use smallvec::{SmallVec, smallvec};
use tokio::time::Instant;

use super::Acquire;
use super::decide::{Answer, Leaves};
use super::pace::Pauses;
use super::unsettled::Sent;
use crate::backend::dynamic::DynClaim;
use crate::backend::{Attempt, BatchAttempt, InFlight, RequestClock};
use crate::clock::Timestamp;
use crate::engine::activity::ActivityToken;
use crate::engine::bounds::{RequestBounds, Unanswered};
use crate::engine::cleanup::Cleanup;
use crate::engine::left::LeftClaim;
use crate::engine::session::{Session, usual_lease};
use crate::engine::{Engine, Spec};
use crate::error::{ErrorKind, Failure};
use crate::telemetry::Trace;

/// A claim that is being made. Dropping it, at whatever await, has the keeper withdraw what may be on the server.
pub(super) struct Pending<'a> {
    pub(super) spec: &'a Spec,
    pub(super) claim: Option<Box<dyn DynClaim>>,
    /// The session that is to keep the lock.
    pub(super) session: Option<Arc<Session>>,
    written: Option<RequestClock>,
    pub(super) in_flight: InFlight<()>,
    activity: Option<ActivityToken>,
}

impl<'a> Pending<'a> {
    fn new(spec: &'a Spec) -> Result<Self, Failure> {
        // Counted before the claim is made: a shutdown waits for every claim that may reach a server.
        let activity = Some(spec.engine.registry.activity.begin());
        // A failure here drops the token that was begun, which ends the count: nothing was sent.
        let session = spec.engine.sessions.live(&spec.options);
        let claim = spec.claim(session.as_deref())?;
        let written = claim.request_clock();
        Ok(Self { spec, claim: Some(claim), session, written, in_flight: InFlight::default(), activity })
    }

    /// Is `true` if something of it may be on the server: a lock that an attempt took, or an entry that keeps others
    /// out.
    pub(super) fn leaves_something(&self) -> bool {
        // `is_clean` alone is not enough: after an outcome that is unknown the backend may take its claim for clean,
        // while the request is still on its way.
        self.claim.as_ref().is_some_and(|claim| self.in_flight.may_arrive() || !claim.is_clean())
    }

    /// Is `true` if a session is to keep the lock, and none does, or not any more.
    pub(super) fn lacks_session(&self) -> bool {
        self.spec.engine.sessions.keep(&self.spec.options)
            && !self.session.as_ref().is_some_and(|session| session.is_live())
    }

    /// Notes that an attempt begins. Returns the clock that reports its way to the wire, if there is one.
    fn begin_request(&self) -> Option<RequestClock> {
        let written = self.written.clone();
        written.inspect(RequestClock::begin)
    }
}

/// Returns the failure of a claim that is not where it should be.
pub(super) fn gone() -> Failure {
    Failure::new(ErrorKind::Closed, "the claim is gone")
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        let engine = &self.spec.engine;
        // A claim that left nothing is dropped here: no request is needed, and the keeper is not woken.
        if let Some(claim) = self.claim.take()
            && (self.in_flight.may_arrive() || !claim.is_clean())
            && let Some(activity) = self.activity.take()
        {
            let cleanup = Cleanup {
                engine: Arc::clone(engine),
                key: self.spec.key.clone(),
                site: self.spec.site,
                claim,
                lease: match self.session {
                    Some(_) => usual_lease(self.spec.options.lease),
                    None => self.spec.options.lease,
                },
                session: self.session.take(),
                request_timeout: self.spec.options.request_timeout(),
                activity,
                tenure: None,
                trace: Trace::default(),
                leave_until: Timestamp::from_nanos(0),
                retracts: None,
                is_term: false,
                // Counted here, before this drop returns: an acquire that begins anew after it sees that claim.
                left: Some(LeftClaim::new(&engine.acquires.left_claims, &self.spec.key)),
            };
            cleanup.later();
        }
    }
}

/// The times of the requests of an acquire, and of their answers.
#[derive(Debug)]
pub(super) struct RequestTimes {
    /// The time of the last request, or of the one that is about to be made.
    pub(super) asked_at: Instant,
    /// Is `true` if `asked_at` is that of an attempt that is about to begin.
    asks_at_once: bool,
    /// The time that a recent answer took, at most half of the request timeout.
    pub(super) round_trip: Duration,
    /// Is `true` if the clock of the waits stands still and jumps: a test has paused it.
    pub(super) virtual_time: bool,
}

impl RequestTimes {
    pub(super) const fn new(asked_at: Instant, asks_at_once: bool) -> Self {
        Self { asked_at, asks_at_once, round_trip: Duration::ZERO, virtual_time: false }
    }

    /// Notes that the acquire waits before it asks, so that the moment of its beginning is not that of an attempt.
    pub(super) const fn look_again(&mut self) {
        self.asks_at_once = false;
    }

    /// Notes how long an answer took by the clock of waits, and how much time `passed` by that of leases.
    fn note(&mut self, took: Duration, bounded: Duration, passed: Duration) {
        // One slow answer, or a pause of this process, is forgotten soon.
        self.round_trip = bounded.max(self.round_trip / 2);
        // `took` is by tokio's clock, which a test may pause, and `passed` by the clock of leases. An answer that took
        // nothing by the former and some time by the latter, or longer by the former, shows that the former stands
        // still and jumps.
        self.virtual_time =
            (took.is_zero() && passed > Duration::from_micros(1)) || took > passed + Duration::from_millis(1);
    }
}

impl<'a> Acquire<'a> {
    /// Asks the backend once. Fails if the claims must not be used again, and no new ones can be made: then the acquire
    /// ends, and its drop has the old ones withdrawn.
    pub(super) async fn attempt(&mut self) -> Result<Answer, Failure> {
        let rechecks = self.unsettled.unknowns() > 0;
        self.span.attempt(rechecks);
        let answer = self.ask().await?;
        let answer = self.past_dead_holder(answer).await?;
        if rechecks {
            self.span.rechecked(answer.outcome());
        }
        // Only these two show that the servers allow the request again: a failure of another kind says nothing of that.
        if let Answer::Granted(_) | Answer::Busy(..) = &answer
            && let Some(Pauses { refusals: Some(refusals), .. }) = &mut self.pauses
        {
            refusals.are_over();
        }
        Ok(answer)
    }

    pub(super) async fn ask(&mut self) -> Result<Answer, Failure> {
        let at = self.engine.clock.now();
        // An acquire that asks at once counts from its start, which spares a look at the clock.
        if !std::mem::take(&mut self.requests.asks_at_once) {
            self.requests.asked_at = Instant::now();
        }
        // Read before `begin`, which counts this attempt in flight too.
        let in_flight = self.pendings.iter().any(|pending| pending.in_flight.may_arrive());
        // Noted before the request goes out: from now on something of this acquire may be on the server.
        let sent = self.unsettled.begin(at);
        self.pendings.iter_mut().for_each(|pending| pending.in_flight.begin(()));
        let bounds = RequestBounds {
            clock: &self.engine.clock,
            timers: &self.engine.timers,
            // The first claim stands for all of a batch, whose locks go out in one request.
            written: self.pendings[0].begin_request(),
            from: self.requests.asked_at,
            limit: self.limits.request_timeout,
            until: self.limits.until,
        };
        let answer = bounds.answer(request(self.engine, &mut self.pendings)).await;
        let answer = answer.unwrap_or_else(|unanswered| match unanswered {
            // The lock was another's at the last answer, and nothing was sent since. To the caller that is a wait whose
            // time is up, and not servers that are away.
            Unanswered::Unsent if self.contention.was_busy => {
                Answer::Failed(Failure::new(ErrorKind::TimedOut, RequestClock::UNSENT))
            }
            Unanswered::Unsent => Answer::Failed(unanswered.into_failure()),
            unanswered => Answer::Unknown(unanswered.into_failure()),
        });
        // Also of a request without an answer: it may take effect from its write on.
        let written_at = bounds.written_at();
        self.settle(answer, &sent, written_at, in_flight)
    }

    /// Notes the duration of an answer, and what is left on the servers. `in_flight` is `true` if an earlier attempt
    /// could still arrive when this one was sent.
    fn settle(
        &mut self,
        answer: Answer,
        sent: &Sent,
        written_at: Option<Timestamp>,
        in_flight: bool,
    ) -> Result<Answer, Failure> {
        // `leaves_time_for_an_answer` doubles the figure: at most half, so that an acquire which has a request timeout
        // left asks, however slow its last answer was.
        let half = self.limits.request_timeout / 2;
        if let Some(at) = written_at {
            self.unsettled.written(sent, at);
        }
        if let Answer::Granted(_) = &answer {
            // Nothing below matters any more, and a look at the clock costs as much as all else here; but after a wait,
            // others will have to know how long an answer takes.
            if self.contention.was_busy {
                self.engine.acquires.round_trip.note(self.requests.asked_at.elapsed().min(half));
            }
            return Ok(answer);
        }
        let (took, now) = (self.requests.asked_at.elapsed(), self.engine.clock.now());
        let bounded = took.min(half);
        self.engine.acquires.round_trip.note(bounded);
        self.requests.note(took, bounded, now.since(sent.at));
        match self.terms.leaves(&answer, in_flight) {
            Leaves::All => {}
            Leaves::Earlier => {
                self.unsettled.took_nothing(sent);
                self.took_nothing();
            }
            // An earlier attempt may still be on its way, which is why it stays in flight.
            Leaves::Nothing => {
                let lease = self.specs[self.contention.place].options.lease;
                self.unsettled.busy(sent, in_flight, now, lease);
                self.took_nothing();
            }
            Leaves::Refuse => self.begin_anew()?,
        }
        Ok(answer)
    }

    /// Notes that the last attempt changed nothing; earlier ones stay in flight.
    fn took_nothing(&mut self) {
        self.pendings.iter_mut().for_each(|pending| pending.in_flight.took_nothing(&()));
    }

    /// Leaves the claims that were tried to the keeper, which withdraws them, and makes new ones. Until they are
    /// withdrawn, they may be what the new ones find.
    pub(super) fn begin_anew(&mut self) -> Result<(), Failure> {
        // The assignment drops the old claims, which hands them to the keeper.
        self.pendings = pendings(self.specs)?;
        self.unsettled.anew();
        self.is_again = true;
        Ok(())
    }
}

/// Prepares a claim for each lock.
pub(super) fn pendings(specs: &[Spec]) -> Result<SmallVec<[Pending<'_>; 1]>, Failure> {
    specs.iter().map(Pending::new).collect()
}

/// Makes the request, which differs between one lock and many.
pub(super) async fn request(engine: &Engine, pendings: &mut [Pending<'_>]) -> Answer {
    // No claim leaves its `Pending` for the request: a future that is dropped here still hands all of them to the
    // keeper.
    let wanted = pendings.len();
    let mut claims = pendings.iter_mut().filter_map(|pending| pending.claim.as_mut());
    let failure = if wanted == 1 {
        let Some(claim) = claims.next() else { return Answer::Failed(gone()) };
        match claim.attempt().await {
            Ok(Attempt::Granted(grant)) => return Answer::Granted(smallvec![grant]),
            Ok(Attempt::Busy(busy)) => {
                engine.registry.contacted(engine.clock.now());
                return Answer::Busy(0, busy);
            }
            Err(failure) => failure,
        }
    } else {
        match engine.backend.attempt_all(claims.collect()).await {
            Ok(BatchAttempt::Granted(grants)) if grants.len() == wanted => {
                return Answer::Granted(grants.into());
            }
            // Which of the locks a short list of grants is for cannot be known, so that all of them are taken for
            // possible.
            Ok(BatchAttempt::Granted(_)) => Failure::unknown("the backend lost count of the locks"),
            Ok(BatchAttempt::Busy { place, busy }) => {
                engine.registry.contacted(engine.clock.now());
                // A place beyond the list is a fault of the backend, and must not panic in the code of the caller.
                return Answer::Busy(place.min(wanted - 1), busy);
            }
            Ok(BatchAttempt::Separately) => return Answer::Separately,
            Err(failure) => failure,
        }
    };
    // No token is asked about again once its grant is being withdrawn.
    match failure.kind() {
        ErrorKind::Unknown if !failure.is_worthless() => Answer::Unknown(failure),
        _ => Answer::Failed(failure),
    }
}
