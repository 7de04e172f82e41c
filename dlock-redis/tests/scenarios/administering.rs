//! What an operator sees and does: the list of holders, and a release by force.

use std::cell::Cell;
use std::time::{SystemTime, UNIX_EPOCH};

use dlock_core::{ErrorKind, Forced};
use dlock_redis::Redis;
use dlock_rig::servers::redis::{RedisCluster, RedisServer};

use crate::support::{LONG, error_of, locks, over, soon, until};

const JAVA: &str = "0a1b2c3d-0000-4000-8000-00000000000a:17";

/// As Redisson stores a lock.
fn lock_as_redisson(server: &RedisServer, key: &str) {
    server.command::<u64>(&["HSET", key, JAVA, "2"]);
    server.command::<u64>(&["PEXPIRE", key, "30000"]);
}

#[tokio::test]
async fn a_lock_of_redisson_is_listed_by_its_owner_and_released_by_force() {
    let server = RedisServer::start().unwrap();
    let redis = Redis::builder(&server.url()).with_prefix("").connect().await.unwrap();
    let locks = over(redis, LONG);
    lock_as_redisson(&server, "room_7");
    let held = locks.holders().await.unwrap();
    assert_eq!(held.len(), 1, "{held:?}");
    assert_eq!((held[0].0.as_str(), held[0].1.label.as_deref()), ("room_7", Some(JAVA)));
    let waiter = tokio::spawn({
        let lock = locks.lock("room_7");
        async move { lock.acquire().await }
    });
    until("the waiter to listen", || !server.channels().is_empty()).await;
    assert!(locks.force_release("room_7").await.unwrap());
    soon("the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn data_is_neither_listed_nor_deleted() {
    let server = RedisServer::start().unwrap();
    let redis = Redis::builder(&server.url()).with_prefix("").connect().await.unwrap();
    let locks = over(redis, LONG);
    server.command::<()>(&["SET", "text", "value"]);
    server.command::<u64>(&["HSET", "hash", "name", "value"]);
    server.command::<u64>(&["HSET", "two", JAVA, "1", "name", "read"]);
    server.command::<u64>(&["HSET", "mode", "mode", "reads"]);
    assert!(locks.holders().await.unwrap().is_empty());
    for key in ["text", "hash", "two", "mode"] {
        for fair in [false, true] {
            let taken = locks.lock(key).with_fairness(fair).try_acquire().await;
            error_of(taken, ErrorKind::InvalidConfig);
        }
        error_of(locks.inspect(key).await, ErrorKind::InvalidConfig);
        error_of(locks.force_release(key).await, ErrorKind::InvalidConfig);
        assert_eq!(server.command::<u64>(&["EXISTS", key]), 1, "{key} was deleted");
    }
}

#[tokio::test]
async fn what_is_in_the_way_of_a_lock_is_listed_as_foreign_and_removed_by_force() {
    let server = RedisServer::start().unwrap();
    let ours = locks(&server.url(), LONG).await;
    server.command::<()>(&["SET", "dlock:broken", "no lock that anybody knows"]);
    server.command::<u64>(&["HSET", "dlock:hash", "name", "value"]);
    let held = ours.holders().await.unwrap();
    assert_eq!(held.len(), 1, "{held:?}");
    assert_eq!((held[0].0.as_str(), held[0].1.label.as_deref()), ("broken", Some("not a lock of dlock")));
    error_of(ours.lock("broken").acquire().await, ErrorKind::InvalidConfig);
    assert!(ours.force_release("broken").await.unwrap());
    ours.lock("broken").acquire().await.unwrap().release().await.unwrap();
    error_of(ours.force_release("hash").await, ErrorKind::InvalidConfig);

    // A hash that is no lock.
    let shared = locks(&format!("{}?redisson=true", server.url()), LONG).await;
    error_of(shared.lock("hash").acquire().await, ErrorKind::InvalidConfig);
    assert_eq!(shared.holders().await.unwrap().len(), 1);
    assert!(shared.inspect("hash").await.unwrap().is_some());
    assert!(shared.force_release("hash").await.unwrap());

    // A lock with one owner is none with readers.
    let readers = locks(&format!("{}?redisson=true&recipe=read-write-lock", server.url()), LONG).await;
    lock_as_redisson(&server, "dlock:other");
    error_of(readers.lock("other").acquire().await, ErrorKind::InvalidConfig);
    error_of(readers.inspect("other").await, ErrorKind::InvalidConfig);
    error_of(readers.force_release("other").await, ErrorKind::InvalidConfig);
    assert!(readers.holders().await.unwrap().is_empty());
    assert!(shared.force_release("other").await.unwrap());

    // An owner that no library writes, in bytes that are no text, and without an end.
    let script = "return redis.call('HSET', KEYS[1], '\\255\\254', '1')";
    server.command::<u64>(&["EVAL", script, "1", "dlock:java"]);
    assert!(shared.lock("java").try_acquire().await.unwrap().is_none());
    let held = shared.holders().await.unwrap();
    assert_eq!(held.len(), 1, "{held:?}");
    assert_eq!(held[0].0.as_str(), "java");
    assert!(shared.force_release("java").await.unwrap());
    shared.lock("java").acquire().await.unwrap().release().await.unwrap();
}

/// `GETRANGE` tells it from nothing no more than an acquire may.
#[tokio::test]
async fn an_empty_text_in_the_way_of_a_lock_is_refused_shown_and_removed_by_force() {
    let server = RedisServer::start().unwrap();
    let (ours, bare) =
        (over_all(&server.url()).await, over_all(&format!("{}?prefix=&redisson=false", server.url())).await);
    let lock = ours.lock("room");
    server.command::<()>(&["SET", "dlock:room", ""]);
    for lock in [lock.clone(), lock.clone().with_fairness(true), lock.clone().read()] {
        error_of(lock.try_acquire().await, ErrorKind::InvalidConfig);
    }
    error_of(ours.semaphore("room", 2).try_acquire().await, ErrorKind::InvalidConfig);
    error_of(ours.lock_all(["other", "room"]).acquire().await, ErrorKind::InvalidConfig);
    assert_eq!(server.keys(), ["dlock:fence:{0}", "dlock:room"], "nothing is left of a batch");
    let listed = ours.holders().await.unwrap();
    assert_eq!(listed.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), ["room"]);
    assert!(ours.inspect("room").await.unwrap().is_some());
    assert!(ours.force_release("room").await.unwrap());
    assert!(!ours.force_release("room").await.unwrap());
    assert!(ours.inspect("room").await.unwrap().is_none());
    lock.acquire().await.unwrap().release().await.unwrap();

    // Without a prefix it may be data of others.
    server.command::<()>(&["SET", "text", ""]);
    error_of(bare.inspect("text").await, ErrorKind::InvalidConfig);
    error_of(bare.force_release("text").await, ErrorKind::InvalidConfig);
    assert_eq!(server.command::<u64>(&["EXISTS", "text"]), 1);
}

/// What an acquire calls held, whatever Redisson stored it, or broke it.
#[tokio::test]
async fn what_keeps_an_acquire_waiting_is_listed_and_shown_and_removed_by_force() {
    let hold = format!("{{%}}:{JAVA}:rwlock_timeout:1");
    let writer = format!("{JAVA}:write");
    let lock: &[&[&str]] = &[&["HSET", "%", JAVA, "2"]];
    let read: &[&[&str]] = &[&["HSET", "%", "mode", "read", JAVA, "1"], &["SET", &hold, "1", "PX", "60000"]];
    let write: &[&[&str]] = &[&["HSET", "%", "mode", "write", &writer, "1"]];
    // The hold of the only reader is over, or nobody is left.
    let ended: &[&[&str]] = &[&["HSET", "%", "mode", "read", JAVA, "1"]];
    let empty: &[&[&str]] = &[&["HSET", "%", "mode", "write"]];
    let odd: &[&[&str]] = &[&["HSET", "%", "no owner that anybody knows", "1"]];
    let fields: Vec<String> = (0..20).map(|n| format!("{JAVA}{n}")).collect();
    let mut many = vec!["HSET", "%", "mode", "read"];
    many.extend(fields.iter().flat_map(|field| [field.as_str(), "1"]));
    let many: &[&[&str]] = &[&many];
    let permits: &[&[&str]] =
        &[&["SET", "%", "0"], &["ZADD", "{%}:timeout", "92233720368547758", "0123456789abcdef"]];
    let of_locks = [
        ("lock", lock),
        ("read", read),
        ("written", write),
        ("ended", ended),
        ("empty", empty),
        ("odd", odd),
        ("many", many),
    ];
    let read_write = [("read", read), ("written", write), ("ended", ended), ("empty", empty), ("many", many)];
    let server = RedisServer::start().unwrap();
    for (format, shapes) in [("", &of_locks[..]), ("&recipe=read-write-lock", &read_write)] {
        for prefix in ["", "shop:"] {
            let url = format!("{}?redisson=true&prefix={prefix}{format}", server.url());
            let ours = over_all(&url).await;
            for (key, made) in shapes.iter().chain([&("permits", permits)]) {
                let name = format!("{prefix}{key}");
                for command in *made {
                    let words: Vec<String> = command.iter().map(|word| word.replace('%', &name)).collect();
                    let _: redis::Value =
                        server.command(&words.iter().map(String::as_str).collect::<Vec<_>>());
                }
                let take = async || match *key {
                    "permits" => ours.semaphore(*key, 1).try_acquire().await.unwrap(),
                    key => ours.lock(key).try_acquire().await.unwrap(),
                };
                assert!(take().await.is_none(), "{url} {key}");
                let listed = ours.holders().await.unwrap();
                assert!(listed.iter().any(|(found, _)| found.as_str() == *key), "{url} {key}: {listed:?}");
                assert!(ours.inspect(*key).await.unwrap().is_some(), "{url} {key}");
                assert!(ours.force_release(*key).await.unwrap(), "{url} {key}");
                assert!(ours.inspect(*key).await.unwrap().is_none(), "{url} {key}");
                assert!(ours.holders().await.unwrap().is_empty(), "{url} {key}");
                take().await.unwrap_or_else(|| panic!("{url} {key}")).release().await.unwrap();
                server.command::<()>(&["FLUSHALL"]);
            }
        }
    }
}

async fn over_all(url: &str) -> dlock_core::Locks {
    over(Redis::connect(url).await.unwrap(), LONG)
}

#[tokio::test]
async fn no_request_reads_all_of_what_is_not_ours() {
    let server = RedisServer::start().unwrap();
    let fill = "for n = 1, 20000 do redis.call('HSET', KEYS[1], 'field' .. n, 'value') end";
    server.command::<()>(&["EVAL", fill, "1", "big"]);
    let redis = Redis::builder(&server.url()).with_prefix("").connect().await.unwrap();
    let locks = over(redis, LONG);
    server.command::<()>(&["CONFIG", "RESETSTAT"]);
    error_of(locks.lock("big").try_acquire().await, ErrorKind::InvalidConfig);
    assert!(locks.holders().await.unwrap().is_empty());
    let batch = locks.lock_all(["big", "room"]).with_wait(dlock_core::Wait::No).acquire().await;
    error_of(batch, ErrorKind::InvalidConfig);
    error_of(locks.inspect("big").await, ErrorKind::InvalidConfig);
    error_of(locks.force_release("big").await, ErrorKind::InvalidConfig);
    assert_eq!(server.command_calls().get("hgetall"), None, "a large hash was read");
}

#[tokio::test]
async fn a_hash_that_is_larger_than_any_lock_is_refused_unread() {
    let server = RedisServer::start().unwrap();
    let fill = "redis.call('HSET', KEYS[1], 'n', 1, 'e', 1) \
                for n = 1, 100000 do redis.call('HSET', KEYS[1], string.format('%032x', n), '1 1 1 x') end";
    server.command::<()>(&["EVAL", fill, "1", "dlock:big"]);
    let locks = over(Redis::connect(&server.url()).await.unwrap(), LONG);
    // The first one tries the rights.
    locks.lock("small").read().acquire().await.unwrap().release().await.unwrap();
    // As a lock that several hold, and as one that is waited for in line.
    for fields in ["100002", "100003"] {
        server.command::<()>(&["CONFIG", "RESETSTAT"]);
        let big = || locks.lock("big");
        for acquire in [big(), big().read(), big().with_fairness(true)] {
            error_of(acquire.try_acquire().await, ErrorKind::InvalidConfig);
        }
        error_of(locks.semaphore("big", 3).try_acquire().await, ErrorKind::InvalidConfig);
        error_of(locks.inspect("big").await, ErrorKind::InvalidConfig);
        error_of(locks.force_release("big").await, ErrorKind::InvalidConfig);
        assert!(locks.holders().await.unwrap().is_empty());
        assert_eq!(server.command_calls().get("hgetall"), None, "a large hash was read");
        assert_eq!(server.command::<String>(&["HLEN", "dlock:big"]), fields, "it was changed");
        server.command::<()>(&["HSET", "dlock:big", "f", "1"]);
    }
}

#[tokio::test]
async fn a_line_has_no_place_for_more_than_a_lock_has_fields() {
    let server = RedisServer::start().unwrap();
    let fill = "redis.call('HSET', KEYS[1], 'n', 1, 'e', ARGV[1], 'h', 'x', 'f', 5000, 'q', 1) \
                for n = 1, 5000 do \
                  local waiter = string.format('%032x', n) \
                  redis.call('HSET', KEYS[1], 'q' .. n, waiter .. ' ' .. ARGV[1], '?' .. waiter, n) \
                end";
    let end = (SystemTime::now() + LONG).duration_since(UNIX_EPOCH).unwrap().as_millis().to_string();
    server.command::<()>(&["EVAL", fill, "1", "dlock:room", &end]);
    let locks = over(Redis::connect(&server.url()).await.unwrap(), LONG);
    let late = locks.lock("room").with_fairness(true).with_wait(LONG);
    let late = tokio::spawn(async move { late.acquire().await });
    until("the late one to ask again", || {
        server.command_calls().get("evalsha").is_some_and(|calls| *calls > 3)
    })
    .await;
    late.abort();
    assert_eq!(server.command::<u32>(&["HLEN", "dlock:room"]), 10_005);
}

#[tokio::test]
async fn ten_thousand_readers_hold_a_lock_and_the_next_one_waits() {
    let server = RedisServer::start().unwrap();
    let fill = "redis.call('HSET', KEYS[1], 'n', 10000, 'e', ARGV[1]) \
                for n = 1, 10000 do \
                  redis.call('HSET', KEYS[1], string.format('%032x', n), ARGV[1] .. ' 1 1 x') \
                end";
    let end = (SystemTime::now() + LONG).duration_since(UNIX_EPOCH).unwrap().as_millis().to_string();
    server.command::<()>(&["EVAL", fill, "1", "dlock:page", &end]);
    let locks = over(Redis::connect(&server.url()).await.unwrap(), LONG);
    assert!(locks.lock("page").read().try_acquire().await.unwrap().is_none());
    let left =
        "redis.call('HDEL', KEYS[1], string.format('%032x', 7)) redis.call('HSET', KEYS[1], 'n', 9999)";
    server.command::<()>(&["EVAL", left, "1", "dlock:page"]);
    let last = locks.lock("page").read().try_acquire().await.unwrap();
    assert!(last.is_some());
    assert!(locks.lock("page").read().try_acquire().await.unwrap().is_none());
}

#[tokio::test]
async fn only_locks_with_the_own_prefix_are_listed() {
    let server = RedisServer::start().unwrap();
    let with = async |prefix: &str| {
        over(Redis::builder(&server.url()).with_prefix(prefix).connect().await.unwrap(), LONG)
    };
    let (shop, star, other) = (with("shop:").await, with("sh*:").await, with("shop").await);
    let _one = shop.lock("a").acquire().await.unwrap();
    assert_eq!(shop.holders().await.unwrap().len(), 1);
    assert!(star.holders().await.unwrap().is_empty(), "a star in a prefix is a star");
    // A shorter prefix sees it as a key of its own, which it is.
    assert_eq!(other.holders().await.unwrap()[0].0.as_str(), ":a");
}

#[tokio::test]
async fn the_locks_of_all_servers_of_a_cluster_are_listed() {
    let cluster = RedisCluster::start().unwrap();
    let locks = locks(&cluster.url(), LONG).await;
    let mut guards = Vec::new();
    for number in 0..60 {
        guards.push(locks.lock(format!("room_{number}")).acquire().await.unwrap());
    }
    assert_eq!(locks.holders().await.unwrap().len(), 60);
    for number in 0..60 {
        assert!(locks.force_release(format!("room_{number}")).await.unwrap());
    }
    assert!(locks.holders().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_user_without_the_rights_is_denied_and_told_so() {
    let rights = ["~dlock:*", "&dlock:*", "+eval", "+evalsha", "+pttl", "+getrange", "+publish"];
    for (besides, lists, forces) in [("+ping", false, false), ("+scan", true, false), ("+del", false, true)] {
        let rights: Vec<&str> = rights.iter().copied().chain([besides]).collect();
        let server = RedisServer::options().user("operator", "pw", &rights).start().unwrap();
        let value = format!("{:032x} 1700000000000000+0 host=a pid=5", 7);
        server.command::<()>(&["SET", "dlock:room_7", &value]);
        let redis = Redis::builder(&server.url_as("operator", "pw")).build().unwrap();
        let locks = over(redis, LONG);
        let denied = |lacks| if lacks { ErrorKind::Denied } else { ErrorKind::Unknown };
        match locks.holders().await {
            Ok(held) => assert!(lists && held.len() == 1, "{besides}: {held:?}"),
            Err(error) => assert_eq!(error.kind(), denied(!lists), "{besides}: {error}"),
        }
        match locks.force_release("room_7").await {
            Ok(forced) => assert!(forces && forced, "{besides}"),
            Err(error) => assert_eq!(error.kind(), denied(!forces), "{besides}: {error}"),
        }
    }
}

/// It is the script that compares, whatever form the lock has: of one that is taken and released again and again nobody
/// loses it but those who were seen.
#[tokio::test]
async fn a_release_by_force_of_who_was_seen_takes_the_lock_from_nobody_else_in_any_form() {
    const FORCED: usize = 5;
    let server = RedisServer::start().unwrap();
    for (parameters, key) in [
        ("", "read"),
        ("", "fair"),
        ("", "gpu"),
        ("?prefix=java:&redisson=true", "alone"),
        ("?prefix=java:&redisson=true", "fair"),
        ("?prefix=java:&redisson=true", "gpu"),
        ("?prefix=reads:&redisson=true&recipe=read-write-lock", "written"),
        ("?prefix=reads:&redisson=true&recipe=read-write-lock", "read"),
    ] {
        let url = format!("{}{parameters}", server.url());
        let (ours, theirs) = (locks(&url, LONG).await, locks(&url, LONG).await);
        let done = Cell::new(false);
        let holding = async {
            let (mut lost, mut rounds) = (Vec::new(), 0);
            while lost.len() < FORCED {
                let guard = match key {
                    "read" => ours.lock(key).read().acquire().await,
                    "fair" => ours.lock(key).with_fairness(true).acquire().await,
                    "gpu" => ours.semaphore(key, 1).acquire().await,
                    _ => ours.lock(key).acquire().await,
                };
                let guard = guard.unwrap();
                let fence = guard.fence();
                // Now for a shorter, now for a longer time, so that its end meets each moment of a release by force.
                rounds += 1;
                for _ in 0..rounds % 7 {
                    let _ = ours.inspect("another").await;
                }
                match guard.release().await {
                    Err(error) if error.kind() == ErrorKind::NotHeld => lost.push(fence),
                    released => released.unwrap(),
                }
            }
            done.set(true);
            lost
        };
        let forcing = async {
            let mut forced = Vec::new();
            while !done.get() {
                let seen = theirs.occupancy(key).await.unwrap().holders;
                if theirs.force_release_of(key, &seen).await.unwrap() == Forced::Released {
                    forced.push(seen[0].fence);
                }
            }
            forced
        };
        let (lost, forced) = soon(key, async { tokio::join!(holding, forcing) }).await;
        let all = lost.iter().all(|lost| forced.contains(lost));
        assert!(all, "{key}{parameters}: {lost:?} were lost, and {forced:?} released");
    }
}
