//! Requests and replies that are lost, and servers that are away.

use std::time::{Duration, Instant};

use dlock_core::{ErrorKind, Wait};
use dlock_rig::proxy::Loss;

use crate::support::{Proxied, fence, locks, soon, until_clean, until_in_line, wait_for};

#[tokio::test]
async fn a_grant_whose_reply_is_lost_is_adopted() {
    for loss in [Loss::Cut, Loss::Silence] {
        let on = Proxied::start();
        let ours = locks(&on.url()).await;
        on.proxy.lose_reply(1, "TXN", loss);
        let guard = soon("the lock", ours.lock("room").acquire()).await.unwrap();
        assert_eq!(on.proxy.lost(), 1);
        let entries = on.server.admin().entries("dlock/room/");
        assert_eq!(entries.len(), 1);
        assert_eq!(u64::try_from(entries[0].create_revision), Ok(fence(&guard)));
        guard.release().await.unwrap();
        until_clean(&ours, &on.server.admin(), "room").await;
    }
}

#[tokio::test]
async fn a_release_whose_reply_is_lost_is_made_again() {
    for loss in [Loss::Cut, Loss::Silence] {
        let on = Proxied::start();
        let ours = locks(&on.url()).await;
        let guard = ours.lock("room").acquire().await.unwrap();
        on.proxy.lose_reply(1, "TXN", loss);
        let _ = soon("the answer", guard.release()).await;
        until_clean(&ours, &on.server.admin(), "room").await;
    }
}

#[tokio::test]
async fn an_acquire_that_is_dropped_before_its_reply_leaves_nothing() {
    let on = Proxied::start();
    let ours = locks(&on.url()).await;
    on.proxy.lose_reply(1, "TXN", Loss::Silence);
    let lock = ours.lock("room");
    let dropped = tokio::time::timeout(Duration::from_millis(500), lock.acquire()).await;
    assert!(dropped.is_err());
    assert_eq!(on.proxy.lost(), 1, "it was carried out");
    until_clean(&ours, &on.server.admin(), "room").await;
}

#[tokio::test]
async fn a_waiter_whose_place_was_not_confirmed_keeps_it() {
    let on = Proxied::start();
    let (ours, theirs) = (locks(&on.url()).await, locks(&on.server.url()).await);
    let guard = theirs.lock("room").acquire().await.unwrap();
    on.proxy.lose_reply(1, "TXN", Loss::Cut);
    let early = wait_for(&ours, "room");
    until_in_line(&on.server.admin(), "room", 2).await;
    let late = wait_for(&theirs, "room");
    until_in_line(&on.server.admin(), "room", 3).await;
    guard.release().await.unwrap();
    let guard = soon("its turn", early).await.unwrap().unwrap();
    assert!(!late.is_finished(), "out of turn");
    guard.release().await.unwrap();
    soon("its turn", late).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn an_acquire_while_the_server_is_away_ends_within_its_wait() {
    let mut on = Proxied::start();
    let ours = locks(&on.server.url()).await;
    for is_frozen in [true, false] {
        if is_frozen {
            on.server.pause();
        } else {
            on.server.kill();
        }
        let wait = Duration::from_secs(2);
        let begun = Instant::now();
        let error = ours.lock("room").with_wait(Wait::For(wait)).acquire().await.unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown | ErrorKind::TimedOut),
            "{error}"
        );
        // The time limit of one request comes on top.
        assert!(begun.elapsed() < wait + Duration::from_secs(6), "{:?}", begun.elapsed());
        if is_frozen {
            on.server.resume();
        } else {
            on.server.restart().unwrap();
        }
        let guard = soon("the lock", ours.lock("room").acquire()).await.unwrap();
        guard.release().await.unwrap();
        until_clean(&ours, &on.server.admin(), "room").await;
    }
}
