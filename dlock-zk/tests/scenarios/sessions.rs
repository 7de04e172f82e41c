//! Sessions that end while their locks are held or waited for.

use dlock_core::ErrorKind;
use dlock_rig::servers::zookeeper::ZooKeeperServer;
use tokio::task::JoinSet;

use crate::support::{
    LONG, Proxied, SHORT, error_of, fence, locks, places, soon, until, until_in_line, wait_for,
};

#[tokio::test]
async fn a_session_that_somebody_else_ends_loses_all_its_locks_and_nobody_elses() {
    let server = ZooKeeperServer::start().unwrap();
    let (ours, theirs) = (locks(&server, LONG).await, locks(&server, LONG).await);
    let mut guards = Vec::new();
    for number in 0..20 {
        guards.push(ours.lock(format!("room_{number}")).acquire().await.unwrap());
    }
    let other = theirs.lock("other").acquire().await.unwrap();
    let node = server.admin().node(&format!("/dlock/room_7/{}", places(server.admin(), "room_7")[0]));
    server.admin().expire(node.unwrap().session.unwrap());
    for guard in guards {
        soon("the loss", guard.lost()).await;
        error_of(guard.check(), ErrorKind::Lost);
        error_of(guard.release().await, ErrorKind::NotHeld);
    }
    other.check().unwrap();
    assert_eq!((ours.stats().held, theirs.stats().lost), (0, 0));
}

#[tokio::test]
async fn after_its_session_ended_a_client_opens_another_and_its_fences_grow() {
    let server = ZooKeeperServer::start().unwrap();
    let locks = locks(&server, LONG).await;
    let mut last = 0;
    for _ in 0..5 {
        let guard = soon("the lock", locks.lock("room").acquire()).await.unwrap();
        assert!(fence(&guard) > last, "{} after {last}", fence(&guard));
        last = fence(&guard);
        server.admin().expire_all();
        soon("the loss", guard.lost()).await;
    }
}

#[tokio::test]
async fn a_waiter_whose_session_ends_goes_on_waiting_at_the_end_of_the_line() {
    let server = ZooKeeperServer::start().unwrap();
    let (first, second, third) =
        (locks(&server, LONG).await, locks(&server, LONG).await, locks(&server, LONG).await);
    let guard = first.lock("room").acquire().await.unwrap();
    let early = wait_for(&second, "room");
    until_in_line(server.admin(), "room", 2).await;
    let late = wait_for(&third, "room");
    until_in_line(server.admin(), "room", 3).await;
    let place = places(server.admin(), "room")[1].clone();
    let session = server.admin().node(&format!("/dlock/room/{place}")).unwrap().session.unwrap();
    server.admin().expire(session);
    until("the new place", || {
        let line = places(server.admin(), "room");
        line.len() == 3 && !line.contains(&place)
    })
    .await;
    guard.check().unwrap();
    guard.release().await.unwrap();
    let guard = soon("the lock", late).await.unwrap().unwrap();
    assert!(!early.is_finished(), "out of turn");
    guard.release().await.unwrap();
    soon("the lock", early).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_wait_outlasts_servers_that_are_away_for_longer_than_its_session() {
    let mut server = ZooKeeperServer::start().unwrap();
    let (ours, theirs) = (locks(&server, SHORT).await, locks(&server, LONG).await);
    let guard = theirs.lock("room").acquire().await.unwrap();
    let waiter = wait_for(&ours, "room");
    until_in_line(server.admin(), "room", 2).await;
    let place = places(server.admin(), "room")[1].clone();
    server.kill();
    // The session ends by the client's own clock.
    tokio::time::sleep(SHORT * 2).await;
    assert!(!waiter.is_finished());
    server.restart().unwrap();
    until("the new place", || {
        let line = places(server.admin(), "room");
        line.len() == 2 && !line.contains(&place)
    })
    .await;
    drop(guard);
    soon("the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_client_whose_session_ends_under_a_crowd_grants_nothing_twice() {
    let server = ZooKeeperServer::start().unwrap();
    let (ours, theirs) = (locks(&server, LONG).await, locks(&server, LONG).await);
    let holders = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let (held, mut first_held) = tokio::sync::mpsc::unbounded_channel();
    let mut tasks = JoinSet::new();
    for number in 0..60 {
        let lock = if number % 2 == 0 { &ours } else { &theirs }.lock("room").with_wait(LONG);
        let (holders, held) = (std::sync::Arc::clone(&holders), held.clone());
        tasks.spawn(async move {
            // Whoever waits in a session that ends is notified so.
            let Ok(guard) = lock.acquire().await else { return };
            let before = holders.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            held.send(()).unwrap();
            tokio::task::yield_now().await;
            let still_held = guard.check().is_ok();
            holders.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
            assert!(before == 0 || !still_held, "two holders");
            drop(guard.release().await);
        });
    }
    soon("the first holder", first_held.recv()).await.unwrap();
    server.admin().expire_all();
    soon("everybody's turn", async {
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
    })
    .await;
    soon("the lock", ours.lock("room").acquire()).await.unwrap().release().await.unwrap();
    until("the end of the line", || places(server.admin(), "room").is_empty()).await;
}

#[tokio::test]
async fn a_node_of_an_ended_session_never_satisfies_an_acquire() {
    let on = Proxied::start();
    let (ours, theirs) = (on.locks(SHORT).await, locks(&on.server, LONG).await);
    let guard = ours.lock("room").acquire().await.unwrap();
    let first = fence(&guard);
    // Our session goes on at the server while we believe that it ended: its node stays for a while.
    on.proxy.black_hole();
    soon("the loss", guard.lost()).await;
    error_of(guard.check(), ErrorKind::Lost);
    drop(guard);
    let waiter = wait_for(&theirs, "room");
    on.proxy.mend();
    on.proxy.cut();
    let next = soon("the lock", waiter).await.unwrap().unwrap();
    assert!(fence(&next) > first);
    // Ours again only after theirs, by a node of its own.
    let again = wait_for(&ours, "room");
    until_in_line(on.server.admin(), "room", 2).await;
    next.release().await.unwrap();
    let again = soon("the lock", again).await.unwrap().unwrap();
    assert!(fence(&again) > first);
    again.release().await.unwrap();
}
