//! Guards that are dropped where nothing can be awaited.

use std::time::Duration;

use dlock_core::ErrorKind;
use dlock_rig::servers::zookeeper::ZooKeeperServer;
use tokio::runtime::Runtime;

use crate::support::{LONG, error_of, lock_nodes, locks, places, until};

#[test]
fn a_release_is_carried_out_although_its_runtime_is_blocked_from_then_on() {
    let server = ZooKeeperServer::start().unwrap();
    let runtime = Runtime::new().unwrap();
    let (_locks, guard) = runtime.block_on(async {
        let locks = locks(&server, LONG).await;
        let guard = locks.lock("room").acquire().await.unwrap();
        (locks, guard)
    });
    let mut release = Box::pin(guard.release());
    {
        let _runtime = runtime.enter();
        // As by a task that computes for long after another has sent something.
        assert!(
            release.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_pending()
        );
    }
    let blocked = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    blocked.block_on(async {
        let locks = locks(&server, LONG).await;
        let guard = locks.lock("hall").acquire().await.unwrap();
        let mut release = Box::pin(guard.release());
        let polled = std::future::poll_fn(|context| std::task::Poll::Ready(release.as_mut().poll(context)));
        assert!(polled.await.is_pending());
        while !places(server.admin(), "hall").is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
        release.await.unwrap();
    });
    runtime.block_on(until("the release", || places(server.admin(), "room").is_empty()));
    runtime.block_on(release).unwrap();
}

#[tokio::test]
async fn a_shutdown_gives_back_every_lock_and_closes_the_session() {
    let server = ZooKeeperServer::start().unwrap();
    let locks = locks(&server, LONG).await;
    let mut guards = Vec::new();
    for number in 0..100 {
        guards.push(locks.lock(format!("room_{number}")).acquire().await.unwrap());
    }
    assert_eq!(lock_nodes(server.admin()), 100);
    locks.shutdown(Duration::from_secs(10)).await.unwrap();
    assert_eq!(lock_nodes(server.admin()), 0);
    error_of(locks.lock("room").acquire().await, ErrorKind::Closed);
    drop(guards);
    until("the session to close", || server.admin().sessions().is_empty()).await;
}

#[tokio::test]
async fn locks_that_are_dropped_close_their_session() {
    let server = ZooKeeperServer::start().unwrap();
    let locks = locks(&server, LONG).await;
    let guard = locks.lock("room").acquire().await.unwrap();
    drop(locks);
    guard.check().unwrap();
    assert_eq!(server.admin().sessions().len(), 1, "one session for all locks, as long as one is held");
    guard.release().await.unwrap();
    until("the session to close", || server.admin().sessions().is_empty()).await;
}
