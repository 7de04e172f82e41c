//! What stays taken after its release.

use std::time::Duration;

use dlock_core::{ErrorKind, Wait};

use super::cases;
use crate::conformance::expect::{SOON, error_of, give_back, soon};
use crate::conformance::{Process, Stage};

cases! {
    a_released_lock_stays_taken_for_as_long_as_it_is_held_at_least: Leaving & Administration, Timed;
    what_stays_taken_is_shown_with_its_last_holder_and_the_time_that_is_left: Leaving & Administration, Easy;
    what_stays_taken_is_freed_by_force_and_its_fence_is_superseded: Leaving & Administration, Easy;
    a_dropped_guard_leaves_the_key_taken_too: Leaving & Administration, Easy;
    a_body_that_panics_or_is_cancelled_leaves_the_key_taken_too: Leaving & Administration, Easy;
    a_waiter_gets_a_key_that_stayed_taken_when_its_time_is_over: Leaving & Administration, Timed;
    a_release_after_that_time_is_an_ordinary_one: Leaving & Administration, Timed;
    a_release_whose_reply_is_lost_leaves_the_key_taken_for_the_same_time: Leaving & Administration, Easy;
    a_nested_release_leaves_nothing_before_the_outer_one: Leaving & Administration, Easy;
    readers_and_absurd_times_are_refused_with_what_to_do: Leaving & Administration, Easy;
}

/// The cases about keys that stay taken after their release, and jobs that run once by that, for
/// [`Harness::left_out`](crate::conformance::Harness::left_out) of a backend that frees them.
pub const LEAVING: &[&str] = &[
    "a_released_lock_stays_taken_for_as_long_as_it_is_held_at_least",
    "what_stays_taken_is_shown_with_its_last_holder_and_the_time_that_is_left",
    "what_stays_taken_is_freed_by_force_and_its_fence_is_superseded",
    "a_dropped_guard_leaves_the_key_taken_too",
    "a_body_that_panics_or_is_cancelled_leaves_the_key_taken_too",
    "a_waiter_gets_a_key_that_stayed_taken_when_its_time_is_over",
    "a_release_after_that_time_is_an_ordinary_one",
    "a_release_whose_reply_is_lost_leaves_the_key_taken_for_the_same_time",
    "a_nested_release_leaves_nothing_before_the_outer_one",
    "readers_and_absurd_times_are_refused_with_what_to_do",
    "a_job_runs_once_in_its_window_in_all_processes_together",
    "a_job_runs_again_when_its_window_is_over",
    "who_skips_a_job_learns_who_did_it_and_when",
    "a_job_that_failed_runs_again_unless_it_is_to_be_skipped",
    "a_job_that_panicked_or_was_cancelled_runs_again_unless_it_is_to_be_skipped",
    "who_waits_for_a_run_skips_the_job_when_it_succeeds_and_runs_it_when_it_fails",
    "who_does_not_wait_for_a_run_skips_the_job_at_once",
    "a_run_that_is_longer_than_its_window_is_not_repeated_by_those_who_waited_for_it",
    "a_job_of_a_process_that_goes_silent_is_run_by_who_waits_for_it",
    "a_job_of_a_process_that_goes_silent_is_skipped_where_that_was_said",
    "a_job_whose_grant_or_release_is_not_answered_runs_once",
    "every_run_has_a_higher_fence",
    "a_job_inside_of_itself_would_wait_for_itself",
    "windows_that_cannot_be_kept_are_refused_before_any_request",
];

const LONG: Duration = Duration::from_secs(60);

/// The last holder of `key`, which nobody owns any more.
async fn left_behind(process: &Process, key: &str) -> dlock_core::Holder {
    soon("the release", async {
        loop {
            let holder = process.locks.inspect(key).await.expect("it can be asked").expect("it stays taken");
            if holder.left_behind {
                return holder;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await
}

/// Also for its last holder, whose process need not live on.
async fn a_released_lock_stays_taken_for_as_long_as_it_is_held_at_least(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let least = stage.lease();
    let lock = ours.locks.lock(&key).with_hold_at_least(least);
    // It was granted after this.
    let granted = tokio::time::Instant::now();
    let guard = lock.acquire().await.expect("it is free");
    let fence = guard.fence();
    guard.release().await.expect("it was held");
    ours.locks.shutdown(SOON).await.expect("nothing is held");
    loop {
        let asked = theirs.locks.lock(&key).try_acquire().await.expect("it can be asked");
        match asked {
            None => assert!(granted.elapsed() < least + SOON, "it never became free"),
            Some(guard) => {
                assert!(granted.elapsed() >= least, "free after {:?}", granted.elapsed());
                assert!(guard.fence() > fence || fence.is_none());
                break give_back(guard).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// As of the grant, not of the release.
async fn what_stays_taken_is_shown_with_its_last_holder_and_the_time_that_is_left(stage: Stage) {
    let ours = stage.process_with(|builder| builder.with_label("first")).await;
    let (theirs, key) = (stage.process().await, stage.key());
    let guard = ours.locks.lock(&key).with_hold_at_least(LONG).acquire().await.expect("it is free");
    let holder = theirs.locks.inspect(&key).await.expect("it can be asked").expect("it is held");
    assert!(!holder.left_behind);
    let fence = guard.fence();
    guard.release().await.expect("it was held");
    let holder = theirs.locks.inspect(&key).await.expect("it can be asked").expect("it stays taken");
    assert!(holder.left_behind);
    assert_eq!((holder.label.as_deref(), holder.fence), (Some("first"), fence));
    assert_eq!(holder.pid, Some(std::process::id()));
    let left = holder.expires_in.expect("it says for how long");
    assert!(left <= LONG + Duration::from_millis(1) && left > LONG / 2, "{left:?}");
    let listed = theirs.locks.holders().await.expect("they can be listed");
    let listed = listed.into_iter().find(|(listed, _)| listed.as_str() == key).expect("it is listed");
    assert!(listed.1.left_behind);
    let error = error_of(theirs.locks.lock(&key).with_wait(Wait::No).acquire().await, &[ErrorKind::Busy]);
    assert!(error.holder().is_some_and(|holder| holder.left_behind), "{error}");
    assert!(theirs.locks.force_release(&key).await.expect("it can be freed"));
}

/// By an administrator, who need not wait.
async fn what_stays_taken_is_freed_by_force_and_its_fence_is_superseded(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guard = ours.locks.lock(&key).with_hold_at_least(LONG).acquire().await.expect("it is free");
    let fence = guard.fence();
    guard.release().await.expect("it was held");
    theirs.sees_held(&key).await;
    assert!(theirs.locks.force_release(&key).await.expect("it can be freed"));
    let guard = ours.take(&key).await;
    assert!(guard.fence() > fence || fence.is_none());
    give_back(guard).await;
}

/// The clean-up releases in the same way.
async fn a_dropped_guard_leaves_the_key_taken_too(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    drop(ours.locks.lock(&key).with_hold_at_least(LONG).acquire().await.expect("it is free"));
    left_behind(&theirs, &key).await;
    theirs.sees_held(&key).await;
    assert!(theirs.locks.force_release(&key).await.expect("it can be freed"));
}

/// Whatever becomes of the body.
async fn a_body_that_panics_or_is_cancelled_leaves_the_key_taken_too(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let lock = ours.locks.lock(&key).with_hold_at_least(LONG);
    let panicking = lock.clone();
    let panicked = tokio::spawn(async move { panicking.run(async { panic!("on purpose") }).await });
    panicked.await.expect_err("it panicked");
    left_behind(&theirs, &key).await;
    assert!(theirs.locks.force_release(&key).await.expect("it can be freed"));
    let (started, mut starts) = tokio::sync::mpsc::channel::<()>(1);
    let hanging = tokio::spawn(async move {
        let body = async move {
            drop(started);
            std::future::pending::<()>().await;
        };
        lock.run(body).await
    });
    assert!(starts.recv().await.is_none());
    hanging.abort();
    left_behind(&theirs, &key).await;
    assert!(theirs.locks.force_release(&key).await.expect("it can be freed"));
}

/// It waits for the time, as it would for a lease.
async fn a_waiter_gets_a_key_that_stayed_taken_when_its_time_is_over(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let lock = ours.locks.lock(&key).with_hold_at_least(stage.lease());
    give_back(lock.acquire().await.expect("it is free")).await;
    theirs.sees_held(&key).await;
    let theirs = async { give_back(theirs.take_soon(&key).await).await };
    let ours = async { give_back(ours.take_soon(&key).await).await };
    tokio::join!(theirs, ours);
}

/// Nothing is left, and the key is free at once.
async fn a_release_after_that_time_is_an_ordinary_one(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let least = Duration::from_millis(5);
    let guard = ours.locks.lock(&key).with_hold_at_least(least).acquire().await.expect("it is free");
    tokio::time::sleep(least * 2).await;
    give_back(guard).await;
    give_back(theirs.take(&key).await).await;
}

/// The release is made again, and finds what it left.
async fn a_release_whose_reply_is_lost_leaves_the_key_taken_for_the_same_time(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let lock = ours.locks.lock(&key).with_hold_at_least(LONG);
    let guard = lock.with_request_timeout(Duration::from_millis(300)).acquire().await.expect("it is free");
    ours.wire.lose_replies(1);
    drop(guard);
    left_behind(&theirs, &key).await;
    ours.wire.mend();
    ours.locks.shutdown(SOON).await.expect("the release is settled");
    let holder = left_behind(&theirs, &key).await;
    let left = holder.expires_in.expect("it says for how long");
    assert!(left <= LONG + Duration::from_millis(1) && left > LONG / 2, "{left:?}");
    assert!(theirs.locks.force_release(&key).await.expect("it can be freed"));
}

/// Only the last guard releases.
async fn a_nested_release_leaves_nothing_before_the_outer_one(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let lock = ours.locks.lock(&key).with_hold_at_least(LONG);
    let nested = lock.clone();
    let body = async {
        give_back(nested.acquire().await.expect("it is entered again")).await;
        theirs.locks.inspect(&key).await.expect("it can be asked").expect("it is held").left_behind
    };
    assert!(!lock.run(body).await.expect("it is free"));
    left_behind(&theirs, &key).await;
    assert!(theirs.locks.force_release(&key).await.expect("it can be freed"));
}

/// Before anything is sent.
async fn readers_and_absurd_times_are_refused_with_what_to_do(stage: Stage) {
    let (process, key) = (stage.process().await, stage.key());
    for least in [Duration::ZERO, Duration::MAX] {
        let refused = process.locks.lock(&key).with_hold_at_least(least).try_acquire().await;
        let error = error_of(refused, &[ErrorKind::InvalidConfig]);
        assert!(error.to_string().contains("30 days"), "{error}");
    }
    let reader = process.locks.lock(&key).with_hold_at_least(LONG).read();
    error_of(reader.try_acquire().await, &[ErrorKind::Unsupported]);
    give_back(process.take(&key).await).await;
}
