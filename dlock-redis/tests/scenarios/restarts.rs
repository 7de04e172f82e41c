//! Servers that crash and come back, with their data or without.

use std::time::{Duration, Instant};

use dlock_core::{ErrorKind, Wait};
use dlock_rig::servers::redis::RedisServer;

use crate::support::{LONG, SHORT, error_of, fence, held, locks, soon, until};

#[tokio::test]
async fn a_server_that_forgot_everything_still_gives_higher_fences() {
    let mut server = RedisServer::start().unwrap();
    let (ours, theirs) = (locks(&server.url(), LONG).await, locks(&server.url(), LONG).await);
    let mut last = 0;
    for _ in 0..3 {
        let guard = ours.lock("room").acquire().await.unwrap();
        assert!(fence(&guard) > last, "{} after {last}", fence(&guard));
        server.restart().unwrap();
        let next = soon("the forgotten lock", theirs.lock("room").acquire()).await.unwrap();
        assert!(fence(&next) > fence(&guard), "{} after {}", fence(&next), fence(&guard));
        last = fence(&next);
        next.release().await.unwrap();
        error_of(guard.release().await, ErrorKind::NotHeld);
    }
}

#[tokio::test]
async fn a_holder_whose_lock_was_forgotten_learns_it_from_its_next_renewal() {
    let mut server = RedisServer::start().unwrap();
    let locks = locks(&server.url(), Duration::from_secs(3)).await;
    let guard = locks.lock("room").acquire().await.unwrap();
    server.restart().unwrap();
    soon("the loss", guard.lost()).await;
    error_of(guard.check(), ErrorKind::Lost);
    assert_eq!(held(&server), [""; 0], "a renewal brings no lock back");
}

#[tokio::test]
async fn a_server_that_keeps_its_data_keeps_the_lock() {
    let mut server = RedisServer::options().append_only("always").start().unwrap();
    let (ours, theirs) =
        (locks(&server.url(), Duration::from_secs(10)).await, locks(&server.url(), LONG).await);
    let guard = ours.lock("room").acquire().await.unwrap();
    server.restart().unwrap();
    assert!(soon("an answer", theirs.lock("room").try_acquire()).await.unwrap().is_none());
    let renewals = ours.stats().renewals;
    until("a renewal", || ours.stats().renewals > renewals).await;
    guard.check().unwrap();
    let first = fence(&guard);
    guard.release().await.unwrap();
    assert!(fence(&theirs.lock("room").acquire().await.unwrap()) > first);
}

#[tokio::test]
async fn who_waits_gets_the_lock_when_the_server_is_back() {
    let mut server = RedisServer::start().unwrap();
    let locks = locks(&server.url(), LONG).await;
    server.kill();
    let lock = locks.lock("room");
    let waiter = tokio::spawn(async move { lock.acquire().await });
    until("an attempt", || locks.stats().rechecks > 0 || !waiter.is_finished()).await;
    server.restart().unwrap();
    soon("the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_release_while_the_server_is_away_is_made_up_for() {
    let mut server = RedisServer::options().append_only("always").start().unwrap();
    let locks = locks(&server.url(), LONG).await;
    let guard = locks.lock("room").acquire().await.unwrap();
    let _kept = locks.lock("kept").acquire().await.unwrap();
    server.kill();
    let error = soon("the release", guard.release()).await.expect_err("the server is away");
    assert!(error.is_retryable(), "{error}");
    // The server comes back with both locks. The release may be the first to see its own.
    server.restart().unwrap();
    assert!(held(&server).contains(&"kept".to_owned()));
    until("the release", || locks.stats().background == 0).await;
    assert_eq!(held(&server), ["kept"]);
    assert_eq!(locks.stats().abandoned, 0, "it was not left to its lease");
}

#[tokio::test]
async fn the_lease_runs_while_the_server_is_down() {
    let mut server = RedisServer::options().append_only("always").start().unwrap();
    let (ours, theirs) = (locks(&server.url(), SHORT).await, locks(&server.url(), LONG).await);
    let guard = ours.lock("room").acquire().await.unwrap();
    server.kill();
    soon("the loss", guard.lost()).await;
    server.restart().unwrap();
    let next = soon("the lock", theirs.lock("room").acquire()).await.unwrap();
    assert!(fence(&next) > fence(&guard));
}

/// Bound real time from above. The gate leaves them out.
mod in_time {
    use super::*;

    #[tokio::test]
    async fn with_the_server_away_an_acquire_fails_within_its_own_time() {
        let mut server = RedisServer::start().unwrap();
        let locks = locks(&server.url(), LONG).await;
        server.kill();
        let (wait, started) = (Duration::from_millis(200), Instant::now());
        // The first request may go out on a connection whose end is not known yet.
        let error = locks.lock("room").with_wait(wait).acquire().await.expect_err("the server is away");
        assert!(
            matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Unavailable) && error.is_retryable(),
            "{error}"
        );
        // Nobody waits for the client library's own nine seconds.
        assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
        error_of(locks.lock("room").with_wait(Wait::No).acquire().await, ErrorKind::Unavailable);
        error_of(locks.inspect("room").await, ErrorKind::Unavailable);
    }
}
