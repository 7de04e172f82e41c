//! Renewal of many locks, and under difficulties.

use std::time::Duration;

use dlock_core::Claim;
use dlock_core::backend::Renewed;
use sqlx::Connection;

use crate::support::{Site, claim, granted, until};

#[tokio::test]
async fn two_thousand_locks_are_kept_by_their_renewals() {
    let site = Site::new();
    let locks = site.locks().await;
    let mut guards = Vec::new();
    for n in 0..2_000 {
        guards.push(locks.lock(format!("k{n}")).acquire().await.unwrap());
    }
    let before = locks.stats().renewals;
    until("three renewals of each", async || locks.stats().renewals >= before + 6_000).await;
    for guard in &guards {
        guard.check().unwrap();
    }
    assert_eq!((locks.stats().lost, locks.stats().failed_renewals), (0, 0));
}

#[tokio::test]
async fn of_many_renewals_only_those_of_lost_locks_fail() {
    let site = Site::new();
    let backend = site.backend().await;
    let mut claims = Vec::new();
    for n in 0..30 {
        let mut mine = claim(&backend, &format!("k{n:02}"), Duration::from_secs(30)).await;
        let _ = granted(mine.attempt().await.unwrap());
        claims.push(mine);
    }
    site.execute("DELETE FROM dlock WHERE key IN (CAST('k03' AS BLOB), CAST('k17' AS BLOB))").await;
    site.execute("UPDATE dlock SET token = randomblob(16) WHERE key = CAST('k29' AS BLOB)").await;
    site.execute("UPDATE dlock SET expires = 1 WHERE key = CAST('k11' AS BLOB)").await;
    let tasks: Vec<_> =
        claims.into_iter().map(|mut mine| tokio::spawn(async move { mine.renew().await.unwrap() })).collect();
    for (n, task) in tasks.into_iter().enumerate() {
        let expected = if [3, 11, 17, 29].contains(&n) { Renewed::Gone } else { Renewed::Extended };
        assert_eq!(task.await.unwrap(), expected, "k{n:02}");
    }
}

#[tokio::test]
async fn locks_outlive_a_writer_that_keeps_the_file_for_a_while() {
    let site = Site::new();
    let locks = site.locks().await;
    let guard = locks.lock("k").with_lease(Duration::from_secs(2)).acquire().await.unwrap();
    let mut raw = site.raw().await;
    let renewals = locks.stats().renewals;
    for _ in 0..2 {
        let transaction = raw.begin_with("BEGIN IMMEDIATE").await.unwrap();
        tokio::time::sleep(Duration::from_millis(900)).await;
        transaction.rollback().await.unwrap();
        let so_far = locks.stats().renewals;
        until("a renewal in between", async || locks.stats().renewals > so_far).await;
    }
    assert!(locks.stats().renewals > renewals);
    guard.check().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn an_acquire_waits_for_a_writer_that_keeps_the_file_longer_than_one_request() {
    let site = Site::new();
    let locks = site.locks().await;
    let mut raw = site.raw().await;
    let transaction = raw.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let lock = locks.lock("k").with_lease(Duration::from_millis(600)).with_wait(Duration::from_secs(20));
    let waiting = tokio::spawn(async move { lock.acquire().await });
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert!(!waiting.is_finished());
    transaction.rollback().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    guard.check().unwrap();
    guard.release().await.unwrap();
    assert_eq!(locks.stats().rechecks, 0, "a file that is busy is no unknown outcome");
}
