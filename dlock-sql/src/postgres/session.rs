//! Session locks of PostgreSQL.

use dlock_core::{Fence, Holder, Result, Token};
use sqlx::{AssertSqlSafe, PgConnection, Row};

use super::options::PostgresOptions;
use super::server::PostgresRows;
use crate::rows::Server;
use crate::session::{Asked, Name, SessionServer, Sessions};

/// Locks that a session of a PostgreSQL server keeps (`pg_try_advisory_lock`): see [`Sessions`].
///
/// ```no_run
/// # async fn example() -> Result<(), dlock_core::Error> {
/// use dlock_core::Locks;
/// use dlock_sql::PostgresSessions;
///
/// let sessions = PostgresSessions::connect("postgres://app:password@db.internal/shop").await?;
/// let locks = Locks::new(sessions);
/// locks.lock("room_7").run(async { /* one at a time */ }).await?;
/// # Ok(()) }
/// ```
pub type PostgresSessions = Sessions<PostgresRows>;

impl PostgresSessions {
    /// Connects to the server that `url` names, as [`Postgres::connect`](crate::Postgres::connect) does; the fences are
    /// counted in the same table. Connections are not limited: there is one.
    ///
    /// # Errors
    ///
    /// As [`PostgresOptions::from_url`] and [`PostgresOptions::connect`]; also
    /// [`ErrorKind::InvalidConfig`](dlock_core::ErrorKind::InvalidConfig) behind a proxy that shares sessions, as far as it can be told.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::with_options(PostgresOptions::from_url(url)?).await
    }

    /// The same with options.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn with_options(options: PostgresOptions) -> Result<Self> {
        let (server, connect_timeout) = options.for_sessions().await?;
        Self::start(server, connect_timeout).await
    }
}

/// Where the server has them: it notices a client that is gone, and lets an idle session live.
const SETTLE: &str = "SELECT set_config(name, ours.value, false) FROM pg_settings JOIN (VALUES \
    ('client_connection_check_interval', '1s'), ('idle_session_timeout', '0'), ('tcp_keepalives_idle', '10'), \
    ('tcp_keepalives_interval', '5'), ('tcp_keepalives_count', '3')) AS ours (name, value) USING (name)";
const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

fn number(name: &Name) -> i64 {
    let [a, b, c, d, e, f, g, h, ..] = name.digest;
    i64::from_be_bytes([a, b, c, d, e, f, g, h])
}

impl SessionServer for PostgresRows {
    const SESSIONS: &'static str = "postgres-session";

    async fn settle(&self, on: &mut PgConnection) -> Result<(i64, String), sqlx::Error> {
        sqlx::query(SETTLE).fetch_all(&mut *on).await?;
        let row = sqlx::query("SELECT pg_backend_pid()::bigint, coalesce(current_schema()::text, '')");
        let row = row.fetch_one(on).await?;
        Ok((row.try_get(0)?, row.try_get(1)?))
    }

    async fn ask(
        &self,
        on: &mut PgConnection,
        name: &Name,
        token: &Token,
        holder: &str,
    ) -> Result<Asked, sqlx::Error> {
        let table = self.table();
        let statement = format!(
            r#"WITH asked AS MATERIALIZED (SELECT pg_try_advisory_lock($1) AS got), counted AS (
                INSERT INTO "{table}" AS held (key, token, fence, expires, holder)
                SELECT $2, $3, greatest({NOW}, (SELECT fence + 1 FROM "{table}" WHERE key = '')), '-infinity', $4
                FROM asked WHERE got
                ON CONFLICT (key) DO UPDATE SET fence = greatest(held.fence + 1, excluded.fence),
                    token = excluded.token, holder = excluded.holder
                RETURNING fence
            ) SELECT pg_backend_pid()::bigint, (SELECT fence FROM counted)"#
        );
        let row = sqlx::query(AssertSqlSafe(statement))
            .bind(number(name))
            .bind(&name.row)
            .bind(token.as_bytes().as_slice())
            .bind(holder)
            .fetch_all(on)
            .await?;
        let row = row.first().ok_or(sqlx::Error::RowNotFound)?;
        let fence: Option<i64> = row.try_get(1)?;
        Ok(Asked { session: row.try_get(0)?, fence: fence.map(|fence| Fence::new(fence.unsigned_abs())) })
    }

    async fn leave(&self, on: &mut PgConnection, name: &Name) -> Result<i64, sqlx::Error> {
        sqlx::query("SELECT pg_backend_pid()::bigint, pg_advisory_unlock($1)")
            .bind(number(name))
            .fetch_one(on)
            .await?
            .try_get(0)
    }

    async fn ping(&self, on: &mut PgConnection) -> Result<i64, sqlx::Error> {
        sqlx::query("SELECT pg_backend_pid()::bigint").fetch_one(on).await?.try_get(0)
    }

    async fn holder(&self, on: &mut PgConnection, name: &Name) -> Result<Option<Holder>, sqlx::Error> {
        let table = self.table();
        let statement = format!(
            r#"SELECT fence, holder FROM "{table}" WHERE key = $1 AND EXISTS (
                SELECT FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                AND classid::bigint = ($2 >> 32) & 4294967295 AND objid::bigint = $2 & 4294967295)"#
        );
        let row = sqlx::query(AssertSqlSafe(statement)).bind(&name.row).bind(number(name));
        let Some(row) = row.fetch_optional(on).await? else { return Ok(None) };
        let mut holder = Holder::parse(row.try_get(1)?);
        holder.fence = Some(Fence::new(row.try_get::<i64, _>(0)?.unsigned_abs()));
        Ok(Some(holder))
    }
}
