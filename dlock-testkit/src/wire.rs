//! Faults between the engine and any backend.
//!
//! [`Wired`] wraps a backend; its [`Wire`] is what the test pulls at. Faults apply to one process' way to the store,
//! not to the store, so that a holder can be cut off while another process goes on. They are made above the backend's
//! own connections, which need faults of their own in the backend's tests.

mod claim;

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use dlock_core::backend::{
    Administration, Announcements, Attempt, BatchAttempt, BoxedFuture, ClaimRequest, Finding, Forced, LockId,
    Mutex, NodeState, Occupancy, ServerAddress, Unadministered, boxed,
};
use dlock_core::{Backend, Capabilities, Claim, Clock, Failure, Holder, Key, keeper};
use futures_util::StreamExt;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};

pub use claim::WiredClaim;

/// One process' way to the store. Clones are the same wire.
#[derive(Clone, Debug, Default)]
pub struct Wire(Arc<WireState>);

#[derive(Debug, Default)]
struct WireState {
    cut: AtomicBool,
    hanging: AtomicBool,
    stalling: AtomicBool,
    deaf: AtomicBool,
    one_by_one: AtomicBool,
    keeping: AtomicBool,
    keeping_answers: AtomicBool,
    lost_replies: AtomicUsize,
    lost_requests: AtomicUsize,
    panicking_replies: AtomicUsize,
    panicking_changes: AtomicBool,
    kept_answers: AtomicUsize,
    mended: Notify,
    /// Where stalled requests wait, if not on dlock's own runtime.
    stalls_on: OnceLock<Handle>,
    attempts: AtomicU64,
    returned_attempts: AtomicU64,
    renewals: AtomicU64,
    downgrades: AtomicU64,
    withdrawals: AtomicU64,
    inspections: AtomicU64,
}

/// An answer on its way back, counted while it is there.
struct KeptAnswer<'a>(&'a AtomicUsize);

impl<'a> KeptAnswer<'a> {
    fn new(state: &'a WireState) -> Self {
        state.kept_answers.fetch_add(1, Ordering::SeqCst);
        Self(&state.kept_answers)
    }
}

impl Drop for KeptAnswer<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

type WireFuture<T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send>>;

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WireRequest {
    Attempt,
    Renew,
    Downgrade,
    Withdraw,
    Inspect,
}

impl Wire {
    /// Lets nothing through from now on. The sender sees a failure that certainly changed nothing.
    pub fn cut(&self) {
        self.0.cut.store(true, Ordering::SeqCst);
    }

    /// Leaves requests without an answer from now on. They are carried out once this is mended, unless their sender has
    /// been dropped.
    pub fn hang(&self) {
        self.0.hanging.store(true, Ordering::SeqCst);
    }

    /// Holds requests back on their way to the store from now on. They arrive once this is mended, in their order, also
    /// when their sender was dropped long before.
    pub fn stall(&self) {
        self.0.stalling.store(true, Ordering::SeqCst);
    }

    /// Keeps stalled requests on `runtime`, so that they arrive in its time.
    pub(crate) fn stalls_on(&self, runtime: Handle) {
        let _ = self.0.stalls_on.set(runtime);
    }

    /// Loses notifications of changes from now on.
    pub fn deafen(&self) {
        self.0.deaf.store(true, Ordering::SeqCst);
    }

    /// Keeps withdrawals and releases by force at the sender until this is mended; everything else goes on.
    pub fn keep_withdrawals(&self) {
        self.0.keeping.store(true, Ordering::SeqCst);
    }

    /// Keeps answers on their way back until this is mended. What is sent is carried out.
    pub fn keep_answers(&self) {
        self.0.keeping_answers.store(true, Ordering::SeqCst);
    }

    /// Returns how many answers are [kept](Self::keep_answers) now.
    #[must_use]
    pub fn kept_answers(&self) -> usize {
        self.0.kept_answers.load(Ordering::SeqCst)
    }

    /// Refuses, from now on and for good, to take several locks in one step.
    pub fn take_one_by_one(&self) {
        self.0.one_by_one.store(true, Ordering::SeqCst);
    }

    /// Loses the replies of the next `count` requests, which are carried out.
    pub fn lose_replies(&self, count: usize) {
        self.0.lost_replies.store(count, Ordering::SeqCst);
    }

    /// Loses the next `count` requests on their way, without the sender knowing.
    pub fn lose_requests(&self, count: usize) {
        self.0.lost_requests.store(count, Ordering::SeqCst);
    }

    /// Panics in the backend when it gets the replies of the next `count` requests, which are carried out.
    pub fn panic_replies(&self, count: usize) {
        self.0.panicking_replies.store(count, Ordering::SeqCst);
    }

    /// Panics in the backend, from now on, when it is to wait for a change.
    pub fn panic_changes(&self) {
        self.0.panicking_changes.store(true, Ordering::SeqCst);
    }

    /// Ends every fault. What hung or was stalled goes on.
    pub fn mend(&self) {
        let state = &self.0;
        let flags = [&state.cut, &state.hanging, &state.stalling, &state.deaf, &state.keeping];
        for flag in flags.into_iter().chain([&state.keeping_answers, &state.panicking_changes]) {
            flag.store(false, Ordering::SeqCst);
        }
        state.lost_replies.store(0, Ordering::SeqCst);
        state.lost_requests.store(0, Ordering::SeqCst);
        state.panicking_replies.store(0, Ordering::SeqCst);
        state.mended.notify_waiters();
    }

    /// Returns how many attempts were made to send.
    #[must_use]
    pub fn attempts(&self) -> u64 {
        self.0.attempts.load(Ordering::SeqCst)
    }

    /// Returns how many attempts have not come back to their sender, with an answer or a failure: they are under way,
    /// or their sender was dropped before.
    #[must_use]
    pub fn unanswered_attempts(&self) -> u64 {
        // In this order, so that one that comes back meanwhile is not counted below zero.
        let returned = self.0.returned_attempts.load(Ordering::SeqCst);
        self.attempts() - returned
    }

    /// Returns how many renewals were sent.
    #[must_use]
    pub fn renewals(&self) -> u64 {
        self.0.renewals.load(Ordering::SeqCst)
    }

    /// Returns how many times a lock that is held alone was to become a reader's.
    #[must_use]
    pub fn downgrades(&self) -> u64 {
        self.0.downgrades.load(Ordering::SeqCst)
    }

    /// Returns how many withdrawals were sent.
    #[must_use]
    pub fn withdrawals(&self) -> u64 {
        self.0.withdrawals.load(Ordering::SeqCst)
    }

    /// Returns how many requests were sent in all.
    #[must_use]
    pub fn requests(&self) -> u64 {
        let other = self.downgrades() + self.0.inspections.load(Ordering::SeqCst);
        self.attempts() + self.renewals() + self.withdrawals() + other
    }

    fn count(&self, request: WireRequest) {
        let counter = match request {
            WireRequest::Attempt => &self.0.attempts,
            WireRequest::Renew => &self.0.renewals,
            WireRequest::Downgrade => &self.0.downgrades,
            WireRequest::Withdraw => &self.0.withdrawals,
            WireRequest::Inspect => &self.0.inspections,
        };
        counter.fetch_add(1, Ordering::SeqCst);
    }

    fn count_returned(&self, request: WireRequest) {
        if request == WireRequest::Attempt {
            self.0.returned_attempts.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Resolves while `fault` is not on.
    async fn without(&self, fault: impl Fn(&WireState) -> &AtomicBool + Send) {
        loop {
            let mended = self.0.mended.notified();
            if !fault(&self.0).load(Ordering::SeqCst) {
                return;
            }
            mended.await;
        }
    }

    /// Carries one request there and its answer back. One that is stalled is carried out also when its sender has gone.
    async fn carry<T: Send + 'static>(&self, served: WireFuture<T>) -> Result<T, Failure> {
        let answer = if self.0.stalling.load(Ordering::SeqCst) {
            let (tell, told) = oneshot::channel();
            let wire = self.clone();
            let runtime = match self.0.stalls_on.get() {
                Some(runtime) => runtime.clone(),
                None => keeper::runtime()?.clone(),
            };
            runtime.spawn(async move {
                wire.without(|state| &state.stalling).await;
                // The sender may be gone.
                let _ = tell.send(served.await);
            });
            told.await.unwrap_or_else(|_| Err(Failure::unknown("the wire was torn down")))
        } else {
            self.there().await?;
            served.await
        };
        let kept = KeptAnswer::new(&self.0);
        self.without(|state| &state.keeping_answers).await;
        drop(kept);
        self.back(answer)
    }

    /// The way there.
    async fn there(&self) -> Result<(), Failure> {
        self.without(|state| &state.hanging).await;
        if self.0.cut.load(Ordering::SeqCst) {
            return Err(Failure::unavailable("the wire is cut"));
        }
        if take_one(&self.0.lost_requests) {
            return Err(Failure::unknown("the request was lost on the wire"));
        }
        Ok(())
    }

    /// The way back.
    fn back<T>(&self, answer: Result<T, Failure>) -> Result<T, Failure> {
        if take_one(&self.0.panicking_replies) {
            strike();
        }
        if take_one(&self.0.lost_replies) {
            return Err(Failure::unknown("the reply was lost on the wire"));
        }
        answer
    }
}

/// Panics without a word on the standard error.
fn strike() -> ! {
    std::panic::resume_unwind(Box::new("the wire panics, as it was asked to"))
}

fn take_one(count: &AtomicUsize) -> bool {
    count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok()
}

/// A backend with a [`Wire`] before it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
/// use dlock_core::{ErrorKind, Locks, Memory};
/// use dlock_testkit::wire::{Wire, Wired};
///
/// let wire = Wire::default();
/// let locks = Locks::new(Wired::new(Memory::new(), wire.clone()));
/// wire.cut();
/// let error = locks.lock("room_7").try_acquire().await.unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Unavailable);
/// wire.mend();
/// assert!(locks.lock("room_7").try_acquire().await?.is_some());
/// # Ok(()) }
/// ```
pub struct Wired<B: Backend>(Arc<WiredShared<B>>);

struct WiredShared<B> {
    backend: B,
    wire: Wire,
    /// What was granted last, by key.
    granted: Mutex<HashMap<Key, ClaimRequest>>,
}

impl<B: Backend> Wired<B> {
    /// Creates a backend that reaches `backend` through `wire`.
    #[must_use]
    pub fn new(backend: B, wire: Wire) -> Self {
        Self(Arc::new(WiredShared { backend, wire, granted: Mutex::default() }))
    }

    /// Deletes the lock that was granted here for `key` last behind its holder's back, as an administrator would, past
    /// all faults. Whether it was there.
    ///
    /// It does so by a second claim under the same token.
    ///
    /// # Errors
    ///
    /// Those of the backend.
    ///
    /// # Cancel safety
    ///
    /// When dropped midway, the lock may be deleted or not.
    pub async fn delete(&self, key: &str) -> Result<bool, Failure> {
        let Some(mut twin) = self.adopt(key).await? else { return Ok(false) };
        let _ = twin.withdraw().await?;
        Ok(true)
    }

    /// Leaves the lock that was granted here for `key` last, for each of `times` one after the other, behind its
    /// holder's back, past all faults. Whether it was there each time.
    ///
    /// It does so by a second claim under the same token.
    ///
    /// # Errors
    ///
    /// Those of the backend.
    ///
    /// # Cancel safety
    ///
    /// When dropped midway, the lock may be left for any of the times, or not.
    pub async fn leave(&self, key: &str, times: &[Duration]) -> Result<bool, Failure> {
        let Some(mut twin) = self.adopt(key).await? else { return Ok(false) };
        for &time in times {
            if !twin.leave(time).await?.removed {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns a second claim on the lock that was granted here for `key` last; `None` when that is gone.
    async fn adopt(&self, key: &str) -> Result<Option<B::Claim>, Failure> {
        let request = self.0.granted.lock().get(key).cloned();
        let Some(request) = request else { return Ok(None) };
        let mut twin = self.0.backend.claim(request);
        // A claim that was never granted anything may have nothing to withdraw.
        Ok(matches!(twin.attempt().await?, Attempt::Granted(_)).then_some(twin))
    }
}

impl<B: Backend> Clone for Wired<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B: Backend> fmt::Debug for Wired<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Wired").field(&self.0.backend).finish()
    }
}

#[deny(clippy::missing_trait_methods)]
impl<B: Backend> Backend for Wired<B> {
    type Claim = WiredClaim<B>;

    fn name(&self) -> &'static str {
        self.0.backend.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.backend.capabilities()
    }

    fn server_address(&self) -> Option<ServerAddress> {
        self.0.backend.server_address()
    }

    fn clock(&self) -> Clock {
        self.0.backend.clock()
    }

    fn lock_id(&self, key: &Key) -> LockId {
        self.0.backend.lock_id(key)
    }

    fn claim(&self, request: ClaimRequest) -> WiredClaim<B> {
        WiredClaim::new(Arc::clone(&self.0), request)
    }

    async fn attempt_all(&self, claims: &mut [&mut WiredClaim<B>]) -> Result<BatchAttempt, Failure> {
        if self.0.wire.0.one_by_one.load(Ordering::SeqCst) {
            return Ok(BatchAttempt::Separately);
        }
        claim::attempt_all(&self.0, claims).await
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Holder>, Failure> {
        self.0.carry(WireRequest::Inspect, async { self.0.backend.inspect(key).await }).await
    }

    async fn occupancy(&self, key: &Key) -> Result<Occupancy, Failure> {
        self.0.carry(WireRequest::Inspect, async { self.0.backend.occupancy(key).await }).await
    }

    async fn announce(&self, key: &Key) -> Result<(), Failure> {
        // The faults that are counted are those of the requests of a test, at whose side this is sent.
        if self.0.wire.0.cut.load(Ordering::SeqCst) {
            return Err(Failure::unavailable("the wire is cut"));
        }
        self.0.backend.announce(key).await
    }

    fn announcements(&self, key: &Key) -> Announcements {
        let Wire(wire) = self.0.wire.clone();
        let heard = move |(): &()| std::future::ready(!wire.deaf.load(Ordering::SeqCst));
        Announcements::new(self.0.backend.announcements(key).filter(heard))
    }

    fn administration(&self) -> Option<&dyn Administration> {
        self.0.backend.administration().map(|_| &*self.0 as &dyn Administration)
    }

    async fn ping(&self) -> Result<(), Failure> {
        let WiredShared { backend, wire, .. } = &*self.0;
        wire.there().await?;
        wire.back(backend.ping().await)
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, Failure> {
        let WiredShared { backend, wire, .. } = &*self.0;
        wire.there().await?;
        wire.back(backend.diagnose().await)
    }

    fn nodes(&self) -> Vec<NodeState> {
        self.0.backend.nodes()
    }

    async fn close(&self) {
        self.0.backend.close().await;
    }
}

impl<B: Backend> WiredShared<B> {
    fn administration(&self) -> &dyn Administration {
        self.backend.administration().unwrap_or(&Unadministered)
    }

    /// Nothing is sent before it is polled.
    async fn carry<T>(
        &self,
        kind: WireRequest,
        request: impl Future<Output = Result<T, Failure>> + Send,
    ) -> Result<T, Failure> {
        self.wire.count(kind);
        self.wire.there().await?;
        self.wire.back(request.await)
    }
}

#[deny(clippy::missing_trait_methods)]
impl<B: Backend> Administration for WiredShared<B> {
    fn holders(&self) -> BoxedFuture<'_, Result<Vec<(Key, Holder)>, Failure>> {
        boxed(self.carry(WireRequest::Inspect, async { self.administration().holders().await }))
    }

    fn force_release(&self, key: Key, seen: Option<Vec<Holder>>) -> BoxedFuture<'_, Result<Forced, Failure>> {
        let force = async move {
            self.wire.without(|state| &state.keeping).await;
            self.administration().force_release(key, seen).await
        };
        boxed(self.carry(WireRequest::Withdraw, force))
    }

    fn waiters(&self, key: Key) -> Option<BoxedFuture<'_, Result<Vec<Holder>, Failure>>> {
        Some(boxed(self.carry(WireRequest::Inspect, self.administration().waiters(key)?)))
    }

    fn resize(&self, key: Key, permits: u32) -> BoxedFuture<'_, Result<Option<u32>, Failure>> {
        let resize = async move { self.administration().resize(key, permits).await };
        boxed(self.carry(WireRequest::Withdraw, resize))
    }
}
