//! A claim that is being made.

use std::sync::Arc;

use crate::backend::dynamic::DynClaim;
use crate::backend::{InFlight, RequestClock};
use crate::clock::Timestamp;
use crate::engine::Spec;
use crate::engine::activity::ActivityToken;
use crate::engine::cleanup::Cleanup;
use crate::engine::left::LeftClaim;
use crate::error::{ErrorKind, Failure};
use crate::telemetry::Trace;

/// A claim that is being made. Dropping it, at whatever await, has the keeper withdraw what may be on the server.
pub(super) struct Pending<'a> {
    pub(super) spec: &'a Spec,
    pub(crate) claim: Option<Box<dyn DynClaim>>,
    written: Option<RequestClock>,
    pub(super) in_flight: InFlight<()>,
    activity: Option<ActivityToken>,
}

impl<'a> Pending<'a> {
    pub(crate) fn new(spec: &'a Spec) -> Result<Self, Failure> {
        // Counted before the claim is made: a shutdown waits for every claim that may reach a server.
        let activity = Some(spec.engine.registry.activity.begin());
        let claim = spec.claim()?;
        let written = claim.request_clock();
        Ok(Self { spec, claim: Some(claim), written, in_flight: InFlight::default(), activity })
    }

    /// Is `true` if something of it may be on the server: a lock that an attempt took, or an entry that keeps others
    /// out.
    pub(super) fn leaves_something(&self) -> bool {
        self.claim.as_ref().is_some_and(|claim| self.in_flight.may_arrive() || !claim.is_clean())
    }

    /// Notes that an attempt begins. Returns the clock that reports its way to the wire, if there is one.
    pub(super) fn begin_request(&self) -> Option<RequestClock> {
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
                lease: self.spec.options.lease,
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
