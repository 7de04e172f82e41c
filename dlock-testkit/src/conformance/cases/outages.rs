//! A backend that cannot be reached.

use std::time::Duration;

use dlock_core::{ErrorKind, Wait};
use tokio::time::Instant;

use super::cases;
use crate::conformance::Stage;
use crate::conformance::expect::{error_of, give_back, soon, until};

cases! {
    an_unavailable_backend_is_an_error_at_once_for_who_does_not_wait: Nothing, Easy;
    an_unavailable_backend_is_an_error_when_the_wait_is_over: Nothing, Easy;
    a_wait_survives_a_short_outage: Nothing, Easy;
    a_waiter_in_line_survives_a_short_outage: Nothing, Easy;
    an_outage_of_one_process_is_none_of_the_others: Nothing, Easy;
    an_acquire_cancelled_in_an_outage_leaves_nothing: Nothing, Easy;
}

/// Not "busy": nobody knows.
async fn an_unavailable_backend_is_an_error_at_once_for_who_does_not_wait(stage: Stage) {
    let (process, key) = (stage.process().await, stage.key());
    process.wire.cut();
    let error = error_of(process.locks.lock(&key).try_acquire().await, &[ErrorKind::Unavailable]);
    assert!(!error.is_busy() && error.is_retryable());
    error_of(process.locks.lock(&key).with_wait(Wait::No).acquire().await, &[ErrorKind::Unavailable]);
    assert_eq!(process.wire.attempts(), 2);
    process.wire.mend();
    give_back(process.take(&key).await).await;
}

/// The caller's time is used to try again, and no more than that.
async fn an_unavailable_backend_is_an_error_when_the_wait_is_over(stage: Stage) {
    let (process, key) = (stage.process().await, stage.key());
    process.wire.cut();
    let (wait, started) = (Duration::from_millis(300), Instant::now());
    let result = soon("the answer", process.locks.lock(&key).with_wait(wait).acquire()).await;
    error_of(result, &[ErrorKind::Unavailable]);
    assert!(started.elapsed() >= wait && process.wire.attempts() > 1);
}

/// It comes back while the caller still waits.
async fn a_wait_survives_a_short_outage(stage: Stage) {
    let (process, key) = (stage.process().await, stage.key());
    process.wire.cut();
    let lock = process.locks.lock(&key);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    until("some attempts", || process.wire.attempts() >= 3).await;
    process.wire.mend();
    give_back(soon("the grant", waiter).await.expect("no panic").expect("it is free")).await;
}

/// Also for one who waits for a holder.
async fn a_waiter_in_line_survives_a_short_outage(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guard = ours.take(&key).await;
    let lock = theirs.locks.lock(&key);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    until("a first attempt", || theirs.wire.attempts() > 0).await;
    theirs.wire.cut();
    theirs.wire.deafen();
    let asked = theirs.wire.attempts();
    until("an attempt in the outage", || theirs.wire.attempts() > asked).await;
    give_back(guard).await;
    let asked = theirs.wire.attempts();
    until("another attempt in the outage", || theirs.wire.attempts() > asked).await;
    assert!(!waiter.is_finished());
    theirs.wire.mend();
    give_back(soon("the grant", waiter).await.expect("no panic").expect("it is free")).await;
}

/// The store is there for the others.
async fn an_outage_of_one_process_is_none_of_the_others(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    ours.wire.cut();
    let guard = theirs.take(&key).await;
    error_of(ours.locks.lock(&key).try_acquire().await, &[ErrorKind::Unavailable]);
    ours.wire.mend();
    ours.sees_held(&key).await;
    give_back(guard).await;
}

/// No ghost comes back with the backend.
async fn an_acquire_cancelled_in_an_outage_leaves_nothing(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    ours.wire.cut();
    let given_up = tokio::time::timeout(Duration::from_millis(100), ours.locks.lock(&key).acquire()).await;
    assert!(given_up.is_err());
    ours.wire.mend();
    until("the background work", || ours.locks.stats().background == 0).await;
    give_back(theirs.take(&key).await).await;
}
