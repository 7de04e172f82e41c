//! PostgreSQL: `lock_timeout`, within a savepoint so that the transaction survives it.

use std::time::Duration;

use dlock_core::Key;
use sqlx::{AssertSqlSafe, PgConnection, Postgres};

use super::{LockStatement, Locking, Patience};
use crate::dialect::{Dialect, Meaning, meaning_of};
use crate::digest::number;

const SAVE: &str = "SAVEPOINT dlock";
const FORGET: &str = "RELEASE SAVEPOINT dlock";
/// Sets the limit back that was set before.
const BACK: &str = "SELECT set_config('lock_timeout', current_setting('dlock.lock_timeout'), true)";

/// Sets the limit for this transaction, and remembers the one before.
fn set(limit: i32) -> String {
    format!(
        "SELECT set_config('dlock.lock_timeout', current_setting('lock_timeout'), true), \
         set_config('lock_timeout', '{limit}', true)"
    )
}

/// Returns the limit in milliseconds; `None` for the server's.
fn limit(patience: Patience) -> Option<i32> {
    let limit = match patience {
        Patience::OfServer => return None,
        // The shortest that does not mean "without end".
        Patience::No => Duration::from_millis(1),
        Patience::AtMost(limit) => limit.max(Duration::from_millis(1)),
    };
    Some(i32::try_from(limit.as_millis()).unwrap_or(i32::MAX))
}

/// Lets the transaction go on after an error that says that something stayed locked. Takes the setting back, too.
async fn still_locked(on: &mut PgConnection, error: sqlx::Error) -> Result<sqlx::Error, sqlx::Error> {
    if meaning_of::<Postgres>(&error) == Meaning::Locked {
        sqlx::raw_sql(AssertSqlSafe(format!("ROLLBACK TO {SAVE}; {FORGET}"))).execute(on).await?;
    }
    Ok(error)
}

impl Locking for Postgres {
    async fn lock(
        on: &mut PgConnection,
        mut lock: LockStatement<Self>,
        patience: Patience,
    ) -> Result<Vec<Self::Row>, sqlx::Error> {
        let Some(limit) = limit(patience) else { return Self::fetch(on, &mut lock.query).await };
        if lock.selects && patience == Patience::No {
            lock.query.push(" NOWAIT");
        }
        sqlx::raw_sql(AssertSqlSafe(format!("{SAVE}; {}", set(limit)))).execute(&mut *on).await?;
        match Self::fetch(&mut *on, &mut lock.query).await {
            Ok(rows) => {
                sqlx::raw_sql(AssertSqlSafe(format!("{BACK}; {FORGET}"))).execute(on).await?;
                Ok(rows)
            }
            Err(error) => Err(still_locked(on, error).await?),
        }
    }

    async fn lock_name(
        on: &mut PgConnection,
        name_of_set: &str,
        name: &Key,
        patience: Patience,
    ) -> Result<bool, sqlx::Error> {
        let number = number("transaction", &[name_of_set, name.as_str()]);
        let locking = format!("SELECT pg_advisory_xact_lock({number})");
        match (patience, limit(patience)) {
            (Patience::No, _) => {
                let asking = "SELECT pg_try_advisory_xact_lock($1)";
                sqlx::query_scalar(asking).bind(number).fetch_one(on).await
            }
            (_, None) => sqlx::raw_sql(AssertSqlSafe(locking)).execute(on).await.map(|_| true),
            (_, Some(limit)) => {
                // In one message, which the server carries out to its end: the savepoint and the setting are gone
                // whatever becomes of the caller.
                let all = format!("{SAVE}; {}; {locking}; {BACK}; {FORGET}", set(limit));
                match sqlx::raw_sql(AssertSqlSafe(all)).execute(&mut *on).await {
                    Ok(_) => Ok(true),
                    Err(error) => Err(still_locked(on, error).await?),
                }
            }
        }
    }

    async fn prune_names(_: &mut PgConnection, _: &str) -> Result<u64, sqlx::Error> {
        Ok(0)
    }

    async fn prepare(_: &mut PgConnection, _: &str) -> Result<(), sqlx::Error> {
        Ok(())
    }
}
