//! One backend of several, for backends that are made of others.

use std::fmt;

use super::dynamic::DynBackend;
use super::{
    Announcements, Backend, Capabilities, ClaimRequest, Finding, Forced, LockId, NodeClaim, Occupancy,
};
use crate::clock::Clock;
use crate::error::Failure;
use crate::guarded::guard;
use crate::holder::Holder;
use crate::key::Key;

/// One of the backends of a backend that is made of several, such as `Quorum`: made of any [`Backend`], or of a
/// [`Locks`](crate::Locks) (whose defaults do not matter here).
///
/// It has the steps of [`Backend`] and [`Administration`](super::Administration). A step that panics has failed with an
/// unknown outcome, and what comes from the server is bounded as the engine bounds it.
pub struct Node(NodeBackend);

enum NodeBackend {
    Own(Box<dyn DynBackend>),
    /// Of locks that also close it.
    Lent(Box<dyn LendsBackend>),
}

/// An owner of a backend that lends it.
pub(crate) trait LendsBackend: Send + Sync + 'static {
    fn backend(&self) -> &dyn DynBackend;
}

impl<B: Backend> From<B> for Node {
    fn from(backend: B) -> Self {
        Self::own(Box::new(backend))
    }
}

impl Node {
    pub(crate) fn own(backend: Box<dyn DynBackend>) -> Self {
        Self(NodeBackend::Own(backend))
    }

    pub(crate) fn lent(by: impl LendsBackend) -> Self {
        Self(NodeBackend::Lent(Box::new(by)))
    }

    fn backend(&self) -> &dyn DynBackend {
        match &self.0 {
            NodeBackend::Own(backend) => &**backend,
            NodeBackend::Lent(by) => by.backend(),
        }
    }

    /// Returns [`Backend::name`].
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.backend().name()
    }

    /// Returns [`Backend::capabilities`].
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.backend().capabilities()
    }

    /// Returns [`Backend::clock`].
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.backend().clock()
    }

    /// Returns [`Backend::lock_id`].
    #[must_use]
    pub fn lock_id(&self, key: &Key) -> LockId {
        self.backend().lock_id(key)
    }

    /// Prepares a claim, as [`Backend::claim`] does.
    #[must_use]
    pub fn claim(&self, request: ClaimRequest) -> NodeClaim {
        NodeClaim(self.backend().claim(request))
    }

    /// Asks for the holder, as [`Backend::inspect`] does.
    ///
    /// # Errors
    ///
    /// A [`Failure`] when the backend cannot be asked.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn inspect(&self, key: &Key) -> Result<Option<Holder>, Failure> {
        self.backend().inspect(key).await
    }

    /// Asks for all holders, as [`Backend::occupancy`] does.
    ///
    /// # Errors
    ///
    /// A [`Failure`] when the backend cannot be asked.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn occupancy(&self, key: &Key) -> Result<Occupancy, Failure> {
        self.backend().occupancy(key).await
    }

    /// Announces a change of leader, as [`Backend::announce`] does.
    ///
    /// # Errors
    ///
    /// A [`Failure`] when nothing was announced.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any await.
    pub async fn announce(&self, key: &Key) -> Result<(), Failure> {
        self.backend().announce(key).await
    }

    /// Subscribes to announcements, as [`Backend::announcements`] does.
    pub fn announcements(&self, key: &Key) -> Announcements {
        self.backend().announcements(key)
    }

    /// Returns whether it has an [`Administration`](super::Administration).
    #[must_use]
    pub fn is_administered(&self) -> bool {
        guard(|| self.backend().administration().is_some()).unwrap_or(false)
    }

    /// Lists what is held, as [`Administration::holders`](super::Administration::holders) does.
    ///
    /// # Errors
    ///
    /// A [`Failure`] when the backend cannot list its locks, or cannot be asked.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn holders(&self) -> Result<Vec<(Key, Holder)>, Failure> {
        self.backend().holders().await
    }

    /// Takes a lock away, as [`Administration::force_release`](super::Administration::force_release) does.
    ///
    /// # Errors
    ///
    /// A [`Failure`] when the backend cannot do so, or cannot be asked.
    ///
    /// # Cancel safety
    ///
    /// If dropped midway, the lock may have been taken away.
    pub async fn force_release(&self, key: Key, seen: Option<Vec<Holder>>) -> Result<Forced, Failure> {
        self.backend().force_release(key, seen).await
    }

    /// Asks for a sign of life, as [`Backend::ping`] does.
    ///
    /// # Errors
    ///
    /// A [`Failure`] when the backend cannot be asked.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn ping(&self) -> Result<(), Failure> {
        self.backend().ping().await
    }

    /// Looks for what endangers locks, as [`Backend::diagnose`] does.
    ///
    /// # Errors
    ///
    /// A [`Failure`] when the backend cannot be asked.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn diagnose(&self) -> Result<Vec<Finding>, Failure> {
        self.backend().diagnose().await
    }

    /// Closes the backend, as [`Backend::close`] does, unless it belongs to a [`Locks`](crate::Locks), which closes it.
    ///
    /// # Cancel safety
    ///
    /// If dropped midway, connections may stay open until the backend is dropped.
    pub async fn close(&self) {
        if let NodeBackend::Own(backend) = &self.0 {
            backend.close().await;
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Node").field(&self.backend()).finish()
    }
}
