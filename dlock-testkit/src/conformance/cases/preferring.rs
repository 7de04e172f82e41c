//! Who keeps newcomers out, and for whom.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use dlock_core::Lock;
use dlock_core::backend::PREFERENCE_ALIVE;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::cases;
use super::fairness::{fair, stand_in_line, turn_of};
use super::permits::{quiet, semaphore, take};
use super::sharing::{read, reader};
use crate::conformance::expect::{give_back, soon, until};
use crate::conformance::{Process, Stage};

cases! {
    one_behind_others_of_its_process_keeps_nobody_out: Permits, Easy;
    a_writer_behind_readers_of_its_process_keeps_none_of_them_out: Shared & Stored, Easy;
    a_waiter_in_line_has_its_turn_between_readers_that_never_stop: Fair & Shared, Busy;
    a_waiter_in_line_has_its_turn_between_writers_that_do_not_ask_for_theirs: Fair, Busy;
    a_waiter_in_line_and_a_writer_that_wait_for_a_reader_both_come_in: Fair & Shared, Easy;
    the_last_reader_leaves_the_lock_to_those_in_line: Fair & Shared, Easy;
}

/// The cases that a backend with readers leaves out that stores nothing of a claim, for
/// [`Harness::left_out`](crate::conformance::Harness::left_out).
pub const STORED_SHARES: &[&str] = &[
    "a_writer_behind_readers_of_its_process_keeps_none_of_them_out",
    "a_reader_that_was_deleted_learns_of_it_and_the_others_stay",
];

/// Both ask before any of them stands in line. The one behind asks no more, and what its question left on the server
/// would keep out the one before it, which asks for all of them.
async fn one_behind_others_of_its_process_keeps_nobody_out(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    for _ in 0..3 {
        let (one, others) = (take(&theirs, &key, (4, 1)).await, take(&theirs, &key, (4, 3)).await);
        let (few, many) = (semaphore(&ours, &key, 4), semaphore(&ours, &key, 4).take(3));
        ours.wire.keep_answers();
        // In this order, in which they get their answers.
        let both = futures_util::future::join(few.acquire(), many.acquire());
        let released = async {
            until("the answers to both", || ours.wire.kept_answers() == 2).await;
            ours.wire.mend();
            until("both answers", || ours.wire.unanswered_attempts() == 0).await;
            quiet(&ours).await;
            // From here on nothing of ours arrives.
            ours.wire.cut();
            until("the last answer", || ours.wire.unanswered_attempts() == 0).await;
            give_back(one).await;
            if !ours.locks.capabilities().fair {
                give_back(take(&theirs, &key, (4, 1)).await).await;
            }
            ours.wire.mend();
            give_back(others).await;
            Instant::now()
        };
        let ((few, many), began) = soon("the permits", async { tokio::join!(both, released) }).await;
        assert!(!stage.is_virtual() || began.elapsed() < PREFERENCE_ALIVE / 2, "{:?}", began.elapsed());
        give_back(few.expect("there is one")).await;
        give_back(many.expect("there are three")).await;
    }
}

/// The reader is kept out by the writer when it asks, and has its answer before that one has its own. So the writer
/// stands behind it, and asks no more until the reader is in.
async fn a_writer_behind_readers_of_its_process_keeps_none_of_them_out(stage: Stage) {
    let (ours, theirs) = (stage.process().await, stage.process().await);
    for _ in 0..3 {
        // A process that has just released a key may stand back there, and then the writer stands before the reader.
        let key = stage.key();
        let (one_reads, one_writes) = (reader(&ours, &key), ours.locks.lock(&key));
        let before = read(&theirs, &key).await;
        let ((ask, asked), (tell, told)) = (oneshot::channel(), oneshot::channel());
        let answered = OnceLock::new();
        ours.wire.keep_answers();
        let reading = async {
            asked.await.expect("it is said when");
            let guard = one_reads.acquire().await.expect("it reads");
            let waited = answered.get().map(Instant::elapsed).unwrap_or_default();
            assert!(!stage.is_virtual() || waited < PREFERENCE_ALIVE / 2, "{waited:?}");
            // Where all are served in order, nobody waits for it.
            let _ = tell.send(());
            give_back(guard).await;
        };
        let writing = async { give_back(one_writes.acquire().await.expect("it writes")).await };
        let others = async {
            is_kept_out(&theirs, &key).await;
            ask.send(()).expect("it waits for that");
            until("the answers to both", || ours.wire.kept_answers() == 2).await;
            answered.set(Instant::now()).expect("it is set once");
            ours.wire.mend();
            if !ours.locks.capabilities().fair {
                told.await.expect("it reads");
            }
            give_back(before).await;
        };
        // In this order, in which they get their answers.
        let both = futures_util::future::join(reading, writing);
        soon("the turns of both", async { tokio::join!(both, others) }).await;
    }
}

/// Somebody keeps readers out, before long.
async fn is_kept_out(process: &Process, key: &str) {
    soon("the writer's preference", async {
        while let Some(guard) = reader(process, key).try_acquire().await.expect("it can be asked for") {
            give_back(guard).await;
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// A waiter in line has its turn after no more grants to those who take the lock again and again than there are of
/// them: one that began before it stood there, and one that was on its way.
async fn has_its_turn_between(stage: &Stage, others: &[Lock], key: &str) {
    let (process, over, grants) = (stage.process().await, AtomicBool::new(false), AtomicU32::new(0));
    let again_and_again = others.iter().map(|lock| async {
        while !over.load(Ordering::SeqCst) {
            let guard = lock.acquire().await.expect("it has its turn");
            grants.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(10)).await;
            give_back(guard).await;
        }
    });
    let in_line = async {
        for _ in 0..3 {
            let before = grants.load(Ordering::SeqCst);
            until("the others", || grants.load(Ordering::SeqCst) > before).await;
            let waiter = stand_in_line(&process, fair(&process, key)).await;
            let before = grants.load(Ordering::SeqCst);
            let guard = turn_of(waiter).await;
            let meanwhile = grants.load(Ordering::SeqCst) - before;
            assert!(meanwhile as usize <= 2 * others.len(), "{meanwhile} were granted before its turn");
            give_back(guard).await;
        }
        over.store(true, Ordering::SeqCst);
    };
    tokio::join!(futures_util::future::join_all(again_and_again), in_line);
}

async fn a_waiter_in_line_has_its_turn_between_readers_that_never_stop(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let readers: Vec<_> = (0..8).map(|n| reader([&ours, &theirs][n % 2], &key)).collect();
    has_its_turn_between(&stage, &readers, &key).await;
}

async fn a_waiter_in_line_has_its_turn_between_writers_that_do_not_ask_for_theirs(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let writer = |n: usize| [&ours, &theirs][n % 2].locks.lock(&key).with_handoff(false);
    let writers: Vec<_> = (0..4).map(writer).collect();
    has_its_turn_between(&stage, &writers, &key).await;
}

async fn a_waiter_in_line_and_a_writer_that_wait_for_a_reader_both_come_in(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let before = read(&ours, &key).await;
    let writer = theirs.locks.lock(&key);
    let writer = tokio::spawn(async move { writer.acquire().await });
    is_kept_out(&ours, &key).await;
    let process = stage.process().await;
    let waiter = stand_in_line(&process, fair(&process, &key)).await;
    give_back(before).await;
    let began = Instant::now();
    let both = [turn_of(writer), turn_of(waiter)].map(async |turn| give_back(turn.await).await);
    futures_util::future::join_all(both).await;
    assert!(!stage.is_virtual() || began.elapsed() < PREFERENCE_ALIVE / 2, "{:?}", began.elapsed());
}

async fn the_last_reader_leaves_the_lock_to_those_in_line(stage: Stage) {
    let (ours, key) = (stage.process().await, stage.key());
    let (one, other) = (read(&ours, &key).await, read(&ours, &key).await);
    let process = stage.process().await;
    let waiter = stand_in_line(&process, fair(&process, &key)).await;
    give_back(one).await;
    // It is alive, and does not get to ask.
    process.wire.hang();
    give_back(other).await;
    ours.sees_held(&key).await;
    assert!(reader(&ours, &key).try_acquire().await.expect("it can be asked for").is_none());
    process.wire.mend();
    give_back(turn_of(waiter).await).await;
    give_back(read(&ours, &key).await).await;
}
