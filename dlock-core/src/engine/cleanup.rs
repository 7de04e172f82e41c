//! Removing what acquires that failed and releases that were not confirmed have left on the servers.
//!
//! This is the only place that repeats a withdrawal: by the keeper, until nothing is left, and for a caller that waits
//! for the answer. Backends make one request and report what is known after it; [`plan`] decides what follows, without
//! a clock.

mod plan;

use std::sync::Arc;
use std::time::Duration;

use crate::backend::dynamic::DynClaim;
use crate::backend::{OthersWaiting, PauseLimit, Withdrawal};
use crate::clock::Timestamp;
use crate::engine::Engine;
use crate::engine::activity::ActivityToken;
use crate::engine::bounds::RequestBounds;
use crate::engine::cleanup::plan::{Next, WithdrawalPlan};
use crate::engine::hold::Hold;
use crate::engine::left::LeftClaim;
use crate::engine::session::Session;
use crate::engine::tenure::Tenure;
use crate::error::Failure;
use crate::key::Key;
use crate::options::Role;
use crate::telemetry::{Site, Spanned, Subject, Trace};

/// A claim whose caller has gone, with what the keeper needs to withdraw it.
pub(crate) struct Cleanup {
    pub(crate) engine: Arc<Engine>,
    pub(crate) key: Key,
    pub(crate) site: Site,
    pub(crate) claim: Box<dyn DynClaim>,
    /// The time for which a request may be on its way.
    pub(crate) lease: Duration,
    /// The session that keeps the lock.
    pub(crate) session: Option<Arc<Session>>,
    pub(crate) request_timeout: Duration,
    pub(crate) activity: ActivityToken,
    /// The tenure of the hold, if there was one.
    pub(crate) tenure: Option<Tenure>,
    /// The trace of the span that took the lock, if it was taken.
    pub(crate) trace: Trace,
    /// The time until which the key stays taken.
    pub(crate) leave_until: Timestamp,
    /// The longest time for which the key may be left already, where a hand-over is taken back: its baton is with no
    /// process.
    pub(crate) retracts: Option<Duration>,
    /// Is `true` if it was a term of an election, whose end is announced.
    pub(crate) is_term: bool,
    /// The count of claims that an acquire left behind.
    pub(super) left: Option<LeftClaim>,
}

impl Cleanup {
    /// The rest of a release.
    pub(crate) fn of_hold(hold: &Hold, claim: Box<dyn DynClaim>, activity: ActivityToken) -> Self {
        Self {
            engine: Arc::clone(&hold.engine),
            key: hold.key.clone(),
            site: hold.site,
            claim,
            lease: hold.usual_lease(),
            session: hold.session(),
            request_timeout: hold.options.request_timeout,
            activity,
            tenure: hold.ended_tenure(),
            trace: hold.trace.clone(),
            leave_until: hold.leave_until(),
            retracts: None,
            is_term: hold.options.role == Some(Role::Leader),
            left: None,
        }
    }

    /// Has the keeper carry it out.
    pub(crate) fn later(mut self) {
        // Counted as background before it is sent, so that a shutdown between the two waits for it.
        self.activity = self.activity.into_background();
        let engine = Arc::clone(&self.engine);
        engine.later(self.carry_out());
    }

    /// Withdraws, again and again until nothing is left or the lease has ended it anyway.
    async fn carry_out(self) {
        let span = self.engine.telemetry.cleanup_started(self.subject(), &self.trace);
        self.withdraw().in_span(span).await;
    }

    const fn subject(&self) -> Subject<'_> {
        Subject { key: &self.key, site: self.site }
    }

    async fn withdraw(mut self) {
        let engine = Arc::clone(&self.engine);
        let clock = &engine.clock;
        let mut plan = self.plan(clock.now());
        let mut backoff = PauseLimit::new(Duration::from_millis(20), Duration::from_secs(1));
        let mut refusals = PauseLimit::of_refusals();
        let mut others_waiting = OthersWaiting::NONE;
        loop {
            // Taken anew each time: of a cooldown, the rest goes with each request.
            let left = plan.leaves_for(clock.now());
            let limits = (self.request_timeout, self.lease);
            let answer = withdraw_once(&mut self.claim, &engine, limits, left.on_server).await;
            if let Ok(withdrawal) = &answer {
                // Any answer proves that the backend is there, whatever it found.
                engine.registry.contacted(clock.now());
                // Of all answers: that to a repetition, which finds nothing, may count no waiter.
                others_waiting = others_waiting.or(withdrawal.others_waiting);
            }
            if self.session.as_ref().is_some_and(|session| session.is_live()) {
                plan.lasts_until(clock.now() + self.lease + self.request_timeout);
            }
            // Listens before it looks whether the locks are shut down: a shutdown between the two is not missed.
            let shut = engine.registry.shut();
            let next = plan.after(&answer, left, clock.now(), engine.registry.is_closed());
            if let Err(failure) = &answer {
                match next {
                    Next::AwaitMending { .. } => engine.telemetry.cleanup_refused(self.subject(), failure),
                    _ => engine.telemetry.cleanup_failed(self.subject(), failure, next == Next::GiveUp),
                }
            }
            match next {
                Next::Settled => {
                    engine.telemetry.cleaned_up();
                    break;
                }
                Next::GiveUp => break,
                Next::AwaitMending { at_most } => {
                    let pause = refusals.pause(engine.entropy.fraction()).min(at_most);
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = shut => {}
                    }
                }
                Next::AwaitEnd { left } => tokio::time::sleep(left).await,
                Next::Again { is_news } => {
                    // A claim of ours may still arrive, but the key is free now: the next waiter need not wait for the
                    // end of this.
                    if is_news {
                        engine.wait_queue.released(&self.key);
                    }
                    tokio::time::sleep(backoff.pause(engine.entropy.fraction())).await;
                }
            }
        }
        // Before the release is reported: an acquire that begins anew by that must not wait for this claim any more.
        drop(self.left.take());
        if self.is_term {
            engine.announce(&self.key);
        }
        engine.released(&self.key, self.tenure, others_waiting);
    }

    /// Plans the withdrawals, which begin at `now`.
    fn plan(&self, now: Timestamp) -> WithdrawalPlan {
        let (lease, request) = (self.lease, self.request_timeout);
        let lease = (!self.engine.capabilities.session_kept).then_some(lease);
        WithdrawalPlan::new(now, (lease, request), self.leave_until, self.retracts)
    }
}

/// Ends a hold, and has the keeper release it.
pub(super) fn give_up(hold: &Arc<Hold>) {
    // Begun before the hold is closed, which unlists it: a shutdown finds it in the one place or the other.
    let activity = hold.engine.registry.activity.begin();
    hold.close();
    release_later(Arc::clone(hold), activity);
}

/// Has the keeper release a hold that was closed.
pub(crate) fn release_later(hold: Arc<Hold>, activity: ActivityToken) {
    let (engine, activity) = (Arc::clone(&hold.engine), activity.into_background());
    engine.later(async move {
        // A renewal under way gives the claim back at once, since the hold is closed. No claim means that another
        // release has it, and reports the end by itself.
        if let Some(claim) = hold.take_claim().await {
            Cleanup::of_hold(&hold, claim, activity).carry_out().await;
        }
    });
}

/// Takes the claim of a hold that was closed; `None` when it is gone.
pub(super) async fn claim_of(hold: &Hold) -> Result<Option<Box<dyn DynClaim>>, Failure> {
    if let Some(claim) = hold.try_take_claim() {
        return Ok(claim);
    }
    let limit = hold.options.request_timeout;
    // A renewal under way gives the claim back at once, unless the backend blocks the keeper's thread.
    hold.engine.timers.within(limit, hold.take_claim()).await.ok_or_else(|| {
        Failure::unknown(format!("no end of a renewal within {limit:?}; does the backend block its thread?"))
    })
}

/// Withdraws the claim of a hold, or leaves its key taken for as long as `left` returns, for a caller that waits for
/// the answer.
///
/// A reply may be lost after the request took effect. So a failure that may pass is asked about again before it counts:
/// `again` gets the number of times that this was done, and returns the pause before the next one. Once it returns
/// `None`, the keeper [repeats](Cleanup) what is left. Returns beside the answer how often it was asked for again.
pub(super) async fn withdraw_awaited(
    hold: &Hold,
    claim: &mut Box<dyn DynClaim>,
    left: impl Fn() -> Duration,
    mut again: impl FnMut(u32) -> Option<Duration>,
) -> (Result<Withdrawal, Failure>, u32) {
    let limits = (hold.options.request_timeout, hold.usual_lease());
    let mut asked = 0;
    loop {
        let answer = withdraw_once(claim, &hold.engine, limits, left()).await;
        let pause = match &answer {
            // A refusal is none: the keeper repeats it after long pauses, for which no caller is kept waiting.
            Err(failure) if failure.is_transient() => again(asked),
            _ => None,
        };
        let Some(pause) = pause else { return (answer, asked) };
        asked += 1;
        if !pause.is_zero() {
            // Boxed: rare, and otherwise part of every release's future.
            Box::pin(hold.engine.timers.sleep(pause)).await;
        }
    }
}

/// Makes one bounded request to withdraw, which leaves the key taken for what is left of its cooldown. While the
/// request waits for its turn it is of use until the lease has ended.
async fn withdraw_once(
    claim: &mut Box<dyn DynClaim>,
    engine: &Engine,
    (limit, lease): (Duration, Duration),
    left: Duration,
) -> Result<Withdrawal, Failure> {
    // A longer bound for the wait in the queue than for the answer: a request that was given up there is put at its end
    // again.
    let bounds = RequestBounds::of(&**claim, engine.of_requests(), limit, lease.max(limit));
    let step = if left.is_zero() { claim.withdraw() } else { claim.leave(left) };
    bounds.answer(step).await.unwrap_or_else(|none| Err(none.into_failure()))
}
