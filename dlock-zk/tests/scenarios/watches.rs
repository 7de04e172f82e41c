//! Watches: who has them where a session can have no more.

use std::time::Duration;

use dlock_rig::proxy::{Direction, Flow};
use dlock_rig::servers::zookeeper::{NodeKind, ZooKeeperServer};

use crate::support::{LONG, Proxied, locks, places, poll_once, soon, until, wait_for};

/// So many paths of [`key`]s are more than one session watches for its locks.
const MANY: usize = 60;

/// A key with a long path.
fn key(number: usize) -> String {
    format!("{number}_{}", "x".repeat(480))
}

fn is_watched(server: &ZooKeeperServer, key: &str) -> bool {
    server.admin().word("wchp").contains(&places(server.admin(), key)[0])
}

#[tokio::test]
async fn watched_directories_leave_room_for_the_watches_of_held_locks() {
    let server = ZooKeeperServer::start().unwrap();
    let locks = locks(&server, LONG).await;
    for number in 0..MANY {
        let lock = locks.lock(key(number));
        for _ in 0..5 {
            lock.acquire().await.unwrap().release().await.unwrap();
        }
    }
    until("watches on directories", || server.admin().watches() > 5).await;
    let guard = locks.lock(key(MANY)).acquire().await.unwrap();
    until("the watch", || is_watched(&server, &key(MANY))).await;
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_lock_beyond_what_a_session_can_watch_is_watched_as_soon_as_others_are_released() {
    let server = ZooKeeperServer::start().unwrap();
    let locks = locks(&server, Duration::from_secs(10)).await;
    let mut guards = Vec::new();
    for number in 0..MANY {
        guards.push(locks.lock(key(number)).acquire().await.unwrap());
    }
    until("as many watches as there can be", || server.admin().watches() > MANY as u64 * 3 / 4).await;
    let guard = locks.lock(key(MANY)).acquire().await.unwrap();
    // Each lock that is held for so long was to be watched.
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!is_watched(&server, &key(MANY)));
    for other in guards {
        other.release().await.unwrap();
    }
    until("the watch", || is_watched(&server, &key(MANY))).await;
    guard.release().await.unwrap();
}

// With a thread for the first waiter, which keeps its place only while it is polled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_is_not_polled_while_it_lists_the_queue_holds_up_nobody() {
    const FOREIGN: &str = "/dlock/room/_c_01234567-89ab-cdef-0123-456789abcdef-lock-";
    let on = Proxied::start();
    let ours = on.locks(LONG).await;
    let admin = on.server.admin();
    let lists = || on.proxy.requests()["GETCHILDREN"];
    ours.lock("room").acquire().await.unwrap().release().await.unwrap();
    let foreign = || admin.create(FOREIGN, b"", NodeKind::PersistentSequential);
    let (holder, before_first) = (foreign(), foreign());
    let first = wait_for(&ours, "room");
    until("the first waiter", || admin.watches() == 2).await;
    let before_second = foreign();
    let lock = ours.lock("room").with_wait(LONG);
    let mut second = Box::pin(async move { lock.acquire().await });
    until("the second waiter", || {
        assert!(poll_once(&mut second).is_none());
        admin.watches() == 4
    })
    .await;
    let before = lists();
    // So that the answer is not there before it is no longer polled.
    on.proxy.set(Direction::ToClient, Flow::Delay(Duration::from_millis(300)));
    admin.delete(&before_second);
    until("its listing", || {
        assert!(poll_once(&mut second).is_none());
        lists() > before
    })
    .await;
    admin.delete(&before_first);
    admin.delete(&holder);
    let guard = soon("the lock", first).await.unwrap().unwrap();
    guard.release().await.unwrap();
    soon("the lock", second).await.unwrap().release().await.unwrap();
}
