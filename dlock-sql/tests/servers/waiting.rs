//! Waiting for what other processes hold.

use std::collections::HashSet;
use std::time::Duration;

use dlock_core::Locks;
use dlock_rig::proxy::{Direction, Flow};
use dlock_rig::servers::postgres::PostgresServer;

use crate::support::{Db, on_both, take, until};

on_both! {

    async fn a_thousand_waiters_ask_no_more_than_one_for_each_key<D: Db>(db: D) {
        const KEYS: usize = 10;
        const WAITERS: usize = 1_000;
        let ours = db.locks().await;
        let mut guards = Vec::new();
        for key in 0..KEYS {
            guards.push(take(&ours, &format!("k{key}")).await);
        }
        let proxy = db.proxy();
        let backend = D::connect(&db.url_through(proxy.address())).await.unwrap();
        let theirs = Locks::builder(backend).with_wait(Duration::from_secs(120)).build().unwrap();
        let wait = |n: usize| {
            let lock = theirs.lock(format!("k{}", n % KEYS));
            tokio::spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() })
        };
        let asked = || proxy.requests().get("EXECUTE").copied().unwrap_or_default();
        let mut waiters: Vec<_> = (0..KEYS).map(wait).collect();
        // The first of each key asks as seldom as it will; who comes later stands in line behind it.
        until("the first of each key asks", || asked() >= 8 * KEYS as u64).await;
        waiters.extend((KEYS..WAITERS).map(wait));
        let (before, start) = (asked(), std::time::Instant::now());
        tokio::time::sleep(Duration::from_secs(3)).await;
        let rate = (asked() - before) as f64 / start.elapsed().as_secs_f64();
        // As documented: 20 on PostgreSQL, which tells of releases; else about 10 a key.
        let bound = if D::KEY == "key" { 20.0 } else { 120.0 };
        assert!(rate > 0.0 && rate <= bound, "{rate:.1} statements a second");
        println!("{WAITERS} waiters on {KEYS} keys: {rate:.1} statements a second");
        for guard in guards {
            guard.release().await.unwrap();
        }
        for waiter in waiters {
            waiter.await.unwrap();
        }
        assert_eq!(db.held(), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_is_told_only_where_somebody_waits() {
    let server = <PostgresServer as Db>::start();
    let (ours, theirs) = (server.locks().await, server.locks().await);
    let awaited = || server.query("SELECT awaited FROM dlock WHERE key = 'a'");
    let guard = take(&ours, "a").await;
    assert_eq!(awaited(), "f");
    let waiter = tokio::spawn(async move { take(&theirs, "a").await });
    until("the waiter notes that it waits", || awaited() == "t").await;
    guard.release().await.unwrap();
    let guard = waiter.await.unwrap();
    until("nobody waits any more", || awaited() == "f").await;
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_outlive_the_connection_that_listens() {
    let server = <PostgresServer as Db>::start();
    let (ours, theirs) = (server.locks().await, server.locks().await);
    let listens = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'";
    for _ in 0..3 {
        let guard = take(&ours, "a").await;
        let waiter = tokio::spawn({
            let theirs = theirs.clone();
            async move { take(&theirs, "a").await }
        });
        until("somebody listens", || server.query(&format!("{listens} AND pid <> pg_backend_pid()")) != "0")
            .await;
        server.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND pid <> pg_backend_pid()");
        guard.release().await.unwrap();
        waiter.await.unwrap().release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_notifications_waiters_ask() {
    let server = <PostgresServer as Db>::start();
    server.backend().await;
    let options = dlock_sql::PostgresOptions::from_url(&server.url()).unwrap().with_notifications(false);
    let locks =
        Locks::builder(options.connect().await.unwrap()).with_wait(Duration::from_secs(20)).build().unwrap();
    let guard = take(&server.locks().await, "a").await;
    let waiter = tokio::spawn(async move { take(&locks, "a").await });
    guard.release().await.unwrap();
    waiter.await.unwrap().release().await.unwrap();
    assert_eq!(server.query("SELECT awaited FROM dlock WHERE key = 'a'"), "f");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_leaves_while_the_connection_that_listens_is_opened_leaves_no_channel() {
    let server = PostgresServer::options().setting("log_statement", "all").start().expect("a server");
    server.backend().await;
    let ours = server.locks().await;
    let proxy = server.proxy();
    let backend = dlock_sql::Postgres::connect(&server.url_through(proxy.address())).await.unwrap();
    let theirs = Locks::builder(backend).with_wait(Duration::from_secs(20)).build().unwrap();
    take(&theirs, "before").await.release().await.unwrap();
    let _guards = [take(&ours, "room").await, take(&ours, "other").await];
    let wait_for = |key: &str| {
        let lock = theirs.lock(key);
        tokio::spawn(async move { lock.acquire().await })
    };
    let before = proxy.traffic().connections;
    proxy.set(Direction::ToClient, Flow::Delay(Duration::from_millis(100)));
    let waiter = wait_for("room");
    until("the connection", || proxy.traffic().connections > before).await;
    waiter.abort();
    assert!(waiter.await.unwrap_err().is_cancelled());
    proxy.mend();
    let waiter = wait_for("other");
    // Channels are subscribed in the order in which they were asked for, and the first release is noted after that.
    let awaited = || server.query("SELECT awaited FROM dlock WHERE key = 'other'") == "t";
    until("the other one listens", awaited).await;
    until("the channel is left", || listened(&server.output()).len() == 1).await;
    waiter.abort();
}

/// The channels that somebody listens to, by the statements in the server's log.
fn listened(log: &str) -> HashSet<&str> {
    let mut channels = HashSet::new();
    let mut parts = log.split("LISTEN \"");
    let mut before = parts.next().unwrap_or_default();
    for part in parts {
        let channel = part.split('"').next().unwrap_or_default();
        let leaves = before.ends_with("UN");
        if leaves {
            channels.remove(channel)
        } else {
            channels.insert(channel)
        };
        before = part;
    }
    channels
}
