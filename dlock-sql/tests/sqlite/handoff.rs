//! What a row keeps for those who pass the lock on inside their process, and for those who wait elsewhere.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_core::backend::Withdrawal;
use dlock_core::{Backend, Claim, Key};
use tokio::task::JoinSet;

use crate::support::{Site, busy, claim, granted};

const LEASE: Duration = Duration::from_secs(30);
const IS_MARKED: &str = "SELECT count(*) FROM dlock WHERE holder LIKE '% awaited'";

#[tokio::test]
async fn the_next_fence_is_higher_than_all_that_were_reserved_with_a_lock() {
    let site = Site::new();
    let (backend, key) = (site.backend().await, Key::new("k").unwrap());
    let mut last = 0;
    // The row is made, and then changed.
    for _ in 0..2 {
        let mut mine = claim(&backend, "k", LEASE).await;
        mine.reserve(10_000_000);
        let grant = granted(mine.attempt().await.unwrap());
        let first = grant.fence.unwrap();
        assert_eq!(grant.reserved, 10_000_000);
        assert!(first.get() > last, "{first} after {last}");
        assert_eq!(backend.inspect(&key).await.unwrap().unwrap().fence, Some(first));
        last = first.get() + 9_999_999;
        assert_eq!(mine.withdraw().await.unwrap(), Withdrawal::REMOVED);
    }
    let mut next = claim(&backend, "k", LEASE).await;
    assert!(granted(next.attempt().await.unwrap()).fence.unwrap().get() > last);
}

#[tokio::test]
async fn who_does_not_know_what_an_earlier_attempt_reserved_has_one_fence_of_it() {
    let site = Site::new();
    let backend = site.backend().await;
    for (n, key) in (0..30).map(|n| (n, format!("k{n}"))) {
        let mut mine = claim(&backend, &key, LEASE).await;
        mine.reserve(64);
        let given_up = {
            let attempt = mine.attempt();
            tokio::select! {
                biased;
                _ = attempt => false,
                () = tokio::time::sleep(Duration::from_micros(n * 20)) => true,
            }
        };
        if !given_up {
            continue;
        }
        mine.reserve(8);
        let grant = granted(mine.attempt().await.unwrap());
        let seen = backend.inspect(&Key::new(&key).unwrap()).await.unwrap().unwrap();
        assert_eq!((grant.reserved, seen.fence), (1, grant.fence), "the row says of no more fences");
        let _ = mine.withdraw().await.unwrap();
        let mut next = claim(&backend, &key, LEASE).await;
        assert!(granted(next.attempt().await.unwrap()).fence > grant.fence);
    }
}

#[tokio::test]
async fn a_release_tells_that_somebody_waits_elsewhere() {
    let site = Site::new();
    let (ours, theirs) = (site.backend().await, site.backend().await);
    let mut waiter = claim(&theirs, "k", LEASE).await;
    for waits in [false, true, false] {
        let mut holder = claim(&ours, "k", LEASE).await;
        let fence = granted(holder.attempt().await.unwrap()).fence;
        assert_eq!(site.number(IS_MARKED).await, 0);
        if waits {
            let _ = busy(waiter.attempt().await.unwrap());
            tokio::select! {
                _ = waiter.changed() => panic!("nobody tells of a change"),
                () = async { while site.number(IS_MARKED).await == 0 {} } => {}
            }
            let seen = theirs.inspect(&Key::new("k").unwrap()).await.unwrap().unwrap();
            assert_eq!((seen.fence, seen.label.as_deref()), (fence, Some("tests")));
        }
        let withdrawn = holder.withdraw().await.unwrap();
        assert_eq!(withdrawn, Withdrawal::REMOVED.with_others_waiting(u32::from(waits)));
    }
}

#[tokio::test]
async fn sections_of_a_process_follow_each_other_without_a_request() {
    let site = Site::new();
    let (locks, fences) = (site.locks().await, Arc::new(Mutex::new(Vec::new())));
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let (lock, fences) = (locks.lock("k"), Arc::clone(&fences));
        tasks.spawn(async move {
            for _ in 0..25 {
                let guard = lock.acquire().await.unwrap();
                fences.lock().unwrap().push(guard.fence());
                tokio::task::yield_now().await;
                guard.release().await.unwrap();
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    let last = site.locks().await.lock("k").acquire().await.unwrap();
    let mut fences = fences.lock().unwrap();
    fences.push(last.fence());
    assert!(fences.len() == 201 && fences.is_sorted_by(|a, b| a < b), "{fences:?}");
    assert!(locks.stats().handoffs > 100, "{:?}", locks.stats());
}
