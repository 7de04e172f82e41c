//! The conformance suite on the database servers.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dlock_core::{Backend, Result};
use dlock_sql::{Mysql, MysqlOptions, Postgres, PostgresOptions};
use dlock_testkit::conformance::{self, Arguments, Harness, Trial};
use dlock_testkit::servers::ServerError;
use dlock_testkit::servers::mysql::MysqlServer;
use dlock_testkit::servers::postgres::PostgresServer;
use sqlx::mysql::{MySqlPool, MySqlPoolOptions};
use sqlx::postgres::{PgPool, PgPoolOptions};

/// How a process of a case connects to the table of its case.
trait Way: Send + Sync + 'static {
    type Backend: Backend;

    fn connect(&self, table: &str) -> impl Future<Output = Result<Self::Backend>> + Send;
}

/// Locks on a server that all cases share, each in a table of its own.
struct OnServer<W> {
    way: Arc<W>,
    table: String,
}

impl<W: Way> Harness for OnServer<W> {
    type Backend = W::Backend;

    async fn open(&self) -> Result<W::Backend> {
        self.way.connect(&self.table).await
    }
}

struct PostgresUrl(String);
struct PostgresPool(String);
struct MysqlUrl(String);
struct MysqlPool(String);

impl Way for PostgresUrl {
    type Backend = Postgres;

    async fn connect(&self, table: &str) -> Result<Postgres> {
        Postgres::connect(&format!("{}&migrate=true&table={table}", self.0)).await
    }
}

impl Way for PostgresPool {
    type Backend = Postgres;

    async fn connect(&self, table: &str) -> Result<Postgres> {
        let pool: PgPool = PgPoolOptions::new().max_connections(3).connect_lazy(&self.0).expect("a URL");
        let options = PostgresOptions::from_pool(&pool).with_table(table)?;
        options.migrate().await?;
        options.connect().await
    }
}

impl Way for MysqlUrl {
    type Backend = Mysql;

    async fn connect(&self, table: &str) -> Result<Mysql> {
        Mysql::connect(&format!("{}?migrate=true&table={table}", self.0)).await
    }
}

impl Way for MysqlPool {
    type Backend = Mysql;

    async fn connect(&self, table: &str) -> Result<Mysql> {
        let pool: MySqlPool =
            MySqlPoolOptions::new().max_connections(3).connect_lazy(&self.0).expect("a URL");
        let options = MysqlOptions::from_pool(&pool).with_table(table)?;
        options.migrate().await?;
        options.connect().await
    }
}

fn suite<W: Way>(name: &str, way: W) -> Vec<Trial> {
    let (way, cases) = (Arc::new(way), AtomicU32::new(0));
    let prefix = name.replace('-', "_");
    conformance::tests(name, move || {
        let table = format!("{prefix}_{}", cases.fetch_add(1, Ordering::Relaxed));
        OnServer { way: Arc::clone(&way), table }
    })
}

fn main() -> std::result::Result<(), ServerError> {
    let arguments = Arguments::from_args();
    let postgres = PostgresServer::options().setting("max_connections", "500").start()?;
    let mysql = MysqlServer::options().setting("max-connections", "500").start()?;
    let mut tests = suite("postgres", PostgresUrl(postgres.url()));
    tests.extend(suite("postgres-pool", PostgresPool(postgres.url())));
    tests.extend(suite("mysql", MysqlUrl(mysql.url())));
    tests.extend(suite("mysql-pool", MysqlPool(mysql.url())));
    let conclusion = conformance::run(&arguments, tests);
    // `exit` would leave the servers behind.
    drop((postgres, mysql));
    conclusion.exit()
}
