//! What a session or a transaction keeps, through the bare driver, with a fence.

use anyhow::{Context, Result, ensure};
use dlock_bench::measure::Pairs;
use dlock_core::Locks;
use dlock_sql::sqlx::postgres::{PgAdvisoryLock, PgAdvisoryLockKey};
use dlock_sql::sqlx::{self, AssertSqlSafe, Either, Row, SqlSafeStr, SqlStr};

use crate::bare::{HOLDER, My, Pg, task};
use crate::statements::{RowStatements, Statements, of_key, of_session};

/// What the statement that releases a session's lock answers: its session, whether somebody waits, whether it had it.
const HAD_IT: usize = 2;

/// How many tasks have a lock of their own.
const TASKS: usize = 8;

/// In the keys of session locks.
const SESSION: &str = "session";
/// In the keys of locked rows.
const ROW: &str = "row";

fn number(key: &str) -> i64 {
    i64::try_from(task(key)).unwrap_or_default() + 1
}

/// The keys of the tasks. A key is locked in one way at a time, so that each way has keys of its own.
fn keys(way: &str) -> impl Iterator<Item = String> {
    (0..TASKS).map(move |task| format!("bare_{way}_{task}"))
}

/// The same text for each task, with its key in it.
fn each(way: &str, text: impl Fn(&str) -> String) -> Vec<SqlStr> {
    keys(way).map(|key| AssertSqlSafe(text(&key)).into_sql_str()).collect()
}

/// Has dlock write the rows of each task, as they are of this way once a lock was held.
async fn make_rows(locks: &Locks, way: &str) -> Result<()> {
    for key in keys(way) {
        locks.lock(key).acquire().await?.release().await?;
    }
    Ok(())
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
        // No claim waits for this turn.
        let (turn, of) = (-1_i32, i32::try_from(task(key))?);
        let release = sqlx::query(self.statements.release.clone()).bind(number(key)).bind(turn).bind(of);
        ensure!(release.fetch_one(&mut *on).await?.try_get::<bool, _>(HAD_IT)?, "it was lost");
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

/// Locked rows on PostgreSQL, by dlock's two messages a pair.
pub(crate) struct PostgresRow {
    connections: Pg,
    lock: Vec<SqlStr>,
    free: SqlStr,
}

impl PostgresRow {
    pub(crate) async fn new(connections: Pg, locks: &Locks, recorded: &RowStatements) -> Result<Self> {
        make_rows(locks, ROW).await?;
        for task in 0..TASKS {
            let mut on = connections.of(&format!("_{task}")).await?;
            sqlx::raw_sql(recorded.prepare.clone()).execute(&mut *on).await?;
            // As on dlock's connections.
            sqlx::raw_sql("SET synchronous_commit = off").execute(&mut *on).await?;
        }
        let lock = each(ROW, |key| of_key(recorded.lock.as_str(), key));
        Ok(Self { connections, lock, free: recorded.free.clone() })
    }
}

impl Pairs for PostgresRow {
    async fn pair(&self, key: &str) -> Result<()> {
        let mut on = self.connections.of(key).await?;
        let rows = sqlx::raw_sql(self.lock[task(key)].clone()).fetch_all(&mut *on).await?;
        let step = |name| rows.iter().find(|row| row.try_get("step").is_ok_and(|step: &str| step == name));
        ensure!(step("locked").is_some(), "it was taken");
        let counted = step("counted").context("no fence")?.try_get::<i64, _>(0)?;
        ensure!(step("seen").context("no answer")?.try_get::<i64, _>(0)? == counted, "another fence");
        let freed = sqlx::raw_sql(self.free.clone()).fetch_all(&mut *on).await?;
        ensure!(freed.len() == 1, "no answer");
        Ok(())
    }
}

/// Session locks on MariaDB, by dlock's statements.
pub(crate) struct MysqlSession {
    connections: My,
    take: Vec<SqlStr>,
    release: Vec<SqlStr>,
}

impl MysqlSession {
    pub(crate) async fn new(connections: My, locks: &Locks, recorded: &Statements) -> Result<Self> {
        make_rows(locks, SESSION).await?;
        let session: i64 = sqlx::raw_sql("SELECT CAST(CONNECTION_ID() AS SIGNED)")
            .fetch_one(&mut *connections.of("_0").await?)
            .await?
            .try_get(0)?;
        let take = each(SESSION, |key| of_session(&of_key(recorded.take.as_str(), key), key, session));
        let release = each(SESSION, |key| of_session(recorded.release.as_str(), key, session));
        Ok(Self { connections, take, release })
    }
}

impl Pairs for MysqlSession {
    async fn pair(&self, key: &str) -> Result<()> {
        {
            let mut on = self.connections.of(key).await?;
            let taken = sqlx::raw_sql(self.take[task(key)].clone()).execute(&mut *on).await?;
            ensure!(taken.rows_affected() == 1 && taken.last_insert_id() > 0, "it was taken");
        }
        let mut on = self.connections.of(key).await?;
        let freed = sqlx::raw_sql(self.release[task(key)].clone()).fetch_one(&mut *on).await?;
        ensure!(freed.try_get::<Option<i64>, _>(HAD_IT)? == Some(1), "it was lost");
        Ok(())
    }
}

/// Locked rows on MariaDB, by dlock's four messages a pair.
pub(crate) struct MysqlRow {
    connections: My,
    lock: Vec<SqlStr>,
    count: Vec<SqlStr>,
    confirm: SqlStr,
    free: SqlStr,
}

impl MysqlRow {
    pub(crate) async fn new(connections: My, locks: &Locks, recorded: &RowStatements) -> Result<Self> {
        make_rows(locks, ROW).await?;
        for task in 0..TASKS {
            // As on dlock's connections.
            let settle = "SET SESSION autocommit = 0; SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";
            sqlx::raw_sql(settle).execute(&mut *connections.of(&format!("_{task}")).await?).await?;
        }
        let lock = each(ROW, |key| of_key(recorded.lock.as_str(), key));
        let count = each(ROW, |key| of_key(recorded.count.as_str(), key));
        let (confirm, free) = (recorded.confirm.clone(), recorded.free.clone());
        Ok(Self { connections, lock, count, confirm, free })
    }
}

impl Pairs for MysqlRow {
    async fn pair(&self, key: &str) -> Result<()> {
        let mut on = self.connections.of(key).await?;
        let locked = sqlx::raw_sql(self.lock[task(key)].clone()).fetch_all(&mut *on).await?;
        ensure!(locked.len() == 1, "there is no row");
        let counted = sqlx::raw_sql(self.count[task(key)].clone()).execute(&mut *on).await?;
        ensure!(counted.rows_affected() == 1, "no fence");
        sqlx::raw_sql(self.confirm.clone()).fetch_one(&mut *on).await?;
        sqlx::raw_sql(self.free.clone()).fetch_all(&mut *on).await?;
        Ok(())
    }
}
