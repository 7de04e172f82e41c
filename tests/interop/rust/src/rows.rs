//! Lock rows of PostgreSQL and MariaDB, shared with a client in Python that knows only the published functions.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use dlock_core::Locks;
use dlock_interop::other_clients;
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_sql::sqlx::{self, AssertSqlSafe, Connection as _, MySqlConnection};
use dlock_sql::{Mysql, MysqlOptions, Postgres, PostgresOptions};
use tokio::process::Command;

const KEY: &str = "counted";

/// On PostgreSQL, where psycopg is the other side.
pub(crate) async fn counted_by_psycopg_too(count: u64) -> Result<String> {
    let server = PostgresServer::start()?;
    let options = PostgresOptions::from_url(&server.url())?;
    options.migrate().await?;
    server.query(&options.functions());
    server.query("CREATE TABLE counter (n bigint, fence bigint); INSERT INTO counter VALUES (0, 0)");
    let locks = Locks::new(Postgres::connect(&server.url()).await?);
    counted_by_both_sides(&locks, &server.url(), |statement| server.query(statement), count).await
}

/// On MariaDB, where PyMySQL is the other side.
pub(crate) async fn counted_by_pymysql_too(count: u64) -> Result<String> {
    let server = MysqlServer::start()?;
    let options = MysqlOptions::from_url(&server.url())?;
    options.migrate().await?;
    let mut connection = MySqlConnection::connect(&server.url()).await?;
    for statement in options.procedures() {
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut connection).await?;
    }
    server.query("CREATE TABLE counter (n bigint, fence bigint)");
    server.query("INSERT INTO counter VALUES (0, 0)");
    let locks = Locks::new(Mysql::connect(&server.url()).await?);
    counted_by_both_sides(&locks, &server.url(), |statement| server.query(statement), count).await
}

/// Both sides add to one counter by reading and writing it.
async fn counted_by_both_sides(
    locks: &Locks,
    url: &str,
    query: impl Fn(&str) -> String,
    count: u64,
) -> Result<String> {
    let (python, script) = other_clients::python("rows.py").await?;
    // It is faster.
    let theirs_count = count * 5;
    let theirs = Command::new(python)
        .arg(script)
        .args([url, KEY, &theirs_count.to_string()])
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("no Python")?;
    let mut waited = 0;
    for _ in 0..count {
        let lock = locks.lock(KEY).with_wait(Duration::from_secs(60));
        waited += u64::from(lock.clone().with_wait(dlock_core::Wait::No).acquire().await.is_err());
        let guard = lock.acquire().await?;
        let before: u64 = query("SELECT n FROM counter").parse()?;
        let fence = guard.fence().context("no fence")?.get();
        query(&format!("UPDATE counter SET n = {}, fence = {fence} WHERE fence < {fence}", before + 1));
        guard.release().await?;
    }
    let output = theirs.wait_with_output().await?;
    ensure!(output.status.success(), "Python ended with {}", output.status);
    let counted: u64 = query("SELECT n FROM counter").parse()?;
    ensure!(counted == count + theirs_count, "{counted} of {} were counted", count + theirs_count);
    Ok(format!("{counted} counted, {waited} times busy"))
}
