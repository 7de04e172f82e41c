//! An earlier form of what is said to the server, beside this one's. `formats/plain.lua` is the script of dlock before
//! read locks, permits and fences of sections; whoever changes what is stored sees here whom it keeps out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dlock_core::{Locks, Token};
use dlock_redis::Redis;
use dlock_rig::servers::redis::RedisServer;
use redis::{Cmd, Value};

const EARLIER: &str = include_str!("formats/plain.lua");
const COUNTER: &str = "dlock:fence:{0}";
const LEASE_MS: u64 = 2_000;
/// How many sections each side has to have.
const SECTIONS: u64 = 100;

/// What both sides enter.
#[derive(Default)]
struct Section {
    inside: AtomicU64,
    /// The fence of the last one that was inside.
    last: AtomicU64,
    ends: AtomicBool,
}

impl Section {
    async fn enter(&self, fence: u64) {
        assert_eq!(self.inside.fetch_add(1, Ordering::SeqCst), 0, "two hold it");
        let last = self.last.swap(fence, Ordering::SeqCst);
        assert!(last < fence, "{fence} after {last}");
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

fn script(keys: &[&str], arguments: &[&str]) -> Cmd {
    let mut cmd = redis::cmd("EVAL");
    cmd.arg(EARLIER).arg(keys.len()).arg(keys).arg(arguments);
    cmd
}

/// Takes, renews and releases as the earlier version did. It asks by itself, and half of the time wants to be told.
async fn earlier(client: redis::Client, number: u64, section: Arc<Section>, done: Arc<AtomicU64>) {
    let mut on = client.get_multiplexed_async_connection().await.unwrap();
    let token = |round: u64| format!("{number:016x}{round:016x}");
    for round in 0.. {
        if section.ends.load(Ordering::SeqCst) {
            return;
        }
        let (token, lease, who) = (token(round), LEASE_MS.to_string(), "0 host=earlier pid=1");
        let take = match round % 2 {
            0 => script(&["dlock:k", COUNTER], &[&lease, &token, who]),
            _ => script(&["dlock:k", COUNTER], &["0", "0", "0", "1", &lease, "1", &token, who]),
        };
        let Value::Int(fence) = take.query_async(&mut on).await.unwrap() else {
            tokio::time::sleep(Duration::from_millis(1)).await;
            continue;
        };
        section.enter(u64::try_from(fence).unwrap()).await;
        let renew = script(&["dlock:k"], &["0", "1", "0", "0", &lease, "", &token]);
        assert_eq!(renew.query_async::<Value>(&mut on).await.unwrap(), Value::Int(0), "it is still its own");
        let release = script(&["dlock:k"], &[&token]);
        assert_eq!(release.query_async::<Value>(&mut on).await.unwrap(), Value::Int(0), "it was its own");
        done.fetch_add(1, Ordering::SeqCst);
        // Whoever asks at once would leave nobody else a chance.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn todays(locks: Locks, section: Arc<Section>, done: Arc<AtomicU64>) {
    while !section.ends.load(Ordering::SeqCst) {
        let guard = locks.lock("k").with_wait(Duration::from_secs(30)).acquire().await.unwrap();
        section.enter(guard.fence().unwrap().get()).await;
        guard.check().unwrap();
        guard.release().await.unwrap();
        done.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_earlier_version_and_this_one_exclude_each_other_with_fences_that_grow() {
    let server = RedisServer::start().unwrap();
    let (section, old, new) = (Arc::new(Section::default()), Arc::default(), Arc::default());
    let client = redis::Client::open(server.url()).unwrap();
    let mut tasks = Vec::new();
    for number in 0..3 {
        tasks.push(tokio::spawn(earlier(client.clone(), number, Arc::clone(&section), Arc::clone(&old))));
        let locks = Locks::new(Redis::connect(&server.url()).await.unwrap());
        tasks.push(tokio::spawn(todays(locks, Arc::clone(&section), Arc::clone(&new))));
    }
    let both = || old.load(Ordering::SeqCst).min(new.load(Ordering::SeqCst));
    while both() < SECTIONS && !tasks.iter().any(tokio::task::JoinHandle::is_finished) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    section.ends.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(server.command::<u64>(&["EXISTS", "dlock:k"]), 0, "something was left");
}

/// What one stores, the other knows as a lock of somebody, and takes away by force.
#[tokio::test]
async fn what_an_earlier_version_stores_is_shown_and_released_by_force_and_the_other_way_round() {
    let server = RedisServer::start().unwrap();
    let locks = Locks::new(Redis::connect(&server.url()).await.unwrap());
    let mut on = redis::Client::open(server.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let token =
        Token::random().unwrap().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let take = || script(&["dlock:k", COUNTER], &["60000", &token, "0 host=earlier pid=7"]);
    let taken: Value = take().query_async(&mut on).await.unwrap();
    let holder = locks.inspect("k").await.unwrap().expect("it is held");
    assert_eq!((holder.host.as_deref(), holder.pid), (Some("earlier"), Some(7)));
    assert_eq!(Value::Int(i64::try_from(holder.fence.unwrap().get()).unwrap()), taken);
    assert!(locks.force_release("k").await.unwrap());
    let guard = locks.lock("k").acquire().await.unwrap();
    assert!(guard.fence() > holder.fence);
    let refused: Value = take().query_async(&mut on).await.unwrap();
    assert!(matches!(refused, Value::Array(_)), "{refused:?}");
    guard.check().unwrap();
    guard.release().await.unwrap();
}
