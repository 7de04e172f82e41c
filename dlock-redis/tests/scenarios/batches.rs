//! Several locks in one call of the server.

use std::time::Duration;

use dlock_core::{ErrorKind, Locks, Wait};
use dlock_redis::Redis;
use dlock_rig::proxy::Loss;
use dlock_rig::servers::redis::{RedisCluster, RedisPair, RedisServer};

use crate::support::{LONG, Proxied, error_of, held, locks, over, soon, until};

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("account_{n}")).collect()
}

/// How many calls of scripts the proxy has seen.
fn calls(on: &Proxied) -> u64 {
    let requests = on.proxy.requests();
    ["EVALSHA", "EVAL"].iter().filter_map(|name| requests.get(*name)).sum()
}

async fn warm(on: &Proxied) -> Locks {
    let locks = on.locks(LONG).await;
    locks.lock_all(["before", "too"]).run(async {}).await.unwrap();
    locks
}

#[tokio::test]
async fn ten_locks_are_taken_in_one_request_and_given_back_in_two() {
    let on = Proxied::start();
    let locks = warm(&on).await;
    let before = calls(&on);
    let guard = locks.lock_all(keys(10)).acquire().await.unwrap();
    assert_eq!(calls(&on) - before, 1);
    let mut expected = keys(10);
    let mut there = held(&on.server);
    expected.sort();
    there.sort();
    assert_eq!(there, expected);
    guard.release().await.unwrap();
    assert!(calls(&on) - before <= 3, "{} requests in all", calls(&on) - before);
    assert_eq!(held(&on.server), [""; 0]);
}

#[tokio::test]
async fn each_lock_of_a_batch_is_an_ordinary_lock_with_a_fence_of_its_own() {
    let server = RedisServer::start().unwrap();
    let (ours, theirs) = (locks(&server.url(), LONG).await, locks(&server.url(), LONG).await);
    let first = theirs.lock("account_1").acquire().await.unwrap();
    let before = first.fence();
    first.release().await.unwrap();
    let guard = ours.lock_all(keys(3)).acquire().await.unwrap();
    let fences: std::collections::BTreeSet<_> = guard.fences().filter_map(|(_, fence)| fence).collect();
    assert_eq!(fences.len(), 3);
    assert!(guard.fence_of("account_1") > before);
    let holder = theirs.inspect("account_2").await.unwrap().expect("it is held");
    assert_eq!(holder.fence, guard.fence_of("account_2"));
    assert!(theirs.lock("account_0").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    let next = theirs.lock("account_2").acquire().await.unwrap();
    assert!(next.fence() > holder.fence);
}

#[tokio::test]
async fn a_busy_lock_leaves_the_others_untouched_and_its_release_wakes_the_batch() {
    let on = Proxied::start();
    let (ours, theirs) = (warm(&on).await, locks(&on.server.url(), LONG).await);
    let other = theirs.lock("account_4").acquire().await.unwrap();
    let error = error_of(ours.lock_all(keys(10)).with_wait(Wait::No).acquire().await, ErrorKind::Busy);
    assert_eq!(error.key(), Some("account_4"));
    assert!(error.holder().and_then(|holder| holder.pid).is_some(), "{error}");
    assert_eq!(held(&on.server), ["account_4"]);
    let batch = ours.lock_all(keys(10)).with_wait(LONG);
    let waiting = tokio::spawn(async move { batch.acquire().await });
    until("somebody to listen", || !on.server.channels().is_empty()).await;
    assert_eq!(held(&on.server), ["account_4"]);
    other.release().await.unwrap();
    soon("the batch", waiting).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_batch_whose_reply_was_lost_is_adopted_as_a_whole() {
    for loss in [Loss::Cut, Loss::Silence] {
        let on = Proxied::start();
        let locks = warm(&on).await;
        on.server.command::<()>(&["CONFIG", "RESETSTAT"]);
        on.proxy.lose_reply(1, "EVALSHA", loss);
        let guard = locks.lock_all(keys(10)).acquire().await.unwrap();
        assert_eq!(on.proxy.lost(), 1);
        let sets = on.server.command_calls().get("set").copied().unwrap_or(0);
        // One more where the counter had to catch up with the clock.
        assert!((10..=11).contains(&sets), "granted once and then adopted: {sets}");
        guard.check().unwrap();
        guard.release().await.unwrap();
        until("the release", || held(&on.server).is_empty()).await;
    }
}

#[tokio::test]
async fn without_a_recheck_a_lost_reply_is_unknown_and_all_locks_are_withdrawn() {
    for loss in [Loss::Cut, Loss::Silence] {
        let on = Proxied::start();
        let locks = warm(&on).await;
        on.proxy.lose_reply(1, "EVALSHA", loss);
        let batch = locks.lock_all(keys(10)).with_each(|lock| lock.with_rechecks(0));
        error_of(batch.acquire().await, ErrorKind::Unknown);
        until("the withdrawals", || held(&on.server).is_empty()).await;
    }
}

#[tokio::test]
async fn a_server_that_forgot_the_script_is_told_it_again() {
    let on = Proxied::start();
    let locks = warm(&on).await;
    on.server.command::<()>(&["SCRIPT", "FLUSH"]);
    locks.lock_all(keys(3)).run(async {}).await.unwrap();
    assert_eq!(held(&on.server), [""; 0]);
}

#[tokio::test]
async fn a_server_whose_memory_is_used_up_refuses_the_whole_batch() {
    let server = RedisServer::start().unwrap();
    let locks = locks(&server.url(), LONG).await;
    locks.lock_all(["before", "too"]).run(async {}).await.unwrap();
    server.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let result = locks.lock_all(keys(5)).with_wait(Wait::No).acquire().await;
    let error = result.expect_err("there is no room");
    assert!(error.to_string().contains("OOM"), "{error}");
    server.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(held(&server), [""; 0]);
}

#[tokio::test]
async fn data_under_one_of_the_keys_is_an_error_and_the_others_are_not_taken() {
    let server = RedisServer::start().unwrap();
    let locks = locks(&server.url(), LONG).await;
    server.command::<()>(&["SET", "dlock:account_2", "data"]);
    let error = error_of(locks.lock_all(keys(5)).acquire().await, ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("data"), "{error}");
    assert_eq!(held(&server), ["account_2"]);
    assert_eq!(server.command::<String>(&["GET", "dlock:account_2"]), "data");
}

#[tokio::test]
async fn a_batch_that_too_few_replicas_know_of_is_given_back() {
    let pair = RedisPair::start().unwrap();
    let redis = Redis::builder(&pair.url())
        .with_min_replicas(1)
        .with_replica_timeout(Duration::from_secs(2))
        .connect()
        .await
        .unwrap();
    let locks = Locks::builder(redis).with_lease(LONG).with_wait(Wait::No).build().unwrap();
    locks.lock_all(keys(3)).run(async {}).await.unwrap();
    pair.black_hole_the_replication();
    let error = error_of(locks.lock_all(keys(3)).acquire().await, ErrorKind::Unavailable);
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    until("the withdrawal", || held(pair.master()).is_empty()).await;
}

#[tokio::test]
async fn on_a_cluster_locks_of_many_slots_are_taken_one_by_one_and_those_of_one_together() {
    let cluster = RedisCluster::start().unwrap();
    let ours = locks(&cluster.url(), LONG).await;
    let guard = soon("the batch", ours.lock_all(keys(20)).acquire()).await.unwrap();
    assert_eq!(guard.fences().filter_map(|(_, fence)| fence).count(), 20);
    guard.release().await.unwrap();
    let redis = Redis::builder(&cluster.url()).with_prefix("{accounts}:").connect().await.unwrap();
    let together = over(redis, LONG);
    let sent = || {
        cluster.nodes().iter().filter_map(|node| node.command_calls().get("evalsha").copied()).sum::<u64>()
    };
    together.lock_all(keys(20)).run(async {}).await.unwrap();
    let before = sent();
    let guard = together.lock_all(keys(20)).acquire().await.unwrap();
    assert_eq!(sent() - before, 1);
    guard.release().await.unwrap();
}
