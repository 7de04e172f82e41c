//! Callers whose runtime has neither timers nor I/O, or a clock that stands still, and those who have no runtime.

use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_core::ErrorKind;
use futures_util::future::join;
use tokio::runtime::{Builder, Runtime};

use super::cases;
use crate::conformance::expect::{SOON, error_of, give_back, until};
use crate::conformance::{Process, Stage};

cases! {
    a_caller_without_a_runtime_opens_the_store_and_waits_for_locks: Nothing, Threads;
    a_caller_whose_runtime_has_no_timers_and_no_io_opens_the_store_and_waits_for_locks: Nothing, Threads;
    a_caller_whose_runtime_has_a_clock_that_is_paused_waits_as_long_as_it_says: Nothing, Threads;
    an_acquire_goes_on_in_another_runtime_when_its_own_has_ended: Nothing, Threads;
    a_store_outlives_the_runtime_that_opened_it: Nothing, Threads;
}

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Has `drive` run `future` on a thread that is in no runtime.
async fn on_a_thread<T: Send + 'static>(
    drive: impl FnOnce(Boxed<T>) -> T + Send + 'static,
    future: impl Future<Output = T> + Send + 'static,
) -> T {
    let future = Box::pin(future);
    let (tell, told) = tokio::sync::oneshot::channel();
    let thread = std::thread::spawn(move || drop(tell.send(drive(future))));
    match told.await {
        Ok(output) => output,
        Err(_) => resume_unwind(thread.join().expect_err("it panicked")),
    }
}

fn bare() -> Runtime {
    Builder::new_current_thread().build().expect("a runtime")
}

/// Opens the store twice, and does with it all that waits.
async fn whole_life(stage: Stage) {
    let (ours, theirs) = (stage.process().await, stage.process().await);
    life_of(ours, theirs, stage.key()).await;
}

/// Waits in vain, waits until a release, asks, and closes all.
async fn life_of(ours: Process, theirs: Process, key: String) {
    let held = ours.locks.lock(&key).acquire().await.expect("it is free");
    let (begun, wait) = (Instant::now(), Duration::from_millis(1_500));
    error_of(theirs.locks.lock(&key).with_wait(wait).acquire().await, &[ErrorKind::TimedOut]);
    // What is only here may be in the time of the caller.
    assert!(ours.locks.capabilities().in_process || begun.elapsed() >= wait - Duration::from_millis(10));
    let (begun, other) = (Instant::now(), format!("{key}-other"));
    let batch = theirs.locks.lock_all([&key, &other]).with_wait(wait);
    error_of(batch.acquire().await, &[ErrorKind::TimedOut]);
    assert!(ours.locks.capabilities().in_process || begun.elapsed() >= wait - Duration::from_millis(10));
    let waiting = theirs.locks.lock(&key);
    let (taken, released) = join(waiting.acquire(), held.release()).await;
    released.expect("it was held");
    assert!(ours.locks.inspect(&key).await.expect("an answer").is_some());
    give_back(taken.expect("it was released")).await;
    for process in [ours, theirs] {
        process.locks.ping().await.expect("it is there");
        process.locks.diagnose().await.expect("it tells its settings");
        process.locks.shutdown(SOON).await.expect("nothing is left");
    }
}

async fn a_caller_without_a_runtime_opens_the_store_and_waits_for_locks(stage: Stage) {
    on_a_thread(pollster::block_on, whole_life(stage)).await;
}

async fn a_caller_whose_runtime_has_no_timers_and_no_io_opens_the_store_and_waits_for_locks(stage: Stage) {
    on_a_thread(|life| bare().block_on(life), whole_life(stage)).await;
}

/// Servers do not answer sooner for it.
async fn a_caller_whose_runtime_has_a_clock_that_is_paused_waits_as_long_as_it_says(stage: Stage) {
    let paused = |life: Boxed<()>| {
        let runtime = Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.expect("a runtime").block_on(life);
    };
    let (ours, theirs) = (stage.process().await, stage.process().await);
    if ours.locks.backend() == "quorum" {
        // To set the nodes of one up is an operator's work.
        on_a_thread(paused, life_of(ours, theirs, stage.key())).await;
    } else {
        on_a_thread(paused, whole_life(stage)).await;
    }
}

async fn an_acquire_goes_on_in_another_runtime_when_its_own_has_ended(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let held = theirs.take(&key).await;
    let lock = ours.locks.lock(&key);
    let mut acquire: Boxed<_> = Box::pin(async move { lock.acquire().await });
    #[expect(clippy::async_yields_async, reason = "it goes on in another runtime")]
    let begun = async move {
        let waits = tokio::time::timeout(Duration::from_millis(200), &mut acquire).await;
        assert!(waits.is_err(), "another has the lock");
        acquire
    };
    let begun_in = Builder::new_current_thread().enable_all().build().expect("a runtime");
    // With the thread the runtime ends.
    let acquire = on_a_thread(move |begun| begun_in.block_on(begun), begun).await;
    let rest = on_a_thread(|acquire| bare().block_on(acquire), acquire);
    let (taken, ()) = join(rest, give_back(held)).await;
    give_back(taken.expect("it was released")).await;
}

/// Neither its connections nor its locks go with that, and what its tasks were about to take is released.
async fn a_store_outlives_the_runtime_that_opened_it(stage: Stage) {
    let (theirs, key) = (stage.process().await, stage.key());
    let left: Vec<_> = (0..20).map(|_| stage.key()).collect();
    // The store stands as long as the stage does.
    let stage = Arc::new(stage);
    let (opens, held, wanted) = (Arc::clone(&stage), key.clone(), left.clone());
    let begun = async move {
        // A request that ended with its connection may keep the background busy for a lease.
        let ours = opens.process_with(|builder| builder.with_lease(Duration::from_secs(10))).await;
        let guard = ours.take(&held).await;
        for key in wanted {
            let lock = ours.locks.lock(key);
            tokio::spawn(async move {
                let _guard = lock.acquire().await;
                std::future::pending::<()>().await;
            });
        }
        tokio::task::yield_now().await;
        (ours, guard)
    };
    let opened_in = Builder::new_current_thread().enable_all().build().expect("a runtime");
    // With the thread the runtime ends.
    let (ours, guard) = on_a_thread(move |begun| opened_in.block_on(begun), begun).await;
    guard.check().expect("it is held");
    theirs.sees_held(&key).await;
    give_back(guard).await;
    for key in left.iter().chain([&key]) {
        theirs.sees_free_soon(key).await;
    }
    drop(ours.take_soon(&key).await);
    theirs.sees_free_soon(&key).await;
    until("the background work", || ours.locks.stats().background == 0).await;
    assert_eq!(ours.locks.stats().held, 0);
}
