//! A claim that is made through a wire.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use dlock_core::backend::{Attempt, ClaimRequest, Renewed, Signal, Withdrawal};
use dlock_core::{Backend, Claim, Failure, keeper};
use tokio::sync::{OwnedMutexGuard, oneshot};

use super::{Inner, Request};

type Answer<T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send>>;

/// A claim of [`Wired`](super::Wired).
pub struct WiredClaim<B: Backend> {
    shared: Arc<Inner<B>>,
    request: ClaimRequest,
    /// Requests queue here in the order they were sent, as on a connection.
    claim: Arc<tokio::sync::Mutex<B::Claim>>,
    /// A request is under way, or its answer was lost.
    unsettled: bool,
}

impl<B: Backend> WiredClaim<B> {
    pub(super) fn new(shared: Arc<Inner<B>>, request: ClaimRequest) -> Self {
        let claim = Arc::new(tokio::sync::Mutex::new(shared.backend.claim(request.clone())));
        Self { shared, request, claim, unsettled: false }
    }

    async fn send<T: Send + 'static>(
        &mut self,
        request: Request,
        serve: impl FnOnce(OwnedMutexGuard<B::Claim>) -> Answer<T> + Send,
    ) -> Result<T, Failure> {
        let wire = &self.shared.wire;
        wire.count(request);
        self.unsettled = true;
        let claim = Arc::clone(&self.claim).lock_owned().await;
        let answer = if wire.0.stalling.load(Ordering::SeqCst) {
            let (tell, told) = oneshot::channel();
            let (way, served) = (wire.clone(), serve(claim));
            keeper::runtime()?.spawn(async move {
                way.without(|state| &state.stalling).await;
                // The sender may be gone.
                let _ = tell.send(served.await);
            });
            told.await.unwrap_or_else(|_| Err(Failure::unknown("the wire was torn down")))
        } else {
            wire.there().await?;
            serve(claim).await
        };
        let answer = wire.back(answer)?;
        self.unsettled = false;
        Ok(answer)
    }
}

impl<B: Backend> Claim for WiredClaim<B> {
    async fn attempt(&mut self) -> Result<Attempt, Failure> {
        let answer =
            self.send(Request::Attempt, |mut claim| Box::pin(async move { claim.attempt().await })).await?;
        if let Attempt::Granted(_) = answer {
            let mut granted = self.shared.granted.lock().unwrap_or_else(PoisonError::into_inner);
            granted.insert(self.request.key.clone(), self.request.clone());
        }
        Ok(answer)
    }

    async fn changed(&mut self) -> Result<(), Failure> {
        self.shared.wire.without(|state| &state.deaf).await;
        let mut claim = Arc::clone(&self.claim).lock_owned().await;
        claim.changed().await
    }

    fn granted(&mut self, signal: Signal) {
        if let Ok(mut claim) = self.claim.try_lock() {
            claim.granted(signal);
        }
    }

    async fn renew(&mut self) -> Result<Renewed, Failure> {
        self.send(Request::Renew, |mut claim| Box::pin(async move { claim.renew().await })).await
    }

    async fn withdraw(&mut self) -> Result<Withdrawal, Failure> {
        self.send(Request::Withdraw, |mut claim| Box::pin(async move { claim.withdraw().await })).await
    }

    fn is_clean(&self) -> bool {
        !self.unsettled && self.claim.try_lock().is_ok_and(|claim| claim.is_clean())
    }
}

impl<B: Backend> fmt::Debug for WiredClaim<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WiredClaim").field("key", &self.request.key).finish_non_exhaustive()
    }
}
