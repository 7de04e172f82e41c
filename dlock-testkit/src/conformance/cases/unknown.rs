//! Requests whose outcome is not known.

use std::time::Duration;

use dlock_core::ErrorKind;
use tokio::time::Instant;

use super::cases;
use crate::conformance::Stage;
use crate::conformance::expect::{error_of, give_back, soon, until};

cases! {
    an_acquire_whose_reply_is_lost_adopts_its_own_grant: Nothing, Easy;
    an_acquire_whose_request_is_lost_is_made_again: Nothing, Easy;
    a_busy_answer_that_is_lost_does_not_take_the_lock: Nothing, Easy;
    without_rechecks_a_lost_reply_is_unknown_and_cleaned_up: Nothing, Easy;
    when_no_reply_comes_through_the_outcome_is_unknown_and_cleaned_up: Nothing, Easy;
    an_answer_that_does_not_come_leaves_an_unknown_outcome_and_no_lock: Nothing, Timed;
    a_stalled_request_that_arrives_late_leaves_no_lock: Lease, Timed;
    an_acquire_on_a_backend_that_hangs_comes_to_an_end: Lease, Timed;
    a_grant_that_comes_after_a_pause_counts_from_its_first_request: Lease, Timed;
}

/// One grant, and it is ours.
async fn an_acquire_whose_reply_is_lost_adopts_its_own_grant(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    ours.wire.lose_replies(1);
    let guard = ours.take(&key).await;
    assert_eq!((ours.wire.attempts(), ours.locks.stats().rechecks), (2, 1));
    guard.check().expect("it was adopted");
    theirs.sees_held(&key).await;
    give_back(guard).await;
    give_back(theirs.take(&key).await).await;
}

/// Asking again makes up for it.
async fn an_acquire_whose_request_is_lost_is_made_again(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    ours.wire.lose_requests(1);
    let guard = ours.take(&key).await;
    assert_eq!(ours.locks.stats().rechecks, 1);
    theirs.sees_held(&key).await;
    give_back(guard).await;
}

/// Asking again finds out that it is somebody else's.
async fn a_busy_answer_that_is_lost_does_not_take_the_lock(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guard = theirs.take(&key).await;
    ours.wire.lose_replies(1);
    ours.sees_held(&key).await;
    guard.check().expect("it is still the holder");
    give_back(guard).await;
    // Nothing of the one that asked is left, in a queue for example.
    until("the background work", || ours.locks.stats().background == 0).await;
    give_back(theirs.take(&key).await).await;
}

/// The error says for how long the lock may be blocked; it is withdrawn long before.
async fn without_rechecks_a_lost_reply_is_unknown_and_cleaned_up(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    for _ in 0..5 {
        ours.wire.lose_replies(1);
        let result = ours.locks.lock(&key).with_rechecks(0).acquire().await;
        let error = error_of(result, &[ErrorKind::Unknown]);
        let most = error.maybe_held_for_at_most().expect("it says how long");
        assert!(most > Duration::ZERO && most <= Duration::from_secs(130), "{most:?}");
        assert!(error.is_retryable());
        theirs.sees_free_soon(&key).await;
        until("the background work", || ours.locks.stats().background == 0).await;
    }
    assert_eq!(ours.locks.stats().rechecks, 0);
    assert_eq!(ours.locks.stats().held, 0);
}

/// Asking again does not go on for ever.
async fn when_no_reply_comes_through_the_outcome_is_unknown_and_cleaned_up(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    ours.wire.lose_replies(1_000);
    let lock = ours.locks.lock(&key).with_rechecks(1);
    error_of(soon("the answer", lock.acquire()).await, &[ErrorKind::Unknown]);
    assert_eq!(ours.wire.attempts(), 2, "one attempt and one re-check");
    ours.wire.mend();
    theirs.sees_free_soon(&key).await;
    until("the background work", || ours.locks.stats().background == 0).await;
}

/// Who says of a request that was carried out that it was never sent would leave its lock behind.
async fn an_answer_that_does_not_come_leaves_an_unknown_outcome_and_no_lock(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    // With a connection, the next request is sent at once.
    give_back(ours.take(&key).await).await;
    ours.wire.keep_answers();
    let lock = ours.locks.lock(&key).with_wait(Duration::from_secs(1));
    error_of(soon("the answer", lock.acquire()).await, &[ErrorKind::Unknown]);
    ours.wire.mend();
    theirs.sees_free_soon(&key).await;
    until("the background work", || ours.locks.stats().background == 0).await;
}

/// The request lies in some queue, its caller gives up, and then it is carried out. The withdrawal comes after it.
async fn a_stalled_request_that_arrives_late_leaves_no_lock(stage: Stage) {
    let (ours, theirs, key) = (stage.short().await, stage.process().await, stage.key());
    let lease = Duration::from_secs(20);
    let lock = ours.locks.lock(&key).with_lease(lease).with_wait(Duration::from_millis(300));
    for cancel in [false, true] {
        ours.wire.stall();
        let acquire = lock.clone().with_request_timeout(Duration::from_millis(100));
        if cancel {
            let given_up = tokio::time::timeout(Duration::from_millis(20), acquire.acquire()).await;
            assert!(given_up.is_err());
        } else {
            error_of(soon("the answer", acquire.acquire()).await, &[ErrorKind::Unknown]);
        }
        give_back(theirs.take(&key).await).await;
        ours.wire.mend();
        until("the background work", || ours.locks.stats().background == 0).await;
        // The lease is long: free means withdrawn.
        theirs.sees_free_soon(&key).await;
    }
}

/// No answer at all is an error when the wait is over, or the re-checks are used up, also when the caller would wait
/// for much longer.
async fn an_acquire_on_a_backend_that_hangs_comes_to_an_end(stage: Stage) {
    let (ours, theirs, key) = (stage.short().await, stage.process().await, stage.key());
    ours.wire.hang();
    let patient = ours.locks.lock(&key).with_wait(Duration::from_secs(3_600)).with_rechecks(1);
    error_of(soon("the answer", patient.acquire()).await, &[ErrorKind::Unknown]);
    let short = ours.locks.lock(&key).with_wait(Duration::from_millis(300));
    error_of(soon("the answer", short.acquire()).await, &[ErrorKind::Unknown]);
    error_of(soon("the answer", ours.locks.lock(&key).try_acquire()).await, &[ErrorKind::Unknown]);
    ours.wire.mend();
    theirs.sees_free_soon(&key).await;
}

/// Time that went by before the answer is taken off, so that the holder's deadline is not too late.
async fn a_grant_that_comes_after_a_pause_counts_from_its_first_request(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let lease = Duration::from_secs(4);
    let lock = ours.locks.lock(&key).with_lease(lease).with_request_timeout(lease / 2);
    ours.wire.hang();
    let sent = Instant::now();
    let acquire = tokio::spawn(async move { lock.acquire().await });
    until("the request", || ours.wire.attempts() > 0).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    ours.wire.mend();
    let guard = soon("the grant", acquire).await.expect("no panic").expect("it is free");
    let remaining = guard.remaining().expect("a lease has an end");
    let gone = sent.elapsed();
    assert!(remaining + gone <= lease + Duration::from_millis(1), "{remaining:?} left after {gone:?}");
    assert!(remaining <= lease - Duration::from_millis(300));
    theirs.sees_held(&key).await;
    give_back(guard).await;
}
