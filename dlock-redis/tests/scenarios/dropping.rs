//! Guards that are dropped where nothing can be awaited.

use std::time::Duration;

use dlock_core::{ErrorKind, Guard, Locks};
use dlock_redis::Redis;
use dlock_rig::servers::redis::RedisServer;
use tokio::runtime::Runtime;

use crate::support::{LONG, SHORT, error_of, held, locks, over, soon, until};

/// Locks and a guard that were made on a runtime which is still there.
fn on_a_runtime(url: &str, lease: Duration) -> (Runtime, Locks, Guard) {
    let runtime = Runtime::new().unwrap();
    let (locks, guard) = runtime.block_on(async {
        let locks = locks(url, lease).await;
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
    let server = RedisServer::start().unwrap();
    let (runtime, _locks, guard) = on_a_runtime(&server.url(), LONG);
    drop(runtime);
    drop(guard);
    wait_until("the release", || held(&server).is_empty());
}

#[test]
fn a_guard_that_outlives_its_runtime_keeps_its_lock() {
    let server = RedisServer::start().unwrap();
    let (runtime, locks, guard) = on_a_runtime(&server.url(), SHORT);
    runtime.shutdown_background();
    let renewals = locks.stats().renewals;
    wait_until("renewals without the runtime", || locks.stats().renewals >= renewals + 4);
    guard.check().unwrap();
    drop(guard);
    wait_until("the release", || held(&server).is_empty());
}

#[test]
fn a_runtime_that_is_blocked_for_three_leases_keeps_its_locks() {
    let server = RedisServer::start().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let locks = locks(&server.url(), SHORT).await;
        let guard = locks.lock("room").acquire().await.unwrap();
        std::thread::sleep(SHORT * 3);
        guard.check().unwrap();
        assert_eq!(locks.stats().lost, 0);
        guard.release().await.unwrap();
    });
}

#[test]
fn a_client_serves_one_runtime_after_the_other() {
    let server = RedisServer::start().unwrap();
    let (first, locks, guard) = on_a_runtime(&server.url(), LONG);
    first.shutdown_background();
    Runtime::new().unwrap().block_on(async {
        guard.release().await.unwrap();
        soon("the lock", locks.lock("room").acquire()).await.unwrap().release().await.unwrap();
    });
}

#[test]
fn an_acquire_whose_runtime_goes_away_leaves_nothing() {
    let server = RedisServer::start().unwrap();
    let (runtime, locks, guard) = on_a_runtime(&server.url(), LONG);
    for number in 0..50 {
        let lock = locks.lock(format!("room_{number}"));
        runtime.spawn(async move {
            let _guard = lock.acquire().await;
            std::future::pending::<()>().await;
        });
    }
    runtime.shutdown_background();
    drop(guard);
    wait_until("the clean-up", || locks.stats().held == 0 && held(&server).is_empty());
}

#[tokio::test]
async fn a_guard_dropped_by_a_panic_is_given_back() {
    let server = RedisServer::start().unwrap();
    let locks = locks(&server.url(), LONG).await;
    let lock = locks.lock("room");
    let body = async move {
        let _guard = lock.acquire().await.unwrap();
        panic!("in the middle of a critical section");
    };
    let body: tokio::task::JoinHandle<()> = tokio::spawn(body);
    assert!(body.await.unwrap_err().is_panic());
    until("the release", || held(&server).is_empty()).await;
}

#[tokio::test]
async fn a_shutdown_gives_back_every_lock_and_closes_every_connection() {
    let server = RedisServer::start().unwrap();
    let redis = Redis::connect(&server.url()).await.unwrap();
    let locks = over(redis, LONG);
    let mut guards = Vec::new();
    for number in 0..100 {
        guards.push(locks.lock(format!("room_{number}")).acquire().await.unwrap());
    }
    assert_eq!(held(&server).len(), 100);
    locks.shutdown(Duration::from_secs(10)).await.unwrap();
    assert_eq!(held(&server), [""; 0]);
    error_of(locks.lock("room").acquire().await, ErrorKind::Closed);
    drop(guards);
    until("the connections to close", || {
        let clients: String = server.command(&["CLIENT", "LIST"]);
        !clients.contains("lib-name=dlock") && clients.lines().count() == 1
    })
    .await;
}
