//! A namespace: a prefix before every key.

use std::fmt;

use crate::backend::{
    Attempt, Backend, Capabilities, Claim, ClaimRequest, Renewed, Signal, Together, Withdrawn,
};
use crate::clock::Clock;
use crate::erased::{DynBackend, DynClaim};
use crate::error::Failure;
use crate::holder::Holder;
use crate::key::Key;

const MAX_PREFIX: usize = 128;

/// A backend whose keys all begin with a prefix on the servers, so that several services share one store without sharing
/// locks. Callers, errors and spans see the key without it.
///
/// [`LocksBuilder::with_prefix`](crate::LocksBuilder::with_prefix) is the same for a [`Locks`](crate::Locks).
pub struct Prefixed<B> {
    backend: B,
    prefix: String,
}

impl<B> Prefixed<B> {
    /// `backend` with `prefix` before every key.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) when the prefix is empty, longer than 128 bytes, or has a NUL.
    pub fn new(backend: B, prefix: impl Into<String>) -> Result<Self, Failure> {
        let prefix = prefix.into();
        if prefix.is_empty() || prefix.len() > MAX_PREFIX || prefix.contains('\0') {
            return Err(Failure::invalid_config(format!(
                "the prefix {prefix:?} is not one; use 1 to {MAX_PREFIX} bytes without NUL"
            )));
        }
        Ok(Self { backend, prefix })
    }

    fn key(&self, key: &Key) -> Result<Key, Failure> {
        Key::new([&self.prefix, key.as_str()].concat()).map_err(|_| {
            Failure::invalid_key(format!(
                "with the prefix {:?} the key has more than {} bytes; shorten it",
                self.prefix,
                Key::MAX_LEN
            ))
        })
    }
}

impl<B: Backend> Backend for Prefixed<B> {
    type Claim = PrefixedClaim<B::Claim>;

    fn name(&self) -> &'static str {
        self.backend.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.backend.capabilities()
    }

    fn clock(&self) -> Clock {
        self.backend.clock()
    }

    fn claim(&self, mut request: ClaimRequest) -> Self::Claim {
        PrefixedClaim(match self.key(&request.key) {
            Ok(key) => {
                request.key = key;
                Ok(self.backend.claim(request))
            }
            Err(failure) => Err(failure.message().to_owned()),
        })
    }

    async fn attempt_all(&self, claims: &mut [&mut Self::Claim]) -> Result<Together, Failure> {
        let mut claims = claims.iter_mut().map(|claim| claim.inner()).collect::<Result<Vec<_>, _>>()?;
        self.backend.attempt_all(&mut claims).await
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Holder>, Failure> {
        self.backend.inspect(&self.key(key)?).await
    }

    async fn close(&self) {
        self.backend.close().await;
    }
}

impl<B: fmt::Debug> fmt::Debug for Prefixed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prefixed").field("prefix", &self.prefix).field("backend", &self.backend).finish()
    }
}

/// A claim of [`Prefixed`]; of a key that is too long with the prefix, what is wrong with it.
pub struct PrefixedClaim<C>(Result<C, String>);

impl<C> PrefixedClaim<C> {
    fn inner(&mut self) -> Result<&mut C, Failure> {
        self.0.as_mut().map_err(|why| Failure::invalid_key(why.clone()))
    }
}

impl<C: Claim> Claim for PrefixedClaim<C> {
    async fn attempt(&mut self) -> Result<Attempt, Failure> {
        self.inner()?.attempt().await
    }

    async fn changed(&mut self) -> Result<(), Failure> {
        self.inner()?.changed().await
    }

    fn granted(&mut self, signal: Signal) {
        if let Ok(claim) = &mut self.0 {
            claim.granted(signal);
        }
    }

    async fn renew(&mut self) -> Result<Renewed, Failure> {
        self.inner()?.renew().await
    }

    async fn withdraw(&mut self) -> Result<Withdrawn, Failure> {
        match &mut self.0 {
            Ok(claim) => claim.withdraw().await,
            Err(_) => Ok(Withdrawn::Absent),
        }
    }

    fn is_clean(&self) -> bool {
        self.0.as_ref().map_or(true, Claim::is_clean)
    }
}

impl<C> fmt::Debug for PrefixedClaim<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrefixedClaim").finish_non_exhaustive()
    }
}

/// A backend whose type is not known any more, as one again.
#[derive(Debug)]
pub(crate) struct Erased(pub(crate) Box<dyn DynBackend>);

/// A claim of it.
pub(crate) struct ErasedClaim(Box<dyn DynClaim>);

impl Backend for Erased {
    type Claim = ErasedClaim;

    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn clock(&self) -> Clock {
        self.0.clock()
    }

    fn claim(&self, request: ClaimRequest) -> ErasedClaim {
        ErasedClaim(self.0.claim(request))
    }

    async fn attempt_all(&self, claims: &mut [&mut ErasedClaim]) -> Result<Together, Failure> {
        self.0.attempt_all(claims.iter_mut().map(|claim| &mut claim.0).collect()).await
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Holder>, Failure> {
        self.0.inspect(key).await
    }

    async fn close(&self) {
        self.0.close().await;
    }
}

impl Claim for ErasedClaim {
    async fn attempt(&mut self) -> Result<Attempt, Failure> {
        self.0.attempt().await
    }

    async fn changed(&mut self) -> Result<(), Failure> {
        self.0.changed().await
    }

    fn granted(&mut self, signal: Signal) {
        self.0.granted(signal);
    }

    async fn renew(&mut self) -> Result<Renewed, Failure> {
        self.0.renew().await
    }

    async fn withdraw(&mut self) -> Result<Withdrawn, Failure> {
        self.0.withdraw().await
    }

    fn is_clean(&self) -> bool {
        self.0.is_clean()
    }
}
