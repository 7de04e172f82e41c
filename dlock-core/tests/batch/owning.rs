//! Whose a batch is, and what becomes of its body.

use std::time::Duration;

use dlock_core::{Batch, ErrorKind, Locks, Memory, OnLost, in_current_scope};

use super::Process;

#[tokio::test]
async fn inside_of_a_body_every_key_is_entered_again_without_a_request() {
    for process in Process::both() {
        let (locks, memory) = (&process.locks, &process.memory);
        let batch = locks.lock_all(["a", "b", "c"]);
        let batch = &batch;
        batch
            .run_with(|held| async move {
                // Any request would fail now.
                memory.faults().set_unavailable(true);
                for key in ["a", "b", "c"] {
                    let fence = locks.lock(key).run_with(|inner| async move { inner.fence() }).await.unwrap();
                    assert_eq!(fence, held.fence_of(key));
                }
                batch.run(async { assert_eq!(memory.held(), 3) }).await.unwrap();
                memory.faults().set_unavailable(false);
            })
            .await
            .unwrap();
        assert_eq!(memory.held(), 0);
    }
}

#[tokio::test]
async fn keys_that_the_caller_holds_are_shared_and_only_the_others_are_taken() {
    for process in Process::both() {
        let locks = &process.locks;
        locks
            .scope(async {
                let outer = locks.lock("b").acquire().await.unwrap();
                let guard = locks.lock_all(["a", "b", "c"]).acquire().await.unwrap();
                assert_eq!(guard.fence_of("b"), outer.fence());
                assert_eq!(process.memory.held(), 3);
                let again = locks.lock_all(["a", "c"]).acquire().await.unwrap();
                again.release().await.unwrap();
                guard.release().await.unwrap();
                assert_eq!(process.memory.held(), 1, "that of the caller stays");
                outer.check().unwrap();
                outer.release().await.unwrap();
            })
            .await;
        assert_eq!(process.memory.held(), 0);
    }
}

#[tokio::test]
async fn when_the_others_cannot_be_had_the_caller_keeps_what_he_held_before() {
    for process in Process::both() {
        let locks = &process.locks;
        let other = process.rival().lock("c").acquire().await.unwrap();
        locks
            .lock("b")
            .run_with(|held| async move {
                let result = locks.lock_all(["a", "b", "c"]).try_acquire().await.unwrap();
                assert!(result.is_none());
                held.check().unwrap();
            })
            .await
            .unwrap();
        other.release().await.unwrap();
        process.settled().await;
    }
}

#[tokio::test]
async fn a_batch_that_may_not_enter_again_is_refused_and_takes_nothing() {
    for process in Process::both() {
        let locks = &process.locks;
        locks
            .lock("b")
            .run(async {
                let batch = locks.lock_all(["a", "b"]).with_each(|lock| lock.with_reentrancy(false));
                let error = batch.acquire().await.unwrap_err();
                assert_eq!((error.kind(), error.key()), (ErrorKind::Deadlock, Some("b")));
                assert_eq!(process.memory.held(), 1);
            })
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn two_branches_of_a_join_exclude_each_other_by_any_common_key() {
    for process in Process::both() {
        let inside = std::cell::Cell::new(0);
        let (inside, locks) = (&inside, &process.locks);
        let branch = |keys: [&'static str; 2]| async move {
            for _ in 0..50 {
                let body = async {
                    inside.set(inside.get() + 1);
                    assert_eq!(inside.get(), 1);
                    tokio::task::yield_now().await;
                    inside.set(inside.get() - 1);
                };
                locks.lock_all(keys).run(body).await.unwrap();
            }
        };
        tokio::join!(branch(["a", "b"]), branch(["c", "b"]), branch(["b", "a"]));
    }
}

#[tokio::test]
async fn losing_one_is_losing_the_batch_and_ends_its_body() {
    for process in Process::both() {
        let memory = process.memory.clone();
        let body = async {
            memory.lose("b");
            std::future::pending::<()>().await;
        };
        let error = process.locks.lock_all(["a", "b", "c"]).run(body).await.unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::Lost, Some("b")));
        process.settled().await;

        let guard = process.locks.lock_all(["a", "b", "c"]).acquire().await.unwrap();
        let held = guard.held();
        memory.lose("c");
        guard.lost().await;
        held.lost().await;
        assert_eq!(guard.check().unwrap_err().key(), Some("c"));
        assert!(!held.is_held() && held.remaining() == Some(Duration::ZERO));
        let error = guard.release().await.unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::NotHeld, Some("c")));
        assert_eq!(memory.held(), 0, "the others were given back all the same");
    }
}

#[tokio::test]
async fn a_body_runs_on_only_when_every_lock_says_so() {
    let (first, second) = (Locks::new(Memory::new()), Memory::new());
    let (second, memory) = (Locks::new(second.clone()), second);
    let run = async |batch: Batch| {
        let body = async {
            memory.lose("k");
            tokio::task::yield_now().await;
            7
        };
        batch.run(body).await
    };
    let goes_on = second.lock("k").with_on_lost(OnLost::Continue);
    let error = run(Batch::of([first.lock("k"), goes_on.clone()])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    let all = Batch::of([first.lock("k").with_on_lost(OnLost::Continue), goes_on]);
    assert_eq!(run(all).await.unwrap(), 7);
}

#[tokio::test]
async fn the_validity_is_the_shortest_of_all() {
    let (first, second) = (Locks::new(Memory::new()), Locks::new(Memory::new()));
    let (long, short) = (Duration::from_secs(60), Duration::from_secs(5));
    let batch = Batch::of([first.lock("a").with_lease(long), second.lock("a").with_lease(short)]);
    let guard = batch.acquire().await.unwrap();
    assert!(guard.remaining().unwrap() <= short && guard.remaining().unwrap() > short / 2);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_spawned_task_in_the_scope_of_a_batch_keeps_all_of_it() {
    for process in Process::both() {
        let (locks, memory) = (process.locks.clone(), process.memory.clone());
        let (go, told) = tokio::sync::oneshot::channel::<()>();
        let mut task = None;
        let body = async {
            task = Some(tokio::spawn(in_current_scope(async move {
                told.await.unwrap();
                locks.lock_all(["b", "a"]).run(async { memory.held() }).await
            })));
        };
        process.locks.lock_all(["a", "b"]).run(body).await.unwrap();
        assert_eq!(process.memory.held(), 2, "the task still has them");
        go.send(()).unwrap();
        assert_eq!(task.unwrap().await.unwrap().unwrap(), 2);
        process.settled().await;
    }
}
