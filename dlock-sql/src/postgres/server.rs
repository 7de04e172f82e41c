//! A PostgreSQL server, and its lock table.

use std::sync::Arc;

use dlock_core::backend::notify::Channels;
use dlock_core::{Failure, Key};
use sqlx::postgres::{PgConnectOptions, PgRow};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Postgres, Row, SqlStr};

use super::diagnosis;
use super::failure::{OUTDATED, UNPREPARED, classify, has_no_room, is_made_twice, is_missing, no_table};
use super::listen::Listening;
use super::names::Names;
use super::statements::{HOME, PostgresStatements, schema};
use super::table::{check_table, schemas_of};
use super::values::{self, Value};
use crate::address;
use crate::connector::Connector;
use crate::driver::Driver;
use crate::failure::{Fault, READ_ONLY};
use crate::findings::{Facts, Judge};
use crate::protocol::{Schemas, SqlResult};
use crate::releases::{Releases, announced_channel, channel};
use crate::server::Server;
use crate::settings::Settings;
use crate::table::TableName;
use crate::text::number;

/// Asks whether the server can be written to. The transaction of a locked row keeps the setting that it began with.
const IS_FIT: &str = "SELECT current_setting('transaction_read_only') = 'off'
    AND current_setting('default_transaction_read_only') = 'off'";

/// Asks [`IS_FIT`], and makes the server notice that the client is gone: a statement that waits there for a lock on the
/// table or a row would keep its session otherwise, and more and more of them the server from all others. The setting
/// does no harm to the next client to which a proxy lends the connection. It is made only where the server can notice,
/// since it is an error elsewhere: on Linux, and from version 15 on where it has kqueue.
const SETTLE: &str = "SELECT current_setting('transaction_read_only') = 'off'
        AND current_setting('default_transaction_read_only') = 'off',
    (SELECT set_config('client_connection_check_interval', '1s', false)
        WHERE current_setting('client_connection_check_interval', true) = '0' AND (version() ~* 'linux'
            OR version() ~* 'darwin|bsd' AND current_setting('server_version_num')::integer >= 150000))";

/// Lease rows in a table of a PostgreSQL server.
#[derive(Debug)]
pub struct PostgresServer {
    table: TableName,
    pub(super) statements: PostgresStatements,
    pub(super) releases: Option<Releases>,
    /// Is `true` if values are part of the statements, so that each is one message and prepares nothing.
    simple: bool,
    /// The count of connections that know statements by name. They do not where statements are simple, and not behind a
    /// pooler that lends another one for each message.
    pub(super) names: Names,
    /// Is `true` if grants of sessions and locked rows are counted.
    pub(super) fences: bool,
}

impl PostgresServer {
    /// Returns the rows of a statement that was run to its end.
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

    async fn create(&self, on: &mut PgConnection) -> SqlResult<()> {
        // Whatever is set there, each statement sees what was made before it.
        let mut transaction = on.begin_with("BEGIN ISOLATION LEVEL READ COMMITTED").await?;
        let mut table = self.table.clone();
        if table.schema().is_none() {
            // No process whose search path leads elsewhere makes another table at this moment.
            let number = number("dlock table ".bytes().chain(table.name().bytes())).cast_signed();
            let lock = format!("SET LOCAL lock_timeout = '5s'; SELECT pg_advisory_xact_lock({number})");
            sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut *transaction).await?;
            // Looked for only with the lock: a table that another process was making is there by now, and nothing is
            // made.
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

    /// Returns the channel on which releases of `key` are published.
    pub(crate) fn channel(&self, key: &Key) -> String {
        channel(&self.table, key)
    }
}

impl Driver for PostgresServer {
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

    fn own(options: &PgConnectOptions) -> PgConnectOptions {
        // A proxy that pools connections refuses parameters it does not know.
        let own = options.clone().extra_float_digits(None);
        // The driver does not take the brackets off an address of IPv6.
        let own = match address::bare(options.get_host()) {
            Some(host) => own.host(host),
            None => own,
        };
        if own.get_application_name().is_some() { own } else { own.application_name("dlock") }
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

    async fn settle(on: &mut PgConnection) -> SqlResult<()> {
        let settled = sqlx::raw_sql(SETTLE).fetch_one(on).await?;
        if settled.try_get(0)? { Ok(()) } else { Err(sqlx::Error::Configuration(READ_ONLY.into())) }
    }

    async fn is_fit(on: &mut PgConnection) -> SqlResult<bool> {
        sqlx::raw_sql(IS_FIT).fetch_one(on).await?.try_get(0)
    }

    async fn check_pooled(_: &mut PgConnection) -> SqlResult<()> {
        // Whatever is set there, a statement is a transaction by itself, and the table is named with its schema.
        Ok(())
    }

    fn has_no_room(error: &sqlx::Error) -> bool {
        has_no_room(error)
    }

    fn is_outdated(error: &sqlx::Error) -> bool {
        let code = error.as_database_error().and_then(|error| error.code());
        matches!(code.as_deref(), Some(UNPREPARED | OUTDATED))
    }

    fn classify(error: sqlx::Error, table: &TableName) -> Fault {
        classify(error, table)
    }
}

impl Server for PostgresServer {
    const QUOTE: char = '"';
    const SETTINGS: &'static [(&'static str, Judge)] = diagnosis::SETTINGS;

    fn on_table(table: &TableName, connector: &Arc<Connector<Self>>, settings: &Settings) -> Self {
        let releases = settings
            .notified
            .then(|| Releases::new(Channels::new(Listening(Arc::clone(connector))), table.clone()));
        let Settings { simple, fences, .. } = *settings;
        let (statements, names) = (PostgresStatements::of(table), Names::new(simple));
        Self { table: table.clone(), statements, releases, simple, names, fences }
    }

    fn table(&self) -> &TableName {
        &self.table
    }

    async fn schemas_of(on: &mut PgConnection, table: &TableName) -> SqlResult<Schemas> {
        schemas_of(on, table).await
    }

    fn nowhere(table: &TableName) -> Failure {
        no_table(table)
    }

    fn is_missing(error: &sqlx::Error) -> bool {
        is_missing(error)
    }

    async fn mark(&self, on: &mut PgConnection) -> SqlResult<Option<String>> {
        // The order decides which failure is reported: no such table, a table that is unfit, too few rights.
        let mark = self.all(on, &self.statements.mark, &[]).await?;
        // Before the statements that fail on a view for reasons of their own.
        check_table(on, &self.table).await?;
        // A right that is missing is found now, and not at the first lock.
        for statement in &self.statements.rights {
            self.all(on, statement, &[]).await?;
        }
        mark.first().map(|row| row.try_get(0)).transpose()
    }

    async fn make(&self, on: &mut PgConnection) -> SqlResult<()> {
        // Of the processes that make it at one moment one succeeds in each round, and the others find its table then.
        let mut tries = 5;
        loop {
            match self.create(on).await {
                // Another process makes the table too.
                Err(error) if tries > 0 && is_made_twice(&error) => tries -= 1,
                other => return other,
            }
        }
    }

    async fn prepare(&self, on: &mut PgConnection) -> SqlResult<()> {
        if self.simple {
            return Ok(());
        }
        // The release alone: it is to be written by one poll, for a caller that may not poll again.
        on.prepare(self.statements.release.clone()).await.map(drop)
    }

    async fn facts(&self, on: &mut PgConnection) -> SqlResult<Facts> {
        diagnosis::facts(on, &self.table).await
    }

    async fn ping(&self, on: &mut PgConnection) -> SqlResult<i64> {
        // Not prepared: a ping is to work on a connection of which nothing else is known.
        sqlx::raw_sql("SELECT pg_backend_pid()::bigint").fetch_one(on).await?.try_get(0)
    }

    async fn announce(&self, on: &mut PgConnection, key: &Key) -> SqlResult<()> {
        // The name of the channel is of letters, digits and underscores, and needs no quotes.
        let statement = format!("NOTIFY {}", announced_channel(&self.table, key));
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(on).await.map(drop)
    }

    fn releases(&self) -> Option<&Releases> {
        self.releases.as_ref()
    }
}
