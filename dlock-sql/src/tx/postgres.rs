//! PostgreSQL: `lock_timeout`, within a savepoint so that the transaction survives it.

use std::time::Duration;

use dlock_core::Key;
use sqlx::{PgConnection, Postgres, QueryBuilder};

use super::{Locking, Patience, Statement};
use crate::dialect::{Dialect, Meaning, meaning_of};
use crate::digest::number;

impl Locking for Postgres {
    async fn lock(
        on: &mut PgConnection,
        mut lock: Statement<Self>,
        patience: Patience,
    ) -> Result<Vec<Self::Row>, sqlx::Error> {
        let limit = match patience {
            Patience::OfServer => return Self::fetch(on, &mut lock.query).await,
            // The shortest that is no "without end".
            Patience::No => Duration::from_millis(1),
            Patience::AtMost(limit) => limit.max(Duration::from_millis(1)),
        };
        if lock.selects && patience == Patience::No {
            lock.query.push(" NOWAIT");
        }
        let limit = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX).to_string();
        sqlx::query("SAVEPOINT dlock").execute(&mut *on).await?;
        let before: String =
            sqlx::query_scalar("SELECT current_setting('lock_timeout')").fetch_one(&mut *on).await?;
        sqlx::query("SELECT set_config('lock_timeout', $1, true)").bind(limit).execute(&mut *on).await?;
        match Self::fetch(&mut *on, &mut lock.query).await {
            Ok(rows) => {
                sqlx::query("SELECT set_config('lock_timeout', $1, true)")
                    .bind(before)
                    .execute(&mut *on)
                    .await?;
                sqlx::query("RELEASE SAVEPOINT dlock").execute(on).await?;
                Ok(rows)
            }
            Err(error) => {
                if meaning_of::<Self>(&error) == Meaning::Locked {
                    // Takes the setting back, too.
                    sqlx::query("ROLLBACK TO SAVEPOINT dlock").execute(&mut *on).await?;
                    sqlx::query("RELEASE SAVEPOINT dlock").execute(on).await?;
                }
                Err(error)
            }
        }
    }

    fn lock_name(set: &str, name: &Key) -> Statement<Self> {
        let mut query = QueryBuilder::new("SELECT pg_advisory_xact_lock(");
        query.push_bind(number("transaction", &[set, name.as_str()])).push(")");
        Statement { query, selects: false }
    }

    async fn prepare(_: &mut PgConnection, _: &str) -> Result<(), sqlx::Error> {
        Ok(())
    }
}
