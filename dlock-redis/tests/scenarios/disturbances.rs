//! What administrators and other users of a server do to it while locks are used.

use std::time::Duration;

use dlock_core::{ErrorKind, Locks, Wait};
use dlock_redis::Redis;
use dlock_rig::servers::redis::RedisServer;

use crate::support::{LONG, error_of, held, impatient, locks, over, soon, until};

#[tokio::test]
async fn a_pause_that_outlasts_the_patience_of_requests_leaves_no_lock_behind() {
    let server = RedisServer::start().unwrap();
    let locks = impatient(&server.url(), LONG).await;
    locks.lock("before").acquire().await.unwrap().release().await.unwrap();
    server.command::<()>(&["CLIENT", "PAUSE", "1500", "WRITE"]);
    let lock = locks.lock("room").with_wait(Wait::No);
    let error = soon("the end of the acquire", lock.acquire()).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Unknown | ErrorKind::TimedOut), "{error}");
    // Carried out after the pause, and withdrawn after that.
    until("the clean-up", || locks.stats().background == 0).await;
    assert_eq!(held(&server), [""; 0]);
}

#[tokio::test]
async fn requests_that_are_cancelled_among_those_that_share_their_call_take_nothing_and_spoil_nothing() {
    const REQUESTS: usize = 300;
    let server = RedisServer::start().unwrap();
    let locks = locks(&server.url(), LONG).await;
    locks.lock("before").acquire().await.unwrap().release().await.unwrap();
    server.pause();
    let mut kept = Vec::new();
    let mut cancelled = Vec::new();
    for number in 0..REQUESTS {
        let lock = locks.lock(format!("room_{number}")).with_wait(Wait::Forever);
        let acquire = tokio::spawn(async move { lock.acquire().await });
        if number % 3 == 0 { cancelled.push(acquire) } else { kept.push(acquire) }
    }
    // All have asked.
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
    cancelled.iter().for_each(tokio::task::JoinHandle::abort);
    server.resume();
    let mut guards = Vec::new();
    for acquire in kept {
        guards.push(soon("the lock", acquire).await.unwrap().unwrap());
    }
    until("the clean-up", || locks.stats().background == 0).await;
    assert_eq!(held(&server).len(), guards.len());
    for guard in guards {
        guard.check().unwrap();
        guard.release().await.unwrap();
    }
    assert_eq!(held(&server), [""; 0]);
}

#[tokio::test]
async fn the_holder_of_a_lock_that_is_evicted_knows_at_once() {
    let used = RedisServer::start().unwrap().info("used_memory").parse::<u64>().unwrap();
    let server = RedisServer::options().max_memory(used + (4 << 20), "volatile-lru").start().unwrap();
    let locks = over(Redis::connect(&server.url()).await.unwrap(), Duration::from_secs(600));
    let guard = locks.lock("room").acquire().await.unwrap();
    until("the lock to be tracked", || server.info("tracking_total_keys") == "1").await;
    // Only locks can be evicted here: nothing else expires.
    let data = "x".repeat(100_000);
    for number in 0..60 {
        drop(server.try_command::<()>(&["SET", &format!("data_{number}"), &data]));
    }
    assert_eq!(server.info("evicted_keys"), "1");
    soon("the loss", guard.lost()).await;
}

#[tokio::test]
async fn a_server_whose_scripts_were_renamed_away_is_refused_when_it_is_connected() {
    for command in ["EVALSHA", "EVAL"] {
        let options = RedisServer::options().argument("rename-command", &format!("{command} \"\""));
        let server = options.start().unwrap();
        let error = error_of(Redis::connect(&server.url()).await, ErrorKind::Unsupported);
        assert!(!error.is_retryable() && error.to_string().contains("command"), "{error}");
    }
}

#[tokio::test]
async fn a_subscription_that_is_ended_for_its_full_buffer_is_made_again() {
    let limits = RedisServer::options().argument("client-output-buffer-limit", "pubsub 64kb 64kb 1");
    let server = limits.start().unwrap();
    let (ours, theirs) = (locks(&server.url(), LONG).await, locks(&server.url(), LONG).await);
    let guard = ours.lock("room").acquire().await.unwrap();
    let lock = theirs.lock("room").with_wait(LONG);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    until("the waiter to listen", || !server.channels().is_empty()).await;
    let flood = "x".repeat(1 << 20);
    for _ in 0..3 {
        server.command::<u32>(&["PUBLISH", "dlock:room", &flood]);
    }
    until("the waiter to listen again", || !server.channels().is_empty()).await;
    guard.release().await.unwrap();
    soon("the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn locks_of_two_databases_are_different_also_in_what_is_told_of_them() {
    let server = RedisServer::start().unwrap();
    let in_database = async |number: u8| {
        let redis = Redis::connect(&format!("{}/{number}", server.url())).await.unwrap();
        over(redis, Duration::from_secs(600))
    };
    let (first, second): (Locks, Locks) = (in_database(0).await, in_database(1).await);
    let guards = [first.lock("room").acquire().await.unwrap(), second.lock("room").acquire().await.unwrap()];
    let renewed = |locks: &Locks| locks.stats().renewals;
    until("the first renewals", || renewed(&first) > 0 && renewed(&second) > 0).await;
    let before = renewed(&second);
    server.command::<u32>(&["DEL", "dlock:room"]);
    soon("the loss", guards[0].lost()).await;
    // One name, since the server does not tell databases apart here.
    until("the look at the other", || renewed(&second) > before).await;
    guards[1].check().unwrap();
}
