//! Acquires that nobody polls.

use std::pin::pin;
use std::time::Duration;

use dlock_core::backend::Backend;
use dlock_core::{Batch, ErrorKind, Key, Locks, Memory};

use crate::owners::poll_once;

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
