//! Locks of the sessions and transactions of MariaDB and MySQL.
//!
//! | what | lock on the server |
//! |---|---|
//! | a name | `GET_LOCK`, of the session; no readers |
//! | a row | `FOR UPDATE`, or for readers a shared lock, of the transaction |
//! | the turn for a name or a row | `GET_LOCK`, of the session |
//! | a reader of a row | a row with its session, written in the transaction and never committed |
//!
//! A release asks for a turn by `IS_USED_LOCK`, which takes nothing.

mod row_locks;
mod statements;
mod ways;

use std::future::ready;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dlock_core::{Fence, Holder, Key};
use futures_util::TryStreamExt;
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, MySqlConnection, Row};

use super::answers::counted;
use super::failure::{ENDS_IDLE, IN_TRANSACTION, LOCKED, UNLOGGED, number};
use super::server::MysqlServer;
use super::statements::{DIGEST, place};
use super::values::literal;
use crate::failure::misplaced;
use crate::protocol::{SqlResult, Taken};
use crate::server::Server;
use crate::session::Sessions;
use crate::session::name::{FENCE, Name, holder_of};
use crate::session::protocol::{
    Found, Freed, Opened, Owners, OwningSession, TURN, TakeError, TakeResult, Wanted,
};
use crate::session::session_server::SessionServer;
use crate::session::strategy::{ByName, Others, Strategy, settle_names};
use crate::stored;
use crate::text::hex;
use crate::way::Way;
pub use row_locks::MysqlRowLocks;
use statements::{
    Ending, SESSION, WRITES_ROWS, asking, counting, is_awaited, name_of, row_lock, taking, token, turn,
};

/// Locks that a session of a MariaDB or MySQL server keeps (`GET_LOCK`): see [`Sessions`].
///
/// ```no_run
/// # async fn example() -> Result<(), dlock_core::Error> {
/// use dlock_core::Locks;
/// use dlock_sql::{MysqlOptions, MysqlSessions};
///
/// let url = "mysql://app:password@db.internal/shop";
/// MysqlOptions::from_url(url)?.migrate().await?; // once, at deployment
/// let locks = Locks::new(MysqlSessions::connect(url).await?);
/// locks.lock("room_7").run(async { /* one at a time */ }).await?;
/// # Ok(()) }
/// ```
///
/// All locks of a backend are on one connection. `GET_LOCK` is of one server: the nodes of a Galera cluster do not see
/// each other's locks, so that all clients must connect to one node.
pub type MysqlSessions = Sessions<ByName<MysqlServer>>;

/// The limits for idle transactions that no session can set for itself, which only servers of Percona have.
const IDLE_LIMITS: &str =
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('kill_idle_transaction', 'innodb_kill_idle_transaction')";

/// Runs a statement that may wait for a name, and returns first whether it got it.
async fn waited(on: &mut MySqlConnection, statement: String) -> SqlResult<bool> {
    let row = sqlx::raw_sql(AssertSqlSafe(statement)).fetch_one(on).await?;
    Ok(row.try_get::<Option<i64>, _>(0)? == Some(1))
}

/// Has the server end this session after so long a silence, and not before.
async fn keep_alive(on: &mut MySqlConnection, silence: Duration, locks_rows: bool) -> SqlResult<()> {
    // In this isolation only the row is locked, and not the place of a missing one. Rows in a log of statements need
    // the other one. Without autocommit each statement that touches a row begins a transaction, if none has begun.
    let of_rows = if locks_rows {
        format!(
            ", SESSION autocommit = 0; SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; {IDLE_LIMITS}"
        )
    } else {
        String::new()
    };
    // No statement waits while others need a sign of life. The limits of MariaDB for idle transactions count instead of
    // `wait_timeout` where they are set, and may be shorter than the pause between two signs of life.
    let settings = format!(
        "SET SESSION wait_timeout = {}, SESSION lock_wait_timeout = 1, SESSION innodb_lock_wait_timeout = 1
        /*M!100300 , SESSION idle_transaction_timeout = 0, SESSION idle_readonly_transaction_timeout = 0,
            SESSION idle_write_transaction_timeout = 0, SESSION max_statement_time = 0 */
        /*!50708 , SESSION max_execution_time = 0 */ {of_rows}",
        silence.as_secs()
    );
    for limit in sqlx::raw_sql(AssertSqlSafe(settings)).fetch_all(on).await? {
        let seconds: Vec<u8> = limit.try_get_unchecked(1)?;
        if is_sooner(&String::from_utf8_lossy(&seconds), silence) {
            return Err(sqlx::Error::Configuration(ENDS_IDLE.into()));
        }
    }
    Ok(())
}

/// Returns `true` if a limit of so many seconds ends sessions that are idle for less than `silence`. No limit is 0.
fn is_sooner(seconds: &str, silence: Duration) -> bool {
    seconds.parse().is_ok_and(|seconds: u64| (1..silence.as_secs()).contains(&seconds))
}

async fn kill(on: &mut MySqlConnection, what: &str, session: i64) -> SqlResult<()> {
    match sqlx::raw_sql(AssertSqlSafe(format!("KILL {what} {session}"))).execute(on).await {
        // The session has ended already.
        Err(error) if number(&error) == Some(1094) => Ok(()),
        outcome => outcome.map(drop),
    }
}

/// Returns the row that a statement answers. Nothing is prepared, for which the server may have no room: a release that
/// failed would be the end of all locks on the connection.
async fn one(on: &mut MySqlConnection, statement: String) -> SqlResult<Option<MySqlRow>> {
    sqlx::raw_sql(AssertSqlSafe(statement)).fetch_optional(on).await
}

/// Ends the transaction, and has the next ones in an isolation in which servers that log statements lock and write.
const STRICTER: &str = "ROLLBACK; SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ";

/// The number of names that are looked up in one statement.
const AT_ONCE: usize = 500;

/// Reads the holder, as far as the row with the fence names it.
fn holder(row: &MySqlRow) -> SqlResult<Holder> {
    let text = row.try_get::<Option<Vec<u8>>, _>(1)?.unwrap_or_default();
    let mut holder = holder_of(&String::from_utf8_lossy(&text));
    holder.fence = row.try_get::<Option<i64>, _>(0)?.and_then(stored::fence);
    Ok(holder)
}

impl MysqlServer {
    /// Takes one lock, with its fence, in one message: the server asks for the lock when it has found the row. Returns
    /// `None` when that could not be done; then nothing was taken.
    ///
    /// Not where a log of statements is written: a replica that carried the statement out again would ask for the lock,
    /// too.
    async fn take_name(
        &self,
        on: &mut MySqlConnection,
        session: i64,
        wanted: &Wanted,
    ) -> SqlResult<Option<(i64, Taken)>> {
        if !self.writes_rows(on).await? {
            return Ok(None);
        }
        let (table, name, ending) = (self.quoted(), name_of(&wanted.name), self.ending());
        let take = format!(
            "{} AND {WRITES_ROWS} AND CONNECTION_ID() = {session} AND GET_LOCK('{name}', 0) = 1",
            counting(&table, wanted, &session.to_string(), ending, Way::Session)
        );
        // `GET_LOCK` stands last in the condition, and a grant is known by the row that was written. A server that asks
        // for the lock earlier, and then writes nothing, is found out below.
        let done = sqlx::raw_sql(AssertSqlSafe(take)).execute(&mut *on).await?;
        // The fence alone is the answer, and its ending says that it is that to this statement.
        if let Some(fence) = ending.check(counted(&done))? {
            return Ok(Some((session, Taken::Granted(Some(fence)))));
        }
        let ask = format!(
            "SELECT held.fence, held.holder, {SESSION}, CAST(IS_USED_LOCK('{name}') AS SIGNED)
            FROM (SELECT 1) AS one LEFT JOIN {table} AS held ON held.`key` = X'{}'",
            hex(&wanted.name.fence)
        );
        let row = one(on, ask).await?.ok_or(sqlx::Error::RowNotFound)?;
        let answers: i64 = row.try_get(2)?;
        Ok(match row.try_get::<Option<i64>, _>(3)? {
            _ if answers != session => Some((answers, Taken::Busy(None))),
            // The session has asked for the lock before it found no row, or a row that is not of sessions.
            Some(owner) if owner == session => Some((session, Taken::Uncounted)),
            Some(_) => Some((session, Taken::Busy(Some(Box::new(holder(&row)?))))),
            // There is no row, or another session has just released the lock.
            None => None,
        })
    }

    /// Returns the ending of the next question.
    fn ending(&self) -> Ending {
        Ending::of(self.asked.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns whether [`WRITES_ROWS`] holds. The server is asked once; each statement that relies on it looks for
    /// itself.
    async fn writes_rows(&self, on: &mut MySqlConnection) -> SqlResult<bool> {
        if let Some(writes_rows) = self.writes_rows.get() {
            return Ok(*writes_rows);
        }
        let asked = one(on, format!("SELECT CAST({WRITES_ROWS} AS SIGNED)")).await;
        let writes_rows = match asked {
            Ok(row) => row.map_or(Ok(None), |row| row.try_get::<Option<i64>, _>(0))? == Some(1),
            Err(sqlx::Error::Database(_)) => false,
            Err(error) => return Err(error),
        };
        Ok(*self.writes_rows.get_or_init(|| writes_rows))
    }

    /// Takes names. If all are to be had, two short answers each say so.
    async fn take_names(
        &self,
        on: &mut MySqlConnection,
        session: i64,
        wanted: &[Wanted],
    ) -> SqlResult<(i64, Vec<Taken>)> {
        // One alone has a shorter way, unless its row is missing.
        if let [one] = wanted
            && let Some((session, taken)) = self.take_name(on, session, one).await?
        {
            return Ok((session, vec![taken]));
        }
        let (table, all) = (self.quoted(), || wanted.iter().enumerate());
        let (text, ending) = (session.to_string(), self.ending());
        // In one message, not prepared.
        let scripts: Vec<String> =
            all().map(|(n, wanted)| taking(&table, wanted, n, &text, ending)).collect();
        let done = sqlx::raw_sql(AssertSqlSafe(scripts.join("; "))).fetch_many(&mut *on);
        let done: Vec<_> = done.try_filter_map(|part| ready(Ok(part.left()))).try_collect().await?;
        // Three statements for each name, of which the last one counts.
        let counted: Vec<Option<Fence>> = done
            .iter()
            .skip(2)
            .step_by(3)
            .map(|done| ending.check(counted(done)))
            .collect::<SqlResult<_>>()?;
        if counted.len() != wanted.len() {
            return Err(sqlx::Error::RowNotFound);
        }
        if counted.iter().all(Option::is_some) {
            return Ok((session, counted.into_iter().map(Taken::Granted).collect()));
        }
        // Only where some names were refused, or their rows are missing, is each of them asked about.
        let scripts: Vec<String> = all().map(|(n, wanted)| asking(&table, wanted, n)).collect();
        let rows = sqlx::raw_sql(AssertSqlSafe(scripts.join("; "))).fetch_all(&mut *on).await?;
        if rows.len() != wanted.len() {
            return Err(sqlx::Error::RowNotFound);
        }
        let answers = rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get(2)?;
        let mut taken = Vec::new();
        for (row, counted) in rows.iter().zip(counted) {
            taken.push(match row.try_get::<Option<i64>, _>(3)? {
                Some(1) if counted.is_some() => Taken::Granted(counted),
                Some(1) => Taken::Uncounted,
                Some(_) => Taken::Busy(Some(Box::new(holder(row)?))),
                None if answers != session => Taken::Busy(None),
                None => return Err(sqlx::Error::Protocol("GET_LOCK failed".into())),
            });
        }
        Ok((answers, taken))
    }

    /// Takes names, and counts nothing.
    async fn take_only(&self, on: &mut MySqlConnection, wanted: &[Wanted]) -> SqlResult<(i64, Vec<Taken>)> {
        let get = |wanted: &Wanted| format!(", CAST(GET_LOCK('{}', 0) AS SIGNED)", name_of(&wanted.name));
        let names: String = wanted.iter().map(|wanted| name_of(&wanted.name)).collect();
        let get: String = wanted.iter().map(get).collect();
        let get = format!("SELECT {SESSION}{get}, CAST('{names}' AS BINARY)");
        let row = sqlx::raw_sql(AssertSqlSafe(get)).fetch_one(on).await?;
        // The answer must be that to this question.
        if row.try_get::<&[u8], _>(wanted.len() + 1)? != names.as_bytes() {
            return Err(misplaced());
        }
        let taken = |place| match row.try_get::<Option<i64>, _>(place)? {
            Some(1) => Ok(Taken::Granted(None)),
            Some(_) => Ok(Taken::Busy(None)),
            None => Err(sqlx::Error::Protocol("GET_LOCK failed".into())),
        };
        Ok((row.try_get(0)?, (1..=wanted.len()).map(taken).collect::<SqlResult<_>>()?))
    }
}

impl SessionServer for MysqlServer {
    const DIGEST: usize = DIGEST;

    fn place(&self) -> String {
        place(self.table())
    }

    fn counts(&self) -> bool {
        self.fences
    }

    async fn keep_alive(on: &mut MySqlConnection, silence: Duration, locks_rows: bool) -> SqlResult<()> {
        keep_alive(on, silence, locks_rows).await
    }

    async fn cancel(&self, on: &mut MySqlConnection, session: i64) -> SqlResult<()> {
        kill(on, "QUERY", session).await
    }

    async fn end(&self, on: &mut MySqlConnection, session: i64) -> SqlResult<()> {
        kill(on, "CONNECTION", session).await
    }

    async fn queue(on: &mut MySqlConnection, name: &Name, is_row: bool) -> SqlResult<bool> {
        let (turn, limit) = (turn(name, is_row), TURN.as_secs());
        waited(on, format!("SELECT CAST(GET_LOCK('{turn}', {limit}) AS SIGNED)")).await
    }

    async fn leave(on: &mut MySqlConnection, name: &Name, is_row: bool) -> SqlResult<()> {
        let release = format!("DO RELEASE_LOCK('{}')", turn(name, is_row));
        sqlx::raw_sql(AssertSqlSafe(release)).execute(on).await.map(drop)
    }

    async fn is_awaited(on: &mut MySqlConnection, name: &Name, is_row: bool) -> SqlResult<(i64, bool)> {
        let ask = format!("SELECT {SESSION}, {}", is_awaited(name, is_row));
        let row = one(on, ask).await?.ok_or(sqlx::Error::RowNotFound)?;
        Ok((row.try_get(0)?, row.try_get::<i64, _>(1)? == 1))
    }

    async fn lock_row(&self, on: &mut MySqlConnection, wanted: &Wanted, _: bool) -> SqlResult<(i64, Found)> {
        let name = &wanted.name;
        // `NOWAIT`: that the row is locked is an answer. Waiting is for the connections of the queue.
        let statements = format!(
            "SELECT {SESSION}, `key` FROM {} WHERE `key` = X'{}' {} NOWAIT",
            self.quoted(),
            hex(&name.row),
            row_lock(name.is_read())
        );
        let mut locked = sqlx::raw_sql(AssertSqlSafe(statements.clone())).fetch_all(&mut *on).await;
        // The server has refused the isolation, and locked nothing: once more in the stricter one, which the session
        // keeps.
        if matches!(&locked, Err(error) if number(error) == Some(UNLOGGED)) {
            sqlx::raw_sql(STRICTER).execute(&mut *on).await?;
            locked = sqlx::raw_sql(AssertSqlSafe(statements)).fetch_all(&mut *on).await;
        }
        let is_there = match locked {
            Ok(rows) => match rows.last() {
                Some(row) if row.try_get::<&[u8], _>(1)? != name.row => return Err(misplaced()),
                Some(row) => return Ok((row.try_get(0)?, Found::Free(None))),
                None => false,
            },
            Err(error) if LOCKED.contains(&number(&error)) => true,
            Err(error @ sqlx::Error::Database(_)) => {
                // The transaction keeps nothing, but would stay open.
                sqlx::raw_sql("ROLLBACK").execute(on).await?;
                return Err(error);
            }
            Err(error) => return Err(error),
        };
        // The first commit ends the transaction of the attempt, so that the holder is that of this moment; the second
        // ends that of the look.
        let statements = format!(
            "COMMIT; SELECT held.fence, held.holder, {SESSION}
            FROM (SELECT 1) AS one LEFT JOIN {} AS held ON held.`key` = X'{}'; COMMIT",
            self.quoted(),
            hex(&name.fence)
        );
        let rows = sqlx::raw_sql(AssertSqlSafe(statements)).fetch_all(on).await?;
        let row = rows.last().ok_or(sqlx::Error::RowNotFound)?;
        let found = if is_there { Found::Locked(Some(Box::new(holder(row)?))) } else { Found::Missing };
        Ok((row.try_get(2)?, found))
    }

    async fn make_row(&self, on: &mut MySqlConnection, name: &Name) -> SqlResult<bool> {
        // An insert would wait for a row that is there and locked.
        let there = format!("SELECT 1 FROM {} WHERE `key` = {}", self.quoted(), literal(&name.row));
        if one(on, there).await?.is_some() {
            return Ok(false);
        }
        // Never pruned, since that could take it from under a lock. A row that was made and locked since the look is
        // waited for, as briefly as these servers allow.
        let statements = format!(
            "SET @dlock_patience = @@SESSION.innodb_lock_wait_timeout; SET SESSION innodb_lock_wait_timeout = 1;
            INSERT IGNORE INTO {} (`key`, fence, expires, holder) VALUES (X'{}', 0, 9223372036854775807, X'')",
            self.quoted(),
            hex(&name.row)
        );
        let made = sqlx::raw_sql(AssertSqlSafe(statements)).execute(&mut *on).await;
        // Set back before the outcome is looked at: the connection goes to other requests.
        let restored =
            sqlx::raw_sql("SET SESSION innodb_lock_wait_timeout = @dlock_patience").execute(on).await;
        let made = match made {
            Ok(made) => made.rows_affected() == 1,
            Err(error) if LOCKED.contains(&number(&error)) => false,
            Err(error) => return Err(error),
        };
        restored.map(|_| made)
    }

    async fn is_in_transaction(on: &mut MySqlConnection) -> SqlResult<bool> {
        // In a transaction the first statement is an error, which changes nothing and ends the message. Elsewhere the
        // last one has nothing to commit, and uses up what the first has set for the next transaction.
        let ask = "SET TRANSACTION READ WRITE; SELECT CAST(@@SESSION.autocommit = 0 AS SIGNED); \
                   COMMIT AND NO CHAIN NO RELEASE";
        match sqlx::raw_sql(ask).fetch_all(on).await {
            Err(error) if number(&error) == Some(IN_TRANSACTION) => Ok(true),
            rows => Ok(rows?.first().ok_or(sqlx::Error::RowNotFound)?.try_get::<i64, _>(0)? == 1),
        }
    }

    async fn count(
        &self,
        on: &mut MySqlConnection,
        wanted: &Wanted,
        session: i64,
        way: Way,
    ) -> SqlResult<Result<Fence, Way>> {
        let ending = self.ending();
        let mut count = counting(&self.quoted(), wanted, &session.to_string(), ending, way);
        // A name was taken by a statement that would have counted it, so that only a move is left, in the session that
        // has it. For a row the count without a move comes first.
        if way == Way::Session {
            count.push_str(&format!(" AND CONNECTION_ID() = {session}"));
        } else {
            let done = sqlx::raw_sql(AssertSqlSafe(count.clone())).execute(&mut *on).await?;
            if let Some(fence) = ending.check(counted(&done))? {
                return Ok(Ok(fence));
            }
        }
        // The count did not find the key in this way: it is moved, and counted in the same transaction.
        let counted = self.move_to(on, &wanted.name, way, Some(count)).await?;
        counted.map_or_else(
            |theirs| Ok(Err(theirs)),
            |fence| ending.check(fence)?.map(Ok).ok_or(sqlx::Error::RowNotFound),
        )
    }

    // A reader's row is not committed: it ends with the transaction that has locked the row. The row is that of the
    // session: one of a session that is about to end is in the way of no other.
    async fn confirm(
        &self,
        on: &mut MySqlConnection,
        wanted: &Wanted,
        session: i64,
        fence: Fence,
    ) -> Result<i64, TakeError> {
        if !wanted.name.is_read() {
            return self.ping(on).await.map_err(TakeError::of);
        }
        let insert = format!(
            "INSERT INTO {} (`key`, token, fence, expires, holder) VALUES ({}, {}, {}, 0, {})",
            self.quoted(),
            literal(&[wanted.name.readers(), token(session)].concat()),
            literal(&token(session)),
            fence.get(),
            literal(wanted.holder.as_bytes())
        );
        match sqlx::raw_sql(AssertSqlSafe(insert)).execute(&mut *on).await {
            Ok(_) => Ok(session),
            Err(error) if number(&error) == Some(UNLOGGED) => {
                sqlx::raw_sql(STRICTER).execute(on).await.map_err(TakeError::Unknown)?;
                Err(TakeError::Again(error))
            }
            Err(error) => Err(TakeError::of(error)),
        }
    }
}

impl Strategy for ByName<MysqlServer> {
    type Server = MysqlServer;

    const NAME: &'static str = "mysql-session";
    const WAY: Way = Way::Session;
    const SHARED: bool = true;
    const TAKES_AT_ONCE: bool = true;
    // The server has no names for readers.
    const READS: bool = false;
    const DOWNGRADES: bool = false;

    async fn take(
        others: &Others<MysqlServer>,
        on: &mut MySqlConnection,
        Opened { id: session, .. }: Opened,
        wanted: &[Wanted],
    ) -> TakeResult {
        let server = others.server();
        let asked = match server.counts() {
            true => server.take_names(on, session, wanted).await,
            false => server.take_only(on, wanted).await,
        };
        settle_names::<Self>(server, on, wanted, asked).await
    }

    async fn release(
        _: &MysqlServer,
        on: &mut MySqlConnection,
        names: &[Name],
    ) -> SqlResult<(i64, Vec<Freed>)> {
        let free = |name| {
            format!(", {}, CAST(RELEASE_LOCK('{}') AS SIGNED)", is_awaited(name, false), name_of(name))
        };
        let free: String =
            std::iter::once(format!("SELECT {SESSION}")).chain(names.iter().map(free)).collect();
        let row = sqlx::raw_sql(AssertSqlSafe(free)).fetch_one(on).await?;
        let is_one = |place: usize| row.try_get::<Option<i64>, _>(place).map(|answer| answer == Some(1));
        let freed =
            |place: usize| Ok(Freed { awaited: is_one(place * 2 + 1)?, held: is_one(place * 2 + 2)? });
        Ok((row.try_get(0)?, (0..names.len()).map(freed).collect::<SqlResult<_>>()?))
    }

    async fn wait(_: &MysqlServer, on: &mut MySqlConnection, name: &Name) -> SqlResult<bool> {
        // Got and released in one statement: the name is had for a moment only.
        let (name, limit) = (name_of(name), TURN.as_secs());
        waited(on, format!("SELECT CAST(GET_LOCK('{name}', {limit}) AS SIGNED), RELEASE_LOCK('{name}')"))
            .await
    }

    async fn owners(server: &MysqlServer, on: &mut MySqlConnection, name: &Name) -> SqlResult<Owners> {
        let statement = format!(
            "SELECT held.fence, held.holder, CAST(locked.id AS SIGNED) FROM (SELECT IS_USED_LOCK('{}') AS id) AS locked
            LEFT JOIN {} AS held ON held.`key` = {} AND held.token = UNHEX(LPAD(HEX(locked.id), 32, '0'))
            WHERE locked.id IS NOT NULL",
            name_of(name),
            server.quoted(),
            literal(&name.fence)
        );
        let row = one(on, statement).await?;
        row.iter().map(|row| Ok((OwningSession::Known(row.try_get(2)?), holder(row)?))).collect()
    }

    async fn held(server: &MysqlServer, on: &mut MySqlConnection) -> SqlResult<Vec<(Key, Holder)>> {
        let place = server.place();
        // By pages, and the locks of each page in one question: no statement lists the names that sessions have.
        let page = |after: &[u8]| {
            format!(
                "SELECT fence, holder, `key`, token FROM {} WHERE `key` > {} ORDER BY `key` LIMIT {AT_ONCE}",
                server.quoted(),
                literal(after)
            )
        };
        let (mut all, mut after) = (Vec::new(), vec![FENCE]);
        loop {
            let rows = sqlx::raw_sql(AssertSqlSafe(page(&after))).fetch_all(&mut *on).await?;
            let Some(last) = rows.last() else { return Ok(all) };
            after = last.try_get(2)?;
            let mut granted = Vec::new();
            for row in &rows {
                granted.extend(Name::key(row.try_get(2)?).map(|key| (key, row)));
            }
            let used = |(key, _): &(Key, _)| {
                format!(", CAST(IS_USED_LOCK('{}') AS SIGNED)", name_of(&Name::of(&place, key)))
            };
            let used = granted.iter().map(used).collect::<String>();
            let used = sqlx::raw_sql(AssertSqlSafe(format!("SELECT 1{used}"))).fetch_one(&mut *on).await?;
            for (column, (key, row)) in (1..).zip(granted) {
                if let Some(session) = used.try_get::<Option<i64>, _>(column)? {
                    let is_of_grant = row.try_get::<Option<Vec<u8>>, _>(3)? == Some(token(session));
                    all.push((key, if is_of_grant { holder(row)? } else { Holder::default() }));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mysql::failure::classify;
    use crate::table::TableName;

    #[test]
    fn a_limit_for_idle_transactions_is_refused_where_it_is_shorter_than_the_silence_that_holders_count_on() {
        let refused = |seconds| is_sooner(seconds, Duration::from_secs(60));
        assert_eq!(["0", "1", "59", "60", "3600", ""].map(refused), [false, true, true, false, false, false]);
        let failure = classify(sqlx::Error::Configuration(ENDS_IDLE.into()), &TableName::default()).failure;
        assert_eq!(failure.kind(), dlock_core::ErrorKind::InvalidConfig);
        assert!(failure.to_string().contains("kill_idle_transaction"), "{failure}");
    }
}
