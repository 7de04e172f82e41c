//! Servers and clients whose wall clock is set while connections keep locks.

use std::time::Duration;

use dlock_core::{ErrorKind, Wait};
use dlock_rig::proxy::Proxy;
use dlock_rig::servers::SteppedClock;
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;

use crate::kept::{
    Kind, LONG, MysqlRow, MysqlSession, PostgresRow, PostgresSession, over, soon, take, until,
};
use crate::support::Child;

const HOURS: Duration = Duration::from_secs(3 * 3_600);
/// With a sign of life each second.
const LEASE: Duration = Duration::from_secs(6);

type Step = fn(&SteppedClock);
const STEPS: [Step; 3] = [|clock| clock.ahead(HOURS), |clock| clock.behind(HOURS), |clock| clock.right()];

/// Waits until the client has sent something again, twice, or `holds` no more.
async fn signs_of_life(proxy: &Proxy, holds: impl Fn() -> bool + Send + Sync) {
    for _ in 0..2 {
        let before = proxy.traffic().bytes_to_server;
        until("a sign of life", || !holds() || proxy.traffic().bytes_to_server > before).await;
    }
}

async fn is_busy(locks: &dlock_core::Locks) {
    let error = locks.lock("a").with_wait(Wait::No).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
}

/// However the server's clock is set, a lock is kept until its holder knows better, and goes to who waits for it.
async fn stands_on<K: Kind>(server: &K::Server, clock: &SteppedClock) {
    let proxy = Proxy::start(K::address(server)).unwrap();
    let ours = over::<K>(&K::url_through(server, proxy.address()), LEASE).await;
    let (theirs, others) = (over::<K>(&K::url(server), LONG).await, over::<K>(&K::url(server), LONG).await);
    let mut last = None;
    for step in STEPS {
        let guard = take(&ours, "a").await;
        assert!(guard.fence() > last, "{:?} after {last:?}", guard.fence());
        last = guard.fence();
        let waiting = tokio::spawn({
            let theirs = theirs.clone();
            async move { take(&theirs, "a").await }
        });
        until("a waiter in the queue", || K::waiting(server) > 0).await;
        step(clock);
        signs_of_life(&proxy, || guard.check().is_ok()).await;
        if guard.check().is_ok() {
            is_busy(&others).await;
            assert!(!waiting.is_finished());
            guard.release().await.unwrap();
        } else {
            // PostgreSQL takes a session for one that has been silent for hours, and ends it.
            assert!(K::ROLE.starts_with("postgres"), "{:?}", guard.check());
        }
        let next = soon("the lock", waiting).await.unwrap();
        assert!(next.fence() > last, "{:?} after {last:?}", next.fence());
        last = next.fence();
        let _ = next.release().await;
    }
    until("every lock is free", || K::held(server) == 0).await;
}

/// A lock is kept, and ends with its process, however the client's clock is set meanwhile.
async fn stands_for<K: Kind>(server: &K::Server) {
    let directory = tempfile::tempdir().unwrap();
    let clock = SteppedClock::in_directory(directory.path()).unwrap();
    let proxy = Proxy::start(K::address(server)).unwrap();
    let url = K::url_through(server, proxy.address());
    let mut holder = Child::play_by(&clock, K::ROLE, &url);
    assert_eq!(holder.line(), "held");
    let locks = over::<K>(&K::url(server), LONG).await;
    for step in STEPS {
        step(&clock);
        signs_of_life(&proxy, || true).await;
        is_busy(&locks).await;
    }
    holder.kill();
    take(&locks, "a").await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_connection_to_postgres_keeps_does_not_depend_on_the_time() {
    let server = PostgresServer::options().stepped_clock().start().unwrap();
    stands_on::<PostgresSession>(&server, server.clock()).await;
    stands_on::<PostgresRow>(&server, server.clock()).await;
    stands_for::<PostgresSession>(&server).await;
    stands_for::<PostgresRow>(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_connection_to_mysql_keeps_does_not_depend_on_the_time() {
    let server = MysqlServer::options().stepped_clock().start().unwrap();
    stands_on::<MysqlSession>(&server, server.clock()).await;
    stands_on::<MysqlRow>(&server, server.clock()).await;
    stands_for::<MysqlSession>(&server).await;
    stands_for::<MysqlRow>(&server).await;
}
