//! Handing a lock over: closing a hold, and leaving its key for whoever brings the baton.
//!
//! ```text
//! Held ── close ──▶ closed, believed by nobody ── leave ──▶ left for the baton ── taken over ──▶ another hold
//!                        │                                    │
//!                        └─ failed or dropped: withdrawn      └─ taken by nobody: its time ends it
//! ```
//!
//! The belief ends before the first request is sent, so that it has ended whenever the key can be taken over. The key
//! is left under [another token](crate::Token::left_behind): nothing that was sent for the hold touches it. The
//! protocol is explored by the model `models/src/baton.rs`.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::backend::Withdrawal;
use crate::backend::dynamic::DynClaim;
use crate::baton::Baton;
use crate::engine::activity::ActivityToken;
use crate::engine::cleanup::{Cleanup, release_later, withdraw_once};
use crate::engine::hold::Hold;
use crate::error::{Error, ErrorKind, Failure, Operation};
use crate::handles::options::{MAX_LEASE, MIN_LEASE};
use crate::handles::requirement::{Requirement, check};
use crate::telemetry::Spanned;

/// Hands `hold` over, and returns the baton. The key stays taken for `at_most`, by default for a lease.
pub(crate) async fn hand_over(hold: &Arc<Hold>, at_most: Option<Duration>) -> Result<Baton, Error> {
    let span = hold.engine.telemetry.release_started(hold.subject());
    let begun = HandingOver::begin(hold, at_most);
    let handed = async {
        let leaving = begun?.leave();
        if hold.engine.serves_here() {
            return hold.engine.awaited(pin!(leaving)).await;
        }
        // On the keeper's thread, for a caller whose runtime does not serve.
        let closed = |failure| Err(hold.error(Operation::HandOver, failure));
        Box::pin(hold.engine.run(leaving)).await.unwrap_or_else(closed)
    };
    let result = handed.in_span(span.clone()).await;
    hold.engine.telemetry.released(&span, result.as_ref().err());
    result
}

/// Refuses what cannot be handed over, before anything is changed.
fn check_hold(hold: &Hold, at_most: Duration) -> Result<(), Failure> {
    let unsupported = |what: &'static str| Err(Failure::new(ErrorKind::Unsupported, what));
    check(&[Requirement::HandOver], &hold.engine.capabilities)?;
    if !hold.mode().is_exclusive() {
        return unsupported("only a lock that is held alone can be handed over, not what is read or permits");
    }
    if hold.fair && !hold.engine.capabilities.fair {
        return unsupported("a fair lock cannot be handed over; leave out `fair` for this key");
    }
    if !(MIN_LEASE..=MAX_LEASE).contains(&at_most) {
        return Err(Failure::invalid_config(format!(
            "a lock is handed over for {at_most:?} at most; use 50 ms to 24 h"
        )));
    }
    Ok(())
}

/// A closed hold whose key is being left. Dropping it has the keeper withdraw what is still the giver's.
struct HandingOver {
    hold: Arc<Hold>,
    at_most: Duration,
    claim: Option<Box<dyn DynClaim>>,
    activity: Option<ActivityToken>,
}

impl HandingOver {
    /// Closes the hold, unless it cannot be handed over: then it stays as it is.
    fn begin(hold: &Arc<Hold>, at_most: Option<Duration>) -> Result<Self, Error> {
        let refuse = |failure| hold.error(Operation::HandOver, failure);
        hold.engine.refuse_in_child().map_err(refuse)?;
        hold.check()?;
        let at_most = at_most.unwrap_or(hold.lease);
        check_hold(hold, at_most).map_err(refuse)?;
        if !hold.has_only_share() {
            let why = "the caller has further guards of it, or bodies or tasks that run under it; hand it over with the \
                       last of them";
            return Err(refuse(Failure::new(ErrorKind::Conflict, why)));
        }
        let activity = hold.engine.registry.activity.begin();
        if !hold.close_to_hand_over() {
            return Err(refuse(Failure::new(ErrorKind::Lost, hold.cause())));
        }
        let at_most = at_most.max(hold.leave_until().since(hold.engine.clock.now()));
        Ok(Self { hold: Arc::clone(hold), at_most, claim: None, activity: Some(activity) })
    }

    async fn leave(mut self) -> Result<Baton, Error> {
        let hold = Arc::clone(&self.hold);
        let limit = hold.request_timeout;
        let fail = |failure| hold.error(Operation::HandOver, failure);
        // A renewal under way lets go of it at once, unless the backend blocks the keeper's thread.
        let claim = match hold.try_take_claim() {
            Some(claim) => claim,
            None => hold.engine.timers.within(limit, hold.take_claim()).await.flatten(),
        };
        let Some(claim) = claim else {
            let why = format!("no end of a renewal within {limit:?}; does the backend block its thread?");
            return Err(fail(Failure::unknown(why)));
        };
        let claim = self.claim.insert(claim);
        let token = claim.token().left_behind();
        let mut asked = 0;
        let (withdrawn, until) = loop {
            let until = SystemTime::now() + self.at_most;
            match withdraw_once(claim, &hold.engine, (limit, hold.lease), self.at_most).await {
                Ok(withdrawn) => break (withdrawn, until),
                // A reply may be lost after the key was left: asked again, it is left anew.
                Err(failure) if failure.is_transient() && asked < hold.rechecks.max(1) => asked += 1,
                Err(failure) => return Err(fail(failure)),
            }
        };
        let Withdrawal { removed, settled, others_waiting } = withdrawn;
        if !removed {
            let cause = "the backend no longer had it under our token";
            return Err(fail(Failure::new(ErrorKind::NotHeld, cause)));
        }
        if let Some(activity) = self.activity.take()
            && !settled
            && let Some(claim) = self.claim.take()
        {
            // What was sent under our token before may still take effect, and is withdrawn; the baton has another.
            Cleanup { retracts: false, ..Cleanup::of_hold(&hold, claim, activity) }.later();
        }
        hold.engine.released(&hold.key, hold.ended_tenure(), others_waiting);
        Ok(Baton::new(hold.engine.name, hold.key.clone(), token, hold.fence, until))
    }
}

impl Drop for HandingOver {
    fn drop(&mut self) {
        let Some(activity) = self.activity.take() else { return };
        // Nobody has the baton: the key does not stay taken.
        match self.claim.take() {
            None => release_later(Arc::clone(&self.hold), activity),
            Some(claim) => Cleanup::of_hold(&self.hold, claim, activity).later(),
        }
    }
}
