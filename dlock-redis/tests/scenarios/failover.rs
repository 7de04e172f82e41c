//! A replica takes over that does not know everything: what locks without `min_replicas` risk, and with it do not.

use std::time::Duration;

use dlock_core::{ErrorKind, Locks, Wait};
use dlock_redis::Redis;
use dlock_rig::servers::redis::{RedisPair, RedisServer};

use crate::support::{LONG, error_of, fence, held, over, soon, until};

async fn locks(pair: &RedisPair, min_replicas: u32) -> Locks {
    let redis = Redis::builder(&pair.url())
        .with_min_replicas(min_replicas)
        .with_replica_timeout(Duration::from_secs(2))
        .connect()
        .await
        .unwrap();
    Locks::builder(redis).with_lease(LONG).with_wait(LONG).build().unwrap()
}

#[tokio::test]
async fn without_min_replicas_a_failover_can_grant_a_lock_twice_and_the_fences_tell_which_is_new() {
    let mut pair = RedisPair::start().unwrap();
    let (ours, theirs) = (locks(&pair, 0).await, locks(&pair, 0).await);
    let warm = ours.lock("before").acquire().await.unwrap();
    let known = fence(&warm);
    until("the replica", || pair.replica().keys().contains(&"dlock:before".to_owned())).await;
    pair.black_hole_the_replication();
    let old = ours.lock("room").acquire().await.unwrap();
    pair.fail_over();
    let new = soon("the lock", theirs.lock("room").acquire()).await.unwrap();
    assert!(known < fence(&old) && fence(&old) < fence(&new), "{known} < {} < {}", fence(&old), fence(&new));
    // What the holder that was forgotten does next shows him that he is.
    error_of(soon("the release", old.release()).await, ErrorKind::NotHeld);
    new.check().unwrap();
}

#[tokio::test]
async fn with_min_replicas_no_lock_is_granted_that_a_failover_would_forget() {
    let mut pair = RedisPair::start().unwrap();
    let (ours, theirs) = (locks(&pair, 1).await, locks(&pair, 0).await);
    pair.black_hole_the_replication();
    let error = error_of(ours.lock("room").with_wait(Wait::No).acquire().await, ErrorKind::Unavailable);
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    until("the withdrawal", || held(pair.master()).is_empty()).await;
    pair.fail_over();
    let new = soon("the lock", theirs.lock("room").acquire()).await.unwrap();
    new.release().await.unwrap();
}

#[tokio::test]
async fn with_min_replicas_a_lock_outlives_a_failover() {
    let mut pair = RedisPair::start().unwrap();
    let (ours, theirs) = (locks(&pair, 1).await, locks(&pair, 0).await);
    let guard = ours.lock("room").acquire().await.unwrap();
    pair.fail_over();
    assert_eq!(held(pair.replica()), ["room"]);
    let other = theirs.lock("room");
    until_an_answer(async || other.try_acquire().await.map(|it| assert!(it.is_none()))).await;
    soon("the release", guard.release()).await.unwrap();
    let next = soon("the lock", theirs.lock("room").acquire()).await.unwrap();
    next.release().await.unwrap();
}

/// Tries again while the client still finds out that the servers have changed.
async fn until_an_answer(mut ask: impl AsyncFnMut() -> dlock_core::Result<()>) {
    soon("an answer", async {
        while let Err(error) = ask().await {
            assert!(error.is_retryable(), "{error}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_replica_grants_nothing() {
    let pair = RedisPair::start().unwrap();
    let redis = Redis::connect(&pair.replica().url()).await.unwrap();
    let error = error_of(over(redis, LONG).lock("room").try_acquire().await, ErrorKind::Unavailable);
    assert!(error.to_string().contains("replica"), "{error}");
    assert_eq!(held(pair.replica()), [""; 0]);
}

#[tokio::test]
async fn a_master_that_lacks_the_replicas_it_wants_grants_nothing() {
    let server = RedisServer::options().argument("min-replicas-to-write", "1").start().unwrap();
    let redis = Redis::connect(&server.url()).await.unwrap();
    let error = error_of(over(redis, LONG).lock("room").try_acquire().await, ErrorKind::Unavailable);
    assert!(error.to_string().contains("replicas"), "{error}");
    assert_eq!(held(&server), [""; 0]);
}

#[tokio::test]
async fn a_master_that_becomes_a_replica_is_noticed() {
    let pair = RedisPair::start().unwrap();
    let locks = locks(&pair, 0).await;
    locks.lock("room").acquire().await.unwrap().release().await.unwrap();
    // An administrator swaps the roles; the connection to the old master lives on.
    pair.promote();
    let port = pair.replica().port().to_string();
    pair.master().command::<()>(&["REPLICAOF", "127.0.0.1", &port]);
    let guard = soon("the lock", locks.lock("room").acquire()).await.unwrap();
    assert_eq!(held(pair.replica()), ["room"]);
    guard.release().await.unwrap();
}
