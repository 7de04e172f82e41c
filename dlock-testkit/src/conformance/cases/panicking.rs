//! A backend whose steps panic, and a subscriber of `tracing` that does.

use dlock_core::{ErrorKind, Guard};

use super::cases;
use crate::conformance::Stage;
use crate::conformance::expect::{SOON, error_of, give_back, soon, until};
use crate::conformance::subscriber::Striking;

cases! {
    an_attempt_that_panics_is_asked_about_again: Nothing, Easy;
    a_renewal_that_panics_is_made_again: Lease, Timed;
    a_release_in_the_background_that_panics_is_made_again: Nothing, Easy;
    a_batch_whose_attempt_panics_is_asked_about_again_or_leaves_nothing: Nothing, Easy;
    a_waiter_whose_wait_for_a_change_panics_asks_by_itself: Nothing, Easy;
    acquires_and_releases_take_their_course_under_a_subscriber_that_panics: Nothing, Easy;
    renewals_and_losses_take_their_course_under_a_subscriber_that_panics: Lease, Timed;
    an_expired_guard_is_dropped_while_its_owner_panics_under_a_subscriber_that_panics: Nothing, Timed;
}

/// What it did before is found under the same token.
async fn an_attempt_that_panics_is_asked_about_again(stage: Stage) {
    let (process, key) = (stage.process().await, stage.key());
    process.wire.panic_replies(1);
    give_back(soon("the grant", process.locks.lock(&key).acquire()).await.expect("it is free")).await;
}

/// The keeper goes on, for this lock too.
async fn a_renewal_that_panics_is_made_again(stage: Stage) {
    let (process, key) = (stage.short().await, stage.key());
    let guard = process.take(&key).await;
    process.wire.panic_replies(1);
    until("a failed renewal", || process.locks.stats().failed_renewals > 0).await;
    until("the next one", || process.locks.stats().renewals > 0).await;
    guard.check().expect("it is held");
    give_back(guard).await;
}

/// A shutdown waits for it.
async fn a_release_in_the_background_that_panics_is_made_again(stage: Stage) {
    let (process, other, key) = (stage.process().await, stage.process().await, stage.key());
    let guard = process.take(&key).await;
    process.wire.panic_replies(2);
    drop(guard);
    until("three withdrawals", || process.wire.withdrawals() >= 3).await;
    give_back(other.take(&key).await).await;
    until("the end of the work", || process.locks.stats().background == 0).await;
}

/// Whether it takes all in one step or one after the other.
async fn a_batch_whose_attempt_panics_is_asked_about_again_or_leaves_nothing(stage: Stage) {
    let (ours, theirs, keys) = (stage.process().await, stage.process().await, [stage.key(), stage.key()]);
    ours.wire.panic_replies(1);
    let all = soon("all grants", ours.locks.lock_all(&keys).acquire()).await.expect("they are free");
    assert!(ours.locks.stats().rechecks >= 1);
    for key in &keys {
        theirs.sees_held(key).await;
    }
    all.release().await.expect("they are held");
    // A reply to what is left of that would be the one that panics.
    until("the end of the releases", || ours.locks.stats().background == 0).await;
    ours.wire.panic_replies(1);
    let once = ours.locks.lock_all(&keys).with_each(|lock| lock.with_rechecks(0));
    error_of(soon("the failure", once.acquire()).await, &[ErrorKind::Unknown]);
    for key in &keys {
        theirs.sees_free_soon(key).await;
    }
    until("the end of the work", || ours.locks.stats().background == 0).await;
}

/// It polls, since nobody tells it.
async fn a_waiter_whose_wait_for_a_change_panics_asks_by_itself(stage: Stage) {
    let (holder, waiter, key) = (stage.process().await, stage.process().await, stage.key());
    let guard = holder.take(&key).await;
    waiter.wire.panic_changes();
    let lock = waiter.locks.lock(&key);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    until("its first question", || waiter.wire.attempts() > 0).await;
    give_back(guard).await;
    let taken = soon("the grant", waiting).await.expect("it does not panic").expect("the lock is free");
    give_back(taken).await;
}

/// At every event, on every thread.
async fn acquires_and_releases_take_their_course_under_a_subscriber_that_panics(stage: Stage) {
    let (here, there, key) = (stage.process().await, stage.process().await, stage.key());
    let striking = Striking::begin();
    let guard = here.take(&key).await;
    there.sees_held(&key).await;
    let lock = there.locks.lock(&key);
    let body = tokio::spawn(async move { lock.run(async { 7 }).await });
    until("the question of the one who waits", || there.wire.attempts() > 1).await;
    give_back(guard).await;
    let output = soon("the body", body).await.expect("it does not panic").expect("the lock is free");
    assert_eq!(output, 7, "what the body returned");
    here.wire.lose_replies(1);
    let unknown = soon("the grant", here.locks.lock(&key).acquire()).await.expect("it is asked for again");
    drop(unknown);
    there.sees_free_soon(&key).await;
    here.wire.cut();
    drop(there.take(&key).await);
    assert!(here.locks.lock(&key).try_acquire().await.is_err(), "the wire is cut");
    here.wire.mend();
    let many = here.locks.lock_all([key.clone(), stage.key()]);
    let all = soon("all grants", many.acquire()).await.expect("they are free");
    all.release().await.expect("they are held");
    for process in [&here, &there] {
        process.locks.shutdown(SOON).await.expect("nothing is left");
    }
    drop(striking);
}

/// The keeper tells of a failed renewal, and of a loss.
async fn renewals_and_losses_take_their_course_under_a_subscriber_that_panics(stage: Stage) {
    let (process, kept, deleted) = (stage.short().await, stage.key(), stage.key());
    let striking = Striking::begin();
    let (guard, lost) = (process.take(&kept).await, process.take(&deleted).await);
    process.wire.lose_replies(1);
    until("a failed renewal", || process.locks.stats().failed_renewals > 0).await;
    let before = process.locks.stats().renewals;
    until("the next ones", || process.locks.stats().renewals > before + 2).await;
    process.delete(&deleted).await;
    soon("the loss", lost.lost()).await;
    guard.check().expect("the other one is held");
    drop((guard, lost));
    process.sees_free_soon(&kept).await;
    until("the end of the work", || process.locks.stats().background == 0).await;
    drop(striking);
}

/// A destructor that let a second panic out would end the process.
async fn an_expired_guard_is_dropped_while_its_owner_panics_under_a_subscriber_that_panics(stage: Stage) {
    let (process, other, key) = (stage.short().await, stage.process().await, stage.key());
    let striking = Striking::begin();
    let lock = process.locks.lock(&key).with_max_hold(stage.lease());
    let guard = soon("the grant", lock.acquire()).await.expect("it is free");
    soon("its end", guard.lost()).await;
    let owner = |_guard: Guard| std::panic::resume_unwind(Box::new("the owner of a guard panics"));
    let ended = tokio::spawn(async move { owner(guard) }).await;
    assert!(ended.is_err_and(|error| error.is_panic()), "the owner panics");
    until("the end of the work", || process.locks.stats().background == 0).await;
    other.sees_free_soon(&key).await;
    process.locks.shutdown(SOON).await.expect("nothing is left");
    drop(striking);
}
