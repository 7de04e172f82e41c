//! Where dlock's own threads, the caller's runtime and the end of the process meet.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use dlock_core::backend::{Attempt, Claim, ClaimRequest, LockId, Renewed, Validity, Withdrawal};
use dlock_core::keeper::Spawn;
use dlock_core::{
    Backend, Capabilities, Clock, ErrorKind, Failure, Holder, Key, Locks, ManualClock, Memory, Wait,
};
use pollster::block_on;
use tokio::time::Instant;

use crate::keeping::eventually;
use crate::script::{Answer, Call, Scripted};

const LEASE: Duration = Duration::from_secs(30);

#[test]
fn an_acquire_that_is_dropped_outside_of_tokio_is_withdrawn() {
    let backend = Scripted::new([Answer::Hang]);
    let locks = Locks::new(backend.clone());
    let lock = locks.lock("k");
    {
        let mut acquire = std::pin::pin!(lock.acquire());
        assert!(acquire.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        block_on(async { backend.calls_until(|calls| !calls.is_empty()) });
    }
    backend.calls_until(|calls| matches!(calls.last(), Some(Call::Withdraw(_))));
}

/// Memory whose renewals block their thread while the gate is shut, and whose closing never ends.
#[derive(Clone, Debug)]
struct Blocking {
    memory: Memory,
    gate: Arc<Gate>,
}

#[derive(Debug, Default)]
struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
    reached: AtomicBool,
}

impl Gate {
    fn pass(&self) {
        self.reached.store(true, Ordering::SeqCst);
        let mut is_open = self.is_open.lock().unwrap();
        while !*is_open {
            is_open = self.opened.wait(is_open).unwrap();
        }
    }

    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }
}

struct BlockingClaim(<Memory as Backend>::Claim, Arc<Gate>);

impl Backend for Blocking {
    type Claim = BlockingClaim;

    fn name(&self) -> &'static str {
        "blocking"
    }

    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    fn clock(&self) -> Clock {
        self.memory.clock()
    }

    fn claim(&self, request: ClaimRequest) -> BlockingClaim {
        BlockingClaim(self.memory.claim(request), Arc::clone(&self.gate))
    }

    fn lock_id(&self, key: &Key) -> LockId {
        self.memory.lock_id(key)
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Holder>, Failure> {
        self.memory.inspect(key).await
    }

    async fn close(&self) {
        std::future::pending::<()>().await;
    }
}

impl Claim for BlockingClaim {
    async fn attempt(&mut self) -> Result<Attempt, Failure> {
        self.0.attempt().await
    }

    async fn renew(&mut self) -> Result<Renewed, Failure> {
        self.1.pass();
        self.0.renew().await
    }

    async fn withdraw(&mut self) -> Result<Withdrawal, Failure> {
        self.0.withdraw().await
    }
}

#[tokio::test]
async fn a_backend_that_blocks_its_thread_holds_up_its_own_locks_only_and_no_release_for_ever() {
    let clock = ManualClock::stopped();
    let backend = Blocking { memory: Memory::with_clock(clock.clock()), gate: Arc::default() };
    let (blocked, sound) = (Locks::new(backend.clone()), Locks::new(Memory::with_clock(clock.clock())));
    let limit = Duration::from_millis(50);
    let guard = blocked.lock("k").with_request_timeout(limit).acquire().await.unwrap();
    let other = sound.lock("k").acquire().await.unwrap();
    clock.advance(LEASE / 3);
    eventually("the blocking renewal", || backend.gate.reached.load(Ordering::SeqCst)).await;
    eventually("the renewal of the other", || sound.stats().renewals == 1).await;
    other.check().unwrap();
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown);
    assert!(error.to_string().contains("block its thread"), "{error}");
    assert_eq!(blocked.stats().background, 1);
    backend.gate.open();
    eventually("the release", || backend.memory.held() == 0 && blocked.stats().background == 0).await;
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_in_time_though_the_backend_never_closes() {
    let locks = Locks::new(Blocking { memory: Memory::new(), gate: Arc::default() });
    let started = Instant::now();
    let error = locks.shutdown(LEASE).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains("did not close"), "{error}");
    assert_eq!(started.elapsed(), LEASE);
}

#[tokio::test]
async fn shutdown_waits_for_a_withdrawal_that_is_not_settled_and_the_stats_tell_of_it() {
    let backend = Scripted::new([Answer::Grant(Validity::Lease(LEASE))]);
    let unsettled = || Ok(Withdrawal::REMOVED.unsettled());
    backend.0.withdrawals.lock().unwrap().extend([unsettled(), unsettled(), unsettled()]);
    let locks = Locks::new(backend.clone());
    // What was removed is released, and what may still arrive is the keeper's.
    locks.lock("k").acquire().await.unwrap().release().await.unwrap();
    assert_eq!(locks.stats().background, 1);
    locks.shutdown(LEASE).await.unwrap();
    assert_eq!(backend.count(|call| matches!(call, Call::Withdraw(_))), 4);
    assert_eq!((locks.stats().background, locks.stats().abandoned), (0, 0));
}

#[tokio::test]
async fn a_withdrawal_that_never_settles_ends_with_the_lease_and_a_request() {
    let clock = ManualClock::stopped();
    let backend = Scripted::with_clock(clock.clock(), [Answer::Grant(Validity::Lease(LEASE))]);
    let unsettled = (0..10_000).map(|_| Ok(Withdrawal::ABSENT.unsettled()));
    backend.0.withdrawals.lock().unwrap().extend(unsettled);
    let locks = Locks::new(backend.clone());
    drop(locks.lock("k").acquire().await.unwrap());
    backend.wait_for(|calls| calls.len() > 3).await;
    clock.advance(LEASE);
    let before = backend.calls().len();
    backend.wait_for(|calls| calls.len() > before + 1).await;
    assert_eq!(locks.stats().background, 1);
    clock.advance(LEASE);
    eventually("the end", || locks.stats().background == 0).await;
}

#[tokio::test]
async fn who_waits_is_not_told_each_time_that_a_repeated_withdrawal_found_nothing() {
    let clock = ManualClock::stopped();
    let grant = Answer::Grant(Validity::Lease(LEASE));
    let attempts = std::iter::once(grant).chain((0..1_000).map(|_| Answer::Busy));
    let rarely = Duration::from_secs(600);
    let capabilities = Capabilities::basic().with_polling(rarely, rarely);
    let backend = Scripted::with(clock.clock(), capabilities, attempts);
    let nothing = (0..10).map(|_| Ok(Withdrawal::ABSENT.unsettled()));
    let lost = [Err(Failure::unknown("reply lost")), Ok(Withdrawal::ABSENT.unsettled())];
    let late = [Ok(Withdrawal::REMOVED.unsettled())];
    let answers = nothing.chain(lost).chain(late).chain([Ok(Withdrawal::ABSENT)]);
    backend.0.withdrawals.lock().unwrap().extend(answers);
    let locks = Locks::new(backend.clone());
    let held = locks.lock("k").acquire().await.unwrap();
    let lock = locks.lock("k").with_handoff(false).with_wait(Wait::Forever);
    let waiting = tokio::spawn(async move { lock.acquire().await.map(drop) });
    backend.wait_for(|calls| calls.len() == 2).await;
    drop(held);
    // Of the first answer, of that after the lost one, of what came late, and of the end.
    let asked = |calls: &[Call]| calls.iter().filter(|call| matches!(call, Call::Attempt(_))).count();
    backend.wait_for(|calls| asked(calls) == 6).await;
    eventually("the end", || locks.stats().background == 0).await;
    tokio::task::yield_now().await;
    assert_eq!(asked(&backend.calls()), 6);
    waiting.abort();
}

#[tokio::test]
async fn a_storm_of_shutdowns_and_acquires_leaves_nothing() {
    let memory = Memory::new();
    let locks = Locks::new(memory.clone());
    let acquires = (0..200).map(|n| {
        let lock = locks.lock(format!("{}", n % 20)).with_wait(Wait::Forever);
        tokio::spawn(async move { drop(lock.run(tokio::task::yield_now()).await) })
    });
    let acquires: Vec<_> = acquires.collect();
    let shutdowns = (0..20).map(|_| {
        let locks = locks.clone();
        tokio::spawn(async move { locks.shutdown(LEASE).await })
    });
    for shutdown in shutdowns.collect::<Vec<_>>() {
        shutdown.await.unwrap().unwrap();
    }
    for acquire in acquires {
        acquire.await.unwrap();
    }
    assert_eq!((memory.held(), locks.stats().held, locks.stats().background), (0, 0, 0));
}

/// Runs tasks on a runtime that the test ends.
#[derive(Debug)]
pub(crate) struct On(pub(crate) tokio::runtime::Handle);

impl Spawn for On {
    fn spawn(&self, task: std::pin::Pin<Box<dyn Future<Output = ()> + Send>>) {
        drop(self.0.spawn(task));
    }
}

fn on_a_runtime_of_its_own() -> (tokio::runtime::Runtime, Arc<On>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let on = Arc::new(On(runtime.handle().clone()));
    (runtime, on)
}

async fn refuses(locks: &Locks) {
    let refused = locks.lock("another").acquire().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Closed, "{refused}");
    assert!(refused.to_string().contains("own thread has ended"), "{refused}");
}

#[tokio::test]
async fn when_the_keeper_is_ended_what_is_held_is_lost_and_acquires_are_refused() {
    let (runtime, on) = on_a_runtime_of_its_own();
    let locks = Locks::builder(Memory::new()).with_keeper_on(on).build().unwrap();
    let guard = locks.lock("k").acquire().await.unwrap();
    runtime.shutdown_background();
    tokio::time::timeout(LEASE / 2, guard.lost()).await.expect("the loss is notified");
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
    refuses(&locks).await;
}

#[tokio::test]
async fn a_keeper_that_never_ran_refuses_acquires() {
    let (runtime, on) = on_a_runtime_of_its_own();
    tokio::task::spawn_blocking(|| drop(runtime)).await.unwrap();
    let locks = Locks::builder(Memory::new()).with_keeper_on(on).build().unwrap();
    refuses(&locks).await;
}
