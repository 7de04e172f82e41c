//! Backends that panic.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_core::backend::{
    Administration, Attempt, BoxedFuture, Claim, ClaimRequest, Forced, LockId, Renewed, Signal, Withdrawal,
    boxed,
};
use dlock_core::{
    Backend, Capabilities, Clock, ErrorKind, Failure, Holder, Key, Locks, ManualClock, Memory, Wait,
};

use super::{STRIKE, eventually, surround};

const LEASE: Duration = Duration::from_secs(30);

/// Memory, of which the named steps panic, each as often as it is named.
#[derive(Clone, Debug)]
struct Panicking {
    memory: Memory,
    steps: Arc<Mutex<Vec<&'static str>>>,
}

impl Panicking {
    fn new(clock: Clock, steps: &[&'static str]) -> Self {
        Self { memory: Memory::with_clock(clock), steps: Arc::new(Mutex::new(steps.to_vec())) }
    }

    fn step(&self, name: &'static str) {
        let found = {
            let mut steps = self.steps.lock().unwrap();
            let at = steps.iter().position(|step| *step == name);
            at.map(|at| steps.swap_remove(at))
        };
        if found.is_some() {
            std::panic::panic_any(STRIKE)
        }
    }
}

struct PanickingClaim {
    inner: <Memory as Backend>::Claim,
    backend: Panicking,
}

impl Backend for Panicking {
    type Claim = PanickingClaim;

    fn name(&self) -> &'static str {
        "panicking"
    }

    fn capabilities(&self) -> Capabilities {
        self.step("capabilities");
        self.memory.capabilities()
    }

    fn clock(&self) -> Clock {
        self.step("clock");
        self.memory.clock()
    }

    fn lock_id(&self, key: &Key) -> LockId {
        self.step("lock_id");
        self.memory.lock_id(key)
    }

    fn claim(&self, request: ClaimRequest) -> PanickingClaim {
        self.step("claim");
        PanickingClaim { inner: self.memory.claim(request), backend: self.clone() }
    }

    fn inspect(&self, key: &Key) -> impl Future<Output = Result<Option<Holder>, Failure>> + Send {
        self.step("inspect");
        self.memory.inspect(key)
    }

    fn administration(&self) -> Option<&dyn Administration> {
        self.step("administration");
        Some(self)
    }

    async fn close(&self) {
        self.step("close");
    }
}

impl Administration for Panicking {
    fn holders(&self) -> BoxedFuture<'_, Result<Vec<(Key, Holder)>, Failure>> {
        self.step("holders");
        self.memory.holders()
    }

    fn force_release(&self, key: Key, seen: Option<Vec<Holder>>) -> BoxedFuture<'_, Result<Forced, Failure>> {
        boxed(async move {
            self.step("force_release");
            self.memory.force_release(key, seen).await
        })
    }

    fn waiters(&self, key: Key) -> Option<BoxedFuture<'_, Result<Vec<Holder>, Failure>>> {
        self.step("waiters");
        self.memory.waiters(key)
    }

    fn resize(&self, key: Key, permits: u32) -> BoxedFuture<'_, Result<Option<u32>, Failure>> {
        self.step("resize");
        self.memory.resize(key, permits)
    }
}

impl Claim for PanickingClaim {
    async fn attempt(&mut self) -> Result<Attempt, Failure> {
        self.backend.step("attempt");
        let answer = self.inner.attempt().await;
        self.backend.step("attempted");
        answer
    }

    async fn changed(&mut self) -> Result<(), Failure> {
        self.backend.step("changed");
        self.inner.changed().await
    }

    fn granted(&mut self, signal: Signal) {
        self.backend.step("granted");
        self.inner.granted(signal);
    }

    async fn renew(&mut self) -> Result<Renewed, Failure> {
        self.backend.step("renew");
        self.inner.renew().await
    }

    async fn withdraw(&mut self) -> Result<Withdrawal, Failure> {
        self.backend.step("withdraw");
        self.inner.withdraw().await
    }

    fn is_clean(&self) -> bool {
        self.backend.step("is_clean");
        false
    }
}

impl Drop for PanickingClaim {
    fn drop(&mut self) {
        self.backend.step("drop");
    }
}

#[tokio::test]
async fn a_renewal_that_panics_is_a_failed_one_and_is_made_again() {
    surround();
    let clock = ManualClock::stopped();
    let backend = Panicking::new(clock.clock(), &["renew", "renew"]);
    let locks = Locks::new(backend);
    let guard = locks.lock("k").acquire().await.unwrap();
    clock.advance(LEASE / 3);
    guard.held().at_risk().await;
    for n in 2..=3 {
        clock.advance(LEASE / 12);
        eventually("the next renewal", || {
            let stats = locks.stats();
            stats.failed_renewals + stats.renewals == n
        })
        .await;
    }
    assert_eq!(locks.stats().failed_renewals, 2);
    guard.check().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_withdrawal_that_panics_is_made_again_and_shutdown_waits_for_it() {
    surround();
    let backend = Panicking::new(Clock::system(), &["withdraw", "withdraw", "withdraw", "drop"]);
    let locks = Locks::new(backend.clone());
    drop(locks.lock("k").acquire().await.unwrap());
    locks.shutdown(LEASE).await.unwrap();
    assert_eq!(backend.memory.held(), 0);
    assert_eq!(locks.stats().background, 0);
}

#[tokio::test]
async fn an_attempt_that_panics_may_have_taken_the_lock() {
    surround();
    let backend = Panicking::new(Clock::system(), &["attempted", "is_clean"]);
    let locks = Locks::new(backend.clone());
    // It is asked again under the same token, and has what the first attempt took.
    locks.lock("k").acquire().await.unwrap().release().await.unwrap();
    backend.steps.lock().unwrap().push("attempted");
    let once = locks.lock("k").with_rechecks(0).with_wait(Wait::No);
    let error = once.acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown);
    assert!(error.to_string().contains("the backend panicked in `attempt`"), "{error}");
    eventually("the clean-up", || backend.memory.held() == 0 && locks.stats().background == 0).await;
}

#[tokio::test]
async fn a_batch_whose_order_the_backend_cannot_tell_is_refused_and_the_next_one_is_taken() {
    surround();
    let backend = Panicking::new(Clock::system(), &["lock_id"]);
    let locks = Locks::new(backend.clone());
    let error = locks.lock_all(["a", "b"]).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("`lock_id`"), "{error}");
    assert_eq!(error.key(), Some("a"));
    locks.lock_all(["a", "b"]).run(async {}).await.unwrap();
    assert_eq!(backend.memory.held(), 0);
}

#[test]
fn a_backend_that_panics_while_locks_are_built_is_an_error() {
    surround();
    for step in ["capabilities", "clock"] {
        let backend = Panicking::new(Clock::system(), &[step]);
        let error = Locks::builder(backend).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("panicked"), "{error}");
    }
}

#[tokio::test]
async fn a_backend_that_panics_when_it_is_asked_for_its_administration_has_locks_all_the_same() {
    surround();
    for step in ["administration", "waiters"] {
        let locks = Locks::new(Panicking::new(Clock::system(), &[step]));
        assert_eq!(locks.capabilities().administered, step == "waiters");
        assert!(!locks.capabilities().shows_waiters);
        locks.lock("k").acquire().await.unwrap().release().await.unwrap();
        locks.shutdown(LEASE).await.unwrap();
    }
}

#[tokio::test]
async fn steps_that_panic_on_the_callers_task_are_errors_there() {
    surround();
    let backend = Panicking::new(Clock::system(), &["claim", "inspect", "close"]);
    let locks = Locks::new(backend.clone());
    assert_eq!(locks.lock("k").acquire().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(locks.inspect("k").await.unwrap_err().to_string().contains("panicked"));
    locks.shutdown(LEASE).await.unwrap();
}

#[tokio::test]
async fn what_panics_when_an_operator_asks_is_an_error_with_its_name() {
    surround();
    let backend = Panicking::new(Clock::system(), &[]);
    let locks = Locks::new(backend.clone());
    let arm = |step| backend.steps.lock().unwrap().push(step);
    let says = |error: dlock_core::Error, step: &str| {
        assert_eq!(error.kind(), ErrorKind::Unknown);
        assert!(error.to_string().contains(&format!("panicked in `{step}`")), "{error}");
    };
    for at in ["administration", "holders"] {
        arm(at);
        says(locks.holders().await.unwrap_err(), "holders");
    }
    arm("waiters");
    says(locks.waiters("k").await.unwrap_err(), "waiters");
    arm("force_release");
    says(locks.force_release("k").await.unwrap_err(), "force_release");
    arm("force_release");
    says(locks.force_release_of("k", &[]).await.unwrap_err(), "force_release");
    arm("resize");
    says(locks.resize_semaphore("k", 2).await.unwrap_err(), "resize");
    assert!(locks.holders().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_wait_whose_notifications_panic_is_polled() {
    surround();
    let backend = Panicking::new(Clock::system(), &["changed"]);
    let (ours, theirs) = (Locks::new(backend.clone()), Locks::new(backend.memory.clone()));
    let held = theirs.lock("k").acquire().await.unwrap();
    let lock = ours.lock("k").with_wait(LEASE);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    eventually("the panic", || backend.steps.lock().unwrap().is_empty()).await;
    held.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_lock_whose_backend_panicked_at_the_grant_is_not_relied_upon() {
    surround();
    let backend = Panicking::new(Clock::system(), &["granted"]);
    let locks = Locks::new(backend.clone());
    // The first grant counts as lost and is released; the second is a good one.
    let guard = locks.lock("k").acquire().await.unwrap();
    assert_eq!(locks.stats().lost, 1);
    guard.check().unwrap();
    guard.release().await.unwrap();
}
