//! What the tests of all databases stand on.

use std::future::Future;
use std::io::{BufRead, BufReader};
use std::process::{ChildStderr, Command, Stdio};
use std::time::Duration;

use dlock_core::Locks;
use dlock_rig::servers::SteppedClock;
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use sqlx::{AssertSqlSafe, Database, Pool};

/// A database of its own, and a pool of connections to it. The database is dropped with it.
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
            #[allow(dead_code)]
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

/// This test binary in another process, in the role of [`a_child_process_plays_its_role`].
pub(crate) struct Child {
    child: std::process::Child,
    lines: BufReader<ChildStderr>,
}

impl Child {
    pub(crate) fn play(role: &str, url: &str) -> Self {
        Self::start(Command::new(std::env::current_exe().unwrap()), role, url)
    }

    /// The same, in a process with a wall clock of its own.
    pub(crate) fn play_by(clock: &SteppedClock, role: &str, url: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.envs(clock.environment());
        Self::start(command, role, url)
    }

    fn start(mut command: Command, role: &str, url: &str) -> Self {
        let mut child = command
            .args(["--exact", "support::a_child_process_plays_its_role", "--nocapture", "--test-threads=1"])
            .env("DLOCK_TEST_ROLE", role)
            .env("DLOCK_TEST_URL", url)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap());
        Self { child, lines }
    }

    /// The next line that it says.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// It stands still until it is killed.
    pub(crate) fn stop(&self) {
        let stopped = Command::new("kill").args(["-STOP", &self.child.id().to_string()]).status().unwrap();
        assert!(stopped.success());
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Holds a lock until it is killed, if the environment says by what.
#[test]
fn a_child_process_plays_its_role() {
    let (Ok(role), Ok(url)) = (std::env::var("DLOCK_TEST_ROLE"), std::env::var("DLOCK_TEST_URL")) else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let held_alone = role.strip_suffix("-read").unwrap_or(&role);
        let locks = match held_alone {
            "postgres-session" => Locks::new(dlock_sql::PostgresSessions::connect(&url).await.unwrap()),
            "postgres-row" => Locks::new(dlock_sql::PostgresRowLocks::connect(&url).await.unwrap()),
            "mysql-session" => Locks::new(dlock_sql::MysqlSessions::connect(&url).await.unwrap()),
            "mysql-row" => Locks::new(dlock_sql::MysqlRowLocks::connect(&url).await.unwrap()),
            "postgres-lease" => Locks::new(dlock_sql::Postgres::connect(&url).await.unwrap()),
            "mysql-lease" => Locks::new(dlock_sql::Mysql::connect(&url).await.unwrap()),
            other => panic!("no role {other}"),
        };
        let lock = locks.lock("a").with_lease(Duration::from_secs(6));
        let lock = if held_alone == role { lock } else { lock.read() };
        let _guard = lock.acquire().await.unwrap();
        eprintln!("held");
        std::future::pending::<()>().await;
    });
}
