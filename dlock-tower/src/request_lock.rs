//! The locks that a request can run under.

use std::future::Future;

use dlock_core::{Batch, Held, Lock, Result, Semaphore};

/// A lock of any kind, with its options, as a [`LockLayer`](crate::LockLayer) takes it for a request.
///
/// It is made from a [`Lock`] in any of its modes, a [`Semaphore`] or a [`Batch`].
#[derive(Clone, Debug)]
#[must_use = "it is only taken by a layer"]
pub struct RequestLock(Kind);

#[derive(Clone, Debug)]
enum Kind {
    One(Lock),
    Permits(Semaphore),
    All(Batch),
}

impl From<Lock> for RequestLock {
    fn from(lock: Lock) -> Self {
        Self(Kind::One(lock))
    }
}

impl From<Semaphore> for RequestLock {
    fn from(semaphore: Semaphore) -> Self {
        Self(Kind::Permits(semaphore))
    }
}

impl From<Batch> for RequestLock {
    fn from(batch: Batch) -> Self {
        Self(Kind::All(batch))
    }
}

impl RequestLock {
    pub(crate) async fn run_with<F: Future>(&self, body: impl FnOnce(Held) -> F) -> Result<F::Output> {
        match &self.0 {
            Kind::One(lock) => lock.run_with(body).await,
            Kind::Permits(semaphore) => semaphore.run_with(body).await,
            Kind::All(batch) => batch.run_with(body).await,
        }
    }
}
