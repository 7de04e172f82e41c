//! A primary that fails, and a standby that takes its place.

use std::time::Duration;

use dlock_core::{Backend, ErrorKind, Locks};
use dlock_rig::proxy::Proxy;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_sql::{Postgres, PostgresRowLocks, PostgresSessions};

use crate::support::{Db, is_error, once, take, until};

/// A primary whose commits wait for its standby, and a way that leads to the primary.
async fn pair() -> (PostgresServer, PostgresServer, Proxy) {
    let primary = PostgresServer::start().unwrap();
    primary.backend().await;
    let standby = primary.standby().unwrap();
    primary.query("ALTER SYSTEM SET synchronous_standby_names = '*'");
    primary.query("ALTER SYSTEM SET synchronous_commit = 'remote_apply'");
    primary.query("SELECT pg_reload_conf(), pg_sleep(0.2)");
    let proxy = Proxy::start(primary.address()).unwrap();
    (primary, standby, proxy)
}

/// From now on an application can only read there, and its connections stay open.
fn demote(server: &PostgresServer) {
    server.query("ALTER SYSTEM SET default_transaction_read_only = on");
    server.query("SELECT pg_reload_conf(), pg_sleep(0.2)");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_way_that_led_to_a_standby_for_a_moment_costs_nothing_afterwards() {
    let (primary, standby, proxy) = pair().await;
    let backend = Postgres::connect(&primary.url_through(proxy.address())).await.unwrap();
    let locks = Locks::builder(backend).with_lease(Duration::from_secs(10)).build().unwrap();
    let guard = take(&locks, "a").await;
    proxy.retarget(standby.address());
    proxy.cut();
    let error = once(&locks, "b").acquire().await.unwrap_err();
    assert!(error.to_string().contains("can only be read"), "{error}");
    // Nobody closes what is open.
    proxy.retarget(primary.address());
    take(&locks, "b").await.release().await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(primary.held(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_and_fences_go_on_at_the_standby_that_takes_over() {
    let (primary, standby, proxy) = pair().await;
    let backend = Postgres::connect(&primary.url_through(proxy.address())).await.unwrap();
    let locks = Locks::builder(backend).with_lease(Duration::from_secs(10)).build().unwrap();
    let (kept, before) = (take(&locks, "kept").await, take(&locks, "a").await);
    let last = before.fence();
    before.release().await.unwrap();
    demote(&primary);
    standby.promote();
    proxy.retarget(standby.address());
    let expires = || standby.query("SELECT expires FROM dlock WHERE key = 'kept'");
    let before = expires();
    until("a renewal at the new primary", || expires() != before).await;
    let after = locks.lock("a").with_wait(Duration::from_secs(5)).acquire().await.unwrap();
    assert!(after.fence() > last);
    let renewals = locks.stats().renewals;
    until("more renewals", || locks.stats().renewals > renewals + 1).await;
    kept.check().unwrap();
    let theirs = Locks::new(Postgres::connect(&standby.url()).await.unwrap());
    is_error(once(&theirs, "kept").acquire().await, ErrorKind::Busy, &[]);
    kept.release().await.unwrap();
    after.release().await.unwrap();
    assert_eq!(standby.held(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_left_when_its_server_can_only_be_read() {
    let (primary, standby, proxy) = pair().await;
    let sessions = PostgresSessions::connect(&primary.url_through(proxy.address())).await.unwrap();
    let locks = Locks::builder(sessions).with_lease(Duration::from_secs(6)).build().unwrap();
    let kept = take(&locks, "kept").await;
    demote(&primary);
    standby.promote();
    proxy.retarget(standby.address());
    let guard = locks.lock("a").with_wait(Duration::from_secs(10)).acquire().await.unwrap();
    kept.lost().await;
    let kept_again = take(&locks, "kept").await;
    assert!(kept_again.fence() > kept.fence());
    guard.release().await.unwrap();
    kept_again.release().await.unwrap();
}

/// A waiter that a statement on the server lets wait, while that server dies and a standby takes its place.
async fn goes_on_waiting<B: Backend, F>(connect: impl Fn(String) -> F + Send + Sync)
where
    F: Future<Output = dlock_core::Result<B>> + Send,
{
    let (primary, standby, proxy) = pair().await;
    let locks = |backend: dlock_core::Result<B>| {
        let locks = Locks::builder(backend.unwrap()).with_lease(Duration::from_secs(6));
        locks.with_wait(Duration::from_secs(40)).build().unwrap()
    };
    let url = primary.url_through(proxy.address());
    let (ours, theirs) = (locks(connect(url.clone()).await), locks(connect(url).await));
    let waiting = |server: &PostgresServer| {
        server.query("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    };
    let held = take(&ours, "hot").await;
    let waiter = tokio::spawn({
        let lock = theirs.lock("hot");
        async move { lock.acquire().await }
    });
    until("it waits on the primary", || waiting(&primary) == "1").await;
    drop(primary);
    standby.promote();
    let third = locks(connect(standby.url()).await);
    let first = take(&third, "hot").await;
    assert!(first.fence() > held.fence());
    proxy.retarget(standby.address());
    held.lost().await;
    until("it waits on the new one", || waiting(&standby) == "1").await;
    assert!(!waiter.is_finished());
    first.check().unwrap();
    let before = first.fence();
    first.release().await.unwrap();
    let second = waiter.await.unwrap().unwrap();
    assert!(second.fence() > before);
    second.release().await.unwrap();
    drop(held);
    let left = "SELECT (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory')
        + (SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction')";
    until("nothing is left", || standby.query(left) == "0" && waiting(&standby) == "0").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_a_session_lock_on_the_server_goes_on_waiting_at_the_standby_that_takes_over() {
    Box::pin(goes_on_waiting(|url| async move { PostgresSessions::connect(&url).await })).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_a_locked_row_on_the_server_goes_on_waiting_at_the_standby_that_takes_over() {
    Box::pin(goes_on_waiting(|url| async move { PostgresRowLocks::connect(&url).await })).await;
}
