//! A claim that is made through a wire.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dlock_core::backend::{
    Attempt, BatchAttempt, ClaimRequest, InFlight, Renewed, RequestClock, Signal, Withdrawal,
};
use dlock_core::{Backend, Claim, Failure};
use tokio::sync::OwnedMutexGuard;

use super::{WireFuture, WireRequest, WireState, WiredShared, strike};

/// A claim of [`Wired`](super::Wired).
pub struct WiredClaim<B: Backend> {
    shared: Arc<WiredShared<B>>,
    request: ClaimRequest,
    /// Requests queue here in the order they were sent, as on a connection.
    claim: Arc<tokio::sync::Mutex<B::Claim>>,
    in_flight: InFlight<()>,
}

impl<B: Backend> WiredClaim<B> {
    pub(super) fn new(shared: Arc<WiredShared<B>>, request: ClaimRequest) -> Self {
        let claim = Arc::new(tokio::sync::Mutex::new(shared.backend.claim(request.clone())));
        Self { shared, request, claim, in_flight: InFlight::default() }
    }

    fn note_granted(&self) {
        let mut granted = self.shared.granted.lock();
        granted.insert(self.request.key.clone(), self.request.clone());
    }

    async fn send<T: Send + 'static>(
        &mut self,
        request: WireRequest,
        serve: impl FnOnce(OwnedMutexGuard<B::Claim>) -> WireFuture<T> + Send,
    ) -> Result<T, Failure> {
        self.shared.wire.count(request);
        self.in_flight.begin(());
        let claim = Arc::clone(&self.claim).lock_owned().await;
        let answer = self.shared.wire.carry(serve(claim)).await;
        self.shared.wire.count_returned(request);
        let answer = answer?;
        self.in_flight.clear();
        Ok(answer)
    }
}

/// Tries for all of these in one request.
pub(super) async fn attempt_all<B: Backend>(
    shared: &Arc<WiredShared<B>>,
    claims: &mut [&mut WiredClaim<B>],
) -> Result<BatchAttempt, Failure> {
    shared.wire.count(WireRequest::Attempt);
    let mut locked = Vec::with_capacity(claims.len());
    for claim in claims.iter_mut() {
        claim.in_flight.begin(());
        locked.push(Arc::clone(&claim.claim).lock_owned().await);
    }
    let store = Arc::clone(shared);
    let served = Box::pin(async move {
        let mut claims: Vec<&mut B::Claim> = locked.iter_mut().map(|claim| &mut **claim).collect();
        store.backend.attempt_all(&mut claims).await
    });
    let answer = shared.wire.carry(served).await;
    shared.wire.count_returned(WireRequest::Attempt);
    let answer = answer?;
    let granted = matches!(answer, BatchAttempt::Granted(_));
    for claim in claims.iter_mut() {
        if granted {
            claim.in_flight.clear();
            claim.note_granted();
        } else {
            // What an earlier request took may still be there.
            claim.in_flight.took_nothing(&());
        }
    }
    Ok(answer)
}

#[deny(clippy::missing_trait_methods)]
impl<B: Backend> Claim for WiredClaim<B> {
    fn reserve(&mut self, fences: u32) {
        if let Ok(mut claim) = self.claim.try_lock() {
            claim.reserve(fences);
        }
    }

    async fn attempt(&mut self) -> Result<Attempt, Failure> {
        let answer = self
            .send(WireRequest::Attempt, |mut claim| Box::pin(async move { claim.attempt().await }))
            .await?;
        if let Attempt::Granted(_) = answer {
            self.note_granted();
        }
        Ok(answer)
    }

    async fn changed(&mut self) -> Result<(), Failure> {
        let wire = &self.shared.wire;
        if wire.0.panicking_changes.load(Ordering::SeqCst) {
            strike();
        }
        wire.without(|state| &state.deaf).await;
        let mut claim = Arc::clone(&self.claim).lock_owned().await;
        claim.changed().await
    }

    fn granted(&mut self, signal: Signal) {
        if let Ok(mut claim) = self.claim.try_lock() {
            claim.granted(signal);
        }
    }

    async fn renew(&mut self) -> Result<Renewed, Failure> {
        self.send(WireRequest::Renew, |mut claim| Box::pin(async move { claim.renew().await })).await
    }

    async fn downgrade(&mut self) -> Result<Renewed, Failure> {
        self.send(WireRequest::Downgrade, |mut claim| Box::pin(async move { claim.downgrade().await })).await
    }

    async fn withdraw(&mut self) -> Result<Withdrawal, Failure> {
        self.shared.wire.without(|state| &state.keeping).await;
        self.send(WireRequest::Withdraw, |mut claim| Box::pin(async move { claim.withdraw().await })).await
    }

    async fn leave(&mut self, taken_for: Duration) -> Result<Withdrawal, Failure> {
        self.shared.wire.without(|state| &state.keeping).await;
        let request = WireRequest::Withdraw;
        self.send(request, move |mut claim| Box::pin(async move { claim.leave(taken_for).await })).await
    }

    fn request_clock(&self) -> Option<RequestClock> {
        let WireState { hanging, stalling, .. } = &*self.shared.wire.0;
        if hanging.load(Ordering::SeqCst) || stalling.load(Ordering::SeqCst) {
            // What is kept on the wire was sent, whatever the backend, which it has not reached, knows of it.
            return None;
        }
        self.claim.try_lock().ok().and_then(|claim| claim.request_clock())
    }

    fn is_clean(&self) -> bool {
        self.in_flight.is_empty() && self.claim.try_lock().is_ok_and(|claim| claim.is_clean())
    }
}

impl<B: Backend> fmt::Debug for WiredClaim<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WiredClaim").field("key", &self.request.key).finish_non_exhaustive()
    }
}
