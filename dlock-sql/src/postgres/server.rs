//! Lease rows in PostgreSQL.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::Occupancy;
use dlock_core::backend::notify::{Channels, Listener};
use dlock_core::{Failure, Fence, Holder, Key, Token};
use sqlx::postgres::{PgConnectOptions, PgRow};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Postgres, Row, SqlStr};

pub(super) use super::answers::{bytes, holder};
use super::answers::{placed, released, taken};
use super::diagnosis;
use super::failure::{OUTDATED, UNPREPARED, classify, has_no_room, is_made_twice, is_missing, no_table};
use super::listen::Listening;
use super::session;
use super::statements::{HOME, PostgresStatements, schema};
use super::table::{check_table, schemas_of};
use super::values::{self, Value};
use crate::address;
use crate::connector::Connector;
use crate::diagnosis::{Facts, Judge};
use crate::failure::READ_ONLY;
use crate::rows::turn_channel;
use crate::rows::{LineSeen, Resized, ShareAsk, ShareTaken};
use crate::server::{Ask, Fault, Lease, Pruned, Released, RowIdentity, Schemas, Server, SqlResult, Taken};
use crate::session::{Found, Name, Wanted};
use crate::settings::Settings;
use crate::table::TableName;
use crate::text::{micros, number, sql, unhex};

/// Whether it can be written. The transaction of a locked row keeps the setting that it began with.
const IS_FIT: &str = "SELECT current_setting('transaction_read_only') = 'off'
    AND current_setting('default_transaction_read_only') = 'off'";

/// [`IS_FIT`], and makes the server notice that the client is gone: what waits there for a lock on the table or a row
/// would keep its session otherwise, and more and more of them the server from all others. The setting does nobody harm
/// to whom a proxy lends the connection next; it is made only where the server can notice, since it is an error
/// elsewhere: on Linux, and from version 15 on where it has kqueue.
const SETTLE: &str = "SELECT current_setting('transaction_read_only') = 'off'
        AND current_setting('default_transaction_read_only') = 'off',
    (SELECT set_config('client_connection_check_interval', '1s', false)
        WHERE current_setting('client_connection_check_interval', true) = '0' AND (version() ~* 'linux'
            OR version() ~* 'darwin|bsd' AND current_setting('server_version_num')::integer >= 150000))";

/// Lease rows in a table of a PostgreSQL server.
#[derive(Debug)]
pub struct PostgresServer {
    table: TableName,
    statements: PostgresStatements,
    releases: Option<Channels>,
    /// Values are part of the statements, so that each is one message and prepares nothing.
    simple: bool,
    /// Whether grants of sessions and locked rows are counted.
    fences: bool,
}

impl PostgresServer {
    pub(super) fn statements(&self) -> &PostgresStatements {
        &self.statements
    }

    /// The rows of a statement that was run to its end.
    pub(super) async fn all(
        &self,
        on: &mut PgConnection,
        statement: &SqlStr,
        values: &[Value<'_>],
    ) -> SqlResult<Vec<PgRow>> {
        if self.simple {
            let statement = values::written_into(statement.as_str(), values);
            return sqlx::raw_sql(AssertSqlSafe(statement)).fetch_all(on).await;
        }
        values
            .iter()
            .fold(sqlx::query(statement.clone()), |query, value| value.bind(query))
            .fetch_all(on)
            .await
    }

    /// What an attempt comes to, by this statement, whose last value is `last`.
    async fn attempt(
        &self,
        on: &mut PgConnection,
        statement: &SqlStr,
        ask: &Ask,
        last: Value<'_>,
    ) -> SqlResult<Taken> {
        let (key, token) = (Value::Bytes(bytes(&ask.key)), Value::Bytes(ask.token.as_bytes()));
        let (lease, holder) = (Value::Number(micros(ask.lease)), Value::Text(&ask.holder));
        let rows = self.all(on, statement, &[key, token, lease, holder, last]).await?;
        rows.first().map_or(Ok(Taken::Busy(None)), |row| taken(row, 0))
    }

    async fn create(&self, on: &mut PgConnection) -> SqlResult<()> {
        // Whatever is set there, each statement sees what was made before it.
        let mut transaction = on.begin_with("BEGIN ISOLATION LEVEL READ COMMITTED").await?;
        let mut table = self.table.clone();
        if table.schema().is_none() {
            // Nobody whose search path leads elsewhere makes another one at this moment.
            let number = number("dlock table ".bytes().chain(table.name().bytes())).cast_signed();
            let lock = format!("SET LOCAL lock_timeout = '5s'; SELECT pg_advisory_xact_lock({number})");
            sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut *transaction).await?;
            let Schemas { trusted, strange } = Self::schemas_of(&mut transaction, &table).await?;
            if !trusted.is_empty() || !strange.is_empty() {
                return transaction.rollback().await;
            }
            let home = sqlx::raw_sql(HOME).fetch_optional(&mut *transaction).await?;
            table = home.map(|row| row.try_get(0)).transpose()?.into_iter().fold(table, TableName::within);
        }
        for statement in schema(&table) {
            // Not prepared: behind a pooler, another process may have prepared one on this connection.
            sqlx::raw_sql(statement).execute(&mut *transaction).await?;
        }
        transaction.commit().await
    }

    /// The channel on which releases of `key` are published.
    pub(crate) fn channel(&self, key: &Key) -> String {
        let name = self.table.name();
        format!("dlock_{:016x}", number(name.bytes().chain([0]).chain(key.as_str().bytes())))
    }
}

impl Server for PostgresServer {
    type Database = Postgres;

    const NAME: &'static str = "postgres";
    const SCHEMES: &'static [&'static str] = &["postgres://", "postgresql://"];
    const PARAMETERS: &'static [&'static str] = &[
        "sslmode",
        "sslrootcert",
        "sslcert",
        "sslkey",
        "host",
        "hostaddr",
        "port",
        "dbname",
        "user",
        "password",
        "application_name",
        "options",
        "statements",
    ];
    const QUOTE: char = '"';
    const POLLING: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));
    const RENEWED_AT_ONCE: usize = 500;
    const TOGETHER: usize = 64;
    const DIGEST: usize = 8;

    fn own(options: &PgConnectOptions) -> PgConnectOptions {
        // A proxy that pools connections refuses parameters it does not know.
        let own = options.clone().extra_float_digits(None);
        if own.get_application_name().is_some() { own } else { own.application_name("dlock") }
    }

    fn host(options: &PgConnectOptions) -> Option<&str> {
        address::bare(options.get_host())
    }

    fn with_host(options: PgConnectOptions, host: &str) -> PgConnectOptions {
        options.host(host)
    }

    fn with_password(options: PgConnectOptions, password: &str) -> PgConnectOptions {
        options.password(password)
    }

    fn address(to: &PgConnectOptions) -> String {
        let host = to.get_socket();
        let host = host.map_or_else(|| address::shown(to.get_host()), |path| path.display().to_string());
        // Without a database the server takes the one of the user's name.
        let database = to.get_database().unwrap_or_else(|| to.get_username());
        format!("postgres://{host}:{}/{database}", to.get_port())
    }

    fn on_table(table: &TableName, connector: &Arc<Connector<Self>>, settings: &Settings) -> Self {
        let releases = settings.notified.then(|| Channels::new(Listening(Arc::clone(connector))));
        let Settings { simple, fences, .. } = *settings;
        Self { table: table.clone(), statements: PostgresStatements::of(table), releases, simple, fences }
    }

    fn table(&self) -> &TableName {
        &self.table
    }

    async fn settle(on: &mut PgConnection) -> SqlResult<()> {
        let settled = sqlx::raw_sql(SETTLE).fetch_one(on).await?;
        if settled.try_get(0)? { Ok(()) } else { Err(sqlx::Error::Configuration(READ_ONLY.into())) }
    }

    async fn prepare(&self, on: &mut PgConnection) -> SqlResult<()> {
        if self.simple {
            return Ok(());
        }
        on.prepare(self.statements.release.clone()).await.map(drop)
    }

    async fn is_fit(on: &mut PgConnection) -> SqlResult<bool> {
        sqlx::raw_sql(IS_FIT).fetch_one(on).await?.try_get(0)
    }

    async fn check_pooled(_: &mut PgConnection) -> SqlResult<()> {
        // Whatever is set there, a statement is a transaction by itself, and the table is named with its schema.
        Ok(())
    }

    async fn schemas_of(on: &mut PgConnection, table: &TableName) -> SqlResult<Schemas> {
        schemas_of(on, table).await
    }

    fn nowhere(table: &TableName) -> Failure {
        no_table(table)
    }

    const SETTINGS: &'static [(&'static str, Judge)] = diagnosis::SETTINGS;

    async fn facts(&self, on: &mut PgConnection) -> SqlResult<Facts> {
        diagnosis::facts(on, &self.table).await
    }

    async fn mark(&self, on: &mut PgConnection) -> SqlResult<Option<String>> {
        let mark = self.all(on, &self.statements.mark, &[]).await?;
        // Before what fails on a view for reasons of its own.
        check_table(on, &self.table).await?;
        for statement in &self.statements.rights {
            self.all(on, statement, &[]).await?;
        }
        mark.first().map(|row| row.try_get(0)).transpose()
    }

    async fn make(&self, on: &mut PgConnection) -> SqlResult<()> {
        let mut tries = 5;
        loop {
            match self.create(on).await {
                // Another process makes the table too.
                Err(error) if tries > 0 && is_made_twice(&error) => tries -= 1,
                other => return other,
            }
        }
    }

    fn is_outdated(error: &sqlx::Error) -> bool {
        let code = error.as_database_error().and_then(|error| error.code());
        matches!(code.as_deref(), Some(UNPREPARED | OUTDATED))
    }

    fn is_missing(error: &sqlx::Error) -> bool {
        is_missing(error)
    }

    fn has_no_room(error: &sqlx::Error) -> bool {
        has_no_room(error)
    }

    fn classify(error: sqlx::Error, table: &TableName) -> Fault {
        classify(error, table)
    }

    async fn take(&self, on: &mut PgConnection, ask: &Ask, _: bool) -> SqlResult<Taken> {
        self.attempt(on, &self.statements.take, ask, Value::Number(i64::from(ask.fences))).await
    }

    async fn take_over(&self, on: &mut PgConnection, ask: &Ask, left: &Token) -> SqlResult<Taken> {
        self.attempt(on, &self.statements.take_over, ask, Value::Bytes(left.as_bytes())).await
    }

    async fn release(&self, on: &mut PgConnection, key: &Key, token: &Token) -> SqlResult<Option<Released>> {
        let channel = self.channel(key);
        let values = [Value::Bytes(bytes(key)), Value::Bytes(token.as_bytes()), Value::Text(&channel)];
        let rows = self.all(on, &self.statements.release, &values).await?;
        rows.first().map(|row| released(row, 0)).transpose()
    }

    async fn leave_taken(
        &self,
        on: &mut PgConnection,
        key: &Key,
        token: &Token,
        taken_for: Duration,
    ) -> SqlResult<Option<Released>> {
        let (channel, left_behind) = (self.channel(key), token.left_behind());
        let values = [
            Value::Bytes(bytes(key)),
            Value::Bytes(token.as_bytes()),
            Value::Text(&channel),
            Value::Bytes(left_behind.as_bytes()),
            Value::Number(micros(taken_for)),
        ];
        let rows = self.all(on, &self.statements.leave, &values).await?;
        rows.first().map(|row| released(row, 0)).transpose()
    }

    async fn take_all(&self, on: &mut PgConnection, asks: &[Ask]) -> SqlResult<Vec<Option<Taken>>> {
        if let [one] = asks {
            return Ok(vec![Some(self.take(on, one, false).await?)]);
        }
        let values = [
            Value::ManyBytes(asks.iter().map(|ask| bytes(&ask.key)).collect()),
            Value::ManyBytes(asks.iter().map(|ask| ask.token.as_bytes().as_slice()).collect()),
            Value::Numbers(asks.iter().map(|ask| micros(ask.lease)).collect()),
            Value::Texts(asks.iter().map(|ask| &*ask.holder).collect()),
            Value::Numbers(asks.iter().map(|ask| i64::from(ask.fences)).collect()),
        ];
        let rows = self.all(on, &self.statements.take_all, &values).await?;
        placed(&rows, asks.len(), |row| taken(row, 1))
    }

    async fn release_all(
        &self,
        on: &mut PgConnection,
        held: &[(Key, Token)],
    ) -> SqlResult<Vec<Option<Released>>> {
        if let [(key, token)] = held {
            return Ok(vec![self.release(on, key, token).await?]);
        }
        let channels: Vec<String> = held.iter().map(|(key, _)| self.channel(key)).collect();
        let values = [
            Value::ManyBytes(held.iter().map(|(key, _)| bytes(key)).collect()),
            Value::ManyBytes(held.iter().map(|(_, token)| token.as_bytes().as_slice()).collect()),
            Value::Texts(channels.iter().map(|channel| &**channel).collect()),
        ];
        let rows = self.all(on, &self.statements.release_all, &values).await?;
        placed(&rows, held.len(), |row| released(row, 1))
    }

    async fn renew(&self, on: &mut PgConnection, leases: &[Lease]) -> SqlResult<Option<HashSet<usize>>> {
        let values = [
            Value::ManyBytes(leases.iter().map(|lease| bytes(&lease.key)).collect()),
            Value::ManyBytes(leases.iter().map(|lease| lease.token.as_bytes().as_slice()).collect()),
            Value::Numbers(leases.iter().map(|lease| micros(lease.length)).collect()),
        ];
        let rows = self.all(on, &self.statements.renew, &values).await?;
        if rows.len() == leases.len() {
            return Ok(None);
        }
        let places = rows.iter().map(|row| row.try_get::<i64, _>(0)).collect::<SqlResult<Vec<_>>>()?;
        Ok(Some(places.into_iter().filter_map(|place| usize::try_from(place - 1).ok()).collect()))
    }

    async fn take_share(&self, on: &mut PgConnection, ask: &ShareAsk) -> SqlResult<ShareTaken> {
        self.take_several(on, ask).await
    }

    async fn release_share(
        &self,
        on: &mut PgConnection,
        key: &Key,
        token: &Token,
        fair: bool,
    ) -> SqlResult<bool> {
        if fair { self.leave_line(on, key, token).await } else { self.release_several(on, key, token).await }
    }

    async fn look_in_line(
        &self,
        on: &mut PgConnection,
        key: &Key,
        token: &Token,
        place: i64,
    ) -> SqlResult<Option<LineSeen>> {
        self.see_line(on, key, token, place).await
    }

    async fn renew_shares(
        &self,
        on: &mut PgConnection,
        leases: &[Lease],
    ) -> SqlResult<Option<HashSet<usize>>> {
        self.renew_several(on, leases).await
    }

    async fn downgrade(
        &self,
        on: &mut PgConnection,
        key: &Key,
        token: &Token,
        lease: Duration,
    ) -> SqlResult<bool> {
        self.let_others_read(on, key, token, lease).await
    }

    async fn leave_share(
        &self,
        on: &mut PgConnection,
        key: &Key,
        token: &Token,
        taken_for: Duration,
    ) -> SqlResult<bool> {
        self.leave_several(on, key, token, taken_for).await
    }

    async fn occupancy(&self, on: &mut PgConnection, key: &Key) -> SqlResult<Occupancy> {
        self.all_who_hold(on, key).await
    }

    async fn resize(&self, on: &mut PgConnection, key: &Key, permits: u32) -> SqlResult<Resized> {
        self.resize_semaphore(on, key, permits).await
    }

    async fn read(&self, on: &mut PgConnection, key: &Key) -> SqlResult<Option<Holder>> {
        let rows = self.all(on, &self.statements.read, &[Value::Bytes(bytes(key))]).await?;
        rows.first().map(|row| holder(row, 0)).transpose()
    }

    async fn list(&self, on: &mut PgConnection, after: &[u8]) -> SqlResult<Vec<(Vec<u8>, Holder)>> {
        let rows = self.all(on, &self.statements.list, &[Value::Bytes(after)]).await?;
        rows.iter().map(|row| Ok((unhex(row.try_get(0)?), holder(row, 1)?))).collect()
    }

    async fn identify(&self, on: &mut PgConnection, key: &Key) -> SqlResult<Option<RowIdentity>> {
        let (table, key) = (self.quoted(), Value::Bytes(bytes(key)).literal());
        let read = format!(
            "SELECT encode(token, 'hex'), fence FROM {table} WHERE key = {key} AND token IS NOT NULL"
        );
        let row = sqlx::raw_sql(AssertSqlSafe(read)).fetch_optional(on).await?;
        row.map(|row| Ok(RowIdentity { token: unhex(row.try_get(0)?), fence: row.try_get(1)? })).transpose()
    }

    async fn force(&self, on: &mut PgConnection, key: &Key, only: Option<&RowIdentity>) -> SqlResult<bool> {
        let channel = self.channel(key);
        let mut values = vec![Value::Bytes(bytes(key)), Value::Text(&channel)];
        let statement = match only {
            Some(RowIdentity { token, fence }) => {
                values.extend([Value::Bytes(token), Value::Number(*fence)]);
                &self.statements.force_of
            }
            None => &self.statements.force,
        };
        Ok(!self.all(on, statement, &values).await?.is_empty())
    }

    async fn prune(&self, on: &mut PgConnection, unused: Duration, after: &[u8]) -> SqlResult<Pruned> {
        let values = [Value::Number(micros(unused)), Value::Bytes(after)];
        let rows = self.all(on, &self.statements.prune, &values).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        Ok(Pruned {
            count: row.try_get::<i64, _>(0)?.unsigned_abs(),
            last: row.try_get::<Option<&str>, _>(1)?.map(unhex),
        })
    }

    fn place(&self) -> String {
        session::place(self.table())
    }

    fn counts(&self) -> bool {
        self.fences
    }

    async fn keep_alive(on: &mut PgConnection, silence: Duration, _: bool) -> SqlResult<()> {
        let settle = session::SETTLE.replace("$1", &format!("'{}ms'", silence.as_millis()));
        sqlx::raw_sql(AssertSqlSafe(settle)).execute(on).await.map(drop)
    }

    async fn ping(&self, on: &mut PgConnection) -> SqlResult<i64> {
        sqlx::raw_sql("SELECT pg_backend_pid()::bigint").fetch_one(on).await?.try_get(0)
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
        session::waited(on, &format!("pg_advisory_lock({})", session::turn(name, is_row))).await
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
            let found =
                if is_there { Found::Locked(Some(Box::new(session::holder(seen)?))) } else { Found::Missing };
            sqlx::raw_sql("ROLLBACK").execute(on).await?;
            return Ok((session, found));
        }
        let counted = step("counted").map_or(Ok(None), |row| session::fence(row, 0))?;
        let is_last =
            seen.try_get::<Option<bool>, _>(4)? == Some(true) && counted == session::fence(seen, 0)?;
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
        let row = sqlx::query(AssertSqlSafe(session::counting(&self.quoted(), ours)))
            .bind(&wanted.name.fence)
            .bind(session)
            .bind(&wanted.holder)
            .fetch_all(on)
            .await?;
        session::fence(row.first().ok_or(sqlx::Error::RowNotFound)?, 0)?.ok_or(sqlx::Error::RowNotFound)
    }

    fn tells(&self) -> bool {
        self.releases.is_some()
    }

    fn listen(&self, key: &Key) -> Result<Option<Listener>, Failure> {
        self.releases.as_ref().map(|releases| releases.listen(&self.channel(key))).transpose()
    }

    fn listen_turn(&self, token: &Token) -> Result<Option<Listener>, Failure> {
        self.releases.as_ref().map(|releases| releases.listen(&turn_channel(token))).transpose()
    }

    fn join(&self, key: &Key) -> Option<Listener> {
        self.releases.as_ref()?.join(&self.channel(key))
    }

    async fn await_release(&self, on: &mut PgConnection, key: &Key) -> SqlResult<bool> {
        let rows = self.all(on, &self.statements.await_release, &[Value::Bytes(bytes(key))]).await?;
        rows.first().map_or(Ok(false), |row| row.try_get(0))
    }

    fn close(&self) {
        if let Some(releases) = &self.releases {
            releases.close();
        }
    }
}
