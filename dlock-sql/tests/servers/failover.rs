//! A primary that fails, and a standby that takes its place.

use std::net::SocketAddr;
use std::time::Duration;

use dlock_core::{Backend, ErrorKind, Locks};
use dlock_rig::proxy::Proxy;
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_sql::{MysqlRowLocks, MysqlSessions, PostgresRowLocks, PostgresSessions};

use crate::support::{Db, is_error, on_both_kinds, once, take, until};

trait Replicated: Db {
    type Sessions: Backend;
    type Rows: Backend;
    /// How many statements wait for a lock.
    const WAITING: &'static str;
    /// How many locks and transactions there are.
    const LEFT: &'static str;

    /// A primary whose commits wait for its standby.
    fn primary_and_standby() -> impl Future<Output = (Self, Self)> + Send;
    /// From now on an application can only read there, and its connections stay open.
    fn demote(&self);
    fn promote(&self);
    /// The URL of an application, which cannot write where others cannot.
    fn app_url(&self, address: SocketAddr) -> String;
    async fn sessions(url: &str) -> Self::Sessions;
    async fn rows(url: &str) -> Self::Rows;

    /// Both, and a way that leads to the primary.
    async fn pair() -> (Self, Self, Proxy) {
        let (primary, standby) = Self::primary_and_standby().await;
        let proxy = Proxy::start(primary.address()).unwrap();
        (primary, standby, proxy)
    }

    async fn lease_rows(&self, address: SocketAddr) -> Locks {
        let backend = Self::connect(&self.app_url(address)).await.unwrap();
        Locks::builder(backend).with_lease(Duration::from_secs(10)).build().unwrap()
    }
}

impl Replicated for PostgresServer {
    type Sessions = PostgresSessions;
    type Rows = PostgresRowLocks;
    const WAITING: &'static str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    const LEFT: &'static str = "SELECT (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory')
        + (SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction')";

    async fn primary_and_standby() -> (Self, Self) {
        let primary = Self::start().unwrap();
        primary.backend().await;
        let standby = primary.standby().unwrap();
        primary.query("ALTER SYSTEM SET synchronous_standby_names = '*'");
        primary.query("ALTER SYSTEM SET synchronous_commit = 'remote_apply'");
        primary.query("SELECT pg_reload_conf(), pg_sleep(0.2)");
        (primary, standby)
    }
    fn demote(&self) {
        self.read_only(true);
    }
    fn promote(&self) {
        Self::promote(self);
    }
    fn app_url(&self, address: SocketAddr) -> String {
        Self::url_through(self, address)
    }
    async fn sessions(url: &str) -> PostgresSessions {
        PostgresSessions::connect(url).await.unwrap()
    }
    async fn rows(url: &str) -> PostgresRowLocks {
        PostgresRowLocks::connect(url).await.unwrap()
    }
}

impl Replicated for MysqlServer {
    type Sessions = MysqlSessions;
    type Rows = MysqlRowLocks;
    const WAITING: &'static str = "SELECT count(*) FROM information_schema.processlist
        WHERE state = 'User lock' OR info LIKE 'SELECT 1 FROM % FOR UPDATE'";
    const LEFT: &'static str = "SELECT count(*) FROM information_schema.innodb_trx";

    async fn primary_and_standby() -> (Self, Self) {
        let primary = Self::primary().unwrap();
        let standby = primary.replica().unwrap();
        primary.backend().await;
        primary.make_user("app", "SELECT, INSERT, UPDATE");
        (primary, standby)
    }
    fn demote(&self) {
        self.read_only(true);
    }
    fn promote(&self) {
        Self::promote(self);
    }
    fn app_url(&self, address: SocketAddr) -> String {
        Self::url_through(self, address).replace("admin@", "app:right@")
    }
    async fn sessions(url: &str) -> MysqlSessions {
        MysqlSessions::connect(url).await.unwrap()
    }
    async fn rows(url: &str) -> MysqlRowLocks {
        MysqlRowLocks::connect(url).await.unwrap()
    }
}

/// Without a request of anybody: the sign of life finds out.
async fn is_lost_where_one_can_only_read<D: Replicated, B: Backend, F>(connect: impl Fn(String) -> F)
where
    F: Future<Output = B>,
{
    let (primary, standby, proxy) = D::pair().await;
    let locks = |backend| Locks::builder(backend).with_lease(Duration::from_secs(6)).build().unwrap();
    let ours = locks(connect(primary.app_url(proxy.address())).await);
    let kept = take(&ours, "kept").await;
    primary.demote();
    standby.promote();
    let theirs = locks(connect(standby.app_url(standby.address())).await);
    let next = take(&theirs, "kept").await;
    assert!(next.fence() > kept.fence());
    let lost = tokio::time::timeout(Duration::from_secs(20), kept.lost()).await;
    assert!(lost.is_ok(), "two hold it for good");
    is_error(once(&ours, "kept").acquire().await, ErrorKind::Unavailable, &["can only be read"]);
    proxy.retarget(standby.address());
    is_error(
        once(&ours, "kept").with_wait(Duration::from_millis(500)).acquire().await,
        ErrorKind::TimedOut,
        &[],
    );
    let fence = next.fence();
    next.release().await.unwrap();
    let again = ours.lock("kept").with_wait(Duration::from_secs(20)).acquire().await.unwrap();
    assert!(again.fence() > fence);
    again.release().await.unwrap();
}

/// A waiter that a statement on the server lets wait, while that server dies and a standby takes its place.
async fn goes_on_waiting<D: Replicated, B: Backend, F>(connect: impl Fn(String) -> F)
where
    F: Future<Output = B>,
{
    let (primary, standby, proxy) = D::pair().await;
    let locks = |backend: B| {
        let locks = Locks::builder(backend).with_lease(Duration::from_secs(6));
        locks.with_wait(Duration::from_secs(40)).build().unwrap()
    };
    let url = primary.app_url(proxy.address());
    let (ours, theirs) = (locks(connect(url.clone()).await), locks(connect(url).await));
    let waiting = |server: &D| server.query(D::WAITING) == "1";
    let held = take(&ours, "hot").await;
    let waiter = tokio::spawn({
        let lock = theirs.lock("hot");
        async move { lock.acquire().await }
    });
    until("it waits on the primary", || waiting(&primary)).await;
    drop(primary);
    standby.promote();
    let third = locks(connect(standby.app_url(standby.address())).await);
    let first = take(&third, "hot").await;
    assert!(first.fence() > held.fence());
    proxy.retarget(standby.address());
    held.lost().await;
    until("it waits on the new one", || waiting(&standby)).await;
    assert!(!waiter.is_finished());
    first.check().unwrap();
    let before = first.fence();
    first.release().await.unwrap();
    let second = waiter.await.unwrap().unwrap();
    assert!(second.fence() > before);
    second.release().await.unwrap();
    drop(held);
    until("nothing is left", || standby.query(D::LEFT) == "0" && standby.query(D::WAITING) == "0").await;
}

on_both_kinds! {
async fn a_way_that_led_to_a_standby_for_a_moment_costs_nothing_afterwards<D: Replicated>() {
    let (primary, standby, proxy) = D::pair().await;
    let locks = primary.lease_rows(proxy.address()).await;
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

async fn locks_and_fences_go_on_at_the_standby_that_takes_over<D: Replicated>() {
    let (primary, standby, proxy) = D::pair().await;
    let locks = primary.lease_rows(proxy.address()).await;
    let (kept, before) = (take(&locks, "kept").await, take(&locks, "a").await);
    let last = before.fence();
    before.release().await.unwrap();
    primary.demote();
    standby.promote();
    proxy.retarget(standby.address());
    let expires = || standby.query(&format!("SELECT expires FROM dlock WHERE {} = 'kept'", D::KEY));
    let before = expires();
    until("a renewal at the new primary", || expires() != before).await;
    let after = locks.lock("a").with_wait(Duration::from_secs(5)).acquire().await.unwrap();
    assert!(after.fence() > last);
    let renewals = locks.stats().renewals;
    until("more renewals", || locks.stats().renewals > renewals + 1).await;
    kept.check().unwrap();
    let theirs = standby.lease_rows(standby.address()).await;
    is_error(once(&theirs, "kept").acquire().await, ErrorKind::Busy, &[]);
    kept.release().await.unwrap();
    after.release().await.unwrap();
    assert_eq!(standby.held(), 0);
}

async fn what_was_granted_just_before_the_primary_died_is_held_at_the_standby<D: Replicated>() {
    let (primary, standby, proxy) = D::pair().await;
    let locks = primary.lease_rows(proxy.address()).await;
    let mut held = Vec::new();
    for n in 0..20 {
        held.push(take(&locks, &n.to_string()).await);
    }
    drop(primary);
    standby.promote();
    let theirs = standby.lease_rows(standby.address()).await;
    for n in 0..20 {
        is_error(once(&theirs, &n.to_string()).acquire().await, ErrorKind::Busy, &[]);
    }
    proxy.retarget(standby.address());
    for guard in held {
        guard.release().await.unwrap();
    }
    assert_eq!(standby.held(), 0);
}

async fn a_session_is_lost_when_its_server_can_only_be_read<D: Replicated>() {
    Box::pin(is_lost_where_one_can_only_read::<D, _, _>(|url| async move { D::sessions(&url).await })).await;
}

async fn a_locked_row_is_lost_when_its_server_can_only_be_read<D: Replicated>() {
    Box::pin(is_lost_where_one_can_only_read::<D, _, _>(|url| async move { D::rows(&url).await })).await;
}

async fn who_waits_for_a_session_lock_on_the_server_goes_on_waiting_at_the_standby_that_takes_over<D: Replicated>() {
    Box::pin(goes_on_waiting::<D, _, _>(|url| async move { D::sessions(&url).await })).await;
}

async fn who_waits_for_a_locked_row_on_the_server_goes_on_waiting_at_the_standby_that_takes_over<D: Replicated>() {
    Box::pin(goes_on_waiting::<D, _, _>(|url| async move { D::rows(&url).await })).await;
}
}
