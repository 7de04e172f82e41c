//! A replica takes over that does not know everything: what locks without `min_replicas` risk, and with it do not.

use std::time::Duration;

use dlock_core::{ErrorKind, Fence, Locks, Wait};
use dlock_redis::Redis;
use dlock_rig::servers::redis::{RedisOptions, RedisPair, RedisServer};

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

/// Its role is read when a connection is opened, and connections outlive a promotion.
#[tokio::test]
async fn a_replica_grants_locks_as_soon_as_it_is_promoted() {
    let pair = RedisPair::start().unwrap();
    let connect = async || over(Redis::connect(&pair.replica().url()).await.unwrap(), LONG);
    let (ours, theirs) = (connect().await, connect().await);
    let refused = || async { error_of(ours.lock("room").try_acquire().await, ErrorKind::Unavailable) };
    refused().await;
    let connections = || pair.replica().info("total_connections_received").parse::<u64>().unwrap();
    let before = connections();
    for _ in 0..10 {
        refused().await;
    }
    // The tests' own are among them.
    assert!(connections() - before <= 10 + 1, "each request opens one at the most");
    pair.promote();
    for locks in [theirs, ours] {
        locks.lock("room").try_acquire().await.unwrap().expect("it is free").release().await.unwrap();
    }
}

#[tokio::test]
async fn a_replica_grants_nothing() {
    let pair = RedisPair::start().unwrap();
    let redis = Redis::connect(&pair.replica().url()).await.unwrap();
    let error = error_of(over(redis, LONG).lock("room").try_acquire().await, ErrorKind::Unavailable);
    assert!(error.to_string().contains("replica"), "{error}");
    assert_eq!(held(pair.replica()), [""; 0]);
}

/// It may not know of it yet.
#[tokio::test]
async fn a_replica_does_not_say_that_nobody_has_a_lock_that_is_to_be_taken_away() {
    let pair = RedisPair::start().unwrap();
    let (ours, theirs) = (locks(&pair, 0).await, Redis::connect(&pair.replica().url()).await.unwrap());
    pair.black_hole_the_replication();
    let guard = ours.lock("room").acquire().await.unwrap();
    let seen = ours.occupancy("room").await.unwrap().holders;
    let error = error_of(over(theirs, LONG).force_release_of("room", &seen).await, ErrorKind::Unavailable);
    assert!(error.to_string().contains("replica"), "{error}");
    guard.check().unwrap();
}

/// By `HELLO`, and where that is refused by `ROLE` or by `INFO`.
#[tokio::test]
async fn a_replica_that_can_be_written_to_grants_and_releases_nothing_however_it_says_what_it_is() {
    let master = RedisServer::start().unwrap();
    let guard =
        over(Redis::connect(&master.url()).await.unwrap(), LONG).lock("held").acquire().await.unwrap();
    for renamed in [&[][..], &["hello"], &["hello", "role"]] {
        let rename = |options: RedisOptions, name: &&str| {
            options.argument("rename-command", &format!("{name} no-{name}"))
        };
        let options = renamed.iter().fold(RedisServer::options(), rename);
        let replica =
            options.replica_of(master.address()).argument("replica-read-only", "no").start().unwrap();
        until("the replica to follow", || held(&replica) == ["held"]).await;
        let client = redis::Client::open(replica.url()).unwrap();
        let clients = [Redis::connect(&replica.url()).await, Redis::from_client(&client).connect().await];
        for redis in clients.map(Result::unwrap) {
            let locks = over(redis.clone(), LONG);
            let room = || locks.lock("room").with_wait(Wait::No);
            let fair = room().with_fairness(true);
            for lock in [room(), room().read(), fair] {
                let error = error_of(lock.acquire().await, ErrorKind::Unavailable);
                assert!(error.to_string().contains("replica"), "{error}");
            }
            error_of(locks.semaphore("room", 2).try_acquire().await, ErrorKind::Unavailable);
            let batch = locks.lock_all(["a", "b"]).with_wait(Wait::No);
            error_of(batch.acquire().await, ErrorKind::Unavailable);
            error_of(locks.force_release("held").await, ErrorKind::Unavailable);
            error_of(redis.fenced_set("stock", "17", Fence::new(7)).await, ErrorKind::Unavailable);
            assert!(locks.inspect("held").await.unwrap().is_some(), "it is looked at, {renamed:?}");
        }
        assert_eq!(held(&replica), ["held"], "{renamed:?}");
        let locks = over(Redis::connect(&replica.url()).await.unwrap(), LONG);
        replica.command::<()>(&["REPLICAOF", "NO", "ONE"]);
        soon("the lock", locks.lock("room").acquire()).await.unwrap().release().await.unwrap();
    }
    guard.release().await.unwrap();
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
    // Another key: the replica may not know of its release yet when it becomes the master.
    locks.lock("before").acquire().await.unwrap().release().await.unwrap();
    // An administrator swaps the roles; the connection to the old master lives on.
    pair.promote();
    let port = pair.replica().port().to_string();
    pair.master().command::<()>(&["REPLICAOF", "127.0.0.1", &port]);
    let guard = soon("the lock", locks.lock("room").acquire()).await.unwrap();
    assert!(held(pair.replica()).contains(&"room".to_owned()));
    guard.release().await.unwrap();
}
