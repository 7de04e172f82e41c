//! Waiters in line: the order of all processes, and those who leave it.

mod in_time;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{LEFT_BEHIND, Mode};
use dlock_core::{ErrorKind, Guard, Lock, Locks, Requirement, Wait};
use dlock_redis::{Recipe, Redis};
use dlock_rig::servers::redis::RedisServer;
use tokio::sync::RwLock;
use tokio::task::{JoinHandle, JoinSet};

use crate::support::{HOUR, LONG, Proxied, error_of, fence, held, locks, soon, until};

fn fair(locks: &Locks) -> Lock {
    locks.lock("room").with_wait(LONG).with_fairness(true)
}

/// How many stand in line.
fn in_line(server: &RedisServer) -> usize {
    let fields: Vec<String> = server.command(&["HKEYS", "dlock:room"]);
    fields.iter().filter(|field| field.starts_with('?')).count()
}

/// Begins to wait, and takes a place before this returns.
async fn wait_behind(server: &RedisServer, locks: &Locks) -> JoinHandle<dlock_core::Result<Guard>> {
    let before = in_line(server);
    let lock = fair(locks);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    until("the place in line", || in_line(server) > before).await;
    waiter
}

#[tokio::test]
async fn hundreds_who_stand_in_line_are_all_served_once_and_leave_nothing() {
    let waiters: usize = 600;
    let server = RedisServer::start().unwrap();
    let clients = [locks(&server.url(), LONG).await, locks(&server.url(), LONG).await];
    let guard = fair(&clients[0]).acquire().await.unwrap();
    let mut tasks = JoinSet::new();
    for number in 0..waiters {
        let lock = fair(&clients[number % 2]).with_wait(HOUR);
        tasks.spawn(async move {
            let guard = lock.acquire().await.unwrap();
            let fence = fence(&guard);
            guard.release().await.unwrap();
            fence
        });
    }
    until("all places", || in_line(&server) == waiters).await;
    guard.release().await.unwrap();
    let fences = soon("their turns", tasks.join_all()).await;
    let different: HashSet<u64> = fences.into_iter().collect();
    assert_eq!(different.len(), waiters, "each has a fence of its own");
    until("the clean-up", || clients.iter().all(|locks| locks.stats().background == 0)).await;
    assert_eq!(held(&server), [""; 0]);
}

/// How many have left their tokens in what is held alone, or stand in line.
fn waiting(server: &RedisServer) -> usize {
    match &*server.command::<String>(&["TYPE", "dlock:room"]) {
        "string" => server.command::<String>(&["GET", "dlock:room"]).matches(" >").count(),
        "hash" => in_line(server),
        _ => 0,
    }
}

pub(crate) async fn wait_behind_any(
    server: &RedisServer,
    locks: &Locks,
) -> JoinHandle<dlock_core::Result<Guard>> {
    let before = waiting(server);
    let lock = fair(locks);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    until("the place in line", || waiting(server) > before).await;
    waiter
}

#[tokio::test]
async fn those_behind_one_who_does_not_stand_in_line_are_served_in_the_order_in_which_they_came() {
    let server = RedisServer::start().unwrap();
    let clients = [locks(&server.url(), LONG).await, locks(&server.url(), LONG).await];
    let room = || clients[0].lock("room");
    for (reads, downgrades) in [(false, false), (true, false), (false, true)] {
        let lock = if reads { room().read() } else { room() };
        let mut guard = lock.acquire().await.unwrap();
        let mut waiters = Vec::new();
        for number in [0, 1, 1, 0] {
            waiters.push(wait_behind_any(&server, &clients[number]).await);
        }
        if downgrades {
            guard.downgrade().await.unwrap();
            assert_eq!(clients[1].inspect("room").await.unwrap().unwrap().mode, Mode::Shared);
        }
        for newcomer in [room(), room().read(), fair(&clients[1])] {
            assert!(newcomer.try_acquire().await.unwrap().is_none(), "others came before");
        }
        for waiter in waiters {
            guard.release().await.unwrap();
            assert!(room().read().try_acquire().await.unwrap().is_none(), "it is another one's turn");
            guard = soon("its turn", waiter).await.unwrap().unwrap();
        }
        guard.release().await.unwrap();
        assert_eq!(held(&server), [""; 0]);
    }
}

#[tokio::test]
async fn one_who_waited_behind_any_holder_and_was_cancelled_keeps_nobody_waiting() {
    let server = RedisServer::start().unwrap();
    let locks = locks(&server.url(), LONG).await;
    for reads in [false, true] {
        let lock = if reads { locks.lock("room").read() } else { locks.lock("room") };
        let guard = lock.acquire().await.unwrap();
        let waiter = wait_behind_any(&server, &locks).await;
        let behind = wait_behind_any(&server, &locks).await;
        waiter.abort();
        until("the place to be left", || waiting(&server) == 1).await;
        let seen = locks.inspect("room").await.unwrap().unwrap();
        assert_eq!((seen.fence, seen.pid), (guard.fence(), Some(std::process::id())));
        behind.abort();
        until("the places to be left", || waiting(&server) == 0 && locks.stats().background == 0).await;
        guard.release().await.unwrap();
        locks.lock("room").try_acquire().await.unwrap().expect("nobody waits").release().await.unwrap();
        assert_eq!(held(&server), [""; 0]);
    }
}

/// Whoever does not stand in line gets it when the place is lost, and not when the lease before would have ended.
#[tokio::test]
async fn one_who_was_given_its_turn_and_died_keeps_nobody_out_for_a_lease_of_others() {
    let on = Proxied::start();
    let locks = locks(&on.server.url(), HOUR).await;
    for (reads, newcomer_reads) in [(true, true), (true, false), (false, true), (false, false)] {
        let lock = locks.lock("room");
        let lock = if reads { lock.read() } else { lock.with_fairness(true) };
        let guard = lock.acquire().await.unwrap();
        let cut_off = on.locks(LONG).await;
        let dead = wait_behind(&on.server, &cut_off).await;
        on.proxy.black_hole();
        guard.release().await.unwrap();
        let lock = locks.lock("room").with_wait(Wait::Forever);
        let newcomer = if newcomer_reads { lock.read() } else { lock };
        soon("the lock", newcomer.acquire()).await.unwrap().release().await.unwrap();
        dead.abort();
        drop(dead.await);
        on.proxy.mend();
        until("the clean-up", || cut_off.stats().background == 0 && held(&on.server).is_empty()).await;
    }
}

const DEAD: &str = "0123456789abcdef0123456789abcdef";

#[tokio::test]
async fn the_dead_take_no_room_behind_a_holder_from_those_who_are_alive() {
    let server = RedisServer::start().unwrap();
    let locks = locks(&server.url(), LONG).await;
    let guard = locks.lock("room").acquire().await.unwrap();
    let mut value: String = server.command(&["GET", "dlock:room"]);
    while value.len() < 455 {
        value += &format!(" >{DEAD}:1795397472557");
    }
    server.command::<()>(&["SET", "dlock:room", &format!("{value} !"), "KEEPTTL"]);
    let lock = fair(&locks);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    let alive = || !server.command::<String>(&["GET", "dlock:room"]).contains(DEAD) && waiting(&server) == 1;
    until("the place in line", alive).await;
    guard.release().await.unwrap();
    soon("its turn", waiter).await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(held(&server), [""; 0]);
}

#[tokio::test]
async fn the_places_of_the_dead_are_looked_at_once() {
    let server = RedisServer::start().unwrap();
    let locks = locks(&server.url(), LONG).await;
    let reader = || locks.lock("room").read();
    let guard = reader().acquire().await.unwrap();
    let field = |name: &str| server.command::<Option<String>>(&["HGET", "dlock:room", name]);
    let dead = format!("{DEAD} 1795397472557");
    server.command::<u64>(&[
        "HSET",
        "dlock:room",
        "F",
        "400",
        "q",
        "1",
        "q7",
        &dead,
        &format!("?{DEAD}"),
        "7",
    ]);
    let alive = format!("{} 99795397472557", DEAD.replace('0', "f"));
    server.command::<u64>(&["HSET", "dlock:room", "q300", &alive]);
    assert!(reader().try_acquire().await.unwrap().is_none(), "one stands in line");
    assert_eq!((field("q7"), field("q").as_deref()), (None, Some("300")));
    server.command::<u64>(&["HSET", "dlock:room", "q300", &dead]);
    reader().try_acquire().await.unwrap().expect("nobody stands in line").release().await.unwrap();
    assert_eq!((field("q300"), field("F"), field("q")), (None, None, None));
    guard.release().await.unwrap();
    assert_eq!(held(&server), [""; 0]);
}

#[tokio::test]
async fn a_release_by_force_tells_those_in_line() {
    let server = RedisServer::start().unwrap();
    let locks = locks(&server.url(), LONG).await;
    let room = || locks.lock("room");
    for lock in [room(), room().read(), room().with_fairness(true)] {
        let guard = lock.acquire().await.unwrap();
        let waiter = wait_behind_any(&server, &locks).await;
        let mut connection = server.admin();
        let mut told = connection.as_pubsub();
        told.psubscribe("dlock:room#*").unwrap();
        assert!(locks.force_release("room").await.unwrap());
        told.set_read_timeout(Some(LONG)).unwrap();
        told.get_message().expect("a message to the first in line");
        soon("the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
        drop(guard);
    }
}

/// Its line about the holder leaves room for few. The others have their turn all the same, and nothing grows: there is
/// room for the mark of a reader and for what says that the key was left.
#[tokio::test]
async fn more_than_there_is_room_for_behind_a_holder_have_their_turns_too() {
    let server = RedisServer::start().unwrap();
    let redis = Redis::connect(&server.url()).await.unwrap();
    let labelled = |length| Locks::builder(redis.clone()).with_label("a".repeat(length)).build().unwrap();
    let others = locks(&server.url(), LONG).await;
    let value = || server.command::<String>(&["GET", "dlock:room"]);
    let guard = labelled(1).lock("room").acquire().await.unwrap();
    // So that what is stored with the last place is as long as can be.
    let length = 1 + (LONGEST - " !".len() + PLACE - value().len() % PLACE) % PLACE;
    guard.release().await.unwrap();
    let guard = labelled(length).lock("room").acquire().await.unwrap();
    let mut waiters = JoinSet::new();
    for _ in 0..12 {
        let lock = fair(&others);
        waiters.spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() });
    }
    let asked = || server.command_calls().get("getrange").copied().unwrap_or_default();
    until("questions of all", || asked() >= 3 * 12).await;
    assert!(value().len() >= LONGEST && (1..12).contains(&waiting(&server)), "{}", value());
    assert!(value().len() + " ?!".len() + LEFT_BEHIND.len() < 512, "{}", value());
    guard.release().await.unwrap();
    soon("their turns", waiters.join_all()).await;
    assert_eq!(held(&server), [""; 0]);
}

/// What is stored of one that waits behind a holder: its token, and until when it is alive.
const PLACE: usize = " >".len() + 32 + ":1795762800000".len();
/// What is so long has no room for one more.
pub(crate) const LONGEST: usize = 454;

#[tokio::test]
async fn a_reader_that_waits_hears_of_a_release_that_leaves_the_key_taken() {
    let server = RedisServer::start().unwrap();
    let locks = locks(&server.url(), LONG).await;
    let guard = locks.lock("room").with_hold_at_least(HOUR).acquire().await.unwrap();
    let reader = locks.lock("room").read().with_wait(LONG);
    let reader = tokio::spawn(async move { reader.acquire().await });
    let value = || server.command::<String>(&["GET", "dlock:room"]);
    until("the mark", || value().ends_with(" ?!")).await;
    let mut connection = server.admin();
    let mut told = connection.as_pubsub();
    told.subscribe("dlock:room").unwrap();
    told.set_read_timeout(Some(LONG)).unwrap();
    guard.release().await.unwrap();
    told.get_message().expect("a message to those who listen");
    reader.abort();
}

/// The reply to other clients is the documented one, whoever waits; dlock reads more of it.
#[tokio::test]
async fn a_release_by_the_script_for_other_clients_reports_two_or_more_where_a_reader_waits() {
    let server = RedisServer::start().unwrap();
    let locks = locks(&server.url(), LONG).await;
    let (script, token) = (dlock_redis::client_scripts().lock, "a".repeat(32));
    let lock = ["dlock:room", "dlock:fence:{0}"];
    let taken = [&["EVAL", script, "2"], &lock[..], &["1", "60000", &token, "0 host=other"]].concat();
    let taken = server.command::<String>(&taken);
    assert!(taken.ends_with("+1"), "{taken}");
    let reader = locks.lock("room").read();
    let reader = tokio::spawn(async move { reader.acquire().await });
    until("the mark", || server.command::<String>(&["GET", "dlock:room"]).ends_with(" ?!")).await;
    let (what, number): (Vec<i64>, String) =
        server.command(&["EVAL", script, "1", "dlock:room", "2", &token]);
    assert_eq!((&what[..2], &*number), (&[0, 1][..], "2"));
    assert!(what[2] >= 1 << 30, "{what:?} does not report the reader");
    soon("its turn", reader).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_reader_that_has_gone_keeps_writers_out_for_a_moment_only() {
    let server = RedisServer::start().unwrap();
    let locks = locks(&server.url(), LONG).await;
    let guard = locks.lock("room").acquire().await.unwrap();
    let reader = locks.lock("room").read();
    let reader = tokio::spawn(async move { reader.acquire().await });
    until("the mark", || server.command::<String>(&["GET", "dlock:room"]).ends_with(" ?!")).await;
    assert!(locks.inspect("room").await.unwrap().is_some(), "the mark is no part of who holds it");
    reader.abort();
    guard.release().await.unwrap();
    assert!(locks.inspect("room").await.unwrap().is_none());
    soon("its turn", locks.lock("room").acquire()).await.unwrap().release().await.unwrap();
    until("the end of the chance", || held(&server).is_empty()).await;
}

/// A place of one that is never heard of again, alive until then, in ms of the server's clock.
fn leave_a_place(server: &RedisServer, until_ms: &str) {
    let (token, place) = ("a".repeat(32), format!("?{}", "a".repeat(32)));
    let entry = format!("{token} {until_ms}");
    let words = ["HSET", "dlock:room", "f", "1", "q", "1", "n", "0", "e", "0", "q1", &entry, &place, "1"];
    server.command::<u32>(&words);
}

#[tokio::test]
async fn those_who_take_it_at_once_or_without_a_place_do_not_overtake() {
    let server = RedisServer::start().unwrap();
    let locks = locks(&server.url(), LONG).await;
    leave_a_place(&server, "99999999999999");
    for lock in [fair(&locks), locks.lock("room"), locks.lock("room").read()] {
        assert!(lock.try_acquire().await.unwrap().is_none(), "it is another one's turn");
    }
    error_of(locks.semaphore("room", 2).try_acquire().await, ErrorKind::Conflict);
    assert!(!locks.force_release("room").await.unwrap(), "nobody holds it");
    assert_eq!(in_line(&server), 1, "those who do not wait leave no place, and take none away");
}

#[tokio::test]
async fn one_who_was_not_heard_of_for_too_long_is_skipped_at_once() {
    let server = RedisServer::start().unwrap();
    let locks = locks(&server.url(), LONG).await;
    leave_a_place(&server, "1795000000000");
    fair(&locks).try_acquire().await.unwrap().expect("nobody waits").release().await.unwrap();
    assert_eq!(held(&server), [""; 0]);
}

#[tokio::test]
async fn waiters_that_are_cancelled_leave_nothing_and_those_behind_them_are_served() {
    let server = RedisServer::start().unwrap();
    let (ours, theirs) = (locks(&server.url(), LONG).await, locks(&server.url(), LONG).await);
    let guard = fair(&ours).acquire().await.unwrap();
    let (first, middle) = (wait_behind(&server, &theirs).await, wait_behind(&server, &ours).await);
    let (behind, last) = (wait_behind(&server, &theirs).await, wait_behind(&server, &ours).await);
    for waiter in [&first, &middle, &last] {
        waiter.abort();
    }
    until("the places to be left", || in_line(&server) == 1).await;
    guard.release().await.unwrap();
    let guard = soon("its turn", behind).await.unwrap().unwrap();
    // One who leaves when it is its turn, and has not taken it yet, passes the turn on.
    let next = wait_behind(&server, &ours).await;
    let after = wait_behind(&server, &theirs).await;
    guard.release().await.unwrap();
    next.abort();
    if let Ok(taken) = next.await {
        drop(taken);
    }
    let guard = soon("its turn", after).await.unwrap().unwrap();
    guard.release().await.unwrap();
    until("the clean-up", || ours.stats().background + theirs.stats().background == 0).await;
    assert_eq!(held(&server), [""; 0]);
}

/// Kills connections and has scripts forgotten until all have come to their end.
async fn disturbed(server: &RedisServer, mut tasks: JoinSet<()>) {
    soon("all rounds", async {
        loop {
            tokio::select! {
                done = tasks.join_next() => match done {
                    Some(done) => done.unwrap(),
                    None => break,
                },
                () = tokio::time::sleep(Duration::from_millis(40)) => {
                    server.command::<u32>(&["CLIENT", "KILL", "TYPE", "normal"]);
                    server.command::<u32>(&["CLIENT", "KILL", "TYPE", "pubsub"]);
                    server.command::<()>(&["SCRIPT", "FLUSH"]);
                }
            }
        }
    })
    .await;
}

/// What one task does, again and again; errors that may pass are none of its business.
async fn rounds<I>(lock: Lock, enter: impl Fn() -> I) {
    for _ in 0..8 {
        let guard = match lock.acquire().await {
            Ok(guard) => guard,
            Err(error) if error.is_retryable() => continue,
            Err(error) => panic!("{error}"),
        };
        let inside = enter();
        tokio::time::sleep(Duration::from_millis(1)).await;
        drop(inside);
        drop(guard.release().await);
    }
}

#[tokio::test]
async fn no_two_have_it_at_once_while_connections_are_killed_and_scripts_forgotten() {
    let server = RedisServer::start().unwrap();
    let inside = Arc::new(RwLock::new(()));
    // Withdrawals whose connection is gone are repeated for as long as a lease.
    let lease = Duration::from_secs(5);
    let clients = [locks(&server.url(), lease).await, locks(&server.url(), lease).await];
    let mut tasks = JoinSet::new();
    for task in 0..6 {
        let (lock, inside) = (fair(&clients[task % 2]), Arc::clone(&inside));
        let enter = move || Arc::clone(&inside).try_write_owned().expect("two had it");
        tasks.spawn(rounds(lock, enter));
    }
    disturbed(&server, tasks).await;
    until("the clean-up", || clients.iter().all(|locks| locks.stats().background == 0)).await;
    until("the places to be left", || held(&server).is_empty()).await;
}

#[tokio::test]
async fn no_writer_is_beside_anybody_while_connections_are_killed_and_scripts_forgotten() {
    let server = RedisServer::start().unwrap();
    let inside = Arc::new(RwLock::new(()));
    let lease = Duration::from_secs(5);
    let clients = [locks(&server.url(), lease).await, locks(&server.url(), lease).await];
    let mut tasks = JoinSet::new();
    for task in 0..8 {
        let (lock, inside) = (clients[task % 2].lock("room").with_wait(LONG), Arc::clone(&inside));
        let (alone, beside) = (Arc::clone(&inside), inside);
        match task % 4 {
            kind @ 0..=1 => {
                let enter = move || Arc::clone(&alone).try_write_owned().expect("not alone");
                tasks.spawn(rounds(lock.with_fairness(kind == 1), enter))
            }
            _ => tasks.spawn(rounds(lock.read(), move || {
                Arc::clone(&beside).try_read_owned().expect("beside a writer")
            })),
        };
    }
    disturbed(&server, tasks).await;
    until("the clean-up", || clients.iter().all(|locks| locks.stats().background == 0)).await;
    until("the end of what was kept", || held(&server).is_empty()).await;
}

#[tokio::test]
async fn locks_that_require_it_are_fair_and_what_cannot_be_is_refused() {
    let server = RedisServer::start().unwrap();
    let redis = Redis::connect(&server.url()).await.unwrap();
    let plain = Locks::new(redis.clone());
    let error = error_of(plain.require(&[Requirement::Fair]), ErrorKind::Unsupported);
    assert!(error.to_string().contains("with_fairness"), "{error}");
    let locks = Locks::builder(redis).require(Requirement::Fair).build().unwrap();
    locks.require(&[Requirement::Fair]).unwrap();
    let guard = locks.lock("room").acquire().await.unwrap();
    assert_eq!(server.command::<String>(&["TYPE", "dlock:room"]), "hash");
    guard.release().await.unwrap();
    error_of(locks.lock("room").read().acquire().await, ErrorKind::Unsupported);
    error_of(locks.semaphore("room", 2).acquire().await, ErrorKind::Unsupported);
    let builder = Redis::builder(&server.url()).with_redisson(true).with_recipe(Recipe::ReadWriteLock);
    let redisson = Locks::new(builder.connect().await.unwrap());
    error_of(redisson.lock("room").with_fairness(true).acquire().await, ErrorKind::Unsupported);
    let both = locks.lock_all(["a", "b"]).acquire().await.unwrap();
    both.release().await.unwrap();
    assert_eq!(held(&server), [""; 0]);
}
