//! The state of connections: what servers, databases, pools and applications set on them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_core::{ErrorKind, Locks};
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_sql::{Mysql, MysqlOptions, MysqlRowLocks, MysqlSessions, Postgres, PostgresOptions};
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use crate::support::{Db, is_error, on_both, once, take, until};

/// Locks with a lease that is short enough for renewals.
fn short(backend: impl dlock_core::Backend) -> Locks {
    Locks::builder(backend).with_lease(Duration::from_millis(1_500)).build().unwrap()
}

/// Takes a lock, waits until it was renewed, and gives it back.
async fn use_for_a_while(locks: &Locks) {
    let guard = take(locks, "a").await;
    let renewals = locks.stats().renewals;
    until("renewals", || locks.stats().renewals >= renewals + 3).await;
    guard.check().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_mode_commits_where_the_server_would_not() {
    let server = <MysqlServer as Db>::start();
    let theirs = server.locks().await;
    server.query("SET GLOBAL autocommit = 0");
    let guard = take(&Locks::new(Mysql::connect(&server.url()).await.unwrap()), "a").await;
    is_error(once(&theirs, "a").acquire().await, ErrorKind::Busy, &[]);
    guard.release().await.unwrap();
    assert_eq!(server.held(), 0);
    for (ours, theirs) in [
        (
            Locks::new(MysqlSessions::connect(&server.url()).await.unwrap()),
            Locks::new(MysqlSessions::connect(&server.url()).await.unwrap()),
        ),
        (
            Locks::new(MysqlRowLocks::connect(&server.url()).await.unwrap()),
            Locks::new(MysqlRowLocks::connect(&server.url()).await.unwrap()),
        ),
    ] {
        let guard = take(&ours, "b").await;
        is_error(once(&theirs, "b").acquire().await, ErrorKind::Busy, &[]);
        let last = guard.fence();
        guard.release().await.unwrap();
        drop(ours);
        let guard = take(&theirs, "b").await;
        assert!(guard.fence() > last, "its fence was committed");
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_that_does_not_commit_is_refused_and_changes_nothing() {
    let server = <MysqlServer as Db>::start();
    server.backend().await;
    let pool = MySqlPoolOptions::new().max_connections(2).after_connect(|connection, _| {
        Box::pin(async move { sqlx::raw_sql("SET autocommit = 0").execute(connection).await.map(drop) })
    });
    let pool = pool.connect_lazy(&server.url()).unwrap();
    let locks = Locks::new(Mysql::from_pool(&pool).await.unwrap());
    for key in ["new", "a"] {
        is_error(
            once(&locks, key).acquire().await,
            ErrorKind::InvalidConfig,
            &["autocommit", "after_connect"],
        );
    }
    is_error(locks.inspect("a").await, ErrorKind::InvalidConfig, &["autocommit"]);
    drop(pool);
    assert_eq!(server.query("SELECT count(*) FROM dlock"), "1", "only the mark");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_connections_go_where_the_pool_of_postgresql_goes() {
    let server = <PostgresServer as Db>::start();
    server.query("CREATE SCHEMA tenant; CREATE ROLE shop; GRANT CREATE, USAGE ON SCHEMA tenant TO shop");
    let pool = PgPoolOptions::new().max_connections(2).after_connect(|connection, _| {
        Box::pin(async move {
            sqlx::raw_sql("SET ROLE shop; SET search_path = tenant").execute(connection).await.map(drop)
        })
    });
    let pool = pool.connect_lazy(&server.url()).unwrap();
    PostgresOptions::from_pool(&pool).migrate().await.unwrap();
    assert_eq!(server.query("SELECT tableowner FROM pg_tables WHERE tablename = 'dlock'"), "shop");
    let locks = short(Postgres::from_pool(&pool).await.unwrap());
    use_for_a_while(&locks).await;
    assert_eq!(server.query("SELECT count(*) FROM tenant.dlock WHERE key = 'a' AND token IS NULL"), "1");
    let sessions =
        dlock_sql::PostgresSessions::with_options(PostgresOptions::from_pool(&pool)).await.unwrap();
    take(&Locks::new(sessions), "a").await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_connections_go_where_the_pool_of_mysql_goes() {
    let server = <MysqlServer as Db>::start();
    server.query("CREATE DATABASE tenant");
    let pool = MySqlPoolOptions::new().max_connections(2).after_connect(|connection, _| {
        Box::pin(async move { sqlx::raw_sql("USE tenant").execute(connection).await.map(drop) })
    });
    let pool = pool.connect_lazy(&server.url()).unwrap();
    MysqlOptions::from_pool(&pool).migrate().await.unwrap();
    let locks = short(Mysql::from_pool(&pool).await.unwrap());
    use_for_a_while(&locks).await;
    assert_eq!(server.query("SELECT count(*) FROM tenant.dlock WHERE `key` = 'a' AND token IS NULL"), "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_search_path_that_an_application_left_behind_leads_to_no_other_table() {
    let server = <PostgresServer as Db>::start();
    server.backend().await;
    let pool = PgPoolOptions::new().max_connections(1).connect_lazy(&server.url()).unwrap();
    let locks = Locks::new(Postgres::from_pool(&pool).await.unwrap());
    server.query("CREATE SCHEMA other; CREATE TABLE other.dlock (LIKE dlock INCLUDING ALL); INSERT INTO other.dlock TABLE dlock");
    sqlx::query("SET search_path = other").execute(&pool).await.unwrap();
    let guard = take(&locks, "a").await;
    assert_eq!(server.held(), 1);
    guard.release().await.unwrap();
    assert_eq!(server.query("SELECT count(*) FROM other.dlock"), "1", "only the mark");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_connections_take_the_password_of_the_moment() {
    let server = <PostgresServer as Db>::start();
    server.backend().await;
    server.make_user("app", "SELECT, INSERT, UPDATE");
    let options = |password: &str| server.url_as("app", password).parse::<PgConnectOptions>().unwrap();
    let pool = PgPoolOptions::new().max_connections(2).connect_lazy_with(options("right"));
    let with_pool = short(Postgres::from_pool(&pool).await.unwrap());
    let token = Arc::new(Mutex::new("right"));
    let ask = {
        let token = Arc::clone(&token);
        move || std::future::ready(Ok::<_, std::io::Error>((*token.lock().unwrap()).to_owned()))
    };
    let with_function = PostgresOptions::new(options("stale")).with_password_from(ask);
    let with_function = short(with_function.connect().await.unwrap());
    let guards = [take(&with_pool, "a").await, take(&with_function, "b").await];
    *token.lock().unwrap() = "rotated";
    pool.set_connect_options(options("rotated"));
    server.query("ALTER USER app PASSWORD 'rotated'");
    server.disconnect_all();
    for (locks, guard) in [&with_pool, &with_function].into_iter().zip(guards) {
        let renewals = locks.stats().renewals;
        until("renewals with the new password", || locks.stats().renewals >= renewals + 2).await;
        guard.check().unwrap();
        take(locks, "c").await.release().await.unwrap();
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_that_cannot_be_had_is_unavailable_with_its_cause() {
    let server = <PostgresServer as Db>::start();
    let options = PostgresOptions::from_url(&server.url()).unwrap();
    let options = options.with_password_from(|| std::future::ready(Err("the vault is sealed")));
    is_error(
        options.connect().await,
        ErrorKind::Unavailable,
        &["function", "password", "the vault is sealed"],
    );
}

on_both! {
    async fn a_table_may_be_named_with_its_schema<D: Db>(db: D) {
        db.query(if D::KEY == "key" { "CREATE SCHEMA other" } else { "CREATE DATABASE other" });
        let url = format!("{}{}&table=other.shop_locks", db.url(), D::MIGRATE);
        let locks = short(D::connect(&url).await.unwrap());
        let guard = take(&locks, "a").await;
        assert_eq!(db.query("SELECT count(*) FROM other.shop_locks WHERE token IS NOT NULL"), "1");
        assert_eq!(locks.holders().await.unwrap().len(), 1);
        guard.release().await.unwrap();
    }

    async fn nothing_depends_on_the_isolation_that_is_set<D: Db>(db: D) {
        db.backend().await;
        for level in ["READ UNCOMMITTED", "SERIALIZABLE"] {
            if D::KEY == "key" {
                db.query(&format!("ALTER DATABASE postgres SET default_transaction_isolation = '{}'", level.to_lowercase()));
            } else {
                db.query(&format!("SET GLOBAL TRANSACTION ISOLATION LEVEL {level}"));
            }
            let pool = db.pool(4);
            let locks = [Locks::new(D::on_pool(&pool).await.unwrap()), db.locks().await];
            let inside = Arc::new(std::sync::atomic::AtomicU32::new(0));
            let tasks: Vec<_> = (0..8).map(|n| {
                let (locks, inside) = (locks[n % 2].clone(), Arc::clone(&inside));
                tokio::spawn(async move {
                    for _ in 0..10 {
                        let guard = locks.lock("a").with_wait(Duration::from_secs(20)).acquire().await.unwrap();
                        assert_eq!(inside.fetch_add(1, SeqCst), 0);
                        tokio::task::yield_now().await;
                        inside.fetch_sub(1, SeqCst);
                        guard.release().await.unwrap();
                    }
                })
            }).collect();
            for task in tasks {
                task.await.unwrap();
            }
            assert_eq!(db.held(), 0);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn modes_that_take_an_empty_text_for_null_do_no_harm() {
    let server = <MysqlServer as Db>::start();
    server.backend().await;
    server.query("SET GLOBAL sql_mode = 'EMPTY_STRING_IS_NULL,ANSI_QUOTES,PAD_CHAR_TO_FULL_LENGTH,ORACLE'");
    server.query(
        "SET GLOBAL sql_select_limit = 1; SET GLOBAL sql_safe_updates = 1; SET GLOBAL completion_type = 1",
    );
    let pool = server.pool(2);
    let backend = Mysql::from_pool(&pool).await.unwrap();
    let locks = short(backend.clone());
    use_for_a_while(&locks).await;
    let guard = take(&locks, "a").await;
    assert_eq!(locks.inspect("a").await.unwrap().unwrap().fence, guard.fence());
    assert_eq!(locks.holders().await.unwrap().len(), 1);
    take(&locks, "b").await.release().await.unwrap();
    guard.release().await.unwrap();
    for round in 0..3 {
        let (reader, other) = (locks.lock("r").read(), locks.lock("r").read());
        let guards = [reader.acquire().await.unwrap(), other.acquire().await.unwrap()];
        // On the connections that made these steps, and on no other.
        let alone = [take(&locks, "a").await, take(&locks, "c").await];
        assert_eq!(
            server.held(),
            5,
            "committed, in round {round}: the key and its two readers, and two alone"
        );
        for guard in guards.into_iter().chain(alone) {
            guard.release().await.unwrap();
        }
        let fair = locks.lock("f").with_fairness(true);
        let guard = fair.acquire().await.unwrap();
        let line: Vec<_> = (0..2)
            .map(|_| {
                let fair = fair.clone();
                tokio::spawn(async move { fair.acquire().await.unwrap().release().await })
            })
            .collect();
        until("the line", || server.query("SELECT count(*) FROM dlock WHERE LEFT(`key`, 1) = X'FC'") == "2")
            .await;
        guard.release().await.unwrap();
        for waiter in line {
            waiter.await.unwrap().unwrap();
        }
    }
    server.age("b");
    backend.prune(Duration::ZERO).await.unwrap();
    let rows = Locks::new(MysqlRowLocks::connect(&server.url()).await.unwrap());
    for _ in 0..2 {
        take(&rows, "a").await.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_function_that_panics_is_unavailable_and_ends_nothing_of_dlock() {
    let server = <PostgresServer as Db>::start();
    server.backend().await;
    let (panics, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let ask = {
        let (panics, asked) = (Arc::clone(&panics), Arc::clone(&asked));
        move || {
            asked.fetch_add(1, SeqCst);
            assert!(!panics.load(SeqCst), "no token");
            std::future::ready(Ok::<_, std::io::Error>(String::new()))
        }
    };
    let options = PostgresOptions::from_url(&server.url()).unwrap().with_password_from(ask);
    let locks = Locks::builder(options.clone().connect().await.unwrap()).with_lease(Duration::from_secs(3));
    let (locks, theirs) = (locks.build().unwrap(), server.locks().await);
    let (guard, awaited) = (take(&locks, "a").await, take(&theirs, "b").await);
    panics.store(true, SeqCst);
    is_error(options.connect().await.map(drop), ErrorKind::Unavailable, &["panicked"]);
    // Who waits opens a connection to listen.
    let before = asked.load(SeqCst);
    let waiter = tokio::spawn({
        let lock = locks.lock("b").with_wait(Duration::from_secs(20));
        async move { lock.acquire().await }
    });
    until("it is to listen", || asked.load(SeqCst) > before).await;
    server.disconnect_all();
    once(&locks, "c").acquire().await.unwrap_err();
    panics.store(false, SeqCst);
    let renewals = locks.stats().renewals;
    until("a renewal", || locks.stats().renewals > renewals).await;
    guard.release().await.unwrap();
    let listens =
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND pid <> pg_backend_pid()";
    until("somebody listens", || server.query(listens) != "0").await;
    awaited.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
}
