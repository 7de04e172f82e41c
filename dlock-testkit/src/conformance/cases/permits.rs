//! A few at a time.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dlock_core::backend::Mode;
use dlock_core::{ErrorKind, Guard, Semaphore};
use tokio::time::Instant;

use super::cases;
use super::dropping::unpolled_keeps_nobody_from_other_keys;
use crate::cancel::every_await_point;
use crate::conformance::expect::{SOON, error_of, give_back, outcome_of, soon, until};
use crate::conformance::{Process, Stage};

cases! {
    there_are_as_many_permits_as_were_said_for_all_processes_together: Permits, Easy;
    several_permits_are_taken_all_or_none: Permits, Easy;
    all_permits_can_be_taken_at_once: Permits, Easy;
    a_released_permit_wakes_one_who_waits: Permits, Easy;
    a_release_of_several_permits_lets_several_in: Permits, Easy;
    never_more_have_a_permit_than_there_are: Permits, Busy;
    who_waits_for_several_permits_does_not_starve: Permits, Busy;
    one_who_gave_up_waiting_for_several_keeps_nobody_out: Permits, Easy;
    a_permit_is_back_after_its_holder_went_silent: Permits & Lease, Timed;
    permits_are_renewed_each_for_itself: Permits & Lease, Timed;
    a_permit_that_was_deleted_is_noticed_by_its_holder_and_free: Permits, Timed;
    a_permit_held_for_many_leases_is_renewed: Permits, Timed;
    a_permit_whose_reply_is_lost_is_adopted_and_not_taken_twice: Permits, Easy;
    permits_of_an_unknown_outcome_are_given_back: Permits, Easy;
    a_release_whose_reply_is_lost_gives_one_permit_back: Permits, Easy;
    an_acquire_of_a_permit_dropped_at_any_await_leaves_nothing: Permits, Easy;
    one_who_waits_for_a_permit_may_be_dropped_at_any_await: Permits, Easy;
    an_acquire_of_a_permit_that_nobody_polls_keeps_nobody_from_other_keys: Permits, Easy;
    a_dropped_permit_is_given_back_soon: Permits, Easy;
    a_permit_lives_through_a_panic_of_its_neighbour: Permits, Easy;
    every_permit_has_a_fence_of_its_own_that_grows: Permits & Fences, Easy;
    a_nested_acquire_has_a_permit_of_its_own: Permits, Easy;
    one_who_would_wait_for_its_own_permits_is_told: Permits, Easy;
    a_process_that_says_another_number_is_told: Permits, Easy;
    the_number_is_remembered_while_nobody_has_a_permit: Permits, Easy;
    a_lock_is_no_semaphore_and_a_semaphore_no_lock: Permits, Easy;
    absurd_numbers_of_permits_are_refused_before_any_request: Permits, Easy;
    an_operator_changes_the_number_of_permits: Permits & Administration, Easy;
    fewer_permits_than_are_taken_grant_none_until_enough_are_back: Permits & Administration, Easy;
    all_holders_of_permits_are_known_with_what_they_have: Permits, Easy;
    a_release_by_force_takes_all_permits_back: Permits & Administration, Easy;
    semaphores_of_different_keys_do_not_know_each_other: Permits, Easy;
}

/// The cases that a backend without [`Capabilities::permits`](dlock_core::backend::Capabilities::permits) leaves out,
/// for [`Harness::left_out`](crate::conformance::Harness::left_out).
pub const PERMITS: &[&str] = &[
    "there_are_as_many_permits_as_were_said_for_all_processes_together",
    "several_permits_are_taken_all_or_none",
    "all_permits_can_be_taken_at_once",
    "a_released_permit_wakes_one_who_waits",
    "a_release_of_several_permits_lets_several_in",
    "never_more_have_a_permit_than_there_are",
    "who_waits_for_several_permits_does_not_starve",
    "one_who_gave_up_waiting_for_several_keeps_nobody_out",
    "one_behind_others_of_its_process_keeps_nobody_out",
    "a_permit_is_back_after_its_holder_went_silent",
    "permits_are_renewed_each_for_itself",
    "a_permit_that_was_deleted_is_noticed_by_its_holder_and_free",
    "a_permit_held_for_many_leases_is_renewed",
    "a_permit_whose_reply_is_lost_is_adopted_and_not_taken_twice",
    "permits_of_an_unknown_outcome_are_given_back",
    "a_release_whose_reply_is_lost_gives_one_permit_back",
    "an_acquire_of_a_permit_dropped_at_any_await_leaves_nothing",
    "one_who_waits_for_a_permit_may_be_dropped_at_any_await",
    "an_acquire_of_a_permit_that_nobody_polls_keeps_nobody_from_other_keys",
    "a_dropped_permit_is_given_back_soon",
    "a_permit_lives_through_a_panic_of_its_neighbour",
    "every_permit_has_a_fence_of_its_own_that_grows",
    "a_nested_acquire_has_a_permit_of_its_own",
    "one_who_would_wait_for_its_own_permits_is_told",
    "a_process_that_says_another_number_is_told",
    "the_number_is_remembered_while_nobody_has_a_permit",
    "a_lock_is_no_semaphore_and_a_semaphore_no_lock",
    "absurd_numbers_of_permits_are_refused_before_any_request",
    "an_operator_changes_the_number_of_permits",
    "fewer_permits_than_are_taken_grant_none_until_enough_are_back",
    "all_holders_of_permits_are_known_with_what_they_have",
    "a_release_by_force_takes_all_permits_back",
    "semaphores_of_different_keys_do_not_know_each_other",
];

pub(super) fn semaphore(process: &Process, key: &str, of: u32) -> Semaphore {
    process.locks.semaphore(key, of)
}

pub(super) async fn take(process: &Process, key: &str, (of, permits): (u32, u32)) -> Guard {
    let semaphore = semaphore(process, key, of).take(permits);
    let guard = outcome_of(|| semaphore.try_acquire()).await;
    guard.unwrap_or_else(|| panic!("there are fewer than {permits} of {of} permits of {key:?}"))
}

async fn cannot_take(process: &Process, key: &str, (of, permits): (u32, u32)) {
    let semaphore = semaphore(process, key, of).take(permits);
    let tried = outcome_of(|| semaphore.try_acquire()).await;
    assert!(tried.is_none(), "there are {permits} of {of} permits of {key:?}, and should not be");
}

pub(super) async fn quiet(process: &Process) {
    until("the background work", || process.locks.stats().background == 0).await;
}

async fn there_are_as_many_permits_as_were_said_for_all_processes_together(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let mut guards = Vec::new();
    for process in [&ours, &theirs, &ours] {
        guards.push(take(process, &key, (3, 1)).await);
    }
    cannot_take(&ours, &key, (3, 1)).await;
    cannot_take(&theirs, &key, (3, 1)).await;
    assert_eq!(semaphore(&theirs, &key, 3).available().await.expect("it can be asked"), 0);
    give_back(guards.pop().expect("there are three")).await;
    guards.push(take(&theirs, &key, (3, 1)).await);
    cannot_take(&ours, &key, (3, 1)).await;
    for guard in guards {
        guard.check().expect("each is held");
        give_back(guard).await;
    }
    assert_eq!(semaphore(&ours, &key, 3).available().await.expect("it can be asked"), 3);
}

async fn several_permits_are_taken_all_or_none(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let two = take(&ours, &key, (4, 2)).await;
    cannot_take(&theirs, &key, (4, 3)).await;
    let others = take(&theirs, &key, (4, 2)).await;
    cannot_take(&ours, &key, (4, 1)).await;
    give_back(two).await;
    cannot_take(&ours, &key, (4, 3)).await;
    assert_eq!(semaphore(&ours, &key, 4).available().await.expect("it can be asked"), 2);
    give_back(others).await;
    give_back(take(&ours, &key, (4, 4)).await).await;
}

async fn all_permits_can_be_taken_at_once(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let all = take(&ours, &key, (1_000, 1_000)).await;
    cannot_take(&theirs, &key, (1_000, 1)).await;
    give_back(all).await;
    give_back(take(&theirs, &key, (1_000, 1)).await).await;
}

async fn a_released_permit_wakes_one_who_waits(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guards = [take(&ours, &key, (2, 1)).await, take(&theirs, &key, (2, 1)).await];
    let waits = semaphore(&theirs, &key, 2);
    let mut waiting = std::pin::pin!(waits.acquire());
    assert!(tokio::time::timeout(Duration::from_millis(60), &mut waiting).await.is_err());
    let [one, other] = guards;
    give_back(one).await;
    let guard = soon("the permit", waiting).await.expect("one is free");
    cannot_take(&ours, &key, (2, 1)).await;
    give_back(guard).await;
    give_back(other).await;
}

async fn a_release_of_several_permits_lets_several_in(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let all = take(&ours, &key, (3, 3)).await;
    let waits = semaphore(&theirs, &key, 3);
    let waiting = futures_util::future::join_all((0..3).map(|_| waits.acquire()));
    let (guards, ()) = soon("the permits", async {
        tokio::join!(waiting, async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            give_back(all).await;
        })
    })
    .await;
    for guard in guards {
        give_back(guard.expect("there are three")).await;
    }
}

/// A counter that is no lock itself sees who is inside.
async fn never_more_have_a_permit_than_there_are(stage: Stage) {
    const PERMITS: u32 = 3;
    let processes = [stage.process().await, stage.process().await, stage.process().await];
    let (key, inside) = (stage.key(), AtomicU32::new(0));
    let (key, inside) = (&key, &inside);
    let tasks = (0..12).map(|task| {
        let process = &processes[task % 3];
        let permits = if task % 4 == 0 { 2 } else { 1 };
        async move {
            for _ in 0..8 {
                let wanted = semaphore(process, key, PERMITS).take(permits);
                let guard = wanted.acquire().await.expect("a permit comes");
                let now = inside.fetch_add(permits, Ordering::SeqCst) + permits;
                assert!(now <= PERMITS, "{now} of {PERMITS} permits are taken");
                tokio::task::yield_now().await;
                inside.fetch_sub(permits, Ordering::SeqCst);
                give_back(guard).await;
            }
        }
    });
    tokio::time::timeout(SOON * 4, futures_util::future::join_all(tasks))
        .await
        .expect("all come to their end");
}

async fn who_waits_for_several_permits_does_not_starve(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let over = AtomicU32::new(0);
    let few = async || {
        while over.load(Ordering::SeqCst) == 0 {
            let guard = semaphore(&ours, &key, 3).acquire().await.expect("a permit comes");
            tokio::time::sleep(Duration::from_millis(3)).await;
            give_back(guard).await;
        }
    };
    let many = async {
        for _ in 0..3 {
            let all = semaphore(&theirs, &key, 3).take(3);
            give_back(soon("all permits", all.acquire()).await.expect("they come")).await;
        }
        over.store(1, Ordering::SeqCst);
    };
    tokio::join!(few(), few(), few(), many);
}

async fn one_who_gave_up_waiting_for_several_keeps_nobody_out(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let one = take(&ours, &key, (3, 1)).await;
    // It is connected, and has the time for an answer.
    cannot_take(&theirs, &key, (3, 3)).await;
    let all = semaphore(&theirs, &key, 3).take(3).with_wait(Duration::from_secs(2));
    error_of(all.acquire().await, &[ErrorKind::TimedOut]);
    quiet(&theirs).await;
    give_back(take(&ours, &key, (3, 2)).await).await;
    give_back(one).await;
}

async fn a_permit_is_back_after_its_holder_went_silent(stage: Stage) {
    let (ours, theirs, key) = (stage.short().await, stage.short().await, stage.key());
    let silent = take(&ours, &key, (1, 1)).await;
    ours.wire.cut();
    let began = Instant::now();
    let guard = semaphore(&theirs, &key, 1).with_wait(SOON).acquire().await.expect("it is back");
    assert!(!stage.is_virtual() || began.elapsed() < stage.lease() * 3, "{:?}", began.elapsed());
    error_of(silent.check(), &[ErrorKind::Lost]);
    give_back(guard).await;
    ours.wire.mend();
}

async fn permits_are_renewed_each_for_itself(stage: Stage) {
    let (ours, theirs, key) = (stage.short().await, stage.short().await, stage.key());
    let kept = take(&ours, &key, (2, 1)).await;
    let silent = take(&theirs, &key, (2, 1)).await;
    theirs.wire.cut();
    let next = semaphore(&ours, &key, 2).with_wait(SOON).acquire().await.expect("one is back");
    tokio::time::sleep(stage.lease() * 2).await;
    kept.check().expect("it is renewed");
    error_of(silent.check(), &[ErrorKind::Lost]);
    theirs.wire.mend();
    cannot_take(&theirs, &key, (2, 1)).await;
    give_back(kept).await;
    give_back(next).await;
}

async fn a_permit_that_was_deleted_is_noticed_by_its_holder_and_free(stage: Stage) {
    let (ours, theirs, key) = (stage.short().await, stage.short().await, stage.key());
    let (kept, deleted) = (take(&ours, &key, (2, 1)).await, take(&theirs, &key, (2, 1)).await);
    theirs.delete(&key).await;
    let next = take(&ours, &key, (2, 1)).await;
    soon("the loss", deleted.lost()).await;
    kept.check().expect("it is another one's");
    error_of(deleted.release().await, &[ErrorKind::NotHeld]);
    cannot_take(&ours, &key, (2, 1)).await;
    give_back(kept).await;
    give_back(next).await;
}

async fn a_permit_held_for_many_leases_is_renewed(stage: Stage) {
    let (ours, theirs, key) = (stage.short().await, stage.short().await, stage.key());
    let guard = take(&ours, &key, (2, 2)).await;
    for _ in 0..4 {
        tokio::time::sleep(stage.lease()).await;
        guard.check().expect("it is renewed");
        cannot_take(&theirs, &key, (2, 1)).await;
    }
    give_back(guard).await;
}

async fn a_permit_whose_reply_is_lost_is_adopted_and_not_taken_twice(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    ours.wire.lose_replies(1);
    let guard = take(&ours, &key, (3, 2)).await;
    assert_eq!((ours.wire.attempts(), ours.locks.stats().rechecks), (2, 1));
    assert_eq!(semaphore(&theirs, &key, 3).available().await.expect("it can be asked"), 1);
    give_back(guard).await;
    give_back(take(&theirs, &key, (3, 3)).await).await;
}

async fn permits_of_an_unknown_outcome_are_given_back(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    for _ in 0..3 {
        ours.wire.lose_replies(1);
        let result = ours.locks.semaphore(&key, 2).take(2).with_request_timeout(Duration::from_secs(2));
        // Asked again under the same token, or withdrawn.
        drop(result.try_acquire().await);
        quiet(&ours).await;
        give_back(take(&theirs, &key, (2, 2)).await).await;
    }
}

/// A release that is made again frees nothing of others.
async fn a_release_whose_reply_is_lost_gives_one_permit_back(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let (one, other) = (take(&ours, &key, (2, 1)).await, take(&theirs, &key, (2, 1)).await);
    ours.wire.lose_replies(1);
    give_back(one).await;
    assert_eq!(semaphore(&ours, &key, 2).available().await.expect("it can be asked"), 1);
    other.check().expect("it is held");
    give_back(other).await;
}

async fn an_acquire_of_a_permit_dropped_at_any_await_leaves_nothing(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let wanted = semaphore(&ours, &key, 2).take(2);
    let points = every_await_point(
        || wanted.acquire(),
        async |_cut, output| {
            drop(output.map(|result| result.expect("they are free")));
            let all = semaphore(&theirs, &key, 2).take(2).with_wait(SOON);
            give_back(all.acquire().await.expect("they are back")).await;
        },
    )
    .await;
    assert!(points >= 2);
    assert_eq!(ours.locks.stats().held, 0);
}

async fn one_who_waits_for_a_permit_may_be_dropped_at_any_await(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let one = take(&theirs, &key, (2, 1)).await;
    let wanted = semaphore(&ours, &key, 2).take(2).with_wait(Duration::from_millis(60));
    let points = every_await_point(
        || wanted.acquire(),
        async |_cut, output| {
            if let Some(result) = output {
                // On a busy machine its wait may be over before its request is sent.
                error_of(result, &[ErrorKind::TimedOut, ErrorKind::Unknown, ErrorKind::Unavailable]);
            }
            quiet(&ours).await;
            give_back(take(&theirs, &key, (2, 1)).await).await;
        },
    )
    .await;
    assert!(points >= 2);
    give_back(one).await;
    give_back(take(&theirs, &key, (2, 2)).await).await;
}

async fn a_dropped_permit_is_given_back_soon(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    drop(take(&ours, &key, (2, 2)).await);
    let all = semaphore(&theirs, &key, 2).take(2).with_wait(SOON);
    give_back(all.acquire().await.expect("they are back")).await;
}

async fn a_permit_lives_through_a_panic_of_its_neighbour(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let kept = take(&theirs, &key, (2, 1)).await;
    let panics = semaphore(&ours, &key, 2);
    let task =
        tokio::spawn(async move { panics.run(async { std::panic::resume_unwind(Box::new(())) }).await });
    let ended: Result<dlock_core::Result<()>, _> = task.await;
    assert!(ended.is_err_and(|error| error.is_panic()));
    let next = semaphore(&theirs, &key, 2).with_wait(SOON).acquire().await.expect("it is back");
    kept.check().expect("it is held");
    give_back(kept).await;
    give_back(next).await;
}

async fn every_permit_has_a_fence_of_its_own_that_grows(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let mut last = None;
    for _ in 0..3 {
        let guards = [take(&ours, &key, (3, 1)).await, take(&theirs, &key, (3, 2)).await];
        for guard in guards {
            assert!(guard.fence() > last, "{:?} after {last:?}", guard.fence());
            last = guard.fence();
            give_back(guard).await;
        }
    }
}

async fn a_nested_acquire_has_a_permit_of_its_own(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let (outer, inner) = (semaphore(&ours, &key, 2), semaphore(&ours, &key, 2));
    outer
        .run(async {
            inner.run(async { cannot_take(&theirs, &key, (2, 1)).await }).await.expect("there are two");
            give_back(take(&theirs, &key, (2, 1)).await).await;
        })
        .await
        .expect("it is free");
    give_back(take(&theirs, &key, (2, 2)).await).await;
}

async fn one_who_would_wait_for_its_own_permits_is_told(stage: Stage) {
    let (ours, key) = (stage.process().await, stage.key());
    let (outer, inner) = (semaphore(&ours, &key, 2), semaphore(&ours, &key, 2).take(2));
    let asked = outer.run(async { inner.acquire().await }).await.expect("it is free");
    let error = error_of(asked, &[ErrorKind::Deadlock]);
    assert!(error.to_string().contains("1 of the 2 permits"), "{error}");
    give_back(take(&ours, &key, (2, 2)).await).await;
}

async fn a_process_that_says_another_number_is_told(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let one = take(&ours, &key, (2, 1)).await;
    for of in [1, 3, 1_000_000] {
        let error = error_of(semaphore(&theirs, &key, of).acquire().await, &[ErrorKind::Conflict]);
        assert!(error.to_string().contains("has 2 permits"), "{error}");
        assert!(!error.is_retryable() && error.key() == Some(&*key));
        error_of(semaphore(&theirs, &key, of).available().await, &[ErrorKind::Conflict]);
    }
    give_back(take(&theirs, &key, (2, 1)).await).await;
    give_back(one).await;
}

async fn the_number_is_remembered_while_nobody_has_a_permit(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    give_back(take(&ours, &key, (2, 1)).await).await;
    error_of(semaphore(&theirs, &key, 3).acquire().await, &[ErrorKind::Conflict]);
    give_back(take(&theirs, &key, (2, 2)).await).await;
}

async fn a_lock_is_no_semaphore_and_a_semaphore_no_lock(stage: Stage) {
    let (ours, theirs) = (stage.process().await, stage.process().await);
    let (lock, permits) = (stage.key(), stage.key());
    let guard = ours.take(&lock).await;
    error_of(semaphore(&theirs, &lock, 2).acquire().await, &[ErrorKind::Conflict]);
    give_back(guard).await;
    give_back(take(&theirs, &lock, (2, 1)).await).await;
    let guard = take(&ours, &permits, (2, 1)).await;
    error_of(theirs.locks.lock(&permits).acquire().await, &[ErrorKind::Conflict]);
    if theirs.locks.capabilities().shared {
        error_of(theirs.locks.lock(&permits).read().acquire().await, &[ErrorKind::Conflict]);
    }
    guard.check().expect("it is held");
    give_back(guard).await;
}

async fn absurd_numbers_of_permits_are_refused_before_any_request(stage: Stage) {
    let (ours, key) = (stage.process().await, stage.key());
    for (of, permits) in [(0, 1), (u32::MAX, 1), (1_000_001, 1), (4, 0), (4, 5), (4, u32::MAX)] {
        let wanted = semaphore(&ours, &key, of).take(permits);
        let error = error_of(wanted.acquire().await, &[ErrorKind::InvalidConfig]);
        assert!(error.to_string().contains(" 1 to "), "{error}");
        error_of(wanted.try_acquire().await, &[ErrorKind::InvalidConfig]);
    }
    for permits in [0, u32::MAX] {
        error_of(ours.locks.resize_semaphore(&key, permits).await, &[ErrorKind::InvalidConfig]);
    }
    assert_eq!(ours.wire.requests(), 0);
}

async fn an_operator_changes_the_number_of_permits(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    assert_eq!(theirs.locks.resize_semaphore(&key, 2).await.expect("it can be asked"), None);
    let one = take(&ours, &key, (1, 1)).await;
    let waits = semaphore(&ours, &key, 3);
    assert_eq!(theirs.locks.resize_semaphore(&key, 3).await.expect("it can be asked"), Some(1));
    error_of(semaphore(&ours, &key, 1).acquire().await, &[ErrorKind::Conflict]);
    let two = waits.take(2).acquire().await.expect("there are two more");
    one.check().expect("it is held");
    cannot_take(&theirs, &key, (3, 1)).await;
    give_back(one).await;
    // Who goes by what is stored goes on with any number.
    let adapting = |of| semaphore(&ours, &key, of).resizable();
    assert_eq!(adapting(1).available().await.expect("it can be asked"), 1);
    let three = adapting(1).acquire().await.expect("there is one more");
    assert!(adapting(9).try_acquire().await.expect("it can be asked").is_none(), "there are three");
    error_of(adapting(9).take(4).acquire().await, &[ErrorKind::Conflict]);
    give_back(two).await;
    give_back(three).await;
    assert_eq!(theirs.locks.resize_semaphore(&key, 3).await.expect("it can be asked"), Some(3));
}

async fn fewer_permits_than_are_taken_grant_none_until_enough_are_back(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guards =
        [take(&ours, &key, (3, 1)).await, take(&ours, &key, (3, 1)).await, take(&ours, &key, (3, 1)).await];
    assert_eq!(theirs.locks.resize_semaphore(&key, 2).await.expect("it can be asked"), Some(3));
    assert_eq!(semaphore(&theirs, &key, 2).available().await.expect("it can be asked"), 0);
    for (left, guard) in [2, 1, 0].into_iter().zip(guards) {
        cannot_take(&theirs, &key, (2, 1)).await;
        give_back(guard).await;
        if left < 2 {
            give_back(take(&theirs, &key, (2, 2 - left)).await).await;
            break;
        }
    }
}

async fn all_holders_of_permits_are_known_with_what_they_have(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guards = [take(&ours, &key, (5, 1)).await, take(&theirs, &key, (5, 3)).await];
    let found = theirs.locks.occupancy(&key).await.expect("it can be asked");
    assert_eq!((found.permits, found.taken()), (Some(5), 4));
    let mut have: Vec<_> = found.holders.iter().map(|holder| holder.mode.taken()).collect();
    have.sort_unstable();
    assert_eq!(have, [1, 3]);
    for holder in &found.holders {
        assert_eq!((holder.mode.permits(), holder.pid), (Some(5), Some(std::process::id())));
        assert!(holder.to_string().contains("of 5 permits"), "{holder}");
        assert!(guards.iter().any(|guard| guard.fence() == holder.fence));
    }
    let first = theirs.locks.inspect(&key).await.expect("it can be asked").expect("somebody has permits");
    assert!(matches!(first.mode, Mode::Permits { of: 5, .. }), "{first:?}");
    for guard in guards {
        give_back(guard).await;
    }
}

async fn a_release_by_force_takes_all_permits_back(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guards = [take(&ours, &key, (2, 1)).await, take(&theirs, &key, (2, 1)).await];
    let listed = theirs.locks.holders().await.expect("it can be asked");
    assert_eq!(listed.iter().filter(|(listed, _)| listed.as_str() == key).count(), 2);
    assert!(theirs.locks.force_release(&key).await.expect("it can be asked"));
    give_back(take(&theirs, &key, (2, 2)).await).await;
    for guard in guards {
        error_of(guard.release().await, &[ErrorKind::NotHeld]);
    }
    assert!(!theirs.locks.force_release(&stage.key()).await.expect("it can be asked"));
}

async fn semaphores_of_different_keys_do_not_know_each_other(stage: Stage) {
    let (ours, theirs) = (stage.process().await, stage.process().await);
    let (one, other) = (stage.key(), stage.key());
    let guard = take(&ours, &one, (1, 1)).await;
    give_back(take(&theirs, &other, (7, 7)).await).await;
    cannot_take(&theirs, &one, (1, 1)).await;
    give_back(guard).await;
}

async fn an_acquire_of_a_permit_that_nobody_polls_keeps_nobody_from_other_keys(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let acquire = || {
        let wanted = semaphore(&ours, &key, 3);
        async move { wanted.acquire().await }
    };
    let all = || {
        let wanted = semaphore(&theirs, &key, 3).take(3);
        async move { wanted.acquire().await }
    };
    unpolled_keeps_nobody_from_other_keys(&stage, [&ours, &theirs], acquire, all).await;
}
