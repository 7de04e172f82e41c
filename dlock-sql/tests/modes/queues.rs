//! Waiting in the queues of the server.

use std::time::Duration;

use dlock_core::backend::Withdrawal;
use dlock_core::{Backend, Claim, ErrorKind, Guard, Locks, Result, Wait};
use dlock_rig::proxy::{Pgwire, Proxy};
use dlock_rig::servers::postgres::PostgresServer;
use futures_util::future::join_all;
use sqlx::{Connection, PgConnection};
use tokio::task::JoinHandle;

use crate::by_hand::{busy, granted, request};
use crate::kept::{
    Kind, LONG, MysqlRow, MysqlSession, PostgresRow, PostgresSession, locks, on_each_kind, over, soon, take,
    until,
};

fn wait(locks: &Locks, key: &str) -> JoinHandle<Result<Guard>> {
    let lock = locks.lock(key);
    tokio::spawn(async move { lock.acquire().await })
}

async fn attempt(locks: &Locks, key: &str) -> Result<Option<Guard>> {
    locks.lock(key).try_acquire().await
}

async fn got(waiter: JoinHandle<Result<Guard>>) -> Guard {
    soon("the lock", waiter).await.unwrap().unwrap_or_else(|error| panic!("{error}"))
}

on_each_kind! {
    async fn a_thousand_waiters_of_a_key_ask_hardly_ever<K: Kind>() {
        let server = K::start(&[]);
        let ours = locks::<K>(&server, LONG).await;
        let proxy = Proxy::start(K::address(&server)).unwrap();
        let theirs = over::<K>(&K::url_through(&server, proxy.address()), LONG).await;
        let guard = take(&ours, "hot").await;
        let first = wait(&theirs, "hot");
        until("the first one waits on the server", || K::waiting(&server) == 1).await;
        let waiters: Vec<_> = (0..1_000).map(|_| wait(&theirs, "hot")).collect();
        let sent = proxy.traffic().bytes_to_server;
        tokio::time::sleep(Duration::from_secs(2)).await;
        // A question a second, in case that a release was missed, and a sign of life.
        let sent = proxy.traffic().bytes_to_server - sent;
        assert!(sent < 20_000, "{sent} bytes");
        assert_eq!(K::waiting(&server), 1);
        waiters.iter().for_each(JoinHandle::abort);
        guard.release().await.unwrap();
        got(first).await.release().await.unwrap();
        until("nobody waits any more", || K::waiting(&server) == 0 && K::held(&server) == 0).await;
    }

    async fn a_thousand_who_want_a_taken_key_at_one_moment_ask_hardly_ever<K: Kind>() {
        let server = K::start(&[]);
        let ours = locks::<K>(&server, LONG).await;
        let proxy = Proxy::start(K::address(&server)).unwrap();
        let theirs = over::<K>(&K::url_through(&server, proxy.address()), LONG).await;
        take(&theirs, "hot").await.release().await.unwrap();
        let guard = take(&ours, "hot").await;
        let sent = proxy.traffic().bytes_to_server;
        let tried = join_all((0..1_000).map(|_| attempt(&theirs, "hot"))).await;
        assert!(tried.into_iter().all(|tried| tried.unwrap().is_none()));
        let waiters: Vec<_> = (0..1_000).map(|_| wait(&theirs, "hot")).collect();
        until("one waits on the server", || K::waiting(&server) == 1).await;
        waiters.iter().for_each(JoinHandle::abort);
        for waiter in waiters {
            assert!(waiter.await.unwrap_err().is_cancelled());
        }
        until("nobody waits any more", || K::waiting(&server) == 0).await;
        // A question of each would be 500,000 and more.
        let sent = proxy.traffic().bytes_to_server - sent;
        assert!(sent < 60_000, "{sent} bytes");
        guard.release().await.unwrap();
        take(&theirs, "hot").await.release().await.unwrap();
    }

    /// One has it, and the others learn of that one.
    async fn many_who_want_a_free_key_at_one_moment_ask_hardly_ever<K: Kind>() {
        let server = K::start(&[]);
        let proxy = Proxy::start(K::address(&server)).unwrap();
        let locks = over::<K>(&K::url_through(&server, proxy.address()), LONG).await;
        take(&locks, "hot").await.release().await.unwrap();
        let sent = proxy.traffic().bytes_to_server;
        let mut tried = join_all((0..500).map(|_| attempt(&locks, "hot"))).await;
        tried.retain(|tried| tried.as_ref().unwrap().is_some());
        assert_eq!(tried.len(), 1);
        let sent = proxy.traffic().bytes_to_server - sent;
        assert!(sent < 60_000, "{sent} bytes");
        tried.pop().unwrap().unwrap().unwrap().release().await.unwrap();
        let taken = join_all((0..100).map(|_| async {
            take(&locks, "hot").await.release().await.unwrap();
        }));
        soon("all turns", taken).await;
    }

    async fn a_connection_that_waits_may_be_killed<K: Kind>() {
        let server = K::start(&[]);
        let (ours, theirs) = (locks::<K>(&server, LONG).await, locks::<K>(&server, LONG).await);
        let guard = take(&ours, "hot").await;
        let waiter = wait(&theirs, "hot");
        for _ in 0..3 {
            until("it waits on the server", || K::waiting(&server) == 1).await;
            K::kill_waiting(&server);
        }
        guard.check().expect("nobody killed the session that has the lock");
        guard.release().await.unwrap();
        got(waiter).await.release().await.unwrap();
    }

    /// So that its process stands back for a moment after its time.
    async fn a_release_tells_that_another_process_waits_and_of_none_of_its_own<K: Kind>() {
        let server = K::start(&[]);
        let (ours, theirs) = (K::connect(&K::url(&server)).await.unwrap(), K::connect(&K::url(&server)).await.unwrap());
        for (waits, told) in [(None, 0), (Some(&theirs), 1), (Some(&ours), 0), (Some(&theirs), 1), (None, 0)] {
            let mut holder = ours.claim(request("k", LONG).await);
            granted(holder.attempt().await.unwrap());
            let mut waiter = None;
            if let Some(backend) = waits {
                let waiting = waiter.insert(backend.claim(request("k", LONG).await));
                busy(waiting.attempt().await.unwrap());
                tokio::select! {
                    told = waiting.changed() => panic!("{told:?} while it is held"),
                    () = until("it waits on the server", || K::waiting(&server) == 1) => {}
                }
            }
            assert_eq!(holder.withdraw().await.unwrap(), Withdrawal::REMOVED.with_others_waiting(told));
            if let Some(mut waiter) = waiter {
                soon("the release", waiter.changed()).await.unwrap();
                assert_eq!(waiter.withdraw().await.unwrap(), Withdrawal::ABSENT);
            }
            until("nobody waits any more", || K::waiting(&server) == 0 && K::held(&server) == 0).await;
        }
    }

    /// Those of a session go out in one statement.
    async fn releases_at_one_moment_tell_of_each_key_whether_it_is_waited_for<K: Kind>() {
        let server = K::start(&[]);
        let (ours, theirs) = (K::connect(&K::url(&server)).await.unwrap(), locks::<K>(&server, LONG).await);
        let mut holders = Vec::new();
        for n in 0..9 {
            let mut holder = ours.claim(request(&format!("k{n}"), LONG).await);
            granted(holder.attempt().await.unwrap());
            holders.push(holder);
        }
        let waiters = [1, 4, 5].map(|n| wait(&theirs, &format!("k{n}")));
        until("they wait on the server", || K::waiting(&server) == waiters.len()).await;
        let released = join_all(holders.iter_mut().map(Claim::withdraw)).await;
        let told: Vec<u32> = released.into_iter().map(|left| left.unwrap().others_waiting.count).collect();
        assert_eq!(told, [0, 1, 0, 0, 1, 1, 0, 0, 0]);
        for waiter in waiters {
            got(waiter).await.release().await.unwrap();
        }
    }

    async fn who_goes_away_while_it_waits_is_in_nobodys_way<K: Kind>() {
        let server = K::start(&[]);
        let all = [locks::<K>(&server, LONG).await, locks::<K>(&server, LONG).await, locks::<K>(&server, LONG).await];
        let guard = take(&all[0], "hot").await;
        let second = wait(&all[1], "hot");
        until("the second waits on the server", || K::waiting(&server) == 1).await;
        let third = wait(&all[2], "hot");
        until("the third waits on the server", || K::waiting(&server) == 2).await;
        second.abort();
        until("the second has gone", || K::waiting(&server) == 1).await;
        guard.release().await.unwrap();
        got(third).await.release().await.unwrap();
        until("nobody waits any more", || K::waiting(&server) == 0 && K::held(&server) == 0).await;
    }

    async fn more_keys_than_connections_for_waiting_are_waited_for<K: Kind>() {
        let server = K::start(&[]);
        let (ours, theirs) = (locks::<K>(&server, LONG).await, locks::<K>(&server, LONG).await);
        let (mut guards, mut waiters) = (Vec::new(), Vec::new());
        for n in 0..7 {
            guards.push(take(&ours, &format!("k{n}")).await);
            waiters.push(wait(&theirs, &format!("k{n}")));
        }
        until("as many wait as may", || K::waiting(&server) == 4).await;
        for guard in guards {
            guard.release().await.unwrap();
        }
        for waiter in waiters {
            got(waiter).await.release().await.unwrap();
        }
    }

    /// What is under way then goes on without that runtime, and so do the signs of life.
    async fn a_runtime_that_is_blocked_in_the_middle_of_a_request_loses_no_lock<K: Kind>() {
        let server = K::start(&[]);
        let lease = Duration::from_secs(3);
        let (ours, theirs) = (locks::<K>(&server, lease).await, locks::<K>(&server, lease).await);
        let kept = take(&ours, "kept").await;
        let blocked = ours.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                take(&blocked, "warm").await.release().await.unwrap();
                let one = tokio::spawn({
                    let lock = blocked.lock("other");
                    async move { lock.acquire().await.map(drop) }
                });
                tokio::task::yield_now().await;
                // More than a lease: the connection would have been given up.
                std::thread::sleep(lease + lease / 3);
                one.abort();
            });
        });
        while !thread.is_finished() {
            kept.check().expect("its connection shows signs of life");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        thread.join().unwrap();
        kept.release().await.unwrap();
        until("nothing is left", || K::held(&server) == 0).await;
        take(&theirs, "other").await.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_who_ask_a_session_at_once_are_answered_by_few_statements() {
    let server = PostgresSession::start(&[]);
    let ours = locks::<PostgresSession>(&server, LONG).await;
    let proxy = Proxy::speaking(Pgwire::default(), server.address()).unwrap();
    let theirs = over::<PostgresSession>(&PostgresSession::url_through(&server, proxy.address()), LONG).await;
    let guard = take(&ours, "hot").await;
    let asked = || proxy.requests().values().sum::<u64>();
    let before = asked();
    let lock = theirs.lock("hot").with_wait(Wait::No);
    let asking = (0..1_000).map(|_| lock.acquire()).collect::<Vec<_>>();
    for answer in join_all(asking).await {
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::Busy);
    }
    let asked = asked() - before;
    assert!(asked <= 100, "{asked} statements");
    guard.release().await.unwrap();
}

/// Who waits is asked for by a lock, for which the server may have no room.
async fn a_release_loses_nothing_where_the_server_has_no_room<K: Kind<Server = PostgresServer>>() {
    let server = K::start(&[("max_locks_per_transaction", "10"), ("max_connections", "20")]);
    let locks = locks::<K>(&server, LONG).await;
    let guards = [take(&locks, "a").await, take(&locks, "b").await, take(&locks, "c").await];
    let connections =
        || server.query("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'dlock'");
    let open = connections();
    let mut other = PgConnection::connect(&server.url()).await.unwrap();
    let [one, two, three] = guards;
    fill(&mut other).await;
    one.release().await.unwrap();
    fill(&mut other).await;
    // Those of a session in one statement.
    let (two, three) = tokio::join!(two.release(), three.release());
    two.and(three).unwrap();
    assert_eq!(locks.stats().lost, 0);
    other.close().await.unwrap();
    until("there is room again", || server.try_query("SELECT 1").is_ok()).await;
    assert_eq!(connections(), open, "a connection was given up");
    until("every lock is free", || K::held(&server) == 0).await;
}

/// Takes locks until there is no room for another.
async fn fill(on: &mut PgConnection) {
    // Once more, since a statement that fails gives back what it needed itself.
    for _ in 0..3 {
        let fill = "SELECT pg_advisory_lock(number) FROM generate_series(1, 1000000) AS number";
        let full = sqlx::query(fill).execute(&mut *on).await.unwrap_err();
        assert!(full.to_string().contains("shared memory"), "{full}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_of_sessions_loses_nothing_where_postgresql_has_no_room_for_one_lock_more() {
    a_release_loses_nothing_where_the_server_has_no_room::<PostgresSession>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_of_rows_loses_nothing_where_postgresql_has_no_room_for_one_lock_more() {
    a_release_loses_nothing_where_the_server_has_no_room::<PostgresRow>().await;
}

mod in_time {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Longer than a process may go on while others wait.
    const SECTION: Duration = Duration::from_millis(60);
    const SECTIONS: usize = 40;

    on_each_kind! {
        async fn two_that_take_it_again_at_once_take_turns<K: Kind>() {
            let server = K::start(&[]);
            let order: Arc<Mutex<Vec<usize>>> = Arc::default();
            let mut tasks = Vec::new();
            for process in 0..2 {
                let (locks, order) = (locks::<K>(&server, LONG).await, Arc::clone(&order));
                tasks.push(tokio::spawn(async move {
                    take(&locks, "other").await.release().await.unwrap();
                    while order.lock().unwrap().len() < SECTIONS {
                        let guard = take(&locks, "hot").await;
                        order.lock().unwrap().push(process);
                        tokio::time::sleep(SECTION).await;
                        guard.release().await.unwrap();
                    }
                }));
            }
            for task in tasks {
                task.await.unwrap();
            }
            let order = order.lock().unwrap();
            let longest = order.chunk_by(|one, next| one == next).map(<[_]>::len).max();
            assert!(longest <= Some(5), "{longest:?} in a row: {order:?}");
        }
    }
}

/// Neither a waiter that gives up nor a new connection is an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_is_usual_is_an_error_in_the_log_of_postgresql() {
    nothing_is_an_error::<PostgresSession>().await;
    nothing_is_an_error::<PostgresRow>().await;
}

async fn nothing_is_an_error<K: Kind<Server = PostgresServer>>() {
    let server = K::start(&[]);
    K::connect(&K::url(&server)).await.unwrap();
    let before = server.output().len();
    let (ours, theirs) = (locks::<K>(&server, LONG).await, locks::<K>(&server, LONG).await);
    let guards = [take(&ours, "hot").await, take(&ours, "warm").await];
    let (first, second) = (wait(&theirs, "hot"), wait(&ours, "hot"));
    until("one waits on the server", || K::waiting(&server) >= 1).await;
    let third = wait(&locks::<K>(&server, LONG).await, "hot");
    until("another one waits on the server", || K::waiting(&server) >= 2).await;
    for waiter in [&first, &second, &third] {
        waiter.abort();
    }
    until("nobody waits any more", || K::waiting(&server) == 0).await;
    for guard in guards {
        guard.release().await.unwrap();
    }
    take(&theirs, "hot").await.release().await.unwrap();
    let log = server.output();
    assert!(!log[before..].contains("ERROR") && !log[before..].contains("FATAL"), "{}", &log[before..]);
}
