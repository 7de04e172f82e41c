//! How deep one owner nests, what an owner holds by hand, and how large the futures of bodies are.

use std::time::Duration;

use dlock_core::{Batch, Ended, ErrorKind, Guard, Lock, Locks, Memory, in_current_scope};
use futures_util::future::join_all;
use tokio::sync::Barrier;

fn locks() -> (Memory, Locks) {
    let memory = Memory::new();
    (memory.clone(), Locks::new(memory))
}

#[tokio::test]
async fn siblings_are_not_nested_in_each_other() {
    let (memory, locks) = locks();
    let lock = locks.lock("k");
    let all_inside = Barrier::new(100);
    let nested = || async { lock.run(all_inside.wait()).await.map(drop) };
    let ended = lock.run(join_all((0..100).map(|_| nested()))).await.unwrap();
    assert_eq!(ended.iter().filter(|result| result.is_err()).count(), 0, "{ended:?}");
    assert_eq!(memory.held(), 0);
}

#[tokio::test]
async fn tasks_that_were_taken_along_are_not_nested_in_each_other() {
    let (memory, locks) = locks();
    let lock = locks.lock("k");
    let all_inside = std::sync::Arc::new(Barrier::new(65));
    lock.run(async {
        let tasks: Vec<_> = (0..64)
            .map(|_| {
                let (lock, all_inside) = (lock.clone(), std::sync::Arc::clone(&all_inside));
                tokio::spawn(in_current_scope(async move {
                    let _by_hand = lock.acquire().await.unwrap();
                    all_inside.wait().await;
                }))
            })
            .collect();
        lock.run(all_inside.wait()).await.unwrap();
        for task in tasks {
            task.await.unwrap();
        }
    })
    .await
    .unwrap();
    assert_eq!(memory.held(), 0);
}

fn recurse(
    lock: &Lock,
    left: u32,
) -> std::pin::Pin<Box<dyn Future<Output = dlock_core::Result<u32>> + Send + '_>> {
    Box::pin(async move {
        match left {
            0 => Ok(0),
            _ => Ok(lock.run(recurse(lock, left - 1)).await?? + 1),
        }
    })
}

#[tokio::test]
async fn a_recursion_is_as_deep_as_its_bodies() {
    let (memory, locks) = locks();
    let lock = locks.lock("k").with_max_depth(10);
    assert_eq!(recurse(&lock, 10).await.unwrap(), 10);
    let error = recurse(&lock, 11).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Deadlock);
    assert!(error.to_string().contains("10 times"), "{error}");
    assert_eq!(memory.held(), 0);
}

/// Each of two locks in the body of the other, as two functions that call each other.
#[tokio::test]
async fn a_recursion_through_two_locks_has_its_end_too() {
    fn turn<'a>(
        locks: [&'a Lock; 2],
        left: u32,
    ) -> std::pin::Pin<Box<dyn Future<Output = dlock_core::Result<()>> + Send + 'a>> {
        Box::pin(async move {
            match left {
                0 => Ok(()),
                _ => locks[0].run(turn([locks[1], locks[0]], left - 1)).await?,
            }
        })
    }
    let (_, locks) = locks();
    let (a, b) = (locks.lock("a").with_max_depth(5), locks.lock("b").with_max_depth(5));
    turn([&a, &b], 10).await.unwrap();
    assert_eq!(turn([&a, &b], 11).await.unwrap_err().kind(), ErrorKind::Deadlock);
}

#[tokio::test]
async fn guards_by_hand_in_a_body_have_a_limit_which_their_release_restores() {
    let (memory, locks) = locks();
    let lock = locks.lock("k").with_max_depth(3);
    lock.run(async {
        for _ in 0..10 {
            let guards = [lock.acquire().await, lock.acquire().await, lock.acquire().await];
            assert!(guards.iter().all(Result::is_ok));
            assert_eq!(lock.acquire().await.unwrap_err().kind(), ErrorKind::Deadlock);
        }
    })
    .await
    .unwrap();
    assert_eq!(memory.held(), 0);
}

/// However they are taken, and also after the body that took the lock has given the count to a task.
#[tokio::test]
async fn all_guards_of_one_body_have_one_limit_and_those_of_two_bodies_have_two() {
    let (memory, locks) = locks();
    let lock = locks.lock("k").with_max_depth(3);
    let batch = Batch::of([lock.clone()]);
    let fill = || async {
        let guards =
            (lock.acquire().await.unwrap(), batch.acquire().await.unwrap(), lock.acquire().await.unwrap());
        assert_eq!(lock.acquire().await.unwrap_err().kind(), ErrorKind::Deadlock);
        assert_eq!(batch.acquire().await.unwrap_err().kind(), ErrorKind::Deadlock);
        guards
    };
    let outlives = lock
        .run(async {
            let first = fill().await;
            drop(fill_in_a_task(&lock).await);
            lock.run(async { drop(fill().await) }).await.unwrap();
            drop(first);
            fill().await
        })
        .await
        .unwrap();
    assert_eq!(memory.held(), 1, "guards that are left keep the lock");
    outlives.0.release().await.unwrap();
    outlives.2.release().await.unwrap();
    assert_eq!(memory.held(), 1);
    outlives.1.release().await.unwrap();
    assert_eq!(memory.held(), 0);
}

async fn fill_in_a_task(lock: &Lock) -> Vec<Guard> {
    let lock = lock.clone();
    let task = async move {
        let mut guards = Vec::new();
        for _ in 0..3 {
            guards.push(lock.acquire().await.unwrap());
        }
        assert_eq!(lock.acquire().await.unwrap_err().kind(), ErrorKind::Deadlock);
        guards
    };
    tokio::spawn(in_current_scope(task)).await.unwrap()
}

#[tokio::test]
async fn a_scope_is_one_of_the_locks_that_opened_it() {
    let (memory, ours) = locks();
    let theirs = Locks::new(memory);
    ours.scope(async {
        let _guard = theirs.lock("k").acquire().await.unwrap();
        assert!(theirs.lock("k").try_acquire().await.unwrap().is_none(), "this is no scope of theirs");
        theirs
            .scope(async {
                let _outer = ours.lock("a").acquire().await.unwrap();
                assert!(ours.lock("a").try_acquire().await.unwrap().is_some(), "the outer scope is ours");
            })
            .await;
    })
    .await;
}

#[tokio::test]
async fn what_a_task_takes_by_hand_is_its_own() {
    let (_, locks) = locks();
    let lock = locks.lock("k");
    locks
        .scope(async {
            let (taken, wait) = tokio::sync::oneshot::channel();
            let (go, end) = tokio::sync::oneshot::channel::<()>();
            let in_task = lock.clone();
            let task = tokio::spawn(in_current_scope(async move {
                let outer = in_task.acquire().await.unwrap();
                let inner = in_task.acquire().await.unwrap();
                assert_eq!(outer.fence(), inner.fence(), "the task is inside the scope");
                taken.send(()).unwrap();
                end.await.unwrap();
            }));
            wait.await.unwrap();
            assert!(lock.try_acquire().await.unwrap().is_none());
            go.send(()).unwrap();
            task.await.unwrap();
        })
        .await;
}

#[tokio::test]
async fn a_scope_that_is_made_here_and_run_by_another_task_is_not_inside_this_body() {
    let (_, locks) = locks();
    let lock = locks.lock("k");
    lock.run(async {
        let (locks, lock) = (locks.clone(), lock.clone());
        let scope = async move { locks.scope(async { lock.try_acquire().await.unwrap().is_none() }).await };
        assert!(tokio::spawn(scope).await.unwrap());
    })
    .await
    .unwrap();
}

/// The processor time that this thread has used, which no other work of the machine adds to.
#[cfg(unix)]
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap()
}

/// Ten times as many guards take about ten times the processor time of this thread, and not a hundred times.
#[cfg(unix)]
#[tokio::test]
async fn an_owner_of_many_guards_pays_for_each_only_once() {
    let (memory, locks) = locks();
    let take = async |count: u32| {
        let begun = thread_time();
        locks
            .scope(async {
                let mut guards = Vec::new();
                for n in 0..count {
                    guards.push(locks.lock(format!("k{n}")).acquire().await.unwrap());
                }
                let again = locks.lock("k7").acquire().await.unwrap();
                assert_eq!(again.fence(), guards[7].fence());
            })
            .await;
        thread_time() - begun
    };
    let few = take(2_000).await;
    let many = take(20_000).await;
    while memory.held() > 0 {
        // Looking takes the memory's lock, which the releases in the background need.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(many < few * 40, "{few:?} for 2,000, {many:?} for 20,000");
}

#[tokio::test]
async fn a_watcher_learns_how_a_lock_ended() {
    let (memory, locks) = locks();
    let released = locks.lock("a").acquire().await.unwrap();
    let lost = locks.lock("b").acquire().await.unwrap();
    let batch = locks.lock_all(["c", "d"]).acquire().await.unwrap();
    let watch = |held: dlock_core::Held| tokio::spawn(async move { held.ended().await });
    let watchers = [watch(released.held()), watch(lost.held()), watch(batch.held())];
    tokio::task::yield_now().await;
    assert!(watchers.iter().all(|watcher| !watcher.is_finished()));
    memory.lose("b");
    memory.lose("d");
    assert_eq!(lost.ended().await, Ended::Lost);
    assert_eq!(batch.ended().await, Ended::Lost);
    let view = released.held();
    released.release().await.unwrap();
    assert_eq!(view.ended().await, Ended::Released, "also of those who ask later");
    let ended = join_all(watchers).await.into_iter().map(Result::unwrap).collect::<Vec<_>>();
    assert_eq!(ended, [Ended::Released, Ended::Lost, Ended::Lost]);
}

#[tokio::test]
async fn a_nested_guard_of_a_batch_ends_with_its_outermost() {
    let (_, locks) = locks();
    let batch = locks.lock_all(["a", "b"]);
    let view = batch
        .run_with(|outer| {
            let batch = batch.clone();
            async move {
                let inner = batch.run_with(|inner| async move { inner }).await.unwrap();
                assert!(inner.is_held() && outer.is_held());
                inner
            }
        })
        .await
        .unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(20), view.ended()).await.unwrap();
    assert_eq!(ended, Ended::Released);
}

#[tokio::test]
async fn the_futures_of_nested_bodies_stay_small() {
    let (_, locks) = locks();
    let lock = locks.lock("k");
    let (one, four) = {
        let inner = || async { lock.run(async {}).await.unwrap() };
        let one = inner();
        let four = lock.run(async { lock.run(async { lock.run(inner()).await }).await });
        (size_of_val(&one), size_of_val(&four))
    };
    let (taken_along, scope) =
        (size_of_val(&in_current_scope(async {})), size_of_val(&locks.scope(async {})));
    let with_1_kb = {
        let body = [0_u8; 1_024];
        size_of_val(&in_current_scope(async move {
            tokio::task::yield_now().await;
            body.len()
        }))
    };
    let sizes = format!(
        "one {one}, four {four}, in_current_scope {taken_along} and {with_1_kb} with 1 KB, scope {scope}"
    );
    assert!(one < 2_048 && four < 2_048, "{sizes}");
    assert!(taken_along < 256 && with_1_kb < 2_560 && scope < 512, "{sizes}");
}

#[tokio::test]
async fn a_drain_lets_bodies_end_and_refuses_everybody_else() {
    let (memory, locks) = locks();
    let (inside, wait) = tokio::sync::oneshot::channel();
    let (go, end) = tokio::sync::oneshot::channel::<()>();
    let body = {
        let locks = locks.clone();
        tokio::spawn(async move {
            let nested = async {
                inside.send(()).unwrap();
                end.await.unwrap();
                // What the body needs to come to its end: its own lock again, and another.
                locks.lock("k").run(locks.lock("other").run(async { 7 })).await
            };
            locks.lock("k").run(nested).await.unwrap().unwrap().unwrap()
        })
    };
    wait.await.unwrap();
    let waiter = tokio::spawn({
        let lock = locks.lock("k");
        async move { lock.acquire().await.map(drop) }
    });
    while locks.stats().held == 0 {
        tokio::task::yield_now().await;
    }
    let error = locks.drain(Duration::from_millis(20)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains("1 locks are still held"), "{error}");
    assert_eq!(waiter.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    let error = locks.lock("free").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert!(error.to_string().contains("drained"), "{error}");
    let drained = tokio::spawn({
        let locks = locks.clone();
        async move { locks.drain(Duration::from_secs(20)).await }
    });
    go.send(()).unwrap();
    assert_eq!(body.await.unwrap(), 7);
    drained.await.unwrap().unwrap();
    assert_eq!((memory.held(), locks.stats().held), (0, 0));
    locks.shutdown(Duration::from_secs(5)).await.unwrap();
}

/// Each level has a key of its own, which comes before the one that all have in common.
fn recurse_in_batches(
    locks: &Locks,
    left: u32,
) -> std::pin::Pin<Box<dyn Future<Output = dlock_core::Result<u32>> + Send + '_>> {
    Box::pin(async move {
        let keys = [format!("node {left}"), "root".into()];
        match left {
            0 => Ok(0),
            _ => Ok(locks.lock_all(keys).run(recurse_in_batches(locks, left - 1)).await?? + 1),
        }
    })
}

#[tokio::test]
async fn a_recursion_whose_bodies_have_one_of_several_locks_in_common_is_noticed() {
    let (memory, locks) = locks();
    assert_eq!(recurse_in_batches(&locks, 64).await.unwrap(), 64);
    assert_eq!(recurse_in_batches(&locks, 70).await.unwrap_err().kind(), ErrorKind::Deadlock);
    super::keeping::eventually("the releases", || memory.held() == 0).await;
}
