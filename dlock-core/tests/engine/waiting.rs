//! Waiting for a busy lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlock_core::backend::{Capabilities, Validity};
use dlock_core::{Clock, ErrorKind, Failure, Locks, Memory, Wait};
use dlock_testkit::wire::{Wire, Wired};

use crate::owners::poll_once;
use crate::script::{Answer, Call, Scripted};

fn granted() -> Answer {
    Answer::Grant(Validity::Lease(Duration::from_secs(30)))
}

#[tokio::test]
async fn a_wait_that_is_over_before_it_begins_takes_a_free_lock() {
    let locks = Locks::new(Memory::new());
    let wait = Wait::For(Duration::from_nanos(1));
    let guard = locks.lock("k").with_wait(wait).acquire().await.unwrap();
    let error = locks.lock("k").with_wait(wait).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_bounded_wait_ends_on_time_and_names_the_holder() {
    let locks = Locks::builder(Memory::new()).with_label("till 3").build().unwrap();
    let _held = locks.lock("k").acquire().await.unwrap();
    let started = tokio::time::Instant::now();
    let error = locks.lock("k").with_wait(Duration::from_secs(20)).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    let waited = started.elapsed();
    assert!(waited >= Duration::from_secs(20) && waited < Duration::from_secs(21), "{waited:?}");
    assert_eq!(error.holder().and_then(|holder| holder.label.as_deref()), Some("till 3"));
    assert_eq!(error.holder().and_then(|holder| holder.pid), Some(std::process::id()));
}

#[tokio::test]
async fn a_release_in_this_process_wakes_the_first_in_line_at_once() {
    let backend = Scripted::unpolled([granted(), Answer::Busy, granted()]);
    let locks = Locks::new(backend.clone());
    let guard = locks.lock("k").acquire().await.unwrap();
    let lock = locks.lock("k");
    let waiter = tokio::spawn(async move { lock.acquire().await });
    backend.wait_for(|calls| calls.len() == 2).await;
    guard.release().await.unwrap();
    let _guard = waiter.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_herd_in_one_process_asks_the_backend_one_at_a_time() {
    let memory = Memory::new();
    let locks = Locks::new(memory.clone());
    let held = locks.lock("k").acquire().await.unwrap();
    let inside = Arc::new(AtomicUsize::new(0));
    let mut waiters = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let (lock, inside) = (locks.lock("k"), Arc::clone(&inside));
        waiters.spawn(async move {
            let guard = lock.acquire().await.unwrap();
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
            tokio::task::yield_now().await;
            inside.fetch_sub(1, Ordering::SeqCst);
            guard.release().await.unwrap();
        });
    }
    tokio::task::yield_now().await;
    held.release().await.unwrap();
    while let Some(waiter) = waiters.join_next().await {
        waiter.unwrap();
    }
    assert_eq!(memory.held(), 0);
}

#[tokio::test]
async fn a_handoff_in_one_process_costs_a_release_and_an_acquire() {
    let backend = Scripted::unpolled([granted(), Answer::Busy, granted(), granted(), granted()]);
    let locks = Locks::new(backend.clone());
    let guard = locks.lock("k").acquire().await.unwrap();
    let mut waiters = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let lock = locks.lock("k");
        waiters.spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() });
    }
    backend.wait_for(|calls| calls.len() == 2).await;
    tokio::task::yield_now().await;
    guard.release().await.unwrap();
    while let Some(waiter) = waiters.join_next().await {
        waiter.unwrap();
    }
    let kinds: Vec<_> = backend.calls().iter().map(|call| matches!(call, Call::Attempt(_))).collect();
    assert_eq!(kinds, [true, true, false, true, false, true, false, true, false]);
}

#[tokio::test]
async fn a_waiter_behind_a_holder_that_never_releases_asks_by_itself() {
    let memory = Memory::new();
    let locks = Locks::new(memory.clone());
    let held = locks.lock("k").acquire().await.unwrap();
    let (first, second) = (locks.lock("k"), locks.lock("k"));
    let mut first = Box::pin(first.acquire());
    assert!(poll_once(&mut first).await.is_none());
    let second = tokio::spawn(async move { second.acquire().await.map(|guard| guard.check().is_ok()) });
    tokio::task::yield_now().await;
    held.release().await.unwrap();
    let winner = first.await.unwrap();
    // Nobody in this process is notified of this.
    memory.delete("k");
    assert!(second.await.unwrap().unwrap());
    drop(winner);
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_changes_hands_is_polled_as_often_as_it_does() {
    const ANSWERS: u64 = 200;
    let polls = Capabilities::basic().with_polling(Duration::from_millis(5), Duration::from_millis(200));
    let waited = async |fence: fn(u64) -> u64| {
        let answers = (0..ANSWERS).map(|n| Answer::BusyBy(fence(n)));
        let backend = Scripted::with(Clock::system(), polls, answers.chain([granted()]));
        let start = tokio::time::Instant::now();
        let _guard = Locks::new(backend).lock("k").with_wait(Wait::Forever).acquire().await.unwrap();
        start.elapsed()
    };
    // Held for long, and then by one after the other.
    let moving = waited(|n| n.saturating_sub(20)).await;
    assert!(moving < Duration::from_secs(6), "{moving:?}");
    let still = waited(|_| 7).await;
    assert!(still > Duration::from_secs(10), "{still:?}");
    // Every other time it is still the same: less often than where it always moves.
    let slower = waited(|n| n / 8).await;
    assert!(slower > Duration::from_secs(4), "{slower:?}");
}

#[tokio::test(start_paused = true)]
async fn of_many_whose_servers_do_not_answer_only_the_first_in_line_goes_on_asking() {
    const WAITERS: usize = 100;
    const FAILURES: usize = WAITERS + 40;
    let failures = (0..FAILURES).map(|_| Answer::Fail(Failure::unavailable("overloaded")));
    let backend = Scripted::with_clock(Clock::system(), failures.chain((0..WAITERS).map(|_| granted())));
    let locks = Locks::new(backend.clone());
    let lock = locks.lock("k").with_wait(Wait::Forever);
    let waiters = (0..WAITERS).map(|_| async { lock.acquire().await?.release().await });
    let began = tokio::time::Instant::now();
    let served = futures_util::future::join_all(waiters).await;
    // Each one found out by itself, and from then on one of them did for all: that takes as long as 40 pauses.
    assert!(began.elapsed() > Duration::from_secs(5), "{:?}", began.elapsed());
    assert!(served.into_iter().all(|served| served.is_ok()));
    assert_eq!(backend.count(|call| matches!(call, Call::Attempt(_))), FAILURES + WAITERS);
}

/// More want the lock than their waits have room for, so that turns come when next to nothing is left of a wait.
#[tokio::test(start_paused = true)]
async fn a_turn_that_comes_too_late_for_an_answer_is_a_timeout_and_leaves_no_doubt() {
    let memory = Memory::new();
    // Half on the way there, half on the way back.
    memory.faults().set_delay(Duration::from_millis(6));
    let locks = Locks::builder(memory).with_wait(Duration::from_millis(500)).build().unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..40 {
        let lock = locks.lock("k").with_handoff(false);
        tasks.spawn(async move {
            let mut ends = Vec::new();
            for _ in 0..20 {
                let section = || tokio::time::sleep(Duration::from_millis(20));
                ends.push(lock.run(async { section().await }).await.map_err(|error| error.kind()));
            }
            ends
        });
    }
    let ends = tasks.join_all().await.concat();
    let unknown = ends.iter().filter(|end| **end == Err(ErrorKind::Unknown)).count();
    let timed_out = ends.iter().filter(|end| **end == Err(ErrorKind::TimedOut)).count();
    assert!(unknown == 0 && timed_out > 100, "{unknown} unknown, {timed_out} timed out of {}", ends.len());
}

/// The writer stands between the readers in the queue of this process, and asks while all of them read.
#[tokio::test(start_paused = true)]
async fn a_grant_to_a_reader_lets_in_the_readers_behind_a_writer_and_each_asks_once() {
    const READERS: u64 = 10;
    let (memory, wire) = (Memory::new(), Wire::default());
    let ours = Locks::new(Wired::new(memory.clone(), wire.clone()));
    let theirs = Locks::new(memory);
    let held = theirs.lock("k").acquire().await.unwrap();
    let waiter = |reads: bool| {
        let lock = ours.lock("k").with_wait(Wait::Forever);
        let lock = if reads { lock.read() } else { lock };
        tokio::spawn(async move { lock.acquire().await.unwrap() })
    };
    let first = waiter(true);
    // Until it stands in the queue: nothing else runs.
    let stands = || tokio::time::sleep(Duration::from_millis(20));
    stands().await;
    let writer = waiter(false);
    stands().await;
    let others: Vec<_> = (1..READERS).map(|_| waiter(true)).collect();
    stands().await;
    let before = wire.attempts();
    held.release().await.unwrap();
    let readers = async {
        let mut readers = vec![first.await.unwrap()];
        for other in others {
            readers.push(other.await.unwrap());
        }
        readers
    };
    let readers = tokio::time::timeout(Duration::from_secs(5), readers).await.expect("all of them read");
    assert!(!writer.is_finished());
    // One of each reader, and one of the writer as it becomes the first.
    assert_eq!(wire.attempts() - before, READERS + 1);
    for reader in readers {
        reader.release().await.unwrap();
    }
    writer.await.unwrap().release().await.unwrap();
}

/// The servers go away between a grant to a reader and the requests of the readers that it invited.
#[tokio::test(start_paused = true)]
async fn invited_readers_leave_servers_that_are_away_to_the_first_of_them() {
    let memory = Memory::new();
    let wire = Wire::default();
    let ours = Locks::new(Wired::new(memory.clone(), wire.clone()));
    let theirs = Locks::new(memory);
    let held = theirs.lock("k").acquire().await.unwrap();
    let mut waiting = Vec::new();
    for _ in 0..20 {
        let lock = ours.lock("k").read().with_wait(Wait::Forever);
        let is_first = waiting.is_empty();
        let wire = wire.clone();
        waiting.push(tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            if is_first {
                wire.cut();
            }
            guard
        }));
        // Until it stands in the queue: nothing else runs.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    held.release().await.unwrap();
    let guards = tokio::spawn(async move {
        let mut guards = Vec::new();
        for reader in waiting {
            guards.push(reader.await.unwrap());
        }
        guards
    });
    // The invited readers have asked once, and the pauses of the first grow to a second.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = wire.attempts();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let during = wire.attempts() - before;
    assert!((5..=60).contains(&during), "{during} requests");
    wire.mend();
    let guards = tokio::time::timeout(Duration::from_secs(5), guards).await.expect("all of them read");
    assert_eq!(guards.unwrap().len(), 20);
}
