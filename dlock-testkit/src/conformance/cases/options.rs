//! Options out of their bounds.

use std::time::Duration;

use dlock_core::{ErrorKind, Lock, MAX_LEASE, MAX_WAIT, MIN_LEASE};

use super::cases;
use crate::conformance::Stage;
use crate::conformance::expect::{error_of, give_back};

cases! {
    options_out_of_bounds_are_refused_without_a_request: Nothing, Easy;
    the_shortest_and_the_longest_lease_work: Lease, Timed;
    an_acquire_outside_a_runtime_is_served_by_the_keeper: Nothing, Threads;
}

/// Zero, absurd and contradictory options are errors at once.
async fn options_out_of_bounds_are_refused_without_a_request(stage: Stage) {
    type Option = fn(Lock) -> Lock;
    let (process, key) = (stage.process().await, stage.key());
    let wrong: [Option; 11] = [
        |lock| lock.with_lease(Duration::ZERO),
        |lock| lock.with_lease(MIN_LEASE - Duration::from_nanos(1)),
        |lock| lock.with_lease(MAX_LEASE + Duration::from_nanos(1)),
        |lock| lock.with_lease(Duration::MAX),
        |lock| lock.with_wait(MAX_WAIT + Duration::from_secs(1)),
        |lock| lock.with_wait(Duration::MAX),
        |lock| lock.with_request_timeout(Duration::ZERO),
        |lock| lock.with_request_timeout(Duration::MAX),
        |lock| lock.with_rechecks(u32::MAX),
        |lock| lock.with_max_hold(Duration::ZERO),
        |lock| lock.with_max_depth(0),
    ];
    for (n, option) in wrong.into_iter().enumerate() {
        let lock = option(process.locks.lock(&key));
        let error = error_of(lock.acquire().await, &[ErrorKind::InvalidConfig]);
        assert!(!error.is_retryable(), "option {n}");
        error_of(lock.run(async {}).await, &[ErrorKind::InvalidConfig]);
    }
    // A try has no wait that could be wrong; the rest counts.
    let lock = process.locks.lock(&key).with_lease(Duration::ZERO);
    error_of(lock.try_acquire().await, &[ErrorKind::InvalidConfig]);
    assert_eq!(process.wire.requests(), 0);
}

/// The bounds themselves are inside.
async fn the_shortest_and_the_longest_lease_work(stage: Stage) {
    let (process, key) = (stage.process().await, stage.key());
    for lease in [MIN_LEASE, MAX_LEASE] {
        let limit = (lease / 2).min(Duration::from_secs(30));
        let lock = process.locks.lock(&key).with_lease(lease).with_wait(MAX_WAIT).with_request_timeout(limit);
        // The shortest may be too short for a busy machine; the lock is then lost, and not in disorder.
        let guard = loop {
            match lock.acquire().await {
                Ok(guard) => break guard,
                Err(error) => assert!(lease == MIN_LEASE && error.is_retryable(), "{error}"),
            }
        };
        assert!(guard.remaining().is_some_and(|remaining| remaining <= lease));
        if let Err(error) = guard.release().await {
            let late =
                matches!(error.kind(), ErrorKind::NotHeld | ErrorKind::Unknown | ErrorKind::Unavailable);
            assert!(lease == MIN_LEASE && late, "{error}");
        }
    }
}

/// A caller without tokio gets an error that says so.
async fn an_acquire_outside_a_runtime_is_served_by_the_keeper(stage: Stage) {
    let (process, key) = (stage.process().await, stage.key());
    let lock = process.locks.lock(&key);
    let outside = std::thread::spawn(move || {
        let guard = without_a_runtime(lock.acquire()).expect("it is free");
        guard.check().expect("it was just taken");
        without_a_runtime(guard.release()).expect("it is held");
    });
    tokio::task::spawn_blocking(|| outside.join().expect("it does not panic")).await.expect("it was joined");
    give_back(process.take(&key).await).await;
}

/// Drives `future` on this thread, which has no runtime.
fn without_a_runtime<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
    let mut context = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            std::task::Poll::Ready(output) => return output,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}
