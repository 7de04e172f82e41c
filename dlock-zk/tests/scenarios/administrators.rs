//! Somebody deletes, replaces or changes the nodes of a lock.

use std::time::{Duration, Instant};

use dlock_core::backend::Forced;
use dlock_core::{ErrorKind, Holder, Locks};
use dlock_rig::proxy::{Direction, Flow};
use dlock_rig::servers::zookeeper::{Administrator, NodeKind, ZooKeeperServer};

use crate::support::{LONG, Proxied, builder, error_of, fence, locks, places, soon, until, wait_for};

/// Long enough that a quarter of it is not the machine's noise.
const SESSION: Duration = Duration::from_secs(20);

/// Takes the lock, lets somebody tamper with its node, and waits for the holder to notice; and how long that took.
async fn is_noticed(tamper: impl Fn(Administrator, &str)) -> (ZooKeeperServer, Duration) {
    let server = ZooKeeperServer::start().unwrap();
    let locks = locks(&server, SESSION).await;
    let guard = locks.lock("room").acquire().await.unwrap();
    tamper(server.admin(), &format!("/dlock/room/{}", places(server.admin(), "room")[0]));
    let started = Instant::now();
    soon("the loss", guard.lost()).await;
    let after = started.elapsed();
    error_of(guard.check(), ErrorKind::Lost);
    error_of(guard.release().await, ErrorKind::NotHeld);
    (server, after)
}

#[tokio::test]
async fn a_node_that_somebody_made_in_place_of_the_deleted_one_is_not_ours() {
    is_noticed(|admin, node| {
        admin.delete(node);
        admin.create(node, b"somebody", NodeKind::Persistent);
    })
    .await;
}

#[tokio::test]
async fn a_lock_whose_directory_is_deleted_with_it_is_lost_and_can_be_taken_again() {
    let (server, _) = is_noticed(|admin, node| {
        admin.delete(node);
        admin.delete("/dlock/room");
    })
    .await;
    let locks = locks(&server, SESSION).await;
    locks.lock("room").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_node_whose_content_is_changed_stays_a_lock() {
    let server = ZooKeeperServer::start().unwrap();
    let locks = locks(&server, SESSION).await;
    let guard = locks.lock("room").acquire().await.unwrap();
    // What Curator's clients write to ask for a lock, and what is no text at all.
    for content in [&b"__REVOKE__"[..], b"\xff\xfe\0", b""] {
        server.admin().set_data(&format!("/dlock/room/{}", places(server.admin(), "room")[0]), content);
        let holder = locks.inspect("room").await.unwrap().expect("it is held");
        assert_eq!(holder.fence.map(|it| it.get()), Some(fence(&guard)));
        guard.check().unwrap();
    }
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_holder_hears_of_curators_revoker() {
    let server = ZooKeeperServer::start().unwrap();
    let locks = locks(&server, SESSION).await;
    let guard = locks.lock("room").acquire().await.unwrap();
    let node = format!("/dlock/room/{}", places(server.admin(), "room")[0]);
    let held = guard.held();
    // Every one of them, however it is mixed with others.
    until("the watch", || server.admin().watches() == 1).await;
    server.admin().set_data(&node, b"something else");
    until("the next watch", || server.admin().watches() == 1).await;
    assert!(!held.is_release_requested());
    server.admin().set_data(&node, b"__REVOKE__");
    soon("the request", held.release_requested()).await;
    assert!(held.is_release_requested());
    guard.check().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_waiter_takes_over_from_a_holder_whose_node_was_deleted_with_a_higher_fence() {
    let server = ZooKeeperServer::start().unwrap();
    let (ours, theirs) = (locks(&server, SESSION).await, locks(&server, SESSION).await);
    let guard = ours.lock("room").acquire().await.unwrap();
    let first = fence(&guard);
    let waiter = wait_for(&theirs, "room");
    crate::support::until_in_line(server.admin(), "room", 2).await;
    server.admin().delete(&format!("/dlock/room/{}", places(server.admin(), "room")[0]));
    let next = soon("the next holder", waiter).await.unwrap().unwrap();
    assert!(fence(&next) > first);
    // The old holder releases what it no longer has, and takes nothing from the new one.
    drop(guard.release().await);
    next.check().unwrap();
    next.release().await.unwrap();
}

#[tokio::test]
async fn a_lock_whose_node_is_known_to_be_gone_is_released_without_a_request() {
    let on = Proxied::start();
    let locks = on.locks(LONG).await;
    let guard = locks.lock("room").acquire().await.unwrap();
    until("the watch", || on.server.admin().watches() > 0).await;
    let place = places(on.server.admin(), "room").remove(0);
    on.server.admin().delete(&format!("/dlock/room/{place}"));
    soon("the loss", guard.lost()).await;
    // As when the connection of a session that has ended is closed after its nodes have gone.
    on.proxy.black_hole();
    error_of(soon("the answer", guard.release()).await, ErrorKind::NotHeld);
}

/// An operator behind a proxy, who releases locks by force.
async fn operator(on: &Proxied) -> Locks {
    let zookeeper = builder(&format!("zk://{}", on.proxy.address()), LONG).connect().await.unwrap();
    Locks::builder(zookeeper).with_request_timeout(LONG / 2).build().unwrap()
}

/// What a release by force of those who were seen answers, where `meanwhile` happens after its look at the queue and
/// before its first deletion is carried out.
async fn forced<T>(
    on: &Proxied,
    (operator, seen): (&Locks, Vec<Holder>),
    meanwhile: impl Future<Output = T>,
) -> (Forced, T) {
    let deletions = || on.proxy.requests().get("DELETE").copied().unwrap_or_default();
    let before = deletions();
    on.proxy.set(Direction::ToServer, Flow::Delay(Duration::from_millis(300)));
    let operator = operator.clone();
    let forced = tokio::spawn(async move { operator.force_release_of("room", &seen).await });
    until("the deletion", || deletions() > before).await;
    on.proxy.set(Direction::ToServer, Flow::Hold);
    let happened = meanwhile.await;
    on.proxy.mend();
    (soon("the answer", forced).await.unwrap().unwrap(), happened)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_by_force_takes_nothing_from_a_waiter_whose_turn_it_is_meanwhile_and_says_so() {
    let on = Proxied::start();
    let (operator, locks) = (operator(&on).await, locks(&on.server, LONG).await);
    let guard = locks.lock("room").acquire().await.unwrap();
    let seen = operator.occupancy("room").await.unwrap().holders;
    let waiter = wait_for(&locks, "room");
    crate::support::until_in_line(on.server.admin(), "room", 2).await;
    let (answer, next) = forced(&on, (&operator, seen), async {
        guard.release().await.unwrap();
        soon("the next holder", waiter).await.unwrap().unwrap()
    })
    .await;
    assert_eq!(answer, Forced::HeldByOthers);
    next.release().await.unwrap();
    assert_eq!(operator.force_release_of("room", &[]).await.unwrap(), Forced::Free);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_by_force_frees_a_lock_that_is_downgraded_meanwhile() {
    let on = Proxied::start();
    let (operator, locks) = (operator(&on).await, locks(&on.server, LONG).await);
    let mut guard = locks.lock("room").acquire().await.unwrap();
    let seen = operator.occupancy("room").await.unwrap().holders;
    let (answer, ()) = forced(&on, (&operator, seen), async { guard.downgrade().await.unwrap() }).await;
    assert_eq!(answer, Forced::Released, "it is the same hold");
    soon("the loss", guard.lost()).await;
    assert!(places(on.server.admin(), "room").is_empty());
}

/// Bound real time from above. The gate leaves them out.
mod in_time {
    use super::*;

    #[tokio::test]
    async fn a_node_that_is_deleted_is_noticed_by_the_watch_and_not_by_a_look_now_and_then() {
        let (_, after) = is_noticed(|admin, node| admin.delete(node)).await;
        assert!(after < SESSION / 4, "noticed after {after:?}");
    }
}
