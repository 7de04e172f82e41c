//! Locks that somebody deletes or changes while they are held, which the server tells.

use std::time::Duration;

use dlock_core::{Guard, Locks};
use dlock_redis::{Redis, RedisBuilder};
use dlock_rig::proxy::{Direction, Flow};
use dlock_rig::servers::redis::{RedisCluster, RedisServer};

use crate::support::{Proxied, SHORT, over, soon, until};

/// A lease whose renewals no test sees.
const ENDLESS: Duration = Duration::from_secs(600);

async fn locks(builder: RedisBuilder) -> Locks {
    over(builder.connect().await.unwrap(), ENDLESS)
}

async fn take(locks: &Locks, keys: &[&str]) -> Vec<Guard> {
    let mut guards = Vec::new();
    for key in keys {
        guards.push(locks.lock(*key).acquire().await.unwrap());
    }
    guards
}

fn tracked(server: &RedisServer) -> usize {
    server.info("tracking_total_keys").parse().unwrap()
}

async fn until_tracked(server: &RedisServer, count: usize) {
    until("the locks to be tracked", || tracked(server) == count).await;
}

#[tokio::test]
async fn a_holder_knows_at_once_that_somebody_deleted_or_replaced_its_lock() {
    for prefix in ["dlock:", ""] {
        let server = RedisServer::start().unwrap();
        let locks = locks(Redis::builder(&server.url()).with_prefix(prefix)).await;
        let keys = ["deleted", "expired", "replaced", "forced", "flushed", "flushed_too"];
        let guards = take(&locks, &keys).await;
        until_tracked(&server, keys.len()).await;
        let name = |key: &str| format!("{prefix}{key}");
        server.command::<u32>(&["DEL", &name("deleted")]);
        soon("the first loss", guards[0].lost()).await;
        server.command::<u32>(&["EXPIREAT", &name("expired"), "1"]);
        soon("the second loss", guards[1].lost()).await;
        server.command::<()>(&["SET", &name("replaced"), "somebody's data"]);
        soon("the third loss", guards[2].lost()).await;
        let other = over(Redis::builder(&server.url()).with_prefix(prefix).connect().await.unwrap(), ENDLESS);
        other.force_release("forced").await.unwrap();
        soon("the fourth loss", guards[3].lost()).await;
        for guard in &guards[4..] {
            guard.check().unwrap();
        }
        server.command::<()>(&["FLUSHALL"]);
        for guard in &guards[4..] {
            soon("the loss of all", guard.lost()).await;
        }
    }
}

#[tokio::test]
async fn a_change_that_leaves_the_lock_to_its_holder_is_looked_at_and_is_no_loss() {
    let server = RedisServer::start().unwrap();
    let locks = locks(Redis::builder(&server.url())).await;
    let guards = take(&locks, &["room"]).await;
    until_tracked(&server, 1).await;
    // As somebody does who begins to wait.
    server.command::<u32>(&["APPEND", "dlock:room", " !"]);
    until("the look", || locks.stats().renewals == 2).await;
    guards[0].check().unwrap();
    until_tracked(&server, 1).await;
    server.command::<u32>(&["DEL", "dlock:room"]);
    soon("the loss", guards[0].lost()).await;
}

#[tokio::test]
async fn renewals_of_a_tracked_lock_are_one_request_each_and_nothing_is_told_of_them() {
    for prefix in ["dlock:", ""] {
        let on = Proxied::start();
        let redis = Redis::builder(&on.url()).with_prefix(prefix).connect().await.unwrap();
        let locks = over(redis, SHORT);
        let _guard = locks.lock("room").acquire().await.unwrap();
        until_tracked(&on.server, 1).await;
        let renewals = || locks.stats().renewals;
        let (before, requests) = (renewals(), on.proxy.requests());
        until("eight renewals", || renewals() >= before + 8).await;
        let (now, carried) = (on.proxy.requests(), renewals() - before);
        let sent: u64 = now.values().sum::<u64>() - requests.values().sum::<u64>();
        // One may be under way at the begin, and one at the end.
        assert!((carried - 1..=carried + 1).contains(&sent), "{now:?} for {carried} renewals");
    }
}

#[tokio::test]
async fn a_lock_that_is_released_soon_is_not_tracked_and_one_that_is_released_is_so_no_more() {
    let server = RedisServer::start().unwrap();
    let locks = locks(Redis::builder(&server.url())).await;
    for _ in 0..100 {
        locks.lock("short").acquire().await.unwrap().release().await.unwrap();
    }
    assert_eq!(server.info("tracking_clients"), "0");
    let mut guards = take(&locks, &["long"]).await;
    until("its first renewal", || locks.stats().renewals == 1).await;
    assert_eq!(tracked(&server), 1);
    guards.pop().unwrap().release().await.unwrap();
    assert_eq!(tracked(&server), 0);
}

#[tokio::test]
async fn no_more_locks_are_tracked_than_were_asked_for() {
    let on = Proxied::start();
    let some = locks(Redis::builder(&on.url()).with_tracking(4)).await;
    let none = over(Redis::connect(&format!("{}?tracking=0", on.server.url())).await.unwrap(), SHORT);
    let _untracked = take(&none, &["a", "b"]).await;
    until("renewals", || none.stats().renewals >= 6).await;
    assert_eq!(on.server.info("tracking_clients"), "0");
    let mut guards = take(&some, &["c"]).await;
    until_tracked(&on.server, 1).await;
    guards.extend(take(&some, &["d", "e", "f", "g", "h"]).await);
    // The first of their renewals goes alone, the second in a call of its own; while they are under way, the others, of
    // which one has a place, are collected for the next one.
    on.proxy.set(Direction::ToClient, Flow::Delay(Duration::from_millis(300)));
    until("the first renewals, also of what has no place", || some.stats().renewals >= 6).await;
    assert_eq!(tracked(&on.server), 4);
    on.proxy.mend();
    // A place that became free is another lock's.
    for guard in guards {
        guard.release().await.unwrap();
    }
    let _guards = take(&some, &["i", "j"]).await;
    until_tracked(&on.server, 2).await;
}

#[tokio::test]
async fn locks_are_tracked_again_after_their_connection_was_cut() {
    let server = RedisServer::start().unwrap();
    let locks = locks(Redis::builder(&server.url())).await;
    let guards = take(&locks, &["room"]).await;
    for _ in 0..3 {
        until_tracked(&server, 1).await;
        server.command::<u32>(&["CLIENT", "KILL", "TYPE", "normal"]);
    }
    until_tracked(&server, 1).await;
    guards[0].check().unwrap();
    server.command::<u32>(&["DEL", "dlock:room"]);
    soon("the loss", guards[0].lost()).await;
}

#[tokio::test]
async fn a_lock_that_was_deleted_while_nothing_could_be_told_is_looked_at_over_the_next_connection() {
    let on = Proxied::start();
    let locks = over(Redis::connect(&on.url()).await.unwrap(), ENDLESS);
    let guards = take(&locks, &["room"]).await;
    until_tracked(&on.server, 1).await;
    on.proxy.black_hole();
    on.server.command::<u32>(&["DEL", "dlock:room"]);
    on.proxy.cut();
    on.proxy.mend();
    soon("the loss", guards[0].lost()).await;
}

#[tokio::test]
async fn who_may_not_ask_to_be_told_keeps_locks_as_before() {
    let rights = "~dlock:* &dlock:* +evalsha +eval +get +getrange +pttl +incrby +time +set +append +pexpire +del \
                  +publish +subscribe +unsubscribe +ping";
    let rights: Vec<&str> = rights.split(' ').collect();
    let server = RedisServer::options().user("locks", "pw", &rights).start().unwrap();
    let locks = over(Redis::connect(&server.url_as("locks", "pw")).await.unwrap(), SHORT);
    let guards = take(&locks, &["room"]).await;
    until("renewals", || locks.stats().renewals >= 6).await;
    guards[0].check().unwrap();
    assert_eq!(server.info("tracking_clients"), "0");
    let asked = |what: &str| server.command_calls().get(what).copied().unwrap_or(0);
    assert_eq!(asked("client|tracking"), 0);
    server.command::<u32>(&["DEL", "dlock:room"]);
    soon("the loss at the next renewal", guards[0].lost()).await;
}

#[tokio::test]
async fn each_server_of_a_cluster_tells_of_its_locks_also_of_those_that_have_moved() {
    let cluster = RedisCluster::start().unwrap();
    let locks = locks(Redis::builder(&cluster.url())).await;
    let home = |node: usize| {
        let of_node = |key: &String| cluster.master_of(&format!("dlock:{key}")) == node;
        (0..).map(|n| format!("room_{n}")).find(of_node).unwrap()
    };
    let keys: Vec<String> = (0..3).map(home).collect();
    let guards = take(&locks, &keys.iter().map(|key| &**key).collect::<Vec<_>>()).await;
    for node in &cluster.nodes()[..3] {
        until_tracked(node, 1).await;
    }
    let migration = cluster.begin_migration(&format!("dlock:{}", keys[0]), 1);
    cluster.finish_migration(migration);
    until_tracked(&cluster.nodes()[1], 2).await;
    for (key, guard) in keys.iter().zip(&guards) {
        guard.check().unwrap();
        let name = format!("dlock:{key}");
        cluster.command_at::<u32>(&name, &["DEL", &name]);
        soon("the loss", guard.lost()).await;
    }
}

/// Who holds a key in a way in which others change it too.
async fn take_in_every_mode(locks: &Locks, format: &str) -> Vec<(&'static str, Guard)> {
    let mut taken = Vec::new();
    if format.contains("read-write-lock") {
        taken.push(("write", locks.lock("write").acquire().await.unwrap()));
    } else {
        taken.push(("fair", locks.lock("fair").with_fairness(true).acquire().await.unwrap()));
    }
    if format != "?prefix=" {
        taken.push(("read", locks.lock("read").read().acquire().await.unwrap()));
        let mut turned = locks.lock("turned").acquire().await.unwrap();
        turned.downgrade().await.unwrap();
        taken.push(("turned", turned));
    }
    taken.push(("permits", locks.semaphore("permits", 5).take(2).acquire().await.unwrap()));
    taken
}

#[tokio::test]
async fn a_holder_in_any_mode_knows_at_once_that_somebody_deleted_its_lock() {
    for format in ["", "?prefix=", "?prefix=&recipe=read-write-lock"] {
        let server = RedisServer::start().unwrap();
        let redis = async || Redis::connect(&format!("{}{format}", server.url())).await.unwrap();
        let (ours, theirs) = (over(redis().await, ENDLESS), over(redis().await, ENDLESS));
        let taken = take_in_every_mode(&ours, format).await;
        // Others come and go meanwhile, and one stays.
        let other = theirs.semaphore("permits", 5).acquire().await.unwrap();
        let calls = || server.command_calls().get("eval").copied().unwrap_or(0);
        let before = calls();
        let looks = taken.len() as u64 + 1;
        until("the looks", || calls() >= before + looks).await;
        for (key, guard) in &taken {
            guard.check().unwrap_or_else(|error| panic!("{format} {key}: {error}"));
            let name = if format.is_empty() { format!("dlock:{key}") } else { (*key).to_owned() };
            let name = if name == "permits" { "{permits}:timeout".to_owned() } else { name };
            assert_eq!(server.command::<u32>(&["DEL", &name]), 1, "{format} {key}");
            soon(&format!("the loss of {key} with {format:?}"), guard.lost()).await;
        }
        soon("the loss of the other one", other.lost()).await;
        // What Redisson counts besides.
        server.command::<u32>(&["DEL", "permits"]);
        let taken = take_in_every_mode(&ours, format).await;
        let (before, looks) = (calls(), taken.len() as u64);
        until("the looks", || calls() >= before + looks).await;
        server.command::<()>(&["FLUSHALL"]);
        for (key, guard) in &taken {
            soon(&format!("the loss of {key} with {format:?}"), guard.lost()).await;
        }
    }
}

/// If each renewed at each change, the renewals of one would cause those of all others.
#[tokio::test]
async fn what_others_change_is_looked_at_and_not_renewed() {
    for format in ["?", "?prefix=&recipe=read-write-lock&"] {
        let server = RedisServer::start().unwrap();
        let redis = async |tracking: &str| {
            let url = format!("{}{format}tracking={tracking}", server.url());
            over(Redis::connect(&url).await.unwrap(), SHORT)
        };
        let mut tracked = Vec::new();
        for _ in 0..3 {
            tracked.push(redis("10").await);
        }
        let untracked = redis("0").await;
        let (mut guards, all) = (Vec::new(), tracked.iter().chain([&untracked]));
        for locks in all.clone() {
            guards.push(locks.lock("page").read().acquire().await.unwrap());
        }
        until("the first renewals", || all.clone().all(|locks| locks.stats().renewals >= 4)).await;
        let before: Vec<u64> = all.clone().map(|locks| locks.stats().renewals).collect();
        until("many renewals", || untracked.stats().renewals >= before[3] + 20).await;
        for (locks, before) in tracked.iter().zip(before) {
            let renewals = locks.stats().renewals - before;
            assert!(renewals < 30, "{renewals} with {format:?}");
        }
        for guard in guards {
            guard.check().unwrap();
            guard.release().await.unwrap();
        }
    }
}

/// A reader of Redisson's has two keys, and a look at one of them reads both.
#[tokio::test]
async fn a_renewal_of_what_has_several_keys_causes_one_look() {
    const READERS: u64 = 10;
    let server = RedisServer::start().unwrap();
    let url = format!("{}?prefix=&recipe=read-write-lock", server.url());
    let locks = over(Redis::connect(&url).await.unwrap(), Duration::from_secs(6));
    let mut guards = Vec::new();
    for number in 0..READERS {
        guards.push(locks.lock(format!("page_{number}")).read().acquire().await.unwrap());
    }
    let looks = || server.command_calls().get("eval").copied().unwrap_or(0);
    let renewals = || locks.stats().renewals;
    // Between a renewal and the look after it a lock is not tracked, so that all of them hardly ever are at one moment.
    until("the first looks", || renewals() >= 2 * READERS && looks() > 0).await;
    let (looked, renewed) = (looks(), renewals());
    until("renewals", || renewals() >= renewed + 4 * READERS).await;
    let (looked, renewed) = (looks() - looked, renewals() - renewed);
    // Those of renewals before may still have been under way.
    assert!(looked <= renewed + READERS, "{looked} looks at {renewed} renewals");
    for key in ["page_0", &server.keys().into_iter().find(|key| key.contains("{page_1}")).unwrap()] {
        server.command::<u32>(&["DEL", key]);
    }
    for guard in guards.drain(..2) {
        soon("the loss", guard.lost()).await;
    }
    guards.iter().for_each(|guard| guard.check().unwrap());
}
