//! What is to be locked, and a claim on it that is being made.

use std::sync::Arc;

use crate::backend::dynamic::DynClaim;
use crate::backend::{ClaimRequest, RequestClock};
use crate::engine::Engine;
use crate::engine::activity::ActivityToken;
use crate::engine::cleanup::Cleanup;
use crate::engine::keeper::Job;
use crate::error::{Error, Failure, Operation};
use crate::guarded::guard;
use crate::handles::options::Options;
use crate::key::Key;
use crate::telemetry::{Site, Subject, Trace};

/// One lock that is wanted: where, which, how, and from which place in the program.
#[derive(Clone)]
pub(crate) struct Spec {
    pub(crate) engine: Arc<Engine>,
    pub(crate) key: Key,
    pub(crate) site: Site,
    pub(crate) options: Options,
}

impl Spec {
    /// What is told of it is told about this.
    pub(crate) const fn subject(&self) -> Subject<'_> {
        Subject { key: &self.key, site: self.site }
    }

    pub(crate) fn error(&self, operation: Operation, failure: Failure) -> Error {
        self.engine.error(operation, failure).of(&self.key)
    }

    /// Prepares a claim under a new token.
    pub(crate) fn claim(&self) -> Result<Box<dyn DynClaim>, Failure> {
        let engine = &self.engine;
        engine.refuse_in_child()?;
        let request = ClaimRequest::new(
            self.key.clone(),
            engine.entropy.token()?,
            &self.options,
            Arc::clone(&engine.identity),
            engine.telemetry.votes(),
        );
        let panicked = |panic| Failure::unavailable(format!("the backend panicked in `claim`: {panic}"));
        guard(|| engine.backend.claim(request)).map_err(panicked)
    }
}

/// A claim that is being made. Dropping it, at whatever await, has the keeper withdraw what may be on the server.
pub(crate) struct Pending<'a> {
    pub(crate) spec: &'a Spec,
    pub(crate) claim: Option<Box<dyn DynClaim>>,
    written: Option<RequestClock>,
    /// An attempt is under way, or the outcome of one was never found out.
    pub(crate) unsettled: bool,
    activity: Option<ActivityToken>,
}

impl<'a> Pending<'a> {
    pub(crate) fn new(spec: &'a Spec) -> Result<Self, Failure> {
        let activity = Some(spec.engine.registry.activity.begin());
        let claim = spec.claim()?;
        let written = claim.request_clock();
        Ok(Self { spec, claim: Some(claim), written, unsettled: false, activity })
    }

    /// An attempt begins. Returns what tells of its way to the wire, if anything does.
    pub(super) fn begin_request(&self) -> Option<RequestClock> {
        let written = self.written.clone();
        written.inspect(RequestClock::begin)
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        let engine = &self.spec.engine;
        if let Some(claim) = self.claim.take()
            && (self.unsettled || !claim.is_clean())
            && let Some(activity) = self.activity.take()
        {
            engine.later(Job::Withdraw(Cleanup {
                engine: Arc::clone(engine),
                key: self.spec.key.clone(),
                site: self.spec.site,
                claim,
                lease: self.spec.options.lease,
                request_timeout: self.spec.options.request_timeout(),
                activity,
                trace: Trace::default(),
            }));
        }
    }
}
