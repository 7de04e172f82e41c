//! A MariaDB or MySQL server, and its lock table.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use dlock_core::Failure;
use sqlx::mysql::MySqlConnectOptions;
use sqlx::{Executor, MySql, MySqlConnection, Row};

use super::diagnosis;
use super::failure::{TOO_FEW_RIGHTS, UNCOMMITTED, classify, has_no_room, no_database, number};
use super::statements::{MysqlStatements, schema};
use super::table::{check_table, current, enter_again};
use super::values::{TOO_MANY_PREPARED, execute, rows};
use crate::address;
use crate::connector::Connector;
use crate::driver::Driver;
use crate::failure::Fault;
use crate::findings::{Facts, Judge};
use crate::protocol::{Schemas, SqlResult};
use crate::server::Server;
use crate::settings::Settings;
use crate::table::TableName;

/// The error of a table that is not there.
const MISSING: u16 = 1146;

/// Lease rows in a table of a MariaDB or MySQL server.
#[derive(Debug)]
pub struct MysqlServer {
    table: TableName,
    pub(super) statements: MysqlStatements,
    /// Is `true` if grants of sessions and locked rows are counted.
    pub(super) fences: bool,
    /// Set once the server was seen to write a log of statements.
    logs_statements: AtomicBool,
    /// Is `true` if a session writes no log of statements, once that was asked.
    pub(super) writes_rows: OnceLock<bool>,
    /// The number of grants that were asked for.
    pub(super) asked: AtomicU64,
}

impl MysqlServer {
    /// Returns `true` if the server was seen to write a log of statements.
    pub(super) fn is_logged_by_statement(&self) -> bool {
        self.logs_statements.load(Ordering::Relaxed)
    }

    pub(super) fn note_log_of_statements(&self) {
        self.logs_statements.store(true, Ordering::Relaxed);
    }
}

impl Driver for MysqlServer {
    type Database = MySql;
    const NAME: &'static str = "mysql";
    const SCHEMES: &'static [&'static str] = &["mysql://", "mariadb://"];
    const PARAMETERS: &'static [&'static str] = &["ssl-mode", "ssl-ca", "ssl-cert", "ssl-key", "socket"];

    fn own(options: &MySqlConnectOptions) -> MySqlConnectOptions {
        let own = options.clone().pipes_as_concat(false).no_engine_substitution(false);
        let own = own.timezone(None).set_names(false);
        // The driver does not take the brackets off an address of IPv6.
        match address::bare(options.get_host()) {
            Some(host) => own.host(host),
            None => own,
        }
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

    async fn settle(on: &mut MySqlConnection) -> SqlResult<()> {
        // Without autocommit nothing would ever be committed, and where statements are logged, InnoDB writes nothing in
        // a weaker isolation; the others change what statements answer, or which are refused. A statement that waits
        // for a row does not notice that its client is gone, and would keep its session for 50 s.
        let settle = "SET NAMES utf8mb4, SESSION autocommit = 1, SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', \
                      SESSION sql_select_limit = DEFAULT, SESSION sql_safe_updates = 0, SESSION sql_big_selects = 1, \
                      SESSION completion_type = 0, SESSION innodb_lock_wait_timeout = 2";
        // A message of its own, by which a proxy such as ProxySQL knows what it is to set on another connection.
        let isolation = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ";
        sqlx::raw_sql(isolation).execute(&mut *on).await?;
        sqlx::raw_sql(settle).execute(on).await.map(drop)
    }

    async fn is_fit(on: &mut MySqlConnection) -> SqlResult<bool> {
        // `super_read_only` sets `read_only` too, so that the one covers both.
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

    fn has_no_room(error: &sqlx::Error) -> bool {
        has_no_room(error)
    }

    fn is_of_old_rights(error: &sqlx::Error) -> bool {
        number(error).is_some_and(|number| TOO_FEW_RIGHTS.contains(&number))
    }

    async fn look_up_rights(on: &mut MySqlConnection) -> SqlResult<()> {
        enter_again(on).await
    }

    fn classify(error: sqlx::Error, table: &TableName) -> Fault {
        classify(error, table)
    }
}

impl Server for MysqlServer {
    const QUOTE: char = '`';
    const SETTINGS: &'static [(&'static str, Judge)] = diagnosis::SETTINGS;

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

    async fn schemas_of(on: &mut MySqlConnection, _: &TableName) -> SqlResult<Schemas> {
        Ok(Schemas { trusted: current(on).await?.into_iter().collect(), strange: Vec::new() })
    }

    fn nowhere(_: &TableName) -> Failure {
        no_database()
    }

    fn is_missing(error: &sqlx::Error) -> bool {
        number(error) == Some(MISSING)
    }

    async fn mark(&self, on: &mut MySqlConnection) -> SqlResult<Option<String>> {
        let mark = rows(on, &self.statements.mark, &[]).await?;
        // Before the statements that fail on a view for reasons of their own.
        check_table(on, &self.quoted()).await?;
        for statement in &self.statements.rights {
            execute(on, statement, &[]).await?;
        }
        // As bytes, since the column is binary, and another program may have put something into it that is no text.
        let mark: Option<Vec<u8>> = mark.first().map(|row| row.try_get(0)).transpose()?;
        Ok(mark.map(|mark| String::from_utf8_lossy(&mark).into_owned()))
    }

    async fn make(&self, on: &mut MySqlConnection) -> SqlResult<()> {
        // Each statement commits by itself: the server has no transaction around changes of tables. A process that
        // comes in between makes the rest.
        for statement in schema(&self.table) {
            execute(on, &statement, &[]).await?;
        }
        Ok(())
    }

    async fn prepare(&self, on: &mut MySqlConnection) -> SqlResult<()> {
        match on.prepare(self.statements.release.clone()).await {
            // Other programs may have used up the limit; statements are then written out when they are needed.
            Err(error) if number(&error) == Some(TOO_MANY_PREPARED) => Ok(()),
            prepared => prepared.map(drop),
        }
    }

    async fn facts(&self, on: &mut MySqlConnection) -> SqlResult<Facts> {
        diagnosis::facts(on, &self.table).await
    }

    async fn ping(&self, on: &mut MySqlConnection) -> SqlResult<i64> {
        sqlx::raw_sql("SELECT CAST(CONNECTION_ID() AS SIGNED)").fetch_one(on).await?.try_get(0)
    }
}

/// Refuses a connection on which nothing would be committed.
pub(super) fn committed(autocommit: i64) -> SqlResult<()> {
    if autocommit == 1 { Ok(()) } else { Err(sqlx::Error::Configuration(UNCOMMITTED.into())) }
}
