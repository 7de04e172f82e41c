//! What the tests of all databases stand on.

use std::future::Future;
use std::time::Duration;

use dlock_testkit::servers::mysql::MysqlServer;
use dlock_testkit::servers::postgres::PostgresServer;
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use sqlx::{AssertSqlSafe, Database, Pool};

/// A database of its own, and a pool of connections to it. The database goes away with it.
pub(crate) struct Db<D: Database, S> {
    pub(crate) pool: Pool<D>,
    pub(crate) server: S,
}

macro_rules! db {
    ($database:ty, $server:ty) => {
        impl Db<$database, $server> {
            /// Runs statements.
            pub(crate) async fn run(&self, statements: &str) {
                let statements = AssertSqlSafe(statements.to_owned());
                sqlx::raw_sql(statements).execute(&self.pool).await.unwrap();
            }

            /// The one number that a statement gives.
            pub(crate) async fn number(&self, statement: &str) -> i64 {
                sqlx::query_scalar(AssertSqlSafe(statement.to_owned())).fetch_one(&self.pool).await.unwrap()
            }
        }
    };
}
db!(sqlx::Postgres, PostgresServer);
db!(sqlx::MySql, MysqlServer);
db!(sqlx::Sqlite, tempfile::TempDir);

#[allow(clippy::unused_async)]
pub(crate) async fn postgres() -> Db<sqlx::Postgres, PostgresServer> {
    let server = PostgresServer::start().unwrap();
    let pool = PgPoolOptions::new().max_connections(16).connect_lazy(&server.url()).unwrap();
    Db { pool, server }
}

#[allow(clippy::unused_async)]
pub(crate) async fn mysql() -> Db<sqlx::MySql, MysqlServer> {
    let server = MysqlServer::start().unwrap();
    let pool = MySqlPoolOptions::new().max_connections(16).connect_lazy(&server.url()).unwrap();
    Db { pool, server }
}

pub(crate) async fn sqlite() -> Db<sqlx::Sqlite, tempfile::TempDir> {
    let server = tempfile::tempdir().unwrap();
    let options = SqliteConnectOptions::new()
        .filename(server.path().join("shop.db"))
        .create_if_missing(true)
        .busy_timeout(Duration::from_secs(20))
        .journal_mode(SqliteJournalMode::Wal);
    let pool = SqlitePoolOptions::new().max_connections(16).connect_with(options).await.unwrap();
    Db { pool, server }
}

/// Each test once for each of these databases, with `D` as the name of the driver.
macro_rules! on_each {
    ([$($module:ident $database:ident),*] $tests:tt) => {
        $(crate::support::on_each!(@one $module $database $tests);)*
    };
    (@one $module:ident $database:ident { $($(#[$doc:meta])* async fn $name:ident($db:ident) $body:block)* }) => {
        mod $module {
            #[allow(unused_imports)]
            use super::*;
            type D = sqlx::$database;

            $($(#[$doc])* #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let $db = crate::support::$module().await;
                $body
            })*
        }
    };
}
pub(crate) use on_each;

/// Whether `future` is still waiting after a moment in which it could have been answered many times.
pub(crate) async fn is_waiting<F: Future + Unpin>(future: &mut F) -> bool {
    tokio::time::timeout(Duration::from_millis(300), future).await.is_err()
}
