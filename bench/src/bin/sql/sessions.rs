//! What a session or a transaction keeps, through the bare driver, with a fence.

use anyhow::{Context, Result, ensure};
use dlock_bench::measure::Pairs;
use dlock_sql::sqlx::postgres::{PgAdvisoryLock, PgAdvisoryLockKey};
use dlock_sql::sqlx::{self, AssertSqlSafe, Either, Row, SqlSafeStr, SqlStr};

use crate::bare::{HOLDER, My, Pg, task};
use crate::statements::Statements;

/// How many tasks have a row of their own.
const TASKS: usize = 8;

fn number(key: &str) -> i64 {
    i64::try_from(task(key)).unwrap_or_default() + 1
}

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

/// The same text for each task, with its key in it.
fn each(text: impl Fn(&str) -> String) -> Vec<SqlStr> {
    (0..TASKS).map(|task| AssertSqlSafe(text(&format!("bare_{task}"))).into_sql_str()).collect()
}

/// Session locks on PostgreSQL, by dlock's statements.
pub(crate) struct PostgresSession {
    pub(crate) connections: Pg,
    pub(crate) statements: Statements,
}

impl Pairs for PostgresSession {
    async fn pair(&self, key: &str) -> Result<()> {
        let name = format!("bare {key}");
        {
            let mut on = self.connections.of(key).await?;
            let take = sqlx::query(self.statements.take.clone()).bind(number(key)).bind(name.as_bytes());
            let rows = take.bind(HOLDER).fetch_all(&mut *on).await?;
            let row = rows.first().context("no answer")?;
            let holder = row.try_get::<Option<&str>, _>(1)?;
            ensure!(holder.is_none() && row.try_get::<Option<i64>, _>(0)?.is_some(), "it was taken");
        }
        let mut on = self.connections.of(key).await?;
        let release = sqlx::query(self.statements.release.clone()).bind(number(key));
        ensure!(release.fetch_one(&mut *on).await?.try_get::<bool, _>(1)?, "it was lost");
        Ok(())
    }
}

/// The advisory lock of sqlx, which has no fence.
pub(crate) struct PostgresAdvisory {
    connections: Pg,
    locks: Vec<PgAdvisoryLock>,
}

impl PostgresAdvisory {
    pub(crate) fn new(connections: Pg) -> Self {
        let lock = |task: i64| PgAdvisoryLock::with_key(PgAdvisoryLockKey::BigInt(1_000 + task));
        Self { connections, locks: (0..8).map(lock).collect() }
    }
}

impl Pairs for PostgresAdvisory {
    async fn pair(&self, key: &str) -> Result<()> {
        let mut on = self.connections.of(key).await?;
        let Either::Left(guard) = self.locks[task(key)].try_acquire(&mut *on).await? else {
            anyhow::bail!("it was taken");
        };
        guard.release_now().await?;
        Ok(())
    }
}

/// Locked rows on PostgreSQL.
pub(crate) struct PostgresRow {
    connections: Pg,
    lock: Vec<SqlStr>,
    count: SqlStr,
}

impl PostgresRow {
    /// With dlock's statement that counts a grant.
    pub(crate) async fn new(connections: Pg, count: SqlStr) -> Result<Self> {
        let lock = each(|key| {
            let row = format!("dlock WHERE key = decode('{}', 'hex')", hex(key));
            format!(
                "BEGIN; SELECT pg_backend_pid()::bigint, EXISTS (SELECT FROM {row}),
                    (SELECT true FROM (SELECT 1 FROM {row} FOR UPDATE SKIP LOCKED) AS locked)"
            )
        });
        let make = each(|key| {
            format!("INSERT INTO dlock (key, fence, expires, holder) VALUES ('{key}', 0, 'infinity', '')")
        });
        for statement in make {
            sqlx::raw_sql(statement).execute(&mut *connections.of("_0").await?).await?;
        }
        Ok(Self { connections, lock, count })
    }
}

impl Pairs for PostgresRow {
    async fn pair(&self, key: &str) -> Result<()> {
        let mut on = self.connections.of(key).await?;
        let locked = sqlx::raw_sql(self.lock[task(key)].clone()).fetch_all(&mut *on).await?;
        let locked = locked.first().context("no answer")?.try_get::<Option<bool>, _>(2)?;
        ensure!(locked == Some(true), "it was taken");
        let name = format!("bare row {key}");
        let count = sqlx::query(self.count.clone()).bind(name.as_bytes()).bind(7_i64).bind(HOLDER);
        ensure!(count.fetch_all(&mut *on).await?.len() == 1, "no fence");
        sqlx::raw_sql("SELECT pg_backend_pid()::bigint; COMMIT").fetch_all(&mut *on).await?;
        Ok(())
    }
}

const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// Counts a grant of a key on MariaDB.
fn counting(key: &str) -> String {
    format!(
        "UPDATE dlock SET fence = LAST_INSERT_ID(GREATEST(fence + 1, {NOW})),
            token = UNHEX(LPAD(HEX(@dlock_session), 32, '0')), holder = X'{}'
        WHERE `key` = X'{}'",
        hex(HOLDER),
        hex(key)
    )
}

async fn make_rows(connections: &My) -> Result<()> {
    let make = each(|key| {
        format!(
            "INSERT IGNORE INTO dlock (`key`, fence, expires, holder) VALUES ('{key}', 0, 9223372036854775807, '')"
        )
    });
    for statement in make {
        sqlx::raw_sql(statement).execute(&mut *connections.of("_0").await?).await?;
    }
    Ok(())
}

/// Session locks on MariaDB.
pub(crate) struct MysqlSession {
    connections: My,
    take: Vec<SqlStr>,
}

impl MysqlSession {
    pub(crate) async fn new(connections: My) -> Result<Self> {
        make_rows(&connections).await?;
        let take = each(|key| {
            format!(
                "SET @dlock_session = CONNECTION_ID(), @dlock = GET_LOCK('{key}', 0);
                {} AND @dlock = 1;
                SELECT CAST(CONNECTION_ID() AS SIGNED), CAST(@dlock AS SIGNED), CAST(ROW_COUNT() AS SIGNED),
                    CAST(LAST_INSERT_ID() AS SIGNED)",
                counting(key)
            )
        });
        Ok(Self { connections, take })
    }
}

impl Pairs for MysqlSession {
    async fn pair(&self, key: &str) -> Result<()> {
        {
            let mut on = self.connections.of(key).await?;
            let taken = sqlx::raw_sql(self.take[task(key)].clone()).fetch_all(&mut *on).await?;
            ensure!(taken.last().context("no answer")?.try_get::<i64, _>(1)? == 1, "it was taken");
        }
        let mut on = self.connections.of(key).await?;
        let free = "SELECT CAST(CONNECTION_ID() AS SIGNED), CAST(RELEASE_LOCK(?) AS SIGNED)";
        let freed = sqlx::query(free).bind(format!("bare_{}", task(key))).fetch_one(&mut *on).await?;
        ensure!(freed.try_get::<Option<i64>, _>(1)? == Some(1), "it was lost");
        Ok(())
    }
}

/// Locked rows on MariaDB.
pub(crate) struct MysqlRow {
    connections: My,
    lock: Vec<SqlStr>,
    count: Vec<SqlStr>,
}

impl MysqlRow {
    pub(crate) async fn new(connections: My) -> Result<Self> {
        make_rows(&connections).await?;
        let lock = each(|key| {
            format!(
                "SET @dlock_session = CONNECTION_ID(); START TRANSACTION;
                SELECT CAST(CONNECTION_ID() AS SIGNED) FROM dlock WHERE `key` = X'{}' FOR UPDATE NOWAIT",
                hex(key)
            )
        });
        let count = each(|key| format!("SET @dlock_session = 7; {}", counting(key)));
        Ok(Self { connections, lock, count })
    }
}

impl Pairs for MysqlRow {
    async fn pair(&self, key: &str) -> Result<()> {
        let mut on = self.connections.of(key).await?;
        let locked = sqlx::raw_sql(self.lock[task(key)].clone()).fetch_all(&mut *on).await?;
        ensure!(locked.len() == 1, "there is no row");
        let counted = sqlx::raw_sql(self.count[task(key)].clone()).execute(&mut *on).await?;
        ensure!(counted.rows_affected() == 1, "no fence");
        sqlx::raw_sql("SELECT CAST(CONNECTION_ID() AS SIGNED); COMMIT").fetch_all(&mut *on).await?;
        Ok(())
    }
}
