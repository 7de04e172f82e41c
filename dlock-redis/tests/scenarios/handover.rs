//! A release that takes the lock for the first in line: messages that are lost, late or for nothing, and those they
//! were for.

use std::time::Duration;

use dlock_core::{Guard, Lock, Locks};
use dlock_redis::Redis;
use dlock_rig::proxy::{Direction, Flow};
use dlock_rig::servers::redis::{RedisCluster, RedisServer};
use tokio::task::JoinHandle;

use crate::support::{LONG, Proxied, fence, held, is_counter, locks, over, soon, until};

const ROOM: &str = "dlock:room";

fn fair(locks: &Locks) -> Lock {
    locks.lock("room").with_wait(LONG).with_fairness(true)
}

/// A field of the lock.
fn field(server: &RedisServer, name: &str) -> Option<String> {
    server.command(&["HGET", ROOM, name])
}

/// Who stands in line, the first one first: what is stored of its place.
fn line(server: &RedisServer) -> Vec<String> {
    let fields: Vec<String> = server.command(&["HKEYS", ROOM]);
    let mut places: Vec<u32> =
        fields.iter().filter_map(|field| field.strip_prefix('q')?.parse().ok()).collect();
    places.sort_unstable();
    places.iter().filter_map(|place| field(server, &format!("q{place}"))).collect()
}

/// Begins to wait, and listens in line before this returns.
async fn wait_behind(server: &RedisServer, locks: &Locks) -> JoinHandle<dlock_core::Result<Guard>> {
    let (before, listeners) = (line(server).len(), server.channels().len());
    let lock = fair(locks);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    until("the place in line", || line(server).len() > before && server.channels().len() > listeners).await;
    waiter
}

/// Returns right after the only one in line has asked, so that nothing of it is under way for a while.
async fn asked(server: &RedisServer) {
    let before = line(server);
    until("the next question", || line(server) != before).await;
}

fn cut_off(on: &Proxied, flow: Flow) {
    for direction in [Direction::ToServer, Direction::ToClient] {
        on.proxy.set(direction, flow);
    }
}

#[tokio::test]
async fn the_first_in_line_has_the_lock_by_the_release_alone_and_asks_for_nothing() {
    let (on, near, _far, waiter, last) = loop {
        let on = Proxied::start();
        let (near, far) = (locks(&on.server.url(), LONG).await, on.locks(LONG).await);
        let first = fair(&near).acquire().await.unwrap();
        let waiter = wait_behind(&on.server, &far).await;
        let began = std::time::Instant::now();
        asked(&on.server).await;
        // Whatever it sends from here on does not arrive.
        on.proxy.set(Direction::ToServer, Flow::Hold);
        let last = fence(&first);
        first.release().await.unwrap();
        // The place of a waiter that is not heard of lasts for 2 s; a busy machine begins anew.
        if began.elapsed() < Duration::from_millis(1_800) {
            break (on, near, far, waiter, last);
        }
        waiter.abort();
    };
    let guard = soon("the lock", waiter).await.unwrap().unwrap();
    guard.check().unwrap();
    assert!(fence(&guard) > last);
    assert_eq!(near.inspect("room").await.unwrap().unwrap().fence, guard.fence(), "the server says the same");
    let expires = near.inspect("room").await.unwrap().unwrap().expires_in.unwrap();
    assert!(expires < Duration::from_secs(3), "it was not heard of since: {expires:?}");
    on.proxy.mend();
    // It is renewed for its whole lease soon.
    until("the renewal", || on.server.command::<i64>(&["PTTL", ROOM]) > 20_000).await;
    guard.check().unwrap();
    guard.release().await.unwrap();
    assert_eq!(held(&on.server), [""; 0]);
}

#[tokio::test]
async fn one_whose_message_was_lost_finds_the_lock_its_own_when_it_asks_next() {
    let on = Proxied::start();
    let (near, far) = (locks(&on.server.url(), LONG).await, on.locks(LONG).await);
    let first = fair(&near).acquire().await.unwrap();
    let waiter = wait_behind(&on.server, &far).await;
    let behind = wait_behind(&on.server, &near).await;
    asked(&on.server).await;
    on.proxy.set(Direction::ToClient, Flow::Drop);
    first.release().await.unwrap();
    let given = near.inspect("room").await.unwrap().unwrap().fence;
    assert!(given.is_some(), "somebody has it");
    on.proxy.set(Direction::ToClient, Flow::Pass);
    let guard = soon("the lock", waiter).await.unwrap().unwrap();
    assert_eq!(guard.fence(), given, "it is that grant");
    assert!(!behind.is_finished());
    guard.release().await.unwrap();
    soon("its turn", behind).await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(held(&on.server), [""; 0]);
}

#[tokio::test]
async fn a_message_that_comes_after_the_place_was_lost_grants_nothing() {
    let on = Proxied::start();
    let (near, paused) = (locks(&on.server.url(), LONG).await, on.locks(LONG).await);
    let first = fair(&near).acquire().await.unwrap();
    let waiter = wait_behind(&on.server, &paused).await;
    asked(&on.server).await;
    cut_off(&on, Flow::Hold);
    let next = wait_behind(&on.server, &near).await;
    first.release().await.unwrap();
    // It was given the lock, and did not come for it.
    let second = soon("the turn of the next", next).await.unwrap().unwrap();
    on.proxy.mend();
    until("its new place", || line(&on.server).len() == 1).await;
    assert!(!waiter.is_finished(), "another one has it");
    second.check().unwrap();
    let last = fence(&second);
    second.release().await.unwrap();
    let guard = soon("its turn", waiter).await.unwrap().unwrap();
    assert!(fence(&guard) > last);
    guard.release().await.unwrap();
    until("the clean-up", || held(&on.server).is_empty()).await;
}

#[tokio::test]
async fn one_that_is_cancelled_after_it_was_given_the_lock_passes_it_on() {
    let on = Proxied::start();
    let (near, far) = (locks(&on.server.url(), LONG).await, on.locks(LONG).await);
    let first = fair(&near).acquire().await.unwrap();
    let waiter = wait_behind(&on.server, &far).await;
    asked(&on.server).await;
    let next = wait_behind(&on.server, &near).await;
    on.proxy.set(Direction::ToClient, Flow::Hold);
    first.release().await.unwrap();
    assert_eq!(line(&on.server).len(), 1, "the first has left the line with the lock");
    waiter.abort();
    let _ = waiter.await;
    let guard = soon("its turn", next).await.unwrap().unwrap();
    on.proxy.mend();
    guard.check().unwrap();
    guard.release().await.unwrap();
    until("the clean-up", || far.stats().background == 0 && held(&on.server).is_empty()).await;
}

#[tokio::test]
async fn a_message_that_is_repeated_or_made_up_grants_nothing() {
    let server = RedisServer::start().unwrap();
    let (ours, theirs) = (locks(&server.url(), LONG).await, locks(&server.url(), LONG).await);
    let first = fair(&ours).acquire().await.unwrap();
    let waiter = wait_behind(&server, &theirs).await;
    let channel = server.channels().into_iter().find(|channel| channel.starts_with("dlock:room#")).unwrap();
    for text in ["", "1 2", "nonsense", "18446744073709551615 7", &"9".repeat(500)] {
        for _ in 0..20 {
            server.command::<u32>(&["PUBLISH", &channel, text]);
        }
    }
    assert!(ours.lock("room").try_acquire().await.unwrap().is_none());
    assert!(!waiter.is_finished());
    first.check().unwrap();
    first.release().await.unwrap();
    soon("its turn", waiter).await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(held(&server), [""; 0]);
}

/// As versions before this one stand in line: without a mark.
#[tokio::test]
async fn one_of_an_earlier_version_is_told_of_its_turn_and_given_nothing() {
    let server = RedisServer::start().unwrap();
    let locks = locks(&server.url(), LONG).await;
    let first = fair(&locks).acquire().await.unwrap();
    let (token, place) = ("a".repeat(32), format!("?{}", "a".repeat(32)));
    let now: Vec<u64> = server.command(&["TIME"]);
    let alive = format!("{token} {}", now[0] * 1_000 + 5_000);
    server.command::<u32>(&["HSET", ROOM, "f", "1", "q1", &alive, &place, "1"]);
    let waiter = wait_behind(&server, &locks).await;
    let published = || server.command_calls().get("publish").copied().unwrap_or_default();
    let before = published();
    first.release().await.unwrap();
    assert_eq!(published(), before + 1);
    assert_eq!(field(&server, "n").as_deref(), Some("0"), "nobody has it");
    assert!(fair(&locks).try_acquire().await.unwrap().is_none(), "it is the first one's turn");
    // It does not come.
    soon("the next turn", waiter).await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(held(&server), [""; 0]);
}

#[tokio::test]
async fn a_server_that_is_full_passes_the_lock_on_all_the_same() {
    let server = RedisServer::start().unwrap();
    let locks = locks(&server.url(), LONG).await;
    let first = fair(&locks).acquire().await.unwrap();
    let waiter = wait_behind(&server, &locks).await;
    server.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    first.release().await.unwrap();
    let guard = soon("its turn", waiter).await.unwrap().unwrap();
    server.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    guard.release().await.unwrap();
    assert_eq!(held(&server), [""; 0]);
}

#[tokio::test]
async fn a_counter_that_is_of_no_use_keeps_nobody_from_releasing() {
    let server = RedisServer::start().unwrap();
    let locks = locks(&server.url(), LONG).await;
    let first = fair(&locks).acquire().await.unwrap();
    let waiter = wait_behind(&server, &locks).await;
    let counter = server.keys().into_iter().find(|key| is_counter(key)).unwrap();
    server.command::<()>(&["SET", &counter, "nonsense"]);
    first.release().await.unwrap();
    soon("the refusal", waiter).await.unwrap().unwrap_err();
    server.command::<u32>(&["DEL", &counter]);
    until("the end of its turn", || held(&server).is_empty()).await;
}

#[tokio::test]
async fn a_fair_lock_is_released_while_the_move_of_its_slot_stalls() {
    let cluster = RedisCluster::start().unwrap();
    let locks = over(Redis::builder(&cluster.url()).connect().await.unwrap(), LONG);
    let guard = fair(&locks).acquire().await.unwrap();
    // The lock is on the one server, and the counter on the other one.
    let migration = cluster.begin_migration(ROOM, (cluster.master_of(ROOM) + 1) % 3);
    let counter = cluster.keys().into_iter().find(|key| is_counter(key)).unwrap();
    cluster.command_at::<u32>(&counter, &["DEL", &counter]);
    guard.release().await.unwrap();
    let left: Vec<String> = cluster.keys().into_iter().filter(|key| !is_counter(key)).collect();
    assert_eq!(left, [""; 0]);
    cluster.finish_migration(migration);
}
