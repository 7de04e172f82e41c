//! What a row keeps for those who pass the lock on inside their process, and for those who wait elsewhere.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dlock_core::backend::{Attempt, Withdrawal};
use dlock_core::{Backend, Claim, Key};
use tokio::task::JoinSet;

use crate::by_hand::{busy, granted, request};
use crate::support::{Db, on_both, take};

const LEASE: Duration = Duration::from_secs(30);

/// Ends after a time that is shorter than what a timer can tell.
async fn after(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        tokio::task::yield_now().await;
    }
}

on_both! {
    async fn the_next_fence_is_higher_than_all_that_were_reserved_with_a_lock<D: Db>(db: D) {
        let (backend, key) = (db.backend().await, Key::new("k").unwrap());
        let mut last = 0;
        // The row is made, and then changed.
        for _ in 0..2 {
            let mut claim = backend.claim(request("k", LEASE).await);
            claim.reserve(10_000_000);
            let grant = granted(claim.attempt().await.unwrap());
            let first = grant.fence.unwrap();
            assert_eq!(grant.reserved, 10_000_000);
            assert!(first.get() > last, "{first} after {last}");
            let holder = backend.inspect(&key).await.unwrap().unwrap();
            assert_eq!((holder.fence, holder.label.as_deref()), (Some(first), Some("tests")));
            let mut other = backend.claim(request("k", LEASE).await);
            assert_eq!(busy(other.attempt().await.unwrap()).holder.unwrap().fence, Some(first));
            last = first.get() + 9_999_999;
            assert_eq!(claim.withdraw().await.unwrap(), Withdrawal::REMOVED);
        }
        let mut claim = backend.claim(request("k", LEASE).await);
        assert!(granted(claim.attempt().await.unwrap()).fence.unwrap().get() > last);
    }

    async fn who_does_not_know_what_an_earlier_attempt_reserved_has_one_fence_of_it<D: Db>(db: D) {
        let backend = db.backend().await;
        let mut adopted = 0;
        // How soon an attempt is sent depends on the machine.
        for (n, key) in (0..300).map(|n| (n, format!("k{n}"))) {
            if n >= 30 && adopted > 0 {
                break;
            }
            let mut claim = backend.claim(request(&key, LEASE).await);
            claim.reserve(64);
            let given_up = {
                let attempt = claim.attempt();
                tokio::select! {
                    biased;
                    _ = attempt => false,
                    () = after(Duration::from_micros(n % 60 * 50)) => true,
                }
            };
            if !given_up {
                continue;
            }
            claim.reserve(8);
            let grant = granted(claim.attempt().await.unwrap());
            // What was given up before it was sent reserved nothing.
            assert!([1, 8].contains(&grant.reserved), "{} fences", grant.reserved);
            adopted += usize::from(grant.reserved == 1);
            let seen = backend.inspect(&Key::new(&key).unwrap()).await.unwrap().unwrap();
            assert_eq!(seen.fence, grant.fence, "the row says of no more fences");
            let _ = claim.withdraw().await.unwrap();
            let mut next = backend.claim(request(&key, LEASE).await);
            assert!(granted(next.attempt().await.unwrap()).fence > grant.fence);
        }
        assert!(adopted > 0, "no attempt was given up after it was sent");
    }

    async fn a_release_tells_that_somebody_waits_elsewhere<D: Db>(db: D) {
        let (ours, theirs) = (db.backend().await, db.backend().await);
        let mut waiter = theirs.claim(request("k", LEASE).await);
        let mark = if D::KEY == "key" { "awaited::int" } else { "RIGHT(holder, 8) = ' awaited'" };
        let is_marked = || db.query(&format!("SELECT {mark} FROM dlock WHERE {} = 'k'", D::KEY)) == "1";
        for waits in [false, true, false] {
            let mut holder = ours.claim(request("k", LEASE).await);
            let fence = granted(holder.attempt().await.unwrap()).fence;
            assert!(!is_marked());
            if waits {
                // It may be told for nothing.
                let waiting = async {
                    loop {
                        let _ = busy(waiter.attempt().await.unwrap());
                        waiter.changed().await.unwrap();
                    }
                };
                tokio::select! {
                    () = waiting => {}
                    () = async { while !is_marked() { tokio::time::sleep(Duration::from_millis(5)).await } } => {}
                }
                let mut another = theirs.claim(request("k", LEASE).await);
                let seen = busy(another.attempt().await.unwrap()).holder.unwrap();
                assert_eq!((seen.fence, seen.label.as_deref()), (fence, Some("tests")));
            }
            let withdrawn = holder.withdraw().await.unwrap();
            assert_eq!(withdrawn, Withdrawal::REMOVED.with_others_waiting(u32::from(waits)));
        }
        assert!(matches!(waiter.attempt().await.unwrap(), Attempt::Granted(_)));
    }

    async fn sections_of_a_process_follow_each_other_without_a_request<D: Db>(db: D) {
        let (locks, fences) = (db.locks().await, Arc::new(Mutex::new(Vec::new())));
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
        let last = take(&db.locks().await, "k").await;
        let mut fences = fences.lock().unwrap();
        fences.push(last.fence());
        assert!(fences.len() == 201 && fences.is_sorted_by(|a, b| a < b), "{fences:?}");
        assert!(locks.stats().handoffs > 100, "{:?}", locks.stats());
    }
}
