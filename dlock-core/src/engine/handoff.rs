//! Passing a lock on inside this process: from a section that ends to the first in line here, without a request.
//!
//! The claim goes from hand to hand, with its token and its deadline. Each section has a hold of its own, with the next
//! of the fences that were reserved when the lock was granted; when these are used up, or the time of the tenure is
//! over, the lock is released. What was passed on and not taken, whatever the reason, goes to the next in line, or is
//! released by the keeper.
//!
//! ```text
//! hand_off ──▶ offered to the first waiter ── take ──▶ the hold of the next section
//!    │                     └── it leaves ──▶ offered to the next one; if none takes it: dropped, withdrawn
//!    └── it is not taken ──▶ NotHandedOff: the release goes on
//! ```

use std::any::Any;
use std::sync::Arc;

use crate::backend::dynamic::DynClaim;
use crate::engine::Spec;
use crate::engine::activity::ActivityToken;
use crate::engine::cleanup::Cleanup;
use crate::engine::hold::Hold;

/// A lock on its way from one section to the next.
pub(super) struct Handoff {
    /// The hold of the section before, which is closed.
    before: Arc<Hold>,
    claim: Option<Box<dyn DynClaim>>,
    activity: Option<ActivityToken>,
}

impl Handoff {
    /// Takes a lock that was handed to a waiter of this process out of its box.
    pub(super) fn of(offer: Box<dyn Any + Send>) -> Option<Self> {
        offer.downcast().ok().map(|handoff| *handoff)
    }

    /// Returns the hold of the section before.
    pub(super) const fn before(&self) -> &Arc<Hold> {
        &self.before
    }

    /// Makes a hold of it, for `spec`; not yet listed with the keeper. The token that is returned beside it is dropped
    /// once it is listed, so that a shutdown finds the lock in the one place or the other.
    pub(super) fn take(mut self, spec: &Spec) -> Option<(Arc<Hold>, Option<ActivityToken>)> {
        let fences = self.before.next_fences()?;
        // Without the claim, the drop of `self` leaves nothing to the keeper.
        let claim = self.claim.take()?;
        Some((Hold::after(&self.before, spec, claim, fences), self.activity.take()))
    }
}

impl Drop for Handoff {
    fn drop(&mut self) {
        if let (Some(claim), Some(activity)) = (self.claim.take(), self.activity.take()) {
            Cleanup::of_hold(&self.before, claim, activity).later();
        }
    }
}

/// A closed hold that was not passed on: to be released.
pub(crate) struct NotHandedOff {
    /// `None` where the hold still has it, or a renewal.
    pub(crate) claim: Option<Box<dyn DynClaim>>,
    pub(crate) activity: ActivityToken,
}

/// Passes a hold that was sound until it was closed, and has a fence for the section that follows, to the first waiter
/// of this process, if that can be.
pub(crate) fn hand_off(hold: &Arc<Hold>, activity: ActivityToken) -> Result<(), NotHandedOff> {
    let engine = &hold.engine;
    let registry = &engine.registry;
    let now = engine.clock.now();
    // A waiter here may not acquire any more, or the lock must go by the servers.
    if registry.refuses() || !hold.may_be_passed_on(now) {
        return Err(NotHandedOff { claim: None, activity });
    }
    // A renewal under way still has the claim, and is not waited for by a release that may be a drop.
    let Some(Some(claim)) = hold.try_take_claim() else { return Err(NotHandedOff { claim: None, activity }) };
    let handoff = Handoff { before: Arc::clone(hold), claim: Some(claim), activity: Some(activity) };
    // The handoff goes in whole: a waiter that leaves without taking it passes it to the next one, or drops it, which
    // has the lock released.
    match engine.wait_queue.hand_off(&hold.key, hold.lease(), Box::new(handoff)) {
        Ok(()) => Ok(()),
        // The first waiter does not take it: it asks by itself at this moment, or wants another lease.
        Err(offer) => match Handoff::of(offer) {
            Some(mut handoff) => match (handoff.claim.take(), handoff.activity.take()) {
                (claim, Some(activity)) => Err(NotHandedOff { claim, activity }),
                _ => Ok(()),
            },
            None => Ok(()),
        },
    }
}
