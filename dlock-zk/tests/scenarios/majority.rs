//! Quorums of independent servers.

use dlock_core::{Locks, Wait};
use dlock_quorum::Quorum;
use dlock_rig::servers::zookeeper::ZooKeeperServer;
use tokio::task::JoinSet;

use crate::support::{LONG, Proxied, builder, locks, places, poll_once, soon, until};

#[tokio::test]
async fn all_waiters_of_a_quorum_have_their_turn() {
    const WAITERS: usize = 200;
    let servers: Vec<_> = (0..3).map(|_| ZooKeeperServer::start().unwrap()).collect();
    let mut nodes = Vec::new();
    for server in &servers {
        nodes.push(builder(&server.url(), LONG).connect().await.unwrap());
    }
    let locks = Locks::new(Quorum::new(nodes).unwrap());
    let guard = locks.lock("room").acquire().await.unwrap();
    let mut waiters = JoinSet::new();
    for _ in 0..WAITERS {
        let lock = locks.lock("room").with_wait(Wait::Forever);
        let mut turn = Box::pin(async move { lock.acquire().await?.release().await });
        // All have asked for it before it is released.
        assert!(poll_once(&mut turn).is_none());
        waiters.spawn(turn);
    }
    guard.release().await.unwrap();
    for turn in soon("everybody's turn", waiters.join_all()).await {
        turn.unwrap();
    }
}

/// They ask in turns, and what the others once had there would be in the way of whoever asks.
#[tokio::test]
async fn waiters_of_a_quorum_leave_nothing_on_its_nodes() {
    const WAITERS: usize = 300;
    let on = Proxied::start();
    let guard = locks(&on.server, LONG).await.lock("room").acquire().await.unwrap();
    let node = builder(&format!("zk://{}", on.proxy.address()), LONG).connect().await.unwrap();
    let locks = Locks::new(Quorum::new([node]).unwrap());
    let lock = locks.lock("room").with_wait(Wait::Forever);
    let mut waiters = JoinSet::new();
    for _ in 0..WAITERS {
        let lock = lock.clone();
        waiters.spawn(async move { lock.acquire().await?.release().await });
    }
    let creations = || on.proxy.requests().get("CREATE").copied().unwrap_or_default();
    until("all to have asked", || creations() > WAITERS as u64).await;
    until("the nodes to go", || places(on.server.admin(), "room").len() == 1).await;
    guard.release().await.unwrap();
    for turn in soon("everybody's turn", waiters.join_all()).await {
        turn.unwrap();
    }
}
