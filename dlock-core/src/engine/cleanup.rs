//! What is left on the servers by acquires that failed and releases that were not confirmed, and how it is taken away.
//!
//! This is the only place that repeats a withdrawal: by the keeper, until nothing is left, and for a caller who waits
//! for the answer. Backends make one request and say what is known after it.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::dynamic::DynClaim;
use crate::backend::{Backoff, Withdrawal};
use crate::clock::Timestamp;
use crate::engine::Engine;
use crate::engine::activity::ActivityToken;
use crate::engine::bounds::RequestBounds;
use crate::engine::hold::Hold;
use crate::engine::left::LeftClaim;
use crate::engine::tenure::Tenure;
use crate::error::Failure;
use crate::key::Key;
use crate::telemetry::{Site, Spanned, Subject, Trace};

/// For how long a key stays taken that was to be handed over: a withdrawal would not touch what is left already.
const RETRACTED_FOR: Duration = Duration::from_millis(1);

/// A claim that nobody waits for any more.
pub(crate) struct Cleanup {
    pub(crate) engine: Arc<Engine>,
    pub(crate) key: Key,
    pub(crate) site: Site,
    pub(crate) claim: Box<dyn DynClaim>,
    pub(crate) lease: Duration,
    pub(crate) request_timeout: Duration,
    pub(crate) activity: ActivityToken,
    /// Of what was held.
    pub(crate) tenure: Option<Tenure>,
    /// Of the span that took the lock, if it was taken.
    pub(crate) trace: Trace,
    /// Until when the key stays taken.
    pub(crate) leave_until: Timestamp,
    /// What was to be handed over is taken back: the key may be left already, for so long at most, and nobody has the
    /// baton.
    pub(crate) retracts: Option<Duration>,
    /// Of an acquire that was dropped before its end.
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
            lease: hold.lease,
            request_timeout: hold.request_timeout,
            activity,
            tenure: hold.ended_tenure(),
            trace: hold.trace.clone(),
            leave_until: hold.leave_until(),
            retracts: None,
            left: None,
        }
    }

    /// Has the keeper carry it out.
    pub(crate) fn later(mut self) {
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
        let clock = &self.engine.clock;
        // A request that is still on its way starts its lease when it arrives. What a session keeps has no lease, and
        // would be kept for as long as this process lives.
        let arrives_until = match self.engine.capabilities.session_kept {
            true => Timestamp::NEVER,
            false => clock.now() + self.lease + self.request_timeout,
        };
        // What a request has left is there until its time is over, which may be long after that.
        let left_until = self.retracts.map(|most| clock.now() + most + self.request_timeout);
        let until = left_until.map_or(arrives_until, |left| left.max(arrives_until));
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
        let mut refusals = Backoff::of_refusals();
        let mut others_waiting = 0;
        // Whether the answer may be the first that tells of a lock that was there.
        let mut news = true;
        loop {
            let left = self.leave_until.since(clock.now());
            let leaves_for = if self.retracts.is_some() { left.max(RETRACTED_FOR) } else { left };
            let limits = (self.request_timeout, self.lease);
            let answer = withdraw_once(&mut self.claim, &self.engine, limits, leaves_for).await;
            let (may_arrive, over) = (clock.now() < arrives_until, clock.now() >= until);
            if answer.is_ok() {
                self.engine.registry.contacted(clock.now());
            }
            others_waiting =
                answer.as_ref().map_or(0, |withdrawal| withdrawal.others_waiting).max(others_waiting);
            match answer {
                Ok(withdrawal) if withdrawal.settled || !may_arrive => {
                    self.engine.telemetry.cleaned_up();
                    break;
                }
                // What was sent before may still take effect: withdrawn again until it cannot any more. Those who wait
                // here need not wait for that, and are not told each time that nothing was there.
                Ok(withdrawal) => {
                    if std::mem::take(&mut news) || withdrawal.removed {
                        self.engine.wait_queue.released(&self.key);
                    }
                }
                Err(failure) => {
                    news = true;
                    let shut = self.engine.registry.shut();
                    // Whoever took the right or the table away may give it back before the lease has ended, and a
                    // session has none. Not after a shutdown, where what is left ends with the session.
                    if !over && failure.kind().is_refusal() && !self.engine.registry.is_closed() {
                        self.engine.telemetry.cleanup_refused(self.subject(), &failure);
                        let pause = refusals.pause(self.engine.entropy.fraction());
                        // What could not be left is released when its time is over.
                        let pause = if left.is_zero() { pause } else { pause.min(left) };
                        let pause = tokio::time::sleep(pause.min(until.since(clock.now())));
                        tokio::select! {
                            () = pause => {}
                            () = shut => {}
                        }
                        continue;
                    }
                    let given_up = over || !failure.is_transient();
                    // Where nothing can be left, the lock itself stays until it may be released.
                    let keeps = given_up && !over && !left.is_zero();
                    self.engine.telemetry.cleanup_failed(self.subject(), &failure, given_up && !keeps);
                    if keeps {
                        tokio::time::sleep(left.min(until.since(clock.now()))).await;
                        continue;
                    }
                    if given_up {
                        break;
                    }
                }
            }
            tokio::time::sleep(backoff.pause(self.engine.entropy.fraction())).await;
        }
        drop(self.left.take());
        self.engine.released(&self.key, self.tenure, others_waiting);
    }
}

/// Ends a hold, and has the keeper release it.
pub(super) fn give_up(hold: &Arc<Hold>) {
    let activity = hold.engine.registry.activity.begin();
    hold.close();
    release_later(Arc::clone(hold), activity);
}

/// Has the keeper release a hold that was closed.
pub(crate) fn release_later(hold: Arc<Hold>, activity: ActivityToken) {
    let (engine, activity) = (Arc::clone(&hold.engine), activity.into_background());
    engine.later(async move {
        // A renewal under way lets go of it at once, since the hold is closed.
        if let Some(claim) = hold.take_claim().await {
            Cleanup::of_hold(&hold, claim, activity).carry_out().await;
        }
    });
}

/// The claim of a hold that was closed; `None` when it is gone.
pub(super) async fn claim_of(hold: &Hold) -> Result<Option<Box<dyn DynClaim>>, Failure> {
    if let Some(claim) = hold.try_take_claim() {
        return Ok(claim);
    }
    let limit = hold.request_timeout;
    // A renewal under way lets go of it at once, unless the backend blocks the keeper's thread.
    hold.engine.timers.within(limit, hold.take_claim()).await.ok_or_else(|| {
        Failure::unknown(format!("no end of a renewal within {limit:?}; does the backend block its thread?"))
    })
}

/// Withdraws what was held, or leaves its key taken for as long as `left` says, for a caller who waits for the answer.
///
/// A reply may be lost after the request took effect. So a failure that may pass is asked about again before it counts:
/// `again` is given how often that was done, and returns the pause before the next time. Once it returns `None`, the
/// keeper [repeats](Cleanup) what is left. Returns beside the answer how often it was asked for again.
pub(super) async fn withdraw_awaited(
    hold: &Hold,
    claim: &mut Box<dyn DynClaim>,
    left: impl Fn() -> Duration,
    mut again: impl FnMut(u32) -> Option<Duration>,
) -> (Result<Withdrawal, Failure>, u32) {
    let limits = (hold.request_timeout, hold.lease);
    let mut asked = 0;
    loop {
        let answer = withdraw_once(claim, &hold.engine, limits, left()).await;
        let pause = match &answer {
            Err(failure) if failure.is_transient() => again(asked),
            _ => None,
        };
        let Some(pause) = pause else { return (answer, asked) };
        asked += 1;
        if !pause.is_zero() {
            // Boxed: rare, and else part of every release's future.
            Box::pin(hold.engine.timers.sleep(pause)).await;
        }
    }
}

/// One bounded request to withdraw, which leaves the key taken for what is left of the time that it is to be so. While
/// it waits for its turn it is of use until the lease has ended.
async fn withdraw_once(
    claim: &mut Box<dyn DynClaim>,
    engine: &Engine,
    (limit, lease): (Duration, Duration),
    left: Duration,
) -> Result<Withdrawal, Failure> {
    let bounds = RequestBounds::of(&**claim, engine.of_requests(), limit, lease.max(limit));
    let step = if left.is_zero() { claim.withdraw() } else { claim.leave(left) };
    bounds.answer(step).await.unwrap_or_else(|none| Err(none.into_failure()))
}
