//! MariaDB: limits in the statement. MySQL: `NOWAIT`, or a setting of the session that is set back.

use std::time::Duration;

use dlock_core::Key;
use sqlx::{AssertSqlSafe, MySql, MySqlConnection, QueryBuilder, Row};

use super::{LockStatement, Locking, Patience};
use crate::dialect::{Dialect, Meaning, meaning_of};
use crate::mysql::check_engine;
use crate::text::hex;

/// Whole seconds, rounded up.
fn seconds(limit: Duration) -> u64 {
    (limit.as_secs() + u64::from(limit.subsec_nanos() > 0)).min(1_073_741_824)
}

impl Locking for MySql {
    async fn lock(
        on: &mut MySqlConnection,
        mut lock: LockStatement<Self>,
        patience: Patience,
    ) -> Result<Vec<Self::Row>, sqlx::Error> {
        let limit = match patience {
            Patience::OfServer => return Self::fetch(on, &mut lock.query).await,
            Patience::No if lock.selects => {
                lock.query.push(" NOWAIT");
                return Self::fetch(on, &mut lock.query).await;
            }
            Patience::No => 0,
            Patience::AtMost(limit) => seconds(limit),
        };
        // Reads no table, so that a transaction's view of the data is not fixed before it has the lock.
        let before = sqlx::query("SELECT VERSION(), CAST(@@SESSION.innodb_lock_wait_timeout AS SIGNED)");
        let before = before.fetch_one(&mut *on).await?;
        let is_mariadb = before.try_get::<String, _>(0)?.contains("MariaDB");
        let set = |limit: i64| {
            let set = format!("SET SESSION innodb_lock_wait_timeout = {limit}");
            sqlx::raw_sql(AssertSqlSafe(set))
        };
        // MySQL has nothing below a second.
        let least = if is_mariadb { 0 } else { 1 };
        set(i64::try_from(limit).unwrap_or(i64::MAX).max(least)).execute(&mut *on).await?;
        let locked = Self::fetch(&mut *on, &mut lock.query).await;
        // Set back whatever came of it: the session belongs to the caller.
        set(before.try_get(1)?).execute(on).await?;
        locked
    }

    async fn lock_name(
        on: &mut MySqlConnection,
        set: &str,
        name: &Key,
        patience: Patience,
    ) -> Result<bool, sqlx::Error> {
        // Locks the row for writing at once, whether it is new or not. A read that finds no row would lock the gap
        // together with others, and then deadlock with them.
        let mut query = QueryBuilder::new(format!("INSERT INTO {set} (name, number) VALUES ("));
        query.push_bind(name.as_str().as_bytes().to_vec());
        query.push(", 0) ON DUPLICATE KEY UPDATE number = number");
        Self::lock(on, LockStatement { query, selects: false }, patience).await.map(|_| true)
    }

    async fn prune_names(on: &mut MySqlConnection, set: &str) -> Result<u64, sqlx::Error> {
        let (mut count, mut after) = (0, Vec::new());
        loop {
            let page =
                format!("SELECT name FROM {set} WHERE name > COALESCE(?, X'') ORDER BY name LIMIT 500");
            let rows = sqlx::query(AssertSqlSafe(page)).bind(&after).fetch_all(&mut *on).await?;
            let Some(last) = rows.last() else { return Ok(count) };
            after = last.try_get(0)?;
            for row in &rows {
                let name = hex(row.try_get(0)?);
                let statements = format!(
                    "START TRANSACTION; SELECT 1 FROM {set} WHERE name = X'{name}' FOR UPDATE NOWAIT;
                    DELETE FROM {set} WHERE name = X'{name}'; COMMIT"
                );
                match sqlx::raw_sql(AssertSqlSafe(statements)).execute(&mut *on).await {
                    Ok(done) => count += done.rows_affected(),
                    Err(error) => {
                        sqlx::raw_sql("ROLLBACK").execute(&mut *on).await?;
                        if meaning_of::<Self>(&error) != Meaning::Locked {
                            return Err(error);
                        }
                    }
                }
            }
        }
    }

    async fn prepare(on: &mut MySqlConnection, set: &str) -> Result<(), sqlx::Error> {
        let mut query =
            QueryBuilder::new(format!("CREATE TABLE IF NOT EXISTS {set} {}", Self::NAMED_NUMBERS));
        Self::execute(&mut *on, &mut query).await?;
        check_engine(on, set).await
    }
}
