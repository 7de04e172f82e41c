//! Releases that others publish on sharded channels, and those that they listen for there.

use std::time::{Duration, Instant};

use dlock_core::{Guard, Locks};
use dlock_redis::Redis;
use dlock_rig::servers::redis::{RedisCluster, RedisOptions, RedisServer, is_at_least_7};
use tokio::task::JoinHandle;

use crate::support::{LONG, over, soon, until};

const CHANNEL: &str = "redisson_lock__channel:{room}";

/// Who is not told asks again after three quarters of a second.
const TOLD: Duration = Duration::from_millis(600);

/// How many rounds a busy machine has to show one in which the waiter was notified.
const ROUNDS: usize = 30;

async fn shared(cluster: &RedisCluster) -> Locks {
    over(Redis::builder(&cluster.url()).with_prefix("").connect().await.unwrap(), LONG)
}

fn wait_for(locks: &Locks) -> JoinHandle<dlock_core::Result<Guard>> {
    let lock = locks.lock("room").with_wait(LONG);
    tokio::spawn(async move { lock.acquire().await })
}

/// Takes the lock as Redisson does.
fn hold(cluster: &RedisCluster) {
    cluster.command_at::<u32>("room", &["HSET", "room", "0a1b2c3d-0000-4000-8000-00000000000a:17", "1"]);
}

/// Releases it, and says so only where Redisson does so by default; in one step, as Redisson does, so that nobody can
/// have the lock before.
fn release(cluster: &RedisCluster) {
    let script = "redis.call('DEL', KEYS[1]) return redis.call('SPUBLISH', ARGV[1], '0')";
    let told = cluster.command_at::<u32>("room", &["EVAL", script, "1", "room", CHANNEL]);
    assert_eq!(told, 1, "who waits listens here");
}

fn sharded_listeners(node: &RedisServer) -> usize {
    node.command::<(String, usize)>(&["PUBSUB", "SHARDNUMSUB", CHANNEL]).1
}

/// The connections that listen to sharded channels.
fn listening_clients(node: &RedisServer) -> Vec<String> {
    let clients: String = node.command(&["CLIENT", "LIST", "TYPE", "pubsub"]);
    let sharded = clients.lines().filter(|client| !client.contains(" ssub=0 "));
    sharded.filter_map(|client| client.split(' ').next().map(str::to_owned)).collect()
}

async fn until_heard(cluster: &RedisCluster, what: &str) {
    let heard = || cluster.nodes().iter().any(|node| sharded_listeners(node) == 1);
    until(what, heard).await;
}

#[tokio::test]
async fn a_release_is_published_on_the_sharded_channel_and_on_the_other() {
    let cluster = RedisCluster::start().unwrap();
    let locks = shared(&cluster).await;
    let url = format!("{}?protocol=resp3", cluster.nodes()[cluster.master_of("room")].url());
    let (said, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let config = redis::AsyncConnectionConfig::new().set_push_sender(said);
    let client = redis::Client::open(url).unwrap();
    let mut listening = client.get_multiplexed_async_connection_with_config(&config).await.unwrap();
    for subscribe in ["SSUBSCRIBE", "SUBSCRIBE"] {
        let mut subscribe = redis::cmd(subscribe);
        listening.send_packed_command(subscribe.arg(CHANNEL)).await.unwrap();
    }
    locks.lock("room").acquire().await.unwrap().release().await.unwrap();
    let mut kinds = Vec::new();
    while kinds.len() < 2 {
        let push = soon("a message", heard.recv()).await.unwrap();
        if matches!(push.kind, redis::PushKind::Message | redis::PushKind::SMessage) {
            kinds.push(push.kind);
        }
    }
    assert_eq!(kinds, [redis::PushKind::SMessage, redis::PushKind::Message]);
}

#[tokio::test]
async fn a_waiter_listens_at_the_new_server_when_the_slot_has_moved() {
    let cluster = RedisCluster::start().unwrap();
    let locks = shared(&cluster).await;
    hold(&cluster);
    let waiter = wait_for(&locks);
    until_heard(&cluster, "the waiter to listen").await;
    let to = (cluster.master_of("room") + 1) % 3;
    let migration = cluster.begin_migration("room", to);
    cluster.finish_migration(migration);
    until("the waiter to listen there", || sharded_listeners(&cluster.nodes()[to]) == 1).await;
    release(&cluster);
    soon("the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
}

/// What a cluster before Redis 7 is, which such a server is by itself.
fn without_sharded_channels() -> RedisCluster {
    let renamed = RedisOptions::default()
        .argument("rename-command", "SSUBSCRIBE no-ssubscribe")
        .argument("rename-command", "SPUBLISH no-spublish");
    RedisCluster::start_with(if is_at_least_7() { renamed } else { RedisOptions::default() }).unwrap()
}

#[tokio::test]
async fn a_master_that_dies_does_not_keep_waiters_of_other_slots_from_being_told() {
    let mut cluster = RedisCluster::start().unwrap();
    let locks = shared(&cluster).await;
    let home = cluster.master_of("room");
    let dead = (home + 1) % 3;
    // Somebody waits at the server that is to die.
    let elsewhere = (0..).map(|n| format!("other_{n}")).find(|key| cluster.master_of(key) == dead).unwrap();
    let other = locks.lock(&elsewhere).acquire().await.unwrap();
    let lock = locks.lock(&elsewhere).with_wait(LONG);
    let stuck = tokio::spawn(async move { lock.acquire().await });
    hold(&cluster);
    let waiter = wait_for(&locks);
    until_heard(&cluster, "the waiter to listen").await;
    until("the other waiter to listen", || listening_clients(&cluster.nodes()[dead]).len() == 1).await;
    let before = listening_clients(&cluster.nodes()[home]);
    cluster.node_mut(dead).kill();
    let again = |now: Vec<String>| now.len() == 1 && now != before;
    until("the waiter to listen again", || again(listening_clients(&cluster.nodes()[home]))).await;
    release(&cluster);
    soon("the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
    stuck.abort();
    drop(other);
}

/// Bound real time from above. The gate leaves them out.
mod in_time {
    use super::*;

    #[tokio::test]
    async fn a_waiter_is_woken_by_a_release_that_is_published_on_a_sharded_channel_only() {
        let cluster = RedisCluster::start().unwrap();
        let locks = shared(&cluster).await;
        let mut waits = Vec::new();
        while waits.len() < ROUNDS && waits.last().is_none_or(|wait| *wait > TOLD) {
            hold(&cluster);
            let started = Instant::now();
            let waiter = wait_for(&locks);
            until_heard(&cluster, "the waiter to listen").await;
            release(&cluster);
            soon("the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
            waits.push(started.elapsed());
        }
        assert!(waits.last().unwrap() <= &TOLD, "{waits:?}");
        let left = || cluster.nodes().iter().all(|node| sharded_listeners(node) == 0);
        until("the channel to be left", left).await;
    }

    /// As Redisson does there, which publishes and listens on common channels only, whatever server it is connected to.
    #[tokio::test]
    async fn a_cluster_without_sharded_channels_passes_locks_on_to_redisson_and_back() {
        let cluster = without_sharded_channels();
        let ours = shared(&cluster).await;
        let elsewhere = (cluster.master_of("room") + 1) % 3;
        let url = format!("{}?protocol=resp3", cluster.nodes()[elsewhere].url());
        let (said, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let config = redis::AsyncConnectionConfig::new().set_push_sender(said);
        let client = redis::Client::open(url).unwrap();
        let mut listening = client.get_multiplexed_async_connection_with_config(&config).await.unwrap();
        listening.send_packed_command(redis::cmd("SUBSCRIBE").arg(CHANNEL)).await.unwrap();
        ours.lock("room").acquire().await.unwrap().release().await.unwrap();
        let mut kind = None;
        while kind != Some(redis::PushKind::Message) {
            kind = Some(soon("a message", heard.recv()).await.unwrap().kind);
        }
        drop(listening);
        let mut waits = Vec::new();
        while waits.len() < ROUNDS && waits.last().is_none_or(|wait| *wait > TOLD) {
            hold(&cluster);
            let started = Instant::now();
            let waiter = wait_for(&ours);
            until("the waiter to listen", || cluster.nodes().iter().any(|node| !node.channels().is_empty()))
                .await;
            cluster.command_at::<()>("room", &["DEL", "room"]);
            cluster.nodes()[elsewhere].command::<()>(&["PUBLISH", CHANNEL, "0"]);
            soon("the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
            waits.push(started.elapsed());
        }
        assert!(waits.last().unwrap() <= &TOLD, "{waits:?}");
    }

    #[tokio::test]
    async fn a_cluster_without_sharded_channels_is_listened_to_all_the_same() {
        let cluster = without_sharded_channels();
        let (ours, theirs) = (shared(&cluster).await, shared(&cluster).await);
        let mut waits = Vec::new();
        while waits.len() < ROUNDS && waits.last().is_none_or(|wait| *wait > TOLD) {
            let guard = ours.lock("room").acquire().await.unwrap();
            let started = Instant::now();
            let waiter = wait_for(&theirs);
            until("the waiter to listen", || cluster.nodes().iter().any(|node| !node.channels().is_empty()))
                .await;
            guard.release().await.unwrap();
            soon("the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
            waits.push(started.elapsed());
        }
        assert!(waits.last().unwrap() <= &TOLD, "{waits:?}");
    }
}
