//! The object-safe twins of [`Backend`] and [`Claim`]: authors write plain `async fn`s, users see no type parameter.

use std::any::Any;
use std::fmt;
use std::pin::Pin;

use crate::backend::{
    Attempt, Backend, BatchAttempt, Capabilities, Claim, ClaimRequest, Renewed, Signal, Withdrawal,
};
use crate::clock::Clock;
use crate::error::Failure;
use crate::holder::Holder;
use crate::key::Key;

type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

pub(crate) trait DynBackend: fmt::Debug + Send + Sync {
    fn name(&self) -> &'static str;
    fn capabilities(&self) -> Capabilities;
    fn clock(&self) -> Clock;
    fn claim(&self, request: ClaimRequest) -> Box<dyn DynClaim>;
    /// The claims are this backend's own.
    fn attempt_all<'a>(
        &'a self,
        claims: Vec<&'a mut Box<dyn DynClaim>>,
    ) -> Answer<'a, Result<BatchAttempt, Failure>>;
    fn inspect<'a>(&'a self, key: &'a Key) -> Answer<'a, Result<Option<Holder>, Failure>>;
    fn holders(&self) -> Answer<'_, Result<Vec<(Key, Holder)>, Failure>>;
    fn waiters<'a>(&'a self, key: &'a Key) -> Answer<'a, Result<Vec<Holder>, Failure>>;
    fn force_release<'a>(&'a self, key: &'a Key) -> Answer<'a, Result<bool, Failure>>;
    fn close(&self) -> Answer<'_, ()>;
}

impl<B: Backend> DynBackend for B {
    fn name(&self) -> &'static str {
        Backend::name(self)
    }

    fn capabilities(&self) -> Capabilities {
        Backend::capabilities(self)
    }

    fn clock(&self) -> Clock {
        Backend::clock(self)
    }

    fn claim(&self, request: ClaimRequest) -> Box<dyn DynClaim> {
        Box::new(Backend::claim(self, request))
    }

    fn attempt_all<'a>(
        &'a self,
        claims: Vec<&'a mut Box<dyn DynClaim>>,
    ) -> Answer<'a, Result<BatchAttempt, Failure>> {
        Box::pin(async move {
            let claims = claims.into_iter().map(|claim| (**claim).as_any().downcast_mut::<B::Claim>());
            match claims.collect::<Option<Vec<_>>>() {
                Some(mut claims) => Backend::attempt_all(self, &mut claims).await,
                None => Ok(BatchAttempt::Separately),
            }
        })
    }

    fn inspect<'a>(&'a self, key: &'a Key) -> Answer<'a, Result<Option<Holder>, Failure>> {
        Box::pin(Backend::inspect(self, key))
    }

    fn holders(&self) -> Answer<'_, Result<Vec<(Key, Holder)>, Failure>> {
        Box::pin(Backend::holders(self))
    }

    fn waiters<'a>(&'a self, key: &'a Key) -> Answer<'a, Result<Vec<Holder>, Failure>> {
        Box::pin(Backend::waiters(self, key))
    }

    fn force_release<'a>(&'a self, key: &'a Key) -> Answer<'a, Result<bool, Failure>> {
        Box::pin(Backend::force_release(self, key))
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(Backend::close(self))
    }
}

pub(crate) trait DynClaim: Send {
    fn attempt(&mut self) -> Answer<'_, Result<Attempt, Failure>>;
    fn changed(&mut self) -> Answer<'_, Result<(), Failure>>;
    fn granted(&mut self, signal: Signal);
    fn renew(&mut self) -> Answer<'_, Result<Renewed, Failure>>;
    fn withdraw(&mut self) -> Answer<'_, Result<Withdrawal, Failure>>;
    fn is_clean(&self) -> bool;
    fn as_any(&mut self) -> &mut dyn Any;
}

impl<C: Claim> DynClaim for C {
    fn attempt(&mut self) -> Answer<'_, Result<Attempt, Failure>> {
        Box::pin(Claim::attempt(self))
    }

    fn changed(&mut self) -> Answer<'_, Result<(), Failure>> {
        Box::pin(Claim::changed(self))
    }

    fn granted(&mut self, signal: Signal) {
        Claim::granted(self, signal);
    }

    fn renew(&mut self) -> Answer<'_, Result<Renewed, Failure>> {
        Box::pin(Claim::renew(self))
    }

    fn withdraw(&mut self) -> Answer<'_, Result<Withdrawal, Failure>> {
        Box::pin(Claim::withdraw(self))
    }

    fn is_clean(&self) -> bool {
        Claim::is_clean(self)
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}
