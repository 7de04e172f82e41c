//! Keeping a lock for longer than its lease.

use std::sync::Arc;
use std::time::Duration;

use super::cases;
use crate::conformance::Stage;
use crate::conformance::expect::{give_back, soon, until};

cases! {
    renewal_keeps_a_lock_for_many_leases: Lease, Timed;
    many_locks_are_renewed_side_by_side: Lease, Timed;
    a_blocked_runtime_does_not_lose_the_lock: Lease, Threads;
    a_runtime_that_is_gone_does_not_lose_the_lock: Lease, Threads;
    an_outage_shorter_than_the_lease_loses_nothing: Lease, Timed;
    a_renewal_whose_reply_is_lost_is_made_again: Lease, Timed;
    nothing_is_renewed_after_the_release: Lease, Timed;
    what_remains_never_exceeds_the_lease: Lease, Timed;
    a_nested_release_does_not_end_the_renewal: Lease, Timed;
    a_long_hold_is_renewed_in_time_every_time: Lease, Timed;
}

/// The lease is only a floor for holders that are gone.
async fn renewal_keeps_a_lock_for_many_leases(stage: Stage) {
    let (ours, theirs, key) = (stage.short().await, stage.process().await, stage.key());
    let guard = ours.take(&key).await;
    let leases = async {
        for _ in 0..12 {
            tokio::time::sleep(stage.lease() / 3).await;
            theirs.sees_held(&key).await;
        }
    };
    tokio::select! {
        () = guard.lost() => panic!("it was lost: {:?}", guard.check()),
        () = leases => {}
    }
    guard.check().expect("it is held");
    assert!(ours.locks.stats().renewals >= 8, "{:?}", ours.locks.stats());
    give_back(guard).await;
}

/// One does not hold up the other.
async fn many_locks_are_renewed_side_by_side(stage: Stage) {
    let process = stage.short().await;
    let mut guards = Vec::new();
    for _ in 0..20 {
        guards.push(process.take(&stage.key()).await);
    }
    until("eight renewals of each", || process.locks.stats().renewals >= 160).await;
    for guard in guards {
        guard.check().expect("it was renewed");
        give_back(guard).await;
    }
    assert_eq!(process.locks.stats().lost, 0);
}

/// Holds `key` on a current-thread runtime of its own while `block` has its only thread.
async fn held_while(stage: &Stage, block: fn(Duration)) {
    let (ours, theirs, key) = (stage.short().await, stage.process().await, stage.key());
    let (lock, leases) = (ours.locks.lock(&key), stage.lease() * 3);
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async move {
            let guard = lock.acquire().await.expect("it is free");
            block(leases);
            guard.check().expect("it was kept");
            give_back(guard).await;
        });
    });
    until("the hold", || ours.locks.stats().held == 1).await;
    while !thread.is_finished() {
        if let Some(guard) = theirs.locks.lock(&key).try_acquire().await.expect("it can be asked") {
            assert!(ours.locks.stats().held == 0, "somebody got in while it was held");
            give_back(guard).await;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(thread.join().is_ok(), "the lock was lost while the runtime was blocked");
}

/// Code that blocks its thread (a long computation, a lock of the standard library) does not cost the lock.
async fn a_blocked_runtime_does_not_lose_the_lock(stage: Stage) {
    held_while(&stage, std::thread::sleep).await;
}

/// The runtime that opened the store and acquired need not live as long as the lock.
async fn a_runtime_that_is_gone_does_not_lose_the_lock(stage: Stage) {
    let (theirs, key) = (stage.process().await, stage.key());
    // The store stands as long as the stage does.
    let stage = Arc::new(stage);
    let (opens, taken) = (Arc::clone(&stage), key.clone());
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let ours = opens.short().await;
            let guard = ours.take(&taken).await;
            (ours, guard)
        })
    });
    let (ours, guard) = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    until("renewals for three leases", || ours.locks.stats().renewals >= 9).await;
    guard.check().expect("it was renewed");
    theirs.sees_held(&key).await;
    give_back(guard).await;
}

/// One failed renewal is no loss: there is time for another.
async fn an_outage_shorter_than_the_lease_loses_nothing(stage: Stage) {
    let (process, key) = (stage.short().await, stage.key());
    let guard = process.take(&key).await;
    for _ in 0..3 {
        let failed = process.locks.stats().failed_renewals;
        process.wire.cut();
        until("a renewal that fails", || process.locks.stats().failed_renewals > failed).await;
        process.wire.mend();
        let renewed = process.locks.stats().renewals;
        until("a renewal that works", || process.locks.stats().renewals > renewed).await;
        guard.check().expect("there was time for another");
    }
    give_back(guard).await;
}

/// A renewal is idempotent.
async fn a_renewal_whose_reply_is_lost_is_made_again(stage: Stage) {
    let (process, key) = (stage.short().await, stage.key());
    let guard = process.take(&key).await;
    for _ in 0..3 {
        process.wire.lose_replies(1);
        let failed = process.locks.stats().failed_renewals;
        until("a reply that is lost", || process.locks.stats().failed_renewals > failed).await;
        let renewed = process.locks.stats().renewals;
        until("the next renewal", || process.locks.stats().renewals > renewed).await;
        guard.check().expect("it was renewed");
    }
    give_back(guard).await;
}

/// Renewal stops before the release is sent, however the guard goes.
async fn nothing_is_renewed_after_the_release(stage: Stage) {
    let process = stage.short().await;
    for n in 0..30 {
        let guard = process.take(&stage.key()).await;
        if n % 3 == 0 {
            tokio::time::sleep(stage.lease() / 3).await;
        }
        if n % 2 == 0 {
            give_back(guard).await;
        } else {
            drop(guard);
        }
    }
    until("the background work", || process.locks.stats().background == 0).await;
    let renewed = process.wire.renewals();
    tokio::time::sleep(stage.lease() * 2).await;
    assert_eq!(process.wire.renewals(), renewed);
    assert_eq!(process.locks.stats().held, 0);
}

/// The local deadline is never later than the server's.
async fn what_remains_never_exceeds_the_lease(stage: Stage) {
    let (process, key) = (stage.short().await, stage.key());
    let guard = process.take(&key).await;
    let mut least = stage.lease();
    while process.locks.stats().renewals < 6 {
        let remaining = guard.remaining().expect("a lease has an end");
        assert!(remaining < stage.lease(), "{remaining:?}");
        assert!(!remaining.is_zero(), "it was lost: {:?}", guard.check());
        least = least.min(remaining);
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    assert!(least < stage.lease() * 9 / 10, "it runs down between renewals; the least seen was {least:?}");
    give_back(guard).await;
}

/// The outer guard's renewal goes on.
async fn a_nested_release_does_not_end_the_renewal(stage: Stage) {
    let (ours, theirs, key) = (stage.short().await, stage.process().await, stage.key());
    ours.locks
        .scope(async {
            let lock = ours.locks.lock(&key);
            let outer = lock.acquire().await.expect("it is free");
            let inner = lock.acquire().await.expect("it re-enters");
            give_back(inner).await;
            let renewed = ours.locks.stats().renewals;
            let enough = until("renewals for two leases", || ours.locks.stats().renewals >= renewed + 6);
            soon("renewals", enough).await;
            outer.check().expect("it was renewed");
            theirs.sees_held(&key).await;
            give_back(outer).await;
        })
        .await;
}

/// A long hold in small: as many renewals as a lease of 30 s has in five minutes.
async fn a_long_hold_is_renewed_in_time_every_time(stage: Stage) {
    let process = stage.short().await;
    let guard = process.take(&stage.key()).await;
    let mut seen = 0;
    while seen < 30 {
        let before = seen;
        until("the next renewal", || process.locks.stats().renewals > before).await;
        guard.check().expect("it is renewed in time");
        seen = process.locks.stats().renewals;
    }
    assert_eq!(process.locks.stats().lost, 0);
    give_back(guard).await;
}
