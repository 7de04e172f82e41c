//! Guards that are dropped where nothing can be awaited.

use std::time::Duration;

use dlock_core::{ErrorKind, Guard, Locks};
use dlock_rig::servers::zookeeper::ZooKeeperServer;
use tokio::runtime::Runtime;

use crate::support::{LONG, SHORT, error_of, lock_nodes, locks, places, soon, until};

/// Locks and a guard that were made on a runtime which is still there.
fn on_a_runtime(server: &ZooKeeperServer, session: Duration) -> (Runtime, Locks, Guard) {
    let runtime = Runtime::new().unwrap();
    let (locks, guard) = runtime.block_on(async {
        let locks = locks(server, session).await;
        let guard = locks.lock("room").acquire().await.unwrap();
        (locks, guard)
    });
    (runtime, locks, guard)
}

fn wait_until(what: &str, holds: impl FnMut() -> bool) {
    Runtime::new().unwrap().block_on(until(what, holds));
}

#[test]
fn a_guard_dropped_without_any_runtime_is_given_back() {
    let server = ZooKeeperServer::start().unwrap();
    let (runtime, _locks, guard) = on_a_runtime(&server, LONG);
    drop(runtime);
    drop(guard);
    wait_until("the release", || places(server.admin(), "room").is_empty());
}

#[test]
fn a_runtime_that_is_blocked_for_three_sessions_keeps_its_locks() {
    let server = ZooKeeperServer::start().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let locks = locks(&server, SHORT).await;
        let guard = locks.lock("room").acquire().await.unwrap();
        std::thread::sleep(SHORT * 3);
        // Suspect at most, where the machine stood still for a moment; one that is lost stays so.
        until("trust", || guard.check().is_ok()).await;
        assert_eq!(locks.stats().lost, 0);
        guard.release().await.unwrap();
    });
}

#[test]
fn a_release_is_carried_out_although_its_runtime_is_blocked_from_then_on() {
    let server = ZooKeeperServer::start().unwrap();
    let (runtime, _locks, guard) = on_a_runtime(&server, LONG);
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
    wait_until("the release", || places(server.admin(), "room").is_empty());
    runtime.block_on(release).unwrap();
}

#[test]
fn a_client_serves_one_runtime_after_the_other() {
    let server = ZooKeeperServer::start().unwrap();
    let (first, locks, guard) = on_a_runtime(&server, LONG);
    first.shutdown_background();
    Runtime::new().unwrap().block_on(async {
        guard.release().await.unwrap();
        soon("the lock", locks.lock("room").acquire()).await.unwrap().release().await.unwrap();
    });
}

#[test]
fn an_acquire_whose_runtime_goes_away_leaves_nothing() {
    let server = ZooKeeperServer::start().unwrap();
    let (runtime, locks, guard) = on_a_runtime(&server, LONG);
    for number in 0..50 {
        let lock = locks.lock(format!("room_{number}"));
        runtime.spawn(async move {
            let _guard = lock.acquire().await;
            std::future::pending::<()>().await;
        });
    }
    runtime.shutdown_background();
    drop(guard);
    wait_until("the clean-up", || locks.stats().held == 0 && lock_nodes(server.admin()) == 0);
}

#[tokio::test]
async fn a_guard_dropped_by_a_panic_is_given_back() {
    let server = ZooKeeperServer::start().unwrap();
    let locks = locks(&server, LONG).await;
    let lock = locks.lock("room");
    let body = async move {
        let _guard = lock.acquire().await.unwrap();
        panic!("in the middle of a critical section");
    };
    let body: tokio::task::JoinHandle<()> = tokio::spawn(body);
    assert!(body.await.unwrap_err().is_panic());
    until("the release", || places(server.admin(), "room").is_empty()).await;
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
