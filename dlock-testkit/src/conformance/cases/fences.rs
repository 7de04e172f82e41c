//! Fencing tokens.

use std::sync::{Arc, Mutex};

use dlock_core::{ErrorKind, Fence, Guard};
use tokio::task::JoinSet;

use super::cases;
use crate::conformance::Stage;
use crate::conformance::expect::{error_of, give_back, soon};
use crate::register::Register;

cases! {
    every_grant_has_a_higher_fence_than_the_one_before: Fences, Easy;
    a_fence_grows_after_a_drop: Fences, Easy;
    a_fence_grows_after_the_lease_ran_out: Lease & Fences, Timed;
    a_fence_grows_after_the_lock_was_deleted: Lease & Fences, Easy;
    a_fence_stays_the_same_while_the_lock_is_renewed: Lease & Fences, Timed;
    fences_follow_the_order_of_the_critical_sections: Fences, Busy;
    a_grant_that_is_adopted_has_one_fence: Fences, Easy;
    the_holder_that_others_see_has_the_fence_of_the_guard: Fences, Easy;
    a_register_refuses_a_holder_that_was_overtaken: Lease & Fences, Timed;
}

fn fence(guard: &Guard) -> Fence {
    guard.fence().expect("the backend claims to have fences")
}

/// Over processes and releases.
async fn every_grant_has_a_higher_fence_than_the_one_before(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let mut last = Fence::new(0);
    for n in 0..30 {
        let process = if n % 3 == 0 { &theirs } else { &ours };
        let guard = process.take(&key).await;
        assert!(fence(&guard) > last, "{:?} after {last:?}", guard.fence());
        last = fence(&guard);
        give_back(guard).await;
    }
}

/// The background release changes nothing in that.
async fn a_fence_grows_after_a_drop(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let first = ours.take(&key).await;
    let seen = fence(&first);
    drop(first);
    let second = theirs.take_soon(&key).await;
    assert!(fence(&second) > seen);
}

/// A lock that nobody released is superseded all the same.
async fn a_fence_grows_after_the_lease_ran_out(stage: Stage) {
    let (ours, theirs, key) = (stage.short().await, stage.process().await, stage.key());
    let first = ours.take(&key).await;
    ours.wire.cut();
    let second = theirs.take_soon(&key).await;
    assert!(fence(&second) > fence(&first));
    assert!(fence(&second).supersedes(fence(&first)) && !fence(&first).supersedes(fence(&second)));
}

/// A deletion does not start the count anew.
async fn a_fence_grows_after_the_lock_was_deleted(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let mut last = Fence::new(0);
    for _ in 0..3 {
        let first = ours.take(&key).await;
        assert!(fence(&first) > last);
        ours.delete(&key).await;
        let second = theirs.take(&key).await;
        assert!(fence(&second) > fence(&first));
        last = fence(&second);
        drop(first);
        give_back(second).await;
    }
}

/// A grant is one grant, however long it is held.
async fn a_fence_stays_the_same_while_the_lock_is_renewed(stage: Stage) {
    let (ours, theirs, key) = (stage.short().await, stage.process().await, stage.key());
    let guard = ours.take(&key).await;
    let seen = fence(&guard);
    crate::conformance::expect::until("four renewals", || ours.locks.stats().renewals >= 4).await;
    assert_eq!(fence(&guard), seen);
    let holder = theirs.locks.inspect(&key).await.expect("it can be asked").expect("it is held");
    assert_eq!(holder.fence, Some(seen));
    give_back(guard).await;
}

/// Who was inside later has the higher fence.
async fn fences_follow_the_order_of_the_critical_sections(stage: Stage) {
    let processes = [stage.process().await, stage.process().await];
    let (key, order) = (stage.key(), Arc::new(Mutex::new(Vec::new())));
    let mut tasks = JoinSet::new();
    for n in 0..30 {
        let (lock, order) = (processes[n % 2].locks.lock(&key), Arc::clone(&order));
        tasks.spawn(async move {
            let guard = lock.acquire().await.expect("its turn comes");
            order.lock().expect("not poisoned").push(fence(&guard));
            give_back(guard).await;
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.expect("no task failed");
    }
    let order = order.lock().expect("not poisoned");
    assert_eq!(order.len(), 30);
    assert!(order.is_sorted_by(|a, b| a < b), "{order:?}");
}

/// Asking again after a lost reply is not a second grant.
async fn a_grant_that_is_adopted_has_one_fence(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    ours.wire.lose_replies(1);
    let guard = ours.take(&key).await;
    let holder = theirs.locks.inspect(&key).await.expect("it can be asked").expect("it is held");
    assert_eq!(holder.fence, guard.fence(), "the guard has another fence than the lock");
    let seen = fence(&guard);
    give_back(guard).await;
    let next = theirs.take(&key).await;
    assert!(fence(&next) > seen);
    give_back(next).await;
}

/// A resource may ask who may write.
async fn the_holder_that_others_see_has_the_fence_of_the_guard(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guard = ours.take(&key).await;
    let holder = theirs.locks.inspect(&key).await.expect("it can be asked").expect("it is held");
    assert_eq!(holder.fence, guard.fence());
    give_back(guard).await;
}

/// What a fence is for.
async fn a_register_refuses_a_holder_that_was_overtaken(stage: Stage) {
    let (ours, theirs, key) = (stage.short().await, stage.process().await, stage.key());
    let register = Register::fenced();
    let first = ours.take(&key).await;
    let seen = register.read(fence(&first)).expect("nobody was there before");
    ours.wire.cut();
    let second = theirs.take_soon(&key).await;
    let read = register.read(fence(&second)).expect("it is the holder");
    register.write(fence(&second), read, read + 1).expect("it is the holder");
    // As one that was paused and does not look at `check`.
    register.write(fence(&first), seen, seen + 1).expect_err("it was overtaken");
    error_of(first.check(), &[ErrorKind::Lost]);
    soon("the release", give_back(second)).await;
}
