//! Acquires that nobody polls.

use std::pin::pin;
use std::time::Duration;

use dlock_core::backend::{Backend, Capabilities, Validity};
use dlock_core::{Batch, Clock, ErrorKind, Key, Locks, Memory};

use crate::owners::poll_once;
use crate::script::{Answer, Scripted};

const LEASE: Duration = Duration::from_secs(30);

/// Within the wait of those who want the lock, and long after 100 ms.
const WAIT: Duration = Duration::from_secs(20);

fn locks(memory: &Memory) -> Locks {
    Locks::builder(memory.clone()).with_lease(LEASE).with_wait(WAIT).build().unwrap()
}

#[tokio::test]
async fn a_waiter_that_nobody_polls_lets_those_behind_it_have_the_lock() {
    let memory = Memory::new();
    let locks = locks(&memory);
    let held = locks.lock("k").acquire().await.unwrap();
    let lock = locks.lock("k");
    let mut aside = pin!(lock.acquire());
    assert!(poll_once(&mut aside).await.is_none());
    let mut behind = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let lock = locks.lock("k");
        behind.spawn(async move { lock.run(async {}).await });
    }
    tokio::task::yield_now().await;
    held.release().await.unwrap();
    while let Some(ended) = behind.join_next().await {
        ended.unwrap().unwrap();
    }
    // It begins anew when it is polled.
    aside.await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_waiter_whose_runtime_is_blocked_lets_those_behind_it_have_the_lock() {
    let memory = Memory::new();
    let locks = locks(&memory);
    let held = locks.lock("k").acquire().await.unwrap();
    let (tell, in_line) = tokio::sync::oneshot::channel();
    let (unblock, blocked) = std::sync::mpsc::channel::<()>();
    let lock = locks.lock("k");
    let other = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let mut acquire = pin!(lock.acquire());
            assert!(poll_once(&mut acquire).await.is_none());
            tell.send(()).unwrap();
            // Nothing of this runtime goes on.
            blocked.recv().unwrap();
            acquire.await.unwrap().release().await.unwrap();
        });
    });
    in_line.await.unwrap();
    let lock = locks.lock("k");
    let behind = tokio::spawn(async move { lock.run(async {}).await });
    tokio::task::yield_now().await;
    held.release().await.unwrap();
    behind.await.unwrap().unwrap();
    unblock.send(()).unwrap();
    tokio::task::spawn_blocking(|| other.join().unwrap()).await.unwrap();
}

#[tokio::test]
async fn a_waiter_whose_timers_nobody_drives_lets_those_behind_it_ask() {
    let granted = Answer::Grant(Validity::Lease(LEASE));
    // Nobody tells of a release: the first in line asks now and then.
    let backend = Scripted::with(Clock::system(), Capabilities::basic(), [Answer::Busy, granted]);
    let locks = Locks::builder(backend).with_lease(LEASE).with_wait(WAIT).build().unwrap();
    let lock = locks.lock("k");
    let mut aside = Box::pin(async move { lock.acquire().await });
    let other = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        assert!(runtime.block_on(poll_once(&mut aside)).is_none(), "it is busy");
        (aside, runtime)
    });
    let left = tokio::task::spawn_blocking(|| other.join().unwrap()).await.unwrap();
    locks.lock("k").acquire().await.unwrap().release().await.unwrap();
    tokio::task::spawn_blocking(|| drop(left)).await.unwrap();
}

#[tokio::test]
async fn hundreds_of_waiters_that_nobody_polls_are_found_out_at_once() {
    let memory = Memory::new();
    let locks = locks(&memory);
    let held = locks.lock("k").acquire().await.unwrap();
    let mut aside = Vec::new();
    for _ in 0..400 {
        let lock = locks.lock("k");
        let mut waiter = Box::pin(async move { lock.acquire().await });
        assert!(poll_once(&mut waiter).await.is_none());
        aside.push(waiter);
    }
    let lock = locks.lock("k");
    let behind = tokio::spawn(async move { lock.run(async {}).await });
    tokio::task::yield_now().await;
    held.release().await.unwrap();
    behind.await.unwrap().expect("100 ms for each of those before are longer than its wait");
}

#[tokio::test]
async fn a_batch_that_nobody_polls_gives_up_what_it_has_when_its_turn_comes() {
    let mut memories = [Memory::new(), Memory::new()];
    // In the order in which a batch takes them.
    let key = Key::new("k").unwrap();
    memories.sort_by_key(|memory| memory.lock_id(&key));
    let [first, second] = memories.each_ref().map(locks);
    let held = second.lock("k").acquire().await.unwrap();
    let batch = Batch::of([first.lock("k"), second.lock("k")]);
    let mut aside = pin!(batch.acquire());
    assert!(poll_once(&mut aside).await.is_none());
    assert_eq!(memories[0].held(), 1, "it has the first and waits for the second");
    held.release().await.unwrap();
    for locks in [&first, &second] {
        locks.lock("k").acquire().await.unwrap().release().await.unwrap();
    }
    aside.await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_caller_that_polls_rarely_gets_its_lock_all_the_same() {
    let memory = Memory::new();
    // An answer takes longer than nothing, so that the grant waits to be polled.
    memory.faults().set_delay(Duration::from_millis(2));
    let locks = locks(&memory);
    let lock = locks.lock("k");
    let mut acquire = pin!(lock.acquire());
    let guard = loop {
        if let Some(guard) = poll_once(&mut acquire).await {
            break guard.unwrap();
        }
        // Each time longer than the keeper waits at first.
        tokio::time::sleep(Duration::from_millis(350)).await;
    };
    guard.check().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn an_acquire_that_is_polled_again_after_its_wait_has_timed_out() {
    let memory = Memory::new();
    let locks = locks(&memory);
    let held = locks.lock("k").acquire().await.unwrap();
    let lock = locks.lock("k").with_wait(Duration::from_millis(300));
    let mut acquire = pin!(lock.acquire());
    assert!(poll_once(&mut acquire).await.is_none());
    held.release().await.unwrap();
    let taken = locks.lock("k").acquire().await.unwrap();
    tokio::time::sleep(Duration::from_millis(400)).await;
    taken.release().await.unwrap();
    assert_eq!(acquire.await.unwrap_err().kind(), ErrorKind::TimedOut);
}

#[tokio::test]
async fn what_an_acquire_took_while_nobody_polled_it_is_not_taken_for_somebody_elses() {
    let memory = Memory::new();
    let locks = locks(&memory);
    memory.faults().set_delay(Duration::from_secs(1));
    let lock = locks.lock("k");
    let mut tried = pin!(lock.try_acquire());
    // Until it has the lock, half way, and no further.
    assert!(tokio::time::timeout(Duration::from_millis(700), &mut tried).await.is_err());
    assert_eq!(memory.held(), 1);
    // It was taken back by then, and its withdrawal is on its way.
    tokio::time::sleep(Duration::from_millis(700)).await;
    memory.faults().set_delay(Duration::ZERO);
    let guard = tried.await.unwrap().expect("nobody else wants it");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn callers_that_poll_late_make_the_keeper_patient_with_all_acquires() {
    let memory = Memory::new();
    // An answer takes longer than nothing, so that the grant waits to be polled.
    memory.faults().set_delay(Duration::from_millis(2));
    let locks = locks(&memory);
    let polls_of = async |key: &str, pause| {
        let lock = locks.lock(key);
        let mut acquire = pin!(lock.acquire());
        let mut polls = 1;
        loop {
            if let Some(guard) = poll_once(&mut acquire).await {
                guard.unwrap().release().await.unwrap();
                return polls;
            }
            polls += 1;
            tokio::time::sleep(pause).await;
        }
    };
    let at_first = polls_of("a", Duration::from_millis(700)).await;
    // The request on its way, its answer, and its end.
    assert!(at_first > 3, "it was taken back: {at_first} polls");
    assert_eq!(polls_of("b", Duration::from_millis(200)).await, 3, "it was taken back too");
}

#[tokio::test]
async fn an_acquire_that_was_not_polled_until_its_wait_was_over_says_so() {
    let memory = Memory::new();
    memory.faults().set_delay(Duration::from_millis(2));
    let lock = locks(&memory).lock("k").with_wait(Duration::from_millis(50));
    let mut acquire = pin!(lock.acquire());
    assert!(poll_once(&mut acquire).await.is_none());
    tokio::time::sleep(Duration::from_millis(700)).await;
    let error = acquire.await.unwrap_err();
    assert!(error.is_busy() && error.to_string().contains("nobody polled it"), "{error}");
}
