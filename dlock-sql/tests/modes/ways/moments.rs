//! Rows that others lock for a moment while a key is moved, or pruned.

use sqlx::{AssertSqlSafe, Database, Executor, MySqlConnection, PgConnection};

use super::*;

const MYSQL_WAITS: &str = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'";
const MYSQL_OPEN: &str = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'RUNNING'";
const POSTGRES_WAITS: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
const POSTGRES_RUNS: &str = "SELECT count(*) FROM pg_stat_activity
    WHERE state = 'active' AND backend_type = 'client backend' AND pid <> pg_backend_pid()";

async fn soon(is_so: impl Fn() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < end);
        // InnoDB looks at its transactions anew only where nothing asked for a tenth of a second.
        sleep(Duration::from_millis(120)).await;
    }
}

/// Has a connection run a statement in a transaction that stays open.
async fn begin<DB: Database>(on: &mut DB::Connection, statement: String)
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    on.execute(sqlx::raw_sql("BEGIN")).await.unwrap();
    on.execute(sqlx::raw_sql(AssertSqlSafe(statement))).await.unwrap();
}

fn in_mysql(key: &str) -> String {
    format!("SELECT * FROM dlock WHERE `key` = X'{key}' FOR UPDATE")
}

fn in_postgres(key: &str) -> String {
    format!(r"SELECT FROM dlock WHERE key = '\x{key}' FOR UPDATE")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_of_postgresql_that_is_locked_for_a_moment_refuses_nobody() {
    let server = PostgresServer::start().unwrap();
    let proxy = Proxy::speaking(Pgwire::default(), server.address()).unwrap();
    let rows = PostgresRowLocks::connect(&format!("{}&migrate=true", server.url())).await.unwrap();
    granted(Locks::new(rows).lock("a")).await.release().await.unwrap();
    let leases = Locks::new(Postgres::connect(&server.url_through(proxy.address())).await.unwrap());
    granted(leases.lock("b")).await.release().await.unwrap();
    let mut one = PgConnection::connect(&server.url()).await.unwrap();
    let mut other = PgConnection::connect(&server.url()).await.unwrap();
    begin::<sqlx::Postgres>(&mut one, in_postgres("61")).await;
    let moving = tokio::spawn(granted(leases.lock("a")));
    soon(|| server.query(POSTGRES_WAITS) == "1").await;
    proxy.set(Direction::ToClient, Flow::Hold);
    begin::<sqlx::Postgres>(&mut other, in_postgres("FE61")).await;
    sqlx::raw_sql("ROLLBACK").execute(&mut one).await.unwrap();
    soon(|| server.query(POSTGRES_RUNS) == "0").await;
    // It was refused, and is free when the answer arrives.
    sqlx::raw_sql("ROLLBACK").execute(&mut other).await.unwrap();
    proxy.mend();
    moving.await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_of_mysql_that_is_locked_for_a_moment_refuses_nobody() {
    let server = MysqlServer::start().unwrap();
    let proxy = Proxy::speaking(MysqlProtocol, server.address()).unwrap();
    let rows = MysqlRowLocks::connect(&format!("{}?migrate=true", server.url())).await.unwrap();
    granted(Locks::new(rows).lock("a")).await.release().await.unwrap();
    let sessions = Locks::new(MysqlSessions::connect(&server.url_through(proxy.address())).await.unwrap());
    granted(sessions.lock("b")).await.release().await.unwrap();
    let mut other = MySqlConnection::connect(&server.url()).await.unwrap();
    begin::<sqlx::MySql>(&mut other, in_mysql("FE61")).await;
    proxy.set(Direction::ToClient, Flow::Delay(Duration::from_millis(400)));
    let lock =
        sessions.lock("a").with_lease(Duration::from_secs(120)).with_request_timeout(Duration::from_secs(30));
    let moving = tokio::spawn(granted(lock));
    // What keeps the row, and what was refused it, until its client learns of that and asks again.
    soon(|| server.query(MYSQL_OPEN) == "2").await;
    sqlx::raw_sql("ROLLBACK").execute(&mut other).await.unwrap();
    moving.await.unwrap().release().await.unwrap();
}

/// A key of sessions or locked rows that was not used for an hour.
async fn unused(locks: impl Backend, server: &MysqlServer) {
    granted(Locks::new(locks).lock("a")).await.release().await.unwrap();
    server.query("UPDATE dlock SET fence = fence - 3600000000 WHERE `key` = X'FF61'");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pruning_of_mysql_locks_no_row_while_it_waits_for_the_key() {
    let server = MysqlServer::start().unwrap();
    let url = format!("{}?migrate=true", server.url());
    unused(MysqlRowLocks::connect(&url).await.unwrap(), &server).await;
    let leases = Mysql::connect(&url).await.unwrap();
    let mut one = MySqlConnection::connect(&server.url()).await.unwrap();
    let mut other = MySqlConnection::connect(&server.url()).await.unwrap();
    begin::<sqlx::MySql>(&mut one, in_mysql("61")).await;
    let pruning = tokio::spawn(async move { leases.prune(Duration::ZERO).await });
    soon(|| server.query(MYSQL_WAITS) == "1").await;
    begin::<sqlx::MySql>(&mut other, format!("{} NOWAIT", in_mysql("FE61"))).await;
    sqlx::raw_sql("ROLLBACK").execute(&mut other).await.unwrap();
    sqlx::raw_sql("ROLLBACK").execute(&mut one).await.unwrap();
    assert_eq!(pruning.await.unwrap().unwrap(), 3);
}

/// As an earlier version has left the key. Who moves it has made the row of the key, and waits for that with the fence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pruning_of_mysql_does_not_wait_for_a_row_that_is_made_meanwhile() {
    let server = MysqlServer::start().unwrap();
    let url = format!("{}?migrate=true", server.url());
    unused(MysqlSessions::connect(&url).await.unwrap(), &server).await;
    server.query("DELETE FROM dlock WHERE `key` = 'a'");
    let leases = Mysql::connect(&url).await.unwrap();
    let mut one = MySqlConnection::connect(&server.url()).await.unwrap();
    let mut other = MySqlConnection::connect(&server.url()).await.unwrap();
    begin::<sqlx::MySql>(&mut one, in_mysql("FF61")).await;
    let pruning = tokio::spawn(async move { leases.prune(Duration::ZERO).await });
    soon(|| server.query(MYSQL_WAITS) == "1").await;
    let make = "INSERT INTO dlock (`key`, fence, expires, holder) VALUES (X'61', 0, 0, '')";
    begin::<sqlx::MySql>(&mut other, make.to_owned()).await;
    sqlx::raw_sql("ROLLBACK").execute(&mut one).await.unwrap();
    assert_eq!(pruning.await.unwrap().unwrap(), 1);
}
