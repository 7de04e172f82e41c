//! An owner that takes again what it holds.

use std::time::Duration;

use dlock_core::{ErrorKind, OnLost, current_hold, in_current_scope};
use tokio::task::JoinSet;

use super::cases;
use crate::conformance::Stage;
use crate::conformance::expect::{error_of, give_back, soon, until};

cases! {
    a_nested_acquire_in_a_body_re_enters_without_a_request: Nothing, Easy;
    guards_of_one_scope_re_enter_and_leave_in_any_order: Nothing, Easy;
    another_process_is_not_let_in_before_the_last_guard_is_released: Nothing, Easy;
    branches_of_a_join_exclude_each_other: Nothing, Easy;
    a_spawned_task_does_not_inherit_the_lock: Nothing, Easy;
    a_task_taken_along_re_enters_and_keeps_the_lock: Nothing, Easy;
    nesting_too_deep_is_an_error_and_no_hang: Nothing, Easy;
    without_reentrancy_a_nested_acquire_is_an_error_and_no_hang: Nothing, Easy;
    the_owner_moves_between_worker_threads: Nothing, Busy;
    locks_of_another_process_are_not_entered: Nothing, Easy;
    a_lost_lock_is_not_entered_again: Lease, Timed;
}

/// Inside a body the lock is there already.
async fn a_nested_acquire_in_a_body_re_enters_without_a_request(stage: Stage) {
    let (process, key) = (stage.process().await, stage.key());
    let lock = process.locks.lock(&key);
    let body = lock.run_with(|held| {
        let (lock, process) = (lock.clone(), process.clone());
        async move {
            let sent = process.wire.requests();
            let guard = lock.acquire().await.expect("it re-enters");
            assert_eq!(guard.fence(), held.fence());
            let inner = lock.run_with(async |inner| inner.fence()).await.expect("it re-enters");
            assert_eq!(inner, held.fence());
            assert!(lock.try_acquire().await.expect("it re-enters").is_some());
            give_back(guard).await;
            held.check().expect("the inner releases did not release the lock");
            assert_eq!(process.wire.requests(), sent);
            assert_eq!(current_hold().and_then(|hold| hold.fence()), held.fence());
        }
    });
    soon("the body", body).await.expect("it is held to the end");
    assert_eq!(process.locks.stats().held, 0);
    give_back(process.take(&key).await).await;
}

/// By hand: the first to leave may be the first that came.
async fn guards_of_one_scope_re_enter_and_leave_in_any_order(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    ours.locks
        .scope(async {
            let lock = ours.locks.lock(&key);
            let first = lock.acquire().await.expect("it is free");
            let second = lock.acquire().await.expect("it re-enters");
            let third = lock.acquire().await.expect("it re-enters");
            give_back(first).await;
            theirs.sees_held(&key).await;
            drop(third);
            theirs.sees_held(&key).await;
            second.check().expect("it is held by the last guard");
            give_back(second).await;
            give_back(theirs.take(&key).await).await;
            // And once more, from the start.
            let again = lock.acquire().await.expect("it is free");
            theirs.sees_held(&key).await;
            give_back(again).await;
        })
        .await;
}

/// Nested releases are steps back, no releases.
async fn another_process_is_not_let_in_before_the_last_guard_is_released(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    ours.locks
        .scope(async {
            let lock = ours.locks.lock(&key);
            let mut guards = Vec::new();
            for _ in 0..5 {
                guards.push(lock.acquire().await.expect("it re-enters"));
            }
            while let Some(guard) = guards.pop() {
                theirs.sees_held(&key).await;
                give_back(guard).await;
            }
            give_back(theirs.take(&key).await).await;
        })
        .await;
}

/// Two branches are two owners.
async fn branches_of_a_join_exclude_each_other(stage: Stage) {
    let (process, key) = (stage.process().await, stage.key());
    let lock = process.locks.lock(&key);
    let inside = std::sync::atomic::AtomicU32::new(0);
    let branch = || {
        lock.run(async {
            assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0, "two branches inside");
            tokio::time::sleep(Duration::from_millis(5)).await;
            inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
        })
    };
    let (a, b, c) = soon("all branches", async { tokio::join!(branch(), branch(), branch()) }).await;
    for result in [a, b, c] {
        result.expect("its turn comes");
    }
}

/// Ownership does not leak into what is spawned.
async fn a_spawned_task_does_not_inherit_the_lock(stage: Stage) {
    let (process, key) = (stage.process().await, stage.key());
    let lock = process.locks.lock(&key);
    lock.run(async {
        let other = lock.clone();
        let taken = tokio::spawn(async move { other.try_acquire().await }).await.expect("no panic");
        assert!(taken.expect("it can be asked").is_none());
        assert!(tokio::spawn(async { current_hold().is_none() }).await.expect("no panic"));
    })
    .await
    .expect("it is free");
}

/// Wrapped, it inherits, and the lock is not released while it runs.
#[expect(clippy::async_yields_async, reason = "the body is to end before the task")]
async fn a_task_taken_along_re_enters_and_keeps_the_lock(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let lock = ours.locks.lock(&key);
    let (go_on, may_go_on) = tokio::sync::oneshot::channel();
    let task = lock
        .run(async {
            let lock = lock.clone();
            tokio::spawn(in_current_scope(async move {
                may_go_on.await.expect("it is notified");
                let guard = lock.try_acquire().await.expect("it can be asked").expect("it re-enters");
                guard.check().expect("it is still held");
            }))
        })
        .await
        .expect("it is free");
    // The body is done; the task is not.
    theirs.sees_held(&key).await;
    go_on.send(()).expect("the task waits");
    soon("the task", task).await.expect("no panic");
    theirs.sees_free_soon(&key).await;
}

/// A recursion without an end is found out.
async fn nesting_too_deep_is_an_error_and_no_hang(stage: Stage) {
    let (process, key) = (stage.process().await, stage.key());
    let lock = process.locks.lock(&key).with_max_depth(3);
    process
        .locks
        .scope(async {
            let mut guards = Vec::new();
            for _ in 0..3 {
                guards.push(lock.acquire().await.expect("it is not too deep"));
            }
            let error = error_of(soon("the answer", lock.acquire()).await, &[ErrorKind::Deadlock]);
            let error = error.to_string();
            assert!(error.contains("3 times") && error.contains("max_depth"), "{error}");
            drop(guards.pop());
            guards.push(lock.acquire().await.expect("one has left"));
        })
        .await;
    process.sees_free_soon(&key).await;
}

/// It would wait for itself.
async fn without_reentrancy_a_nested_acquire_is_an_error_and_no_hang(stage: Stage) {
    let (process, key) = (stage.process().await, stage.key());
    let lock = process.locks.lock(&key).with_reentrancy(false);
    lock.run(async {
        let error = error_of(soon("the answer", lock.acquire()).await, &[ErrorKind::Deadlock]);
        assert!(!error.is_retryable());
        error_of(lock.run(async {}).await, &[ErrorKind::Deadlock]);
        // Another key is nothing to it.
        give_back(process.take(&stage.key()).await).await;
    })
    .await
    .expect("it is free");
    give_back(process.take(&key).await).await;
}

/// The owner is the code that runs, not the thread it runs on.
async fn the_owner_moves_between_worker_threads(stage: Stage) {
    let (process, key) = (stage.process().await, stage.key());
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let lock = process.locks.lock(&key);
        tasks.spawn(async move {
            lock.run(async {
                for _ in 0..30 {
                    tokio::task::yield_now().await;
                    let inner = lock.try_acquire().await.expect("it can be asked");
                    assert!(inner.is_some(), "it is the owner on every thread");
                }
            })
            .await
            .expect("its turn comes");
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.expect("no task failed");
    }
}

/// The same key of other `Locks` is another lock handle, which may even be another store.
async fn locks_of_another_process_are_not_entered(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    ours.locks.lock(&key).run(theirs.sees_held(&key)).await.expect("it is free");
}

/// Loss ends the ownership: what is taken next is a new hold.
async fn a_lost_lock_is_not_entered_again(stage: Stage) {
    let (ours, theirs, key) = (stage.short().await, stage.process().await, stage.key());
    let lock = ours.locks.lock(&key).with_on_lost(OnLost::Continue);
    lock.run_with(|held| {
        let (lock, ours, theirs, key) = (lock.clone(), ours.clone(), theirs.clone(), key.clone());
        async move {
            ours.delete(&key).await;
            soon("the loss", held.lost()).await;
            let other = theirs.take(&key).await;
            assert!(lock.try_acquire().await.expect("it can be asked").is_none(), "somebody else holds it");
            give_back(other).await;
            let again = lock.acquire().await.expect("it is free again");
            again.check().expect("it is a new hold");
            error_of(held.check(), &[ErrorKind::Lost]);
            assert!(again.fence() > held.fence() || held.fence().is_none());
            give_back(again).await;
        }
    })
    .await
    .expect("the body goes on");
    until("the background work", || ours.locks.stats().background == 0).await;
}
