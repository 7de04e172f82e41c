//! Readers, permits and fair locks in the forms of Redisson: what its clients, its administrators and its servers do to
//! them. `tests/interop` has the real Redisson beside dlock.

use std::collections::HashSet;
use std::time::Duration;

use dlock_core::backend::Mode;
use dlock_core::{ErrorKind, Forced, Locks};
use dlock_redis::Redis;
use dlock_rig::servers::redis::{RedisOptions, RedisServer};
use tokio::task::JoinSet;

use crate::support::{LONG, SHORT, error_of, fence, is_counter, locks, patient_for, soon, until};

const READERS: &str = "?prefix=&recipe=read-write-lock";
const LOCKS: &str = "?prefix=";
/// A reader of Redisson.
const JAVA: &str = "0a1b2c3d-0000-4000-8000-00000000000a:17";

async fn with_readers(server: &RedisServer, lease: Duration) -> Locks {
    locks(&format!("{}{READERS}", server.url()), lease).await
}

async fn with_lines(server: &RedisServer, lease: Duration) -> Locks {
    locks(&format!("{}{LOCKS}", server.url()), lease).await
}

fn left(server: &RedisServer) -> Vec<String> {
    server.keys().into_iter().filter(|key| !is_counter(key)).collect()
}

/// What a Java service does to read, once.
fn read_in_java(server: &RedisServer, name: &str, millis: u64) {
    let (hold, millis) = (format!("{{{name}}}:{JAVA}:rwlock_timeout:1"), millis.to_string());
    let _: i64 = server.command(&["HSET", name, "mode", "read", JAVA, "1"]);
    let _: String = server.command(&["SET", &hold, "1", "PX", &millis]);
    let left: i64 = server.command(&["PTTL", name]);
    if left < millis.parse().unwrap() {
        let _: i64 = server.command(&["PEXPIRE", name, &millis]);
    }
}

#[tokio::test]
async fn a_reader_in_java_and_one_of_ours_share_the_lock_and_the_last_one_leaves_nothing() {
    let server = RedisServer::start().unwrap();
    let locks = with_readers(&server, LONG).await;
    read_in_java(&server, "room", 60_000);
    let guard = locks.lock("room").read().acquire().await.unwrap();
    let found = locks.occupancy("room").await.unwrap();
    assert!(found.holders.iter().all(|holder| holder.mode == Mode::Shared), "{found:?}");
    let labels: Vec<_> = found.holders.iter().filter_map(|holder| holder.label.as_deref()).collect();
    assert_eq!((found.holders.len(), labels), (2, vec![JAVA]));
    assert!(locks.lock("room").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    assert!(locks.lock("room").try_acquire().await.unwrap().is_none(), "the other one reads");
    // Redisson lets the lock end with the longest hold that is left; so do we.
    let left_for: i64 = server.command(&["PTTL", "room"]);
    assert!(left_for > 30_000, "{left_for}");
    let guard = locks.lock("room").read().acquire().await.unwrap();
    let _: i64 = server.command(&["DEL", &format!("{{room}}:{JAVA}:rwlock_timeout:1")]);
    guard.release().await.unwrap();
    assert_eq!(left(&server), [""; 0], "the hold of the other one was over");
}

/// Redisson's renewal of one reader sets the end of the whole lock.
#[tokio::test]
async fn a_reader_outlives_a_renewal_that_lets_the_lock_end_soon() {
    let server = RedisServer::start().unwrap();
    let locks = with_readers(&server, SHORT).await;
    let guard = locks.lock("room").read().acquire().await.unwrap();
    let end = tokio::time::Instant::now() + SHORT * 3;
    while tokio::time::Instant::now() < end {
        // As long as its own lease, as a watchdog would.
        let _: i64 = server.command(&["PEXPIRE", "room", "900"]);
        tokio::time::sleep(SHORT / 9).await;
        assert!(locks.lock("room").try_acquire().await.unwrap().is_none());
    }
    guard.check().unwrap();
    guard.release().await.unwrap();
    let locks = with_readers(&server, Duration::from_secs(300)).await;
    let guard = locks.lock("room").read().acquire().await.unwrap();
    let left_for: i64 = server.command(&["PTTL", "room"]);
    assert!((20_000..=30_000).contains(&left_for), "no longer than Redisson's watchdog: {left_for}");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn readers_that_died_do_not_fill_the_hash_while_others_read() {
    let server = RedisServer::start().unwrap();
    let locks = with_readers(&server, LONG).await;
    let kept = locks.lock("room").read().acquire().await.unwrap();
    for number in 0..200 {
        let _: i64 = server.command(&["HSET", "room", &format!("dead:{number:032x}"), "1"]);
    }
    let fields = || server.command::<usize>(&["HLEN", "room"]);
    while fields() > 3 {
        locks.lock("room").read().acquire().await.unwrap().release().await.unwrap();
    }
    assert!(locks.lock("room").try_acquire().await.unwrap().is_none());
    kept.release().await.unwrap();
    assert_eq!(left(&server), [""; 0]);
}

#[tokio::test]
async fn what_is_no_lock_of_the_recipe_is_refused_and_stays_as_it_is() {
    let server = RedisServer::start().unwrap();
    let (readers, lines) = (with_readers(&server, LONG).await, with_lines(&server, LONG).await);
    let _: i64 = server.command(&["RPUSH", "list", "a"]);
    let _: String = server.command(&["SET", "text", "a"]);
    let _: i64 = server.command(&["HSET", "hash", "name", "value"]);
    let rlock = lines.lock("rlock").acquire().await.unwrap();
    let _: String = server.command(&["SET", "{odd}:dlock", "a"]);
    let before = left(&server).len();
    for key in ["list", "text", "hash", "rlock", "odd"] {
        for lock in [readers.lock(key), readers.lock(key).read()] {
            error_of(lock.try_acquire().await, ErrorKind::InvalidConfig);
        }
    }
    for number in ["0", "-5", "1795397472557"] {
        let _: String = server.command(&["SET", "number", number]);
        error_of(lines.lock("number").try_acquire().await, ErrorKind::InvalidConfig);
        error_of(lines.semaphore("number", 2).try_acquire().await, ErrorKind::InvalidConfig);
        assert_eq!(server.command::<String>(&["GET", "number"]), number);
    }
    let _: i64 = server.command(&["DEL", "number"]);
    for key in ["list", "text", "odd"] {
        error_of(lines.semaphore(key, 2).try_acquire().await, ErrorKind::InvalidConfig);
        if key == "odd" {
            continue;
        }
        let fair = lines.lock(key).with_fairness(true);
        error_of(fair.try_acquire().await, ErrorKind::InvalidConfig);
    }
    error_of(lines.semaphore("rlock", 2).try_acquire().await, ErrorKind::Conflict);
    let _permit = lines.semaphore("gpu", 2).acquire().await.unwrap();
    error_of(lines.lock("gpu").try_acquire().await, ErrorKind::Conflict);
    error_of(readers.lock("gpu").try_acquire().await, ErrorKind::InvalidConfig);
    rlock.release().await.unwrap();
    // One lock less, and the three keys of a semaphore more.
    assert_eq!(left(&server).len(), before - 1 + 3);
    assert_eq!(server.command::<String>(&["GET", "text"]), "a");
}

#[tokio::test]
async fn odd_names_forgotten_scripts_and_resp2_change_nothing() {
    let options = RedisOptions::default().argument("rename-command", "hello no-hello");
    let server = options.start().unwrap();
    let (readers, lines) = (with_readers(&server, LONG).await, with_lines(&server, LONG).await);
    for name in ["a b", "%7B", "order:{42}", "a}b{", "é:🔒", "x:timeout", "*"] {
        let _: String = server.command(&["SCRIPT", "FLUSH"]);
        let read = readers.lock(name).read().acquire().await.unwrap();
        assert!(readers.lock(name).try_acquire().await.unwrap().is_none(), "{name}");
        read.release().await.unwrap();
        readers.lock(name).acquire().await.unwrap().release().await.unwrap();
        let waiting = lines.lock(name).with_fairness(true);
        let guard = waiting.acquire().await.unwrap();
        let waiter = tokio::spawn(async move { waiting.acquire().await });
        until("the waiter", || left(&server).iter().any(|key| key.contains("_lock_queue:"))).await;
        guard.release().await.unwrap();
        soon("its turn", waiter).await.unwrap().unwrap().release().await.unwrap();
        let permits = lines.semaphore(name, 3).take(2).acquire().await.unwrap();
        let held = lines.holders().await.unwrap();
        assert!(
            held.iter().any(|(key, holder)| key.as_str() == name && holder.mode.taken() == 2),
            "{held:?}"
        );
        assert_eq!(held.len(), 1, "what stands beside a lock is none: {held:?}");
        permits.release().await.unwrap();
        let _: i64 = server.command(&["DEL", name]);
    }
    assert_eq!(left(&server), [""; 0]);
}

#[tokio::test]
async fn a_counter_that_was_evicted_does_not_make_permits_of_nothing() {
    let server = RedisServer::start().unwrap();
    let locks = with_lines(&server, LONG).await;
    let held = locks.semaphore("gpu", 3).take(2).acquire().await.unwrap();
    let _: i64 = server.command(&["DEL", "gpu"]);
    let third = locks.semaphore("gpu", 3).acquire().await.unwrap();
    assert!(locks.semaphore("gpu", 3).try_acquire().await.unwrap().is_none(), "there are three");
    let _: i64 = server.command(&["DEL", "gpu"]);
    held.release().await.unwrap();
    let again = locks.semaphore("gpu", 3).take(2).acquire().await.unwrap();
    assert!(locks.semaphore("gpu", 3).try_acquire().await.unwrap().is_none());
    for guard in [third, again] {
        guard.release().await.unwrap();
    }
    assert_eq!(server.command::<i64>(&["GET", "gpu"]), 3);
    assert_eq!(server.command::<i64>(&["ZCARD", "{gpu}:timeout"]), 0);
}

/// As a client does whose clock is far ahead: it takes as many as it needs from their holders, in the order of their
/// bytes where they end together.
#[tokio::test]
async fn permits_of_which_java_took_some_back_are_lost_and_none_is_made_of_them() {
    let server = RedisServer::start().unwrap();
    let locks = with_lines(&server, SHORT).await;
    for taken_back in ["0", "-1"] {
        let held = locks.semaphore("gpu", 4).take(2).acquire().await.unwrap();
        let gone: i64 = server.command(&["ZREMRANGEBYRANK", "{gpu}:timeout", taken_back, taken_back]);
        let _: i64 = server.command(&["INCRBY", "gpu", "1"]);
        assert_eq!(gone, 1);
        soon("the loss", held.lost()).await;
        held.release().await.unwrap_err();
        until("the end of what was left", || server.command::<i64>(&["ZCARD", "{gpu}:timeout"]) == 0).await;
        assert_eq!(server.command::<i64>(&["GET", "gpu"]), 4, "after {taken_back}");
    }
}

/// A client whose clock is ahead by less than a tenth of the lease takes nothing back that is held.
#[tokio::test]
async fn a_permit_ends_later_on_the_server_than_its_holder_believes() {
    let server = RedisServer::start().unwrap();
    let locks = with_lines(&server, Duration::from_secs(20)).await;
    let guard = locks.semaphore("gpu", 1).acquire().await.unwrap();
    let entries: i64 = server.command(&["ZCARD", "{gpu}:timeout"]);
    assert_eq!(entries, 1);
    let time: Vec<u64> = server.command(&["TIME"]);
    let now = (time[0] * 1_000 + time[1] / 1_000).to_string();
    let later = format!("({}", time[0] * 1_000 + 21_000);
    assert_eq!(server.command::<i64>(&["ZCOUNT", "{gpu}:timeout", &now, &later]), 0);
    guard.release().await.unwrap();
    error_of(locks.semaphore("gpu", 5_000).take(2).try_acquire().await, ErrorKind::Conflict);
    error_of(locks.semaphore("many", 5_000).take(1_001).try_acquire().await, ErrorKind::InvalidConfig);
    let many = locks.semaphore("many", 5_000).take(1_000).acquire().await.unwrap();
    let found = locks.occupancy("many").await.unwrap();
    assert_eq!((found.permits, found.taken(), found.holders.len()), (Some(5_000), 1_000, 1));
    many.release().await.unwrap();
}

/// Two in Java, of which the first is dead and the second alive, and one of ours between them.
#[tokio::test]
async fn those_who_died_in_line_are_passed_and_those_in_java_are_not() {
    let server = RedisServer::start().unwrap();
    let locks = with_lines(&server, LONG).await;
    let lock = || locks.lock("till").with_fairness(true).with_wait(LONG);
    let guard = lock().acquire().await.unwrap();
    let waiter = lock();
    let waiter = tokio::spawn(async move { waiter.acquire().await });
    let (queue, timeouts) = ("redisson_lock_queue:{till}", "redisson_lock_timeout:{till}");
    until("its place", || server.command::<i64>(&["LLEN", queue]) == 1).await;
    // Dead ones: of ours, which asks no more, and of Java, whose time is over.
    for dead in [format!("dead:{:032x}", 5), "java:5".to_owned()] {
        let _: i64 = server.command(&["LPUSH", queue, &dead]);
        let score = if dead.starts_with("java") { "1" } else { "99999999999999" };
        let _: i64 = server.command(&["ZADD", timeouts, score, &dead]);
    }
    guard.release().await.unwrap();
    let guard = soon("its turn", waiter).await.unwrap().unwrap();
    let _: i64 = server.command(&["RPUSH", queue, JAVA]);
    let _: i64 = server.command(&["ZADD", timeouts, "99999999999999", JAVA]);
    guard.release().await.unwrap();
    assert!(lock().try_acquire().await.unwrap().is_none(), "it is the turn of the one in Java");
    assert_eq!(server.command::<i64>(&["EXISTS", "till"]), 0);
    let _: i64 = server.command(&["DEL", queue, timeouts]);
    lock().acquire().await.unwrap().release().await.unwrap();
    until("the end of what was kept", || left(&server).is_empty()).await;
}

#[tokio::test]
async fn hundreds_who_stand_in_line_are_all_served_once_and_leave_nothing() {
    let server = RedisServer::start().unwrap();
    let mut clients = Vec::new();
    for _ in 0..10 {
        let redis = Redis::connect(&format!("{}{LOCKS}", server.url())).await.unwrap();
        // Hundreds of requests wait for each other on a busy machine.
        clients.push(patient_for(LONG / 3, redis, LONG));
    }
    let lock = |client: usize| clients[client].lock("till").with_wait(LONG * 2).with_fairness(true);
    let guard = lock(0).acquire().await.unwrap();
    let mut tasks = JoinSet::new();
    for number in 0..300 {
        let lock = lock(number % 10);
        tasks.spawn(async move {
            let guard = lock.acquire().await.unwrap();
            let fence = fence(&guard);
            guard.release().await.unwrap();
            fence
        });
    }
    until("all places", || server.command::<i64>(&["LLEN", "redisson_lock_queue:{till}"]) == 300).await;
    guard.release().await.unwrap();
    let fences: HashSet<u64> = soon("their turns", tasks.join_all()).await.into_iter().collect();
    assert_eq!(fences.len(), 300, "each has a fence of its own");
    until("the clean-up", || clients.iter().all(|locks| locks.stats().background == 0)).await;
    until("the end of what was kept", || left(&server).is_empty()).await;
}

/// Redisson itself publishes nothing then, so that its readers would wait for the end of the lease.
#[tokio::test]
async fn readers_are_notified_of_a_writer_that_becomes_one() {
    let server = RedisServer::start().unwrap();
    let (ours, theirs) = (with_readers(&server, LONG).await, with_readers(&server, LONG).await);
    let mut guard = ours.lock("room").acquire().await.unwrap();
    let reader = theirs.lock("room").read().with_wait(LONG);
    let reader = tokio::spawn(async move { reader.acquire().await });
    until("the reader to listen", || !server.channels().is_empty()).await;
    guard.downgrade().await.unwrap();
    let reading = soon("the reader", reader).await.unwrap().unwrap();
    // What a Java service looks at.
    assert_eq!(server.command::<String>(&["HGET", "room", "mode"]), "read");
    assert_eq!(server.command::<i64>(&["HLEN", "room"]), 3);
    assert!(fence(&guard) < fence(&reading));
    reading.release().await.unwrap();
    assert!(theirs.lock("room").try_acquire().await.unwrap().is_none(), "the other one reads");
    guard.release().await.unwrap();
    until("the end of what was kept", || left(&server).is_empty()).await;
}

/// What a thread in Java leaves that waits for a fair lock, until so many ms from now.
fn wait_in_java(server: &RedisServer, name: &str, thread: &str, millis: i64) {
    let (seconds, micros): (i64, i64) = server.command(&["TIME"]);
    let until = (seconds * 1_000 + micros / 1_000 + millis).to_string();
    let _: i64 = server.command(&["RPUSH", &format!("redisson_lock_queue:{{{name}}}"), thread]);
    let _: i64 = server.command(&["ZADD", &format!("redisson_lock_timeout:{{{name}}}"), &until, thread]);
}

#[tokio::test]
async fn of_a_line_that_is_left_of_waiters_in_java_the_first_is_listed_and_removed_by_force() {
    let server = RedisServer::start().unwrap();
    let locks = with_lines(&server, LONG).await;
    let second = format!("{JAVA}0");
    wait_in_java(&server, "till", "dead:1", -5_000);
    wait_in_java(&server, "till", JAVA, 300_000);
    wait_in_java(&server, "till", &second, 305_000);
    // Of a lock that is held the line is not shown, and one whose time has passed keeps nobody out.
    let _held = locks.lock("held").acquire().await.unwrap();
    wait_in_java(&server, "held", JAVA, 300_000);
    wait_in_java(&server, "over", JAVA, -1);
    let fair = locks.lock("till").with_fairness(true);
    assert!(fair.try_acquire().await.unwrap().is_none(), "it is the turn of the one in Java");
    wait_in_java(&server, "till", "dead:1", -5_000);

    let listed = locks.holders().await.unwrap();
    let keys: Vec<_> = listed.iter().map(|(key, holder)| (key.as_str(), holder.first_in_line)).collect();
    assert_eq!(keys, [("held", false), ("till", true)]);
    let shown = locks.inspect("till").await.unwrap().expect("an acquire says that it is taken");
    assert_eq!((shown.label.as_deref(), shown.fence), (Some(JAVA), None));
    assert_eq!(listed[1].1.label, shown.label);
    assert!(shown.expires_in.is_some_and(|left| (100..=300).contains(&left.as_secs())), "{shown:?}");
    assert!(shown.to_string().contains("first of those who wait"), "{shown}");
    assert!(locks.election("till").leader().await.unwrap().is_none());

    assert!(locks.force_release("till").await.unwrap());
    assert!(!locks.force_release("till").await.unwrap(), "the others were as dead");
    assert!(locks.inspect("till").await.unwrap().is_none());
    fair.try_acquire().await.unwrap().expect("it is free").release().await.unwrap();
    assert!(!left(&server).iter().any(|key| key.contains("{till}")), "{:?}", left(&server));
}

#[tokio::test]
async fn of_a_long_line_of_waiters_in_java_a_look_reads_the_first() {
    let server = RedisServer::start().unwrap();
    let locks = with_lines(&server, LONG).await;
    for number in 0..50 {
        wait_in_java(&server, "till", &format!("{JAVA}{number}"), 300_000);
    }
    let calls = || server.command_calls().get("zscore").copied().unwrap_or_default();
    let before = calls();
    let shown = locks.inspect("till").await.unwrap().expect("it is the turn of the first");
    assert_eq!(shown.label, Some(format!("{JAVA}0")));
    assert_eq!(calls() - before, 1);
}

#[tokio::test]
async fn a_waiter_in_java_that_got_the_lock_after_it_was_seen_keeps_it_and_ours_behind_a_dead_one_are_served()
{
    let server = RedisServer::start().unwrap();
    let locks = with_lines(&server, LONG).await;
    wait_in_java(&server, "till", JAVA, 300_000);
    let seen = locks.occupancy("till").await.unwrap().holders;
    let _: i64 = server.command(&["HSET", "till", JAVA, "1"]);
    assert_eq!(locks.force_release_of("till", &seen).await.unwrap(), Forced::HeldByOthers);
    let holds = locks.occupancy("till").await.unwrap().holders;
    assert_eq!(locks.force_release_of("till", &holds).await.unwrap(), Forced::Released);
    assert_eq!(locks.force_release_of("till", &holds).await.unwrap(), Forced::HeldByOthers, "it waits");

    let lock = locks.lock("till").with_fairness(true).with_wait(LONG);
    let ours = tokio::spawn(async move { lock.acquire().await });
    until("our place behind it", || server.command::<usize>(&["LLEN", "redisson_lock_queue:{till}"]) == 2)
        .await;
    let next = format!("{JAVA}0");
    wait_in_java(&server, "till", &next, 900_000);
    assert_eq!(locks.force_release_of("till", &seen).await.unwrap(), Forced::Released);
    soon("its turn", ours).await.unwrap().unwrap().release().await.unwrap();
    let behind = locks.inspect("till").await.unwrap().expect("it is the turn of the one behind");
    assert_eq!(behind.label, Some(next));
}
