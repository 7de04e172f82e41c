//! Clusters whose slots move and whose masters die.

use std::time::Duration;

use dlock_core::Locks;
use dlock_redis::Redis;
use dlock_rig::servers::redis::{RedisCluster, RedisServer};

use crate::support::{LONG, fence, is_counter, locks, soon, take, until};

fn held(cluster: &RedisCluster) -> Vec<String> {
    cluster.keys().into_iter().filter(|key| !is_counter(key)).collect()
}

/// Takes and releases a lock on each of many slots.
async fn go_round(locks: &Locks, rounds: u32) {
    for number in 0..rounds {
        let guard = soon("the lock", locks.lock(format!("room_{number}")).acquire()).await.unwrap();
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn locks_of_all_slots_exclude_and_wake_each_other() {
    let cluster = RedisCluster::start().unwrap();
    let (ours, theirs) = (locks(&cluster.url(), LONG).await, locks(&cluster.url(), LONG).await);
    for number in 0..60 {
        let key = format!("room_{number}");
        let guard = ours.lock(&key).acquire().await.unwrap();
        assert!(theirs.lock(&key).try_acquire().await.unwrap().is_none());
        let lock = theirs.lock(&key);
        let waiter = tokio::spawn(async move { lock.acquire().await });
        tokio::task::yield_now().await;
        guard.release().await.unwrap();
        let next = soon("the lock", waiter).await.unwrap().unwrap();
        next.release().await.unwrap();
    }
    assert_eq!(held(&cluster), [""; 0]);
    let left = || cluster.nodes().iter().all(|node| node.channels().is_empty());
    until("the channels to be left", left).await;
}

/// It sends everybody to the master, whose role need not be asked for.
#[tokio::test]
async fn a_replica_of_a_cluster_that_can_be_written_to_grants_nothing() {
    let options = RedisServer::options().argument("replica-read-only", "no");
    let cluster = RedisCluster::start_with(options).unwrap();
    let locks = locks(&cluster.url(), LONG).await;
    take(&locks, "room").await.release().await.unwrap();
    let before = cluster.master_of("room");
    cluster.handoff(before).unwrap();
    let guard = take(&locks, "room").await;
    let nodes = [before, cluster.partner_of(before)].map(|node| &cluster.nodes()[node]);
    assert_eq!(nodes.map(|node| node.info("role")), ["slave", "master"]);
    let fence = fence(&guard).to_string();
    nodes[1].wait_for_a_replica().unwrap();
    let words = ["EVAL", "return redis.call('SET', KEYS[1], ARGV[1])", "1", "dlock:room", &fence];
    let error = nodes[0].try_command::<redis::Value>(&words).unwrap_err();
    assert!(error.redirect_node().is_some(), "{error}");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn keys_with_braces_are_only_names_and_choose_no_slot() {
    let cluster = RedisCluster::start().unwrap();
    let locks = locks(&cluster.url(), LONG).await;
    let keys = ["{a}", "{a}b", "a{b}c", "{}", "{", "}", "}{", "{{a}}", "room{", "%7Ba%7D", "a b", "ключ{1}"];
    let mut guards = Vec::new();
    for key in keys {
        guards.push(locks.lock(key).acquire().await.unwrap());
    }
    assert_eq!(held(&cluster).len(), keys.len());
    let slots: std::collections::BTreeSet<u16> =
        held(&cluster).iter().map(|key| cluster.slot_of(key)).collect();
    assert!(slots.len() > keys.len() / 2, "they lie in {} slots", slots.len());
    for guard in guards {
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_lock_moves_with_its_slot_while_it_is_held() {
    let cluster = RedisCluster::start().unwrap();
    let (ours, theirs) =
        (locks(&cluster.url(), Duration::from_secs(3)).await, locks(&cluster.url(), LONG).await);
    let guard = ours.lock("room").acquire().await.unwrap();
    let to = (cluster.master_of("dlock:room") + 1) % 3;
    let migration = cluster.begin_migration("dlock:room", to);
    let renewed = async |what: &str| {
        let renewals = ours.stats().renewals;
        until(what, || ours.stats().renewals > renewals).await;
        guard.check().unwrap();
        assert!(soon("an answer", theirs.lock("room").try_acquire()).await.unwrap().is_none());
    };
    renewed("a renewal before the keys are moved").await;
    cluster.migrate_keys(migration);
    renewed("a renewal on the new server while the slot is moving").await;
    cluster.finish_migration(migration);
    renewed("a renewal after the move").await;
    let first = fence(&guard);
    guard.release().await.unwrap();
    let next = soon("the lock", theirs.lock("room").acquire()).await.unwrap();
    assert!(fence(&next) > first);
    next.release().await.unwrap();
    assert_eq!(held(&cluster), [""; 0]);
}

#[tokio::test]
async fn a_free_lock_is_granted_once_while_its_slot_is_moving() {
    let cluster = RedisCluster::start().unwrap();
    let (ours, theirs) = (locks(&cluster.url(), LONG).await, locks(&cluster.url(), LONG).await);
    go_round(&ours, 20).await;
    let to = (cluster.master_of("dlock:room") + 1) % 3;
    let migration = cluster.begin_migration("dlock:room", to);
    // Lock and counter may lie on two servers at this moment.
    let guard = soon("the lock", ours.lock("room").acquire()).await.unwrap();
    assert!(soon("an answer", theirs.lock("room").try_acquire()).await.unwrap().is_none());
    cluster.finish_migration(migration);
    assert!(soon("an answer", theirs.lock("room").try_acquire()).await.unwrap().is_none());
    assert_eq!(held(&cluster), ["dlock:room"]);
    guard.release().await.unwrap();
    assert_eq!(held(&cluster), [""; 0]);
}

#[tokio::test]
async fn a_master_that_hands_over_takes_its_locks_along() {
    let cluster = RedisCluster::start().unwrap();
    let (ours, theirs) =
        (locks(&cluster.url(), Duration::from_secs(6)).await, locks(&cluster.url(), LONG).await);
    let guard = ours.lock("room").acquire().await.unwrap();
    cluster.handoff(cluster.master_of("dlock:room")).unwrap();
    let renewals = ours.stats().renewals;
    until("a renewal", || ours.stats().renewals > renewals).await;
    guard.check().unwrap();
    assert!(soon("an answer", theirs.lock("room").try_acquire()).await.unwrap().is_none());
    soon("the release", guard.release()).await.unwrap();
    go_round(&ours, 20).await;
}

#[tokio::test]
async fn locks_outlive_the_death_of_their_master() {
    let mut cluster = RedisCluster::start().unwrap();
    let redis = Redis::builder(&cluster.url()).with_min_replicas(1).connect().await.unwrap();
    let ours = crate::support::over(redis, LONG);
    let theirs = locks(&cluster.url(), LONG).await;
    let guard = take(&ours, "room").await;
    let master = cluster.master_of("dlock:room");
    cluster.node_mut(master).kill();
    cluster.wait_for_failover(master).unwrap();
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
    go_round(&theirs, 20).await;
}

#[tokio::test]
async fn waiters_go_on_when_the_server_they_listen_to_dies() {
    let mut cluster = RedisCluster::start().unwrap();
    let (ours, theirs) = (locks(&cluster.url(), LONG).await, locks(&cluster.url(), LONG).await);
    let key = (0..)
        .map(|n| format!("room_{n}"))
        .find(|key| cluster.master_of(&format!("dlock:{key}")) == 1)
        .unwrap();
    let guard = ours.lock(&key).acquire().await.unwrap();
    let lock = theirs.lock(&key).with_wait(LONG);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    let listened_to =
        |cluster: &RedisCluster| cluster.nodes().iter().position(|node| !node.channels().is_empty());
    until("the waiter to listen", || listened_to(&cluster).is_some()).await;
    // The one that the waiter listens to, unless it has the lock itself.
    let victim = listened_to(&cluster).unwrap();
    if victim != 1 {
        cluster.node_mut(victim).kill();
    }
    soon("the release", guard.release()).await.unwrap();
    soon("the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
}
