//! The statements that dlock sends, as the servers have noted them: what the bare driver sends too.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use dlock_core::Locks;
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_sql::PostgresRowLocks;
use dlock_sql::sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

use crate::clients::dlock;

/// One pair.
#[derive(Clone)]
pub(crate) struct Statements {
    pub(crate) take: SqlStr,
    pub(crate) release: SqlStr,
}

/// One pair of locked rows.
pub(crate) struct RowStatements {
    /// Makes a new connection ready.
    pub(crate) prepare: SqlStr,
    pub(crate) lock: SqlStr,
    /// Where the fence is counted by a message of its own.
    pub(crate) count: SqlStr,
    /// Then asks the connection with the row whether it has it still.
    pub(crate) confirm: SqlStr,
    pub(crate) free: SqlStr,
}

/// The key of the lock whose statements are noted.
const KEY: &str = "recorded";

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

/// What was noted, with another key in it.
pub(crate) fn of_key(text: &str, key: &str) -> String {
    text.replace(&hex(KEY), &hex(key))
}

/// What was noted of a session of MariaDB, for another session and another name.
pub(crate) fn of_session(text: &str, name: &str, session: i64) -> String {
    let between = |text: &str, before: &str, after: &str, new: &str| match text.split_once(before) {
        Some((start, rest)) => {
            let end = rest.find(after).unwrap_or_default();
            format!("{start}{before}{new}{}", &rest[end..])
        }
        None => text.to_owned(),
    };
    let text = between(text, "GET_LOCK('", "'", name);
    let text = between(&text, "RELEASE_LOCK('", "'", name);
    let text = between(&text, "LPAD(HEX(", ")", &session.to_string());
    between(&text, "CONNECTION_ID() = ", " ", &session.to_string())
}

fn sql(text: &str) -> Result<SqlStr> {
    ensure!(!text.is_empty(), "the server has noted no statement");
    Ok(AssertSqlSafe(text.to_owned()).into_sql_str())
}

/// What a pair of PostgreSQL's connections was asked last: after the acquire, and after the release. The latest
/// statement of an idle connection is shown with the connection.
pub(crate) async fn of_postgres(server: &PostgresServer, locks: &Locks) -> Result<Statements> {
    let latest = "SELECT query FROM pg_stat_activity WHERE application_name = 'dlock' ORDER BY query_start DESC LIMIT 1";
    // The first time makes the row.
    locks.lock(KEY).acquire().await?.release().await?;
    let guard = locks.lock(KEY).acquire().await?;
    let take = sql(&server.query(latest))?;
    guard.release().await?;
    Ok(Statements { take, release: sql(&server.query(latest))? })
}

/// The same of locked rows. What makes a connection ready is in the server's log.
pub(crate) async fn of_postgres_rows(server: &PostgresServer) -> Result<RowStatements> {
    let log = |what: &str| {
        server.query(&format!("ALTER SYSTEM SET log_statement = '{what}'"));
        server.query("SELECT pg_reload_conf(), pg_sleep(0.3)");
    };
    log("all");
    let locks = dlock(PostgresRowLocks::connect(&server.url()).await?)?;
    let of_pair = of_postgres(server, &locks).await;
    locks.shutdown(Duration::from_secs(5)).await?;
    log("none");
    let Statements { take, release } = of_pair?;
    let output = server.output();
    let (_, prepare) = output.split_once("statement: PREPARE ").context("a statement that prepares")?;
    // Further lines of a statement are indented.
    let prepare: Vec<&str> = prepare
        .lines()
        .enumerate()
        .take_while(|(number, line)| *number == 0 || line.starts_with('\t'))
        .map(|(_, line)| line)
        .collect();
    let prepare = sql(&format!("PREPARE {}", prepare.join("\n")))?;
    let none = sql("SELECT 1")?;
    Ok(RowStatements { prepare, lock: take, count: none.clone(), confirm: none, free: release })
}

async fn record(server: &MysqlServer, locks: &Locks) -> Result<()> {
    server.query("SET GLOBAL log_output = 'TABLE'; TRUNCATE mysql.general_log; SET GLOBAL general_log = 1");
    for _ in 0..2 {
        // The second time the row is there, as it is in what is measured.
        locks.lock(KEY).acquire().await?.release().await?;
    }
    server.query("SET GLOBAL general_log = 0");
    Ok(())
}

/// The messages of the last pair that were not prepared.
async fn last_pair(server: &MysqlServer, locks: &Locks, first: &str) -> Result<Vec<SqlStr>> {
    record(server, locks).await?;
    let noted = server.query(
        "SELECT REPLACE(CONVERT(argument USING utf8mb4), '\\n', ' ') FROM mysql.general_log \
         WHERE command_type = 'Query' AND argument NOT LIKE '%general_log%' ORDER BY event_time",
    );
    let noted: Vec<&str> = noted.lines().collect();
    let begin = noted.iter().rposition(|text| text.starts_with(first));
    let begin = begin.with_context(|| format!("no pair was noted that begins with `{first}`"))?;
    noted[begin..].iter().map(|text| sql(text)).collect()
}

/// The same of sessions.
pub(crate) async fn of_mysql_sessions(server: &MysqlServer, locks: &Locks) -> Result<Statements> {
    match &last_pair(server, locks, "SET @dlock_mark").await?[..] {
        [take, release] => Ok(Statements { take: take.clone(), release: release.clone() }),
        other => bail!("a pair of session locks has two messages, not {}", other.len()),
    }
}

/// The same of locked rows.
pub(crate) async fn of_mysql_rows(server: &MysqlServer, locks: &Locks) -> Result<RowStatements> {
    match &last_pair(server, locks, "SELECT CAST(CONNECTION_ID() AS SIGNED), `key`").await?[..] {
        [lock, count, confirm, free] => Ok(RowStatements {
            prepare: sql("SELECT 1")?,
            lock: lock.clone(),
            count: count.clone(),
            confirm: confirm.clone(),
            free: free.clone(),
        }),
        other => bail!("a pair of locked rows has four messages, not {}", other.len()),
    }
}
