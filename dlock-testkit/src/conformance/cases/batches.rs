//! Several locks as one.

use dlock_core::{Batch, BatchGuard, ErrorKind};

use super::cases;
use crate::cancel::every_await_point;
use crate::conformance::expect::{error_of, give_back, until};
use crate::conformance::{Process, Stage};

cases! {
    every_lock_of_a_batch_is_held_until_its_release: Nothing, Easy;
    a_batch_that_finds_a_key_busy_takes_none_of_the_others: Nothing, Easy;
    a_batch_whose_reply_is_lost_adopts_all_its_grants: Nothing, Easy;
    a_batch_of_unknown_outcome_leaves_nothing: Nothing, Easy;
    a_batch_dropped_at_any_await_leaves_nothing: Nothing, Easy;
    a_lock_of_a_batch_that_was_deleted_ends_it_and_the_others_are_given_back: Lease, Timed;
    batches_in_opposite_orders_all_get_through: Nothing, Busy;
    a_lock_that_is_reached_twice_is_taken_once: Nothing, Easy;
}

fn keys(stage: &Stage) -> [String; 3] {
    let mut keys = [stage.key(), stage.key(), stage.key()];
    // As the batch takes them.
    keys.sort();
    keys
}

async fn take(process: &Process, keys: &[String]) -> BatchGuard {
    match process.locks.lock_all(keys).try_acquire().await {
        Ok(Some(guard)) => guard,
        Ok(None) => panic!("one of {keys:?} is held, and all should be free"),
        Err(error) => panic!("{keys:?} could not be taken: {error}"),
    }
}

async fn release(guard: BatchGuard) {
    if let Err(error) = guard.release().await {
        panic!("a batch could not be released: {error}");
    }
}

/// For others, each is a lock like any other.
async fn every_lock_of_a_batch_is_held_until_its_release(stage: Stage) {
    let (ours, theirs, keys) = (stage.process().await, stage.process().await, keys(&stage));
    for _ in 0..3 {
        let guard = take(&ours, &keys).await;
        guard.check().expect("it was just taken");
        for key in &keys {
            theirs.sees_held(key).await;
        }
        release(guard).await;
        for key in &keys {
            give_back(theirs.take(key).await).await;
        }
    }
}

/// Nothing of what the attempt left may be taken back here: it must not have taken anything. Backends that take them
/// one after the other have to release what they took, which is another case.
async fn a_batch_that_finds_a_key_busy_takes_none_of_the_others(stage: Stage) {
    let (ours, theirs, keys) = (stage.process().await, stage.process().await, keys(&stage));
    let before = ours.wire.attempts();
    release(take(&ours, &keys).await).await;
    let in_one_step = ours.wire.attempts() == before + 1;
    for busy in 0..keys.len() {
        let guard = theirs.take(&keys[busy]).await;
        if in_one_step {
            ours.wire.keep_withdrawals();
        }
        let taken = ours.locks.lock_all(&keys).try_acquire().await.expect("it can be asked");
        assert!(taken.is_none(), "{} is held by somebody else", keys[busy]);
        for (n, key) in keys.iter().enumerate() {
            if n != busy {
                give_back(theirs.take(key).await).await;
            }
        }
        ours.wire.mend();
        give_back(guard).await;
        until("the background work", || ours.locks.stats().background == 0).await;
        release(take(&ours, &keys).await).await;
    }
}

/// Asking again finds all of them ours.
async fn a_batch_whose_reply_is_lost_adopts_all_its_grants(stage: Stage) {
    let (ours, theirs, keys) = (stage.process().await, stage.process().await, keys(&stage));
    ours.wire.lose_replies(1);
    let guard = take(&ours, &keys).await;
    assert!(ours.locks.stats().rechecks >= 1);
    guard.check().expect("it was adopted");
    for key in &keys {
        theirs.sees_held(key).await;
    }
    release(guard).await;
    for key in &keys {
        give_back(theirs.take(key).await).await;
    }
}

/// Whatever the attempt took is withdrawn, long before the leases end.
async fn a_batch_of_unknown_outcome_leaves_nothing(stage: Stage) {
    let (ours, theirs, keys) = (stage.process().await, stage.process().await, keys(&stage));
    for _ in 0..3 {
        ours.wire.lose_replies(1);
        let batch = ours.locks.lock_all(&keys).with_each(|lock| lock.with_rechecks(0));
        error_of(batch.acquire().await, &[ErrorKind::Unknown]);
        for key in &keys {
            theirs.sees_free_soon(key).await;
        }
        until("the background work", || ours.locks.stats().background == 0).await;
    }
}

/// At every await of a batch whose locks are free.
async fn a_batch_dropped_at_any_await_leaves_nothing(stage: Stage) {
    let (ours, theirs, keys) = (stage.process().await, stage.process().await, keys(&stage));
    let batch = ours.locks.lock_all(&keys);
    every_await_point(
        || batch.acquire(),
        async |_cut, output| {
            drop(output.map(|result| result.expect("they are free")));
            for key in &keys {
                theirs.sees_free_soon(key).await;
            }
        },
    )
    .await;
    assert_eq!(ours.locks.stats().held, 0);
}

/// Losing one is losing the batch; what is left of it is released.
async fn a_lock_of_a_batch_that_was_deleted_ends_it_and_the_others_are_given_back(stage: Stage) {
    let (ours, theirs, keys) = (stage.short().await, stage.process().await, keys(&stage));
    let guard = take(&ours, &keys).await;
    ours.delete(&keys[1]).await;
    guard.lost().await;
    assert_eq!(error_of(guard.check(), &[ErrorKind::Lost]).key(), Some(&*keys[1]));
    let successor = theirs.take(&keys[1]).await;
    error_of(guard.release().await, &[ErrorKind::NotHeld]);
    for key in [&keys[0], &keys[2]] {
        give_back(theirs.take(key).await).await;
    }
    successor.check().expect("it is not touched");
    give_back(successor).await;
}

/// Two processes that want the same locks, each in an order of its own.
async fn batches_in_opposite_orders_all_get_through(stage: Stage) {
    let (ours, theirs, keys) = (stage.process().await, stage.process().await, keys(&stage));
    let [a, b, c] = &keys;
    let turn = async |process: &Process, keys: [&String; 3]| {
        for _ in 0..15 {
            let guard = process.locks.lock_all(keys).acquire().await;
            let guard = guard.unwrap_or_else(|error| panic!("{keys:?} could not be had: {error}"));
            tokio::task::yield_now().await;
            guard.check().expect("it is held");
            release(guard).await;
        }
    };
    tokio::join!(turn(&ours, [a, b, c]), turn(&theirs, [c, b, a]), turn(&ours, [b, c, a]));
    for key in &keys {
        give_back(theirs.take(key).await).await;
    }
}

/// The backend names one lock in one way, whoever asks.
async fn a_lock_that_is_reached_twice_is_taken_once(stage: Stage) {
    let (ours, theirs, [a, b, _]) = (stage.process().await, stage.process().await, keys(&stage));
    let of = |order: [&Process; 3]| {
        Batch::of([order[0].locks.lock(&b), order[1].locks.lock(&a), order[2].locks.lock(&b)])
    };
    for batch in [of([&ours, &theirs, &theirs]), of([&theirs, &ours, &ours])] {
        assert_eq!(batch.keys().collect::<Vec<_>>(), [&*a, &*b]);
        match batch.try_acquire().await {
            Ok(Some(guard)) => release(guard).await,
            Ok(None) => panic!("a batch is in its own way"),
            Err(error) => panic!("a batch could not be taken: {error}"),
        }
    }
}
