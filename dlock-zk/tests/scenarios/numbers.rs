//! Locks that one process takes again and again, without listing their queue.

use std::time::Duration;

use dlock_core::{ErrorKind, Locks, Wait};
use dlock_rig::servers::zookeeper::NodeKind;

use crate::support::{LONG, Proxied, error_of, locks, places, soon, until};

/// A node of another library's client.
const FOREIGN: &str = "/dlock/room/_c_01234567-89ab-cdef-0123-456789abcdef-lock-";

fn lists(on: &Proxied) -> u64 {
    on.proxy.requests().get("GETCHILDREN").copied().unwrap_or_default()
}

async fn pair(locks: &Locks) {
    locks.lock("room").acquire().await.unwrap().release().await.unwrap();
}

/// Takes the lock until the queue needs no listing any more; returns the number of the last node.
async fn until_unlisted(on: &Proxied, locks: &Locks) -> usize {
    let mut row = 0;
    let take = async {
        while row < 3 {
            let before = lists(on);
            pair(locks).await;
            row = if lists(on) == before { row + 1 } else { 0 };
        }
        let guard = locks.lock("room").acquire().await.unwrap();
        let last = places(on.server.admin(), "room").pop().unwrap();
        guard.release().await.unwrap();
        last.rsplit_once('-').unwrap().1.parse().unwrap()
    };
    soon("acquires without listings", take).await
}

#[tokio::test]
async fn a_lock_that_nobody_else_wants_needs_no_listing_and_excludes_others() {
    let on = Proxied::start();
    let (ours, theirs) = (on.locks(LONG).await, locks(&on.server, LONG).await);
    until_unlisted(&on, &ours).await;
    let guard = ours.lock("room").acquire().await.unwrap();
    let refused = theirs.lock("room").with_wait(Wait::No).acquire().await;
    error_of(refused, ErrorKind::Busy);
    guard.release().await.unwrap();
    until_unlisted(&on, &ours).await;
}

#[tokio::test]
async fn nodes_that_others_made_meanwhile_are_waited_for() {
    let on = Proxied::start();
    let ours = on.locks(LONG).await;
    for _ in 0..3 {
        until_unlisted(&on, &ours).await;
        let other = on.server.admin().create(FOREIGN, b"", NodeKind::PersistentSequential);
        let refused = ours.lock("room").with_wait(Wait::No).acquire().await;
        error_of(refused, ErrorKind::Busy);
        on.server.admin().delete(&other);
    }
    until_unlisted(&on, &ours).await;
    let foreign = on.server.admin().create("/dlock/room/queue-", b"", NodeKind::PersistentSequential);
    error_of(ours.lock("room").acquire().await, ErrorKind::InvalidConfig);
    on.server.admin().delete(&foreign);
    until_unlisted(&on, &ours).await;
}

#[tokio::test]
async fn a_directory_that_was_made_anew_is_listed_although_its_numbers_go_on() {
    let on = Proxied::start();
    let ours = on.locks(LONG).await;
    for cut in [false, true] {
        let last = until_unlisted(&on, &ours).await;
        let admin = on.server.admin();
        if cut {
            on.proxy.cut();
        }
        admin.delete("/dlock/room");
        admin.create("/dlock/room", b"", NodeKind::Persistent);
        let holder = admin.create(FOREIGN, b"", NodeKind::PersistentSequential);
        for _ in 0..last {
            admin.delete(&admin.create(FOREIGN, b"", NodeKind::PersistentSequential));
        }
        let next = ours.lock("room").with_wait(Wait::No).acquire().await;
        error_of(next, ErrorKind::Busy);
        admin.delete(&holder);
    }
    until_unlisted(&on, &ours).await;
}

#[tokio::test]
async fn the_watches_on_directories_are_few_and_go_with_their_locks() {
    let on = Proxied::start();
    let ours = on.locks(LONG).await;
    until_unlisted(&on, &ours).await;
    for key in 0..300 {
        let lock = ours.lock(format!("key_{key}"));
        for _ in 0..5 {
            lock.acquire().await.unwrap().release().await.unwrap();
        }
    }
    // One for each of those that were used last.
    until("old watches to be removed", || on.server.admin().watches() <= 256).await;
    ours.shutdown(Duration::from_secs(10)).await.unwrap();
    until("the session to close", || on.server.admin().sessions().is_empty()).await;
}
