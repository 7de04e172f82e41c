//! Locks that live as long as a connection.

use std::future::Future;
use std::time::{Duration, Instant};

use dlock_core::{Backend, ErrorKind, Guard, Locks, Result, Wait};
pub(crate) use dlock_rig::expect::{error_of, soon};
use dlock_rig::proxy::{Direction, Flow, Mysql, Pgwire, Proxy};
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_sql::{
    MysqlOptions, MysqlRowLocks, MysqlSessions, PostgresOptions, PostgresRowLocks, PostgresSessions,
};

use crate::support::Child;

/// A lease that nobody waits for the end of.
pub(crate) const LONG: Duration = Duration::from_secs(50);
/// A lease that a test waits for the end of.
const SHORT: Duration = Duration::from_secs(3);

/// A kind of locks, and the server that has them.
pub(crate) trait Kind: Send + Sync + 'static {
    type Backend: Backend + Clone;
    type Server: Send + Sync;
    /// The name of the role of a child process that holds a lock.
    const ROLE: &'static str;
    /// Whether all locks are on one connection.
    const SHARED: bool;

    fn start(settings: &[(&str, &str)]) -> Self::Server;
    fn url(server: &Self::Server) -> String;
    fn address(server: &Self::Server) -> std::net::SocketAddr;
    fn url_through(server: &Self::Server, address: std::net::SocketAddr) -> String;
    /// A proxy that tells requests and replies apart.
    fn proxy(server: &Self::Server) -> Proxy;
    fn pause(server: &Self::Server);
    fn resume(server: &Self::Server);
    fn disconnect_all(server: &Self::Server) -> usize;
    /// How many locks the server has for anybody.
    fn held(server: &Self::Server) -> usize;
    /// How many sessions wait on the server.
    fn waiting(server: &Self::Server) -> usize;
    /// What a statement answers; nothing if it fails.
    fn query(server: &Self::Server, statement: &str) -> String;
    /// Ends them.
    fn kill_waiting(server: &Self::Server);
    fn connect(url: &str) -> impl Future<Output = Result<Self::Backend>> + Send;
}

pub(crate) struct PostgresSession;
pub(crate) struct PostgresRow;
pub(crate) struct MysqlSession;
pub(crate) struct MysqlRow;

macro_rules! kind {
    ($kind:ident, $backend:ident, $options:ident, $server:ident, $protocol:ident, $role:literal, $shared:literal, $migrate:literal, $waiting:ident, $held:literal) => {
        impl Kind for $kind {
            type Backend = $backend;
            type Server = $server;
            const ROLE: &'static str = $role;
            const SHARED: bool = $shared;

            fn start(settings: &[(&str, &str)]) -> $server {
                let all = settings.iter();
                all.fold($server::options(), |server, (name, value)| server.setting(name, value))
                    .start()
                    .unwrap()
            }
            fn url(server: &$server) -> String {
                format!("{}{}", server.url(), $migrate)
            }
            fn address(server: &$server) -> std::net::SocketAddr {
                server.address()
            }
            fn url_through(server: &$server, address: std::net::SocketAddr) -> String {
                format!("{}{}", server.url_through(address), $migrate)
            }
            fn proxy(server: &$server) -> Proxy {
                Proxy::speaking($protocol::default(), server.address()).unwrap()
            }
            fn pause(server: &$server) {
                server.pause();
            }
            fn resume(server: &$server) {
                server.resume();
            }
            fn disconnect_all(server: &$server) -> usize {
                server.disconnect_all()
            }
            fn held(server: &$server) -> usize {
                server.query($held).parse().unwrap()
            }
            fn waiting(server: &$server) -> usize {
                $waiting(server).len()
            }
            fn query(server: &$server, statement: &str) -> String {
                server.try_query(statement).unwrap_or_default()
            }
            fn kill_waiting(server: &$server) {
                for kill in $waiting(server) {
                    // It may have ended since.
                    let _ = server.try_query(&kill);
                }
            }
            async fn connect(url: &str) -> Result<$backend> {
                // A machine that is busy with other tests is no failure.
                let options = $options::from_url(url)?.with_connect_timeout(Duration::from_secs(20));
                let options = options.with_max_connections(30);
                $backend::with_options(options).await
            }
        }
    };
}
kind!(
    PostgresSession,
    PostgresSessions,
    PostgresOptions,
    PostgresServer,
    Pgwire,
    "postgres-session",
    true,
    "&migrate=true",
    waiting_on_postgres,
    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
);
kind!(
    PostgresRow,
    PostgresRowLocks,
    PostgresOptions,
    PostgresServer,
    Pgwire,
    "postgres-row",
    false,
    "&migrate=true",
    waiting_on_postgres,
    "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' AND application_name = 'dlock'"
);
kind!(
    MysqlSession,
    MysqlSessions,
    MysqlOptions,
    MysqlServer,
    Mysql,
    "mysql-session",
    true,
    "?migrate=true",
    waiting_on_mysql,
    "SELECT count(*) FROM locks.dlock WHERE hex(left(`key`, 1)) = 'FF'
        AND IS_USED_LOCK(concat('dlock:', left(sha2(concat(
            unhex(lpad(hex(7), 16, '0')), 'session', unhex(lpad(hex(15), 16, '0')), '`locks`.`dlock`',
            unhex(lpad(hex(length(`key`) - 1), 16, '0')), substr(`key`, 2)), 256), 48))) IS NOT NULL"
);
kind!(
    MysqlRow,
    MysqlRowLocks,
    MysqlOptions,
    MysqlServer,
    Mysql,
    "mysql-row",
    false,
    "?migrate=true",
    waiting_on_mysql,
    "SELECT count(*) FROM information_schema.innodb_trx"
);

/// Statements that end the sessions that wait.
fn waiting_on_postgres(server: &PostgresServer) -> Vec<String> {
    let waiting = "SELECT 'SELECT pg_terminate_backend(' || pid || ')' FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    server.query(waiting).lines().map(str::to_owned).collect()
}

/// The same. The information schema would make a temporary table.
fn waiting_on_mysql(server: &MysqlServer) -> Vec<String> {
    let all = server.query("SHOW FULL PROCESSLIST");
    let waiting = all
        .lines()
        .filter(|line| ["GET_LOCK", "FOR UPDATE", "FOR SHARE"].iter().any(|waits| line.contains(waits)));
    let waiting = waiting.filter(|line| !line.contains("NOWAIT") && !line.contains("', 0)"));
    waiting
        .filter_map(|line| Some(format!("KILL {}", line.split(|c: char| !c.is_ascii_digit()).next()?)))
        .collect()
}

/// Each test once for each kind.
macro_rules! on_each_kind {
    ($($(#[$doc:meta])* async fn $name:ident<K: Kind>() $body:block)*) => {
        $($(#[$doc])* async fn $name<K: Kind>() $body)*
        on_each_kind!(@kind postgres_session PostgresSession $($name)*);
        on_each_kind!(@kind postgres_row PostgresRow $($name)*);
        on_each_kind!(@kind mysql_session MysqlSession $($name)*);
        on_each_kind!(@kind mysql_row MysqlRow $($name)*);
    };
    (@kind $module:ident $kind:ident $($name:ident)*) => {
        mod $module {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name::<super::$kind>().await;
            })*
        }
    };
}
pub(crate) use on_each_kind;

pub(crate) async fn over<K: Kind>(url: &str, lease: Duration) -> Locks {
    let backend = K::connect(url).await.unwrap_or_else(|error| panic!("{error}"));
    Locks::builder(backend).with_lease(lease).with_wait(Duration::from_secs(20)).build().unwrap()
}

pub(crate) async fn locks<K: Kind>(server: &K::Server, lease: Duration) -> Locks {
    over::<K>(&K::url(server), lease).await
}

pub(crate) async fn take(locks: &Locks, key: &str) -> Guard {
    locks.lock(key).acquire().await.unwrap_or_else(|error| panic!("{error}"))
}

pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    soon(what, async {
        while !holds() {
            // InnoDB shows its transactions as of an earlier look when that was less than 100 ms ago.
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
    })
    .await;
}

on_each_kind! {
    async fn a_connection_that_is_killed_loses_its_locks_and_is_replaced<K: Kind>() {
        let server = K::start(&[]);
        let (ours, theirs) = (locks::<K>(&server, SHORT).await, locks::<K>(&server, LONG).await);
        let mut last = None;
        for _ in 0..3 {
            let (one, two) = (take(&ours, "a").await, take(&ours, "b").await);
            assert!(one.fence() > last, "{:?} after {last:?}", one.fence());
            last = one.fence();
            assert!(K::disconnect_all(&server) > 0);
            soon("the loss", async { tokio::join!(one.lost(), two.lost()) }).await;
            error_of(one.check(), ErrorKind::Lost);
            let other = take(&theirs, "a").await;
            assert!(other.fence() > last, "a fence survives the end of the connection");
            last = other.fence();
            error_of(one.release().await, ErrorKind::NotHeld);
            error_of(two.release().await, ErrorKind::NotHeld);
            other.check().unwrap();
            other.release().await.unwrap();
        }
        until("every lock is free", || K::held(&server) == 0).await;
    }

    async fn a_short_freeze_makes_locks_suspect_and_loses_none<K: Kind>() {
        let server = K::start(&[]);
        let locks = locks::<K>(&server, Duration::from_secs(9)).await;
        let guard = take(&locks, "a").await;
        K::pause(&server);
        until("the suspicion", || guard.check().is_err()).await;
        error_of(guard.check(), ErrorKind::Suspect);
        K::resume(&server);
        until("the sign of life", || guard.check().is_ok()).await;
        assert_eq!(locks.stats().lost, 0);
        guard.release().await.unwrap();
        until("the lock is free", || K::held(&server) == 0).await;
    }

    async fn a_long_freeze_ends_the_locks_and_the_server_gives_them_to_others_after_it<K: Kind>() {
        let server = K::start(&[]);
        let (ours, theirs) = (locks::<K>(&server, SHORT).await, locks::<K>(&server, LONG).await);
        let guard = take(&ours, "a").await;
        K::pause(&server);
        soon("the loss", guard.lost()).await;
        error_of(guard.check(), ErrorKind::Lost);
        K::resume(&server);
        let other = take(&theirs, "a").await;
        assert!(other.fence() > guard.fence());
        error_of(guard.release().await, ErrorKind::NotHeld);
        other.check().unwrap();
    }

    async fn a_connection_that_falls_silent_ends_its_locks<K: Kind>() {
        let server = K::start(&[]);
        let proxy = Proxy::start(K::address(&server)).unwrap();
        let locks = over::<K>(&K::url_through(&server, proxy.address()), SHORT).await;
        let guard = take(&locks, "a").await;
        // Half open: neither side hears of the other's end.
        proxy.set(Direction::ToClient, Flow::Hold);
        proxy.set(Direction::ToServer, Flow::Hold);
        soon("the loss", guard.lost()).await;
        error_of(guard.check(), ErrorKind::Lost);
        proxy.cut();
        proxy.mend();
        let again = take(&locks, "a").await;
        assert!(again.fence() > guard.fence());
        again.release().await.unwrap();
    }

    async fn the_locks_of_a_killed_process_are_free_at_once<K: Kind>() {
        let server = K::start(&[]);
        let locks = locks::<K>(&server, LONG).await;
        for _ in 0..5 {
            let mut holder = Child::play(K::ROLE, &K::url(&server));
            assert_eq!(holder.line(), "held");
            let waiting = tokio::spawn({
                let lock = locks.lock("a");
                async move { lock.acquire().await }
            });
            until("a waiter", || locks.stats().held == 0 && !waiting.is_finished()).await;
            // Polls are as rare as they get.
            tokio::time::sleep(Duration::from_secs(1)).await;
            let killed = Instant::now();
            holder.kill();
            let guard = soon("the lock", waiting).await.unwrap().unwrap();
            let after = killed.elapsed();
            println!("taken over {after:?} after the kill");
            assert!(after < LONG / 10, "{after:?}, but there is no lease to wait for");
            guard.release().await.unwrap();
        }
    }

    async fn a_server_that_ends_idle_sessions_early_is_told_not_to<K: Kind>() {
        let settings: &[_] = if K::ROLE.starts_with("postgres") {
            &[("idle_session_timeout", "3s"), ("idle_in_transaction_session_timeout", "3s")]
        } else {
            // MySQL knows the first two.
            &[
                ("wait_timeout", "3"),
                ("interactive_timeout", "3"),
                ("loose-idle_transaction_timeout", "3"),
                ("loose-idle_readonly_transaction_timeout", "3"),
                ("loose-idle_write_transaction_timeout", "3"),
            ]
        };
        let server = K::start(settings);
        let locks = locks::<K>(&server, LONG).await;
        let guard = take(&locks, "a").await;
        // Less than the pause between two signs of life.
        tokio::time::sleep(Duration::from_millis(4_500)).await;
        until("the lock is there", || K::held(&server) == 1).await;
        guard.check().unwrap();
        guard.release().await.unwrap();
        assert_eq!(locks.stats().lost, 0);
        until("the lock is free", || K::held(&server) == 0).await;
    }

    async fn a_missing_table_and_a_server_that_is_away_are_told_apart<K: Kind>() {
        let server = K::start(&[]);
        let url = K::url(&server).replace("migrate=true", "table=nothing");
        let error = K::connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        assert!(error.to_string().contains("migrate"), "{error}");
        let locks = locks::<K>(&server, LONG).await;
        let url = K::url(&server);
        drop(server);
        let error = K::connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let error = locks.lock("a").with_wait(Wait::No).acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }

    async fn a_release_by_force_ends_the_connection_that_keeps_the_lock_and_no_other<K: Kind>() {
        let server = K::start(&[]);
        let (ours, theirs) = (locks::<K>(&server, SHORT).await, locks::<K>(&server, LONG).await);
        let (stuck, beside, other) = (take(&ours, "a").await, take(&ours, "b").await, take(&theirs, "c").await);
        assert!(theirs.force_release("a").await.unwrap());
        assert_eq!(theirs.inspect("a").await.unwrap(), None);
        let next = take(&theirs, "a").await;
        assert!(next.fence() > stuck.fence());
        soon("the loss", stuck.lost()).await;
        error_of(stuck.release().await, ErrorKind::NotHeld);
        if K::SHARED {
            soon("the loss of what was on the same connection", beside.lost()).await;
            take(&theirs, "b").await.release().await.unwrap();
        } else {
            beside.check().unwrap();
            beside.release().await.unwrap();
        }
        take(&ours, "b").await.release().await.unwrap();
        for guard in [next, other] {
            guard.check().unwrap();
            guard.release().await.unwrap();
        }
        until("every lock is free", || K::held(&server) == 0).await;
    }

    async fn looking_at_free_locks_makes_none_of_them_busy<K: Kind>() {
        let server = K::start(&[]);
        let (ours, theirs) = (locks::<K>(&server, LONG).await, locks::<K>(&server, LONG).await);
        take(&ours, "a").await.release().await.unwrap();
        let looking = tokio::spawn(async move {
            for _ in 0..200 {
                theirs.inspect("a").await.unwrap();
                assert!(theirs.holders().await.unwrap().iter().all(|(key, _)| key.as_str() == "a"));
            }
        });
        let mut refused = 0;
        while !looking.is_finished() {
            match ours.lock("a").try_acquire().await.unwrap() {
                Some(guard) => guard.release().await.unwrap(),
                None => refused += 1,
            }
        }
        looking.await.unwrap();
        // The rows of MariaDB can only be tried.
        assert!(refused == 0 || K::ROLE == "mysql-row", "{refused} attempts found it busy");
    }

    async fn what_a_connection_is_told_never_reaches_the_users_pool<K: Kind>() {
        let server = K::start(&[]);
        let url = K::url(&server);
        drop(K::connect(&url).await.unwrap());
        let plain = url.replace("?migrate=true", "").replace("&migrate=true", "");
        if K::ROLE.starts_with("postgres") {
            let pool = sqlx::postgres::PgPoolOptions::new().connect_lazy(&plain).unwrap();
            let options = PostgresOptions::from_pool(&pool);
            let guard = if K::SHARED {
                take(&Locks::new(PostgresSessions::with_options(options).await.unwrap()), "a").await
            } else {
                take(&Locks::new(PostgresRowLocks::with_options(options).await.unwrap()), "a").await
            };
            assert_eq!(pool.size(), 0, "no connection of the pool is used");
            guard.release().await.unwrap();
        } else {
            let pool = sqlx::mysql::MySqlPoolOptions::new().connect_lazy(&plain).unwrap();
            let options = MysqlOptions::from_pool(&pool);
            let guard = if K::SHARED {
                take(&Locks::new(MysqlSessions::with_options(options).await.unwrap()), "a").await
            } else {
                take(&Locks::new(MysqlRowLocks::with_options(options).await.unwrap()), "a").await
            };
            assert_eq!(pool.size(), 0, "no connection of the pool is used");
            guard.release().await.unwrap();
        }
    }
}
