//! Futures that are dropped in the middle.

use std::time::Duration;

use dlock_rig::proxy::{Direction, Flow};
use dlock_rig::servers::zookeeper::ZooKeeperServer;
use dlock_testkit::cancel::{Cut, every_await_point};
use tokio::task::JoinSet;

use crate::support::{LONG, Proxied, lock_nodes, locks, places, until, until_clean};

#[tokio::test]
async fn a_waiter_dropped_at_any_await_leaves_neither_a_place_nor_a_watch() {
    let server = ZooKeeperServer::start().unwrap();
    let (ours, theirs) = (locks(&server, LONG).await, locks(&server, LONG).await);
    let holder = theirs.lock("room").acquire().await.unwrap();
    let lock = ours.lock("room").with_wait(Duration::from_millis(150));
    let cuts = every_await_point(
        || lock.acquire(),
        async |_: Cut, output| assert!(output.is_none_or(|it| it.is_err())),
    )
    .await;
    assert!(cuts >= 4, "{cuts} cuts");
    until("the places to be left", || places(server.admin(), "room").len() == 1).await;
    until("the watches to be removed but the holder's", || server.admin().watches() == 1).await;
    holder.release().await.unwrap();
    until_clean(&ours, server.admin(), &["room"]).await;
}

#[tokio::test]
async fn acquires_dropped_while_the_answer_to_their_creation_is_on_its_way_leave_nothing() {
    let on = Proxied::start();
    let locks = on.locks(LONG).await;
    locks.lock("room").acquire().await.unwrap().release().await.unwrap();
    for round in 0..25 {
        let creations = on.proxy.requests()["CREATE"];
        on.proxy.set(Direction::ToClient, Flow::Hold);
        let mut acquires = JoinSet::new();
        for number in 0..20 {
            let lock = locks.lock(format!("room_{number}")).with_request_timeout(Duration::from_secs(5));
            acquires.spawn(async move { lock.acquire().await });
        }
        until("the creations", || on.proxy.requests()["CREATE"] >= creations + 20).await;
        acquires.shutdown().await;
        if round % 2 == 0 {
            on.proxy.mend();
        } else {
            // The answers never come.
            on.proxy.cut();
            on.proxy.mend();
        }
        until("the clean-up", || locks.stats().background == 0).await;
        until("the nodes to go", || lock_nodes(on.server.admin()) == 0).await;
    }
}
