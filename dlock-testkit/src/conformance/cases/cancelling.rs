//! Futures that are dropped in the middle.

use std::sync::Mutex;
use std::time::Duration;

use dlock_core::Guard;

use super::cases;
use crate::cancel::every_await_point;
use crate::conformance::Stage;
use crate::conformance::expect::{give_back, soon, until};

cases! {
    an_acquire_dropped_at_any_await_leaves_nothing: Nothing, Easy;
    a_try_dropped_at_any_await_leaves_nothing: Nothing, Easy;
    a_waiter_dropped_at_any_await_leaves_nothing: Nothing, Easy;
    a_body_dropped_at_any_await_gives_its_lock_back: Nothing, Easy;
    the_loser_of_a_race_leaves_nothing: Nothing, Easy;
    an_acquire_aborted_at_a_random_moment_leaves_nothing: Nothing, Busy;
}

/// At every await of an acquire of a free lock.
async fn an_acquire_dropped_at_any_await_leaves_nothing(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let lock = ours.locks.lock(&key);
    let points = every_await_point(
        || lock.acquire(),
        async |_cut, output| {
            drop(output.map(|result| result.expect("it is free")));
            theirs.sees_free_soon(&key).await;
        },
    )
    .await;
    assert!(points >= 2);
    assert_eq!(ours.locks.stats().held, 0);
}

/// The same without waiting. Each try has a key of its own: what a dropped one has asked for may still arrive after
/// somebody else had the lock and released it, and would be in the way of the next one until it is withdrawn.
async fn a_try_dropped_at_any_await_leaves_nothing(stage: Stage) {
    let (ours, theirs) = (stage.process().await, stage.process().await);
    let keys = Mutex::new(Vec::new());
    let make = || {
        let key = stage.key();
        keys.lock().expect("nobody panicked").push(key.clone());
        let lock = ours.locks.lock(&key);
        async move { lock.try_acquire().await }
    };
    let after_each = async |_cut, output: Option<dlock_core::Result<Option<Guard>>>| {
        if let Some(result) = output {
            assert!(result.expect("it can be asked").is_some(), "it is free");
        }
        let key = keys.lock().expect("nobody panicked").last().cloned();
        theirs.sees_free_soon(&key.expect("it was tried for")).await;
    };
    let points = every_await_point(make, after_each).await;
    assert!(points >= 2);
    until("the background work", || ours.locks.stats().background == 0).await;
    for key in keys.into_inner().expect("nobody panicked") {
        give_back(theirs.take(&key).await).await;
    }
}

/// At every await of an acquire that finds the lock taken and gives up after a while.
async fn a_waiter_dropped_at_any_await_leaves_nothing(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guard = theirs.take(&key).await;
    let lock = ours.locks.lock(&key).with_wait(Duration::from_millis(60));
    let points = every_await_point(
        || lock.acquire(),
        async |_cut, output| {
            if let Some(result) = output {
                result.expect_err("it is held by another process");
            }
            guard.check().expect("those who waited did not change that");
        },
    )
    .await;
    assert!(points >= 2);
    until("the background work", || ours.locks.stats().background == 0).await;
    give_back(guard).await;
    give_back(theirs.take(&key).await).await;
}

/// At every await of a run: acquire, body, release.
async fn a_body_dropped_at_any_await_gives_its_lock_back(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let lock = ours.locks.lock(&key);
    let make = || {
        lock.run(async {
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
        })
    };
    let points = every_await_point(make, async |_cut, output| {
        if let Some(result) = output {
            result.expect("it is free");
        }
        theirs.sees_free_soon(&key).await;
    })
    .await;
    assert!(points >= 8, "the body alone has three awaits");
}

/// `select!` drops the slower one.
async fn the_loser_of_a_race_leaves_nothing(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    for _ in 0..20 {
        let lock = ours.locks.lock(&key);
        tokio::select! {
            result = lock.acquire() => drop(result.expect("it is free")),
            () = tokio::task::yield_now() => {}
        }
        theirs.sees_free_soon(&key).await;
    }
    until("the background work", || ours.locks.stats().background == 0).await;
}

/// Tasks that are aborted whenever, over a lock that changes hands.
async fn an_acquire_aborted_at_a_random_moment_leaves_nothing(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..100 {
        let lock = ours.locks.lock(&key);
        let task = tokio::spawn(async move { lock.acquire().await.map(drop) });
        tokio::time::sleep(Duration::from_micros(random.u64(0..800))).await;
        task.abort();
        let _ = task.await;
    }
    soon("the lock", theirs.sees_free_soon(&key)).await;
    until("the background work", || ours.locks.stats().background == 0).await;
    give_back(theirs.take(&key).await).await;
}
