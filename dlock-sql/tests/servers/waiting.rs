//! Waiting for what other processes hold.

use std::time::Duration;

use dlock_core::Locks;
use dlock_testkit::servers::postgres::PostgresServer;

use crate::support::{Db, on_both, take, until};

on_both! {
    async fn a_release_lets_a_waiter_of_another_process_in<D: Db>(db: D) {
        let (ours, theirs) = (db.locks().await, db.locks().await);
        for round in 0..20 {
            let guard = take(&ours, "a").await;
            let waiter = tokio::spawn({ let theirs = theirs.clone(); async move { take(&theirs, "a").await } });
            if round % 2 == 0 {
                until("waiting", || theirs.stats().background == 0 && !waiter.is_finished()).await;
            }
            guard.release().await.unwrap();
            waiter.await.unwrap().release().await.unwrap();
        }
    }

    async fn many_processes_count_in_one_row_without_losing_any<D: Db>(db: D) {
        db.query("CREATE TABLE counter (n bigint)");
        db.query("INSERT INTO counter VALUES (0)");
        let mut workers = Vec::new();
        let db = std::sync::Arc::new(db);
        for _ in 0..4 {
            let (locks, db) = (db.locks().await, std::sync::Arc::clone(&db));
            workers.push(tokio::spawn(async move {
                for _ in 0..15 {
                    let guard = take(&locks, "counter").await;
                    let now: u64 = db.query("SELECT n FROM counter").parse().unwrap();
                    db.query(&format!("UPDATE counter SET n = {}", now + 1));
                    guard.release().await.unwrap();
                }
            }));
        }
        for worker in workers {
            worker.await.unwrap();
        }
        assert_eq!(db.query("SELECT n FROM counter"), "60");
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
