//! The statements that dlock sends, as the servers have noted them: what the bare driver sends too.

use anyhow::{Context, Result, ensure};
use dlock_core::Locks;
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_sql::sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

/// One pair.
#[derive(Clone)]
pub(crate) struct Statements {
    pub(crate) take: SqlStr,
    pub(crate) release: SqlStr,
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
    locks.lock("recorded").acquire().await?.release().await?;
    let guard = locks.lock("recorded").acquire().await?;
    let take = sql(&server.query(latest))?;
    guard.release().await?;
    Ok(Statements { take, release: sql(&server.query(latest))? })
}

/// Every statement that is prepared is written to the log, if the server is asked to.
pub(crate) async fn of_mysql(server: &MysqlServer, locks: &Locks) -> Result<Statements> {
    server.query("SET GLOBAL log_output = 'TABLE'; SET GLOBAL general_log = 1");
    for _ in 0..2 {
        // The second time the row is there, as it is in what is measured.
        locks.lock("recorded").acquire().await?.release().await?;
    }
    server.query("SET GLOBAL general_log = 0");
    let one = |part: &str| -> Result<SqlStr> {
        let text = server.query(&format!(
            "SELECT REPLACE(CONVERT(argument USING utf8mb4), '\\n', ' ') FROM mysql.general_log \
             WHERE command_type = 'Prepare' AND argument LIKE 'UPDATE%{part}%' AND argument NOT LIKE '%1 = 0' LIMIT 1"
        ));
        sql(&text).with_context(|| format!("a statement with {part}"))
    };
    Ok(Statements { take: one("GREATEST")?, release: one("token = IF(")? })
}
