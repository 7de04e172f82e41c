//! Masters that die or freeze under the eyes of sentinels.

use std::time::Duration;

use dlock_redis::Redis;
use dlock_rig::servers::redis::RedisSentinel;

use crate::support::{LONG, fence, held, locks, over, soon, take, until};

#[tokio::test]
async fn a_lock_that_replicas_acknowledged_outlives_the_death_of_the_master() {
    let mut watched = RedisSentinel::start().unwrap();
    let redis = Redis::builder(&watched.url()).with_min_replicas(1).connect().await.unwrap();
    let (ours, theirs) = (over(redis, LONG), locks(&watched.url(), LONG).await);
    let guard = take(&ours, "room").await;
    watched.server_mut(0).kill();
    watched.wait_for_failover(0).unwrap();
    soon("an answer", async {
        while let Err(error) = theirs.lock("room").try_acquire().await.map(|it| assert!(it.is_none())) {
            assert!(error.is_retryable(), "{error}");
        }
    })
    .await;
    let first = fence(&guard);
    soon("the release", guard.release()).await.unwrap();
    let next = take(&theirs, "room").await;
    assert!(fence(&next) > first);
    next.release().await.unwrap();
}

#[tokio::test]
async fn a_holder_renews_on_the_new_master() {
    let mut watched = RedisSentinel::start().unwrap();
    let locks = locks(&watched.url(), Duration::from_secs(12)).await;
    let guard = locks.lock("room").acquire().await.unwrap();
    watched.servers()[0].wait_for_a_replica().unwrap();
    watched.server_mut(0).kill();
    watched.wait_for_failover(0).unwrap();
    let renewals = locks.stats().renewals;
    until("a renewal", || locks.stats().renewals > renewals).await;
    guard.check().unwrap();
    assert_eq!(held(&watched.servers()[1]), ["room"]);
    soon("the release", guard.release()).await.unwrap();
}

#[tokio::test]
async fn a_master_that_was_replaced_while_it_was_frozen_grants_nothing() {
    let watched = RedisSentinel::start().unwrap();
    let (ours, theirs) = (locks(&watched.url(), LONG).await, locks(&watched.url(), LONG).await);
    // Both have connections to the old master.
    for locks in [&ours, &theirs] {
        locks.lock("before").acquire().await.unwrap().release().await.unwrap();
    }
    watched.servers()[0].pause();
    watched.wait_for_failover(0).unwrap();
    let guard = take(&ours, "room").await;
    assert_eq!(held(&watched.servers()[1]), ["room"]);
    watched.servers()[0].resume();
    // It takes itself for the master until the sentinels tell it otherwise.
    for _ in 0..20 {
        match theirs.lock("room").try_acquire().await {
            Ok(granted) => assert!(granted.is_none(), "granted by the old master"),
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
    until("the old master to step down", || watched.servers()[0].info("role") == "slave").await;
    guard.check().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn sentinels_that_are_away_are_unavailable_and_an_unknown_service_is_a_wrong_setting() {
    let watched = RedisSentinel::start().unwrap();
    let wrong = watched.url().replace(watched.master_name(), "nobody");
    crate::support::error_of(Redis::connect(&wrong).await, dlock_core::ErrorKind::InvalidConfig);
    let dead = dlock_rig::servers::Ports::free();
    let nobody = format!("redis+sentinel://127.0.0.1:{dead}/locks");
    crate::support::error_of(Redis::connect(&nobody).await, dlock_core::ErrorKind::Unavailable);
    // One of several is enough.
    let one = watched.url().replace("redis+sentinel://", &format!("redis+sentinel://127.0.0.1:{dead},"));
    locks(&one, LONG).await.lock("room").acquire().await.unwrap().release().await.unwrap();
}
