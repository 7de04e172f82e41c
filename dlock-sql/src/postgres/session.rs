//! Locks of PostgreSQL's sessions and transactions.

use std::collections::HashSet;

use dlock_core::{Fence, Holder, Key};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Row, SqlStr};

use super::server::PostgresServer;
use super::statements::ADVISORY;
use crate::failure::misplaced;
use crate::server::{Server, SqlResult, Taken};
use crate::session::{
    ByName, ByRow, Freed, Name, Opened, Others, Owner, OwningSession, Sessions, Strategy, TURN, TakeResult,
    Wanted, settle_names, take_row,
};
use crate::stored;
use crate::table::TableName;
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
pub(super) const SETTLE: &str = "SELECT set_config(name, ours.value, false) FROM pg_settings JOIN (VALUES \
    ('client_connection_check_interval', '1s'), ('tcp_keepalives_idle', '10'), ('tcp_keepalives_interval', '5'), \
    ('tcp_keepalives_count', '3'), ('idle_session_timeout', $1), ('idle_in_transaction_session_timeout', $1), \
    ('transaction_timeout', '0'), ('statement_timeout', '0'), ('lock_timeout', '100ms'), ('default_transaction_isolation', 'read committed'), \
    ('synchronous_commit', 'off')) AS ours (name, value) USING (name) \
    WHERE name <> 'client_connection_check_interval' OR setting <> '0'";
const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
const SESSION: &str = "pg_backend_pid()::bigint";
/// For this transaction: no lock outlives a crash of the server, after which fences start at its clock.
const HASTE: &str = "set_config('synchronous_commit', 'off', true)";

/// For a row called `locked`: the transaction that has locked it, without waiting for it and without getting in its
/// way.
const TRANSACTION: &str =
    "pg_locks ON locktype = 'transactionid' AND granted AND transactionid = locked.xmax";

/// The table among all that a name may be of.
pub(super) fn place(table: &TableName) -> String {
    format!("{}.\"{}\"", table.schema().unwrap_or_default(), table.name())
}

fn number(name: &Name) -> i64 {
    let [a, b, c, d, e, f, g, h, ..] = name.digest;
    i64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// Prepares what locks a row, on the connection that does it again and again.
pub(super) fn lock_row(table: &str) -> SqlStr {
    let ours = format!("(SELECT $2 AS name, {SESSION} AS session, $3 AS whose FROM locked) AS ours");
    sql(format!(
        "PREPARE dlock_count (bytea, bytea, text) AS
            WITH locked AS MATERIALIZED (SELECT FROM {table} WHERE key = $1 FOR UPDATE SKIP LOCKED),
            counted AS ({})
            SELECT fence, 'counted' AS step FROM counted;
        PREPARE dlock_lock (bytea) AS SELECT 'locked' AS step FROM {table} WHERE key = $1 FOR UPDATE SKIP LOCKED;
        PREPARE dlock_look (bytea, bytea) AS
            SELECT fence, holder, {SESSION}, EXISTS (SELECT FROM {table} WHERE key = $1), token = int8send({SESSION}),
                'seen' AS step
            FROM (SELECT) AS one LEFT JOIN {table} ON key = $2",
        counting(table, &ours)
    ))
}

/// Counts a grant: the row, the session and the holder are `name`, `session` and `whose`.
pub(super) fn counting(table: &str, from: &str) -> String {
    format!(
        r#"INSERT INTO {table} AS held (key, token, fence, expires, holder)
        SELECT name, int8send(session), greatest({NOW}, (SELECT fence + 1 FROM {table} WHERE key = '')), '-infinity', whose
        FROM {from}
        ON CONFLICT (key) DO UPDATE SET fence = greatest(held.fence + 1, excluded.fence),
            token = excluded.token, holder = excluded.holder
        RETURNING fence, {HASTE}"#
    )
}

/// The turn among those who wait for a lock: two numbers, which are never mixed up with the one of a lock.
pub(super) fn turn(name: &Name, is_row: bool) -> String {
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
pub(super) async fn waited(on: &mut PgConnection, statement: &str) -> SqlResult<bool> {
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

pub(super) fn fence(row: &PgRow, column: usize) -> SqlResult<Option<Fence>> {
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
pub(super) fn holder(row: &PgRow) -> SqlResult<Holder> {
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

/// number, row of the fence, holder: the fence, or that and the holder of somebody else; the session; the number, by
/// which the answer is that to this question.
pub(super) fn take_name(table: &str) -> SqlStr {
    sql(format!(
        "WITH asked AS MATERIALIZED (
            SELECT pg_try_advisory_lock($1) AS got, {SESSION} AS session, $2::bytea AS name, $3::text AS whose
        ), counted AS ({})
        SELECT fence, NULL::text, {SESSION}, $1 FROM counted
        UNION ALL
        SELECT fence, coalesce(holder, ''), {SESSION}, $1 FROM asked LEFT JOIN {table} ON key = name WHERE NOT got",
        counting(table, "asked WHERE got")
    ))
}

/// The same of many, in their order.
pub(super) fn take_names(table: &str) -> SqlStr {
    sql(format!(
        "WITH asked AS MATERIALIZED (
            SELECT place, number, pg_try_advisory_lock(number) AS got, {SESSION} AS session, name, whose
            FROM unnest($1::bigint[], $2::bytea[], $3::text[]) WITH ORDINALITY
                AS listed (number, name, whose, place)
        ), counted AS ({}, key)
        SELECT fence, NULL::text, {SESSION}, number, place FROM counted JOIN asked ON key = name
        UNION ALL
        SELECT fence, coalesce(holder, ''), {SESSION}, number, place FROM asked LEFT JOIN {table} ON key = name WHERE NOT got
        ORDER BY place",
        counting(table, "asked WHERE got")
    ))
}

impl PostgresServer {
    async fn take_one(&self, on: &mut PgConnection, wanted: &Wanted) -> SqlResult<(i64, Vec<Taken>)> {
        let row = sqlx::query(self.statements().take_name.clone())
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
        let query = sqlx::query(self.statements().take_names.clone()).bind(numbers).bind(names).bind(holders);
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
        // Shared, so that nobody takes this moment for a lock.
        let number = number(name);
        waited(on, &format!("pg_advisory_lock_shared({number}), pg_advisory_unlock_shared({number})")).await
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
