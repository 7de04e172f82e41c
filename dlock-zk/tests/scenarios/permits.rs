//! A few at a time: sessions that end, crowds, members that die, and nodes that others made.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dlock_core::{ErrorKind, Guard, Locks, Wait};
use dlock_rig::servers::zookeeper::{NodeKind, ZooKeeperEnsemble, ZooKeeperServer};
use tokio::task::{JoinHandle, JoinSet};

use crate::support::{LONG, SHORT, builder, error_of, fence, locks, over, places, soon, until};

const LOCK: &str = "/dlock/room/_c_01234567-89ab-cdef-0123-456789abcdef-lock-";

fn wait_for_permits(locks: &Locks, take: u32, of: u32) -> JoinHandle<dlock_core::Result<Guard>> {
    let wanted = locks.semaphore("room", of).take(take).with_wait(LONG);
    tokio::spawn(async move { wanted.acquire().await })
}

async fn take(locks: &Locks, take: u32, of: u32) -> Guard {
    locks.semaphore("room", of).take(take).try_acquire().await.unwrap().expect("there are enough")
}

#[tokio::test]
async fn permits_of_a_session_that_expires_are_given_to_those_who_wait_and_the_others_stay() {
    let server = ZooKeeperServer::start().unwrap();
    let (ours, theirs) = (locks(&server, SHORT).await, locks(&server, LONG).await);
    let (lost, kept) = (take(&ours, 2, 3).await, take(&theirs, 1, 3).await);
    let waiters = [wait_for_permits(&theirs, 1, 3), wait_for_permits(&theirs, 1, 3)];
    until("the waiters", || places(server.admin(), "room").len() == 4).await;
    let session = server.admin().node(&format!("/dlock/room/{}", places(server.admin(), "room")[0])).unwrap();
    server.admin().expire(session.session.unwrap());
    soon("the loss", lost.lost()).await;
    error_of(lost.check(), ErrorKind::Lost);
    for waiter in waiters {
        soon("a permit", waiter).await.unwrap().unwrap().release().await.unwrap();
    }
    kept.check().unwrap();
    kept.release().await.unwrap();
}

#[tokio::test]
async fn a_waiter_whose_session_expires_in_the_middle_of_the_line_holds_up_nobody() {
    let server = ZooKeeperServer::start().unwrap();
    let (ours, theirs) = (locks(&server, SHORT).await, locks(&server, LONG).await);
    let first = take(&theirs, 2, 2).await;
    let gone = wait_for_permits(&ours, 2, 2);
    until("the first in line", || places(server.admin(), "room").len() == 2).await;
    let next = wait_for_permits(&theirs, 1, 2);
    until("the next in line", || places(server.admin(), "room").len() == 3).await;
    gone.abort();
    ours.shutdown(Duration::from_secs(5)).await.unwrap();
    until("the first in line is gone", || places(server.admin(), "room").len() == 2).await;
    assert!(!next.is_finished());
    first.release().await.unwrap();
    soon("the permit", next).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_client_that_knows_no_permits_waits_for_them_and_who_takes_permits_refuses_its_lock() {
    let server = ZooKeeperServer::start().unwrap();
    let locks = locks(&server, LONG).await;
    let guard = take(&locks, 1, 2).await;
    // As a mutex of Curator sees it, the first node has the lock.
    let node = server.admin().create(LOCK, b"10.0.0.1", NodeKind::PersistentSequential);
    let line = places(server.admin(), "room");
    assert!(line.len() == 2 && line[0].contains("-permits-1-lock-"), "{line:?}");
    error_of(locks.semaphore("room", 2).try_acquire().await, ErrorKind::Conflict);
    guard.release().await.unwrap();
    error_of(locks.semaphore("room", 2).acquire().await, ErrorKind::Conflict);
    server.admin().delete(&node);
    take(&locks, 2, 2).await.release().await.unwrap();
}

#[tokio::test]
async fn data_that_others_keep_in_the_directory_is_left_alone() {
    let server = ZooKeeperServer::start().unwrap();
    let locks = locks(&server, LONG).await;
    locks.lock("room").acquire().await.unwrap().release().await.unwrap();
    server.admin().set_data("/dlock/room", b"minutes of the last meeting");
    let error = error_of(locks.semaphore("room", 2).try_acquire().await, ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("/dlock/room has data"), "{error}");
    until("the clean-up", || places(server.admin(), "room").is_empty()).await;
    locks.lock("room").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn permits_are_never_more_than_there_are_while_members_of_the_ensemble_die() {
    const PERMITS: u32 = 3;
    let mut ensemble = ZooKeeperEnsemble::start().unwrap();
    let mut tasks = JoinSet::new();
    let inside = Arc::new(AtomicU32::new(0));
    for task in 0..12 {
        let (inside, url) = (Arc::clone(&inside), ensemble.url());
        tasks.spawn(async move {
            let locks = over(builder(&url, LONG).connect().await.unwrap());
            for _ in 0..20 {
                let take = 1 + task % 2;
                let wanted = locks.semaphore("room", PERMITS).take(take).with_wait(Wait::Forever);
                // Servers that are away for a moment are no failure of the test.
                let Ok(guard) = wanted.acquire().await else { continue };
                if guard.check().is_ok() {
                    let now = inside.fetch_add(take, Ordering::SeqCst) + take;
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    inside.fetch_sub(take, Ordering::SeqCst);
                    assert!(now <= PERMITS || guard.check().is_err(), "{now} of {PERMITS} permits");
                }
                drop(guard.release().await);
            }
        });
    }
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let leader = ensemble.wait_for_leader().unwrap();
        ensemble.server_mut(leader).restart().unwrap();
    }
    soon("all tasks", tasks.join_all()).await;
}

/// Bound real time from above. The gate leaves them out.
mod in_time {
    use super::*;

    #[tokio::test]
    async fn two_hundred_holders_of_permits_and_who_waits_behind_them_come_in_the_order_of_the_queue() {
        const PERMITS: u32 = 200;
        let server = ZooKeeperServer::start().unwrap();
        let (ours, theirs) = (locks(&server, LONG).await, locks(&server, LONG).await);
        let mut taking = JoinSet::new();
        for _ in 0..PERMITS {
            let wanted = ours.semaphore("room", PERMITS).with_wait(LONG);
            taking.spawn(async move { wanted.acquire().await });
        }
        let mut guards: Vec<_> =
            soon("all permits", taking.join_all()).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(theirs.semaphore("room", PERMITS).available().await.unwrap(), 0);
        assert!(theirs.semaphore("room", PERMITS).try_acquire().await.unwrap().is_none());
        let mut waiting = Vec::new();
        for place in 0..5 {
            waiting.push(wait_for_permits(if place % 2 == 0 { &ours } else { &theirs }, 1, PERMITS));
            until("the waiter", || places(server.admin(), "room").len() == 201 + place).await;
        }
        let mut last = guards.iter().map(fence).max();
        for waiter in waiting {
            assert!(!waiter.is_finished(), "more permits than there are");
            guards.pop().expect("there are many").release().await.unwrap();
            // Nobody waits until it looks by itself, which is after five seconds.
            let guard = tokio::time::timeout(Duration::from_secs(3), waiter)
                .await
                .expect("it is woken")
                .unwrap()
                .unwrap();
            assert!(Some(fence(&guard)) > last, "somebody came before its turn");
            last = Some(fence(&guard));
            guards.push(guard);
            guards.rotate_right(1);
        }
        let mut releases = JoinSet::new();
        for guard in guards {
            releases.spawn(guard.release());
        }
        soon("the releases", releases.join_all()).await.into_iter().for_each(Result::unwrap);
        take(&theirs, PERMITS, PERMITS).await.release().await.unwrap();
    }
}
