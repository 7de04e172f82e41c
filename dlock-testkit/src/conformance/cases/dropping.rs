//! Guards that go without a release.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use dlock_core::{ErrorKind, Guard, Lock};

use super::cases;
use crate::cancel::polled;
use crate::conformance::expect::{error_of, give_back, soon, until};
use crate::conformance::{Process, Stage};

cases! {
    a_dropped_guard_is_given_back_soon: Nothing, Easy;
    a_guard_dropped_without_a_runtime_is_given_back: Nothing, Threads;
    a_guard_dropped_after_its_runtime_was_shut_down_is_given_back: Nothing, Threads;
    a_guard_that_goes_down_with_its_runtime_is_given_back: Nothing, Threads;
    a_guard_dropped_while_a_panic_unwinds_is_given_back: Nothing, Easy;
    a_body_that_panics_gives_its_lock_back: Nothing, Easy;
    a_task_that_is_aborted_gives_its_lock_back: Nothing, Easy;
    a_caller_that_goes_away_drops_its_body_before_the_lock: Nothing, Easy;
    a_forgotten_guard_ends_by_max_hold: Lease, Timed;
    a_guard_dropped_while_the_backend_is_away_is_given_back_later: Nothing, Easy;
    an_acquire_that_nobody_polls_keeps_nobody_from_other_keys: Nothing, Easy;
}

/// The lease is long: what comes free soon was released.
async fn a_dropped_guard_is_given_back_soon(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    for _ in 0..10 {
        let guard = ours.take_soon(&key).await;
        let held = guard.held();
        drop(guard);
        error_of(held.check(), &[ErrorKind::NotHeld]);
        theirs.sees_free_soon(&key).await;
    }
}

/// A plain thread may drop it.
async fn a_guard_dropped_without_a_runtime_is_given_back(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guard = ours.take(&key).await;
    let thread = std::thread::spawn(move || drop(guard));
    assert!(thread.join().is_ok());
    theirs.sees_free_soon(&key).await;
}

/// Acquires on a runtime of its own, which `with` may then do away with.
fn on_a_runtime_of_its_own<T: Send + 'static>(
    lock: Lock,
    with: impl FnOnce(tokio::runtime::Runtime, Guard) -> T + Send + 'static,
) -> T {
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let guard = runtime.block_on(async { lock.acquire().await.expect("it is free") });
        with(runtime, guard)
    });
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}

/// Nothing needed for the release lived there.
async fn a_guard_dropped_after_its_runtime_was_shut_down_is_given_back(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guard = on_a_runtime_of_its_own(ours.locks.lock(&key), |runtime, guard| {
        drop(runtime);
        guard
    });
    guard.check().expect("a runtime that ends takes no lock along");
    drop(guard);
    theirs.sees_free_soon(&key).await;
}

/// The runtime drops its tasks, and they drop their guards.
async fn a_guard_that_goes_down_with_its_runtime_is_given_back(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    on_a_runtime_of_its_own(ours.locks.lock(&key), |runtime, guard| {
        runtime.spawn(async move {
            let _guard = guard;
            std::future::pending::<()>().await;
        });
        drop(runtime);
    });
    theirs.sees_free_soon(&key).await;
}

/// No second panic, which would abort the process.
async fn a_guard_dropped_while_a_panic_unwinds_is_given_back(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guard = ours.take(&key).await;
    let result = catch_unwind(AssertUnwindSafe(move || {
        let _guard = guard;
        // Without the panic hook's output.
        resume_unwind(Box::new("the test panics"));
    }));
    assert!(result.is_err());
    theirs.sees_free_soon(&key).await;
}

/// A body's panic goes on to the caller, and the lock comes free.
async fn a_body_that_panics_gives_its_lock_back(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let lock = ours.locks.lock(&key);
    let task =
        tokio::spawn(async move { lock.run(async { resume_unwind(Box::new("the body panics")) }).await });
    let error = soon("the panic", task).await.expect_err("it panicked");
    assert!(error.is_panic());
    theirs.sees_free_soon(&key).await;
}

/// An abort is a drop at some await.
async fn a_task_that_is_aborted_gives_its_lock_back(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let (inside, is_inside) = tokio::sync::oneshot::channel();
    let lock = ours.locks.lock(&key);
    let task = tokio::spawn(async move {
        lock.run(async {
            let _ = inside.send(());
            std::future::pending::<()>().await;
        })
        .await
    });
    soon("the body", is_inside).await.expect("it runs");
    theirs.sees_held(&key).await;
    task.abort();
    assert!(soon("the abort", task).await.expect_err("it was aborted").is_cancelled());
    theirs.sees_free_soon(&key).await;
}

/// What the body still does while it is dropped is done under the lock.
async fn a_caller_that_goes_away_drops_its_body_before_the_lock(stage: Stage) {
    struct Last(Option<Box<dyn FnOnce() + Send>>);
    impl Drop for Last {
        fn drop(&mut self) {
            if let Some(last) = self.0.take() {
                last();
            }
        }
    }
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let (tell, told) = std::sync::mpsc::channel();
    {
        let lock = ours.locks.lock(&key);
        let run = lock.run_with(|held| async move {
            let _last = Last(Some(Box::new(move || {
                let _ = tell.send(held.check().is_ok());
            })));
            std::future::pending::<()>().await;
        });
        let mut run = std::pin::pin!(run);
        soon("the body", async {
            tokio::select! {
                biased;
                _ = &mut run => panic!("the body does not end"),
                () = until("the hold", || ours.locks.stats().held == 1) => {}
            }
            // Into the body.
            assert!(crate::cancel::poll_n_then_drop(&mut run, 1).await.is_none());
        })
        .await;
    }
    assert_eq!(told.try_recv(), Ok(true), "the lock was released before the body was dropped");
    theirs.sees_free_soon(&key).await;
}

/// What is leaked is renewed for a bounded time only.
async fn a_forgotten_guard_ends_by_max_hold(stage: Stage) {
    let (ours, theirs, key) = (stage.short().await, stage.process().await, stage.key());
    let guard = ours.locks.lock(&key).with_max_hold(stage.lease() * 2).acquire().await.expect("it is free");
    let held = guard.held();
    std::mem::forget(guard);
    theirs.sees_held(&key).await;
    soon("the end of the hold", held.lost()).await;
    let error = error_of(held.check(), &[ErrorKind::Lost]);
    assert!(error.to_string().contains("max_hold"), "{error}");
    theirs.sees_free_soon(&key).await;
}

/// The keeper goes on trying.
async fn a_guard_dropped_while_the_backend_is_away_is_given_back_later(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guard = ours.take(&key).await;
    ours.wire.cut();
    drop(guard);
    until("a release that fails", || ours.locks.stats().failed_withdrawals > 0).await;
    theirs.sees_held(&key).await;
    ours.wire.mend();
    theirs.sees_free_soon(&key).await;
    until("the background work", || ours.locks.stats().background == 0).await;
    assert_eq!(ours.locks.stats().abandoned, 0);
}

async fn an_acquire_that_nobody_polls_keeps_nobody_from_other_keys(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let acquire = |process: &Process| {
        let wanted = process.locks.lock(&key);
        async move { wanted.acquire().await }
    };
    unpolled_keeps_nobody_from_other_keys(&stage, [&ours, &theirs], || acquire(&ours), || acquire(&theirs))
        .await;
}

/// Polls what `acquire` makes once, twice and so on, and leaves it for a while, as a `select!` loop does that is busy
/// in another branch. Meanwhile both processes have to get other keys, and afterwards the second one has to get `all`.
pub(super) async fn unpolled_keeps_nobody_from_other_keys<A, B>(
    stage: &Stage,
    processes: [&Process; 2],
    acquire: impl Fn() -> A,
    all: impl Fn() -> B,
) where
    A: Future<Output = dlock_core::Result<Guard>>,
    B: Future<Output = dlock_core::Result<Guard>>,
{
    for times in 1..=8 {
        let mut future = Box::pin(acquire());
        let step = polled(future.as_mut(), times);
        let done = tokio::time::timeout(Duration::from_millis(200), step).await.ok().flatten();
        for process in processes {
            give_back(process.take_soon(&stage.key()).await).await;
        }
        let is_done = done.is_some();
        match done {
            Some(guard) => give_back(guard.expect("it is free")).await,
            None => drop(future),
        }
        give_back(soon("all of it", all()).await.expect("nothing is left of it")).await;
        if is_done {
            return;
        }
    }
}
