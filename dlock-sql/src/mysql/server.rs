//! Lease rows in MariaDB and MySQL.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use dlock_core::backend::Occupancy;
use dlock_core::{Failure, Fence, Holder, Key, Token};
use sqlx::mysql::MySqlConnectOptions;
use sqlx::{AssertSqlSafe, Executor, MySql, MySqlConnection, Row};

use super::answers::{Standing, granted};
pub(super) use super::answers::{bytes, counted, holder};
use super::diagnosis;
use super::failure::{UNCOMMITTED, UNLOGGED, classify, has_no_room, no_database, number};
use super::session::{self, SESSION};
use super::statements::{AWAITED, MysqlStatements, RUNNING, schema};
use super::table::check_table;
use super::values::Value::{self, Bytes, Number};
use super::values::{TOO_MANY_PREPARED, execute, literal, rows};
use crate::address;
use crate::connector::Connector;
use crate::diagnosis::{Facts, Judge};
use crate::failure::misplaced;
use crate::rows::{LineSeen, Resized, ShareAsk, ShareTaken};
use crate::server::{Ask, Fault, Lease, Pruned, Released, RowIdentity, Schemas, Server, SqlResult, Taken};
use crate::session::{FENCE, Found, Name, TURN, Wanted};
use crate::settings::Settings;
use crate::table::TableName;
use crate::text::{hex, micros};

/// The error of a row that is there already.
const DUPLICATE: u16 = 1062;
/// The error of a table that is not there.
const MISSING: u16 = 1146;

/// Lease rows in a table of a MariaDB or MySQL server.
#[derive(Debug)]
pub struct MysqlServer {
    table: TableName,
    statements: MysqlStatements,
    /// Whether grants of sessions and locked rows are counted.
    fences: bool,
    /// The server writes a log of statements.
    logs_statements: AtomicBool,
    /// Whether a session writes no log of statements, once that was asked.
    pub(super) writes_rows: OnceLock<bool>,
    /// How many grants were asked for.
    pub(super) asked: AtomicU64,
}

impl MysqlServer {
    /// Whether the server was seen to write a log of statements.
    pub(super) fn is_logged_by_statement(&self) -> bool {
        self.logs_statements.load(Ordering::Relaxed)
    }

    pub(super) fn note_log_of_statements(&self) {
        self.logs_statements.store(true, Ordering::Relaxed);
    }

    /// What the row of a key says.
    async fn look(&self, on: &mut MySqlConnection, key: &Key, token: &[u8]) -> SqlResult<Standing> {
        let rows = rows(on, &self.statements.look, &[Bytes(token), Bytes(bytes(key))]).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        committed(row.try_get(4)?)?;
        Ok(match row.try_get::<Option<i64>, _>(0)? {
            None => Standing::Missing,
            Some(0) => Standing::Free,
            // Nobody has what is kept for those in line.
            Some(_) if row.try_get::<Option<i64>, _>(5)? != Some(1) => Standing::Kept,
            Some(_) => Standing::Held(Box::new(holder(row, 1)?)),
        })
    }

    /// Takes the lock with a row that is there.
    async fn update(&self, on: &mut MySqlConnection, ask: &Ask) -> SqlResult<Option<Taken>> {
        let token = ask.token.as_bytes().as_slice();
        let (lease, holder) = (Number(micros(ask.lease)), Bytes(ask.holder.as_bytes()));
        let (key, token, fences) = (Bytes(bytes(&ask.key)), Bytes(token), Number(i64::from(ask.fences)));
        let values = [token, fences, fences, token, fences, holder, token, lease, key, token];
        Ok(granted(&execute(on, &self.statements.take, &values).await?))
    }

    /// Takes the lock with a new row. Fails when there is one.
    async fn insert(&self, on: &mut MySqlConnection, ask: &Ask) -> SqlResult<Option<Taken>> {
        let (lease, holder) = (Number(micros(ask.lease)), Bytes(ask.holder.as_bytes()));
        let fences = Number(i64::from(ask.fences));
        let values = [Bytes(bytes(&ask.key)), Bytes(ask.token.as_bytes()), fences, lease, holder];
        Ok(granted(&execute(on, &self.statements.insert, &values).await?))
    }
}

impl Server for MysqlServer {
    type Database = MySql;

    const NAME: &'static str = "mysql";
    const SCHEMES: &'static [&'static str] = &["mysql://", "mariadb://"];
    const PARAMETERS: &'static [&'static str] = &["ssl-mode", "ssl-ca", "ssl-cert", "ssl-key", "socket"];
    const QUOTE: char = '`';
    const POLLING: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));
    const RENEWED_AT_ONCE: usize = 256;
    // A statement that changes many rows cannot say which.
    const TOGETHER: usize = 1;
    const DIGEST: usize = 24;

    fn own(options: &MySqlConnectOptions) -> MySqlConnectOptions {
        let own = options.clone().pipes_as_concat(false).no_engine_substitution(false);
        own.timezone(None).set_names(false)
    }

    fn host(options: &MySqlConnectOptions) -> Option<&str> {
        address::bare(options.get_host())
    }

    fn with_host(options: MySqlConnectOptions, host: &str) -> MySqlConnectOptions {
        options.host(host)
    }

    fn with_password(options: MySqlConnectOptions, password: &str) -> MySqlConnectOptions {
        options.password(password)
    }

    fn address(to: &MySqlConnectOptions) -> String {
        let host = to.get_socket();
        let host = host.map_or_else(|| address::shown(to.get_host()), |path| path.display().to_string());
        format!("mysql://{host}:{}/{}", to.get_port(), to.get_database().unwrap_or_default())
    }

    fn on_table(table: &TableName, _: &Arc<Connector<Self>>, settings: &Settings) -> Self {
        Self {
            table: table.clone(),
            statements: MysqlStatements::of(table),
            fences: settings.fences,
            logs_statements: AtomicBool::new(false),
            writes_rows: OnceLock::new(),
            asked: AtomicU64::new(0),
        }
    }

    fn table(&self) -> &TableName {
        &self.table
    }

    async fn settle(on: &mut MySqlConnection) -> SqlResult<()> {
        // Without autocommit nothing would ever be committed, and where statements are logged, InnoDB writes nothing in
        // a weaker isolation; the others change what statements answer, or which are refused.
        let settle = "SET NAMES utf8mb4, SESSION autocommit = 1, SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', \
                      SESSION sql_select_limit = DEFAULT, SESSION sql_safe_updates = 0, SESSION sql_big_selects = 1, \
                      SESSION completion_type = 0";
        // A message of its own, by which a proxy such as ProxySQL knows what it is to set on another connection.
        let isolation = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ";
        sqlx::raw_sql(isolation).execute(&mut *on).await?;
        sqlx::raw_sql(settle).execute(on).await.map(drop)
    }

    async fn prepare(&self, on: &mut MySqlConnection) -> SqlResult<()> {
        match on.prepare(self.statements.release.clone()).await {
            Err(error) if number(&error) == Some(TOO_MANY_PREPARED) => Ok(()),
            prepared => prepared.map(drop),
        }
    }

    async fn is_fit(on: &mut MySqlConnection) -> SqlResult<bool> {
        sqlx::raw_sql("SELECT CAST(@@GLOBAL.read_only = 0 AS SIGNED)")
            .fetch_one(on)
            .await?
            .try_get::<i64, _>(0)
            .map(|fit| fit == 1)
    }

    async fn check_pooled(on: &mut MySqlConnection) -> SqlResult<()> {
        let row = sqlx::raw_sql("SELECT CAST(@@SESSION.autocommit AS SIGNED)").fetch_one(on).await?;
        committed(row.try_get(0)?)
    }

    async fn schemas_of(on: &mut MySqlConnection, _: &TableName) -> SqlResult<Schemas> {
        let row = sqlx::raw_sql("SELECT CAST(DATABASE() AS BINARY)").fetch_one(on).await?;
        let schema: Option<Vec<u8>> = row.try_get(0)?;
        let trusted = schema.iter().map(|schema| String::from_utf8_lossy(schema).into_owned()).collect();
        Ok(Schemas { trusted, strange: Vec::new() })
    }

    fn nowhere(_: &TableName) -> Failure {
        no_database()
    }

    const SETTINGS: &'static [(&'static str, Judge)] = diagnosis::SETTINGS;

    async fn facts(&self, on: &mut MySqlConnection) -> SqlResult<Facts> {
        diagnosis::facts(on, &self.table).await
    }

    async fn mark(&self, on: &mut MySqlConnection) -> SqlResult<Option<String>> {
        let mark = rows(on, &self.statements.mark, &[]).await?;
        // Before what fails on a view for reasons of its own.
        check_table(on, &self.quoted()).await?;
        for statement in &self.statements.rights {
            execute(on, statement, &[]).await?;
        }
        let mark: Option<Vec<u8>> = mark.first().map(|row| row.try_get(0)).transpose()?;
        Ok(mark.map(|mark| String::from_utf8_lossy(&mark).into_owned()))
    }

    async fn make(&self, on: &mut MySqlConnection) -> SqlResult<()> {
        for statement in schema(&self.table) {
            execute(on, &statement, &[]).await?;
        }
        Ok(())
    }

    fn is_missing(error: &sqlx::Error) -> bool {
        number(error) == Some(MISSING)
    }

    fn has_no_room(error: &sqlx::Error) -> bool {
        has_no_room(error)
    }

    fn classify(error: sqlx::Error, table: &TableName) -> Fault {
        classify(error, table)
    }

    async fn take(&self, on: &mut MySqlConnection, ask: &Ask, contended: bool) -> SqlResult<Taken> {
        let token = ask.token.as_bytes().as_slice();
        let mut standing = if contended { Some(self.look(on, &ask.key, token).await?) } else { None };
        // Writing first costs one statement when the lock is free; looking first disturbs nobody when it is not.
        for _ in 0..3 {
            match standing {
                Some(Standing::Held(holder)) => return Ok(Taken::Busy(Some(holder))),
                Some(Standing::Kept) => return Ok(Taken::Busy(None)),
                Some(Standing::Missing) => match self.insert(on, ask).await {
                    Err(error) if number(&error) == Some(DUPLICATE) => {}
                    other => {
                        if let Some(taken) = other? {
                            return Ok(taken);
                        }
                    }
                },
                Some(Standing::Free) | None => {
                    if let Some(taken) = self.update(on, ask).await? {
                        return Ok(taken);
                    }
                }
            }
            standing = Some(self.look(on, &ask.key, token).await?);
        }
        Ok(Taken::Busy(None))
    }

    async fn take_over(&self, on: &mut MySqlConnection, ask: &Ask, left: &Token) -> SqlResult<Taken> {
        let (key, token) = (Bytes(bytes(&ask.key)), ask.token.as_bytes());
        let (lease, holder) = (Number(micros(ask.lease)), Bytes(ask.holder.as_bytes()));
        let (ours, left) = (Bytes(token), Bytes(left.as_bytes()));
        let values = [ours, holder, ours, lease, key, ours, left];
        if let Some(taken) = granted(&execute(on, &self.statements.take_over, &values).await?) {
            return Ok(taken);
        }
        Ok(match self.look(on, &ask.key, token).await? {
            Standing::Held(holder) => Taken::Busy(Some(holder)),
            Standing::Missing | Standing::Free | Standing::Kept => Taken::Busy(None),
        })
    }

    async fn release(
        &self,
        on: &mut MySqlConnection,
        key: &Key,
        token: &Token,
    ) -> SqlResult<Option<Released>> {
        let values = [Bytes(bytes(key)), Bytes(token.as_bytes())];
        let done = execute(on, &self.statements.release, &values).await?;
        let found = done.last_insert_id();
        let released = Released { running: found & RUNNING > 0, awaited: found & AWAITED > 0 };
        Ok((done.rows_affected() == 1).then_some(released))
    }

    async fn leave_taken(
        &self,
        on: &mut MySqlConnection,
        key: &Key,
        token: &Token,
        taken_for: Duration,
    ) -> SqlResult<Option<Released>> {
        let left_behind = token.left_behind();
        let (ours, left_behind) = (Bytes(token.as_bytes()), Bytes(left_behind.as_bytes()));
        let (time, key) = (Number(micros(taken_for)), Bytes(bytes(key)));
        let values = [time, left_behind, time, left_behind, left_behind, key, ours, left_behind];
        let done = execute(on, &self.statements.leave, &values).await?;
        let awaited = done.last_insert_id() & AWAITED > 0;
        Ok((done.rows_affected() == 1).then_some(Released { running: true, awaited }))
    }

    async fn take_all(&self, on: &mut MySqlConnection, asks: &[Ask]) -> SqlResult<Vec<Option<Taken>>> {
        let mut taken = Vec::new();
        for ask in asks {
            taken.push(Some(self.take(on, ask, false).await?));
        }
        Ok(taken)
    }

    async fn release_all(
        &self,
        on: &mut MySqlConnection,
        held: &[(Key, Token)],
    ) -> SqlResult<Vec<Option<Released>>> {
        let mut released = Vec::new();
        for (key, token) in held {
            released.push(self.release(on, key, token).await?);
        }
        Ok(released)
    }

    async fn renew(&self, on: &mut MySqlConnection, leases: &[Lease]) -> SqlResult<Option<HashSet<usize>>> {
        let mut by_length: HashMap<Duration, Vec<&Lease>> = HashMap::new();
        for lease in leases {
            by_length.entry(lease.length).or_default().push(lease);
        }
        let mut extended = 0;
        for (length, mut some) in by_length {
            // A few lengths of lists, so that the server knows the statements already.
            let count = some.len().next_power_of_two();
            let first = some[0];
            some.resize(count, first);
            let values: Vec<_> = std::iter::once(Number(micros(length))).chain(listed(&some)).collect();
            extended += execute(on, &self.statements.renew(count), &values).await?.rows_affected();
        }
        if extended == leases.len() as u64 {
            return Ok(None);
        }
        // What was extended runs on; what was not has ended, or is not ours any more.
        let mut all_of_them: Vec<&Lease> = leases.iter().collect();
        let count = leases.len().next_power_of_two();
        all_of_them.resize(count, &leases[0]);
        let values: Vec<_> = listed(&all_of_them).collect();
        let rows = rows(on, &self.statements.ours(count), &values).await?;
        let tokens = rows.iter().map(|row| row.try_get::<Vec<u8>, _>(0)).collect::<SqlResult<Vec<_>>>()?;
        let is_ours = |lease: &Lease| tokens.iter().any(|token| token == lease.token.as_bytes());
        Ok(Some(leases.iter().enumerate().filter(|(_, lease)| is_ours(lease)).map(|(n, _)| n).collect()))
    }

    async fn take_share(&self, on: &mut MySqlConnection, ask: &ShareAsk) -> SqlResult<ShareTaken> {
        self.take_several(on, ask).await
    }

    async fn release_share(
        &self,
        on: &mut MySqlConnection,
        key: &Key,
        token: &Token,
        fair: bool,
    ) -> SqlResult<bool> {
        if fair { self.leave_line(on, key, token).await } else { self.release_several(on, key, token).await }
    }

    async fn look_in_line(
        &self,
        on: &mut MySqlConnection,
        key: &Key,
        token: &Token,
        place: i64,
    ) -> SqlResult<Option<LineSeen>> {
        self.see_line(on, key, token, place).await
    }

    async fn renew_shares(
        &self,
        on: &mut MySqlConnection,
        leases: &[Lease],
    ) -> SqlResult<Option<HashSet<usize>>> {
        self.renew_several(on, leases).await
    }

    async fn downgrade(
        &self,
        on: &mut MySqlConnection,
        key: &Key,
        token: &Token,
        lease: Duration,
    ) -> SqlResult<bool> {
        self.let_others_read(on, key, token, lease).await
    }

    async fn leave_share(
        &self,
        on: &mut MySqlConnection,
        key: &Key,
        token: &Token,
        taken_for: Duration,
    ) -> SqlResult<bool> {
        self.leave_several(on, key, token, taken_for).await
    }

    async fn occupancy(&self, on: &mut MySqlConnection, key: &Key) -> SqlResult<Occupancy> {
        self.all_who_hold(on, key).await
    }

    async fn resize(&self, on: &mut MySqlConnection, key: &Key, permits: u32) -> SqlResult<Resized> {
        self.resize_semaphore(on, key, permits).await
    }

    async fn read(&self, on: &mut MySqlConnection, key: &Key) -> SqlResult<Option<Holder>> {
        Ok(match self.look(on, key, &[0]).await? {
            Standing::Held(holder) => Some(*holder),
            Standing::Missing | Standing::Free | Standing::Kept => None,
        })
    }

    async fn list(&self, on: &mut MySqlConnection, after: &[u8]) -> SqlResult<Vec<(Vec<u8>, Holder)>> {
        let rows = rows(on, &self.statements.list, &[Bytes(after)]).await?;
        rows.iter().map(|row| Ok((row.try_get(0)?, holder(row, 1)?))).collect()
    }

    async fn identify(&self, on: &mut MySqlConnection, key: &Key) -> SqlResult<Option<RowIdentity>> {
        let (table, key) = (self.quoted(), literal(bytes(key)));
        let read = format!("SELECT token, fence FROM {table} WHERE `key` = {key} AND token IS NOT NULL");
        let row = sqlx::raw_sql(AssertSqlSafe(read)).fetch_optional(on).await?;
        row.map(|row| Ok(RowIdentity { token: row.try_get(0)?, fence: row.try_get(1)? })).transpose()
    }

    async fn force(
        &self,
        on: &mut MySqlConnection,
        key: &Key,
        only: Option<&RowIdentity>,
    ) -> SqlResult<bool> {
        let key = Bytes(bytes(key));
        let done = match only {
            Some(RowIdentity { token, fence }) => {
                execute(on, &self.statements.force_of, &[key, Bytes(token), Number(*fence)]).await?
            }
            None => execute(on, &self.statements.force, &[key]).await?,
        };
        Ok(done.rows_affected() == 1)
    }

    async fn prune(&self, on: &mut MySqlConnection, unused: Duration, after: &[u8]) -> SqlResult<Pruned> {
        let unused = Number(micros(unused));
        let rows = rows(on, &self.statements.old, &[Bytes(after), unused, unused, unused]).await?;
        let mut pruned = Pruned { count: 0, last: None };
        let (mut leases, mut others, mut highest) = (Vec::new(), Vec::new(), 0);
        for row in &rows {
            let key: Vec<u8> = row.try_get(0)?;
            highest = highest.max(row.try_get::<i64, _>(1)?);
            pruned.last = Some(key.clone());
            if key.first() == Some(&FENCE) { others.push(key) } else { leases.push(key) }
        }
        if rows.is_empty() {
            return Ok(pruned);
        }
        // First the mark, where the next row of any key starts: what is deleted afterwards is not above it.
        execute(on, &self.statements.keep, &[Number(highest)]).await?;
        if !leases.is_empty() {
            let count = leases.len().next_power_of_two();
            leases.resize(count, leases[0].clone());
            let values = [Number(highest), unused, unused].into_iter();
            let values: Vec<_> = values.chain(leases.iter().map(|key| Bytes(key))).collect();
            pruned.count += execute(on, &self.statements.prune(count), &values).await?.rows_affected();
        }
        for fence in others {
            pruned.count += self.prune_kept(on, &fence, highest).await?;
        }
        Ok(pruned)
    }

    async fn await_release(&self, on: &mut MySqlConnection, key: &Key) -> SqlResult<bool> {
        if execute(on, &self.statements.note, &[Bytes(bytes(key))]).await?.rows_affected() == 1 {
            return Ok(true);
        }
        Ok(matches!(self.look(on, key, &[0]).await?, Standing::Held(_) | Standing::Kept))
    }

    fn place(&self) -> String {
        session::place(self.table())
    }

    fn counts(&self) -> bool {
        self.fences
    }

    async fn keep_alive(on: &mut MySqlConnection, silence: Duration, locks_rows: bool) -> SqlResult<()> {
        session::keep_alive(on, silence, locks_rows).await
    }

    async fn ping(&self, on: &mut MySqlConnection) -> SqlResult<i64> {
        sqlx::raw_sql("SELECT CAST(CONNECTION_ID() AS SIGNED)").fetch_one(on).await?.try_get(0)
    }

    async fn cancel(&self, on: &mut MySqlConnection, session: i64) -> SqlResult<()> {
        session::kill(on, "QUERY", session).await
    }

    async fn end(&self, on: &mut MySqlConnection, session: i64) -> SqlResult<()> {
        session::kill(on, "CONNECTION", session).await
    }

    async fn queue(on: &mut MySqlConnection, name: &Name, is_row: bool) -> SqlResult<bool> {
        let (turn, limit) = (session::turn(name, is_row), TURN.as_secs());
        session::waited(on, format!("SELECT CAST(GET_LOCK('{turn}', {limit}) AS SIGNED)")).await
    }

    async fn leave(on: &mut MySqlConnection, name: &Name, is_row: bool) -> SqlResult<()> {
        let release = format!("DO RELEASE_LOCK('{}')", session::turn(name, is_row));
        sqlx::raw_sql(AssertSqlSafe(release)).execute(on).await.map(drop)
    }

    async fn lock_row(&self, on: &mut MySqlConnection, wanted: &Wanted, _: bool) -> SqlResult<(i64, Found)> {
        let name = &wanted.name;
        let statements = format!(
            "SELECT {SESSION}, `key` FROM {} WHERE `key` = X'{}' FOR UPDATE NOWAIT",
            self.quoted(),
            hex(&name.row)
        );
        let mut locked = sqlx::raw_sql(AssertSqlSafe(statements.clone())).fetch_all(&mut *on).await;
        if matches!(&locked, Err(error) if number(error) == Some(UNLOGGED)) {
            let stricter = "ROLLBACK; SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ";
            sqlx::raw_sql(stricter).execute(&mut *on).await?;
            locked = sqlx::raw_sql(AssertSqlSafe(statements)).fetch_all(&mut *on).await;
        }
        let is_there = match locked {
            Ok(rows) => match rows.last() {
                Some(row) if row.try_get::<&[u8], _>(1)? != name.row => return Err(misplaced()),
                Some(row) => return Ok((row.try_get(0)?, Found::Free(None))),
                None => false,
            },
            Err(error) if session::LOCKED.contains(&number(&error)) => true,
            Err(error @ sqlx::Error::Database(_)) => {
                sqlx::raw_sql("ROLLBACK").execute(on).await?;
                return Err(error);
            }
            Err(error) => return Err(error),
        };
        let statements = format!(
            "COMMIT; SELECT held.fence, held.holder, {SESSION}
            FROM (SELECT 1) AS one LEFT JOIN {} AS held ON held.`key` = X'{}'; COMMIT",
            self.quoted(),
            hex(&name.fence)
        );
        let rows = sqlx::raw_sql(AssertSqlSafe(statements)).fetch_all(on).await?;
        let row = rows.last().ok_or(sqlx::Error::RowNotFound)?;
        let found =
            if is_there { Found::Locked(Some(Box::new(session::holder(row)?))) } else { Found::Missing };
        Ok((row.try_get(2)?, found))
    }

    async fn make_row(&self, on: &mut MySqlConnection, name: &Name) -> SqlResult<bool> {
        // An insert would wait for a row that is there and locked.
        let there = format!("SELECT 1 FROM {} WHERE `key` = {}", self.quoted(), literal(&name.row));
        if session::one(on, there).await?.is_some() {
            return Ok(false);
        }
        // Never pruned, since that could take it from under a lock.
        // One that was made and locked since then is waited for, as briefly as these servers allow.
        let statements = format!(
            "SET @dlock_patience = @@SESSION.innodb_lock_wait_timeout; SET SESSION innodb_lock_wait_timeout = 1;
            INSERT IGNORE INTO {} (`key`, fence, expires, holder) VALUES (X'{}', 0, 9223372036854775807, X'')",
            self.quoted(),
            hex(&name.row)
        );
        let made = sqlx::raw_sql(AssertSqlSafe(statements)).execute(&mut *on).await;
        let restored =
            sqlx::raw_sql("SET SESSION innodb_lock_wait_timeout = @dlock_patience").execute(on).await;
        let made = match made {
            Ok(made) => made.rows_affected() == 1,
            Err(error) if session::LOCKED.contains(&number(&error)) => false,
            Err(error) => return Err(error),
        };
        restored.map(|_| made)
    }

    async fn count(&self, on: &mut MySqlConnection, wanted: &Wanted, session: i64) -> SqlResult<Fence> {
        let count = session::counting(&self.quoted(), wanted, &session.to_string(), self.ending());
        match counted(&sqlx::raw_sql(AssertSqlSafe(count)).execute(&mut *on).await?) {
            Some(fence) => Ok(fence),
            None => self.count_first(on, wanted, session).await,
        }
    }
}

/// Refuses a connection on which nothing would be committed.
fn committed(autocommit: i64) -> SqlResult<()> {
    if autocommit == 1 { Ok(()) } else { Err(sqlx::Error::Configuration(UNCOMMITTED.into())) }
}

/// The keys, then the tokens.
fn listed<'q>(leases: &[&'q Lease]) -> impl Iterator<Item = Value<'q>> {
    let keys = leases.iter().map(|lease| Bytes(bytes(&lease.key)));
    keys.chain(leases.iter().map(|lease| Bytes(lease.token.as_bytes())))
}
