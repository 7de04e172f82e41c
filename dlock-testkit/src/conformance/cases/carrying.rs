//! Locks that are handed over by a baton.

use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use dlock_core::{Baton, ErrorKind, Guard, Outcome};
use futures_util::future::join_all;

use super::cases;
use crate::conformance::expect::{error_of, give_back, soon, until};
use crate::conformance::{Process, Stage};
use crate::wire::Wire;

cases! {
    a_lock_that_is_handed_over_goes_to_who_brings_the_baton_and_to_nobody_else: Carrying & Administration, Easy;
    a_copy_of_a_baton_that_comes_second_is_refused_and_told_who_has_the_lock: Carrying & Administration, Easy;
    a_baton_is_refused_where_the_key_was_left_for_another_one: Carrying & Administration, Easy;
    of_many_copies_of_a_baton_at_once_one_has_the_lock: Carrying & Administration, Easy;
    who_waits_while_a_lock_is_handed_over_has_a_higher_fence_than_the_taker: Carrying & Administration, Easy;
    a_baton_that_nobody_takes_over_ends_with_its_time_and_touches_nobody_after_it: Carrying & Administration, Timed;
    a_lock_that_was_taken_over_is_renewed: Carrying & Administration, Timed;
    a_lock_goes_through_many_hands_with_a_higher_fence_in_each: Carrying & Administration, Easy;
    a_baton_whose_take_over_is_not_answered_is_taken_over_once: Carrying & Administration, Easy;
    a_hand_over_that_is_not_answered_is_made_again: Carrying & Administration, Easy;
    a_hand_over_in_an_outage_goes_on_when_that_is_over: Carrying & Administration, Easy;
    a_hand_over_in_an_outage_that_outlasts_the_lease_fails_and_leaves_the_lock_free: Carrying & Administration, Timed;
    a_key_that_is_left_already_is_left_for_no_longer: Carrying & Administration, Easy;
    a_hand_over_that_is_dropped_midway_frees_the_lock: Carrying & Administration, Easy;
    a_dropped_hand_over_of_a_key_that_stays_taken_leaves_it_taken: Carrying & Administration, Easy;
    a_take_over_that_is_dropped_midway_frees_the_lock_or_leaves_the_baton: Carrying & Administration, Easy;
    a_lock_that_is_gone_is_not_handed_over_and_not_made_anew: Carrying & Administration, Easy;
    a_body_hands_its_lock_over_and_goes_on_without_it: Carrying & Administration, Easy;
    a_guard_with_further_shares_keeps_its_lock: Carrying & Administration, Easy;
    a_batch_is_handed_over_as_a_whole_and_taken_over_as_one: Carrying & Administration, Easy;
    of_a_batch_of_which_one_baton_is_used_up_nothing_is_taken_over: Carrying & Administration, Easy;
    a_batch_that_cannot_be_handed_over_as_a_whole_is_held_as_before: Carrying & Administration, Easy;
    a_hand_over_of_a_batch_that_is_dropped_or_fails_midway_frees_all_its_locks: Carrying & Administration, Easy;
    a_term_and_a_job_stay_with_their_owner: Carrying & Administration, Easy;
    a_hand_over_that_cannot_be_is_refused_and_changes_nothing: Carrying & Administration, Easy;
}

/// The cases about locks that are handed over, for [`Harness::left_out`](crate::conformance::Harness::left_out) of a
/// backend whose locks stay where they were taken.
pub const CARRYING: &[&str] = &[
    "a_lock_that_is_handed_over_goes_to_who_brings_the_baton_and_to_nobody_else",
    "a_copy_of_a_baton_that_comes_second_is_refused_and_told_who_has_the_lock",
    "a_baton_is_refused_where_the_key_was_left_for_another_one",
    "of_many_copies_of_a_baton_at_once_one_has_the_lock",
    "who_waits_while_a_lock_is_handed_over_has_a_higher_fence_than_the_taker",
    "a_baton_that_nobody_takes_over_ends_with_its_time_and_touches_nobody_after_it",
    "a_lock_that_was_taken_over_is_renewed",
    "a_lock_goes_through_many_hands_with_a_higher_fence_in_each",
    "a_baton_whose_take_over_is_not_answered_is_taken_over_once",
    "a_hand_over_that_is_not_answered_is_made_again",
    "a_hand_over_in_an_outage_goes_on_when_that_is_over",
    "a_hand_over_in_an_outage_that_outlasts_the_lease_fails_and_leaves_the_lock_free",
    "a_key_that_is_left_already_is_left_for_no_longer",
    "a_hand_over_that_is_dropped_midway_frees_the_lock",
    "a_dropped_hand_over_of_a_key_that_stays_taken_leaves_it_taken",
    "a_take_over_that_is_dropped_midway_frees_the_lock_or_leaves_the_baton",
    "a_lock_that_is_gone_is_not_handed_over_and_not_made_anew",
    "a_body_hands_its_lock_over_and_goes_on_without_it",
    "a_guard_with_further_shares_keeps_its_lock",
    "a_batch_is_handed_over_as_a_whole_and_taken_over_as_one",
    "of_a_batch_of_which_one_baton_is_used_up_nothing_is_taken_over",
    "a_batch_that_cannot_be_handed_over_as_a_whole_is_held_as_before",
    "a_hand_over_of_a_batch_that_is_dropped_or_fails_midway_frees_all_its_locks",
    "a_term_and_a_job_stay_with_their_owner",
    "a_hand_over_that_cannot_be_is_refused_and_changes_nothing",
];

pub(super) const LONG: Duration = Duration::from_secs(60);

pub(super) async fn handed_over(guard: &Guard) -> Baton {
    let baton = guard.hand_over().for_at_most(LONG).await.expect("it is held");
    assert_eq!(guard.check().expect_err("it is held no more").kind(), ErrorKind::NotHeld);
    // As a text, since that is how it travels.
    baton.to_text().parse().expect("it is the text of a baton")
}

pub(super) async fn taken_over(process: &Process, baton: &Baton) -> Guard {
    process.locks.take_over(baton).await.expect("it is left for this baton")
}

pub(super) fn assert_later(guard: &Guard, before: &Guard) {
    assert!(guard.fence() > before.fence() || before.fence().is_none(), "{guard:?} after {before:?}");
}

/// Not to the giver either, and not to those who wait.
async fn a_lock_that_is_handed_over_goes_to_who_brings_the_baton_and_to_nobody_else(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guard = ours.take(&key).await;
    let baton = handed_over(&guard).await;
    assert_eq!((baton.key(), baton.fence()), (key.as_str(), guard.fence()));
    for process in [&ours, &theirs] {
        process.sees_held(&key).await;
    }
    let next = taken_over(&theirs, &baton).await;
    assert_later(&next, &guard);
    guard.release().await.expect("nothing is left to release");
    next.check().expect("it is held");
    ours.sees_held(&key).await;
    give_back(next).await;
    give_back(ours.take(&key).await).await;
}

/// Whoever has it then keeps it.
async fn a_copy_of_a_baton_that_comes_second_is_refused_and_told_who_has_the_lock(stage: Stage) {
    let theirs = stage.process_with(|builder| builder.with_label("second")).await;
    let (ours, key) = (stage.process().await, stage.key());
    let baton = handed_over(&ours.take(&key).await).await;
    let guard = taken_over(&theirs, &baton).await;
    let error = error_of(ours.locks.take_over(&baton).await, &[ErrorKind::NotHeld]);
    assert_eq!(error.holder().and_then(|holder| holder.label.as_deref()), Some("second"), "{error}");
    guard.check().expect("it is held");
    give_back(guard).await;
    error_of(theirs.locks.take_over(&baton).await, &[ErrorKind::NotHeld]);
    let next = ours.take(&key).await;
    error_of(theirs.locks.take_over(&baton).await, &[ErrorKind::NotHeld]);
    next.check().expect("it is held");
    give_back(next).await;
}

/// The token is compared, not only that the key was left.
async fn a_baton_is_refused_where_the_key_was_left_for_another_one(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let old = handed_over(&ours.take(&key).await).await;
    let guard = taken_over(&theirs, &old).await;
    let new = handed_over(&guard).await;
    error_of(ours.locks.take_over(&old).await, &[ErrorKind::NotHeld]);
    let next = taken_over(&ours, &new).await;
    assert_later(&next, &guard);
    give_back(next).await;
}

/// It began to wait before, and has the lock after.
async fn who_waits_while_a_lock_is_handed_over_has_a_higher_fence_than_the_taker(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let waiting = stage.process().await;
    let guard = ours.take(&key).await;
    let waiter = waiting.locks.lock(&key);
    let waits = async { waiter.acquire().await.expect("its turn comes") };
    let goes_on = async {
        until("the waiter", || waiting.wire.attempts() > 0).await;
        let baton = handed_over(&guard).await;
        let next = taken_over(&theirs, &baton).await;
        let fence = next.fence();
        give_back(next).await;
        fence
    };
    let (last, fence) = soon("the turn of who waits", async { tokio::join!(waits, goes_on) }).await;
    assert!(last.fence() > fence || fence.is_none(), "{:?} after {fence:?}", last.fence());
    give_back(last).await;
}

/// The others are refused.
async fn of_many_copies_of_a_baton_at_once_one_has_the_lock(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let mut guard = ours.take(&key).await;
    for _ in 0..5 {
        let baton = handed_over(&guard).await;
        let all = (0..8).map(|number| {
            let process = if number % 2 == 0 { &ours } else { &theirs };
            process.locks.take_over(&baton)
        });
        let (taken, refused): (Vec<_>, Vec<_>) = join_all(all).await.into_iter().partition(Result::is_ok);
        assert_eq!(taken.len(), 1);
        for error in refused.into_iter().filter_map(Result::err) {
            assert_eq!(error.kind(), ErrorKind::NotHeld, "{error}");
        }
        let next = taken.into_iter().find_map(Result::ok).expect("there is one");
        assert_later(&next, &guard);
        guard = next;
    }
    give_back(guard).await;
}

/// Nor does it make a lock anew that is free.
async fn a_baton_that_nobody_takes_over_ends_with_its_time_and_touches_nobody_after_it(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guard = ours.take(&key).await;
    let baton = guard.hand_over().for_at_most(stage.lease()).await.expect("it is held");
    let next = theirs.take_soon(&key).await;
    assert_later(&next, &guard);
    error_of(ours.locks.take_over(&baton).await, &[ErrorKind::NotHeld]);
    next.check().expect("it is held");
    give_back(next).await;
    error_of(ours.locks.take_over(&baton).await, &[ErrorKind::NotHeld]);
    assert!(theirs.locks.inspect(&key).await.expect("it can be asked").is_none(), "it is free");
    give_back(theirs.take(&key).await).await;
}

/// Beyond the time of the baton, and its own lease.
async fn a_lock_that_was_taken_over_is_renewed(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.short().await, stage.key());
    let guard = ours.take(&key).await;
    let baton = guard.hand_over().for_at_most(stage.lease()).await.expect("it is held");
    let next = taken_over(&theirs, &baton).await;
    tokio::time::sleep(stage.lease() * 3).await;
    next.check().expect("it is held");
    ours.sees_held(&key).await;
    give_back(next).await;
}

/// From process to process, and on from there.
async fn a_lock_goes_through_many_hands_with_a_higher_fence_in_each(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let mut guard = ours.take(&key).await;
    for number in 0..20 {
        let baton = handed_over(&guard).await;
        let next = taken_over(if number % 2 == 0 { &theirs } else { &ours }, &baton).await;
        assert_later(&next, &guard);
        guard = next;
    }
    give_back(guard).await;
}

/// It is asked again under the same token, and finds what it took.
async fn a_baton_whose_take_over_is_not_answered_is_taken_over_once(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guard = ours.take(&key).await;
    let baton = handed_over(&guard).await;
    let lock = theirs.locks.lock(&key).with_request_timeout(Duration::from_millis(300));
    theirs.wire.lose_replies(1);
    let lock = lock.from_baton(&baton).expect("it is one of this lock");
    let next = lock.acquire().await.expect("it is left for this baton");
    theirs.wire.mend();
    assert_later(&next, &guard);
    error_of(ours.locks.take_over(&baton).await, &[ErrorKind::NotHeld]);
    next.check().expect("it is held");
    give_back(next).await;
}

/// It finds what it left.
async fn a_hand_over_that_is_not_answered_is_made_again(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let lock = ours.locks.lock(&key).with_request_timeout(Duration::from_millis(300));
    let guard = lock.acquire().await.expect("it is free");
    ours.wire.lose_replies(1);
    let baton = handed_over(&guard).await;
    ours.wire.mend();
    let next = taken_over(&theirs, &baton).await;
    assert_later(&next, &guard);
    give_back(next).await;
}

/// Its lease has not ended by then.
async fn a_hand_over_in_an_outage_goes_on_when_that_is_over(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guard = ours.take(&key).await;
    let before = ours.wire.withdrawals();
    ours.wire.cut();
    let ends = async {
        until("another request", || ours.wire.withdrawals() > before + 1).await;
        ours.wire.mend();
    };
    let (baton, ()) = soon("the baton", async { tokio::join!(handed_over(&guard), ends) }).await;
    give_back(taken_over(&theirs, &baton).await).await;
}

/// There is no baton then.
async fn a_hand_over_in_an_outage_that_outlasts_the_lease_fails_and_leaves_the_lock_free(stage: Stage) {
    let (ours, theirs, key) = (stage.short().await, stage.process().await, stage.key());
    let guard = ours.take(&key).await;
    ours.wire.cut();
    let failed = soon("the error", guard.hand_over().for_at_most(LONG * 60).into_future()).await;
    error_of(failed, &[ErrorKind::Unavailable]);
    ours.wire.mend();
    let next = theirs.take_soon(&key).await;
    assert_later(&next, &guard);
    give_back(next).await;
}

/// A request that arrives late lengthens nothing, and one for a short time retracts.
async fn a_key_that_is_left_already_is_left_for_no_longer(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guard = ours.take(&key).await;
    ours.leave(&key, &[LONG * 60, LONG, LONG * 60]).await;
    let holder = theirs.locks.inspect(&key).await.expect("it can be asked").expect("it stays taken");
    let left = holder.expires_in.filter(|_| holder.left_behind);
    assert!(left.is_some_and(|left| left <= LONG && left > LONG / 2), "{holder:?}");
    assert!(theirs.locks.force_release(&key).await.expect("it can be freed"));
    drop(guard);

    let guard = ours.take_soon(&key).await;
    ours.leave(&key, &[LONG * 60, Duration::from_millis(1)]).await;
    give_back(theirs.take_soon(&key).await).await;
    drop(guard);
}

/// Polls `future` once and drops it.
pub(super) async fn begin_and_drop<T>(future: impl Future<Output = T>) {
    let mut future = pin!(future);
    std::future::poll_fn(|context| {
        let _ = future.as_mut().poll(context);
        Poll::Ready(())
    })
    .await;
}

/// Whether the request has taken effect, will do so later, or never: nobody has the baton.
async fn a_hand_over_that_is_dropped_midway_frees_the_lock(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    for fault in [Wire::hang, Wire::stall, Wire::keep_answers] {
        let guard = ours.take(&key).await;
        fault(&ours.wire);
        begin_and_drop(guard.hand_over().for_at_most(LONG * 60).into_future()).await;
        ours.wire.mend();
        let next = theirs.take_soon(&key).await;
        assert_later(&next, &guard);
        give_back(next).await;
    }
}

/// For as long as it was to be, although nobody has the baton.
async fn a_dropped_hand_over_of_a_key_that_stays_taken_leaves_it_taken(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let lock = ours.locks.lock(&key).with_hold_at_least(LONG);
    for fault in [Wire::hang, Wire::keep_answers] {
        let guard = lock.acquire().await.expect("it is free");
        fault(&ours.wire);
        begin_and_drop(guard.hand_over().for_at_most(LONG * 60).into_future()).await;
        ours.wire.mend();
        let mut holder = None;
        while holder.is_none_or(|left: Duration| left > LONG * 2) {
            let found = theirs.locks.inspect(&key).await.expect("it can be asked").expect("it stays taken");
            holder = found.expires_in.filter(|_| found.left_behind);
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert!(theirs.locks.force_release(&key).await.expect("it can be freed"));
    }
}

/// What it took is withdrawn; what it did not take is there.
async fn a_take_over_that_is_dropped_midway_frees_the_lock_or_leaves_the_baton(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guard = ours.take(&key).await;
    let baton = guard.hand_over().for_at_most(stage.lease()).await.expect("it is held");
    theirs.wire.keep_answers();
    begin_and_drop(theirs.locks.take_over(&baton)).await;
    theirs.wire.mend();
    let next = ours.take_soon(&key).await;
    assert_later(&next, &guard);
    give_back(next).await;
}

/// The guard may learn of it only then.
async fn a_lock_that_is_gone_is_not_handed_over_and_not_made_anew(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guard = ours.take(&key).await;
    ours.delete(&key).await;
    error_of(guard.hand_over().await, &[ErrorKind::NotHeld, ErrorKind::Lost]);
    drop(guard);
    let next = theirs.take(&key).await;
    next.check().expect("it is held");
    give_back(next).await;
}

/// Its end releases nothing.
async fn a_body_hands_its_lock_over_and_goes_on_without_it(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let lock = ours.locks.lock(&key);
    let next = lock.run_with(async |held| {
        let baton = held.hand_over().await.expect("it is held");
        assert_eq!(held.check().expect_err("it is held no more").kind(), ErrorKind::NotHeld);
        taken_over(&theirs, &baton).await
    });
    let next = next.await.expect("the body runs to its end");
    next.check().expect("it is held");
    ours.sees_held(&key).await;
    give_back(next).await;
    give_back(ours.take(&key).await).await;
}

/// It relies on the lock.
async fn a_guard_with_further_shares_keeps_its_lock(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let lock = ours.locks.lock(&key);
    let nested = lock.clone();
    let body = lock.run_with(async |held| {
        let guard = nested.acquire().await.expect("it is entered again");
        error_of(held.hand_over().await, &[ErrorKind::Conflict]);
        error_of(guard.hand_over().await, &[ErrorKind::Conflict]);
        held.check().expect("it is held");
        give_back(guard).await;
        held.hand_over().await.expect("it is the last share")
    });
    let baton = body.await.expect("the body runs to its end");
    give_back(taken_over(&theirs, &baton).await).await;
}

/// In the order in which it is held.
async fn a_batch_is_handed_over_as_a_whole_and_taken_over_as_one(stage: Stage) {
    let (ours, theirs) = (stage.process().await, stage.process().await);
    let keys = [stage.key(), stage.key(), stage.key()];
    let batch = ours.locks.lock_all(&keys).acquire().await.expect("they are free");
    let fences: Vec<_> = batch.fences().map(|(key, fence)| (key.to_owned(), fence)).collect();
    let batons = batch.hand_over_all().for_at_most(LONG).await.expect("they are held");
    assert_eq!(batch.check().expect_err("it is held no more").kind(), ErrorKind::NotHeld);
    let of_batons: Vec<_> = batons.iter().map(|baton| (baton.key().to_owned(), baton.fence())).collect();
    assert_eq!(of_batons, fences);
    for key in &keys {
        ours.sees_held(key).await;
    }
    // In any order, and one of them twice.
    let brought = batons.iter().rev().chain(batons.first());
    let next = theirs.locks.take_over_all(brought).await.expect("they are left for these batons");
    for ((key, before), (next_key, fence)) in fences.iter().zip(next.fences()) {
        assert_eq!(key, next_key);
        assert!(fence > *before || before.is_none(), "{key}: {fence:?} after {before:?}");
    }
    batch.release().await.expect("nothing is left to release");
    next.check().expect("it is held");
    next.release().await.expect("it is held");
    let again = ours.locks.lock_all(&keys).acquire().await.expect("they are free");
    again.release().await.expect("it is held");
}

/// Nobody holds a part of it then.
async fn of_a_batch_of_which_one_baton_is_used_up_nothing_is_taken_over(stage: Stage) {
    let (ours, theirs) = (stage.process().await, stage.process().await);
    let keys = [stage.key(), stage.key()];
    let batch = ours.locks.lock_all(&keys).acquire().await.expect("they are free");
    let batons = batch.hand_over_all().for_at_most(LONG).await.expect("they are held");
    let [first, second] = &*batons else { panic!("one for each lock: {batons:?}") };
    let guard = taken_over(&theirs, second).await;
    error_of(ours.locks.take_over_all(&batons).await, &[ErrorKind::NotHeld]);
    guard.check().expect("it is held");
    give_back(guard).await;
    give_back(theirs.take_soon(first.key()).await).await;
}

/// Nothing was changed.
async fn a_batch_that_cannot_be_handed_over_as_a_whole_is_held_as_before(stage: Stage) {
    let (ours, theirs) = (stage.process().await, stage.process().await);
    let keys = [stage.key(), stage.key()];
    let batch = ours.locks.lock_all(&keys);
    let body = batch.run_with(async |held| {
        let last = held.fences().last().map(|(key, _)| key.to_owned()).expect("it has two");
        let guard = ours.take(&last).await;
        error_of(held.hand_over_all().await, &[ErrorKind::Conflict]);
        error_of(held.hand_over().await, &[ErrorKind::Unsupported]);
        held.check().expect("it is held");
        give_back(guard).await;
        held.hand_over_all().await.expect("they are the last shares")
    });
    let batons = body.await.expect("the body runs to its end");
    let next = theirs.locks.take_over_all(&batons).await.expect("they are left for these batons");
    next.release().await.expect("it is held");
}

/// Nobody has its batons.
async fn a_hand_over_of_a_batch_that_is_dropped_or_fails_midway_frees_all_its_locks(stage: Stage) {
    let (ours, theirs) = (stage.process().await, stage.process().await);
    let keys = [stage.key(), stage.key()];
    let batch = ours.locks.lock_all(&keys).acquire().await.expect("they are free");
    ours.wire.keep_answers();
    begin_and_drop(batch.hand_over_all().for_at_most(LONG * 60).into_future()).await;
    ours.wire.mend();
    for key in &keys {
        give_back(theirs.take_soon(key).await).await;
    }
    drop(batch);

    let batch = ours.locks.lock_all(&keys).acquire().await.expect("they are free");
    ours.delete(&keys[1]).await;
    let gone = [ErrorKind::NotHeld, ErrorKind::Lost];
    error_of(batch.hand_over_all().for_at_most(LONG * 60).await, &gone);
    for key in &keys {
        give_back(theirs.take_soon(key).await).await;
    }
}

/// Their end is more than a release.
async fn a_term_and_a_job_stay_with_their_owner(stage: Stage) {
    let (process, key, other) = (stage.process().await, stage.key(), stage.key());
    let job = process.locks.once(&key).with_window(LONG);
    let run = job.run_with::<(), dlock_core::Error, _, _>(async |held| {
        error_of(held.hand_over().await, &[ErrorKind::Unsupported]);
        held.check()
    });
    assert!(matches!(run.await, Ok(Outcome::Ran(()))));
    let mut campaign = process.locks.election(&other).campaign();
    let term = soon("the term", campaign.next()).await.expect("it leads");
    error_of(term.held().hand_over().await, &[ErrorKind::Unsupported]);
    term.held().check().expect("it leads");
}

/// And the guard holds as before.
async fn a_hand_over_that_cannot_be_is_refused_and_changes_nothing(stage: Stage) {
    let (process, key) = (stage.process().await, stage.key());
    let guard = process.take(&key).await;
    for time in [Duration::ZERO, Duration::MAX] {
        let error = error_of(guard.hand_over().for_at_most(time).await, &[ErrorKind::InvalidConfig]);
        assert!(error.to_string().contains("24 h"), "{error}");
    }
    guard.check().expect("it is held");
    give_back(guard).await;
    let capabilities = process.locks.capabilities();
    if capabilities.shared && !capabilities.hands_over_shares {
        let guard = process.locks.lock(&key).read().acquire().await.expect("it is free");
        error_of(guard.hand_over().await, &[ErrorKind::Unsupported]);
        guard.check().expect("it is held");
        give_back(guard).await;
    }
}
