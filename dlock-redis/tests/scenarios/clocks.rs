//! Servers whose clock is set.

use std::time::Duration;

use dlock_core::ErrorKind;
use dlock_rig::servers::redis::RedisServer;

use crate::support::{LONG, error_of, fence, held, locks, soon, until};

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn a_step_forward_ends_leases_and_fences_tell_the_holders_apart() {
    let server = RedisServer::options().stepped_clock().start().unwrap();
    let (ours, theirs) =
        (locks(&server.url(), Duration::from_secs(6)).await, locks(&server.url(), LONG).await);
    let guard = ours.lock("room").acquire().await.unwrap();
    server.clock().ahead(HOUR);
    let next = soon("the lock", theirs.lock("room").acquire()).await.unwrap();
    assert!(fence(&next) > fence(&guard));
    soon("the loss", guard.lost()).await;
    error_of(guard.release().await, ErrorKind::NotHeld);
    next.check().unwrap();
}

#[tokio::test]
async fn a_step_back_keeps_locks_and_fences_go_on_upwards() {
    let server = RedisServer::options().stepped_clock().start().unwrap();
    let locks = locks(&server.url(), Duration::from_secs(3)).await;
    let guard = locks.lock("room").acquire().await.unwrap();
    server.clock().behind(HOUR);
    let renewals = locks.stats().renewals;
    until("a renewal", || locks.stats().renewals > renewals).await;
    guard.check().unwrap();
    let mut last = fence(&guard);
    guard.release().await.unwrap();
    assert_eq!(held(&server), [""; 0]);
    for _ in 0..20 {
        let guard = locks.lock("room").acquire().await.unwrap();
        assert!(fence(&guard) > last, "{} after {last}", fence(&guard));
        last = fence(&guard);
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn fences_grow_through_steps_to_and_fro() {
    let server = RedisServer::options().stepped_clock().start().unwrap();
    let locks = locks(&server.url(), LONG).await;
    let mut last = 0;
    for minutes in [0, 5, -5, 60, -60, 1, 0] {
        let step = Duration::from_secs(60) * i32::abs(minutes).cast_unsigned();
        if minutes < 0 {
            server.clock().behind(step);
        } else {
            server.clock().ahead(step);
        }
        let guard = locks.lock("room").acquire().await.unwrap();
        assert!(fence(&guard) > last, "{} after {last}", fence(&guard));
        last = fence(&guard);
        guard.release().await.unwrap();
    }
}
