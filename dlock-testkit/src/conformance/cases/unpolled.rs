//! Acquires whose future nobody polls for a while, as in a `select!` loop that is busy in another branch.

use std::pin::Pin;
use std::time::Duration;

use dlock_core::{Guard, Lock, Result};

use super::cases;
use crate::cancel::polled;
use crate::conformance::Stage;
use crate::conformance::expect::{give_back, soon};

cases! {
    a_lock_that_is_granted_to_an_acquire_that_nobody_polls_goes_to_others: Nothing, Easy;
    a_waiter_that_nobody_polls_passes_its_turn_on: Nothing, Easy;
}

/// An acquire that was polled some times and then left aside. Its output, if it was done by then.
async fn left_aside(
    lock: Lock,
    polls: usize,
) -> (Pin<Box<dyn Future<Output = Result<Guard>> + Send>>, Option<Result<Guard>>) {
    let mut acquire: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(async move { lock.acquire().await });
    let step = polled(acquire.as_mut(), polls);
    let done = tokio::time::timeout(Duration::from_millis(200), step).await.ok().flatten();
    (acquire, done)
}

async fn a_lock_that_is_granted_to_an_acquire_that_nobody_polls_goes_to_others(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    for polls in 1..=8 {
        let (acquire, done) = left_aside(ours.locks.lock(&key), polls).await;
        if let Some(guard) = done {
            return give_back(guard.expect("it is free")).await;
        }
        // Whatever it has by now: in this process, and in another one.
        give_back(ours.take_soon(&key).await).await;
        give_back(theirs.take_soon(&key).await).await;
        // It begins anew.
        give_back(soon("the first one", acquire).await.expect("it is free")).await;
    }
}

async fn a_waiter_that_nobody_polls_passes_its_turn_on(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    for holder in [&ours, &theirs] {
        let held = holder.take_soon(&key).await;
        let (waiter, done) = left_aside(ours.locks.lock(&key), usize::MAX).await;
        assert!(done.is_none(), "somebody has it");
        let behind = [&ours, &theirs].map(|process| {
            let lock = process.locks.lock(&key);
            tokio::spawn(async move {
                let guard = lock.acquire().await.expect("it comes free");
                give_back(guard).await;
            })
        });
        give_back(held).await;
        for waiter in behind {
            soon("one behind it", waiter).await.expect("it ends well");
        }
        give_back(soon("the one before", waiter).await.expect("it is free")).await;
    }
}
