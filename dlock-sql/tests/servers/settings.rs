//! What a role, a user or a server sets by default changes nothing.

use std::time::Duration;

use dlock_core::{ErrorKind, Locks};
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_sql::{
    Mysql, MysqlOptions, MysqlRowLocks, MysqlSessions, Postgres, PostgresOptions, PostgresRowLocks,
    PostgresSessions,
};

use crate::support::{Db, is_error};

/// That readers' shares and permits are held and handed over, between two processes; what went wrong.
async fn exercise_shares(a: &Locks, b: &Locks) -> Result<(), String> {
    let said = |what: &'static str| move |error: dlock_core::Error| format!("{what}: {error} {error:?}");
    let parts = async || {
        let reader = a.lock("left_by_a_reader").read().acquire().await?;
        let permits = a.semaphore("left_permits", 3).take(2).acquire().await?;
        Ok([("left_by_a_reader", reader), ("left_permits", permits)])
    };
    for (key, part) in parts().await.map_err(said("the shares"))? {
        let baton = part.hand_over().await.map_err(said("a hand-over"))?;
        let left = b.inspect(key).await.map_err(said("inspect"))?;
        if !left.as_ref().is_some_and(|left| left.left_behind && left.mode == baton.mode()) {
            return Err(format!("left was {:?}, and shown is {left:?}", baton.mode()));
        }
        let next = b.take_over(&baton).await.map_err(said("a take-over"))?;
        if next.fence() <= part.fence() {
            return Err(format!("the fence {:?} after {:?}", next.fence(), part.fence()));
        }
        match a.take_over(&baton).await {
            Err(error) if error.kind() == ErrorKind::NotHeld => {}
            other => return Err(format!("not refused, but {other:?}")),
        }
        next.release().await.map_err(said("the release of what was taken over"))?;
        if let Some(holder) = a.inspect(key).await.map_err(said("inspect"))? {
            return Err(format!("left behind: {holder:?}"));
        }
    }
    Ok(())
}

/// What a lock is expected to do, between two processes; what went wrong.
async fn exercise(a: &Locks, b: &Locks, key: &str) -> Result<(), String> {
    let said = |what: &'static str| move |error: dlock_core::Error| format!("{what}: {error} {error:?}");
    let wait = Duration::from_secs(10);
    let first = a.lock(key).with_wait(wait).acquire().await.map_err(said("the first"))?;
    match b.lock(key).with_wait(dlock_core::Wait::No).acquire().await {
        Err(error) if error.kind() == ErrorKind::Busy => {}
        other => return Err(format!("not busy, but {other:?}")),
    }
    let holder = b.inspect(key).await.map_err(said("inspect"))?;
    if holder.as_ref().and_then(|holder| holder.fence) != first.fence() {
        return Err(format!("held by {holder:?}, and not with {:?}", first.fence()));
    }
    let listed = b.holders().await.map_err(said("list"))?;
    if !listed.iter().any(|(of, _)| of.as_str() == key) {
        return Err(format!("not in the list {listed:?}"));
    }
    let waiting = b.lock(key).with_wait(wait);
    let waiting = tokio::spawn(async move { waiting.acquire().await });
    tokio::time::sleep(Duration::from_millis(30)).await;
    first.check().map_err(said("check"))?;
    let fence = first.fence();
    first.release().await.map_err(said("release"))?;
    let second = waiting.await.unwrap().map_err(said("the second"))?;
    if second.fence() <= fence {
        return Err(format!("the fence {:?} after {fence:?}", second.fence()));
    }
    second.release().await.map_err(said("the second release"))?;
    match a.inspect(key).await.map_err(said("inspect"))? {
        None => Ok(()),
        Some(holder) => Err(format!("left behind: {holder:?}")),
    }
}

fn locks(backend: impl dlock_core::Backend) -> Locks {
    Locks::builder(backend).with_lease(Duration::from_secs(6)).build().unwrap()
}

async fn on_postgres(url: &str) -> Result<(), String> {
    let said = |error: dlock_core::Error| format!("connect: {error}");
    let lease = || async { Postgres::connect(url).await.map(locks).map_err(said) };
    exercise(&lease().await?, &lease().await?, "lease").await.map_err(|why| format!("lease rows: {why}"))?;
    exercise_shares(&lease().await?, &lease().await?).await.map_err(|why| format!("shares: {why}"))?;
    let simple = format!("{url}{}statements=simple", if url.contains('?') { "&" } else { "?" });
    let simple = Postgres::connect(&simple).await.map(locks).map_err(said)?;
    exercise(&simple, &lease().await?, "lease").await.map_err(|why| format!("simple: {why}"))?;
    let session = || async { PostgresSessions::connect(url).await.map(locks).map_err(said) };
    exercise(&session().await?, &session().await?, "session")
        .await
        .map_err(|why| format!("sessions: {why}"))?;
    let row = || async { PostgresRowLocks::connect(url).await.map(locks).map_err(said) };
    exercise(&row().await?, &row().await?, "row").await.map_err(|why| format!("rows: {why}"))
}

async fn on_mysql(url: &str) -> Result<(), String> {
    let said = |error: dlock_core::Error| format!("connect: {error}");
    let lease = || async { Mysql::connect(url).await.map(locks).map_err(said) };
    exercise(&lease().await?, &lease().await?, "lease").await.map_err(|why| format!("lease rows: {why}"))?;
    exercise_shares(&lease().await?, &lease().await?).await.map_err(|why| format!("shares: {why}"))?;
    let session = || async { MysqlSessions::connect(url).await.map(locks).map_err(said) };
    exercise(&session().await?, &session().await?, "session")
        .await
        .map_err(|why| format!("sessions: {why}"))?;
    let row = || async { MysqlRowLocks::connect(url).await.map(locks).map_err(said) };
    exercise(&row().await?, &row().await?, "row").await.map_err(|why| format!("rows: {why}"))
}

/// Any of them changed an answer, a value or what a statement may do, somewhere.
const OF_POSTGRES: &[&str] = &[
    "default_transaction_isolation = 'serializable'",
    "default_transaction_deferrable = on",
    "statement_timeout = '5s'",
    "lock_timeout = '1ms'",
    "idle_in_transaction_session_timeout = '50ms'",
    "client_encoding = 'LATIN1'",
    "standard_conforming_strings = off",
    "backslash_quote = off",
    "bytea_output = 'escape'",
    "DateStyle = 'German, DMY'",
    "IntervalStyle = 'iso_8601'",
    "TimeZone = 'Pacific/Kiritimati'",
    "session_replication_role = 'replica'",
    "transform_null_equals = on",
    "array_nulls = off",
    "plan_cache_mode = 'force_generic_plan'",
    "jit_above_cost = 0",
    "force_parallel_mode = on",
    "enable_indexscan = off",
    "row_security = off",
    "extra_float_digits = -15",
    "client_min_messages = 'debug5'",
    "deadlock_timeout = '1ms'",
    "quote_all_identifiers = on",
    "track_activities = off",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_role_of_postgresql_sets_changes_nothing() {
    let server = PostgresServer::start().unwrap();
    PostgresOptions::from_url(&server.url()).unwrap().migrate().await.unwrap();
    Db::make_user(&server, "app", "SELECT, INSERT, UPDATE, DELETE");
    for setting in OF_POSTGRES {
        server.query(&format!("ALTER ROLE app SET {setting}"));
    }
    on_postgres(&server.url_as("app", "right")).await.unwrap();
}

#[tokio::test]
async fn a_setting_of_the_connection_that_postgresql_refuses_is_no_fault_of_the_table() {
    let server = PostgresServer::start().unwrap();
    let connect = async |options: &str| {
        Postgres::connect(&format!("{}&migrate=true&options={options}", server.url())).await
    };
    for wrong in ["-c%20statement_timeout%3Dx", "-c%20nonsense%3D1", "nonsense"] {
        is_error(connect(wrong).await, ErrorKind::InvalidConfig, &["`options`"]);
    }
    connect("-c%20statement_timeout%3D5s").await.unwrap();
}

/// For each connection that is opened.
const OF_MYSQL: &[&str] = &[
    "autocommit = 0, sql_mode = 'ANSI,TRADITIONAL', tx_isolation = 'SERIALIZABLE', time_zone = '-11:00', \
     sql_safe_updates = 1, sql_select_limit = 0, completion_type = 2, lock_wait_timeout = 0",
    "sql_mode = 'ORACLE', tx_isolation = 'READ-UNCOMMITTED', character_set_client = 'latin1', \
     character_set_connection = 'ucs2', character_set_results = 'utf16', innodb_lock_wait_timeout = 0",
    "sql_mode = 'NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,IGNORE_SPACE,EMPTY_STRING_IS_NULL,SIMULTANEOUS_ASSIGNMENT', \
     sql_big_selects = 0, max_join_size = 1, div_precision_increment = 0, group_concat_max_len = 4, \
     collation_connection = 'utf8mb4_turkish_ci'",
    "sql_mode = 'PAD_CHAR_TO_FULL_LENGTH,NO_UNSIGNED_SUBTRACTION,HIGH_NOT_PRECEDENCE,ONLY_FULL_GROUP_BY', \
     character_set_results = NULL, last_insert_id = 7, insert_id = 9, timestamp = 1000000000, big_tables = 1, \
     unique_checks = 0, max_error_count = 0, completion_type = 1",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_server_of_mariadb_sets_for_each_connection_changes_nothing() {
    let server = MysqlServer::start().unwrap();
    MysqlOptions::from_url(&server.url()).unwrap().migrate().await.unwrap();
    Db::make_user(&server, "app", "SELECT, INSERT, UPDATE, DELETE");
    for settings in OF_MYSQL {
        server.query(&format!("SET GLOBAL init_connect = \"SET {settings}\""));
        on_mysql(&server.url_as("app", "right")).await.unwrap_or_else(|why| panic!("{settings}: {why}"));
    }
}

/// InnoDB locks and changes nothing then in the isolation that the server gives each connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_mariadb_that_logs_statements_and_reads_what_is_committed_has_locks_of_all_modes() {
    for isolation in ["READ-COMMITTED", "READ-UNCOMMITTED"] {
        let server = MysqlServer::options().setting("log-bin", "log").setting("binlog-format", "STATEMENT");
        let server = server.setting("server-id", "1").setting("transaction-isolation", isolation);
        let server = server.start().unwrap();
        let url = server.url();
        MysqlOptions::from_url(&url).unwrap().migrate().await.unwrap();
        on_mysql(&url).await.unwrap_or_else(|why| panic!("{isolation}: {why}"));
        let locks = locks(Mysql::connect(&url).await.unwrap());
        let readers = locks.lock("shared").read().acquire().await.unwrap();
        locks.semaphore("permits", 2).acquire().await.unwrap().release().await.unwrap();
        readers.release().await.unwrap();
        // A pool's connections are the program's to settle.
        let pool = <MysqlServer as Db>::pool_of(&url, 2);
        let all = ["binlog_format = STATEMENT", "REPEATABLE READ", "after_connect"];
        let on_pool = <MysqlServer as Db>::backend_of(&pool).await.unwrap();
        let on_pool = Locks::builder(on_pool).with_wait(Duration::from_secs(60)).build().unwrap();
        is_error(on_pool.lock("a").acquire().await, ErrorKind::InvalidConfig, &all);
    }
}
