//! The attribute goes on under a lock that was handed over.
#![deny(warnings, clippy::pedantic)]

use crate::support::{is_held, on_memory};
use dlock::{Baton, Error, ErrorKind, Fence, Locks, distributed_lock};
use std::sync::atomic::{AtomicU32, Ordering};

#[distributed_lock(from = baton, backend = "memory", guard = held)]
async fn go_on(baton: &Baton) -> Result<Fence, Error> {
    held.check()?;
    Ok(held.fence().expect("memory has fences"))
}

#[distributed_lock(from = baton, backend = "memory", guard = held)]
async fn pass_on(baton: Baton) -> Result<Baton, Error> {
    held.hand_over().await
}

#[distributed_lock(key = "order_<id>", from = baton, backend = "memory")]
async fn count(id: u64, baton: &Baton, runs: &AtomicU32) -> Result<u64, Error> {
    runs.fetch_add(1, Ordering::SeqCst);
    Ok(id)
}

#[distributed_lock(from = { batons.next().expect("there is one") }, backend = "memory")]
async fn evaluate(batons: &mut (dyn Iterator<Item = Baton> + Send)) -> Result<usize, Error> {
    Ok(batons.count())
}

/// The baton of a lock that was just taken, and the fence that it had.
async fn handed_over(locks: &Locks, key: &str) -> (Baton, Fence) {
    let guard = locks.lock(key).acquire().await.expect("it is free");
    let fence = guard.fence().expect("memory has fences");
    (guard.hand_over().await.expect("nobody else has it"), fence)
}

#[tokio::test]
async fn a_body_runs_under_the_key_of_its_baton_with_a_higher_fence_and_releases_it() {
    on_memory(|locks| async move {
        let (baton, before) = handed_over(&locks, "order_7").await;
        assert!(is_held(&locks, "order_7").await, "nobody else gets it meanwhile");
        assert!(go_on(&baton).await.expect("it is the first copy") > before);
        assert!(!is_held(&locks, "order_7").await);
    })
    .await;
}

#[tokio::test]
async fn a_second_copy_of_a_baton_is_not_held_and_its_body_does_not_run() {
    on_memory(|locks| async move {
        let (baton, _) = handed_over(&locks, "order_7").await;
        let (copy, runs) = (baton.clone(), AtomicU32::new(0));
        assert_eq!(count(7, &baton, &runs).await.expect("it is the first copy"), 7);
        assert_eq!(count(7, &copy, &runs).await.unwrap_err().kind(), ErrorKind::NotHeld);
        assert_eq!(go_on(&copy).await.unwrap_err().kind(), ErrorKind::NotHeld);
        assert_eq!(runs.into_inner(), 1);
        // And while somebody has the lock, who stays as they are.
        let guard = locks.lock("order_7").acquire().await.expect("it is free");
        let error = go_on(&copy).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotHeld);
        assert!(error.holder().is_some(), "{error}");
        guard.check().expect("the copy changed nothing");
    })
    .await;
}

#[tokio::test]
async fn a_body_hands_the_lock_over_again() {
    on_memory(|locks| async move {
        let (first, before) = handed_over(&locks, "order_7").await;
        let second = pass_on(first.clone()).await.expect("it is the first copy");
        assert!(is_held(&locks, "order_7").await, "the end of the body does not release it");
        assert_eq!(go_on(&first).await.unwrap_err().kind(), ErrorKind::NotHeld);
        assert!(go_on(&second).await.expect("it is the first copy") > before);
        assert!(!is_held(&locks, "order_7").await);
    })
    .await;
}

#[tokio::test]
async fn a_baton_of_another_key_is_refused_and_stays_as_it_is() {
    on_memory(|locks| async move {
        let (baton, _) = handed_over(&locks, "order_7").await;
        let runs = AtomicU32::new(0);
        assert_eq!(count(8, &baton, &runs).await.unwrap_err().kind(), ErrorKind::InvalidConfig);
        assert_eq!(count(7, &baton, &runs).await.expect("nobody took it over"), 7);
        assert_eq!(runs.into_inner(), 1);
    })
    .await;
}

#[tokio::test]
async fn the_expression_is_evaluated_once_and_before_the_body() {
    on_memory(|locks| async move {
        let batons = [handed_over(&locks, "order_7").await.0, handed_over(&locks, "order_8").await.0];
        assert_eq!(evaluate(&mut batons.into_iter()).await.expect("it is the first copy"), 1);
        assert!(!is_held(&locks, "order_7").await && is_held(&locks, "order_8").await);
    })
    .await;
}
