//! Waiters of all processes, in the order in which they came.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use dlock_core::backend::Mode;
use dlock_core::{ErrorKind, Guard, Lock, Requirement};
use tokio::task::JoinHandle;

use super::cases;
use crate::cancel::every_await_point;
use crate::conformance::expect::{SOON, error_of, give_back, outcome_of, soon, tried, until};
use crate::conformance::{Process, Stage};

cases! {
    waiters_of_all_processes_are_served_in_the_order_in_which_they_came: Fair, Easy;
    waiters_of_one_process_are_served_in_the_order_in_which_they_came: Fair, Easy;
    fences_follow_the_order_of_the_line: Fair & Fences, Easy;
    a_fair_lock_that_nobody_wants_is_taken_at_once_and_leaves_nothing: Fair, Easy;
    one_who_only_tries_takes_no_place_in_line: Fair, Easy;
    one_who_only_tries_does_not_overtake_those_who_wait: Fair, Easy;
    a_turn_that_was_not_taken_yet_is_kept_for_a_while: Fair, Easy;
    one_who_comes_back_stands_at_the_end_of_the_line: Fair, Easy;
    a_waiter_whose_time_is_over_leaves_its_place: Fair, Easy;
    waiters_that_are_dropped_leave_their_places_and_those_behind_move_up: Fair, Easy;
    the_first_in_line_gives_its_turn_on_when_it_is_dropped: Fair, Easy;
    a_waiter_in_line_dropped_at_any_await_leaves_nothing: Fair, Easy;
    a_dropped_guard_gives_the_turn_to_the_first_in_line: Fair, Easy;
    a_waiter_in_line_that_is_cut_off_loses_its_place: Fair & Lease, Timed;
    a_fair_holder_that_goes_silent_makes_room_for_the_first_in_line: Fair & Lease, Timed;
    a_fair_lock_is_renewed_while_others_stand_in_line: Fair & Lease, Timed;
    a_fair_lock_that_was_deleted_goes_to_the_first_in_line: Fair, Easy;
    a_fair_grant_whose_reply_is_lost_is_adopted: Fair, Easy;
    a_place_whose_reply_is_lost_is_kept_and_not_taken_twice: Fair, Easy;
    a_fair_release_whose_reply_is_lost_gives_one_turn: Fair, Easy;
    a_fair_attempt_of_an_unknown_outcome_is_cleaned_up: Fair, Easy;
    a_fair_lock_that_is_released_by_force_goes_to_the_first_in_line: Fair & Administration, Easy;
    a_nested_acquire_of_a_fair_lock_does_not_stand_in_line: Fair, Easy;
    the_holder_of_a_fair_lock_is_known: Fair, Easy;
    one_who_takes_it_again_and_again_waits_for_its_turn: Fair, Easy;
    all_who_want_it_all_the_time_get_it_in_turns: Fair, Easy;
    no_two_hold_a_fair_lock_at_once: Fair, Busy;
    lines_of_different_keys_do_not_know_each_other: Fair, Easy;
    locks_that_are_required_to_be_fair_are_so: Fair, Easy;
}

/// The cases that a backend without [`Capabilities::fair`](dlock_core::backend::Capabilities::fair) and
/// [`Capabilities::fair_on_request`](dlock_core::backend::Capabilities::fair_on_request) leaves out, for
/// [`Harness::left_out`](crate::conformance::Harness::left_out).
pub const FAIRNESS: &[&str] = &[
    "waiters_of_all_processes_are_served_in_the_order_in_which_they_came",
    "waiters_of_one_process_are_served_in_the_order_in_which_they_came",
    "fences_follow_the_order_of_the_line",
    "a_fair_lock_that_nobody_wants_is_taken_at_once_and_leaves_nothing",
    "one_who_only_tries_takes_no_place_in_line",
    "one_who_only_tries_does_not_overtake_those_who_wait",
    "a_turn_that_was_not_taken_yet_is_kept_for_a_while",
    "one_who_comes_back_stands_at_the_end_of_the_line",
    "a_waiter_whose_time_is_over_leaves_its_place",
    "waiters_that_are_dropped_leave_their_places_and_those_behind_move_up",
    "the_first_in_line_gives_its_turn_on_when_it_is_dropped",
    "a_waiter_in_line_dropped_at_any_await_leaves_nothing",
    "a_dropped_guard_gives_the_turn_to_the_first_in_line",
    "a_waiter_in_line_that_is_cut_off_loses_its_place",
    "a_fair_holder_that_goes_silent_makes_room_for_the_first_in_line",
    "a_fair_lock_is_renewed_while_others_stand_in_line",
    "a_fair_lock_that_was_deleted_goes_to_the_first_in_line",
    "a_fair_grant_whose_reply_is_lost_is_adopted",
    "a_place_whose_reply_is_lost_is_kept_and_not_taken_twice",
    "a_fair_release_whose_reply_is_lost_gives_one_turn",
    "a_fair_attempt_of_an_unknown_outcome_is_cleaned_up",
    "a_fair_lock_that_is_released_by_force_goes_to_the_first_in_line",
    "a_nested_acquire_of_a_fair_lock_does_not_stand_in_line",
    "the_holder_of_a_fair_lock_is_known",
    "one_who_takes_it_again_and_again_waits_for_its_turn",
    "all_who_want_it_all_the_time_get_it_in_turns",
    "no_two_hold_a_fair_lock_at_once",
    "lines_of_different_keys_do_not_know_each_other",
    "locks_that_are_required_to_be_fair_are_so",
    "a_waiter_in_line_has_its_turn_between_readers_that_never_stop",
    "a_waiter_in_line_has_its_turn_between_writers_that_do_not_ask_for_theirs",
    "a_waiter_in_line_and_a_writer_that_wait_for_a_reader_both_come_in",
    "the_last_reader_leaves_the_lock_to_those_in_line",
];

pub(super) fn fair(process: &Process, key: &str) -> Lock {
    process.locks.lock(key).with_wait(SOON * 2).with_fairness(true)
}

async fn take(process: &Process, key: &str) -> Guard {
    let guard = outcome_of(|| tried(fair(process, key))).await;
    guard.unwrap_or_else(|| panic!("{key:?} is held, and should be free"))
}

async fn cannot_take(process: &Process, key: &str) {
    let tried = outcome_of(|| tried(fair(process, key))).await;
    assert!(tried.is_none(), "{key:?} is free, and should not be");
}

pub(super) type Waiter = JoinHandle<dlock_core::Result<Guard>>;

/// Begins to wait, and has a place in line when this returns: the first attempt takes it.
pub(super) async fn stand_in_line(process: &Process, lock: Lock) -> Waiter {
    let before = process.wire.attempts();
    let waiter = tokio::spawn(async move { lock.acquire().await });
    let wire = &process.wire;
    until("the place", || wire.attempts() > before && wire.unanswered_attempts() == 0).await;
    waiter
}

/// One who waits in a process of its own.
async fn wait_behind(stage: &Stage, key: &str) -> (Process, Waiter) {
    let process = stage.process().await;
    let waiter = stand_in_line(&process, fair(&process, key)).await;
    (process, waiter)
}

pub(super) async fn turn_of(waiter: Waiter) -> Guard {
    soon("its turn", waiter).await.expect("it does not panic").expect("it has its turn")
}

async fn quiet(process: &Process) {
    until("the background work", || process.locks.stats().background == 0).await;
}

async fn waiters_of_all_processes_are_served_in_the_order_in_which_they_came(stage: Stage) {
    let (ours, key) = (stage.process().await, stage.key());
    let mut guard = take(&ours, &key).await;
    let mut line = Vec::new();
    for _ in 0..4 {
        line.push(wait_behind(&stage, &key).await);
    }
    while !line.is_empty() {
        let (_process, first) = line.remove(0);
        give_back(guard).await;
        guard = turn_of(first).await;
        assert!(line.iter().all(|(_, behind)| !behind.is_finished()), "{} behind it", line.len());
    }
    give_back(guard).await;
    ours.sees_free_soon(&key).await;
}

async fn waiters_of_one_process_are_served_in_the_order_in_which_they_came(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let mut guard = take(&ours, &key).await;
    let mut line = Vec::new();
    for _ in 0..4 {
        line.push(stand_in_line(&theirs, fair(&theirs, &key)).await);
    }
    while !line.is_empty() {
        let first = line.remove(0);
        give_back(guard).await;
        guard = turn_of(first).await;
        assert!(line.iter().all(|behind| !behind.is_finished()), "{} behind it", line.len());
    }
    give_back(guard).await;
}

async fn fences_follow_the_order_of_the_line(stage: Stage) {
    let (ours, key) = (stage.process().await, stage.key());
    let mut guard = take(&ours, &key).await;
    let mut line = Vec::new();
    for _ in 0..3 {
        line.push(wait_behind(&stage, &key).await);
    }
    for (_process, next) in line {
        let last = guard.fence();
        give_back(guard).await;
        guard = turn_of(next).await;
        assert!(guard.fence() > last, "{:?} after {last:?}", guard.fence());
    }
    give_back(guard).await;
}

async fn a_fair_lock_that_nobody_wants_is_taken_at_once_and_leaves_nothing(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    for process in [&ours, &theirs, &ours] {
        let before = process.wire.attempts();
        give_back(soon("a free lock", fair(process, &key).acquire()).await.expect("it is free")).await;
        assert_eq!(process.wire.attempts(), before + 1);
    }
    // Others find nothing there either.
    give_back(theirs.take(&key).await).await;
}

async fn one_who_only_tries_takes_no_place_in_line(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guard = take(&ours, &key).await;
    cannot_take(&theirs, &key).await;
    quiet(&theirs).await;
    let (_process, waiter) = wait_behind(&stage, &key).await;
    give_back(guard).await;
    give_back(turn_of(waiter).await).await;
    give_back(take(&theirs, &key).await).await;
}

async fn one_who_only_tries_does_not_overtake_those_who_wait(stage: Stage) {
    let (ours, key) = (stage.process().await, stage.key());
    let guard = take(&ours, &key).await;
    let (process, waiter) = wait_behind(&stage, &key).await;
    cannot_take(&ours, &key).await;
    cannot_take(&process, &key).await;
    give_back(guard).await;
    let guard = turn_of(waiter).await;
    cannot_take(&ours, &key).await;
    give_back(guard).await;
}

async fn a_turn_that_was_not_taken_yet_is_kept_for_a_while(stage: Stage) {
    let (ours, key) = (stage.process().await, stage.key());
    let guard = take(&ours, &key).await;
    let (process, waiter) = wait_behind(&stage, &key).await;
    // It is alive, and does not get to ask.
    process.wire.stall();
    give_back(guard).await;
    cannot_take(&ours, &key).await;
    process.wire.mend();
    give_back(turn_of(waiter).await).await;
}

async fn one_who_comes_back_stands_at_the_end_of_the_line(stage: Stage) {
    let (ours, key) = (stage.process().await, stage.key());
    let guard = take(&ours, &key).await;
    let (_process, first) = wait_behind(&stage, &key).await;
    give_back(guard).await;
    let guard = turn_of(first).await;
    let (_process, second) = wait_behind(&stage, &key).await;
    let again = stand_in_line(&ours, fair(&ours, &key)).await;
    give_back(guard).await;
    let guard = turn_of(second).await;
    assert!(!again.is_finished(), "it came later");
    give_back(guard).await;
    give_back(turn_of(again).await).await;
}

async fn a_waiter_whose_time_is_over_leaves_its_place(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guard = take(&ours, &key).await;
    // It is connected.
    cannot_take(&theirs, &key).await;
    let brief = fair(&theirs, &key).with_wait(Duration::from_secs(1));
    let error = error_of(brief.acquire().await, &[ErrorKind::TimedOut, ErrorKind::Unknown]);
    assert!(error.is_retryable());
    quiet(&theirs).await;
    let (_process, waiter) = wait_behind(&stage, &key).await;
    give_back(guard).await;
    give_back(turn_of(waiter).await).await;
    give_back(take(&ours, &key).await).await;
}

async fn waiters_that_are_dropped_leave_their_places_and_those_behind_move_up(stage: Stage) {
    let (ours, key) = (stage.process().await, stage.key());
    let guard = take(&ours, &key).await;
    let mut line = Vec::new();
    for _ in 0..5 {
        line.push(wait_behind(&stage, &key).await);
    }
    for place in [0, 2, 4] {
        line[place].1.abort();
    }
    for (process, waiter) in line.iter_mut().step_by(2) {
        assert!(waiter.await.expect_err("it was dropped").is_cancelled());
        quiet(process).await;
    }
    give_back(guard).await;
    for (_process, waiter) in line.into_iter().skip(1).step_by(2) {
        give_back(turn_of(waiter).await).await;
    }
    give_back(take(&ours, &key).await).await;
}

async fn the_first_in_line_gives_its_turn_on_when_it_is_dropped(stage: Stage) {
    let (ours, key) = (stage.process().await, stage.key());
    let guard = take(&ours, &key).await;
    let (process, first) = wait_behind(&stage, &key).await;
    let (_process, second) = wait_behind(&stage, &key).await;
    // It has its turn, and does not know of it.
    process.wire.deafen();
    process.wire.stall();
    give_back(guard).await;
    first.abort();
    process.wire.mend();
    if let Ok(taken) = first.await {
        drop(taken);
    }
    give_back(turn_of(second).await).await;
    quiet(&process).await;
    give_back(take(&ours, &key).await).await;
}

async fn a_waiter_in_line_dropped_at_any_await_leaves_nothing(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let held = take(&theirs, &key).await;
    let brief = fair(&ours, &key).with_wait(Duration::from_millis(60));
    let points = every_await_point(
        || brief.acquire(),
        async |_cut, output| {
            if let Some(result) = output {
                // On a busy machine its wait may be over before its request is sent.
                error_of(result, &[ErrorKind::TimedOut, ErrorKind::Unknown, ErrorKind::Unavailable]);
            }
            quiet(&ours).await;
        },
    )
    .await;
    assert!(points >= 2);
    give_back(held).await;
    give_back(take(&theirs, &key).await).await;
}

async fn a_dropped_guard_gives_the_turn_to_the_first_in_line(stage: Stage) {
    let (ours, key) = (stage.process().await, stage.key());
    let guard = take(&ours, &key).await;
    let (_process, first) = wait_behind(&stage, &key).await;
    let (_process, second) = wait_behind(&stage, &key).await;
    drop(guard);
    let guard = turn_of(first).await;
    assert!(!second.is_finished(), "it is the second");
    drop(guard);
    give_back(turn_of(second).await).await;
}

async fn a_waiter_in_line_that_is_cut_off_loses_its_place(stage: Stage) {
    let (ours, key) = (stage.process().await, stage.key());
    let guard = take(&ours, &key).await;
    let (process, cut_off) = wait_behind(&stage, &key).await;
    let (_process, behind) = wait_behind(&stage, &key).await;
    process.wire.cut();
    // A request that is under way could still find the lock free.
    until("the last answer", || process.wire.unanswered_attempts() == 0).await;
    give_back(guard).await;
    let guard = turn_of(behind).await;
    assert!(!cut_off.is_finished());
    process.wire.mend();
    give_back(guard).await;
    // It stands at the end, where nobody is before it.
    give_back(turn_of(cut_off).await).await;
}

async fn a_fair_holder_that_goes_silent_makes_room_for_the_first_in_line(stage: Stage) {
    let (ours, key) = (stage.short().await, stage.key());
    let silent = take(&ours, &key).await;
    let (_process, first) = wait_behind(&stage, &key).await;
    let (_process, second) = wait_behind(&stage, &key).await;
    ours.wire.cut();
    let guard = turn_of(first).await;
    error_of(silent.check(), &[ErrorKind::Lost]);
    assert!(!second.is_finished(), "it is the second");
    give_back(guard).await;
    give_back(turn_of(second).await).await;
    ours.wire.mend();
}

async fn a_fair_lock_is_renewed_while_others_stand_in_line(stage: Stage) {
    let (ours, key) = (stage.short().await, stage.key());
    let guard = take(&ours, &key).await;
    let (_process, waiter) = wait_behind(&stage, &key).await;
    for _ in 0..3 {
        tokio::time::sleep(stage.lease()).await;
        guard.check().expect("it is renewed");
        assert!(!waiter.is_finished());
    }
    give_back(guard).await;
    give_back(turn_of(waiter).await).await;
}

async fn a_fair_lock_that_was_deleted_goes_to_the_first_in_line(stage: Stage) {
    let (ours, key) = (stage.short().await, stage.key());
    let deleted = take(&ours, &key).await;
    let (_process, first) = wait_behind(&stage, &key).await;
    let (_process, second) = wait_behind(&stage, &key).await;
    ours.delete(&key).await;
    let guard = turn_of(first).await;
    assert!(!second.is_finished(), "it is the second");
    soon("the loss", deleted.lost()).await;
    error_of(deleted.release().await, &[ErrorKind::NotHeld]);
    guard.check().expect("it is another one's");
    give_back(guard).await;
    give_back(turn_of(second).await).await;
}

async fn a_fair_grant_whose_reply_is_lost_is_adopted(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    ours.wire.lose_replies(1);
    let guard = take(&ours, &key).await;
    assert_eq!((ours.wire.attempts(), ours.locks.stats().rechecks), (2, 1));
    cannot_take(&theirs, &key).await;
    give_back(guard).await;
    give_back(take(&theirs, &key).await).await;
}

async fn a_place_whose_reply_is_lost_is_kept_and_not_taken_twice(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guard = take(&ours, &key).await;
    theirs.wire.lose_replies(1);
    let first = stand_in_line(&theirs, fair(&theirs, &key)).await;
    let (_process, second) = wait_behind(&stage, &key).await;
    give_back(guard).await;
    let guard = turn_of(first).await;
    assert!(!second.is_finished(), "it is the second");
    give_back(guard).await;
    give_back(turn_of(second).await).await;
    give_back(take(&ours, &key).await).await;
}

async fn a_fair_release_whose_reply_is_lost_gives_one_turn(stage: Stage) {
    let (ours, key) = (stage.process().await, stage.key());
    let guard = take(&ours, &key).await;
    let (_process, first) = wait_behind(&stage, &key).await;
    let (_process, second) = wait_behind(&stage, &key).await;
    ours.wire.lose_replies(1);
    let (released, guard) = tokio::join!(guard.release(), turn_of(first));
    released.expect("it is asked again");
    quiet(&ours).await;
    guard.check().expect("it is another one's");
    assert!(!second.is_finished(), "it is the second");
    give_back(guard).await;
    give_back(turn_of(second).await).await;
}

async fn a_fair_attempt_of_an_unknown_outcome_is_cleaned_up(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    for _ in 0..3 {
        ours.wire.lose_replies(1);
        drop(fair(&ours, &key).with_request_timeout(Duration::from_secs(2)).try_acquire().await);
        quiet(&ours).await;
        give_back(fair(&theirs, &key).acquire().await.expect("it is free")).await;
    }
}

async fn a_fair_lock_that_is_released_by_force_goes_to_the_first_in_line(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guard = take(&ours, &key).await;
    let (_process, first) = wait_behind(&stage, &key).await;
    let (_process, second) = wait_behind(&stage, &key).await;
    assert!(theirs.locks.force_release(&key).await.expect("it can be asked"));
    let next = turn_of(first).await;
    assert!(!second.is_finished(), "it is the second");
    error_of(guard.release().await, &[ErrorKind::NotHeld]);
    next.check().expect("it is another one's");
    give_back(next).await;
    give_back(turn_of(second).await).await;
}

async fn a_nested_acquire_of_a_fair_lock_does_not_stand_in_line(stage: Stage) {
    let (ours, key) = (stage.process().await, stage.key());
    let (outer, inner) = (fair(&ours, &key), fair(&ours, &key));
    let (_process, waiter) = outer
        .run(async {
            let waiting = wait_behind(&stage, &key).await;
            inner.run(async { assert!(!waiting.1.is_finished()) }).await.expect("it is ours");
            waiting
        })
        .await
        .expect("it is free");
    give_back(turn_of(waiter).await).await;
}

async fn the_holder_of_a_fair_lock_is_known(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guard = take(&ours, &key).await;
    let (_process, waiter) = wait_behind(&stage, &key).await;
    let holder = theirs.locks.inspect(&key).await.expect("it can be asked").expect("somebody holds it");
    assert_eq!((holder.mode, holder.pid), (Mode::Exclusive, Some(std::process::id())));
    assert_eq!(holder.fence, guard.fence());
    give_back(guard).await;
    give_back(turn_of(waiter).await).await;
    assert!(theirs.locks.inspect(&key).await.expect("it can be asked").is_none());
}

/// Between the place in line and the turn there is the end of one section, and at most one more that had begun.
async fn one_who_takes_it_again_and_again_waits_for_its_turn(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let (over, sections) = (AtomicBool::new(false), AtomicU32::new(0));
    let greedy = async {
        while !over.load(Ordering::SeqCst) {
            let guard = fair(&ours, &key).acquire().await.expect("it has its turn");
            sections.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(5)).await;
            give_back(guard).await;
        }
    };
    let other = async {
        until("the first section", || sections.load(Ordering::SeqCst) > 0).await;
        for _ in 0..3 {
            let waiter = stand_in_line(&theirs, fair(&theirs, &key)).await;
            let before = sections.load(Ordering::SeqCst);
            let guard = turn_of(waiter).await;
            let meanwhile = sections.load(Ordering::SeqCst) - before;
            assert!(meanwhile <= 1, "{meanwhile} sections began before its turn");
            give_back(guard).await;
        }
        over.store(true, Ordering::SeqCst);
    };
    tokio::join!(greedy, other);
}

async fn all_who_want_it_all_the_time_get_it_in_turns(stage: Stage) {
    let processes = [stage.process().await, stage.process().await, stage.process().await];
    let key = stage.key();
    let mut guard = take(&processes[0], &key).await;
    let mut line = VecDeque::new();
    for process in &processes[1..] {
        line.push_back((process, stand_in_line(process, fair(process, &key)).await));
    }
    let mut holder = &processes[0];
    for _ in 0..9 {
        let (next, turn) = line.pop_front().expect("two wait");
        give_back(guard).await;
        guard = turn_of(turn).await;
        assert!(line.iter().all(|(_, behind)| !behind.is_finished()), "it is not their turn");
        line.push_back((holder, stand_in_line(holder, fair(holder, &key)).await));
        holder = next;
    }
    give_back(guard).await;
    for (_, turn) in line {
        give_back(turn_of(turn).await).await;
    }
}

/// A counter that is no lock itself sees who is inside.
async fn no_two_hold_a_fair_lock_at_once(stage: Stage) {
    let processes = [stage.process().await, stage.process().await, stage.process().await];
    let (key, inside) = (stage.key(), AtomicU32::new(0));
    let (key, inside) = (&key, &inside);
    let tasks = (0..9).map(|task| {
        let process = &processes[task % 3];
        async move {
            for round in 0..6 {
                let lock = fair(process, key);
                // Some do not ask for their turn, and wait for nobody.
                let guard = match (task + round) % 4 {
                    0 => lock.try_acquire().await.expect("it can be asked for"),
                    _ => Some(lock.acquire().await.expect("it has its turn")),
                };
                let Some(guard) = guard else { continue };
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                match task {
                    0 => drop(guard),
                    _ => give_back(guard).await,
                }
            }
        }
    });
    tokio::time::timeout(SOON * 4, futures_util::future::join_all(tasks))
        .await
        .expect("all come to their end");
}

async fn lines_of_different_keys_do_not_know_each_other(stage: Stage) {
    let (ours, theirs) = (stage.process().await, stage.process().await);
    let (one, other) = (stage.key(), stage.key());
    let guard = take(&ours, &one).await;
    let (_process, waiter) = wait_behind(&stage, &one).await;
    give_back(take(&theirs, &other).await).await;
    cannot_take(&theirs, &one).await;
    give_back(guard).await;
    give_back(turn_of(waiter).await).await;
}

async fn locks_that_are_required_to_be_fair_are_so(stage: Stage) {
    let ours = stage.process_with(|builder| builder.require(Requirement::Fair)).await;
    ours.locks.require(&[Requirement::Fair]).expect("they are");
    let key = stage.key();
    let guard = ours.take(&key).await;
    let (_process, first) = wait_behind(&stage, &key).await;
    let second = stand_in_line(&ours, ours.locks.lock(&key)).await;
    give_back(guard).await;
    let guard = turn_of(first).await;
    assert!(!second.is_finished(), "it is the second");
    give_back(guard).await;
    give_back(turn_of(second).await).await;
}
