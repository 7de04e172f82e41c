//! Giving a lock back, on purpose.

use std::sync::Mutex;
use std::time::Duration;

use dlock_core::ErrorKind;

use super::cases;
use crate::cancel::every_await_point;
use crate::conformance::Stage;
use crate::conformance::expect::{error_of, give_back, soon, until};

cases! {
    after_its_release_a_view_is_no_longer_held: Nothing, Easy;
    releasing_a_lock_that_was_deleted_is_not_held: Lease, Easy;
    a_release_that_is_dropped_at_any_await_goes_on_by_itself: Nothing, Easy;
    a_release_whose_reply_is_lost_is_confirmed_by_asking_again: Nothing, Easy;
    a_release_that_cannot_be_sent_is_an_error_and_is_made_up_for: Nothing, Easy;
    a_release_that_gets_no_answer_ends_and_is_made_up_for: Lease, Timed;
    a_release_does_not_wait_for_a_renewal_that_hangs: Lease, Timed;
}

/// Views outlive the guard and do not pretend.
async fn after_its_release_a_view_is_no_longer_held(stage: Stage) {
    let (process, key) = (stage.process().await, stage.key());
    let guard = process.take(&key).await;
    let held = guard.held();
    assert!(held.is_held());
    held.check().expect("it is held");
    give_back(guard).await;
    assert!(!held.is_held());
    error_of(held.check(), &[ErrorKind::NotHeld]);
    assert_eq!(held.remaining(), Some(Duration::ZERO));
    let lost = tokio::time::timeout(Duration::from_millis(50), held.lost()).await;
    assert!(lost.is_err(), "a release is no loss");
}

/// The caller learns that he did not hold it any more.
async fn releasing_a_lock_that_was_deleted_is_not_held(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guard = ours.take(&key).await;
    ours.delete(&key).await;
    error_of(guard.release().await, &[ErrorKind::NotHeld]);
    give_back(theirs.take(&key).await).await;
}

/// Whoever starts a release has released, whatever happens to him then.
async fn a_release_that_is_dropped_at_any_await_goes_on_by_itself(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let next = Mutex::new(Some(ours.take(&key).await));
    let points = {
        let make = || {
            let guard = next.lock().expect("not poisoned").take();
            async move {
                match guard {
                    Some(guard) => guard.release().await,
                    None => panic!("a guard is taken after each"),
                }
            }
        };
        let after_each = async |_cut, output: Option<dlock_core::Result<()>>| {
            if let Some(output) = output {
                output.expect("it was held");
            }
            theirs.sees_free_soon(&key).await;
            let guard = ours.take_soon(&key).await;
            next.lock().expect("not poisoned").replace(guard);
        };
        every_await_point(make, after_each).await
    };
    assert!(points >= 2, "a release that was never polled is one");
}

/// The second answer says that nothing is there any more, which is what was wanted.
async fn a_release_whose_reply_is_lost_is_confirmed_by_asking_again(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guard = ours.take(&key).await;
    ours.wire.lose_replies(1);
    give_back(guard).await;
    give_back(theirs.take(&key).await).await;
}

/// The caller gets an error, no longer has the lock, and the lock comes free as soon as the backend is back.
async fn a_release_that_cannot_be_sent_is_an_error_and_is_made_up_for(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guard = ours.take(&key).await;
    let held = guard.held();
    ours.wire.cut();
    let error = error_of(guard.release().await, &[ErrorKind::Unavailable, ErrorKind::Unknown]);
    assert!(error.is_retryable());
    error_of(held.check(), &[ErrorKind::NotHeld]);
    theirs.sees_held(&key).await;
    ours.wire.mend();
    theirs.sees_free_soon(&key).await;
    until("the background work", || ours.locks.stats().background == 0).await;
}

/// A hanging backend holds up a release for a bounded time.
async fn a_release_that_gets_no_answer_ends_and_is_made_up_for(stage: Stage) {
    let (ours, theirs, key) = (stage.short().await, stage.short().await, stage.key());
    let guard = ours.take(&key).await;
    ours.wire.hang();
    let released = soon("the end of the release", guard.release()).await;
    error_of(released, &[ErrorKind::Unknown, ErrorKind::Unavailable, ErrorKind::NotHeld]);
    theirs.sees_free_soon(&key).await;
    ours.wire.mend();
    until("the background work", || ours.locks.stats().background == 0).await;
}

/// A renewal without an answer is let go of.
async fn a_release_does_not_wait_for_a_renewal_that_hangs(stage: Stage) {
    let (ours, theirs, key) = (stage.short().await, stage.short().await, stage.key());
    let guard = ours.take(&key).await;
    ours.wire.hang();
    until("a renewal that hangs", || ours.wire.renewals() > 0).await;
    ours.wire.mend();
    // Whether the lock still was ours depends on how long that took; the release comes to an end all the same.
    if let Err(error) = soon("the release", guard.release()).await {
        assert_eq!(error.kind(), ErrorKind::NotHeld, "{error}");
    }
    theirs.sees_free_soon(&key).await;
}
