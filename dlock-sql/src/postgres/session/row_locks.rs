//! The locks that are rows of PostgreSQL, which transactions keep.

use std::collections::HashSet;

use dlock_core::{Holder, Key};
use sqlx::{AssertSqlSafe, PgConnection, Row};

use super::holders::{granted, owners};
use super::statements::ADVISORY;
use super::{forget_readers, holder, part, turn, waited};
use crate::postgres::server::PostgresServer;
use crate::protocol::SqlResult;
use crate::server::Server;
use crate::session::Sessions;
use crate::session::name::{Name, Reader};
use crate::session::protocol::{Freed, Opened, Owners, TakeResult, Wanted};
use crate::session::strategy::{ByRow, Others, Strategy, take_row};
use crate::text::hex;
use crate::way::Way;

/// Locks that are rows of a PostgreSQL table, locked in a transaction for as long as they are held (`SELECT ... FOR
/// UPDATE`): see [`Sessions`].
///
/// ```no_run
/// # async fn example() -> Result<(), dlock_core::Error> {
/// use dlock_core::Locks;
/// use dlock_sql::PostgresRowLocks;
///
/// let url = "postgres://app:password@db.internal/shop?max_connections=20";
/// let locks = Locks::new(PostgresRowLocks::connect(url).await?);
/// locks.lock("room_7").run(async { /* one at a time */ }).await?;
/// # Ok(()) }
/// ```
///
/// Each lock has a connection of its own, at most `max_connections` at a time; further acquires wait for one, and fail
/// as [`ErrorKind::Unavailable`](dlock_core::ErrorKind::Unavailable) without. A transaction that is open for long keeps
/// the server from cleaning up what was deleted since: for short locks, or few.
pub type PostgresRowLocks = Sessions<ByRow<PostgresServer>>;

/// The transaction that has locked a row called `locked`, found without waiting for it and without getting in its way.
const TRANSACTION: &str =
    "pg_locks ON locktype = 'transactionid' AND granted AND transactionid = locked.xmax";

/// Returns the session of that transaction; null where the number may be that of several that share the row, which is a
/// transaction's by chance. If the session was granted the lock last, it is no chance.
fn session(table: &str) -> String {
    format!(
        "CASE WHEN mxid_age(locked.xmax) BETWEEN 1 AND
                (SELECT mxid_age(datminmxid) FROM pg_database WHERE datname = current_database())
            AND NOT EXISTS (SELECT FROM {table} AS granted WHERE granted.token = int8send(pid::bigint)
                AND granted.key = decode('ff', 'hex') || substring(locked.key FROM 2))
            THEN NULL ELSE pid::bigint END"
    )
}

/// Returns the number of the lock that a transaction has besides a row that it reads, of which the server does not show
/// the readers. The lock is shared, and in the way of no other.
pub(super) fn mark(name: &Name) -> i64 {
    i64::from_be_bytes(part(name, 24))
}

impl Strategy for ByRow<PostgresServer> {
    type Server = PostgresServer;

    const NAME: &'static str = "postgres-row";
    const WAY: Way = Way::Row;
    const SHARED: bool = false;
    const TAKES_AT_ONCE: bool = true;
    const READS: bool = true;
    const DOWNGRADES: bool = false;

    async fn take(
        others: &Others<PostgresServer>,
        on: &mut PgConnection,
        opened: Opened,
        wanted: &[Wanted],
    ) -> TakeResult {
        take_row(others, on, opened, wanted).await
    }

    async fn release(
        server: &PostgresServer,
        on: &mut PgConnection,
        names: &[Name],
    ) -> SqlResult<(i64, Vec<Freed>)> {
        // All of it in one message: the turns are asked for while the row is still locked, and the commit releases it.
        let awaited = |name| format!(", NOT pg_try_advisory_xact_lock_shared({})", turn(name, true));
        let awaited: String = names.iter().map(awaited).collect();
        let forget = |reader: &Reader| {
            let row = format!("ARRAY[decode('{}', 'hex')]", hex(&reader.row));
            format!("{}; ", forget_readers(&server.quoted(), &row).replace(" RETURNING 1", ""))
        };
        let readers = names.iter().filter_map(|name| name.reader.as_ref()).filter(|_| server.fences);
        let forget: String = readers.map(forget).collect();
        let free = format!("{forget}SELECT pg_backend_pid()::bigint{awaited}; COMMIT");
        let (rows, is_told) = match sqlx::raw_sql(AssertSqlSafe(free)).fetch_all(&mut *on).await {
            // As where the server has no room for one more lock. Nothing was written in the transaction.
            Err(sqlx::Error::Database(_)) => {
                // The row is released in any case, and only then what the reader has written is deleted.
                let free = "ROLLBACK; SELECT pg_backend_pid()::bigint";
                let rows = sqlx::raw_sql(free).fetch_all(&mut *on).await?;
                if !forget.is_empty() {
                    match sqlx::raw_sql(AssertSqlSafe(forget)).execute(on).await {
                        // The row is without effect, and stays until the table is pruned.
                        Ok(_) | Err(sqlx::Error::Database(_)) => {}
                        Err(error) => return Err(error),
                    }
                }
                (rows, false)
            }
            rows => (rows?, true),
        };
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        let freed = |place| Ok(Freed { awaited: is_told && row.try_get(place)?, held: true });
        Ok((row.try_get(0)?, (1..=names.len()).map(freed).collect::<SqlResult<_>>()?))
    }

    async fn wait(server: &PostgresServer, on: &mut PgConnection, name: &Name) -> SqlResult<bool> {
        // Locked by the transaction of this statement, which ends at once: the row is to be free, not to be had.
        let (table, row) = (server.quoted(), hex(&name.row));
        let lock = if name.is_read() { "SHARE" } else { "UPDATE" };
        waited(on, &format!("1 FROM {table} WHERE key = decode('{row}', 'hex') FOR {lock}")).await
    }

    async fn owners(server: &PostgresServer, on: &mut PgConnection, name: &Name) -> SqlResult<Owners> {
        let table = server.quoted();
        // The server names the transaction that has locked a row alone in the row itself, but not those that share it:
        // their readers are found by their marks.
        let statement = format!(
            "WITH readers AS MATERIALIZED (
                SELECT session FROM ({ADVISORY}) AS locked WHERE parts = 1 AND reads AND number = {}
            )
            SELECT session, true AS reads FROM readers
            UNION ALL
            SELECT {}, false FROM {table} AS locked JOIN {TRANSACTION}
            WHERE locked.key = decode('{}', 'hex') AND NOT EXISTS (SELECT FROM readers)",
            mark(name),
            session(&table),
            hex(&name.row)
        );
        owners(&table, on, name, &statement).await
    }

    async fn held(server: &PostgresServer, on: &mut PgConnection) -> SqlResult<Vec<(Key, Holder)>> {
        let statement = format!(
            r#"SELECT held.fence, held.holder, locked.key FROM {table} AS locked JOIN {TRANSACTION}
            LEFT JOIN {table} AS held
                ON held.key = decode('ff', 'hex') || substring(locked.key FROM 2) AND held.token = int8send(pid::bigint)
            WHERE locked.key >= decode('fe', 'hex') AND locked.key < decode('ff', 'hex')"#,
            table = server.quoted()
        );
        let rows = sqlx::query(AssertSqlSafe(statement)).fetch_all(&mut *on).await?;
        // Readers by their marks first: a row that one reader has locked looks as if it were locked alone.
        let mut all = granted(server, on, mark).await?;
        let read: HashSet<Key> = all.iter().map(|(key, _)| key.clone()).collect();
        for row in &rows {
            if let Some(key) = Name::key(row.try_get(2)?).filter(|key| !read.contains(key)) {
                all.push((key, holder(row)?));
            }
        }
        Ok(all)
    }
}
