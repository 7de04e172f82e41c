//! A lock that is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlock_core::{ErrorKind, OnLost};

use super::cases;
use crate::conformance::Stage;
use crate::conformance::expect::{error_of, give_back, soon, until};

cases! {
    a_deleted_lock_is_noticed_by_the_next_renewal: Lease, Timed;
    a_loss_is_final_for_the_guard_and_its_views: Lease, Timed;
    a_holder_that_cannot_renew_knows_before_anybody_else_gets_in: Lease, Timed;
    a_late_renewal_is_announced_before_the_loss: Lease, Timed;
    releasing_after_a_loss_is_not_held_and_leaves_the_successor_alone: Lease, Timed;
    dropping_after_a_loss_leaves_the_successor_alone: Lease, Timed;
    a_body_is_dropped_when_its_lock_is_lost: Lease, Timed;
    a_body_that_asked_to_continue_runs_on_and_is_told: Lease, Timed;
    after_a_loss_the_same_process_takes_the_key_again_and_renews_it: Lease, Timed;
    max_hold_ends_a_lock_that_is_in_use: Lease, Timed;
    losing_one_lock_leaves_the_others_of_the_process: Lease, Timed;
}

/// The keeper finds out by itself: the renewal is answered with "gone", long before the lease would have ended.
async fn a_deleted_lock_is_noticed_by_the_next_renewal(stage: Stage) {
    let (process, key) = (stage.short().await, stage.key());
    let guard = process.take(&key).await;
    process.delete(&key).await;
    soon("the loss", guard.lost()).await;
    let error = error_of(guard.check(), &[ErrorKind::Lost]);
    assert!(error.to_string().contains("no longer has it"), "not by a renewal: {error}");
    assert_eq!(process.locks.stats().lost, 1);
    let held = guard.held();
    error_of(guard.release().await, &[ErrorKind::NotHeld]);
    error_of(held.check(), &[ErrorKind::Lost]);
}

/// It does not come back, even when everything works again.
async fn a_loss_is_final_for_the_guard_and_its_views(stage: Stage) {
    let (process, key) = (stage.short().await, stage.key());
    let guard = process.take(&key).await;
    let held = guard.held();
    process.wire.cut();
    soon("the loss", held.lost()).await;
    process.wire.mend();
    tokio::time::sleep(stage.lease()).await;
    error_of(guard.check(), &[ErrorKind::Lost]);
    error_of(held.check(), &[ErrorKind::Lost]);
    assert!(!held.is_held());
    assert_eq!((guard.remaining(), held.remaining()), (Some(Duration::ZERO), Some(Duration::ZERO)));
    // Resolves at once, as often as it is asked.
    soon("the loss", async {
        guard.lost().await;
        held.lost().await;
        held.at_risk().await;
    })
    .await;
    assert_eq!(process.locks.stats().lost, 1, "it is counted once");
}

/// The heart of a lease: whenever the successor is in, the old holder's `check` is an error already.
async fn a_holder_that_cannot_renew_knows_before_anybody_else_gets_in(stage: Stage) {
    for fault in [crate::wire::Wire::cut, crate::wire::Wire::hang] {
        let (ours, theirs, key) = (stage.short().await, stage.process().await, stage.key());
        let guard = ours.take(&key).await;
        // Some renewals get through first, so that not only the first lease is tried.
        until("two renewals", || ours.wire.renewals() >= 2).await;
        guard.check().expect("it was renewed");
        fault(&ours.wire);
        let successor = loop {
            let believed = guard.check().is_ok();
            match theirs.locks.lock(&key).try_acquire().await.expect("it can be asked") {
                None => tokio::time::sleep(Duration::from_millis(1)).await,
                Some(successor) => {
                    let believes = guard.check().is_ok();
                    assert!(!believes, "two holders believe in it (believed before: {believed})");
                    break successor;
                }
            }
        };
        ours.wire.mend();
        error_of(guard.release().await, &[ErrorKind::NotHeld]);
        successor.check().expect("it is the holder now");
        give_back(successor).await;
    }
}

/// There is a warning between the first failed renewal and the loss, and it ends when a renewal gets through.
async fn a_late_renewal_is_announced_before_the_loss(stage: Stage) {
    let (process, key) = (stage.short().await, stage.key());
    let guard = process.take(&key).await;
    let held = guard.held();
    assert!(!held.is_at_risk());
    process.wire.cut();
    soon("the warning", held.at_risk()).await;
    held.check().expect("a late renewal is no loss yet");
    process.wire.mend();
    until("the end of the danger", || !held.is_at_risk()).await;
    held.check().expect("it was renewed in time");
    process.wire.cut();
    soon("the second warning", held.at_risk()).await;
    soon("the loss", held.lost()).await;
    error_of(held.check(), &[ErrorKind::Lost]);
}

/// The token is compared: what belongs to the successor stays.
async fn releasing_after_a_loss_is_not_held_and_leaves_the_successor_alone(stage: Stage) {
    let (ours, theirs, third, key) =
        (stage.short().await, stage.process().await, stage.process().await, stage.key());
    let guard = ours.take(&key).await;
    ours.delete(&key).await;
    let successor = theirs.take(&key).await;
    let error = error_of(guard.release().await, &[ErrorKind::NotHeld]);
    assert_eq!(error.key(), Some(&*key));
    third.sees_held(&key).await;
    successor.check().expect("it is still the holder");
    give_back(successor).await;
}

/// The same for the background release.
async fn dropping_after_a_loss_leaves_the_successor_alone(stage: Stage) {
    let (ours, theirs, third, key) =
        (stage.short().await, stage.short().await, stage.process().await, stage.key());
    let guard = ours.take(&key).await;
    ours.delete(&key).await;
    let successor = theirs.take(&key).await;
    drop(guard);
    until("the background work", || ours.locks.stats().background == 0).await;
    third.sees_held(&key).await;
    let renewed = theirs.wire.renewals();
    until("a renewal of the successor", || theirs.wire.renewals() > renewed).await;
    successor.check().expect("it is still the holder");
    give_back(successor).await;
}

/// The body stops at its current await, and the caller learns why.
async fn a_body_is_dropped_when_its_lock_is_lost(stage: Stage) {
    struct Dropped(Arc<AtomicBool>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let (process, key) = (stage.short().await, stage.key());
    let dropped = Arc::new(AtomicBool::new(false));
    let lock = process.locks.lock(&key);
    let body = lock.run_with(|held| {
        let (process, key, dropped) = (process.clone(), key.clone(), Dropped(Arc::clone(&dropped)));
        async move {
            let _dropped = dropped;
            held.check().expect("it is held at the start");
            process.delete(&key).await;
            std::future::pending::<()>().await;
        }
    });
    error_of(soon("the end of the body", body).await, &[ErrorKind::Lost]);
    assert!(dropped.load(Ordering::SeqCst));
}

/// On request, the body decides for itself.
async fn a_body_that_asked_to_continue_runs_on_and_is_told(stage: Stage) {
    let (process, key) = (stage.short().await, stage.key());
    let lock = process.locks.lock(&key).with_on_lost(OnLost::Continue);
    let body = lock.run_with(|held| {
        let (process, key) = (process.clone(), key.clone());
        async move {
            process.delete(&key).await;
            held.lost().await;
            tokio::task::yield_now().await;
            error_of(held.check(), &[ErrorKind::Lost]);
            "done"
        }
    });
    assert_eq!(soon("the body", body).await.expect("it was let run on"), "done");
}

/// Renewal belongs to a hold, not to a key: a loss does not end it for the next hold.
async fn after_a_loss_the_same_process_takes_the_key_again_and_renews_it(stage: Stage) {
    let (ours, theirs, key) = (stage.short().await, stage.process().await, stage.key());
    let first = ours.take(&key).await;
    ours.wire.cut();
    soon("the loss", first.lost()).await;
    ours.wire.mend();
    // The old guard is still there; it is worth nothing and holds nobody up.
    let second = ours.take_soon(&key).await;
    let renewed = ours.locks.stats().renewals;
    until("renewals for three leases", || ours.locks.stats().renewals >= renewed + 9).await;
    second.check().expect("it was renewed");
    theirs.sees_held(&key).await;
    drop(first);
    until("the background work", || ours.locks.stats().background == 0).await;
    second.check().expect("the old guard was not its guard");
    theirs.sees_held(&key).await;
    give_back(second).await;
}

/// A bound on how long one may hold, also while renewals work.
async fn max_hold_ends_a_lock_that_is_in_use(stage: Stage) {
    let (ours, theirs, key) = (stage.short().await, stage.process().await, stage.key());
    let lock = ours.locks.lock(&key).with_max_hold(stage.lease() * 2);
    let guard = lock.acquire().await.expect("it is free");
    until("a renewal", || ours.wire.renewals() >= 2).await;
    guard.check().expect("it is renewed until then");
    let successor = theirs.take_soon(&key).await;
    let error = error_of(guard.check(), &[ErrorKind::Lost]);
    assert!(error.to_string().contains("max_hold"), "{error}");
    error_of(guard.release().await, &[ErrorKind::NotHeld]);
    successor.check().expect("it is the holder now");
}

/// One key's trouble is not another's.
async fn losing_one_lock_leaves_the_others_of_the_process(stage: Stage) {
    let (process, lost, kept) = (stage.short().await, stage.key(), stage.key());
    let (losing, keeping) = (process.take(&lost).await, process.take(&kept).await);
    process.delete(&lost).await;
    soon("the loss", losing.lost()).await;
    let renewed = process.locks.stats().renewals;
    until("further renewals", || process.locks.stats().renewals >= renewed + 3).await;
    keeping.check().expect("it was not touched");
    drop(losing);
    give_back(keeping).await;
}
