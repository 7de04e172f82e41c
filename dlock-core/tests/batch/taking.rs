//! What is taken, in which order, and how it is released.

use std::time::Duration;

use dlock_core::{Batch, ErrorKind, Locks, Memory, Wait};
use tokio::time::Instant;

use super::Process;

#[tokio::test]
async fn keys_are_taken_once_in_the_order_of_their_bytes_whatever_the_order_given() {
    for process in Process::both() {
        let batch = process.locks.lock_all(["b", "a", "é", "B", "a", "a ", "b"]);
        assert_eq!(batch.keys().collect::<Vec<_>>(), ["B", "a", "a ", "b", "é"]);
        let guard = batch.acquire().await.unwrap();
        assert_eq!(process.memory.held(), 5);
        assert_eq!(guard.fences().map(|(key, _)| key).collect::<Vec<_>>(), ["B", "a", "a ", "b", "é"]);
        guard.release().await.unwrap();
        assert_eq!(process.memory.held(), 0);
    }
}

#[tokio::test]
async fn locks_of_several_backends_are_ordered_by_the_backend_and_then_by_key() {
    let (first, second) = (Locks::new(Memory::new()), Locks::new(Memory::new()));
    let orders = [
        [second.lock("a"), first.lock("b"), second.lock("c"), first.lock("a")],
        [first.lock("a"), first.lock("b"), second.lock("c"), second.lock("a")],
    ];
    for locks in orders {
        let batch = Batch::of(locks);
        assert_eq!(
            batch.keys().collect::<Vec<_>>(),
            ["a", "b", "a", "c"],
            "that which was built first is first"
        );
        let guard = batch.acquire().await.unwrap();
        assert_eq!((first.stats().held, second.stats().held), (2, 2));
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn each_key_has_a_fence_of_its_own_and_that_of_the_batch_is_asked_by_key() {
    for process in Process::both() {
        let before = process.locks.lock("b").acquire().await.unwrap();
        let old = before.fence().unwrap();
        before.release().await.unwrap();
        let guard = process.locks.lock_all(["a", "b"]).acquire().await.unwrap();
        assert!(guard.fence_of("b").unwrap() > old);
        assert!(guard.fence_of("a").is_some() && guard.fence_of("c").is_none());
        assert_eq!(guard.held().fence(), None, "there are two");
        assert_eq!(guard.held().fence_of("a"), guard.fence_of("a"));
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn one_busy_key_is_enough_to_get_none_and_the_error_names_it() {
    for process in Process::both() {
        let other = process.rival().lock("b").acquire().await.unwrap();
        let batch = process.locks.lock_all(["a", "b", "c"]);
        assert!(batch.try_acquire().await.unwrap().is_none());
        assert_eq!(process.memory.held(), 1, "only that of the other");
        let error = batch.clone().with_wait(Wait::No).acquire().await.unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::Busy, Some("b")));
        assert!(error.holder().is_some());
        other.release().await.unwrap();
        batch.try_acquire().await.unwrap().expect("all are free").release().await.unwrap();
        process.settled().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_wait_is_for_all_keys_together() {
    for process in Process::both() {
        let rival = process.rival();
        let (first, second) =
            (rival.lock("a").acquire().await.unwrap(), rival.lock("b").acquire().await.unwrap());
        let started = Instant::now();
        let release = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            first.release().await.unwrap();
        };
        let batch = process.locks.lock_all(["a", "b"]).with_wait(Duration::from_secs(5));
        let (result, ()) = tokio::join!(batch.acquire(), release);
        let error = result.unwrap_err();
        let waited = started.elapsed();
        assert_eq!((error.kind(), error.key()), (ErrorKind::TimedOut, Some("b")));
        assert!(waited >= Duration::from_secs(5) && waited < Duration::from_millis(5_050), "{waited:?}");
        assert!(error.waited().unwrap() >= Duration::from_secs(5), "{error}");
        assert_eq!(process.memory.held(), 1, "the first key was given back");
        second.release().await.unwrap();
    }
}

#[tokio::test]
async fn while_a_key_is_busy_a_batch_in_one_step_holds_none_of_the_others() {
    let memory = Memory::new();
    let process = Process::over(&memory, true);
    let rival = process.rival();
    let other = rival.lock("b").acquire().await.unwrap();
    let waiting = tokio::spawn(async move { process.locks.lock_all(["a", "b", "c"]).acquire().await });
    for _ in 0..50 {
        tokio::task::yield_now().await;
        rival.lock("a").try_acquire().await.unwrap().expect("it is not held").release().await.unwrap();
    }
    other.release().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    assert_eq!(memory.held(), 3);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn of_ten_callers_who_do_not_wait_one_gets_the_batch() {
    for process in Process::both() {
        let callers: Vec<_> = (0..10)
            .map(|n| {
                let locks = process.locks.clone();
                let keys = if n % 2 == 0 { ["a", "b", "c"] } else { ["c", "b", "a"] };
                tokio::spawn(async move { locks.lock_all(keys).try_acquire().await.unwrap() })
            })
            .collect();
        let mut guards = Vec::new();
        for caller in callers {
            guards.extend(caller.await.unwrap());
        }
        assert_eq!(guards.len(), 1);
        guards.pop().unwrap().release().await.unwrap();
        process.settled().await;
    }
}

#[tokio::test]
async fn what_cannot_work_is_refused_before_anything_is_asked() {
    for process in Process::both() {
        process.memory.faults().set_unavailable(true);
        let refused = async |batch: Batch| batch.acquire().await.unwrap_err();
        let none = refused(process.locks.lock_all(Vec::<&str>::new())).await;
        assert_eq!(none.kind(), ErrorKind::InvalidConfig, "{none}");
        let many = refused(process.locks.lock_all((0..=Batch::MAX_LEN).map(|n| n.to_string()))).await;
        assert!(many.kind() == ErrorKind::InvalidConfig && many.to_string().contains("1000"), "{many}");
        let invalid = refused(process.locks.lock_all(["a", "", "b"])).await;
        assert_eq!(invalid.kind(), ErrorKind::InvalidKey, "{invalid}");
        let lease = refused(process.locks.lock_all(["a"]).with_lease(Duration::ZERO)).await;
        assert_eq!((lease.kind(), lease.key()), (ErrorKind::InvalidConfig, Some("a")), "{lease}");
    }
}

#[tokio::test]
async fn the_longest_batch_is_taken_and_given_back() {
    for process in Process::both() {
        let batch = process.locks.lock_all((0..Batch::MAX_LEN).map(|n| format!("k{n}")));
        let guard = batch.acquire().await.unwrap();
        assert_eq!(process.memory.held(), Batch::MAX_LEN);
        guard.release().await.unwrap();
        assert_eq!(process.memory.held(), 0);
    }
}

#[tokio::test]
async fn a_dropped_batch_is_given_back_in_the_background() {
    for process in Process::both() {
        drop(process.locks.lock_all(["a", "b"]).acquire().await.unwrap());
        process.settled().await;
    }
}

/// How a fleet moves from one backend to another: for a time every holder has the lock on both.
#[tokio::test]
async fn a_batch_over_an_old_and_a_new_backend_excludes_holders_of_either() {
    let (old, new) = (Locks::new(Memory::new()), Locks::new(Memory::new()));
    let both = Batch::of([old.lock("job"), new.lock("job")]).with_wait(Wait::No);
    for single in [&old, &new] {
        let holder = single.lock("job").acquire().await.unwrap();
        assert!(both.try_acquire().await.unwrap().is_none());
        holder.release().await.unwrap();
    }
    let guard = both.acquire().await.unwrap();
    for single in [&old, &new] {
        assert!(single.lock("job").try_acquire().await.unwrap().is_none());
    }
    guard.release().await.unwrap();
    assert_eq!((old.stats().held, new.stats().held), (0, 0));
}
