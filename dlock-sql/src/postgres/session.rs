//! Locks of PostgreSQL's sessions and transactions.

use std::collections::HashSet;
use std::time::Duration;

use dlock_core::{Fence, Holder, Key};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Row};

use super::failure::{OUTDATED, UNPREPARED};
use super::server::PostgresServer;
use super::statements::{ADVISORY, counting, place};
use super::values::{self, Value};
use crate::failure::misplaced;
use crate::protocol::{SqlResult, Taken};
use crate::server::Server;
use crate::session::Sessions;
use crate::session::name::Name;
use crate::session::protocol::{Found, Freed, Opened, Owner, OwningSession, TURN, TakeResult, Wanted};
use crate::session::session_server::SessionServer;
use crate::session::strategy::{ByName, ByRow, Others, Strategy, settle_names, take_row};
use crate::stored;
use crate::text::{hex, sql};

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

/// Where the server has them: it notices a client that is gone, ends a session that says nothing, and does not let a
/// statement wait while others need a sign of life. Where the server cannot notice a client that is gone, the setting
/// was left at 0 when the connection was opened, and any other value is an error.
const SETTLE: &str = "SELECT set_config(name, ours.value, false) FROM pg_settings JOIN (VALUES \
    ('client_connection_check_interval', '1s'), ('tcp_keepalives_idle', '10'), ('tcp_keepalives_interval', '5'), \
    ('tcp_keepalives_count', '3'), ('idle_session_timeout', $1), ('idle_in_transaction_session_timeout', $1), \
    ('transaction_timeout', '0'), ('statement_timeout', '0'), ('lock_timeout', '100ms'), ('default_transaction_isolation', 'read committed'), \
    ('synchronous_commit', 'off')) AS ours (name, value) USING (name) \
    WHERE name <> 'client_connection_check_interval' OR setting <> '0'";
/// For a row called `locked`: the transaction that has locked it, without waiting for it and without getting in its
/// way.
const TRANSACTION: &str =
    "pg_locks ON locktype = 'transactionid' AND granted AND transactionid = locked.xmax";

fn number(name: &Name) -> i64 {
    let [a, b, c, d, e, f, g, h, ..] = name.digest;
    i64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// The turn among those who wait for a lock: two numbers, which are never mixed up with the one of a lock.
fn turn(name: &Name, is_row: bool) -> String {
    let (one, other) = turn_numbers(name, is_row);
    format!("{one}, {other}")
}

fn turn_numbers(name: &Name, is_row: bool) -> (i32, i32) {
    let from = if is_row { 16 } else { 8 };
    let number = |from: usize| i32::from_be_bytes([0, 1, 2, 3].map(|place| name.digest[from + place]));
    (number(from), number(from + 4))
}

/// Runs the rest of a statement that may wait, after its `SELECT`; whether it came to its end.
///
/// That it waited for as long as it may, or was cancelled, is caught where it happens, so that the server does not
/// write an error into its log for each waiter.
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

/// With the fence, or somebody has it.
fn taken(row: &PgRow) -> SqlResult<Taken> {
    Ok(match (row.try_get::<Option<&str>, _>(1)?, fence(row, 0)?) {
        (None, Some(fence)) => Taken::Granted(Some(fence)),
        _ => Taken::Busy(Some(Box::new(holder(row)?))),
    })
}

/// Refuses an answer that is not that to the question about this number: a reply that came twice, after which all
/// replies of the connection are those to the question before.
fn answers(row: &PgRow, column: usize, number: i64) -> SqlResult<()> {
    if row.try_get::<i64, _>(column)? == number { Ok(()) } else { Err(misplaced()) }
}

/// Somebody has it; who, if the row with the fence says so.
fn holder(row: &PgRow) -> SqlResult<Holder> {
    let mut holder = Holder::parse(row.try_get::<Option<&str>, _>(1)?.unwrap_or_default());
    holder.fence = fence(row, 0)?;
    Ok(holder)
}

/// Which session has it, and who that is. A transaction that was prepared for a commit in two phases is no session's
/// any more.
fn owner(row: &PgRow) -> SqlResult<(OwningSession, Holder)> {
    let session = row.try_get::<Option<i64>, _>(2)?;
    Ok((session.map_or(OwningSession::Hidden, OwningSession::Known), holder(row)?))
}

impl PostgresServer {
    async fn take_one(&self, on: &mut PgConnection, wanted: &Wanted) -> SqlResult<(i64, Vec<Taken>)> {
        let row = sqlx::query(self.statements.take_name.clone())
            .bind(number(&wanted.name))
            .bind(&wanted.name.fence)
            .bind(&wanted.holder)
            .fetch_all(on)
            .await?;
        let row = row.first().ok_or(sqlx::Error::RowNotFound)?;
        answers(row, 3, number(&wanted.name))?;
        Ok((row.try_get(2)?, vec![taken(row)?]))
    }

    async fn take_many(&self, on: &mut PgConnection, wanted: &[Wanted]) -> SqlResult<(i64, Vec<Taken>)> {
        let numbers: Vec<i64> = wanted.iter().map(|wanted| number(&wanted.name)).collect();
        let names: Vec<&[u8]> = wanted.iter().map(|wanted| &*wanted.name.fence).collect();
        let holders: Vec<&str> = wanted.iter().map(|wanted| &*wanted.holder).collect();
        let query = sqlx::query(self.statements.take_names.clone()).bind(numbers).bind(names).bind(holders);
        let rows = query.fetch_all(on).await?;
        if rows.len() != wanted.len() {
            return Err(sqlx::Error::RowNotFound);
        }
        for (row, wanted) in rows.iter().zip(wanted) {
            answers(row, 3, number(&wanted.name))?;
        }
        let taken = rows.iter().map(taken).collect::<SqlResult<_>>()?;
        Ok((rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get(2)?, taken))
    }

    /// Takes them, and counts nothing.
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
        let taken = |(row, wanted): (&PgRow, &Wanted)| {
            answers(row, 2, number(&wanted.name))?;
            Ok(if row.try_get(1)? { Taken::Granted(None) } else { Taken::Busy(None) })
        };
        let session = rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get(0)?;
        Ok((session, rows.iter().zip(wanted).map(taken).collect::<SqlResult<_>>()?))
    }

    /// Releases names, and says of each whether somebody has its turn, which is asked for until the end of the
    /// statement. All turns are asked for before any name is released: an error leaves all names as they were.
    async fn free_names(on: &mut PgConnection, names: &[Name]) -> SqlResult<(i64, Vec<Freed>)> {
        let rows = if let [one] = names {
            let free = "SELECT pg_backend_pid()::bigint, NOT pg_try_advisory_xact_lock_shared($2, $3), \
                        pg_advisory_unlock($1)";
            let (turn, of) = turn_numbers(one, false);
            sqlx::query(free).bind(number(one)).bind(turn).bind(of).fetch_all(on).await?
        } else {
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

    /// Releases names where the server refused to say who waits, as it does when it has no room for one lock more.
    async fn only_free_names(on: &mut PgConnection, names: &[Name]) -> SqlResult<(i64, Vec<Freed>)> {
        let free =
            "SELECT pg_backend_pid()::bigint, pg_advisory_unlock(number) FROM unnest($1::bigint[]) AS number";
        let numbers: Vec<i64> = names.iter().map(number).collect();
        let rows = sqlx::query(free).bind(numbers).fetch_all(on).await?;
        let freed = |row: &PgRow| Ok(Freed { awaited: false, held: row.try_get(1)? });
        let freed = rows.iter().map(freed).collect::<SqlResult<_>>()?;
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
        sqlx::raw_sql("SELECT pg_advisory_unlock_all()").execute(on).await.map(drop)
    }

    // In one message. Where grants are counted it has two transactions: the first one counts, if nobody has the row,
    // so that the fence stays whatever becomes of the second one, which keeps the row. The fence is that of the grant
    // if it is still the last one when the row is locked again: nobody else counts from then on.
    async fn lock_row(
        &self,
        on: &mut PgConnection,
        wanted: &Wanted,
        is_new: bool,
    ) -> SqlResult<(i64, Found)> {
        let Name { row, fence: counted, .. } = &wanted.name;
        let values = [Value::Bytes(row), Value::Bytes(counted), Value::Text(&wanted.holder)];
        let count = if self.fences { "BEGIN; EXECUTE dlock_count($1, $2, $3); COMMIT; " } else { "" };
        let statements = format!("{count}BEGIN; EXECUTE dlock_lock($1); EXECUTE dlock_look($1, $2)");
        let statements = sql(values::written_into(&statements, &values));
        if is_new {
            sqlx::raw_sql(self.statements.lock_row.clone()).execute(&mut *on).await?;
        }
        // They may be gone since.
        let mut prepares = true;
        let rows = loop {
            let error = match sqlx::raw_sql(statements.clone()).fetch_all(&mut *on).await {
                Err(sqlx::Error::Database(error)) => error,
                rows => break rows?,
            };
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
            let found = if is_there { Found::Locked(Some(Box::new(holder(seen)?))) } else { Found::Missing };
            sqlx::raw_sql("ROLLBACK").execute(on).await?;
            return Ok((session, found));
        }
        let counted = step("counted").map_or(Ok(None), |row| fence(row, 0))?;
        let is_last = seen.try_get::<Option<bool>, _>(4)? == Some(true) && counted == fence(seen, 0)?;
        Ok((session, Found::Free(counted.filter(|_| is_last))))
    }

    async fn make_row(&self, on: &mut PgConnection, name: &Name) -> SqlResult<bool> {
        // Never pruned, since that could take it from under a lock.
        let statement = format!(
            r#"INSERT INTO {} (key, fence, expires, holder) VALUES ($1, 0, 'infinity', '') ON CONFLICT DO NOTHING"#,
            self.quoted()
        );
        let made = sqlx::query(AssertSqlSafe(statement)).bind(&name.row).execute(on).await?;
        Ok(made.rows_affected() == 1)
    }

    async fn count(&self, on: &mut PgConnection, wanted: &Wanted, session: i64) -> SqlResult<Fence> {
        let ours = "(SELECT $1::bytea AS name, $2::bigint AS session, $3::text AS whose) AS ours";
        let row = sqlx::query(AssertSqlSafe(counting(&self.quoted(), ours)))
            .bind(&wanted.name.fence)
            .bind(session)
            .bind(&wanted.holder)
            .fetch_all(on)
            .await?;
        fence(row.first().ok_or(sqlx::Error::RowNotFound)?, 0)?.ok_or(sqlx::Error::RowNotFound)
    }
}

impl Strategy for ByName<PostgresServer> {
    type Server = PostgresServer;

    const NAME: &'static str = "postgres-session";
    const SHARED: bool = true;
    const TAKES_AT_ONCE: bool = true;

    async fn take(
        others: &Others<PostgresServer>,
        on: &mut PgConnection,
        _: Opened,
        wanted: &[Wanted],
    ) -> TakeResult {
        let server = others.server();
        let asked = match wanted {
            _ if !server.counts() => PostgresServer::take_only(on, wanted).await,
            [one] => server.take_one(on, one).await,
            many => server.take_many(on, many).await,
        };
        settle_names::<Self>(on, wanted, asked).await
    }

    async fn release(on: &mut PgConnection, names: &[Name]) -> SqlResult<(i64, Vec<Freed>)> {
        match PostgresServer::free_names(on, names).await {
            Err(sqlx::Error::Database(_)) => PostgresServer::only_free_names(on, names).await,
            freed => freed,
        }
    }

    async fn wait(_: &PostgresServer, on: &mut PgConnection, name: &Name) -> SqlResult<bool> {
        // Shared, so that nobody takes this moment for a lock. Of the transaction, which ends it in any case: a lock of
        // the session would stay where a cancellation arrives between the lock and its release, and keep all others
        // out for as long as this session waits.
        waited(on, &format!("pg_advisory_xact_lock_shared({})", number(name))).await
    }

    async fn owner(server: &PostgresServer, on: &mut PgConnection, name: &Name) -> SqlResult<Owner> {
        let statement = format!(
            r#"SELECT held.fence, held.holder, session FROM ({ADVISORY}) AS locked
            LEFT JOIN {} AS held ON held.key = $1 AND held.token = int8send(session) WHERE number = $2"#,
            server.quoted()
        );
        let query = sqlx::query(AssertSqlSafe(statement)).bind(&name.fence).bind(number(name));
        query.fetch_optional(on).await?.as_ref().map(owner).transpose()
    }

    async fn held(server: &PostgresServer, on: &mut PgConnection) -> SqlResult<Vec<(Key, Holder)>> {
        let place = server.place();
        // What is locked, and the grants of those who have locks: which of these are locked only the names tell.
        let statement = format!(
            r#"WITH locked AS MATERIALIZED ({ADVISORY})
            SELECT NULL::bigint, NULL::text, NULL::bytea, session, number FROM locked
            UNION ALL
            SELECT held.fence, held.holder, held.key, session, NULL
            FROM (SELECT DISTINCT session FROM locked) AS alive JOIN {} AS held ON held.token = int8send(session)
            WHERE held.key >= decode('ff', 'hex')"#,
            server.quoted()
        );
        let rows = sqlx::query(AssertSqlSafe(statement)).fetch_all(on).await?;
        let (mut locked, mut granted) = (HashSet::new(), Vec::new());
        for row in &rows {
            let session: i64 = row.try_get(3)?;
            if let Some(number) = row.try_get::<Option<i64>, _>(4)? {
                locked.insert((session, number));
            } else if let Some(key) = Name::key(row.try_get(2)?) {
                granted.push((session, key, holder(row)?));
            }
        }
        granted.retain(|(session, key, _)| locked.contains(&(*session, number(&Name::of(&place, key)))));
        Ok(granted.into_iter().map(|(_, key, holder)| (key, holder)).collect())
    }
}

impl Strategy for ByRow<PostgresServer> {
    type Server = PostgresServer;

    const NAME: &'static str = "postgres-row";
    const SHARED: bool = false;
    const TAKES_AT_ONCE: bool = true;

    async fn take(
        others: &Others<PostgresServer>,
        on: &mut PgConnection,
        opened: Opened,
        wanted: &[Wanted],
    ) -> TakeResult {
        take_row(others, on, opened, wanted).await
    }

    async fn release(on: &mut PgConnection, names: &[Name]) -> SqlResult<(i64, Vec<Freed>)> {
        let awaited = |name| format!(", NOT pg_try_advisory_xact_lock_shared({})", turn(name, true));
        let awaited: String = names.iter().map(awaited).collect();
        let free = format!("SELECT pg_backend_pid()::bigint{awaited}; COMMIT");
        let (rows, is_told) = match sqlx::raw_sql(AssertSqlSafe(free)).fetch_all(&mut *on).await {
            // As where the server has no room for one lock more. Nothing was written in the transaction.
            Err(sqlx::Error::Database(_)) => {
                let free = "ROLLBACK; SELECT pg_backend_pid()::bigint";
                (sqlx::raw_sql(free).fetch_all(on).await?, false)
            }
            rows => (rows?, true),
        };
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        let freed = |place| Ok(Freed { awaited: is_told && row.try_get(place)?, held: true });
        Ok((row.try_get(0)?, (1..=names.len()).map(freed).collect::<SqlResult<_>>()?))
    }

    async fn wait(server: &PostgresServer, on: &mut PgConnection, name: &Name) -> SqlResult<bool> {
        let (table, row) = (server.quoted(), hex(&name.row));
        waited(on, &format!("1 FROM {table} WHERE key = decode('{row}', 'hex') FOR UPDATE")).await
    }

    async fn owner(server: &PostgresServer, on: &mut PgConnection, name: &Name) -> SqlResult<Owner> {
        let statement = format!(
            r#"SELECT held.fence, held.holder, pid::bigint FROM {table} AS locked JOIN {TRANSACTION}
            LEFT JOIN {table} AS held ON held.key = $2 AND held.token = int8send(pid::bigint) WHERE locked.key = $1"#,
            table = server.quoted()
        );
        let query = sqlx::query(AssertSqlSafe(statement)).bind(&name.row).bind(&name.fence);
        query.fetch_optional(on).await?.as_ref().map(owner).transpose()
    }

    async fn held(server: &PostgresServer, on: &mut PgConnection) -> SqlResult<Vec<(Key, Holder)>> {
        let statement = format!(
            r#"SELECT held.fence, held.holder, locked.key FROM {table} AS locked JOIN {TRANSACTION}
            LEFT JOIN {table} AS held
                ON held.key = decode('ff', 'hex') || substring(locked.key FROM 2) AND held.token = int8send(pid::bigint)
            WHERE locked.key >= decode('fe', 'hex') AND locked.key < decode('ff', 'hex')"#,
            table = server.quoted()
        );
        let rows = sqlx::query(AssertSqlSafe(statement)).fetch_all(on).await?;
        let mut all = Vec::new();
        for row in &rows {
            if let Some(key) = Name::key(row.try_get(2)?) {
                all.push((key, holder(row)?));
            }
        }
        Ok(all)
    }
}
