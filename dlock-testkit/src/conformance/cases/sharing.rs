//! Many readers, or one writer.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use dlock_core::backend::Mode;
use dlock_core::{ErrorKind, Guard, Lock, Wait, read as reads, write as writes};
use tokio::time::Instant;

use super::cases;
use super::dropping::unpolled_keeps_nobody_from_other_keys;
use crate::cancel::every_await_point;
use crate::conformance::expect::{SOON, error_of, give_back, outcome_of, soon, tried, until};
use crate::conformance::{Process, Stage};

cases! {
    readers_of_all_processes_hold_a_lock_at_the_same_time: Shared, Easy;
    a_reader_and_a_writer_exclude_each_other: Shared, Easy;
    many_readers_wait_for_a_writer_and_come_in_together: Shared, Easy;
    a_writer_that_waits_gets_in_when_the_last_reader_has_left: Shared, Easy;
    a_writer_that_waits_keeps_new_readers_out: Shared, Easy;
    a_writer_gets_in_between_readers_that_never_stop: Shared, Busy;
    a_reader_gets_in_between_writers_that_never_stop: Shared, Busy;
    a_writer_that_gave_up_keeps_nobody_out: Shared, Easy;
    a_try_to_write_that_is_refused_keeps_nobody_out: Shared, Easy;
    fences_of_readers_lie_between_those_of_the_writers_around_them: Shared & Fences, Easy;
    a_writer_may_read_what_it_writes: Shared, Easy;
    a_reader_may_read_again_in_its_own_body: Shared, Easy;
    a_reader_that_asks_to_write_learns_that_it_would_wait_for_itself: Shared, Easy;
    a_reader_that_goes_silent_makes_room_for_a_writer: Shared & Lease, Timed;
    readers_are_renewed_each_for_itself: Shared & Lease, Timed;
    a_reader_that_was_deleted_learns_of_it_and_the_others_stay: Shared & Stored, Timed;
    a_reader_whose_reply_is_lost_adopts_its_own_grant: Shared, Easy;
    a_reader_whose_outcome_is_unknown_is_cleaned_up: Shared, Easy;
    a_reader_dropped_at_any_await_leaves_nothing: Shared, Easy;
    a_writer_dropped_while_it_waits_for_readers_leaves_nothing: Shared, Easy;
    a_reader_that_nobody_polls_keeps_nobody_from_other_keys: Shared, Easy;
    a_dropped_reader_is_given_back_soon: Shared, Easy;
    all_readers_are_known_as_such: Shared, Easy;
    a_release_by_force_takes_the_lock_from_all_its_readers: Shared & Administration, Easy;
    locks_of_a_batch_are_read_or_written_as_each_was_asked_for: Shared, Easy;
    keys_of_a_batch_are_read_or_written_and_the_stronger_counts_of_two: Shared, Easy;
    a_batch_that_cannot_write_one_key_keeps_none_of_those_that_it_reads: Shared, Easy;
    a_batch_enters_what_its_owner_writes_and_does_not_write_what_it_reads: Shared, Easy;
    batches_that_read_and_write_the_same_keys_come_to_their_end: Shared, Busy;
    no_writer_is_beside_anybody: Shared, Busy;
}

/// The cases that a backend without [`Capabilities::shared`](dlock_core::backend::Capabilities::shared) leaves out, for
/// [`Harness::left_out`](crate::conformance::Harness::left_out).
pub const SHARING: &[&str] = &[
    "readers_of_all_processes_hold_a_lock_at_the_same_time",
    "a_reader_and_a_writer_exclude_each_other",
    "many_readers_wait_for_a_writer_and_come_in_together",
    "a_writer_that_waits_gets_in_when_the_last_reader_has_left",
    "a_writer_that_waits_keeps_new_readers_out",
    "a_writer_gets_in_between_readers_that_never_stop",
    "a_reader_gets_in_between_writers_that_never_stop",
    "a_writer_that_gave_up_keeps_nobody_out",
    "a_writer_behind_readers_of_its_process_keeps_none_of_them_out",
    "a_try_to_write_that_is_refused_keeps_nobody_out",
    "fences_of_readers_lie_between_those_of_the_writers_around_them",
    "a_writer_may_read_what_it_writes",
    "a_reader_may_read_again_in_its_own_body",
    "a_reader_that_asks_to_write_learns_that_it_would_wait_for_itself",
    "a_reader_that_goes_silent_makes_room_for_a_writer",
    "readers_are_renewed_each_for_itself",
    "a_reader_that_was_deleted_learns_of_it_and_the_others_stay",
    "a_reader_whose_reply_is_lost_adopts_its_own_grant",
    "a_reader_whose_outcome_is_unknown_is_cleaned_up",
    "a_reader_dropped_at_any_await_leaves_nothing",
    "a_writer_dropped_while_it_waits_for_readers_leaves_nothing",
    "a_reader_that_nobody_polls_keeps_nobody_from_other_keys",
    "a_dropped_reader_is_given_back_soon",
    "all_readers_are_known_as_such",
    "a_release_by_force_takes_the_lock_from_all_its_readers",
    "a_release_by_force_of_some_who_share_a_lock_is_refused",
    "locks_of_a_batch_are_read_or_written_as_each_was_asked_for",
    "keys_of_a_batch_are_read_or_written_and_the_stronger_counts_of_two",
    "a_batch_that_cannot_write_one_key_keeps_none_of_those_that_it_reads",
    "a_batch_enters_what_its_owner_writes_and_does_not_write_what_it_reads",
    "batches_that_read_and_write_the_same_keys_come_to_their_end",
    "no_writer_is_beside_anybody",
    "a_waiter_in_line_has_its_turn_between_readers_that_never_stop",
    "a_waiter_in_line_and_a_writer_that_wait_for_a_reader_both_come_in",
    "the_last_reader_leaves_the_lock_to_those_in_line",
];

pub(super) fn reader(process: &Process, key: &str) -> Lock {
    process.locks.lock(key).read()
}

pub(super) async fn read(process: &Process, key: &str) -> Guard {
    let guard = outcome_of(|| tried(reader(process, key))).await;
    guard.unwrap_or_else(|| panic!("{key:?} is held, and should be free to read"))
}

async fn cannot_read(process: &Process, key: &str) {
    let tried = outcome_of(|| tried(reader(process, key))).await;
    assert!(tried.is_none(), "{key:?} can be read, and should not be");
}

async fn readers_of_all_processes_hold_a_lock_at_the_same_time(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let mut guards = Vec::new();
    for process in [&ours, &theirs, &ours, &theirs] {
        guards.push(read(process, &key).await);
    }
    for guard in guards {
        guard.check().expect("each is held");
        give_back(guard).await;
    }
    give_back(theirs.take(&key).await).await;
}

async fn a_reader_and_a_writer_exclude_each_other(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let (one, other) = (read(&ours, &key).await, read(&theirs, &key).await);
    theirs.sees_held(&key).await;
    give_back(one).await;
    ours.sees_held(&key).await;
    give_back(other).await;
    let writer = ours.take(&key).await;
    cannot_read(&ours, &key).await;
    cannot_read(&theirs, &key).await;
    give_back(writer).await;
    give_back(read(&theirs, &key).await).await;
}

/// None of them waits for another one to leave.
async fn many_readers_wait_for_a_writer_and_come_in_together(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let writer = ours.take(&key).await;
    let readers: Vec<_> = (0..6).map(|n| reader(if n % 2 == 0 { &ours } else { &theirs }, &key)).collect();
    let all = futures_util::future::join_all(readers.iter().map(|reader| async { reader.acquire().await }));
    let (all, ()) = soon("the readers", async {
        tokio::join!(all, async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            give_back(writer).await;
        })
    })
    .await;
    let all: Vec<Guard> = all.into_iter().map(|guard| guard.expect("it reads")).collect();
    assert!(all.iter().all(|guard| guard.check().is_ok()), "at the same time");
    for guard in all {
        give_back(guard).await;
    }
}

async fn a_writer_that_waits_gets_in_when_the_last_reader_has_left(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let (one, other) = (read(&ours, &key).await, read(&theirs, &key).await);
    let lock = theirs.locks.lock(&key);
    let mut writing = std::pin::pin!(lock.acquire());
    assert!(tokio::time::timeout(Duration::from_millis(60), &mut writing).await.is_err());
    give_back(one).await;
    assert!(tokio::time::timeout(Duration::from_millis(60), &mut writing).await.is_err());
    give_back(other).await;
    give_back(soon("the writer", writing).await.expect("nobody reads")).await;
}

async fn a_writer_that_waits_keeps_new_readers_out(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let before = read(&ours, &key).await;
    let lock = theirs.locks.lock(&key);
    let mut writing = std::pin::pin!(lock.acquire());
    let kept_out = async {
        while let Some(guard) = reader(&ours, &key).try_acquire().await.expect("it can be asked for") {
            give_back(guard).await;
        }
    };
    tokio::select! {
        _ = &mut writing => panic!("somebody reads"),
        () = soon("the writer's preference", kept_out) => {}
    }
    give_back(before).await;
    give_back(soon("the writer", writing).await.expect("nobody reads")).await;
    // A store may leave the writer's turn after its release: a reader that only tries might still meet it.
    give_back(soon("a reader", reader(&ours, &key).acquire()).await.expect("nobody writes")).await;
}

async fn a_writer_gets_in_between_readers_that_never_stop(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let over = AtomicBool::new(false);
    let reading = async || {
        while !over.load(Ordering::SeqCst) {
            let guard = reader(&ours, &key).acquire().await.expect("it reads");
            tokio::time::sleep(Duration::from_millis(3)).await;
            give_back(guard).await;
        }
    };
    let writing = async {
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_millis(10)).await;
            give_back(soon("the writer", theirs.locks.lock(&key).acquire()).await.expect("it writes")).await;
        }
        over.store(true, Ordering::SeqCst);
    };
    tokio::join!(reading(), reading(), reading(), reading(), writing);
}

async fn a_reader_gets_in_between_writers_that_never_stop(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let over = AtomicBool::new(false);
    let writing = async || {
        while !over.load(Ordering::SeqCst) {
            let guard = ours.locks.lock(&key).acquire().await.expect("it writes");
            tokio::time::sleep(Duration::from_millis(3)).await;
            give_back(guard).await;
        }
    };
    let reading = async {
        for _ in 0..5 {
            give_back(soon("the reader", reader(&theirs, &key).acquire()).await.expect("it reads")).await;
        }
        over.store(true, Ordering::SeqCst);
    };
    tokio::join!(writing(), writing(), reading);
}

async fn a_writer_that_gave_up_keeps_nobody_out(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let before = read(&ours, &key).await;
    let wait = Duration::from_millis(80);
    // Unavailable where the machine had no time to send it.
    let kinds = &[ErrorKind::TimedOut, ErrorKind::Unknown, ErrorKind::Unavailable];
    error_of(theirs.locks.lock(&key).with_wait(wait).acquire().await, kinds);
    until("the background work", || theirs.locks.stats().background == 0).await;
    give_back(read(&ours, &key).await).await;
    give_back(before).await;
}

async fn a_try_to_write_that_is_refused_keeps_nobody_out(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let before = read(&ours, &key).await;
    theirs.sees_held(&key).await;
    give_back(read(&ours, &key).await).await;
    give_back(read(&theirs, &key).await).await;
    give_back(before).await;
}

async fn fences_of_readers_lie_between_those_of_the_writers_around_them(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let mut last = None;
    for _ in 0..3 {
        let writer = theirs.take(&key).await;
        let wrote = writer.fence();
        assert!(wrote.is_some() && wrote > last, "a writer after {last:?}");
        give_back(writer).await;
        let readers = [read(&ours, &key).await, read(&theirs, &key).await, read(&ours, &key).await];
        for guard in readers {
            assert!(guard.fence() > wrote, "a reader after {wrote:?}");
            last = last.max(guard.fence());
            give_back(guard).await;
        }
    }
}

async fn a_writer_may_read_what_it_writes(stage: Stage) {
    let (ours, key) = (stage.process().await, stage.key());
    let (lock, reader) = (ours.locks.lock(&key), reader(&ours, &key));
    let fences = lock
        .run_with(|held| async move {
            let inner = reader.acquire().await.expect("it writes");
            let fences = (held.fence(), inner.fence());
            give_back(inner).await;
            fences
        })
        .await
        .expect("it is free");
    assert_eq!(fences.0, fences.1, "it is the same hold");
    give_back(ours.take(&key).await).await;
}

async fn a_reader_may_read_again_in_its_own_body(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let outer = reader(&ours, &key);
    let inner = outer.clone();
    outer
        .run(async {
            inner.run(async {}).await.expect("it reads");
            theirs.sees_held(&key).await;
        })
        .await
        .expect("it is free");
    give_back(theirs.take(&key).await).await;
}

async fn a_reader_that_asks_to_write_learns_that_it_would_wait_for_itself(stage: Stage) {
    let (ours, key) = (stage.process().await, stage.key());
    let (outer, writer) = (reader(&ours, &key), ours.locks.lock(&key));
    let asked = outer.run(async { writer.acquire().await }).await.expect("it is free");
    let error = error_of(asked, &[ErrorKind::Deadlock]);
    assert!(error.to_string().contains("for reading"), "{error}");
    assert_eq!(error.key(), Some(&*key));
    give_back(ours.take(&key).await).await;
}

async fn a_reader_that_goes_silent_makes_room_for_a_writer(stage: Stage) {
    let (ours, theirs, key) = (stage.short().await, stage.short().await, stage.key());
    let silent = read(&ours, &key).await;
    ours.wire.cut();
    let began = Instant::now();
    let writer = theirs.take_soon(&key).await;
    assert!(!stage.is_virtual() || began.elapsed() < stage.lease() * 3, "{:?}", began.elapsed());
    error_of(silent.check(), &[ErrorKind::Lost]);
    give_back(writer).await;
    ours.wire.mend();
}

async fn readers_are_renewed_each_for_itself(stage: Stage) {
    let (ours, theirs, key) = (stage.short().await, stage.short().await, stage.key());
    let kept = read(&ours, &key).await;
    let silent = read(&theirs, &key).await;
    theirs.wire.cut();
    tokio::time::sleep(stage.lease() * 3).await;
    kept.check().expect("it is renewed");
    error_of(silent.check(), &[ErrorKind::Lost]);
    theirs.wire.mend();
    theirs.sees_held(&key).await;
    give_back(kept).await;
    theirs.sees_free_soon(&key).await;
}

async fn a_reader_that_was_deleted_learns_of_it_and_the_others_stay(stage: Stage) {
    let (ours, theirs, key) = (stage.short().await, stage.short().await, stage.key());
    let (kept, deleted) = (read(&ours, &key).await, read(&theirs, &key).await);
    theirs.delete(&key).await;
    soon("the loss", deleted.lost()).await;
    kept.check().expect("it has a claim of its own");
    theirs.sees_held(&key).await;
    give_back(kept).await;
}

async fn a_reader_whose_reply_is_lost_adopts_its_own_grant(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let before = read(&theirs, &key).await;
    ours.wire.lose_replies(1);
    let guard = read(&ours, &key).await;
    assert_eq!((ours.wire.attempts(), ours.locks.stats().rechecks), (2, 1));
    give_back(before).await;
    theirs.sees_held(&key).await;
    give_back(guard).await;
    give_back(theirs.take(&key).await).await;
}

async fn a_reader_whose_outcome_is_unknown_is_cleaned_up(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    ours.wire.lose_replies(1);
    error_of(reader(&ours, &key).with_rechecks(0).acquire().await, &[ErrorKind::Unknown]);
    theirs.sees_free_soon(&key).await;
}

async fn a_reader_dropped_at_any_await_leaves_nothing(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let lock = reader(&ours, &key);
    let points = every_await_point(
        || lock.acquire(),
        async |_cut, output| {
            drop(output.map(|result| result.expect("nobody writes")));
            theirs.sees_free_soon(&key).await;
        },
    )
    .await;
    assert!(points >= 2);
}

/// Neither a place in a queue nor its preference.
async fn a_writer_dropped_while_it_waits_for_readers_leaves_nothing(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    // A connection is there before the wait, which is too short to open one on a busy machine.
    give_back(read(&ours, &key).await).await;
    let before = read(&theirs, &key).await;
    let lock = ours.locks.lock(&key).with_wait(Duration::from_millis(60));
    let points = every_await_point(
        || lock.acquire(),
        async |_cut, output| {
            if let Some(result) = output {
                // On a busy machine its wait may be over before its request is sent.
                error_of(result, &[ErrorKind::TimedOut, ErrorKind::Unknown, ErrorKind::Unavailable]);
            }
            until("the background work", || ours.locks.stats().background == 0).await;
            give_back(read(&theirs, &key).await).await;
        },
    )
    .await;
    assert!(points >= 2);
    give_back(before).await;
    give_back(theirs.take(&key).await).await;
}

async fn a_dropped_reader_is_given_back_soon(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    drop(read(&ours, &key).await);
    theirs.sees_free_soon(&key).await;
}

async fn all_readers_are_known_as_such(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guards = [read(&ours, &key).await, read(&theirs, &key).await, read(&ours, &key).await];
    let found = theirs.locks.occupancy(&key).await.expect("it can be asked");
    assert_eq!((found.holders.len(), found.permits), (3, None));
    assert!(found.holders.iter().all(|holder| holder.mode == Mode::Shared), "{found:?}");
    let mut fences: Vec<_> = found.holders.iter().map(|holder| holder.fence).collect();
    let mut ours_have: Vec<_> = guards.iter().map(Guard::fence).collect();
    fences.sort();
    ours_have.sort();
    assert_eq!(fences, ours_have);
    let first = theirs.locks.inspect(&key).await.expect("it can be asked").expect("somebody reads");
    assert_eq!((first.mode, first.pid), (Mode::Shared, Some(std::process::id())));
    for guard in guards {
        give_back(guard).await;
    }
    let found = theirs.locks.occupancy(&key).await.expect("it can be asked");
    assert!(found.holders.is_empty(), "{found:?}");
}

async fn a_release_by_force_takes_the_lock_from_all_its_readers(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guards = [read(&ours, &key).await, read(&theirs, &key).await];
    let listed = theirs.locks.holders().await.expect("it can be asked");
    assert_eq!(listed.iter().filter(|(listed, _)| listed.as_str() == key).count(), 2);
    assert!(theirs.locks.force_release(&key).await.expect("it can be asked"));
    super::downgrading::learn_of_their_end(&theirs, &guards).await;
    give_back(theirs.take(&key).await).await;
    for guard in guards {
        error_of(guard.release().await, &[ErrorKind::NotHeld]);
    }
}

async fn locks_of_a_batch_are_read_or_written_as_each_was_asked_for(stage: Stage) {
    let (ours, theirs) = (stage.process().await, stage.process().await);
    let (read_key, written) = (stage.key(), stage.key());
    let other = read(&theirs, &read_key).await;
    let batch = dlock_core::Batch::of([reader(&ours, &read_key), ours.locks.lock(&written)]);
    let guard = batch.acquire().await.expect("both are free for it");
    theirs.sees_held(&written).await;
    cannot_read(&theirs, &written).await;
    give_back(read(&theirs, &read_key).await).await;
    give_back(other).await;
    theirs.sees_held(&read_key).await;
    guard.release().await.expect("it is held");
    give_back(theirs.take(&read_key).await).await;
    give_back(theirs.take(&written).await).await;
}

/// Counters that are no locks themselves see who is inside.
async fn no_writer_is_beside_anybody(stage: Stage) {
    let processes = [stage.process().await, stage.process().await, stage.process().await];
    let key = stage.key();
    let (readers, writers) = (AtomicU32::new(0), AtomicU32::new(0));
    let (readers, writers) = (&readers, &writers);
    let tasks = (0..12).map(|task| {
        let (process, key) = (&processes[task % 3], &key);
        async move {
            for _ in 0..8 {
                if task % 4 == 3 {
                    let guard = process.locks.lock(key).acquire().await.expect("it writes");
                    assert_eq!(writers.fetch_add(1, Ordering::SeqCst), 0, "two writers");
                    assert_eq!(readers.load(Ordering::SeqCst), 0, "a writer beside readers");
                    tokio::task::yield_now().await;
                    writers.fetch_sub(1, Ordering::SeqCst);
                    give_back(guard).await;
                } else {
                    let guard = reader(process, key).acquire().await.expect("it reads");
                    readers.fetch_add(1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    assert_eq!(writers.load(Ordering::SeqCst), 0, "a reader beside a writer");
                    readers.fetch_sub(1, Ordering::SeqCst);
                    give_back(guard).await;
                }
            }
        }
    });
    tokio::time::timeout(SOON * 4, futures_util::future::join_all(tasks))
        .await
        .expect("all come to their end");
}

async fn keys_of_a_batch_are_read_or_written_and_the_stronger_counts_of_two(stage: Stage) {
    let (ours, theirs) = (stage.process().await, stage.process().await);
    let (a, b) = (&stage.key(), &stage.key());
    let batch = ours.locks.lock_all([reads(a), reads(b), writes(a), reads(b)]);
    assert_eq!(batch.keys().count(), 2);
    let guard = batch.acquire().await.expect("both are free");
    cannot_read(&theirs, a).await;
    give_back(read(&theirs, b).await).await;
    theirs.sees_held(b).await;
    guard.release().await.expect("they are held");
    give_back(theirs.take(a).await).await;
    give_back(theirs.take(b).await).await;
}

async fn a_batch_that_cannot_write_one_key_keeps_none_of_those_that_it_reads(stage: Stage) {
    let (ours, theirs) = (stage.process().await, stage.process().await);
    let keys = [stage.key(), stage.key(), stage.key()];
    for busy in 0..3 {
        let before = read(&theirs, &keys[busy]).await;
        let one_writes =
            keys.iter().enumerate().map(|(n, key)| if n == busy { writes(key) } else { reads(key) });
        let batch = ours.locks.lock_all(one_writes);
        assert!(batch.try_acquire().await.expect("it can be asked for").is_none());
        error_of(
            batch.with_wait(Wait::For(Duration::from_millis(60))).acquire().await,
            // Where a connection had to be opened, the request was not sent in that time.
            &[ErrorKind::TimedOut, ErrorKind::Unknown, ErrorKind::Unavailable],
        );
        until("the background work", || ours.locks.stats().background == 0).await;
        give_back(before).await;
        for key in &keys {
            theirs.sees_free_soon(key).await;
        }
    }
}

async fn a_batch_enters_what_its_owner_writes_and_does_not_write_what_it_reads(stage: Stage) {
    let (ours, theirs) = (stage.process().await, stage.process().await);
    let (a, b) = (&stage.key(), &stage.key());
    let outer = ours.locks.lock_all([writes(a)]);
    let inner = ours.locks.lock_all([reads(a), writes(b)]);
    let entered = outer.run(async {
        let guard = inner.acquire().await.expect("a is ours, and b is free");
        cannot_read(&theirs, a).await;
        guard.release().await.expect("it is held");
        cannot_read(&theirs, a).await;
        give_back(theirs.take(b).await).await;
    });
    entered.await.expect("it is free");
    let outer = ours.locks.lock_all([reads(a)]);
    let inner = ours.locks.lock_all([writes(a), writes(b)]);
    let refused = outer.run(async { inner.acquire().await }).await.expect("it is free");
    error_of(refused, &[ErrorKind::Deadlock]);
    give_back(theirs.take(a).await).await;
    give_back(theirs.take(b).await).await;
}

async fn batches_that_read_and_write_the_same_keys_come_to_their_end(stage: Stage) {
    let processes = [stage.process().await, stage.process().await];
    let keys = [stage.key(), stage.key(), stage.key()];
    let inside: [(AtomicU32, AtomicU32); 3] = Default::default();
    let (keys, inside) = (&keys, &inside);
    let tasks = (0..8).map(|task| {
        let process = &processes[task % 2];
        async move {
            for round in 0..5 {
                // Each in an order of its own, and each writes another one.
                let order = [task % 3, (task + 1 + round % 2) % 3, (task + 2 - round % 2) % 3];
                let written = (task + round) % 3;
                let key = |n: usize| if n == written { writes(&keys[n]) } else { reads(&keys[n]) };
                let batch = process.locks.lock_all(order.map(key)).with_wait(SOON * 3);
                let guard = batch.acquire().await.expect("it has its turn");
                for (n, (readers, writers)) in inside.iter().enumerate() {
                    if n == written {
                        assert_eq!(writers.fetch_add(1, Ordering::SeqCst), 0, "two writers");
                        assert_eq!(readers.load(Ordering::SeqCst), 0, "a writer beside readers");
                    } else {
                        readers.fetch_add(1, Ordering::SeqCst);
                        assert_eq!(writers.load(Ordering::SeqCst), 0, "a reader beside a writer");
                    }
                }
                tokio::task::yield_now().await;
                for (n, (readers, writers)) in inside.iter().enumerate() {
                    if n == written { writers } else { readers }.fetch_sub(1, Ordering::SeqCst);
                }
                guard.release().await.expect("it is held");
            }
        }
    });
    tokio::time::timeout(SOON * 4, futures_util::future::join_all(tasks))
        .await
        .expect("all come to their end");
}

async fn a_reader_that_nobody_polls_keeps_nobody_from_other_keys(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let acquire = || {
        let wanted = reader(&ours, &key);
        async move { wanted.acquire().await }
    };
    let all = || {
        let wanted = theirs.locks.lock(&key);
        async move { wanted.acquire().await }
    };
    unpolled_keeps_nobody_from_other_keys(&stage, [&ours, &theirs], acquire, all).await;
}
