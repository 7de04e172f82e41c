//! Who owns a lock: the async scope.

use std::time::Duration;

use dlock_core::{
    ErrorKind, Locks, ManualClock, Memory, OnLost, Prefixed, Wait, current_hold, in_current_scope,
};

fn locks() -> (Memory, Locks) {
    let memory = Memory::new();
    (memory.clone(), Locks::new(memory))
}

#[tokio::test]
async fn a_nested_body_enters_again_with_the_same_fence_and_without_asking_the_backend() {
    let (memory, locks) = locks();
    let lock = locks.lock("k");
    let (memory, lock) = (&memory, &lock);
    let fences = lock
        .run_with(|outer| async move {
            // Any request would fail now.
            memory.faults().set_unavailable(true);
            let inner = lock.run_with(|inner| async move { inner.fence() }).await;
            memory.faults().set_unavailable(false);
            (outer.fence(), inner.unwrap())
        })
        .await
        .unwrap();
    assert!(fences.0.is_some());
    assert_eq!(fences.0, fences.1);
    assert_eq!(memory.held(), 0);
}

#[tokio::test]
async fn the_lock_is_given_back_by_the_outermost_body() {
    let (memory, locks) = locks();
    let lock = locks.lock("k");
    lock.run(async {
        lock.run(async {}).await.unwrap();
        assert_eq!(memory.held(), 1);
    })
    .await
    .unwrap();
    assert_eq!(memory.held(), 0);
}

#[tokio::test]
async fn two_branches_of_a_join_exclude_each_other() {
    let (_, locks) = locks();
    let lock = locks.lock("k");
    let inside = std::cell::Cell::new(0);
    let branch = || async {
        for _ in 0..50 {
            lock.run(async {
                inside.set(inside.get() + 1);
                assert_eq!(inside.get(), 1);
                tokio::task::yield_now().await;
                inside.set(inside.get() - 1);
            })
            .await
            .unwrap();
        }
    };
    tokio::join!(branch(), branch(), branch());
}

#[tokio::test]
async fn guards_taken_by_hand_nest_only_inside_of_an_owner() {
    let (memory, locks) = locks();
    let lock = locks.lock("k");
    let outer = lock.acquire().await.unwrap();
    assert!(lock.try_acquire().await.unwrap().is_none());
    drop(outer);
    locks
        .scope(async {
            let outer = lock.acquire().await.unwrap();
            let inner = lock.acquire().await.unwrap();
            assert_eq!(outer.fence(), inner.fence());
            // In any order.
            outer.release().await.unwrap();
            assert_eq!(memory.held(), 1);
            inner.check().unwrap();
            inner.release().await.unwrap();
            assert_eq!(memory.held(), 0);
            let again = lock.acquire().await.unwrap();
            again.release().await.unwrap();
        })
        .await;
}

#[tokio::test]
async fn a_guard_given_back_is_not_entered_again() {
    let (_, locks) = locks();
    let lock = locks.lock("k");
    locks
        .scope(async {
            let first = lock.acquire().await.unwrap();
            let fence = first.fence();
            first.release().await.unwrap();
            let second = lock.acquire().await.unwrap();
            assert!(second.fence() > fence);
        })
        .await;
}

#[tokio::test]
async fn other_locks_on_the_same_store_are_other_owners() {
    let (memory, ours) = locks();
    let theirs = Locks::new(memory);
    ours.lock("k")
        .run(async {
            assert!(theirs.lock("k").try_acquire().await.unwrap().is_none());
            assert!(ours.lock("other").try_acquire().await.unwrap().is_some());
        })
        .await
        .unwrap();
}

#[tokio::test]
async fn a_spawned_task_is_an_owner_of_its_own() {
    let (_, locks) = locks();
    let lock = locks.lock("k");
    lock.run(async {
        let other = lock.clone();
        let task = tokio::spawn(async move { other.try_acquire().await.unwrap().is_some() });
        assert!(!task.await.unwrap());
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_task_spawned_with_the_scope_keeps_the_lock_until_it_ends() {
    let (memory, locks) = locks();
    let lock = locks.lock("k");
    let (go, wait) = tokio::sync::oneshot::channel::<()>();
    // The task is for later, on purpose.
    #[allow(clippy::async_yields_async)]
    let task = lock
        .run(async {
            let nested = lock.clone();
            tokio::spawn(in_current_scope(async move {
                wait.await.unwrap();
                nested.run(async { current_hold().unwrap().is_held() }).await.unwrap()
            }))
        })
        .await
        .unwrap();
    assert_eq!(memory.held(), 1, "the body is done, the task is not");
    assert!(lock.try_acquire().await.unwrap().is_none());
    go.send(()).unwrap();
    assert!(task.await.unwrap());
    let _free = lock.with_wait(Duration::from_secs(10)).acquire().await.unwrap();
}

#[tokio::test]
async fn a_task_that_is_never_run_gives_its_share_back() {
    let (memory, locks) = locks();
    let lock = locks.lock("k");
    lock.run(async { drop(in_current_scope(std::future::pending::<()>())) }).await.unwrap();
    assert_eq!(memory.held(), 0);
}

#[tokio::test]
async fn a_nested_acquire_that_may_not_enter_is_an_error_and_no_hang() {
    let (_, locks) = locks();
    let lock = locks.lock("k").with_reentrancy(false);
    let error = lock.run(async { lock.acquire().await.unwrap_err() }).await.unwrap();
    assert_eq!(error.kind(), ErrorKind::Deadlock);
}

#[tokio::test]
async fn nesting_has_a_limit() {
    let (memory, locks) = locks();
    let lock = locks.lock("k").with_max_depth(3);
    let error = locks
        .scope(async {
            let _guards =
                [lock.acquire().await.unwrap(), lock.acquire().await.unwrap(), lock.acquire().await.unwrap()];
            lock.acquire().await.unwrap_err()
        })
        .await;
    assert_eq!(error.kind(), ErrorKind::Deadlock);
    assert!(error.to_string().contains("3 times"), "{error}");
    let _free = lock.with_wait(Duration::from_secs(10)).acquire().await.unwrap();
    assert_eq!(memory.held(), 1);
}

#[tokio::test]
async fn a_lost_lock_is_not_entered_again() {
    let (memory, locks) = locks();
    let lock = locks.lock("k").with_on_lost(OnLost::Continue);
    let (memory, lock) = (&memory, &lock);
    let fences = lock
        .run_with(|outer| async move {
            memory.lose("k");
            assert_eq!(outer.check().unwrap_err().kind(), ErrorKind::Lost);
            let inner = lock.acquire().await.unwrap();
            inner.check().unwrap();
            assert!(outer.check().is_err(), "a new grant does not mend the old one");
            (outer.fence(), inner.fence())
        })
        .await
        .unwrap();
    assert!(fences.1 > fences.0);
}

#[tokio::test]
async fn the_body_of_a_lost_lock_is_dropped_at_its_await() {
    let (memory, locks) = locks();
    let lock = locks.lock("k");
    let steps = std::cell::Cell::new(0);
    let error = lock
        .run(async {
            steps.set(1);
            memory.lose("k");
            tokio::task::yield_now().await;
            steps.set(2);
        })
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert_eq!(steps.get(), 1);
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
async fn a_body_may_ask_to_go_on_without_its_lock() {
    let (memory, locks) = locks();
    let lock = locks.lock("k").with_on_lost(OnLost::Continue);
    let done = lock
        .run_with(|held| async move {
            memory.lose("k");
            held.lost().await;
            tokio::task::yield_now().await;
            "done"
        })
        .await
        .unwrap();
    assert_eq!(done, "done");
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
