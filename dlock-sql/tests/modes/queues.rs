//! Waiting in the queues of the server.

use std::time::Duration;

use dlock_core::{ErrorKind, Guard, Locks, Result, Wait};
use dlock_rig::proxy::{Pgwire, Proxy};
use tokio::task::JoinHandle;

use crate::kept::{
    Kind, LONG, MysqlRow, MysqlSession, PostgresRow, PostgresSession, locks, on_each_kind, over, soon, take,
    until,
};

fn wait(locks: &Locks, key: &str) -> JoinHandle<Result<Guard>> {
    let lock = locks.lock(key);
    tokio::spawn(async move { lock.acquire().await })
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
    for answer in futures_util::future::join_all(asking).await {
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::Busy);
    }
    let asked = asked() - before;
    assert!(asked <= 100, "{asked} statements");
    guard.release().await.unwrap();
}
