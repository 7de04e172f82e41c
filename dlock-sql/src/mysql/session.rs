//! Session locks of MariaDB and MySQL.

use dlock_core::{Fence, Holder, Result, Token};
use sqlx::{AssertSqlSafe, MySqlConnection, Row};

use super::options::MysqlOptions;
use super::server::MysqlRows;
use crate::rows::Server;
use crate::session::{Asked, Name, SessionServer, Sessions};

/// Locks that a session of a MariaDB or MySQL server keeps (`GET_LOCK`): see [`Sessions`].
///
/// ```no_run
/// # async fn example() -> Result<(), dlock_core::Error> {
/// use dlock_core::Locks;
/// use dlock_sql::MysqlSessions;
///
/// let sessions = MysqlSessions::connect("mysql://app:password@db.internal/shop").await?;
/// let locks = Locks::new(sessions);
/// locks.lock("room_7").run(async { /* one at a time */ }).await?;
/// # Ok(()) }
/// ```
///
/// `GET_LOCK` is of one server: the nodes of a Galera cluster do not see each other's, so that all must connect to the same
/// one.
pub type MysqlSessions = Sessions<MysqlRows>;

impl MysqlSessions {
    /// Connects to the server that `url` names, as [`Mysql::connect`](crate::Mysql::connect) does; the fences are counted in
    /// the same table. Connections are not limited: there is one.
    ///
    /// # Errors
    ///
    /// As [`MysqlOptions::from_url`] and [`MysqlOptions::connect`]; also
    /// [`ErrorKind::InvalidConfig`](dlock_core::ErrorKind::InvalidConfig) behind a proxy that shares sessions, as far as it can be told.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::with_options(MysqlOptions::from_url(url)?).await
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
    pub async fn with_options(options: MysqlOptions) -> Result<Self> {
        let (server, connect_timeout) = options.for_sessions().await?;
        Self::start(server, connect_timeout).await
    }
}

const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// At most 64 characters, in lower case since these names ignore case.
fn name_of(name: &Name) -> String {
    use std::fmt::Write;
    name.digest[..24].iter().fold("dlock:".to_owned(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

impl SessionServer for MysqlRows {
    const SESSIONS: &'static str = "mysql-session";

    async fn settle(&self, on: &mut MySqlConnection) -> Result<(i64, String), sqlx::Error> {
        // An idle session lives.
        sqlx::query("SET SESSION wait_timeout = GREATEST(@@SESSION.wait_timeout, 3600)")
            .execute(&mut *on)
            .await?;
        let row = sqlx::query("SELECT CAST(CONNECTION_ID() AS SIGNED), CAST(DATABASE() AS BINARY)");
        let row = row.fetch_one(on).await?;
        let database: Option<Vec<u8>> = row.try_get(1)?;
        Ok((row.try_get(0)?, String::from_utf8_lossy(&database.unwrap_or_default()).into_owned()))
    }

    async fn ask(
        &self,
        on: &mut MySqlConnection,
        name: &Name,
        token: &Token,
        holder: &str,
    ) -> Result<Asked, sqlx::Error> {
        let table = self.table();
        let row =
            sqlx::query("SELECT CAST(CONNECTION_ID() AS SIGNED), CAST(GET_LOCK(?, 0) AS SIGNED)").bind(name_of(name));
        let row = row.fetch_one(&mut *on).await?;
        let session = row.try_get(0)?;
        match row.try_get::<Option<i64>, _>(1)? {
            Some(1) => {}
            Some(_) => return Ok(Asked { session, fence: None }),
            None => return Err(sqlx::Error::Protocol("GET_LOCK failed".into())),
        }
        let update = format!(
            "UPDATE `{table}` SET fence = LAST_INSERT_ID(GREATEST(fence + 1, {NOW})), token = ?, holder = ? WHERE `key` = ?"
        );
        let mut counted = sqlx::query(AssertSqlSafe(update))
            .bind(token.as_bytes().as_slice())
            .bind(holder.as_bytes())
            .bind(&name.row)
            .execute(&mut *on)
            .await?;
        if counted.rows_affected() == 0 {
            let insert = format!(
                "INSERT INTO `{table}` (`key`, token, fence, expires, holder)
                SELECT ?, ?, LAST_INSERT_ID(GREATEST({NOW}, COALESCE(MAX(mark.fence), 0) + 1)), 0, ?
                FROM `{table}` AS mark WHERE mark.`key` = ''"
            );
            counted = sqlx::query(AssertSqlSafe(insert))
                .bind(&name.row)
                .bind(token.as_bytes().as_slice())
                .bind(holder.as_bytes())
                .execute(on)
                .await?;
        }
        Ok(Asked { session, fence: Some(Fence::new(counted.last_insert_id())) })
    }

    async fn leave(&self, on: &mut MySqlConnection, name: &Name) -> Result<i64, sqlx::Error> {
        sqlx::query("SELECT CAST(CONNECTION_ID() AS SIGNED), RELEASE_LOCK(?)")
            .bind(name_of(name))
            .fetch_one(on)
            .await?
            .try_get(0)
    }

    async fn ping(&self, on: &mut MySqlConnection) -> Result<i64, sqlx::Error> {
        sqlx::query("SELECT CAST(CONNECTION_ID() AS SIGNED)").fetch_one(on).await?.try_get(0)
    }

    async fn holder(&self, on: &mut MySqlConnection, name: &Name) -> Result<Option<Holder>, sqlx::Error> {
        let statement = format!(
            "SELECT fence, holder FROM `{}` WHERE `key` = ? AND IS_USED_LOCK(?) IS NOT NULL",
            self.table()
        );
        let row = sqlx::query(AssertSqlSafe(statement)).bind(&name.row).bind(name_of(name));
        let Some(row) = row.fetch_optional(on).await? else { return Ok(None) };
        let text: Vec<u8> = row.try_get(1)?;
        let mut holder = Holder::parse(&String::from_utf8_lossy(&text));
        holder.fence = Some(Fence::new(row.try_get::<i64, _>(0)?.unsigned_abs()));
        Ok(Some(holder))
    }
}
