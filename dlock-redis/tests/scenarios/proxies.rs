//! Servers that stand for proxies and managed services: without HELLO, and without SUBSCRIBE.

use dlock_core::{Guard, Locks};
use dlock_rig::servers::redis::{RedisCluster, RedisOptions, RedisServer};
use tokio::task::{JoinHandle, JoinSet};

use crate::support::{LONG, SHORT, held, locks, soon, until};

fn without(commands: &[&str]) -> RedisOptions {
    let rename = |options: RedisOptions, command: &&str| {
        options.argument("rename-command", &format!("{command} no-{command}"))
    };
    commands.iter().fold(RedisOptions::default(), rename)
}

fn wait_for(locks: &Locks) -> JoinHandle<dlock_core::Result<Guard>> {
    let lock = locks.lock("room").with_wait(LONG);
    tokio::spawn(async move { lock.acquire().await })
}

/// Two clients hand a lock over, each of which listens.
async fn handoff(url: &str, heard: impl Fn() -> bool + Send + Sync) {
    let (ours, theirs) = (locks(url, LONG).await, locks(url, LONG).await);
    for _ in 0..5 {
        let guard = ours.lock("room").acquire().await.unwrap();
        let waiter = wait_for(&theirs);
        until("the waiter to listen", &heard).await;
        guard.release().await.unwrap();
        soon("the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
    }
    until("the channel to be left", || !heard()).await;
}

#[tokio::test]
async fn a_server_without_hello_is_spoken_to_in_resp2() {
    let server = without(&["hello"]).password("hunter2").start().unwrap();
    handoff(&format!("{}/3", server.url()), || !server.channels().is_empty()).await;
    let clients: String = server.command(&["CLIENT", "LIST"]);
    assert!(clients.contains("resp=2") && !clients.contains("resp=3"), "{clients}");
}

#[tokio::test]
async fn a_user_without_the_right_to_hello_is_let_in() {
    let server = RedisServer::options().user("old", "pw", &["~*", "+@all", "-hello", "&*"]).start().unwrap();
    handoff(&server.url_as("old", "pw"), || !server.channels().is_empty()).await;
}

#[tokio::test]
async fn a_cluster_without_hello_is_spoken_to_in_resp2() {
    let cluster = RedisCluster::start_with(without(&["hello"])).unwrap();
    let heard = || cluster.nodes().iter().any(|node| !node.channels().is_empty());
    handoff(&cluster.url(), heard).await;
    handoff(&format!("{}?prefix=", cluster.url()), heard).await;
}

#[tokio::test]
async fn waiters_of_a_server_without_subscribe_ask_for_the_lock() {
    let server = without(&["hello", "subscribe"]).start().unwrap();
    let (ours, theirs) = (locks(&server.url(), LONG).await, locks(&server.url(), LONG).await);
    let guard = ours.lock("room").acquire().await.unwrap();
    let waiter = wait_for(&theirs);
    let attempts = || server.command_calls().get("evalsha").copied().unwrap_or(0);
    let before = attempts();
    until("the waiter to ask more than once", || attempts() > before + 2).await;
    guard.release().await.unwrap();
    soon("the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn connections_of_resp2_that_are_cut_are_opened_again() {
    let server = without(&["hello"]).start().unwrap();
    let (ours, theirs) = (locks(&server.url(), SHORT).await, locks(&server.url(), LONG).await);
    let guard = ours.lock("room").acquire().await.unwrap();
    let waiter = wait_for(&theirs);
    for kind in ["normal", "pubsub", "normal"] {
        until("the waiter to listen", || !server.channels().is_empty()).await;
        let renewals = ours.stats().renewals;
        assert!(server.command::<u32>(&["CLIENT", "KILL", "TYPE", kind]) > 0);
        until("a renewal", || ours.stats().renewals > renewals + 1).await;
        guard.check().unwrap();
    }
    guard.release().await.unwrap();
    soon("the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(held(&server), [""; 0]);
}

#[tokio::test]
async fn one_address_before_a_cluster_is_asked_for_one_slot_at_a_time() {
    let server = RedisServer::options().argument("cluster-enabled", "yes").start().unwrap();
    server.command::<()>(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    until("the cluster", || server.command::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:ok"))
        .await;
    for prefix in ["dlock:", ""] {
        let url = format!("{}?prefix={prefix}", server.url());
        let refused = unconnected(&url).lock("room").acquire().await.unwrap_err();
        assert_eq!(refused.kind(), dlock_core::ErrorKind::InvalidConfig, "{refused}");
        let url = format!("{url}&hash_slots=true");
        let (ours, theirs) = (locks(&url, LONG).await, locks(&url, LONG).await);
        let mut takers = JoinSet::new();
        for number in 0..20 {
            let lock = ours.lock(format!("{number}"));
            takers.spawn(async move { lock.acquire().await.unwrap() });
        }
        let guards = soon("the locks", takers.join_all()).await;
        assert!(theirs.lock("7").try_acquire().await.unwrap().is_none());
        drop(guards);
        let all = soon("the locks", theirs.lock_all(["7", "8", "9"]).acquire()).await.unwrap();
        all.release().await.unwrap();
    }
}

/// Without asking the server first.
fn unconnected(url: &str) -> Locks {
    crate::support::over(dlock_redis::Redis::builder(url).build().unwrap(), LONG)
}

#[tokio::test]
async fn a_wrong_password_is_refused_as_such_without_hello_too() {
    let server = without(&["hello"]).password("hunter2").start().unwrap();
    let url = server.url().replace("hunter2", "wrong");
    let error = dlock_redis::Redis::connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), dlock_core::ErrorKind::Denied, "{error}");
    let url = format!("{}/99", server.url());
    let error = dlock_redis::Redis::connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), dlock_core::ErrorKind::InvalidConfig, "{error}");
}
