//! The graceful end of a process.

use std::time::Duration;

use dlock_core::ErrorKind;
use pollster::block_on;

use super::cases;
use crate::conformance::Stage;
use crate::conformance::expect::{SOON, error_of, give_back, soon};

cases! {
    a_shutdown_gives_everything_back_and_refuses_what_comes_later: Nothing, Easy;
    a_shutdown_tells_the_bodies_and_waits_for_them: Nothing, Easy;
    a_shutdown_takes_the_locks_of_those_who_do_not_leave: Nothing, Easy;
    a_shutdown_waits_for_releases_in_the_background: Nothing, Easy;
    a_shutdown_ends_although_the_backend_hangs: Nothing, Easy;
    a_shutdown_after_a_release_that_panicked_ends_with_nothing_left: Nothing, Easy;
    a_shutdown_of_one_process_leaves_the_others_alone: Nothing, Easy;
    inspecting_releasing_and_shutting_down_work_outside_of_a_runtime: Nothing, Threads;
}

/// After it nothing of ours is left.
async fn a_shutdown_gives_everything_back_and_refuses_what_comes_later(stage: Stage) {
    let (ours, theirs) = (stage.process().await, stage.process().await);
    let keys: Vec<_> = (0..10).map(|_| stage.key()).collect();
    let mut holders = tokio::task::JoinSet::new();
    for key in &keys {
        let guard = ours.take(key).await;
        holders.spawn(async move {
            guard.lost().await;
            drop(guard);
        });
    }
    ours.locks.shutdown(SOON).await.expect("all leave in time");
    for key in &keys {
        give_back(theirs.take(key).await).await;
    }
    error_of(ours.locks.lock(&keys[0]).acquire().await, &[ErrorKind::Closed]);
    error_of(ours.locks.lock(&keys[0]).try_acquire().await, &[ErrorKind::Closed]);
    let error = error_of(ours.locks.lock(&keys[0]).run(async {}).await, &[ErrorKind::Closed]);
    assert!(!error.is_retryable());
    holders.join_all().await;
}

/// Bodies stop, and what they do last is still done before the process ends.
async fn a_shutdown_tells_the_bodies_and_waits_for_them(stage: Stage) {
    let (process, key) = (stage.process().await, stage.key());
    let (inside, is_inside) = tokio::sync::oneshot::channel();
    let lock = process.locks.lock(&key);
    let body = tokio::spawn(async move {
        lock.run(async {
            let _ = inside.send(());
            std::future::pending::<()>().await;
        })
        .await
    });
    soon("the body", is_inside).await.expect("it runs");
    process.locks.shutdown(SOON).await.expect("the body leaves");
    let error = error_of(soon("the end of the body", body).await.expect("no panic"), &[ErrorKind::Lost]);
    assert!(error.to_string().contains("shut down"), "{error}");
}

/// Somebody forgot a guard: it is taken from him.
async fn a_shutdown_takes_the_locks_of_those_who_do_not_leave(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guard = ours.take(&key).await;
    ours.locks.shutdown(Duration::from_secs(2)).await.expect("it needs nobody's help");
    give_back(theirs.take(&key).await).await;
    guard.check().expect_err("it was taken");
    guard.release().await.expect_err("there is nothing to release");
}

/// Dropped guards are not forgotten.
async fn a_shutdown_waits_for_releases_in_the_background(stage: Stage) {
    let (ours, theirs) = (stage.process().await, stage.process().await);
    let keys: Vec<_> = (0..20).map(|_| stage.key()).collect();
    for key in &keys {
        drop(ours.take(key).await);
    }
    ours.locks.shutdown(SOON).await.expect("all is settled in time");
    for key in &keys {
        give_back(theirs.take(key).await).await;
    }
}

/// The time-out is the caller's. What is left is said, and left to the lease.
async fn a_shutdown_ends_although_the_backend_hangs(stage: Stage) {
    let (process, key) = (stage.process().await, stage.key());
    let guard = process.take(&key).await;
    process.wire.hang();
    drop(guard);
    let shutdown = process.locks.shutdown(Duration::from_millis(400));
    error_of(soon("the end of the shutdown", shutdown).await, &[ErrorKind::TimedOut]);
    process.wire.mend();
}

/// Each process has its own end.
async fn a_shutdown_of_one_process_leaves_the_others_alone(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guard = theirs.take(&key).await;
    ours.locks.shutdown(SOON).await.expect("there is nothing to wait for");
    guard.check().expect("it is another process");
    give_back(guard).await;
    give_back(theirs.take(&key).await).await;
}

/// The release is made again, and nothing is counted for ever.
async fn a_shutdown_after_a_release_that_panicked_ends_with_nothing_left(stage: Stage) {
    let (ours, theirs, keys) = (stage.process().await, stage.process().await, [stage.key(), stage.key()]);
    let guards = [ours.take(&keys[0]).await, ours.take(&keys[1]).await];
    ours.wire.panic_replies(3);
    drop(guards);
    ours.locks.shutdown(SOON).await.expect("both are released in time");
    let stats = ours.locks.stats();
    assert_eq!((stats.held, stats.background), (0, 0));
    assert!(stats.failed_withdrawals > 0);
    for key in &keys {
        give_back(theirs.take(key).await).await;
    }
}

/// On a thread of the program's own: who holds the lock, its release, and the end of it all.
async fn inspecting_releasing_and_shutting_down_work_outside_of_a_runtime(stage: Stage) {
    let (ours, theirs, keys) = (stage.process().await, stage.process().await, [stage.key(), stage.key()]);
    let [released, dropped] = [ours.take(&keys[0]).await, ours.take(&keys[1]).await];
    let (done, is_done) = tokio::sync::oneshot::channel();
    let (locks, key) = (ours.locks.clone(), keys[0].clone());
    std::thread::spawn(move || {
        let holder = block_on(locks.inspect(&key)).map(|holder| holder.is_some());
        let released = block_on(released.release());
        drop(dropped);
        let _ = done.send((holder, released, block_on(locks.shutdown(SOON))));
    });
    let (holder, released, shut_down) = soon("the end", is_done).await.expect("the thread does not panic");
    assert!(holder.expect("it can be asked"), "somebody holds it");
    released.expect("it was held");
    shut_down.expect("nothing is left");
    for key in &keys {
        give_back(theirs.take(key).await).await;
    }
}
