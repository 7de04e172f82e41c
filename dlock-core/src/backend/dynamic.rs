//! The object-safe twins of [`Backend`] and [`Claim`]: authors write plain `async fn`s, users see no type parameter.

use std::any::Any;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::backend::{
    Administration, Announcements, Attempt, Backend, BatchAttempt, Capabilities, Claim, ClaimRequest,
    Finding, Forced, LockId, NodeState, Occupancy, Renewed, RequestClock, ServerAddress, Signal,
    Unadministered, Withdrawal,
};
use crate::clock::Clock;
use crate::error::Failure;
use crate::guarded::{drop_guarded, guard};
use crate::holder::Holder;
use crate::key::Key;
use crate::token::Token;

/// A step of a backend. A step that panics has failed, with an unknown outcome, and ends no task of the engine.
#[must_use]
pub(crate) struct BackendStep<'a, T: FromPanic> {
    name: &'static str,
    future: Option<Pin<Box<dyn Future<Output = T> + Send + 'a>>>,
}

impl<'a, T: FromPanic> BackendStep<'a, T> {
    fn new(name: &'static str, future: impl Future<Output = T> + Send + 'a) -> Self {
        Self { name, future: Some(Box::pin(future)) }
    }
}

impl<T: FromPanic> Future for BackendStep<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let name = self.name;
        let Some(future) = &mut self.future else {
            return Poll::Ready(T::from_panic(name, &"it was polled after its end"));
        };
        let polled = match guard(|| future.as_mut().poll(context)) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(answer)) => answer,
            Err(panic) => T::from_panic(name, &panic),
        };
        // Dropped at once and guarded: the destructor of a future that has panicked may panic too.
        drop_guarded(self.future.take());
        Poll::Ready(polled)
    }
}

impl<T: FromPanic> Drop for BackendStep<'_, T> {
    fn drop(&mut self) {
        drop_guarded(self.future.take());
    }
}

/// The answer of a step.
pub(crate) trait FromPanic {
    /// Returns the answer of a step that panicked.
    fn from_panic(step: &'static str, panic: &dyn fmt::Display) -> Self;
}

impl<T> FromPanic for Result<T, Failure> {
    fn from_panic(step: &'static str, panic: &dyn fmt::Display) -> Self {
        Err(Failure::unknown(format!("the backend panicked in `{step}`: {panic}")))
    }
}

impl FromPanic for () {
    fn from_panic(_: &'static str, _: &dyn fmt::Display) {}
}

pub(crate) trait DynBackend: fmt::Debug + Send + Sync {
    fn name(&self) -> &'static str;
    fn capabilities(&self) -> Capabilities;
    fn server_address(&self) -> Option<ServerAddress>;
    fn clock(&self) -> Clock;
    fn lock_id(&self, key: &Key) -> LockId;
    fn claim(&self, request: ClaimRequest) -> Box<dyn DynClaim>;
    /// Tries for several locks at once. The claims are this backend's own.
    fn attempt_all<'a>(
        &'a self,
        claims: Vec<&'a mut Box<dyn DynClaim>>,
    ) -> BackendStep<'a, Result<BatchAttempt, Failure>>;
    fn inspect<'a>(&'a self, key: &'a Key) -> BackendStep<'a, Result<Option<Holder>, Failure>>;
    fn occupancy<'a>(&'a self, key: &'a Key) -> BackendStep<'a, Result<Occupancy, Failure>>;
    fn announce<'a>(&'a self, key: &'a Key) -> BackendStep<'a, Result<(), Failure>>;
    fn announcements(&self, key: &Key) -> Announcements;
    fn administration(&self) -> Option<&dyn Administration>;
    fn ping(&self) -> BackendStep<'_, Result<(), Failure>>;
    fn diagnose(&self) -> BackendStep<'_, Result<Vec<Finding>, Failure>>;
    fn nodes(&self) -> Vec<NodeState>;
    fn close(&self) -> BackendStep<'_, ()>;
}

impl<B: Backend> DynBackend for B {
    fn name(&self) -> &'static str {
        Backend::name(self)
    }

    fn capabilities(&self) -> Capabilities {
        Backend::capabilities(self)
    }

    fn server_address(&self) -> Option<ServerAddress> {
        Backend::server_address(self)
    }

    fn clock(&self) -> Clock {
        Backend::clock(self)
    }

    fn lock_id(&self, key: &Key) -> LockId {
        Backend::lock_id(self, key)
    }

    fn claim(&self, request: ClaimRequest) -> Box<dyn DynClaim> {
        // Kept outside of the claim, so that it is known also after the claim is gone.
        let token = request.token;
        Box::new(Guarded { claim: Some(Backend::claim(self, request)), token })
    }

    fn attempt_all<'a>(
        &'a self,
        claims: Vec<&'a mut Box<dyn DynClaim>>,
    ) -> BackendStep<'a, Result<BatchAttempt, Failure>> {
        BackendStep::new("attempt_all", async move {
            // A claim that is gone, or not of this type, cannot be part of one step: the batch is taken one by one.
            let claims = claims
                .into_iter()
                .map(|claim| (**claim).as_any().downcast_mut::<Option<B::Claim>>()?.as_mut());
            match claims.collect::<Option<Vec<_>>>() {
                Some(mut claims) => {
                    let mut answer = Backend::attempt_all(self, &mut claims).await;
                    if let Ok(BatchAttempt::Busy { busy, .. }) = &mut answer {
                        busy.holder.iter_mut().for_each(|holder| holder.bound());
                    }
                    answer
                }
                None => Ok(BatchAttempt::Separately),
            }
        })
    }

    fn inspect<'a>(&'a self, key: &'a Key) -> BackendStep<'a, Result<Option<Holder>, Failure>> {
        BackendStep::new("inspect", async move {
            let mut holder = Backend::inspect(self, key).await?;
            holder.iter_mut().for_each(Holder::bound);
            Ok(holder)
        })
    }

    fn occupancy<'a>(&'a self, key: &'a Key) -> BackendStep<'a, Result<Occupancy, Failure>> {
        BackendStep::new("occupancy", async move {
            let mut occupancy = Backend::occupancy(self, key).await?;
            occupancy.holders.iter_mut().for_each(Holder::bound);
            Ok(occupancy)
        })
    }

    fn announce<'a>(&'a self, key: &'a Key) -> BackendStep<'a, Result<(), Failure>> {
        BackendStep::new("announce", async move { Backend::announce(self, key).await })
    }

    fn announcements(&self, key: &Key) -> Announcements {
        guard(|| Backend::announcements(self, key)).unwrap_or(Announcements::none())
    }

    fn administration(&self) -> Option<&dyn Administration> {
        Backend::administration(self)
    }

    fn ping(&self) -> BackendStep<'_, Result<(), Failure>> {
        BackendStep::new("ping", async move { Backend::ping(self).await })
    }

    fn diagnose(&self) -> BackendStep<'_, Result<Vec<Finding>, Failure>> {
        BackendStep::new("diagnose", async move { Backend::diagnose(self).await })
    }

    fn nodes(&self) -> Vec<NodeState> {
        guard(|| Backend::nodes(self)).unwrap_or_default()
    }

    fn close(&self) -> BackendStep<'_, ()> {
        BackendStep::new("close", async move { Backend::close(self).await })
    }
}

/// The requests of operators. The engine and quorums make them by these methods, as steps like all others.
impl dyn DynBackend + '_ {
    pub(crate) fn holders(&self) -> BackendStep<'_, Result<Vec<(Key, Holder)>, Failure>> {
        BackendStep::new("holders", async move {
            let mut holders = self.administration_or_none().holders().await?;
            holders.iter_mut().for_each(|(_, holder)| holder.bound());
            Ok(holders)
        })
    }

    pub(crate) fn waiters(&self, key: Key) -> BackendStep<'_, Result<Vec<Holder>, Failure>> {
        BackendStep::new("waiters", async move {
            let Some(asked) = self.administration_or_none().waiters(key) else {
                return Err(Failure::unsupported("tell who waits for a lock"));
            };
            let mut waiters = asked.await?;
            waiters.iter_mut().for_each(Holder::bound);
            Ok(waiters)
        })
    }

    pub(crate) fn force_release(
        &self,
        key: Key,
        seen: Option<Vec<Holder>>,
    ) -> BackendStep<'_, Result<Forced, Failure>> {
        let force = async move { self.administration_or_none().force_release(key, seen).await };
        BackendStep::new("force_release", force)
    }

    pub(crate) fn resize(&self, key: Key, permits: u32) -> BackendStep<'_, Result<Option<u32>, Failure>> {
        let resize = async move { self.administration_or_none().resize(key, permits).await };
        BackendStep::new("resize", resize)
    }

    fn administration_or_none(&self) -> &dyn Administration {
        self.administration().unwrap_or(&Unadministered)
    }
}

pub(crate) trait DynClaim: Send {
    fn reserve(&mut self, fences: u32);
    fn attempt(&mut self) -> BackendStep<'_, Result<Attempt, Failure>>;
    fn changed(&mut self) -> BackendStep<'_, Result<(), Failure>>;
    fn granted(&mut self, signal: Signal);
    fn renew(&mut self) -> BackendStep<'_, Result<Renewed, Failure>>;
    fn downgrade(&mut self) -> BackendStep<'_, Result<Renewed, Failure>>;
    fn withdraw(&mut self) -> BackendStep<'_, Result<Withdrawal, Failure>>;
    fn leave(&mut self, taken_for: Duration) -> BackendStep<'_, Result<Withdrawal, Failure>>;
    fn request_clock(&self) -> Option<RequestClock>;
    fn is_clean(&self) -> bool;
    /// Returns the mark of the claim.
    fn token(&self) -> Token;
    fn as_any(&mut self) -> &mut dyn Any;
}

/// A claim of a backend, whose destructor may panic like its steps.
struct Guarded<C> {
    claim: Option<C>,
    token: Token,
}

impl<C> Drop for Guarded<C> {
    fn drop(&mut self) {
        drop_guarded(self.claim.take());
    }
}

impl<C: Claim> Guarded<C> {
    /// Returns the claim, which is there until the drop.
    fn claim(&mut self) -> Result<&mut C, Failure> {
        self.claim.as_mut().ok_or_else(|| Failure::unavailable("the claim is gone"))
    }
}

impl<C: Claim> DynClaim for Guarded<C> {
    fn reserve(&mut self, fences: u32) {
        if let Some(claim) = &mut self.claim {
            // If `reserve` panics, the previous number stays in force, or none: the grant has what was reserved.
            let _ = guard(|| Claim::reserve(claim, fences));
        }
    }

    fn attempt(&mut self) -> BackendStep<'_, Result<Attempt, Failure>> {
        BackendStep::new("attempt", async move {
            let mut answer = Claim::attempt(self.claim()?).await;
            if let Ok(Attempt::Busy(busy)) = &mut answer {
                busy.holder.iter_mut().for_each(|holder| holder.bound());
            }
            answer
        })
    }

    fn changed(&mut self) -> BackendStep<'_, Result<(), Failure>> {
        BackendStep::new("changed", async move { Claim::changed(self.claim()?).await })
    }

    fn granted(&mut self, signal: Signal) {
        let Some(claim) = &mut self.claim else { return };
        // Cloned before the call, which takes the signal and may panic with it.
        let ours = signal.clone();
        if guard(|| Claim::granted(claim, signal)).is_err() {
            // The backend may never report trouble now, and some locks are lost by such reports alone. So the lock
            // counts as lost.
            ours.lost("the backend panicked when it was notified of the grant");
        }
    }

    fn renew(&mut self) -> BackendStep<'_, Result<Renewed, Failure>> {
        BackendStep::new("renew", async move { Claim::renew(self.claim()?).await })
    }

    fn downgrade(&mut self) -> BackendStep<'_, Result<Renewed, Failure>> {
        BackendStep::new("downgrade", async move { Claim::downgrade(self.claim()?).await })
    }

    fn withdraw(&mut self) -> BackendStep<'_, Result<Withdrawal, Failure>> {
        BackendStep::new("withdraw", async move { Claim::withdraw(self.claim()?).await })
    }

    fn leave(&mut self, taken_for: Duration) -> BackendStep<'_, Result<Withdrawal, Failure>> {
        BackendStep::new("leave", async move { Claim::leave(self.claim()?, taken_for).await })
    }

    fn request_clock(&self) -> Option<RequestClock> {
        guard(|| self.claim.as_ref().and_then(Claim::request_clock)).unwrap_or_default()
    }

    fn is_clean(&self) -> bool {
        guard(|| self.claim.as_ref().is_some_and(Claim::is_clean)).unwrap_or(false)
    }

    fn token(&self) -> Token {
        self.token
    }

    fn as_any(&mut self) -> &mut dyn Any {
        &mut self.claim
    }
}

/// A backend whose type was erased, as a backend again.
///
/// It is a type of its own: were the box itself a backend, a call on it would find the blanket implementation above
/// first, and box every step twice.
#[derive(Debug)]
pub(crate) struct Erased(pub(crate) Box<dyn DynBackend>);

/// A claim on a lock of a [`Node`](super::Node). A step that panics has failed with an unknown outcome.
pub struct NodeClaim(pub(super) Box<dyn DynClaim>);

#[deny(clippy::missing_trait_methods)]
impl Backend for Erased {
    type Claim = NodeClaim;

    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
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

    fn claim(&self, request: ClaimRequest) -> NodeClaim {
        NodeClaim(self.0.claim(request))
    }

    async fn attempt_all(&self, claims: &mut [&mut NodeClaim]) -> Result<BatchAttempt, Failure> {
        self.0.attempt_all(claims.iter_mut().map(|claim| &mut claim.0).collect()).await
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

#[deny(clippy::missing_trait_methods)]
impl Claim for NodeClaim {
    fn reserve(&mut self, fences: u32) {
        self.0.reserve(fences);
    }

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

    async fn downgrade(&mut self) -> Result<Renewed, Failure> {
        self.0.downgrade().await
    }

    async fn withdraw(&mut self) -> Result<Withdrawal, Failure> {
        self.0.withdraw().await
    }

    async fn leave(&mut self, taken_for: Duration) -> Result<Withdrawal, Failure> {
        self.0.leave(taken_for).await
    }

    fn request_clock(&self) -> Option<RequestClock> {
        self.0.request_clock()
    }

    fn is_clean(&self) -> bool {
        self.0.is_clean()
    }
}

impl fmt::Debug for NodeClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeClaim")
    }
}
