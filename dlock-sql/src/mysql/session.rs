//! Locks of the sessions and transactions of MariaDB and MySQL.

use std::future::ready;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dlock_core::{Fence, Holder, Key};
use futures_util::TryStreamExt;
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, MySqlConnection, Row};

use super::failure::{ENDS_IDLE, number};
use super::server::{MysqlServer, counted};
use super::values::literal;
use crate::failure::misplaced;
use crate::server::{Server, SqlResult, Taken};
use crate::session::{
    ByName, ByRow, FENCE, Freed, Name, Opened, Others, Owner, OwningSession, ROW, Sessions, Strategy, TURN,
    TakeResult, Wanted, settle_names, take_row,
};
use crate::stored;
use crate::table::TableName;
use crate::text::hex;

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
/// each other's, so that all must connect to the same one.
pub type MysqlSessions = Sessions<ByName<MysqlServer>>;

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

const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";
pub(super) const SESSION: &str = "CAST(CONNECTION_ID() AS SIGNED)";
/// The errors of a row that is locked: of MariaDB, and of MySQL.
pub(super) const LOCKED: [Option<u16>; 2] = [Some(1205), Some(3572)];

/// The limits for idle transactions that no session can set for itself, which only servers of Percona have.
const IDLE_LIMITS: &str =
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('kill_idle_transaction', 'innodb_kill_idle_transaction')";

/// Whether what this session writes is logged by its rows, if at all. Not every version has this setting.
const WRITES_ROWS: &str = "@@SESSION.binlog_format <> 'STATEMENT'";

/// The table among all that a name may be of. Some servers ignore the case of these names; elsewhere two such tables
/// only wait for each other.
pub(super) fn place(table: &TableName) -> String {
    table.quoted('`').to_lowercase()
}

/// At most 64 characters, in lower case since these names ignore case.
fn name_of(name: &Name) -> String {
    format!("dlock:{}", hex(&name.digest[..MysqlServer::DIGEST]))
}

/// The turn among those who wait for a lock.
pub(super) fn turn(name: &Name, is_row: bool) -> String {
    let of = if is_row { 'r' } else { 's' };
    format!("dlock:{of}:{}", hex(&name.digest[..MysqlServer::DIGEST]))
}

/// Whether somebody has the turn among those who wait for a lock.
fn is_awaited(name: &Name, is_row: bool) -> String {
    format!("CAST(IS_USED_LOCK('{}') IS NOT NULL AS SIGNED)", turn(name, is_row))
}

/// Runs a statement that may wait for a name, and says first whether it got it.
pub(super) async fn waited(on: &mut MySqlConnection, statement: String) -> SqlResult<bool> {
    let row = sqlx::raw_sql(AssertSqlSafe(statement)).fetch_one(on).await?;
    Ok(row.try_get::<Option<i64>, _>(0)? == Some(1))
}

/// Has the server end this session after so long a silence, and not before.
pub(super) async fn keep_alive(
    on: &mut MySqlConnection,
    silence: Duration,
    locks_rows: bool,
) -> SqlResult<()> {
    // In this isolation only the row is locked, and not the place of one that is missing. What is written to a log of
    // statements needs the other one.
    // There each statement that touches a row begins a transaction, if none has begun.
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

/// Whether a limit of so many seconds ends what is idle for less than `silence`. No limit is 0.
fn is_sooner(seconds: &str, silence: Duration) -> bool {
    seconds.parse().is_ok_and(|seconds: u64| (1..silence.as_secs()).contains(&seconds))
}

pub(super) async fn kill(on: &mut MySqlConnection, what: &str, session: i64) -> SqlResult<()> {
    match sqlx::raw_sql(AssertSqlSafe(format!("KILL {what} {session}"))).execute(on).await {
        // It has ended already.
        Err(error) if number(&error) == Some(1094) => Ok(()),
        outcome => outcome.map(drop),
    }
}

/// The name of the row with the fence that a statement looks at.
pub(super) fn name_in_sql(place: &str) -> String {
    let (prefix, key) = (hex(&Name::prefix(place)), "SUBSTRING(`key`, 2)");
    let input = format!("CONCAT(X'{prefix}', UNHEX(LPAD(HEX(LENGTH({key})), 16, '0')), {key})");
    format!("CONCAT('dlock:', LEFT(SHA2({input}, 256), {}))", MysqlServer::DIGEST * 2)
}

/// The row that a statement answers. Nothing is prepared, for which the server may have no room: a release that failed
/// would be the end of all locks on the connection.
pub(super) async fn one(on: &mut MySqlConnection, statement: String) -> SqlResult<Option<MySqlRow>> {
    sqlx::raw_sql(AssertSqlSafe(statement)).fetch_optional(on).await
}

/// A session as the token of a row.
fn token(session: i64) -> Vec<u8> {
    i128::from(session).to_be_bytes().to_vec()
}

/// How many names are looked up in one statement.
const AT_ONCE: usize = 500;

/// What the fence of a grant ends with, in its lowest bits. All that is answered is a fence: one that ends otherwise is
/// an answer to another question, as something between here and the server gives them when it repeats a reply.
#[derive(Clone, Copy)]
pub(super) struct Ending(u64);

impl Ending {
    const BITS: u32 = 4;
    const ALL: u64 = (1 << Self::BITS) - 1;

    /// Refuses an answer that has another one.
    fn check(self, counted: Option<Fence>) -> SqlResult<Option<Fence>> {
        match counted {
            Some(fence) if fence.get() & Self::ALL != self.0 => Err(misplaced()),
            counted => Ok(counted),
        }
    }
}

/// Counts a grant to a session with a row that is there. The fence is the last insert id.
pub(super) fn counting(table: &str, wanted: &Wanted, session: &str, Ending(ending): Ending) -> String {
    let (bits, all) = (Ending::BITS, Ending::ALL);
    format!(
        "UPDATE {table} SET
            fence = LAST_INSERT_ID((((GREATEST(fence + 1, {NOW}) + {all}) >> {bits}) << {bits}) | {ending}),
            token = UNHEX(LPAD(HEX({session}), 32, '0')), holder = X'{}'
        WHERE `key` = X'{}'",
        hex(wanted.holder.as_bytes()),
        hex(&wanted.name.fence)
    )
}

/// Takes a named lock if this is that session, and counts the grant where its row is there. What is to be asked about
/// it later is under its number.
fn taking(table: &str, wanted: &Wanted, number: usize, session: &str, ending: Ending) -> String {
    format!(
        "SET @dlock_{number} = IF(CONNECTION_ID() = {session}, GET_LOCK('{}', 0), NULL); {} AND @dlock_{number} = 1",
        name_of(&wanted.name),
        counting(table, wanted, session, ending)
    )
}

/// Who has it, if this session did not get it: fence and holder, the session, and whether it has got it.
fn asking(table: &str, wanted: &Wanted, number: usize) -> String {
    format!(
        "SELECT held.fence, held.holder, {SESSION}, CAST(@dlock_{number} AS SIGNED)
        FROM (SELECT 1) AS one LEFT JOIN {table} AS held ON held.`key` = X'{}' AND @dlock_{number} = 0",
        hex(&wanted.name.fence)
    )
}

/// Somebody has it; who, if the row with the fence says so.
pub(super) fn holder(row: &MySqlRow) -> SqlResult<Holder> {
    let text = row.try_get::<Option<Vec<u8>>, _>(1)?.unwrap_or_default();
    let mut holder = Holder::parse(&String::from_utf8_lossy(&text));
    holder.fence = row.try_get::<Option<i64>, _>(0)?.and_then(stored::fence);
    Ok(holder)
}

impl MysqlServer {
    /// Counts the first grant of a key.
    pub(super) async fn count_first(
        &self,
        on: &mut MySqlConnection,
        wanted: &Wanted,
        session: i64,
    ) -> SqlResult<Fence> {
        let table = self.quoted();
        let insert = format!(
            "INSERT INTO {table} (`key`, token, fence, expires, holder)
            SELECT {}, {}, LAST_INSERT_ID(GREATEST({NOW}, COALESCE(MAX(mark.fence), 0) + 1)), 0, {}
            FROM {table} AS mark WHERE mark.`key` = X''",
            literal(&wanted.name.fence),
            literal(&token(session)),
            literal(wanted.holder.as_bytes())
        );
        let counted = sqlx::raw_sql(AssertSqlSafe(insert)).execute(on).await?;
        Ok(Fence::new(counted.last_insert_id()))
    }

    /// The sessions that this user may see. Not from the information schema: that makes a temporary table, at which
    /// MariaDB 10.11 was seen to crash.
    async fn sessions_seen(&self, on: &mut MySqlConnection) -> SqlResult<Vec<i64>> {
        let rows = sqlx::raw_sql("SHOW PROCESSLIST").fetch_all(on).await?;
        rows.iter().map(|row| row.try_get_unchecked(0)).collect()
    }

    /// Deletes the row with the fence of sessions and locked rows, and the row that is locked, unless somebody has
    /// them.
    pub(super) async fn prune_kept(
        &self,
        on: &mut MySqlConnection,
        fence: &[u8],
        highest: i64,
    ) -> SqlResult<u64> {
        let row: Vec<u8> = std::iter::once(ROW).chain(fence.iter().skip(1).copied()).collect();
        let (table, row, fence) = (self.quoted(), hex(&row), hex(fence));
        let name = name_in_sql(&self.place());
        let statements = format!(
            "START TRANSACTION; SELECT 1 FROM {table} WHERE `key` = X'{row}' FOR UPDATE NOWAIT;
            DELETE FROM {table} WHERE `key` = X'{fence}' AND fence <= {highest} AND IS_USED_LOCK({name}) IS NULL;
            DELETE FROM {table} WHERE `key` = X'{row}'; COMMIT"
        );
        match sqlx::raw_sql(AssertSqlSafe(statements)).execute(&mut *on).await {
            Ok(done) => Ok(done.rows_affected()),
            Err(error) => {
                sqlx::raw_sql("ROLLBACK").execute(on).await?;
                if LOCKED.contains(&number(&error)) { Ok(0) } else { Err(error) }
            }
        }
    }

    /// Whether somebody has locked a row. Nobody else can lock it in that moment.
    async fn is_locked(&self, on: &mut MySqlConnection, row: &[u8]) -> SqlResult<bool> {
        let lock =
            format!("SELECT 1 FROM {} WHERE `key` = {} FOR UPDATE NOWAIT", self.quoted(), literal(row));
        match one(on, lock).await {
            Ok(_) => Ok(false),
            Err(error) if LOCKED.contains(&number(&error)) => Ok(true),
            Err(error) => Err(error),
        }
    }
}

impl MysqlServer {
    /// Takes one lock, with its fence, in one statement: the server asks for the lock when it has found the row.
    /// Nothing when that did not do; then nothing was taken.
    ///
    /// Not where a log of statements is written: a replica that carried this one out again would ask for the lock, too.
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
            counting(&table, wanted, &session.to_string(), ending)
        );
        let done = sqlx::raw_sql(AssertSqlSafe(take)).execute(&mut *on).await?;
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
            // It has asked for the lock before it found no row.
            Some(owner) if owner == session => {
                Some((session, Taken::Granted(Some(self.count(on, wanted, session).await?))))
            }
            Some(_) => Some((session, Taken::Busy(Some(Box::new(holder(&row)?))))),
            // There is no row, or somebody has just released the lock.
            None => None,
        })
    }

    /// That of the next question.
    pub(super) fn ending(&self) -> Ending {
        Ending(self.asked.fetch_add(1, Ordering::Relaxed) & Ending::ALL)
    }

    /// See [`WRITES_ROWS`]. The server is asked once; each statement that relies on it looks for itself.
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

    /// Where all are to be had, two short answers each say so.
    async fn take_names(
        &self,
        on: &mut MySqlConnection,
        session: i64,
        wanted: &[Wanted],
    ) -> SqlResult<(i64, Vec<Taken>)> {
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
        let counted: Vec<Option<Fence>> = done
            .iter()
            .skip(1)
            .step_by(2)
            .map(|done| ending.check(counted(done)))
            .collect::<SqlResult<_>>()?;
        if counted.len() != wanted.len() {
            return Err(sqlx::Error::RowNotFound);
        }
        if counted.iter().all(Option::is_some) {
            return Ok((session, counted.into_iter().map(Taken::Granted).collect()));
        }
        let scripts: Vec<String> = all().map(|(n, wanted)| asking(&table, wanted, n)).collect();
        let rows = sqlx::raw_sql(AssertSqlSafe(scripts.join("; "))).fetch_all(&mut *on).await?;
        if rows.len() != wanted.len() {
            return Err(sqlx::Error::RowNotFound);
        }
        let answers = rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get(2)?;
        let mut taken = Vec::new();
        for ((row, wanted), counted) in rows.iter().zip(wanted).zip(counted) {
            taken.push(match row.try_get::<Option<i64>, _>(3)? {
                Some(1) if counted.is_some() => Taken::Granted(counted),
                Some(1) => Taken::Granted(Some(self.count_first(on, wanted, session).await?)),
                Some(_) => Taken::Busy(Some(Box::new(holder(row)?))),
                None if answers != session => Taken::Busy(None),
                None => return Err(sqlx::Error::Protocol("GET_LOCK failed".into())),
            });
        }
        Ok((answers, taken))
    }

    /// The same, and counts nothing.
    async fn take_only(&self, on: &mut MySqlConnection, wanted: &[Wanted]) -> SqlResult<(i64, Vec<Taken>)> {
        let get = |wanted: &Wanted| format!(", CAST(GET_LOCK('{}', 0) AS SIGNED)", name_of(&wanted.name));
        let names: String = wanted.iter().map(|wanted| name_of(&wanted.name)).collect();
        let get: String = wanted.iter().map(get).collect();
        let get = format!("SELECT {SESSION}{get}, CAST('{names}' AS BINARY)");
        let row = sqlx::raw_sql(AssertSqlSafe(get)).fetch_one(on).await?;
        // The answer is that to this question.
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

impl Strategy for ByName<MysqlServer> {
    type Server = MysqlServer;

    const NAME: &'static str = "mysql-session";
    const SHARED: bool = true;
    const TAKES_AT_ONCE: bool = true;

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
        settle_names::<Self>(on, wanted, asked).await
    }

    async fn release(on: &mut MySqlConnection, names: &[Name]) -> SqlResult<(i64, Vec<Freed>)> {
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
        let (name, limit) = (name_of(name), TURN.as_secs());
        waited(on, format!("SELECT CAST(GET_LOCK('{name}', {limit}) AS SIGNED), RELEASE_LOCK('{name}')"))
            .await
    }

    async fn owner(server: &MysqlServer, on: &mut MySqlConnection, name: &Name) -> SqlResult<Owner> {
        let statement = format!(
            "SELECT held.fence, held.holder, CAST(locked.id AS SIGNED) FROM (SELECT IS_USED_LOCK('{}') AS id) AS locked
            LEFT JOIN {} AS held ON held.`key` = {} AND held.token = UNHEX(LPAD(HEX(locked.id), 32, '0'))
            WHERE locked.id IS NOT NULL",
            name_of(name),
            server.quoted(),
            literal(&name.fence)
        );
        let row = one(on, statement).await?;
        row.map(|row| Ok((OwningSession::Known(row.try_get(2)?), holder(&row)?))).transpose()
    }

    async fn held(server: &MysqlServer, on: &mut MySqlConnection) -> SqlResult<Vec<(Key, Holder)>> {
        let place = server.place();
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

impl Strategy for ByRow<MysqlServer> {
    type Server = MysqlServer;

    const NAME: &'static str = "mysql-row";
    const SHARED: bool = false;
    const TAKES_AT_ONCE: bool = true;

    async fn take(
        others: &Others<MysqlServer>,
        on: &mut MySqlConnection,
        opened: Opened,
        wanted: &[Wanted],
    ) -> TakeResult {
        take_row(others, on, opened, wanted).await
    }

    async fn release(on: &mut MySqlConnection, names: &[Name]) -> SqlResult<(i64, Vec<Freed>)> {
        let awaited: String = names.iter().map(|name| format!(", {}", is_awaited(name, true))).collect();
        let free = format!("SELECT {SESSION}{awaited}; COMMIT");
        let rows = sqlx::raw_sql(AssertSqlSafe(free)).fetch_all(on).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        let freed = |place| Ok(Freed { awaited: row.try_get::<i64, _>(place)? == 1, held: true });
        Ok((row.try_get(0)?, (1..=names.len()).map(freed).collect::<SqlResult<_>>()?))
    }

    async fn wait(server: &MysqlServer, on: &mut MySqlConnection, name: &Name) -> SqlResult<bool> {
        let (table, row) = (server.quoted(), hex(&name.row));
        let wait = format!("SELECT 1 FROM {table} WHERE `key` = X'{row}' FOR UPDATE");
        sqlx::raw_sql(AssertSqlSafe(wait)).execute(on).await.map(|_| true)
    }

    async fn owner(server: &MysqlServer, on: &mut MySqlConnection, name: &Name) -> SqlResult<Owner> {
        if !server.is_locked(on, &name.row).await? {
            return Ok(None);
        }
        let (table, fence) = (server.quoted(), literal(&name.fence));
        let held = format!("SELECT fence, holder, token FROM {table} WHERE `key` = {fence}");
        let Some(row) = one(on, held).await? else {
            return Ok(Some((OwningSession::Hidden, Holder::default())));
        };
        let of_grant: Option<Vec<u8>> = row.try_get(2)?;
        let mut seen = server.sessions_seen(on).await?.into_iter();
        let session = seen.find(|session| of_grant == Some(token(*session)));
        Ok(Some((session.map_or(OwningSession::Hidden, OwningSession::Known), holder(&row)?)))
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
        for row in &rows {
            let mut locked: Vec<u8> = row.try_get(2)?;
            locked[0] = ROW;
            if let Some(key) = Name::key(&locked)
                && server.is_locked(on, &locked).await?
            {
                all.push((key, holder(row)?));
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mysql::failure::classify;

    #[test]
    fn a_limit_for_idle_transactions_is_refused_where_it_is_shorter_than_the_silence_that_holders_count_on() {
        let refused = |seconds| is_sooner(seconds, Duration::from_secs(60));
        assert_eq!(["0", "1", "59", "60", "3600", ""].map(refused), [false, true, true, false, false, false]);
        let failure = classify(sqlx::Error::Configuration(ENDS_IDLE.into()), &TableName::default()).failure;
        assert_eq!(failure.kind(), dlock_core::ErrorKind::InvalidConfig);
        assert!(failure.to_string().contains("kill_idle_transaction"), "{failure}");
    }
}
