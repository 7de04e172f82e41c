//! Locks of PostgreSQL's sessions and transactions.
//!
//! | what | lock on the server | bytes of the name's digest |
//! |---|---|---|
//! | a name | advisory, of the session, one number; shared for readers | 0 to 7 |
//! | the turn for a name | advisory, of the session, two numbers | 8 to 15 |
//! | a row | `FOR UPDATE`, or `FOR SHARE` for readers, of the transaction | |
//! | the turn for a row | advisory, of the session, two numbers | 16 to 23 |
//! | a reader of a row | advisory, of the transaction, one number, shared | 24 to 31 |
//!
//! A release asks for a turn by trying to get it shared, of its own transaction: it fails while a waiter has it.

mod holders;
mod row_locks;
pub(super) mod statements;
mod ways;

use std::time::Duration;

use dlock_core::{Fence, Holder, Key};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Row};

use super::failure::{OUTDATED, UNPREPARED};
use super::server::PostgresServer;
use super::statements::place;
use super::values::{self, Value};
use crate::failure::misplaced;
use crate::protocol::{SqlResult, Taken};
use crate::server::Server;
use crate::session::Sessions;
use crate::session::name::{Name, Reader, holder_of};
use crate::session::protocol::{Found, Freed, Opened, Owners, TURN, TakeError, TakeResult, Wanted};
use crate::session::session_server::SessionServer;
use crate::session::strategy::{ByName, Others, Strategy, settle_names};
use crate::stored;
use crate::text::sql;
use crate::way::Way;
use holders::{granted, owners};
pub use row_locks::PostgresRowLocks;
use statements::{ADVISORY, counting_all, counting_reader, downgrading, first_of};

/// Locks that a session of a PostgreSQL server keeps (`pg_try_advisory_lock`): see [`Sessions`].
///
/// ```no_run
/// # async fn example() -> Result<(), dlock_core::Error> {
/// use dlock_core::Locks;
/// use dlock_sql::{PostgresOptions, PostgresSessions};
///
/// let url = "postgres://app:password@db.internal/shop";
/// PostgresOptions::from_url(url)?.migrate().await?; // once, at deployment
/// let locks = Locks::new(PostgresSessions::connect(url).await?);
/// locks.lock("room_7").run(async { /* one at a time */ }).await?;
/// # Ok(()) }
/// ```
///
/// All locks of a backend are on one connection. They take room in the server's shared table of locks, a few thousand
/// by default (`max_locks_per_transaction`), and any user of the database can take any of them.
pub type PostgresSessions = Sessions<ByName<PostgresServer>>;

/// The settings of a session that keeps locks, as far as the server has them: it notices a client that is gone, ends a
/// session that is silent, and does not let a statement wait while others need a sign of life. If the server cannot
/// notice a client that is gone, the setting was left at 0 when the connection was opened, and any other value is an
/// error.
const SETTLE: &str = "SELECT set_config(name, ours.value, false) FROM pg_settings JOIN (VALUES \
    ('client_connection_check_interval', '1s'), ('tcp_keepalives_idle', '10'), ('tcp_keepalives_interval', '5'), \
    ('tcp_keepalives_count', '3'), ('idle_session_timeout', $1), ('idle_in_transaction_session_timeout', $1), \
    ('transaction_timeout', '0'), ('statement_timeout', '0'), ('lock_timeout', '100ms'), ('default_transaction_isolation', 'read committed'), \
    ('synchronous_commit', 'off')) AS ours (name, value) USING (name) \
    WHERE name <> 'client_connection_check_interval' OR setting <> '0'";

/// The error of a transaction in which a statement has failed.
const ABORTED: &str = "25P02";

fn number(name: &Name) -> i64 {
    i64::from_be_bytes(part(name, 0))
}

fn part(name: &Name, from: usize) -> [u8; 8] {
    [0, 1, 2, 3, 4, 5, 6, 7].map(|place| name.digest[from + place])
}

/// Returns the turn among those that wait for a lock: two numbers, which are never mixed up with the one of a lock.
fn turn(name: &Name, is_row: bool) -> String {
    let (one, other) = turn_numbers(name, is_row);
    format!("{one}, {other}")
}

fn turn_numbers(name: &Name, is_row: bool) -> (i32, i32) {
    let [a, b, c, d, e, f, g, h] = part(name, if is_row { 16 } else { 8 });
    (i32::from_be_bytes([a, b, c, d]), i32::from_be_bytes([e, f, g, h]))
}

/// Runs the rest of a statement that may wait, after its `SELECT`. Returns whether it came to its end.
///
/// The end of its time, and a cancellation, are caught where they happen, so that the server does not write an error
/// into its log for each waiter.
async fn waited(on: &mut PgConnection, statement: &str) -> SqlResult<bool> {
    // In one message, not prepared: the settings are of this transaction.
    let settings = format!(
        "SELECT set_config('lock_timeout', '{}ms', true), set_config('statement_timeout', '0', true),
            set_config('dlock.waited', 'no', true)",
        TURN.as_millis()
    );
    let caught = format!(
        "{settings}; DO $dlock$ BEGIN PERFORM {statement}; PERFORM set_config('dlock.waited', 'yes', true);
        EXCEPTION WHEN lock_not_available OR query_canceled THEN NULL; END $dlock$;
        SELECT current_setting('dlock.waited') = 'yes'"
    );
    match sqlx::raw_sql(AssertSqlSafe(caught)).fetch_all(&mut *on).await {
        // There is no plpgsql here, or this user may not use it.
        Err(sqlx::Error::Database(error)) if matches!(error.code().as_deref(), Some("42501" | "42704")) => {
            let waiting = format!("{settings}; SELECT {statement}");
            sqlx::raw_sql(AssertSqlSafe(waiting)).execute(on).await.map(|_| true)
        }
        rows => rows?.last().ok_or(sqlx::Error::RowNotFound)?.try_get(0),
    }
}

fn fence(row: &PgRow, column: usize) -> SqlResult<Option<Fence>> {
    Ok(row.try_get::<Option<i64>, _>(column)?.and_then(stored::fence))
}

/// Reads a grant with its fence, or that another session has the lock; `None` where this session has it, and it was not
/// counted.
fn taken(row: &PgRow) -> SqlResult<Option<Taken>> {
    Ok(match row.try_get::<Option<&str>, _>(1)? {
        None if row.try_get::<Option<i64>, _>(0)?.is_none() => None,
        None => Some(Taken::Granted(fence(row, 0)?)),
        Some(_) => Some(Taken::Busy(Some(Box::new(holder(row)?)))),
    })
}

/// Refuses an answer that is not that to the question about this number: a reply that came twice, after which every
/// reply of the connection is that to the question before.
fn answers(row: &PgRow, column: usize, number: i64) -> SqlResult<()> {
    if row.try_get::<i64, _>(column)? == number { Ok(()) } else { Err(misplaced()) }
}

/// Reads the holder, as far as the row with the fence names it.
fn holder(row: &PgRow) -> SqlResult<Holder> {
    let mut holder = holder_of(row.try_get::<Option<&str>, _>(1)?.unwrap_or_default());
    holder.fence = fence(row, 0)?;
    Ok(holder)
}

/// Deletes the rows about readers.
fn forget_readers(table: &str, rows: &str) -> String {
    format!("DELETE FROM {table} WHERE key = ANY({rows}::bytea[]) RETURNING 1")
}

/// Returns the rows about readers.
fn rows_of_readers(names: &[Name]) -> impl Iterator<Item = &[u8]> {
    names.iter().filter_map(|name| Some(&*name.reader.as_ref()?.row))
}

/// Releases a name, unless others of the session read it.
const FREE: &str = "CASE WHEN beside THEN true WHEN reads THEN pg_advisory_unlock_shared(number) \
                    ELSE pg_advisory_unlock(number) END";

/// Returns the numbers of names, which of them are read, and which by others of the session, too.
fn listed(names: &[Name]) -> (Vec<i64>, Vec<bool>, Vec<bool>) {
    let is_beside = |reader: &Reader| reader.beside;
    let beside = names.iter().map(|name| name.reader.as_ref().is_some_and(is_beside));
    (names.iter().map(number).collect(), names.iter().map(Name::is_read).collect(), beside.collect())
}

impl PostgresServer {
    async fn take_one(&self, on: &mut PgConnection, wanted: &Wanted) -> SqlResult<(i64, Vec<Taken>)> {
        // Read to the end of the statement: an error after the first row would otherwise be that of the next statement.
        let row = sqlx::query(self.statements.take_name.clone())
            .bind(number(&wanted.name))
            .bind(&wanted.name.fence)
            .bind(&wanted.holder)
            .fetch_all(&mut *on)
            .await?;
        self.counted(std::slice::from_ref(wanted), &row)
    }

    /// Reads the answers for names that were asked for.
    fn counted(&self, wanted: &[Wanted], rows: &[PgRow]) -> SqlResult<(i64, Vec<Taken>)> {
        // An answer for each or none: with one missing it would not be known whose the others are.
        let Some(first) = rows.first().filter(|_| rows.len() == wanted.len()) else {
            return Err(sqlx::Error::RowNotFound);
        };
        let (session, mut all) = (first.try_get(2)?, Vec::new());
        for (row, wanted) in rows.iter().zip(wanted) {
            answers(row, 3, number(&wanted.name))?;
            all.push(match taken(row)? {
                Some(taken) => taken,
                None if !self.fences => Taken::Granted(None),
                None => Taken::Uncounted,
            });
        }
        Ok((session, all))
    }

    async fn take_many(&self, on: &mut PgConnection, wanted: &[Wanted]) -> SqlResult<(i64, Vec<Taken>)> {
        let numbers: Vec<i64> = wanted.iter().map(|wanted| number(&wanted.name)).collect();
        let names: Vec<&[u8]> = wanted.iter().map(|wanted| &*wanted.name.fence).collect();
        let holders: Vec<&str> = wanted.iter().map(|wanted| &*wanted.holder).collect();
        let query = sqlx::query(self.statements.take_names.clone()).bind(numbers).bind(names).bind(holders);
        let rows = query.fetch_all(&mut *on).await?;
        self.counted(wanted, &rows)
    }

    /// Reads names for which no session waits.
    async fn read_many(&self, on: &mut PgConnection, wanted: &[Wanted]) -> SqlResult<(i64, Vec<Taken>)> {
        let numbers: Vec<i64> = wanted.iter().map(|wanted| number(&wanted.name)).collect();
        let (turns, ofs): (Vec<i32>, Vec<i32>) =
            wanted.iter().map(|wanted| turn_numbers(&wanted.name, false)).unzip();
        let ours: Vec<bool> = wanted.iter().map(|wanted| wanted.has_turn).collect();
        let readers = wanted.iter().filter_map(|wanted| wanted.name.reader.as_ref());
        let (beside, own): (Vec<bool>, Vec<&[u8]>) =
            readers.map(|reader| (reader.beside, &*reader.row)).unzip();
        let names: Vec<&[u8]> = wanted.iter().map(|wanted| &*wanted.name.fence).collect();
        let holders: Vec<&str> = wanted.iter().map(|wanted| &*wanted.holder).collect();
        // In one statement with the question for the turns: between two statements a writer could begin to wait.
        let [counting, only] = &self.statements.read_names;
        let query = sqlx::query(if self.fences { counting } else { only }.clone());
        let query = query.bind(numbers).bind(turns).bind(ofs).bind(ours).bind(beside);
        let rows = query.bind(names).bind(own).bind(holders).fetch_all(&mut *on).await?;
        self.counted(wanted, &rows)
    }

    /// Takes names, and counts nothing.
    async fn take_only(on: &mut PgConnection, wanted: &[Wanted]) -> SqlResult<(i64, Vec<Taken>)> {
        let rows = if let [one] = wanted {
            let take = sqlx::query("SELECT pg_backend_pid()::bigint, pg_try_advisory_lock($1), $1");
            take.bind(number(&one.name)).fetch_all(on).await?
        } else {
            let take =
                "SELECT pg_backend_pid()::bigint, got, number FROM (SELECT place, number, pg_try_advisory_lock(number) AS got
                FROM unnest($1::bigint[]) WITH ORDINALITY AS listed (number, place)) AS asked ORDER BY place";
            let numbers: Vec<i64> = wanted.iter().map(|wanted| number(&wanted.name)).collect();
            sqlx::query(take).bind(numbers).fetch_all(on).await?
        };
        // Each answer carries its number: a proxy that repeats a reply would make a lock out of an earlier one.
        let taken = |(row, wanted): (&PgRow, &Wanted)| {
            answers(row, 2, number(&wanted.name))?;
            Ok(if row.try_get(1)? { Taken::Granted(None) } else { Taken::Busy(None) })
        };
        let session = rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get(0)?;
        Ok((session, rows.iter().zip(wanted).map(taken).collect::<SqlResult<_>>()?))
    }

    /// Releases names, and returns for each whether a session has its turn, which is asked for until the end of the
    /// statement. All turns are asked for before any name is released: an error leaves all names as they were.
    async fn free_names(&self, on: &mut PgConnection, names: &[Name]) -> SqlResult<(i64, Vec<Freed>)> {
        let rows = if names.iter().any(Name::is_read) {
            self.free_read(on, names).await?
        } else if let [one] = names {
            let free = "SELECT pg_backend_pid()::bigint, NOT pg_try_advisory_xact_lock_shared($2, $3), \
                        pg_advisory_unlock($1)";
            let (turn, of) = turn_numbers(one, false);
            sqlx::query(free).bind(number(one)).bind(turn).bind(of).fetch_all(on).await?
        } else {
            // The inner query asks for every turn before the outer one releases the first name: if the server has no
            // room for one more lock, it fails with all names as they were.
            let free = "SELECT pg_backend_pid()::bigint, awaited, pg_advisory_unlock(number)
                FROM unnest($1::bigint[], (
                    SELECT array_agg(NOT pg_try_advisory_xact_lock_shared(turn, of) ORDER BY place)
                    FROM unnest($2::integer[], $3::integer[]) WITH ORDINALITY AS turns (turn, of, place)
                )) AS listed (number, awaited)";
            let numbers: Vec<i64> = names.iter().map(number).collect();
            let (turns, ofs): (Vec<i32>, Vec<i32>) =
                names.iter().map(|name| turn_numbers(name, false)).unzip();
            sqlx::query(free).bind(numbers).bind(turns).bind(ofs).fetch_all(on).await?
        };
        let freed = |row: &PgRow| Ok(Freed { awaited: row.try_get(1)?, held: row.try_get(2)? });
        let freed = rows.iter().map(freed).collect::<SqlResult<_>>()?;
        Ok((rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get(0)?, freed))
    }

    /// Releases names of which some are read. The rows about readers are deleted before any name is released.
    async fn free_read(&self, on: &mut PgConnection, names: &[Name]) -> SqlResult<Vec<PgRow>> {
        let (before, after) = if self.fences {
            // Before the release, so that no row outlives its reader where the statement fails. `count` makes the
            // server carry the deletion out first.
            let gone = forget_readers(&self.quoted(), "$6");
            (format!("WITH gone AS ({gone}) "), ", (SELECT count(*) FROM gone) AS before")
        } else {
            (String::new(), "")
        };
        let free = format!(
            "{before}SELECT pg_backend_pid()::bigint, awaited, {FREE} FROM unnest($1::bigint[], $4::boolean[], $5::boolean[], (
                SELECT array_agg(NOT pg_try_advisory_xact_lock_shared(turn, of) ORDER BY place)
                FROM unnest($2::integer[], $3::integer[]) WITH ORDINALITY AS turns (turn, of, place)
            )) WITH ORDINALITY AS listed (number, reads, beside, awaited, place){after} ORDER BY place"
        );
        let (numbers, reads, beside) = listed(names);
        let (turns, ofs): (Vec<i32>, Vec<i32>) = names.iter().map(|name| turn_numbers(name, false)).unzip();
        let query =
            sqlx::query(AssertSqlSafe(free)).bind(numbers).bind(turns).bind(ofs).bind(reads).bind(beside);
        let rows: Vec<&[u8]> = rows_of_readers(names).collect();
        if self.fences { query.bind(rows).fetch_all(on).await } else { query.fetch_all(on).await }
    }

    /// Releases names where the server refused to say whether sessions wait, as it does when it has no room for one
    /// more lock.
    async fn only_free_names(&self, on: &mut PgConnection, names: &[Name]) -> SqlResult<(i64, Vec<Freed>)> {
        let free = format!(
            "SELECT pg_backend_pid()::bigint, {FREE}
            FROM unnest($1::bigint[], $2::boolean[], $3::boolean[]) AS listed (number, reads, beside)"
        );
        let (numbers, reads, beside) = listed(names);
        let query = sqlx::query(AssertSqlSafe(free)).bind(numbers).bind(reads).bind(beside);
        let rows = query.fetch_all(&mut *on).await?;
        // Not known, and so taken for not awaited: a session that waits for the turn or the name gets it from the
        // server.
        let freed = |row: &PgRow| Ok(Freed { awaited: false, held: row.try_get(1)? });
        let freed = rows.iter().map(freed).collect::<SqlResult<_>>()?;
        let readers: Vec<&[u8]> = rows_of_readers(names).collect();
        // The locks first, and the rows about readers by a statement of their own: a failure of these keeps no lock.
        if self.fences && !readers.is_empty() {
            let forget = sqlx::query(AssertSqlSafe(forget_readers(&self.quoted(), "$1"))).bind(readers);
            match forget.execute(on).await {
                // The rows are without effect, and stay until the table is pruned.
                Ok(_) | Err(sqlx::Error::Database(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok((rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get(0)?, freed))
    }
}

impl SessionServer for PostgresServer {
    const DIGEST: usize = 8;

    fn place(&self) -> String {
        place(self.table())
    }

    fn counts(&self) -> bool {
        self.fences
    }

    async fn keep_alive(on: &mut PgConnection, silence: Duration, _: bool) -> SqlResult<()> {
        // Written into it: a message that is not prepared has no parameters.
        let settle = SETTLE.replace("$1", &format!("'{}ms'", silence.as_millis()));
        sqlx::raw_sql(AssertSqlSafe(settle)).execute(on).await.map(drop)
    }

    async fn cancel(&self, on: &mut PgConnection, session: i64) -> SqlResult<()> {
        let cancel = sqlx::query("SELECT pg_cancel_backend($1::bigint::integer)").bind(session);
        cancel.execute(on).await.map(drop)
    }

    async fn end(&self, on: &mut PgConnection, session: i64) -> SqlResult<()> {
        let end = sqlx::query("SELECT pg_terminate_backend($1::bigint::integer)").bind(session);
        end.execute(on).await.map(drop)
    }

    async fn queue(on: &mut PgConnection, name: &Name, is_row: bool) -> SqlResult<bool> {
        waited(on, &format!("pg_advisory_lock({})", turn(name, is_row))).await
    }

    async fn leave(on: &mut PgConnection, _: &Name, _: bool) -> SqlResult<()> {
        // The connections of the queue have no other advisory lock than the turn.
        sqlx::raw_sql("SELECT pg_advisory_unlock_all()").execute(on).await.map(drop)
    }

    async fn is_awaited(on: &mut PgConnection, name: &Name, is_row: bool) -> SqlResult<(i64, bool)> {
        let ask = format!(
            "SELECT pg_backend_pid()::bigint, NOT pg_try_advisory_xact_lock_shared({})",
            turn(name, is_row)
        );
        let row = sqlx::raw_sql(AssertSqlSafe(ask)).fetch_one(on).await?;
        Ok((row.try_get(0)?, row.try_get(1)?))
    }

    // In one message. Where grants are counted it has two transactions: the first one counts, if the row is free, so
    // that the fence stays whatever becomes of the second one, which keeps the row. The fence is that of the grant if
    // it is still the last one when the row is locked again: no other session counts from then on.
    async fn lock_row(
        &self,
        on: &mut PgConnection,
        wanted: &Wanted,
        is_new: bool,
    ) -> SqlResult<(i64, Found)> {
        let Name { row, fence: counted, .. } = &wanted.name;
        let values = [Value::Bytes(row), Value::Bytes(counted), Value::Text(&wanted.holder)];
        let lock = if wanted.name.is_read() {
            // The fence is counted after the row is locked: other readers count, too.
            format!(
                "BEGIN; WITH locked AS MATERIALIZED (SELECT FROM {} WHERE key = $1 FOR SHARE SKIP LOCKED)
                SELECT 'locked' AS step, pg_try_advisory_xact_lock_shared({}) FROM locked",
                self.quoted(),
                row_locks::mark(&wanted.name)
            )
        } else {
            let count = if self.fences { "BEGIN; EXECUTE dlock_count($1, $2, $3); COMMIT; " } else { "" };
            format!("{count}BEGIN; EXECUTE dlock_lock($1)")
        };
        let statements = format!("{lock}; EXECUTE dlock_look($1, $2)");
        let statements = sql(values::written_into(&statements, &values));
        if is_new {
            sqlx::raw_sql(self.statements.lock_row.clone()).execute(&mut *on).await?;
        }
        // The prepared statements may be gone since, as behind a proxy.
        let mut prepares = true;
        let rows = loop {
            let error = match sqlx::raw_sql(statements.clone()).fetch_all(&mut *on).await {
                Err(sqlx::Error::Database(error)) => error,
                rows => break rows?,
            };
            // Also after an error: the message may have begun a transaction.
            sqlx::raw_sql("ROLLBACK").execute(&mut *on).await?;
            match error.code().as_deref() {
                Some(UNPREPARED) if std::mem::take(&mut prepares) => {
                    sqlx::raw_sql(self.statements.lock_row.clone()).execute(&mut *on).await?;
                }
                // Only a new connection prepares them for a table that was altered.
                Some(OUTDATED) => return Err(sqlx::Error::Protocol("the table was altered".into())),
                _ => return Err(sqlx::Error::Database(error)),
            }
        };
        let step = |name| rows.iter().find(|row| row.try_get("step").is_ok_and(|step: &str| step == name));
        let seen = step("seen").ok_or(sqlx::Error::RowNotFound)?;
        let session = seen.try_get(2)?;
        if step("locked").is_none() {
            let is_there = seen.try_get::<bool, _>(3)?;
            // The row was not locked, so that the transaction keeps nothing; it must not stay open.
            let found = if is_there { Found::Locked(Some(Box::new(holder(seen)?))) } else { Found::Missing };
            sqlx::raw_sql("ROLLBACK").execute(on).await?;
            return Ok((session, found));
        }
        let counted = step("counted").map_or(Ok(None), |row| fence(row, 0))?;
        // With another fence, another session has had the row between the two transactions: the grant is counted once
        // more.
        let is_last = seen.try_get::<Option<bool>, _>(4)? == Some(true) && counted == fence(seen, 0)?;
        Ok((session, Found::Free(counted.filter(|_| is_last))))
    }

    async fn make_row(&self, on: &mut PgConnection, name: &Name) -> SqlResult<bool> {
        // Never pruned, since that could take it from under a lock.
        let table = self.quoted();
        let counts = "(SELECT $2::bytea AS name WHERE $3) AS ours";
        let statement = format!(
            "WITH {} INSERT INTO {table} (key, fence, expires, holder) VALUES ($1, 0, 'infinity', '') ON CONFLICT DO NOTHING",
            first_of(&table, counts, Way::Row, "NULL::bytea", "''")
        );
        let made = sqlx::query(AssertSqlSafe(statement)).bind(&name.row).bind(&name.fence).bind(self.fences);
        Ok(made.execute(on).await?.rows_affected() == 1)
    }

    async fn is_in_transaction(on: &mut PgConnection) -> SqlResult<bool> {
        // One statement, not prepared: by itself it begins with its transaction.
        match sqlx::raw_sql("SELECT now() <> statement_timestamp()").fetch_one(on).await {
            Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some(ABORTED) => Ok(true),
            row => row?.try_get(0),
        }
    }

    async fn count(
        &self,
        on: &mut PgConnection,
        wanted: &Wanted,
        session: i64,
        way: Way,
    ) -> SqlResult<Result<Fence, Way>> {
        let (table, reader) = (self.quoted(), wanted.name.reader.as_ref());
        // For a name only the session that has it may count: behind a proxy this could be another one.
        let only = if way == Way::Session { "WHERE pg_backend_pid() = $2" } else { "" };
        let ours = format!(
            "(SELECT $1::bytea AS name, $2::bigint AS session, $3::text AS whose, $4::bytea AS own {only}) AS ours"
        );
        let count = match reader {
            None => counting_all(&table, &ours, way, false),
            Some(_) => counting_reader(&table, &ours, way),
        };
        let count = format!("WITH {count} SELECT fence, NULL::bigint FROM counted");
        let own = Value::Bytes(reader.map_or(&[], |reader| &reader.row));
        let Wanted { name, holder, .. } = wanted;
        let values = [Value::Bytes(&name.fence), Value::Number(session), Value::Text(holder), own];
        let moving = values::written_into(&count, &values);
        // A name was taken by a statement that would have counted it. For a row the count without a move comes first.
        if way == Way::Row {
            let query = values.iter().fold(sqlx::query(sql(count)), |query, value| value.bind(query));
            if let Some(row) = query.fetch_all(&mut *on).await?.first() {
                return fence(row, 0)?.map(Ok).ok_or(sqlx::Error::RowNotFound);
            }
        }
        let counted = self.move_to(on, name, way, Some(moving)).await?;
        counted.map_or_else(|theirs| Ok(Err(theirs)), |fence| fence.map(Ok).ok_or(sqlx::Error::RowNotFound))
    }
}

impl Strategy for ByName<PostgresServer> {
    type Server = PostgresServer;

    const NAME: &'static str = "postgres-session";
    const WAY: Way = Way::Session;
    const SHARED: bool = true;
    const TAKES_AT_ONCE: bool = true;
    const READS: bool = true;
    const DOWNGRADES: bool = true;

    async fn take(
        others: &Others<PostgresServer>,
        on: &mut PgConnection,
        _: Opened,
        wanted: &[Wanted],
    ) -> TakeResult {
        let server = others.server();
        let asked = match wanted {
            [one, ..] if one.name.is_read() => server.read_many(on, wanted).await,
            _ if !server.counts() => PostgresServer::take_only(on, wanted).await,
            [one] => server.take_one(on, one).await,
            many => server.take_many(on, many).await,
        };
        settle_names::<Self>(server, on, wanted, asked).await
    }

    async fn release(
        server: &PostgresServer,
        on: &mut PgConnection,
        names: &[Name],
    ) -> SqlResult<(i64, Vec<Freed>)> {
        // An error has left all names as they were: they are released without asking for turns.
        match server.free_names(on, names).await {
            Err(sqlx::Error::Database(_)) => server.only_free_names(on, names).await,
            freed => freed,
        }
    }

    async fn downgrade(
        server: &PostgresServer,
        on: &mut PgConnection,
        wanted: &Wanted,
        fence: Option<Fence>,
    ) -> Result<i64, TakeError> {
        let counted = server.fences.then_some(fence).flatten();
        let number = number(&wanted.name);
        // The shared lock first, then the other is released: between the two no other session can get the name. The
        // rows are written before both.
        let query = sqlx::query(AssertSqlSafe(downgrading(&server.quoted(), counted.is_some()))).bind(number);
        let query = match (counted, &wanted.name.reader) {
            (Some(fence), Some(reader)) => {
                let fence = i64::try_from(fence.get()).unwrap_or(i64::MAX);
                query.bind(&wanted.name.fence).bind(&reader.row).bind(fence).bind(&wanted.holder)
            }
            _ => query,
        };
        match query.fetch_one(&mut *on).await {
            Ok(row) => match row.try_get(2).and_then(|freed: bool| Ok((freed, row.try_get(0)?))) {
                Ok((true, session)) => Ok(session),
                // The session did not have the name alone, so that what it has now is not known; the connection is
                // given up.
                Ok((false, _)) => Err(TakeError::Unknown(sqlx::Error::RowNotFound)),
                Err(error) => Err(TakeError::Unknown(error)),
            },
            Err(error @ sqlx::Error::Database(_)) => {
                // If the name is read already, it may be held alone no more.
                let undo = sqlx::query_scalar("SELECT pg_advisory_unlock_shared($1)").bind(number);
                match undo.fetch_one(on).await {
                    Ok(false) => Err(TakeError::Refused(error)),
                    Ok(true) | Err(_) => Err(TakeError::Unknown(error)),
                }
            }
            Err(error) => Err(TakeError::Unknown(error)),
        }
    }

    async fn wait(_: &PostgresServer, on: &mut PgConnection, name: &Name) -> SqlResult<bool> {
        // Of the transaction, which ends it in any case: a lock of the session would stay where a cancellation arrives
        // between the lock and its release, and keep all others out for as long as this session waits.
        let shared = if name.is_read() { "_shared" } else { "" };
        waited(on, &format!("pg_advisory_xact_lock{shared}({})", number(name))).await
    }

    async fn owners(server: &PostgresServer, on: &mut PgConnection, name: &Name) -> SqlResult<Owners> {
        // The session with the turn has the lock for a moment when it is free, and does not keep it.
        let (turn, of) = turn_numbers(name, false);
        let turn = (i64::from(turn) << 32) | i64::from(of.cast_unsigned());
        let statement = format!(
            "SELECT session, reads FROM ({ADVISORY}) AS locked WHERE parts = 1 AND number = {} AND session NOT IN (
                SELECT session FROM ({ADVISORY}) AS turns WHERE parts = 2 AND NOT reads AND number = {turn})",
            number(name)
        );
        owners(&server.quoted(), on, name, &statement).await
    }

    async fn held(server: &PostgresServer, on: &mut PgConnection) -> SqlResult<Vec<(Key, Holder)>> {
        granted(server, on, number).await
    }
}
