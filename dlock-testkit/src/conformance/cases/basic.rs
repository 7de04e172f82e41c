//! One at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;

use super::cases;
use crate::conformance::Stage;
use crate::conformance::expect::{give_back, soon};

cases! {
    a_lock_is_taken_released_and_taken_again: Nothing, Easy;
    a_held_lock_is_busy_for_others_and_for_its_own_process: Nothing, Easy;
    a_released_lock_is_free_for_another_process: Nothing, Easy;
    different_keys_do_not_exclude_each_other: Nothing, Easy;
    a_hundred_locks_are_held_at_once_and_all_given_back: Nothing, Busy;
    of_many_that_try_at_once_exactly_one_wins: Nothing, Busy;
    an_unprotected_counter_of_parallel_tasks_is_exact: Nothing, Busy;
    bodies_on_several_processes_never_overlap: Nothing, Busy;
    a_guard_may_be_released_by_another_task: Nothing, Easy;
    clones_of_locks_are_one_process: Nothing, Easy;
}

/// The least.
async fn a_lock_is_taken_released_and_taken_again(stage: Stage) {
    let (process, key) = (stage.process().await, stage.key());
    for _ in 0..20 {
        let guard = process.take(&key).await;
        guard.check().expect("it is held");
        assert_eq!(guard.key(), key);
        give_back(guard).await;
    }
    assert_eq!(process.locks.stats().held, 0);
}

/// Without a scope, an owner is an acquire: the own process is not let in either.
async fn a_held_lock_is_busy_for_others_and_for_its_own_process(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guard = ours.take(&key).await;
    theirs.sees_held(&key).await;
    ours.sees_held(&key).await;
    guard.check().expect("those who tried did not change that");
    give_back(guard).await;
}

/// A confirmed release leaves nothing behind.
async fn a_released_lock_is_free_for_another_process(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    for _ in 0..5 {
        give_back(ours.take(&key).await).await;
        give_back(theirs.take(&key).await).await;
    }
}

/// Holding one is nothing to another.
async fn different_keys_do_not_exclude_each_other(stage: Stage) {
    let (ours, theirs) = (stage.process().await, stage.process().await);
    let (a, b) = (stage.key(), stage.key());
    let first = ours.take(&a).await;
    let second = theirs.take(&b).await;
    give_back(first).await;
    second.check().expect("the other release was not for this one");
    ours.sees_held(&b).await;
    give_back(second).await;
}

/// The store holds many locks.
async fn a_hundred_locks_are_held_at_once_and_all_given_back(stage: Stage) {
    let (ours, theirs) = (stage.process().await, stage.process().await);
    let keys: Vec<_> = (0..100).map(|_| stage.key()).collect();
    let mut guards = Vec::new();
    for key in &keys {
        guards.push(ours.take(key).await);
    }
    assert_eq!(ours.locks.stats().held, 100);
    for key in keys.iter().step_by(10) {
        theirs.sees_held(key).await;
    }
    for guard in guards {
        give_back(guard).await;
    }
    for key in &keys {
        give_back(theirs.take(key).await).await;
    }
}

/// There is one winner, and the others learn that without waiting.
async fn of_many_that_try_at_once_exactly_one_wins(stage: Stage) {
    let processes = [stage.process().await, stage.process().await, stage.process().await];
    for _ in 0..3 {
        let key = stage.key();
        let mut tries = JoinSet::new();
        for n in 0..60 {
            let lock = processes[n % processes.len()].locks.lock(&key);
            // So many connections at once take their time on a busy machine.
            let lock = lock.with_lease(Duration::from_secs(60)).with_request_timeout(Duration::from_secs(20));
            tries.spawn(async move { lock.try_acquire().await });
        }
        let mut winners = Vec::new();
        while let Some(result) = tries.join_next().await {
            winners.extend(result.expect("no panic").expect("the backend is there"));
        }
        if winners.is_empty() && stage.tries_can_split() {
            winners.push(processes[0].take_soon(&key).await);
        }
        assert_eq!(winners.len(), 1);
    }
}

/// A counter that is read and written in two steps loses updates without a lock.
async fn an_unprotected_counter_of_parallel_tasks_is_exact(stage: Stage) {
    let processes = [stage.process().await, stage.process().await];
    let (key, counter) = (stage.key(), Arc::new(AtomicU32::new(0)));
    let mut tasks = JoinSet::new();
    for n in 0..20 {
        let (lock, counter) = (processes[n % 2].locks.lock(&key), Arc::clone(&counter));
        tasks.spawn(async move {
            for _ in 0..3 {
                let guard = lock.acquire().await.expect("its turn comes");
                let seen = counter.load(Ordering::SeqCst);
                tokio::task::yield_now().await;
                counter.store(seen + 1, Ordering::SeqCst);
                give_back(guard).await;
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.expect("no task failed");
    }
    assert_eq!(counter.load(Ordering::SeqCst), 60);
}

/// No two bodies are inside at any time.
async fn bodies_on_several_processes_never_overlap(stage: Stage) {
    let processes = [stage.process().await, stage.process().await, stage.process().await];
    let (key, inside) = (stage.key(), Arc::new(AtomicBool::new(false)));
    let mut tasks = JoinSet::new();
    for n in 0..30 {
        let (lock, inside) = (processes[n % 3].locks.lock(&key), Arc::clone(&inside));
        tasks.spawn(async move {
            let body = async {
                assert!(!inside.swap(true, Ordering::SeqCst), "two bodies at once");
                for _ in 0..3 {
                    tokio::task::yield_now().await;
                }
                inside.store(false, Ordering::SeqCst);
            };
            lock.run(body).await.expect("its turn comes");
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.expect("no task failed");
    }
}

/// Guards are values: they may be sent.
async fn a_guard_may_be_released_by_another_task(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guard = ours.take(&key).await;
    let released = tokio::spawn(give_back(guard));
    soon("the release", released).await.expect("no panic");
    give_back(theirs.take(&key).await).await;
}

/// Clones share the holds and the counts.
async fn clones_of_locks_are_one_process(stage: Stage) {
    let (process, key) = (stage.process().await, stage.key());
    let clone = process.locks.clone();
    let guard = process.take(&key).await;
    assert!(clone.lock(&key).try_acquire().await.expect("it can be asked").is_none());
    assert_eq!(clone.stats().held, 1);
    give_back(guard).await;
    assert_eq!(clone.stats().held, 0);
}
