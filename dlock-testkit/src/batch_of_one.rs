//! Every lock as a batch of one, so that the suite tests [`Backend::attempt_all`] by the rules of an attempt.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{
    Administration, Announcements, Attempt, Backend, BatchAttempt, Capabilities, Claim, ClaimRequest,
    Finding, LockId, NodeState, Occupancy, Renewed, RequestClock, ServerAddress, Signal, Withdrawal,
};
use dlock_core::{Clock, ErrorKind, Failure, Holder, Key};

/// A backend that takes every lock as a batch of one: what it takes in one step has to obey the same rules as a single
/// lock does. Run it through the [suite](crate::conformance) beside the backend itself when that has
/// [`Backend::attempt_all`].
#[derive(Debug)]
pub struct BatchOfOne<B>(Arc<B>, Modes);

/// What is taken in one step.
#[derive(Clone, Copy, Debug)]
enum Modes {
    All,
    Exclusive,
}

impl<B> BatchOfOne<B> {
    /// Creates a backend that takes each lock of `backend` as a batch of one.
    #[must_use]
    pub fn new(backend: B) -> Self {
        Self(Arc::new(backend), Modes::All)
    }

    /// Creates the same of a backend that takes only locks that are held alone, and not waited for in order, in one
    /// step: it has no other ones.
    #[must_use]
    pub fn of_exclusive_locks(backend: B) -> Self {
        Self(Arc::new(backend), Modes::Exclusive)
    }
}

#[deny(clippy::missing_trait_methods)]
impl<B: Backend> Backend for BatchOfOne<B> {
    type Claim = ClaimOfOne<B>;

    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.0.capabilities();
        if matches!(self.1, Modes::Exclusive) {
            (capabilities.shared, capabilities.downgrades, capabilities.permits) = (false, false, false);
            capabilities.fair_on_request = false;
        }
        capabilities
    }

    fn server_address(&self) -> Option<ServerAddress> {
        self.0.server_address()
    }

    fn clock(&self) -> Clock {
        self.0.clock()
    }

    fn lock_id(&self, key: &Key) -> LockId {
        self.0.lock_id(key)
    }

    fn claim(&self, request: ClaimRequest) -> ClaimOfOne<B> {
        let takes_over = request.takes_over.is_some();
        ClaimOfOne { claim: self.0.claim(request), backend: Arc::clone(&self.0), takes_over }
    }

    async fn attempt_all(&self, claims: &mut [&mut ClaimOfOne<B>]) -> Result<BatchAttempt, Failure> {
        let mut claims: Vec<_> = claims.iter_mut().map(|claim| &mut claim.claim).collect();
        self.0.attempt_all(&mut claims).await
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Holder>, Failure> {
        self.0.inspect(key).await
    }

    async fn occupancy(&self, key: &Key) -> Result<Occupancy, Failure> {
        self.0.occupancy(key).await
    }

    async fn announce(&self, key: &Key) -> Result<(), Failure> {
        self.0.announce(key).await
    }

    fn announcements(&self, key: &Key) -> Announcements {
        self.0.announcements(key)
    }

    fn administration(&self) -> Option<&dyn Administration> {
        self.0.administration()
    }

    async fn ping(&self) -> Result<(), Failure> {
        self.0.ping().await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, Failure> {
        self.0.diagnose().await
    }

    fn nodes(&self) -> Vec<NodeState> {
        self.0.nodes()
    }

    async fn close(&self) {
        self.0.close().await;
    }
}

/// A claim of [`BatchOfOne`].
pub struct ClaimOfOne<B: Backend> {
    backend: Arc<B>,
    claim: B::Claim,
    /// It is no part of a batch.
    takes_over: bool,
}

#[deny(clippy::missing_trait_methods)]
impl<B: Backend> Claim for ClaimOfOne<B> {
    fn reserve(&mut self, fences: u32) {
        self.claim.reserve(fences);
    }

    async fn attempt(&mut self) -> Result<Attempt, Failure> {
        if self.takes_over {
            return self.claim.attempt().await;
        }
        match self.backend.attempt_all(&mut [&mut self.claim]).await? {
            BatchAttempt::Granted(grants) => match grants[..] {
                [grant] => Ok(Attempt::Granted(grant)),
                _ => Err(Failure::unknown(format!("{} grants for one lock", grants.len()))),
            },
            BatchAttempt::Busy { place: 0, busy } => Ok(Attempt::Busy(busy)),
            BatchAttempt::Busy { place, .. } => {
                Err(Failure::new(ErrorKind::InvalidConfig, format!("lock {place} of one is busy")))
            }
            BatchAttempt::Separately => {
                Err(Failure::new(ErrorKind::Unsupported, "the backend takes no locks in one step"))
            }
        }
    }

    async fn changed(&mut self) -> Result<(), Failure> {
        self.claim.changed().await
    }

    fn granted(&mut self, signal: Signal) {
        self.claim.granted(signal);
    }

    async fn renew(&mut self) -> Result<Renewed, Failure> {
        self.claim.renew().await
    }

    async fn downgrade(&mut self) -> Result<Renewed, Failure> {
        self.claim.downgrade().await
    }

    async fn withdraw(&mut self) -> Result<Withdrawal, Failure> {
        self.claim.withdraw().await
    }

    async fn leave(&mut self, taken_for: Duration) -> Result<Withdrawal, Failure> {
        self.claim.leave(taken_for).await
    }

    fn request_clock(&self) -> Option<RequestClock> {
        self.claim.request_clock()
    }

    fn is_clean(&self) -> bool {
        self.claim.is_clean()
    }
}

impl<B: Backend> std::fmt::Debug for ClaimOfOne<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClaimOfOne").field("backend", &self.backend).finish_non_exhaustive()
    }
}
