//! Who owns a lock: the async scope.

use std::time::Duration;

use dlock_core::{ErrorKind, Locks, ManualClock, Memory, Prefixed, Wait, in_current_scope};

fn locks() -> (Memory, Locks) {
    let memory = Memory::new();
    (memory.clone(), Locks::new(memory))
}

#[tokio::test]
async fn a_task_that_is_never_run_gives_its_share_back() {
    let (memory, locks) = locks();
    let lock = locks.lock("k");
    lock.run(async { drop(in_current_scope(std::future::pending::<()>())) }).await.unwrap();
    assert_eq!(memory.held(), 0);
}

#[tokio::test]
async fn a_body_whose_lock_was_lost_while_it_slept_takes_no_further_step() {
    let clock = ManualClock::stopped();
    let locks = Locks::new(Memory::with_clock(clock.clock()));
    let lock = locks.lock("k");
    let polls = std::cell::Cell::new(0);
    let mut body = Box::pin(lock.run(std::future::poll_fn(|_| {
        polls.set(polls.get() + 1);
        std::task::Poll::<()>::Pending
    })));
    assert!(poll_once(&mut body).await.is_none());
    assert_eq!(polls.get(), 1);
    // As for a process that is stopped: nobody had a chance to notice before the next poll.
    clock.advance(Duration::from_secs(3_600));
    assert_eq!(poll_once(&mut body).await.unwrap().unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(polls.get(), 1);
}

/// One poll.
pub(crate) async fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    std::future::poll_fn(|cx| {
        std::task::Poll::Ready(match std::pin::Pin::new(&mut *future).poll(cx) {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

#[tokio::test]
async fn every_future_can_be_sent_to_another_thread() {
    fn assert_send<T: Send>(value: T) -> T {
        value
    }
    let (_, locks) = locks();
    let lock = locks.lock("k");
    assert_send(lock.run(async {})).await.unwrap();
    assert_send(lock.run_with(|_| async {})).await.unwrap();
    assert_send(lock.try_acquire()).await.unwrap();
    assert_send(in_current_scope(async {})).await;
    assert_send(locks.scope(async {})).await;
    assert_send(locks.inspect("k")).await.unwrap();
    let guard = assert_send(lock.acquire()).await.unwrap();
    assert_send(guard.release()).await.unwrap();
    assert_send(locks.shutdown(Duration::from_secs(1))).await.unwrap();
}

#[tokio::test]
async fn who_holds_a_lock_by_other_locks_of_the_same_store_is_told_so_and_does_not_wait_for_itself() {
    let memory = Memory::new();
    let ours = Locks::new(memory.clone());
    let plain = Locks::new(memory.clone());
    let prefixed = Locks::new(Prefixed::new(memory.clone(), "a:").unwrap());
    let refused = async || {
        // Each of them has 30 s or more to wait, were it to wait.
        let single = plain.lock("a:k").with_wait(Wait::Forever).acquire().await.unwrap_err();
        let by_prefix = prefixed.lock("k").run(async {}).await.unwrap_err();
        let batch = plain.lock_all(["a:a", "a:k", "a:z"]).acquire().await.unwrap_err();
        for error in [single, by_prefix, batch] {
            assert_eq!(error.kind(), ErrorKind::Deadlock, "{error}");
            assert!(error.to_string().contains("by other `Locks`"), "{error}");
            assert!(error.key().is_some_and(|key| key.ends_with('k')), "{error}");
        }
        assert!(plain.lock("a:k").try_acquire().await.unwrap().is_none(), "it never waits");
        plain.lock("a:other").run(async {}).await.unwrap();
        Locks::new(Memory::new()).lock("a:k").run(async {}).await.unwrap();
    };
    ours.lock("a:k")
        .run(async {
            refused().await;
            in_current_scope(refused()).await;
            // Behind others who wait in line for it.
            let waiter = tokio::spawn({
                let lock = plain.lock("a:k");
                async move { lock.acquire().await }
            });
            tokio::task::yield_now().await;
            refused().await;
            waiter.abort();
        })
        .await
        .unwrap();
    let batch = ours.lock_all(["a:k", "b"]);
    batch.run(refused()).await.unwrap();
    ours.scope(async {
        let _guard = ours.lock("a:k").acquire().await.unwrap();
        refused().await;
    })
    .await;
    plain.shutdown(Duration::from_secs(20)).await.unwrap();
    ours.shutdown(Duration::from_secs(20)).await.unwrap();
    assert_eq!(memory.held(), 0);
}

#[tokio::test]
async fn who_waits_for_somebody_else_waits_though_the_store_is_the_same() {
    let memory = Memory::new();
    let (ours, theirs) = (Locks::new(memory.clone()), Locks::new(memory.clone()));
    let (guard, lock) = (theirs.lock("k").acquire().await.unwrap(), ours.lock("k"));
    ours.lock("other")
        .run(async {
            let (waiting, released) = tokio::join!(lock.acquire(), async {
                tokio::task::yield_now().await;
                guard.release().await
            });
            released.unwrap();
            waiting.unwrap().release().await.unwrap();
        })
        .await
        .unwrap();
    assert_eq!(memory.held(), 0);
}
