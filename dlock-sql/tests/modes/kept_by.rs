//! What only locks by sessions do, and what only locked rows do.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dlock_core::{Backend, ErrorKind, Locks, Wait};
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_sql::{MysqlRowLocks, MysqlSessions, Patience, PostgresRowLocks, PostgresSessions};
use sqlx::{Connection, Executor};

use crate::kept::{Kind, LONG, MysqlRow, locks, take};
use crate::readers::{can_write, read};

const MIGRATE: &str = "&migrate=true";

async fn sessions(server: &PostgresServer) -> Locks {
    let sessions = PostgresSessions::connect(&format!("{}{MIGRATE}", server.url())).await.unwrap();
    Locks::builder(sessions).with_wait(Duration::from_secs(20)).build().unwrap()
}

#[tokio::test]
async fn many_session_locks_share_one_connection() {
    let server = PostgresServer::start().unwrap();
    let locks = sessions(&server).await;
    let mut guards = Vec::new();
    for n in 0..300 {
        guards.push(locks.lock(format!("k{n}")).acquire().await.unwrap());
    }
    let on = "SELECT count(*), count(DISTINCT pid) FROM pg_locks WHERE locktype = 'advisory'";
    assert_eq!(server.query(on), "300|1");
    for guard in guards {
        guard.release().await.unwrap();
    }
    assert_eq!(server.query(on), "0|0");
}

#[tokio::test]
async fn each_locked_row_has_a_connection_and_their_number_is_bounded() {
    let server = PostgresServer::start().unwrap();
    let url = format!("{}{MIGRATE}&max_connections=2", server.url());
    let locks = Locks::new(PostgresRowLocks::connect(&url).await.unwrap());
    let (one, two) = (locks.lock("a").acquire().await.unwrap(), locks.lock("b").acquire().await.unwrap());
    let open = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'";
    assert_eq!(server.query(open), "2");
    let third = locks.lock("c").with_request_timeout(Duration::from_millis(200));
    let error = third.clone().with_wait(Wait::No).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("2 connections"), "{error}");
    let waiting = tokio::spawn(async move { third.acquire().await });
    one.release().await.unwrap();
    let three = waiting.await.unwrap().unwrap();
    // Who waits for a lock that somebody has keeps none of the connections.
    let other = Locks::new(PostgresRowLocks::connect(&url).await.unwrap());
    let waiters: Vec<_> = (0..3)
        .map(|n| {
            let lock = other.lock(if n == 0 { "b" } else { "c" });
            tokio::spawn(async move { lock.acquire().await.unwrap().release().await })
        })
        .collect();
    let free = other.lock("d").acquire().await.unwrap();
    free.release().await.unwrap();
    two.release().await.unwrap();
    three.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap().unwrap();
    }
    assert_eq!(server.query(open), "0");
}

#[tokio::test]
async fn a_row_that_another_transaction_has_delays_one_acquire_and_no_sign_of_life() {
    let server = PostgresServer::start().unwrap();
    let locks = sessions(&server).await;
    let guard = locks.lock("a").with_lease(Duration::from_secs(6)).acquire().await.unwrap();
    locks.lock("b").acquire().await.unwrap().release().await.unwrap();
    let mut other = sqlx::PgConnection::connect(&server.url()).await.unwrap();
    let mut open = other.begin().await.unwrap();
    open.execute("SELECT * FROM dlock FOR UPDATE").await.unwrap();
    let taking = tokio::spawn({
        let lock = locks.lock("b");
        async move { lock.acquire().await }
    });
    let error = sessions(&server).await.lock("b").with_wait(Wait::No).acquire().await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Busy), "{error}");
    for _ in 0..40 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        guard.check().unwrap();
    }
    assert!(!taking.is_finished(), "neither busy nor taken");
    open.rollback().await.unwrap();
    taking.await.unwrap().unwrap().release().await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(server.query("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"), "0");
}

#[tokio::test]
async fn a_number_that_somebody_else_uses_is_busy_and_its_holder_is_not_made_up() {
    let server = PostgresServer::start().unwrap();
    let locks = sessions(&server).await;
    let guard = locks.lock("a").acquire().await.unwrap();
    let number = "SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks WHERE locktype = 'advisory'";
    let number: i64 = server.query(number).parse().unwrap();
    guard.release().await.unwrap();
    // As a key would that has the same 64 bits.
    let mut other = sqlx::PgConnection::connect(&server.url()).await.unwrap();
    sqlx::query("SELECT pg_advisory_lock($1)").bind(number).execute(&mut other).await.unwrap();
    let error = locks.lock("a").with_wait(Wait::No).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    let holder = locks.inspect("a").await.unwrap().expect("somebody has it");
    assert_eq!((holder.pid, holder.fence), (None, None), "the row tells of an earlier grant");
    other.close().await.unwrap();
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn tables_and_schemas_have_locks_of_their_own() {
    let server = PostgresServer::start().unwrap();
    server.query("CREATE SCHEMA other");
    let url = format!("{}{MIGRATE}", server.url());
    let of_schema = format!("{url}&table=other.dlock");
    let mut guards = Vec::new();
    for url in [url.clone(), of_schema, format!("{url}&table=more")] {
        let locks = Locks::new(PostgresSessions::connect(&url).await.unwrap());
        guards.push(locks.lock("a").acquire().await.unwrap());
    }
    // The same table by another way is the same lock.
    let far = format!("{}&options=-csearch_path%3Dnothing,other&table=public.dlock", server.url());
    let locks = Locks::new(PostgresSessions::connect(&far).await.unwrap());
    let error = locks.lock("a").with_wait(Wait::No).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    for guard in guards {
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn keys_that_differ_in_case_and_spaces_are_different_names() {
    let server = MysqlServer::start().unwrap();
    let url = format!("{}?migrate=true", server.url());
    let locks = Locks::new(MysqlSessions::connect(&url).await.unwrap());
    let mut guards = Vec::new();
    for key in ["a", "A", "a ", "á", "🔒", &"x".repeat(512)] {
        guards.push(locks.lock(key).acquire().await.unwrap());
    }
    for guard in guards {
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_list_of_more_session_locks_than_a_page_has_is_complete() {
    let (postgres, mysql) = (PostgresServer::start().unwrap(), MysqlServer::start().unwrap());
    let mysql = MysqlSessions::connect(&format!("{}?migrate=true", mysql.url())).await.unwrap();
    for locks in [sessions(&postgres).await, Locks::new(mysql)] {
        let keys: Vec<String> = (0..1_100).map(|n| format!("k{n:04}")).collect();
        let mut guards = Vec::new();
        for some in keys.chunks(50) {
            guards.push(locks.lock_all(some).acquire().await.unwrap());
        }
        let held = locks.holders().await.unwrap();
        assert!(held.iter().all(|(_, holder)| holder.pid == Some(std::process::id())));
        assert_eq!(held.into_iter().map(|(key, _)| key.as_str().to_owned()).collect::<Vec<_>>(), keys);
        for guard in guards {
            guard.release().await.unwrap();
        }
        assert!(locks.holders().await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn who_may_not_end_the_session_of_another_is_denied_and_told_what_is_missing() {
    let (postgres, mysql) = (PostgresServer::start().unwrap(), MysqlServer::start().unwrap());
    let on_mysql = format!("{}?migrate=true", mysql.url());
    let (by_name, by_row) =
        (MysqlSessions::connect(&on_mysql).await.unwrap(), MysqlRowLocks::connect(&on_mysql).await.unwrap());
    let holders = [sessions(&postgres).await, Locks::new(by_name), Locks::new(by_row)];
    let mut guards = Vec::new();
    for (key, locks) in ["a", "a", "b"].into_iter().zip(&holders) {
        guards.push((key, locks.lock(key).acquire().await.unwrap()));
    }
    postgres.query("CREATE USER other PASSWORD 'other'; GRANT SELECT, INSERT, UPDATE ON dlock TO other");
    mysql.query("CREATE USER other IDENTIFIED BY 'other'");
    mysql.query("GRANT SELECT, INSERT, UPDATE ON locks.dlock TO other");
    let (on_postgres, on_mysql) = (postgres.url_as("other", "other"), mysql.url_as("other", "other"));
    let others = [
        (Locks::new(PostgresSessions::connect(&on_postgres).await.unwrap()), "pg_signal_backend"),
        (Locks::new(MysqlSessions::connect(&on_mysql).await.unwrap()), "CONNECTION ADMIN"),
        (Locks::new(MysqlRowLocks::connect(&on_mysql).await.unwrap()), "PROCESS"),
    ];
    for ((locks, right), (key, guard)) in others.into_iter().zip(guards) {
        let error = locks.force_release(key).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains(right), "{error}");
        guard.check().unwrap();
        guard.release().await.unwrap();
    }
}

/// A proxy that pools transactions: all clients share one connection to the server, a message each at a time.
fn pooler(server: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut greeting = Vec::new();
        let shared: Arc<Mutex<Option<TcpStream>>> = Arc::default();
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let mut start = vec![0; 4];
            client.read_exact(&mut start).unwrap();
            let length = u32::from_be_bytes([start[0], start[1], start[2], start[3]]) as usize;
            start.resize(length, 0);
            client.read_exact(&mut start[4..]).unwrap();
            let mut server_side = shared.lock().unwrap_or_else(PoisonError::into_inner);
            if server_side.is_none() {
                let mut stream = TcpStream::connect(server).unwrap();
                stream.write_all(&start).unwrap();
                greeting = until_ready(&mut stream);
                *server_side = Some(stream);
            }
            drop(server_side);
            client.write_all(&greeting).unwrap();
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || while serve(&mut client, &shared).is_some() {});
        }
    });
    address
}

/// Passes on what a client sends up to a query or a sync, and the answer.
fn serve(client: &mut TcpStream, shared: &Mutex<Option<TcpStream>>) -> Option<()> {
    let mut request = Vec::new();
    loop {
        let (kind, message) = message(client)?;
        if kind == b'X' {
            return None;
        }
        request.extend(message);
        if matches!(kind, b'Q' | b'S') {
            break;
        }
    }
    let mut server = shared.lock().unwrap_or_else(PoisonError::into_inner);
    let server = server.as_mut()?;
    server.write_all(&request).ok()?;
    client.write_all(&until_ready(server)).ok()
}

fn message(from: &mut TcpStream) -> Option<(u8, Vec<u8>)> {
    let mut message = vec![0; 5];
    from.read_exact(&mut message).ok()?;
    let length = u32::from_be_bytes([message[1], message[2], message[3], message[4]]) as usize;
    message.resize(length + 1, 0);
    from.read_exact(&mut message[5..]).ok()?;
    Some((message[0], message))
}

fn until_ready(server: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some((kind, message)) = message(server) {
        all.extend(message);
        if kind == b'Z' {
            break;
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_that_pools_transactions_is_refused() {
    let server = PostgresServer::start().unwrap();
    drop(sessions(&server).await);
    let url = server.url_through(pooler(server.address()));
    for error in [
        PostgresSessions::connect(&url).await.unwrap_err(),
        PostgresRowLocks::connect(&url).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        assert!(error.to_string().contains("different sessions"), "{error}");
    }
}

/// Two processes on this URL, whose grants are not counted.
async fn without_fences<B: Backend>(all: [B; 2], counted: impl Fn() -> String) {
    let [ours, theirs] = all.map(|backend| Locks::builder(backend).with_wait(Wait::No).build().unwrap());
    for _ in 0..2 {
        let guards = [ours.lock("a").acquire().await.unwrap(), ours.lock("b").acquire().await.unwrap()];
        assert!(guards.iter().all(|guard| guard.fence().is_none() && guard.check().is_ok()));
        for key in ["a", "b"] {
            assert_eq!(theirs.lock(key).acquire().await.unwrap_err().kind(), ErrorKind::Busy);
        }
        assert!(theirs.inspect("a").await.unwrap().is_some(), "somebody has it");
        let lock = theirs.lock("a").with_wait(Duration::from_secs(20));
        let waiter = tokio::spawn(async move { lock.acquire().await });
        for guard in guards {
            guard.release().await.unwrap();
        }
        waiter.await.unwrap().unwrap().release().await.unwrap();
    }
    assert_eq!(counted(), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_of_connections_without_fences_exclude_each_other_and_write_nothing() {
    let (server, mysql) = (PostgresServer::start().unwrap(), MysqlServer::start().unwrap());
    let url = format!("{}{MIGRATE}&fences=false", server.url());
    let counted = || server.query("SELECT count(*) FROM dlock WHERE key >= decode('ff', 'hex')");
    let open = || PostgresSessions::connect(&url);
    without_fences([open().await.unwrap(), open().await.unwrap()], counted).await;
    let open = || PostgresRowLocks::connect(&url);
    without_fences([open().await.unwrap(), open().await.unwrap()], counted).await;
    assert_eq!(dlock_sql::Postgres::connect(&url).await.unwrap_err().kind(), ErrorKind::InvalidConfig);
    let url = format!("{}?migrate=true&fences=false", mysql.url());
    let counted = || mysql.query("SELECT count(*) FROM dlock WHERE `key` >= X'FF'");
    let open = || MysqlSessions::connect(&url);
    without_fences([open().await.unwrap(), open().await.unwrap()], counted).await;
    let open = || MysqlRowLocks::connect(&url);
    without_fences([open().await.unwrap(), open().await.unwrap()], counted).await;
}

/// A connection of the caller's own, beside sessions of the same server.
macro_rules! on_own_connections {
    ($name:ident, $sessions:ident, $server:ident, $connection:ty, $migrate:literal, $unfit:literal, $mend:literal) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            let server = $server::start().unwrap();
            let url = format!("{}{}", server.url(), $migrate);
            let (ours, theirs) =
                ($sessions::connect(&url).await.unwrap(), $sessions::connect(&url).await.unwrap());
            let locks = Locks::builder(theirs).with_wait(Wait::No).build().unwrap();
            let mut one = <$connection>::connect(&server.url()).await.unwrap();
            let mut two = <$connection>::connect(&server.url()).await.unwrap();
            server.query("CREATE TABLE work (n integer)");
            let mut transaction = one.begin().await.unwrap();
            sqlx::query("INSERT INTO work VALUES (1)").execute(&mut *transaction).await.unwrap();
            let error = ours.lock_on(&mut transaction, "a", Patience::No).await.unwrap_err();
            assert!(
                error.kind() == ErrorKind::InvalidConfig && error.to_string().contains("commit"),
                "{error}"
            );
            assert_eq!(locks.inspect("a").await.unwrap(), None);
            assert_eq!(server.query("SELECT count(*) FROM work"), "0", "it is not committed");
            transaction.commit().await.unwrap();
            assert_eq!(server.query("SELECT count(*) FROM work"), "1");
            let _ = sqlx::raw_sql($unfit).execute(&mut one).await;
            let error = ours.lock_on(&mut one, "a", Patience::No).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
            sqlx::raw_sql($mend).execute(&mut one).await.unwrap();
            let mut lock = ours.lock_on(&mut one, "a", Patience::No).await.unwrap();
            sqlx::query("SELECT 1").execute(&mut *lock).await.unwrap();
            assert_eq!(locks.lock("a").acquire().await.unwrap_err().kind(), ErrorKind::Busy);
            let holder = locks.inspect("a").await.unwrap().unwrap();
            assert_eq!(holder.fence, lock.fence());
            let error = ours.lock_on(&mut two, "a", Patience::No).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
            let short = Patience::AtMost(Duration::from_millis(50));
            assert_eq!(ours.lock_on(&mut two, "a", short).await.unwrap_err().kind(), ErrorKind::TimedOut);
            assert_eq!(ours.lock_on(&mut two, "", short).await.unwrap_err().kind(), ErrorKind::InvalidKey);
            let first = lock.fence();
            lock.release().await.unwrap();
            let guard = locks.lock("a").acquire().await.unwrap();
            assert!(guard.fence() > first);
            let waiting = tokio::spawn({
                let ours = ours.clone();
                async move {
                    let lock = ours.lock_on(&mut two, "a", Patience::OfServer).await.unwrap();
                    let fence = lock.fence();
                    // With its connection.
                    drop(lock);
                    (two, fence)
                }
            });
            let before = guard.fence();
            guard.release().await.unwrap();
            let (two, fence) = waiting.await.unwrap();
            assert!(fence > before);
            assert_eq!(locks.lock("a").acquire().await.unwrap_err().kind(), ErrorKind::Busy);
            two.close().await.unwrap();
            let patient = locks.lock("a").with_wait(Duration::from_secs(20));
            patient.acquire().await.unwrap().release().await.unwrap();
            // One that was taken away is not released.
            let lock = ours.lock_on(&mut one, "a", Patience::No).await.unwrap();
            assert!(locks.force_release("a").await.unwrap());
            assert_eq!(lock.release().await.unwrap_err().kind(), ErrorKind::Unknown);
        }
    };
}

on_own_connections!(
    a_connection_of_the_callers_own_keeps_a_lock_of_postgresql,
    PostgresSessions,
    PostgresServer,
    sqlx::PgConnection,
    "&migrate=true",
    "BEGIN; SELECT 1 / 0",
    "ROLLBACK"
);
on_own_connections!(
    a_connection_of_the_callers_own_keeps_a_lock_of_mysql,
    MysqlSessions,
    MysqlServer,
    sqlx::MySqlConnection,
    "?migrate=true",
    "SET autocommit = 0",
    "SET autocommit = 1"
);

/// The question whether a transaction is open is one of how the next one would be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_of_mysql_that_is_refused_a_lock_keeps_its_settings() {
    let server = MysqlServer::start().unwrap();
    let sessions = MysqlSessions::connect(&format!("{}?migrate=true", server.url())).await.unwrap();
    let mut connection = sqlx::MySqlConnection::connect(&server.url()).await.unwrap();
    let unfit = "CREATE TABLE work (n integer); SET autocommit = 0; SET SESSION TRANSACTION READ ONLY";
    sqlx::raw_sql(unfit).execute(&mut connection).await.unwrap();
    let error = sessions.lock_on(&mut connection, "a", Patience::No).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    let written = sqlx::raw_sql("INSERT INTO work VALUES (1)").execute(&mut connection).await;
    assert!(written.unwrap_err().to_string().contains("READ ONLY"));
}

/// A server of MySQL has none of these limits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_limit_for_idle_transactions_ends_one_that_keeps_a_row() {
    let server = MysqlRow::start(&[]);
    if !server.query("SELECT VERSION()").contains("MariaDB") {
        return;
    }
    let mut guards = Vec::new();
    for limit in ["", "readonly_", "write_"] {
        let set = |seconds| server.query(&format!("SET GLOBAL idle_{limit}transaction_timeout = {seconds}"));
        set(1);
        let locks = locks::<MysqlRow>(&server, LONG).await;
        // What a session is not told itself it has of the server as it was when the session began.
        guards.push((limit, take(&locks, &format!("by {limit}")).await));
        set(0);
    }
    // More than the limit, and less than the pause between two signs of life.
    tokio::time::sleep(Duration::from_secs(3)).await;
    for (limit, guard) in guards {
        let next = locks::<MysqlRow>(&server, LONG).await.lock(format!("by {limit}")).try_acquire().await;
        assert!(next.unwrap().is_none(), "idle_{limit}transaction_timeout ended the lock");
        guard.check().unwrap();
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_locked_where_the_server_logs_statements_instead_of_rows() {
    let log = [("log-bin", "binlog"), ("server-id", "1"), ("binlog_format", "STATEMENT")];
    let server = MysqlRow::start(&log);
    let (ours, theirs) = (locks::<MysqlRow>(&server, LONG).await, locks::<MysqlRow>(&server, LONG).await);
    for _ in 0..2 {
        let guard = take(&ours, "a").await;
        let error = theirs.lock("a").with_wait(Wait::No).acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        take(&theirs, "b").await.release().await.unwrap();
        guard.release().await.unwrap();
    }
    // Also on connections of which none has locked a row alone.
    let (first, second) = (locks::<MysqlRow>(&server, LONG).await, locks::<MysqlRow>(&server, LONG).await);
    let guards = [read(&first, "a").await, read(&second, "a").await, read(&ours, "a").await];
    assert!(!can_write(&theirs, "a").await);
    for guard in guards {
        guard.release().await.unwrap();
    }
    assert!(can_write(&theirs, "a").await);
}
