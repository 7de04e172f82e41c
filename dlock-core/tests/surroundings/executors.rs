//! Futures outside of tokio's runtimes, and guards that end where nothing else works any more.

use std::cell::RefCell;
use std::time::Duration;

use dlock_core::{BatchGuard, ErrorKind, Guard, Locks, Memory, Wait, in_current_scope};
use pollster::block_on;

use super::{eventually, must_end};

const LONG: Duration = Duration::from_secs(20);

#[test]
fn a_batch_that_cannot_be_had_is_an_error_outside_of_a_runtime_too() {
    let memory = Memory::new();
    let (ours, theirs) = (Locks::new(memory.clone()), Locks::new(memory.clone()));
    let other = Locks::new(Memory::new());
    let _held = block_on(theirs.lock("b").acquire()).unwrap();
    assert!(block_on(ours.lock_all(["a", "b"]).try_acquire()).unwrap().is_none());
    // Of several backends: one is taken before the other is found busy.
    let batch = dlock_core::Batch::of([other.lock("a"), ours.lock("b"), other.lock("c")]);
    let taken: Option<BatchGuard> = block_on(batch.try_acquire()).unwrap();
    assert!(taken.is_none());
    eventually("the release of the other", || other.stats().held == 0 && other.stats().background == 0);
}

#[test]
fn a_body_that_runs_outside_of_a_runtime_may_acquire_while_its_locks_are_drained() {
    must_end(|| {
        let locks = Locks::new(Memory::new());
        let (begun, begins) = std::sync::mpsc::channel();
        let body = std::thread::spawn({
            let locks = locks.clone();
            move || {
                block_on(locks.lock("outer").run(async {
                    begun.send(()).unwrap();
                    eventually("the drain", || {
                        in_nobody(&locks).is_err_and(|error| error.kind() == ErrorKind::Closed)
                    });
                    locks.lock("inner").acquire().await.map(drop)
                }))
            }
        });
        begins.recv().unwrap();
        block_on(locks.drain(LONG)).unwrap();
        body.join().unwrap().unwrap().unwrap();
    });
}

/// On a thread that runs in no scope.
fn in_nobody(locks: &Locks) -> dlock_core::Result<Guard> {
    let lock = locks.lock("nobody's").with_wait(Wait::No);
    std::thread::spawn(move || block_on(lock.acquire())).join().unwrap()
}

#[test]
fn a_guard_is_dropped_by_the_destructor_of_a_thread_local() {
    thread_local! {
        static KEPT: RefCell<Option<Guard>> = const { RefCell::new(None) };
    }
    let memory = Memory::new();
    let locks = Locks::new(memory.clone());
    let ours = locks.clone();
    std::thread::spawn(move || {
        let guard = block_on(ours.lock("k").acquire()).unwrap();
        KEPT.set(Some(guard));
    })
    .join()
    .unwrap();
    eventually("the release", || memory.held() == 0 && locks.stats().background == 0);
}

#[test]
fn a_future_goes_from_thread_to_thread_between_its_polls() {
    must_end(|| {
        let memory = Memory::new();
        let (ours, theirs) = (Locks::new(memory.clone()), Locks::new(memory));
        let held = block_on(theirs.lock("k").acquire()).unwrap();
        let lock = ours.lock("k").with_wait(Wait::Forever);
        let mut waiter = Box::pin(in_current_scope(async move { lock.acquire().await }));
        for _ in 0..3 {
            waiter = std::thread::spawn(move || {
                let mut context = std::task::Context::from_waker(std::task::Waker::noop());
                assert!(waiter.as_mut().poll(&mut context).is_pending());
                waiter
            })
            .join()
            .unwrap();
        }
        block_on(held.release()).unwrap();
        drop(block_on(waiter).unwrap());
    });
}

#[test]
fn a_runtime_ends_with_thousands_of_waiters() {
    must_end(|| {
        let memory = Memory::new();
        let locks = Locks::new(memory.clone());
        let held = block_on(locks.lock("k").acquire()).unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        for _ in 0..10_000 {
            let lock = locks.lock("k").with_wait(Wait::Forever);
            runtime.spawn(async move { lock.acquire().await });
        }
        // The last one has its place.
        runtime.block_on(async { tokio::task::yield_now().await });
        drop(runtime);
        block_on(held.release()).unwrap();
        eventually("an end of all acquires", || memory.held() == 0);
        drop(block_on(locks.lock("k").acquire()).unwrap());
        block_on(locks.shutdown(LONG)).unwrap();
    });
}

#[test]
fn times_without_an_end_are_times() {
    let locks = Locks::new(Memory::new());
    block_on(locks.drain(Duration::MAX)).unwrap();
    block_on(locks.shutdown(Duration::MAX)).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let locks = Locks::new(Memory::new());
    runtime.block_on(locks.drain(Duration::MAX)).unwrap();
    runtime.block_on(locks.shutdown(Duration::MAX)).unwrap();
}
