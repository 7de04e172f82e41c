//! What a row keeps for those who pass the lock on inside their process, and for those who wait elsewhere.

use std::time::{Duration, Instant};

use dlock_core::backend::{Attempt, Withdrawal};
use dlock_core::{Backend, Claim, Key};

use crate::by_hand::{busy, granted, request};
use crate::carried::wait_until_marked;

const LEASE: Duration = Duration::from_secs(30);

/// Ends after a time that is shorter than what a timer can tell.
async fn after(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        tokio::task::yield_now().await;
    }
}

pub(crate) async fn the_next_fence_is_higher_than_all_that_were_reserved_with_a_lock<B: Backend>(backend: B) {
    let (key, mut last) = (Key::new("k").unwrap(), 0);
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
    let mut next = backend.claim(request("k", LEASE).await);
    assert!(granted(next.attempt().await.unwrap()).fence.unwrap().get() > last);
}

pub(crate) async fn who_does_not_know_what_an_earlier_attempt_reserved_has_one_fence_of_it<B: Backend>(
    backend: B,
) {
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

/// `is_marked` looks whether somebody has noted with the lock that it waits.
pub(crate) async fn a_release_tells_that_somebody_waits_elsewhere<B: Backend>(
    (ours, theirs): (B, B),
    mut is_marked: impl AsyncFnMut() -> bool,
) {
    let mut waiter = theirs.claim(request("k", LEASE).await);
    for waits in [false, true, false] {
        let mut holder = ours.claim(request("k", LEASE).await);
        let fence = granted(holder.attempt().await.unwrap()).fence;
        assert!(!is_marked().await);
        if waits {
            wait_until_marked(&mut waiter, &mut is_marked).await;
            let mut another = theirs.claim(request("k", LEASE).await);
            let refused_by = busy(another.attempt().await.unwrap()).holder.unwrap();
            let inspected = theirs.inspect(&Key::new("k").unwrap()).await.unwrap().unwrap();
            for seen in [*refused_by, inspected] {
                assert_eq!((seen.fence, seen.label.as_deref()), (fence, Some("tests")));
            }
        }
        let withdrawn = holder.withdraw().await.unwrap();
        assert_eq!(withdrawn, Withdrawal::REMOVED.with_others_waiting(u32::from(waits)));
    }
    assert!(matches!(waiter.attempt().await.unwrap(), Attempt::Granted(_)));
}
