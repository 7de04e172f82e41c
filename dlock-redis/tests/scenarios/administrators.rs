//! Somebody deletes, overwrites or evicts the lock.

use std::time::Duration;

use dlock_core::ErrorKind;
use dlock_rig::servers::redis::RedisServer;

use crate::support::{LONG, error_of, fence, held, locks, soon};

/// Long enough that a third of it is not the machine's noise.
const LEASE: Duration = Duration::from_secs(3);

/// Takes the lock, lets somebody tamper with it, and waits for the holder to notice.
async fn is_noticed(tamper: &[&str]) -> RedisServer {
    let server = RedisServer::start().unwrap();
    let locks = locks(&server.url(), LEASE).await;
    let guard = locks.lock("room").acquire().await.unwrap();
    server.command::<()>(tamper);
    soon("the loss", guard.lost()).await;
    let lost = error_of(guard.check(), ErrorKind::Lost).to_string();
    assert!(!lost.contains("ran out"), "{tamper:?} was noticed by the end of the lease: {lost}");
    error_of(guard.release().await, ErrorKind::NotHeld);
    server
}

#[tokio::test]
async fn a_lock_that_was_deleted_is_lost_at_the_next_renewal() {
    assert_eq!(held(&is_noticed(&["DEL", "dlock:room"]).await), [""; 0]);
}

#[tokio::test]
async fn a_lock_that_was_flushed_is_lost_at_the_next_renewal() {
    assert_eq!(held(&is_noticed(&["FLUSHALL"]).await), [""; 0]);
}

#[tokio::test]
async fn a_lock_that_was_overwritten_with_data_is_lost_and_the_data_stays() {
    let server = is_noticed(&["SET", "dlock:room", "data"]).await;
    assert_eq!(server.command::<String>(&["GET", "dlock:room"]), "data");
}

#[tokio::test]
async fn a_lock_that_another_library_took_over_is_lost_and_stays_theirs() {
    let server = is_noticed(&[
        "EVAL",
        "redis.call('DEL', KEYS[1]) redis.call('HSET', KEYS[1], 'java:7', '1')",
        "1",
        "dlock:room",
    ])
    .await;
    assert_eq!(server.command::<Vec<String>>(&["HGETALL", "dlock:room"]), ["java:7", "1"]);
}

#[tokio::test]
async fn a_lease_that_an_administrator_ended_is_lost_at_the_next_renewal() {
    assert_eq!(held(&is_noticed(&["PEXPIRE", "dlock:room", "1"]).await), [""; 0]);
}

#[tokio::test]
async fn a_lease_that_an_administrator_made_endless_is_one_again_at_the_next_renewal() {
    let server = RedisServer::start().unwrap();
    let locks = locks(&server.url(), LEASE).await;
    let guard = locks.lock("room").acquire().await.unwrap();
    server.command::<()>(&["PERSIST", "dlock:room"]);
    let renewals = locks.stats().renewals;
    crate::support::until("a renewal", || locks.stats().renewals > renewals).await;
    let left: i64 = server.command(&["PTTL", "dlock:room"]);
    assert!((0..=3000).contains(&left), "{left}");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn fences_grow_after_everything_was_flushed() {
    let server = RedisServer::start().unwrap();
    let locks = locks(&server.url(), LONG).await;
    let mut last = 0;
    for flush in ["FLUSHALL", "FLUSHDB", "FLUSHALL"] {
        for _ in 0..50 {
            let guard = locks.lock("room").acquire().await.unwrap();
            assert!(fence(&guard) > last, "{} after {last}", fence(&guard));
            last = fence(&guard);
            guard.release().await.unwrap();
        }
        server.command::<()>(&[flush]);
    }
}

#[tokio::test]
async fn locks_take_up_no_room_once_they_are_released() {
    let server = RedisServer::start().unwrap();
    let locks = locks(&server.url(), LONG).await;
    for number in 0..200 {
        locks.lock(format!("room_{number}")).acquire().await.unwrap().release().await.unwrap();
    }
    assert_eq!(server.keys(), ["dlock:fence:{0}"], "one counter for all locks");
}
