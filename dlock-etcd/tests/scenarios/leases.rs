//! Leases that end, that are revoked, and that nobody renews.

use std::time::{Duration, Instant};

use dlock_core::{ErrorKind, Wait};
use dlock_rig::proxy::{Direction, Flow};
use dlock_rig::servers::etcd::EtcdServer;

use crate::support::{
    Proxied, SHORT, locks, places, soon, until, until_clean, until_in_line, wait_for, with_lease,
};

#[tokio::test]
async fn a_lease_that_is_revoked_loses_its_lock_and_no_renewal_makes_it_anew() {
    let server = EtcdServer::start().unwrap();
    let (ours, theirs) = (with_lease(&server.url(), SHORT).await, locks(&server.url()).await);
    let guard = ours.lock("room").acquire().await.unwrap();
    for lease in server.admin().leases() {
        server.admin().revoke(lease);
    }
    soon("the loss", guard.lost()).await;
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
    assert!(places(&server.admin(), "room").is_empty());
    let next = theirs.lock("room").with_wait(Wait::No).acquire().await.unwrap();
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::NotHeld);
    assert_eq!(places(&server.admin(), "room").len(), 1, "the next holder's");
    next.release().await.unwrap();
}

#[tokio::test]
async fn a_lease_of_the_pool_that_has_ended_costs_nothing_but_another_one() {
    let server = EtcdServer::start().unwrap();
    let ours = locks(&server.url()).await;
    ours.lock("room").acquire().await.unwrap().release().await.unwrap();
    let leases = server.admin().leases();
    assert_eq!(leases.len(), 1, "it is kept for the next one");
    ours.lock("room").acquire().await.unwrap().release().await.unwrap();
    assert_eq!(server.admin().leases(), leases, "and used by it");
    server.admin().revoke(leases[0]);
    let guard = ours.lock("room").with_wait(Wait::No).acquire().await.unwrap();
    guard.release().await.unwrap();
    until_clean(&ours, &server.admin(), "room").await;
}

#[tokio::test]
async fn a_holder_whose_keep_alives_are_not_answered_knows_before_another_one_holds() {
    let on = Proxied::start();
    let (ours, theirs) = (with_lease(&on.url(), SHORT).await, locks(&on.server.url()).await);
    let guard = ours.lock("room").acquire().await.unwrap();
    let next = wait_for(&theirs, "room");
    until_in_line(&on.server.admin(), "room", 2).await;
    on.proxy.set(Direction::ToClient, Flow::Hold);
    soon("the loss", guard.lost()).await;
    assert!(!next.is_finished(), "it was granted before the loss");
    soon("its turn", next).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_waiter_that_nobody_polls_loses_its_place_and_keeps_nobody_waiting() {
    let server = EtcdServer::start().unwrap();
    let (ours, theirs) = (locks(&server.url()).await, locks(&server.url()).await);
    let guard = ours.lock("room").acquire().await.unwrap();
    let lock = theirs.lock("room").with_lease(SHORT);
    let mut stopped = Box::pin(lock.acquire());
    let polled = tokio::time::timeout(Duration::from_secs(1), stopped.as_mut()).await;
    assert!(polled.is_err(), "it waits");
    until_in_line(&server.admin(), "room", 2).await;
    let behind = wait_for(&ours, "room");
    guard.release().await.unwrap();
    soon("the turn of the one behind", behind).await.unwrap().unwrap().release().await.unwrap();
    let guard = soon("the turn of the one that stopped", stopped).await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn what_a_process_leaves_that_is_gone_ends_with_the_lease_of_a_waiter_or_of_a_holder() {
    let on = Proxied::start();
    let (gone, ours) = (locks(&on.url()).await, locks(&on.server.url()).await);
    let guard = ours.lock("room").acquire().await.unwrap();
    let waiter = wait_for(&gone, "room");
    until_in_line(&on.server.admin(), "room", 2).await;
    // The lease of the lock is 30 s.
    let begun = Instant::now();
    tokio::time::sleep(Duration::from_secs(1)).await;
    on.proxy.black_hole();
    until("the end of the place", || places(&on.server.admin(), "room").len() == 1).await;
    assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());
    waiter.abort();
    guard.check().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_waiter_is_notified_across_a_compaction_and_a_restart() {
    let mut server = EtcdServer::start().unwrap();
    let (ours, theirs) = (locks(&server.url()).await, locks(&server.url()).await);
    let guard = ours.lock("room").acquire().await.unwrap();
    let waiter = wait_for(&theirs, "room");
    until_in_line(&server.admin(), "room", 2).await;
    for number in 0..5 {
        server.admin().put("other", &number.to_string());
    }
    server.admin().compact();
    server.restart().unwrap();
    server.admin().put("other", "x");
    server.admin().compact();
    guard.check().unwrap();
    guard.release().await.unwrap();
    let guard = soon("its turn", waiter).await.unwrap().unwrap();
    guard.release().await.unwrap();
    until_clean(&theirs, &server.admin(), "room").await;
}
