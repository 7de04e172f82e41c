//! A writer that becomes a reader.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dlock_core::backend::Mode;
use dlock_core::{Batch, ErrorKind, Guard, Lock};

use super::cases;
use crate::cancel::{Cut, Leave, cut_at};
use crate::conformance::expect::{SOON, error_of, give_back, soon, until};
use crate::conformance::{Process, Stage};

cases! {
    a_writer_that_becomes_a_reader_lets_readers_in_and_no_writer: Downgrade, Easy;
    readers_that_wait_come_in_when_the_writer_becomes_a_reader: Downgrade, Easy;
    a_writer_that_waits_gets_in_after_the_last_reader_and_not_by_a_downgrade: Downgrade, Easy;
    a_downgraded_lock_keeps_its_fence_which_lies_between_those_of_the_writers: Downgrade & Fences, Easy;
    a_downgraded_lock_is_known_as_a_readers: Downgrade, Easy;
    a_downgrade_whose_reply_is_lost_is_asked_for_again: Downgrade, Easy;
    a_downgrade_whose_request_is_lost_is_asked_for_again: Downgrade, Easy;
    a_downgrade_whose_answer_panics_is_asked_for_again: Downgrade, Easy;
    a_downgrade_that_cannot_be_sent_is_made_up_for: Downgrade, Easy;
    a_downgrade_dropped_at_any_await_leaves_a_reader_and_goes_on: Downgrade, Easy;
    a_downgrade_that_arrives_after_the_release_leaves_nothing: Downgrade, Easy;
    a_downgraded_lock_that_is_dropped_is_given_back_soon: Downgrade, Easy;
    a_downgraded_lock_is_renewed_like_any_other: Downgrade & Lease, Timed;
    a_downgraded_lock_that_goes_silent_makes_room_for_a_writer: Downgrade & Lease, Timed;
    a_lock_that_somebody_removed_is_lost_by_its_downgrade: Downgrade & Administration, Easy;
    a_lock_that_others_of_its_owner_rely_on_is_not_downgraded: Downgrade, Easy;
    in_a_scope_a_downgraded_lock_may_be_read_again_and_not_written: Downgrade, Easy;
    a_reader_stays_what_it_is_when_it_is_downgraded: Downgrade, Easy;
    the_locks_of_a_batch_are_downgraded_each: Downgrade, Easy;
    readers_that_are_over_do_not_come_back_with_a_downgrade: Downgrade & Administration, Easy;
    nobody_writes_between_a_writer_and_what_it_reads_after_its_downgrade: Downgrade, Busy;
}

/// The cases that a backend without [`Capabilities::downgrades`](dlock_core::backend::Capabilities::downgrades) leaves
/// out, for [`Harness::left_out`](crate::conformance::Harness::left_out).
pub const DOWNGRADING: &[&str] = &[
    "a_writer_that_becomes_a_reader_lets_readers_in_and_no_writer",
    "readers_that_wait_come_in_when_the_writer_becomes_a_reader",
    "a_writer_that_waits_gets_in_after_the_last_reader_and_not_by_a_downgrade",
    "a_downgraded_lock_keeps_its_fence_which_lies_between_those_of_the_writers",
    "a_downgraded_lock_is_known_as_a_readers",
    "a_downgrade_whose_reply_is_lost_is_asked_for_again",
    "a_downgrade_whose_request_is_lost_is_asked_for_again",
    "a_downgrade_whose_answer_panics_is_asked_for_again",
    "a_downgrade_that_cannot_be_sent_is_made_up_for",
    "a_downgrade_dropped_at_any_await_leaves_a_reader_and_goes_on",
    "a_downgrade_that_arrives_after_the_release_leaves_nothing",
    "a_downgraded_lock_that_is_dropped_is_given_back_soon",
    "a_downgraded_lock_is_renewed_like_any_other",
    "a_downgraded_lock_that_goes_silent_makes_room_for_a_writer",
    "a_lock_that_somebody_removed_is_lost_by_its_downgrade",
    "a_lock_that_others_of_its_owner_rely_on_is_not_downgraded",
    "in_a_scope_a_downgraded_lock_may_be_read_again_and_not_written",
    "a_reader_stays_what_it_is_when_it_is_downgraded",
    "the_locks_of_a_batch_are_downgraded_each",
    "readers_that_are_over_do_not_come_back_with_a_downgrade",
    "nobody_writes_between_a_writer_and_what_it_reads_after_its_downgrade",
];

fn reader(process: &Process, key: &str) -> Lock {
    process.locks.lock(key).read()
}

async fn read(process: &Process, key: &str) -> Guard {
    match reader(process, key).try_acquire().await {
        Ok(Some(guard)) => guard,
        Ok(None) => panic!("{key:?} is held, and should be free to read"),
        Err(error) => panic!("{key:?} could not be read: {error}"),
    }
}

async fn cannot_read(process: &Process, key: &str) {
    let tried = reader(process, key).try_acquire().await.expect("it can be asked for");
    assert!(tried.is_none(), "{key:?} can be read, and should not be");
}

/// Takes the lock and lets others read.
async fn downgraded(process: &Process, key: &str) -> Guard {
    let mut guard = process.take(key).await;
    guard.downgrade().await.expect("it is held");
    guard
}

/// Others may read soon, and nobody may write.
async fn is_read_soon(other: &Process, key: &str) {
    give_back(soon("a reader", reader(other, key).acquire()).await.expect("it can be read")).await;
    other.sees_held(key).await;
}

async fn a_writer_that_becomes_a_reader_lets_readers_in_and_no_writer(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let mut guard = ours.take(&key).await;
    cannot_read(&theirs, &key).await;
    assert_eq!(guard.mode(), Mode::Exclusive);
    guard.downgrade().await.expect("it is held");
    assert_eq!(guard.mode(), Mode::Shared);
    guard.check().expect("it is held");
    let (one, other) = (read(&theirs, &key).await, read(&ours, &key).await);
    theirs.sees_held(&key).await;
    ours.sees_held(&key).await;
    give_back(one).await;
    give_back(other).await;
    theirs.sees_held(&key).await;
    give_back(guard).await;
    give_back(theirs.take(&key).await).await;
}

async fn readers_that_wait_come_in_when_the_writer_becomes_a_reader(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let mut guard = ours.take(&key).await;
    let readers: Vec<_> = (0..6).map(|n| reader(if n % 2 == 0 { &ours } else { &theirs }, &key)).collect();
    let all = futures_util::future::join_all(readers.iter().map(|reader| async { reader.acquire().await }));
    let (all, downgraded) = soon("the readers", async {
        tokio::join!(all, async {
            until("a reader that is refused", || theirs.wire.attempts() > 0).await;
            guard.downgrade().await
        })
    })
    .await;
    downgraded.expect("it is held");
    for reading in all {
        give_back(reading.expect("it can be read")).await;
    }
    give_back(guard).await;
}

async fn a_writer_that_waits_gets_in_after_the_last_reader_and_not_by_a_downgrade(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let mut guard = ours.take(&key).await;
    let lock = theirs.locks.lock(&key);
    let mut writing = std::pin::pin!(lock.acquire());
    assert!(tokio::time::timeout(Duration::from_millis(60), &mut writing).await.is_err());
    guard.downgrade().await.expect("it is held");
    assert!(tokio::time::timeout(Duration::from_millis(60), &mut writing).await.is_err(), "it is read");
    guard.check().expect("it is held");
    give_back(guard).await;
    give_back(soon("the writer", writing).await.expect("nobody reads")).await;
}

async fn a_downgraded_lock_keeps_its_fence_which_lies_between_those_of_the_writers(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let mut last = None;
    for _ in 0..3 {
        let mut guard = ours.take(&key).await;
        let wrote = guard.fence();
        assert!(wrote > last, "{wrote:?} after {last:?}");
        guard.downgrade().await.expect("it is held");
        assert_eq!(guard.fence(), wrote, "it stays");
        let reading = read(&theirs, &key).await;
        assert!(reading.fence() > wrote, "a reader after {wrote:?}");
        last = reading.fence();
        give_back(guard).await;
        give_back(reading).await;
        let writer = theirs.take(&key).await;
        assert!(writer.fence() > last, "a writer after {last:?}");
        last = writer.fence();
        give_back(writer).await;
    }
}

async fn a_downgraded_lock_is_known_as_a_readers(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guard = downgraded(&ours, &key).await;
    let found = theirs.locks.occupancy(&key).await.expect("it can be asked");
    assert_eq!((found.holders.len(), found.permits), (1, None), "{found:?}");
    assert_eq!((found.holders[0].mode, found.holders[0].fence), (Mode::Shared, guard.fence()));
    let other = read(&theirs, &key).await;
    let found = theirs.locks.occupancy(&key).await.expect("it can be asked");
    assert_eq!(found.holders.len(), 2, "{found:?}");
    let first = theirs.locks.inspect(&key).await.expect("it can be asked").expect("it is read");
    assert_eq!((first.mode, first.pid), (Mode::Shared, Some(std::process::id())));
    give_back(guard).await;
    let found = theirs.locks.occupancy(&key).await.expect("it can be asked");
    assert_eq!(found.holders.len(), 1, "{found:?}");
    give_back(other).await;
}

async fn a_downgrade_whose_reply_is_lost_is_asked_for_again(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let mut guard = ours.take(&key).await;
    ours.wire.lose_replies(1);
    guard.downgrade().await.expect("it is found to be a reader's");
    assert_eq!(ours.wire.downgrades(), 2);
    is_read_soon(&theirs, &key).await;
    give_back(guard).await;
    give_back(theirs.take(&key).await).await;
}

async fn a_downgrade_whose_request_is_lost_is_asked_for_again(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let mut guard = ours.take(&key).await;
    ours.wire.lose_requests(1);
    guard.downgrade().await.expect("it is still held");
    assert_eq!(ours.wire.downgrades(), 2);
    give_back(read(&theirs, &key).await).await;
    theirs.sees_held(&key).await;
    give_back(guard).await;
}

async fn a_downgrade_whose_answer_panics_is_asked_for_again(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let mut guard = ours.take(&key).await;
    ours.wire.panic_replies(1);
    guard.downgrade().await.expect("it is found to be a reader's");
    is_read_soon(&theirs, &key).await;
    give_back(guard).await;
    give_back(theirs.take(&key).await).await;
}

/// By the keeper, as soon as it can be.
async fn a_downgrade_that_cannot_be_sent_is_made_up_for(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let mut guard = ours.take(&key).await;
    ours.wire.cut();
    let error = error_of(guard.downgrade().await, &[ErrorKind::Unavailable, ErrorKind::Unknown]);
    assert_eq!((error.key(), error.operation()), (Some(&*key), dlock_core::Operation::Downgrade));
    assert_eq!(guard.mode(), Mode::Shared, "here it is none any more");
    cannot_read(&theirs, &key).await;
    ours.wire.mend();
    is_read_soon(&theirs, &key).await;
    guard.downgrade().await.expect("it is done");
    until("the background work", || ours.locks.stats().background == 0).await;
    give_back(guard).await;
    give_back(theirs.take(&key).await).await;
}

async fn a_downgrade_dropped_at_any_await_leaves_a_reader_and_goes_on(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let mut cuts = 0;
    for polls in 1..10_000 {
        let mut done = true;
        for leave in [Leave::AtOnce, Leave::WhenWoken] {
            let mut guard = ours.take_soon(&key).await;
            let output = cut_at(guard.downgrade(), Cut { polls, leave }).await;
            done &= output.is_some();
            cuts += usize::from(output.is_none());
            guard.check().expect("it is held");
            assert_eq!(guard.mode(), Mode::Shared);
            is_read_soon(&theirs, &key).await;
            give_back(guard).await;
            theirs.sees_free_soon(&key).await;
        }
        if done {
            break;
        }
    }
    let mut guard = ours.take(&key).await;
    drop(guard.downgrade());
    assert_eq!(guard.mode(), Mode::Exclusive, "nothing was begun");
    give_back(guard).await;
    assert!(cuts < 10_000);
}

async fn a_downgrade_that_arrives_after_the_release_leaves_nothing(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    for by_hand in [true, false] {
        let mut guard = ours.take_soon(&key).await;
        ours.wire.stall();
        assert!(cut_at(guard.downgrade(), Cut { polls: 1, leave: Leave::AtOnce }).await.is_none());
        if by_hand {
            let released = tokio::time::timeout(Duration::from_millis(40), guard.release()).await;
            assert!(released.is_err(), "nothing arrives");
        } else {
            drop(guard);
        }
        ours.wire.mend();
        theirs.sees_free_soon(&key).await;
        until("the background work", || ours.locks.stats().background == 0).await;
        give_back(theirs.take(&key).await).await;
    }
}

async fn a_downgraded_lock_that_is_dropped_is_given_back_soon(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    drop(downgraded(&ours, &key).await);
    theirs.sees_free_soon(&key).await;
}

async fn a_downgraded_lock_is_renewed_like_any_other(stage: Stage) {
    let (ours, theirs, key) = (stage.short().await, stage.short().await, stage.key());
    let guard = downgraded(&ours, &key).await;
    tokio::time::sleep(stage.lease() * 3).await;
    guard.check().expect("it is renewed");
    give_back(read(&theirs, &key).await).await;
    theirs.sees_held(&key).await;
    give_back(guard).await;
    theirs.sees_free_soon(&key).await;
}

async fn a_downgraded_lock_that_goes_silent_makes_room_for_a_writer(stage: Stage) {
    let (ours, theirs, key) = (stage.short().await, stage.short().await, stage.key());
    let silent = downgraded(&ours, &key).await;
    ours.wire.cut();
    let writer = theirs.take_soon(&key).await;
    error_of(silent.check(), &[ErrorKind::Lost]);
    give_back(writer).await;
    ours.wire.mend();
}

/// It is not made again, and the lock of the next one is not touched.
async fn a_lock_that_somebody_removed_is_lost_by_its_downgrade(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let mut guard = ours.take(&key).await;
    assert!(theirs.locks.force_release(&key).await.expect("it can be asked"));
    error_of(guard.downgrade().await, &[ErrorKind::Lost]);
    error_of(guard.check(), &[ErrorKind::Lost]);
    error_of(guard.downgrade().await, &[ErrorKind::Lost]);
    let mut successor = theirs.take(&key).await;
    error_of(guard.release().await, &[ErrorKind::NotHeld]);
    successor.check().expect("it has a token of its own");
    cannot_read(&ours, &key).await;
    successor.downgrade().await.expect("it is held");
    give_back(successor).await;
}

async fn a_lock_that_others_of_its_owner_rely_on_is_not_downgraded(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let lock = ours.locks.lock(&key);
    ours.locks
        .scope(async {
            let mut outer = lock.acquire().await.expect("it is free");
            let inner = lock.acquire().await.expect("it is ours");
            let error = error_of(outer.downgrade().await, &[ErrorKind::Conflict]);
            assert!(error.to_string().contains("further guards"), "{error}");
            assert_eq!((outer.mode(), inner.mode()), (Mode::Exclusive, Mode::Exclusive));
            cannot_read(&theirs, &key).await;
            give_back(inner).await;
            outer.downgrade().await.expect("it is the last");
            give_back(outer).await;
        })
        .await;
    let inner = lock.clone();
    let refused = lock.run(async {
        let mut further = inner.acquire().await.expect("it is ours");
        error_of(further.downgrade().await, &[ErrorKind::Conflict]);
        give_back(further).await;
    });
    refused.await.expect("it is free");
    give_back(theirs.take(&key).await).await;
}

async fn in_a_scope_a_downgraded_lock_may_be_read_again_and_not_written(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let lock = ours.locks.lock(&key);
    ours.locks
        .scope(async {
            let mut guard = lock.acquire().await.expect("it is free");
            guard.downgrade().await.expect("it is the only one");
            let again = reader(&ours, &key).acquire().await.expect("it is read");
            assert_eq!(again.fence(), guard.fence(), "it is the same hold");
            error_of(lock.acquire().await, &[ErrorKind::Deadlock]);
            give_back(guard).await;
            theirs.sees_held(&key).await;
            give_back(again).await;
        })
        .await;
    give_back(theirs.take(&key).await).await;
}

async fn a_reader_stays_what_it_is_when_it_is_downgraded(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let mut guard = read(&ours, &key).await;
    guard.downgrade().await.expect("it reads");
    assert_eq!(ours.wire.downgrades(), 0);
    give_back(read(&theirs, &key).await).await;
    give_back(guard).await;
    let mut twice = downgraded(&ours, &key).await;
    twice.downgrade().await.expect("it reads");
    assert_eq!(ours.wire.downgrades(), 1);
    give_back(twice).await;
}

async fn the_locks_of_a_batch_are_downgraded_each(stage: Stage) {
    let (ours, theirs) = (stage.process().await, stage.process().await);
    let keys = [stage.key(), stage.key(), stage.key()];
    let locks = [ours.locks.lock(&keys[0]), ours.locks.lock(&keys[1]), reader(&ours, &keys[2])];
    let mut batch = Batch::of(locks).acquire().await.expect("they are free");
    cannot_read(&theirs, &keys[0]).await;
    batch.downgrade().await.expect("they are held");
    for key in &keys {
        give_back(read(&theirs, key).await).await;
        theirs.sees_held(key).await;
    }
    batch.release().await.expect("they are held");
    for key in &keys {
        give_back(theirs.take(key).await).await;
    }
}

/// Holders learn in a moment that their sessions were ended by force; where locks have leases, they have to ask.
pub(super) async fn learn_of_their_end(process: &Process, guards: &[Guard]) {
    if process.locks.capabilities().session_kept {
        for guard in guards {
            soon("the loss", guard.lost()).await;
        }
    }
}

/// What an earlier reader left counts for nothing while the lock is held alone, and not afterwards either.
async fn readers_that_are_over_do_not_come_back_with_a_downgrade(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let over = read(&theirs, &key).await;
    assert!(ours.locks.force_release(&key).await.expect("it can be asked"));
    learn_of_their_end(&theirs, std::slice::from_ref(&over)).await;
    let guard = downgraded(&ours, &key).await;
    let found = ours.locks.occupancy(&key).await.expect("it can be asked");
    assert_eq!(found.holders.len(), 1, "{found:?}");
    give_back(guard).await;
    give_back(ours.take(&key).await).await;
    error_of(over.release().await, &[ErrorKind::NotHeld]);
}

/// What a writer wrote is what it reads afterwards, whoever else writes and downgrades.
async fn nobody_writes_between_a_writer_and_what_it_reads_after_its_downgrade(stage: Stage) {
    let processes = [stage.process().await, stage.process().await, stage.process().await];
    let key = stage.key();
    let (value, writers) = (&AtomicU32::new(0), &AtomicU32::new(0));
    let tasks = (0..9).map(|task| {
        let (process, key) = (&processes[task as usize % 3], &key);
        async move {
            for round in 0..6 {
                if task % 3 == 2 {
                    let guard = reader(process, key).acquire().await.expect("it reads");
                    let before = value.load(Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    assert_eq!(value.load(Ordering::SeqCst), before, "it was written while it was read");
                    give_back(guard).await;
                    continue;
                }
                let mut guard = process.locks.lock(key).acquire().await.expect("it writes");
                assert_eq!(writers.fetch_add(1, Ordering::SeqCst), 0, "two writers");
                let written = task * 1_000 + round + 1;
                value.store(written, Ordering::SeqCst);
                tokio::task::yield_now().await;
                writers.fetch_sub(1, Ordering::SeqCst);
                guard.downgrade().await.expect("it is held");
                tokio::task::yield_now().await;
                assert_eq!(value.load(Ordering::SeqCst), written, "somebody wrote meanwhile");
                give_back(guard).await;
            }
        }
    });
    tokio::time::timeout(SOON * 4, futures_util::future::join_all(tasks))
        .await
        .expect("all come to their end");
}
