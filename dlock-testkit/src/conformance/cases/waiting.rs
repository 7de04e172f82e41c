//! Waiting for a lock that somebody else holds.

use std::future::{Future, poll_fn};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_core::{ErrorKind, Wait};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::cases;
use crate::conformance::Stage;
use crate::conformance::expect::{error_of, give_back, soon, until};

cases! {
    a_waiter_gets_the_lock_when_the_holder_releases_it: Nothing, Easy;
    a_waiter_of_the_same_process_gets_the_lock_when_it_is_released: Nothing, Easy;
    a_wait_that_times_out_took_its_time_and_names_the_holder: Nothing, Easy;
    asking_without_waiting_asks_once_and_names_the_holder: Nothing, Easy;
    waiting_forever_ends_with_the_lock: Nothing, Easy;
    a_waiter_that_gives_up_leaves_its_place_to_the_next: Nothing, Easy;
    a_waiter_that_is_cancelled_never_gets_the_lock: Nothing, Easy;
    waiters_of_one_process_come_in_their_order: Nothing, Easy;
    many_waiters_on_two_processes_each_get_the_lock_once: Nothing, Busy;
    two_processes_hand_a_lock_back_and_forth: Nothing, Busy;
    a_waiter_that_misses_every_notification_gets_the_lock_all_the_same: Nothing, Easy;
    a_waiter_takes_over_when_the_holder_goes_silent: Lease, Timed;
}

/// A release reaches those who wait elsewhere.
async fn a_waiter_gets_the_lock_when_the_holder_releases_it(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guard = ours.take(&key).await;
    let lock = theirs.locks.lock(&key);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    until("the waiter's attempt", || theirs.wire.attempts() > 0).await;
    assert!(!waiter.is_finished());
    give_back(guard).await;
    let guard = soon("its turn", waiter).await.expect("no panic").expect("it was released");
    ours.sees_held(&key).await;
    give_back(guard).await;
}

/// A release reaches those who wait here.
async fn a_waiter_of_the_same_process_gets_the_lock_when_it_is_released(stage: Stage) {
    let (process, key) = (stage.process().await, stage.key());
    let guard = process.take(&key).await;
    let lock = process.locks.lock(&key);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    until("the waiter's attempt", || process.wire.attempts() > 1).await;
    drop(guard);
    let guard = soon("its turn", waiter).await.expect("no panic").expect("it was released");
    give_back(guard).await;
}

/// The time-out is the caller's: not shorter, and it ends although the lock does not come free.
async fn a_wait_that_times_out_took_its_time_and_names_the_holder(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guard = ours.take(&key).await;
    for wait in [1, 50, 250].map(Duration::from_millis) {
        let (started, unanswered) = (Instant::now(), theirs.wire.unanswered_attempts());
        let result = soon("the time-out", theirs.locks.lock(&key).with_wait(wait).acquire()).await;
        // The outcome is unknown where a request was under way when the wait was over, and only there. A backend may
        // know of one that it was never sent: then nothing is held, and maybe nobody was asked.
        let cut_short = theirs.wire.unanswered_attempts() > unanswered;
        let unknown = [ErrorKind::Unknown, ErrorKind::TimedOut, ErrorKind::Unavailable];
        let error = error_of(result, if cut_short { &unknown } else { &[ErrorKind::TimedOut] });
        assert_eq!(error.kind() == ErrorKind::Unknown, error.maybe_held_for_at_most().is_some(), "{error}");
        assert!(started.elapsed() >= wait, "gave up after {:?} of {wait:?}", started.elapsed());
        assert!(error.waited().is_some_and(|waited| waited >= wait));
        assert_eq!(error.key(), Some(&*key));
        assert!(error.is_retryable());
        if !cut_short {
            assert!(error.is_busy());
            assert_eq!(error.holder().and_then(|holder| holder.pid), Some(std::process::id()), "{error}");
        }
    }
    guard.check().expect("those who waited did not change that");
    // Those who waited may have a place in a queue of the server, which they leave in the background.
    until("the clean-up", || theirs.locks.stats().background == 0).await;
    give_back(guard).await;
    give_back(ours.take(&key).await).await;
}

/// No wait is one request.
async fn asking_without_waiting_asks_once_and_names_the_holder(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guard = ours.take(&key).await;
    let result = theirs.locks.lock(&key).with_wait(Wait::No).acquire().await;
    let error = error_of(result, &[ErrorKind::Busy]);
    assert_eq!(theirs.wire.attempts(), 1);
    assert_eq!(error.holder().and_then(|holder| holder.pid), Some(std::process::id()), "{error}");
    give_back(guard).await;
}

/// It is the only wait without an end, and it ends when the lock comes free.
async fn waiting_forever_ends_with_the_lock(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guard = ours.take(&key).await;
    let lock = theirs.locks.lock(&key).with_wait(Wait::Forever);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    until("the waiter's attempts", || theirs.wire.attempts() > 0).await;
    give_back(guard).await;
    give_back(soon("its turn", waiter).await.expect("no panic").expect("it was released")).await;
}

/// One who stops waiting holds nobody up.
async fn a_waiter_that_gives_up_leaves_its_place_to_the_next(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guard = ours.take(&key).await;
    let first = theirs.locks.lock(&key).with_wait(Duration::from_millis(150));
    let first = tokio::spawn(async move { first.acquire().await });
    until("the first waiter's attempt", || theirs.wire.attempts() > 0).await;
    let second = theirs.locks.lock(&key);
    let second = tokio::spawn(async move { second.acquire().await });
    let kinds = [ErrorKind::TimedOut, ErrorKind::Unknown];
    let error = error_of(soon("giving up", first).await.expect("no panic"), &kinds);
    // Its last request may be under way when the wait ends.
    assert!(error.kind() == ErrorKind::TimedOut || theirs.wire.unanswered_attempts() > 0, "{error}");
    assert!(!second.is_finished());
    give_back(guard).await;
    give_back(soon("its turn", second).await.expect("no panic").expect("it was released")).await;
}

/// One who was cancelled does not come back as a ghost.
async fn a_waiter_that_is_cancelled_never_gets_the_lock(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guard = ours.take(&key).await;
    let mut waiters = JoinSet::new();
    for _ in 0..5 {
        let lock = theirs.locks.lock(&key);
        waiters.spawn(async move { lock.acquire().await });
    }
    until("a waiter's attempt", || theirs.wire.attempts() > 0).await;
    waiters.shutdown().await;
    until("the clean-up", || theirs.locks.stats().background == 0).await;
    give_back(guard).await;
    for _ in 0..3 {
        give_back(ours.take(&key).await).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(theirs.locks.stats().held, 0);
}

/// First come, first served, inside one process.
async fn waiters_of_one_process_come_in_their_order(stage: Stage) {
    let (process, key) = (stage.process().await, stage.key());
    let guard = process.take(&key).await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut waiters = JoinSet::new();
    for n in 0..8 {
        let (lock, order, wire) = (process.locks.lock(&key), Arc::clone(&order), process.wire.clone());
        let before = wire.attempts();
        let (queued, is_queued) = tokio::sync::oneshot::channel();
        waiters.spawn(async move {
            let (mut acquire, mut queued) = (Box::pin(lock.acquire()), Some(queued));
            let guard = poll_fn(|context| {
                let polled = acquire.as_mut().poll(context);
                // The first one stands in line after the poll that has brought its answer, the others after their
                // first.
                let answered = wire.attempts() > before && wire.unanswered_attempts() == 0;
                if (n > 0 || answered)
                    && let Some(queued) = queued.take()
                {
                    let _ = queued.send(());
                }
                polled
            });
            let guard = guard.await.expect("its turn comes");
            order.lock().expect("not poisoned").push(n);
            give_back(guard).await;
        });
        is_queued.await.expect("it was polled");
    }
    give_back(guard).await;
    while let Some(waiter) = waiters.join_next().await {
        waiter.expect("no waiter failed");
    }
    assert_eq!(*order.lock().expect("not poisoned"), (0..8).collect::<Vec<_>>());
}

/// No waiter is forgotten and none is served twice.
async fn many_waiters_on_two_processes_each_get_the_lock_once(stage: Stage) {
    let processes = [stage.process().await, stage.process().await];
    let key = stage.key();
    let guard = processes[0].take(&key).await;
    let mut waiters = JoinSet::new();
    for n in 0..50 {
        let lock = processes[n % 2].locks.lock(&key).with_wait(Duration::from_secs(30));
        waiters.spawn(async move {
            give_back(lock.acquire().await.expect("its turn comes")).await;
            n
        });
    }
    until("waiters of both", || processes.iter().all(|process| process.wire.attempts() > 0)).await;
    give_back(guard).await;
    let mut served: Vec<usize> = waiters.join_all().await;
    served.sort_unstable();
    assert_eq!(served, (0..50).collect::<Vec<_>>());
    give_back(processes[0].take(&key).await).await;
}

/// Neither starves while both want it again and again.
async fn two_processes_hand_a_lock_back_and_forth(stage: Stage) {
    let processes = [stage.process().await, stage.process().await];
    let key = stage.key();
    let run = |n: usize| {
        let lock = processes[n].locks.lock(&key).with_wait(Duration::from_secs(30));
        async move {
            for _ in 0..20 {
                let guard = lock.acquire().await.expect("its turn comes");
                tokio::time::sleep(Duration::from_millis(1)).await;
                give_back(guard).await;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    };
    tokio::join!(run(0), run(1));
}

/// A lost notification costs time, never progress.
async fn a_waiter_that_misses_every_notification_gets_the_lock_all_the_same(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    theirs.wire.deafen();
    let guard = ours.take(&key).await;
    let lock = theirs.locks.lock(&key);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    until("the waiter's attempt", || theirs.wire.attempts() > 0).await;
    give_back(guard).await;
    give_back(soon("its turn", waiter).await.expect("no panic").expect("it was released")).await;
}

/// The lease of a holder that is gone ends by itself, and not before the holder knows.
async fn a_waiter_takes_over_when_the_holder_goes_silent(stage: Stage) {
    let (ours, theirs, key) = (stage.short().await, stage.short().await, stage.key());
    let guard = ours.take(&key).await;
    ours.wire.cut();
    let successor = theirs.take_soon(&key).await;
    error_of(guard.check(), &[ErrorKind::Lost]);
    successor.check().expect("it is the holder now");
    give_back(successor).await;
}
