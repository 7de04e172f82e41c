//! The locks that are rows of MariaDB and MySQL, which transactions keep.

use dlock_core::backend::Mode;
use dlock_core::{Holder, Key};
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, MySqlConnection, Row};

use super::statements::{SESSION, is_awaited, row_lock, token};
use super::{holder, one};
use crate::mysql::failure::{LOCKED, number};
use crate::mysql::server::MysqlServer;
use crate::mysql::values::literal;
use crate::protocol::SqlResult;
use crate::server::Server;
use crate::session::Sessions;
use crate::session::name::{FENCE, Name, READER, ROW, key_of_reader};
use crate::session::protocol::{Freed, Opened, Owners, OwningSession, TakeResult, Wanted};
use crate::session::strategy::{ByRow, Others, Strategy, take_row};
use crate::text::hex;
use crate::way::Way;

/// Locks that are rows of a MariaDB or MySQL table, locked in a transaction for as long as they are held
/// (`SELECT ... FOR UPDATE`): see [`Sessions`].
///
/// ```no_run
/// # async fn example() -> Result<(), dlock_core::Error> {
/// use dlock_core::Locks;
/// use dlock_sql::MysqlRowLocks;
///
/// let url = "mysql://app:password@db.internal/shop?max_connections=20&table=dlock_rows";
/// let locks = Locks::new(MysqlRowLocks::connect(url).await?);
/// locks.lock("room_7").run(async { /* one at a time */ }).await?;
/// # Ok(()) }
/// ```
///
/// Each lock has a connection of its own, at most `max_connections` at a time; further acquires wait for one, and fail
/// as [`ErrorKind::Unavailable`](dlock_core::ErrorKind::Unavailable) without. [`Mysql::prune`](crate::Mysql::prune)
/// waits for locked rows: use another table than for lease rows. Galera does not pass row locks on to other nodes.
pub type MysqlRowLocks = Sessions<ByRow<MysqlServer>>;

impl MysqlServer {
    /// Returns the sessions that this user may see. Not from the information schema: that makes a temporary table, at
    /// which MariaDB 10.11 was seen to crash.
    async fn sessions_seen(&self, on: &mut MySqlConnection) -> SqlResult<Vec<i64>> {
        let rows = sqlx::raw_sql("SHOW PROCESSLIST").fetch_all(on).await?;
        rows.iter().map(|row| row.try_get_unchecked(0)).collect()
    }

    /// Returns `true` if a transaction has locked a row, or has done so alone. No other can lock it in that moment.
    pub(super) async fn is_locked(
        &self,
        on: &mut MySqlConnection,
        row: &[u8],
        alone: bool,
    ) -> SqlResult<bool> {
        // The way to ask is to lock it: by a statement that is a transaction of its own, so that it is kept for no
        // longer.
        let lock = format!(
            "SELECT 1 FROM {} WHERE `key` = {} {} NOWAIT",
            self.quoted(),
            literal(row),
            row_lock(alone)
        );
        match one(on, lock).await {
            Ok(_) => Ok(false),
            Err(error) if LOCKED.contains(&number(&error)) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Returns the readers, all or those whose rows begin with this. Their rows are not committed.
    async fn readers(&self, on: &mut MySqlConnection, rows: &[u8]) -> SqlResult<Vec<MySqlRow>> {
        let look = format!(
            "SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED;
            SELECT fence, holder, token FROM {} WHERE `key` > X'{}' AND `key` < X'{}'",
            self.quoted(),
            hex(rows),
            hex(&[rows, &[0xff; 17]].concat())
        );
        sqlx::raw_sql(AssertSqlSafe(look)).fetch_all(on).await
    }
}

impl Strategy for ByRow<MysqlServer> {
    type Server = MysqlServer;

    const NAME: &'static str = "mysql-row";
    const WAY: Way = Way::Row;
    const SHARED: bool = false;
    const TAKES_AT_ONCE: bool = true;
    const READS: bool = true;
    const DOWNGRADES: bool = false;

    async fn take(
        others: &Others<MysqlServer>,
        on: &mut MySqlConnection,
        opened: Opened,
        wanted: &[Wanted],
    ) -> TakeResult {
        take_row(others, on, opened, wanted).await
    }

    async fn release(
        _: &MysqlServer,
        on: &mut MySqlConnection,
        names: &[Name],
    ) -> SqlResult<(i64, Vec<Freed>)> {
        let awaited: String = names.iter().map(|name| format!(", {}", is_awaited(name, true))).collect();
        // The row of a reader must not stay.
        let free = format!("SELECT {SESSION}{awaited}; ROLLBACK");
        let rows = sqlx::raw_sql(AssertSqlSafe(free)).fetch_all(on).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        let freed = |place| Ok(Freed { awaited: row.try_get::<i64, _>(place)? == 1, held: true });
        Ok((row.try_get(0)?, (1..=names.len()).map(freed).collect::<SqlResult<_>>()?))
    }

    async fn wait(server: &MysqlServer, on: &mut MySqlConnection, name: &Name) -> SqlResult<bool> {
        let (table, row) = (server.quoted(), hex(&name.row));
        let wait = format!("SELECT 1 FROM {table} WHERE `key` = X'{row}' {}", row_lock(name.is_read()));
        sqlx::raw_sql(AssertSqlSafe(wait)).execute(on).await.map(|_| true)
    }

    async fn owners(server: &MysqlServer, on: &mut MySqlConnection, name: &Name) -> SqlResult<Owners> {
        // Not locked, locked by readers, or alone. Each question can be overtaken by a release, so that a row that is
        // locked without a known holder is looked at once more, and is then reported with a hidden session.
        if !server.is_locked(on, &name.row, false).await? {
            return Ok(Vec::new());
        }
        if !server.is_locked(on, &name.row, true).await? {
            let readers = server.readers(on, &name.readers()).await?;
            if readers.is_empty() {
                // A transaction that held it alone may have released it since.
                if !server.is_locked(on, &name.row, false).await? {
                    return Ok(Vec::new());
                }
                let mut holder = Holder::default();
                holder.mode = Mode::Shared;
                return Ok(vec![(OwningSession::Hidden, holder)]);
            }
            return readers.iter().map(reader).collect();
        }
        let (table, fence) = (server.quoted(), literal(&name.fence));
        let held = format!("SELECT fence, holder, token FROM {table} WHERE `key` = {fence}");
        let Some(row) = one(on, held).await? else {
            return Ok(vec![(OwningSession::Hidden, Holder::default())]);
        };
        // The row with the fence names the session of the last grant. It is hidden where this user may not see it, or
        // it is gone.
        let of_grant: Option<Vec<u8>> = row.try_get(2)?;
        let mut seen = server.sessions_seen(on).await?.into_iter();
        let session = seen.find(|session| of_grant == Some(token(*session)));
        Ok(vec![(session.map_or(OwningSession::Hidden, OwningSession::Known), holder(&row)?)])
    }

    async fn held(server: &MysqlServer, on: &mut MySqlConnection) -> SqlResult<Vec<(Key, Holder)>> {
        let tokens = server.sessions_seen(on).await?.into_iter();
        let tokens: Vec<_> = tokens.map(|session| literal(&token(session))).collect();
        let granted = format!(
            "SELECT fence, holder, `key` FROM {} WHERE `key` > X'{FENCE:x}' AND token IN ({})",
            server.quoted(),
            tokens.join(", ")
        );
        let rows = sqlx::raw_sql(AssertSqlSafe(granted)).fetch_all(&mut *on).await?;
        let mut all = Vec::new();
        // The grant is as it was counted; only the row shows whether it is still held.
        for row in &rows {
            let mut locked: Vec<u8> = row.try_get(2)?;
            locked[0] = ROW;
            if let Some(key) = Name::key(&locked)
                && server.is_locked(on, &locked, false).await?
            {
                all.push((key, holder(row)?));
            }
        }
        for row in server.readers(on, &[READER]).await? {
            let line: Vec<u8> = row.try_get(1)?;
            if let Some(key) = key_of_reader(&String::from_utf8_lossy(&line)) {
                all.push((key, holder(&row)?));
            }
        }
        Ok(all)
    }
}

/// Reads the session of a reader, and its holder.
fn reader(row: &MySqlRow) -> SqlResult<(OwningSession, Holder)> {
    let token: Vec<u8> = row.try_get(2)?;
    let session =
        <[u8; 16]>::try_from(token).ok().and_then(|token| i128::from_be_bytes(token).try_into().ok());
    Ok((session.map_or(OwningSession::Hidden, OwningSession::Known), holder(row)?))
}
