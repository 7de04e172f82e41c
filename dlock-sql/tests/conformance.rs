//! The conformance suite on the database servers.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Backend, Result, keeper};
use dlock_rig::servers::ServerError;
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_sql::{
    Mysql, MysqlOptions, MysqlRowLocks, MysqlSessions, Postgres, PostgresOptions, PostgresRowLocks,
    PostgresSessions,
};
use dlock_testkit::conformance::{self, Arguments, Harness, Trial};
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use tokio::runtime::Handle;

/// How each process of a case connects, with this URL.
trait Way: Send + Sync + 'static {
    type Backend: Backend;
    /// The cases that need what it cannot do.
    const LEFT_OUT: &'static [&'static [&'static str]] = &[conformance::WAITERS];

    /// How many locks a process can hold at once.
    const AT_ONCE: usize = 300;

    fn connect(url: &str) -> impl Future<Output = Result<Self::Backend>> + Send;
}

/// Locks on a server that all cases share; their keys are different.
struct OnServer<W> {
    url: Arc<str>,
    way: std::marker::PhantomData<W>,
}

impl<W: Way> Harness for OnServer<W> {
    type Backend = W::Backend;

    async fn open(&self) -> Result<W::Backend> {
        W::connect(&self.url).await
    }

    fn lease(&self) -> Duration {
        Duration::from_millis(1_800)
    }

    fn limit(&self) -> Duration {
        Duration::from_secs(240)
    }

    fn at_once(&self) -> usize {
        W::AT_ONCE
    }

    fn left_out(&self) -> &'static [&'static [&'static str]] {
        W::LEFT_OUT
    }
}

struct PostgresUrl;
struct PostgresPool;
struct PostgresSession;
struct PostgresRow;
struct MysqlUrl;
struct MysqlPool;
struct MysqlSession;
struct MysqlRow;

impl Way for PostgresUrl {
    type Backend = Postgres;

    async fn connect(url: &str) -> Result<Postgres> {
        Postgres::connect(url).await
    }
}

/// sqlx makes a pool in a runtime only.
fn made_in_a_runtime<T>(make: impl FnOnce() -> T) -> T {
    let _entered = Handle::try_current().is_err().then(|| keeper::runtime().expect("a thread").enter());
    make()
}

impl Way for PostgresPool {
    type Backend = Postgres;

    async fn connect(url: &str) -> Result<Postgres> {
        let pool =
            made_in_a_runtime(|| PgPoolOptions::new().max_connections(8).connect_lazy(url)).expect("a URL");
        Postgres::from_pool(&pool).await
    }
}

impl Way for MysqlUrl {
    type Backend = Mysql;

    async fn connect(url: &str) -> Result<Mysql> {
        Mysql::connect(url).await
    }
}

impl Way for MysqlPool {
    type Backend = Mysql;

    async fn connect(url: &str) -> Result<Mysql> {
        let pool = made_in_a_runtime(|| MySqlPoolOptions::new().max_connections(8).connect_lazy(url))
            .expect("a URL");
        Mysql::from_pool(&pool).await
    }
}

/// How many rows one process of a case locks at a time.
const LOCKED_AT_ONCE: u32 = 120;

impl Way for PostgresSession {
    type Backend = PostgresSessions;
    const LEFT_OUT: &'static [&'static [&'static str]] = &[
        conformance::LEASES,
        conformance::WAITERS,
        conformance::STORED_SHARES,
        conformance::PERMITS,
        conformance::FAIRNESS,
        conformance::LEAVING,
        conformance::CARRYING,
        conformance::SESSIONS,
        conformance::CARRYING_SHARES,
    ];

    async fn connect(url: &str) -> Result<PostgresSessions> {
        PostgresSessions::connect(url).await
    }
}

impl Way for MysqlSession {
    type Backend = MysqlSessions;
    const LEFT_OUT: &'static [&'static [&'static str]] = &[
        conformance::LEASES,
        conformance::WAITERS,
        conformance::SHARING,
        conformance::DOWNGRADING,
        conformance::PERMITS,
        conformance::FAIRNESS,
        conformance::LEAVING,
        conformance::CARRYING,
        conformance::SESSIONS,
        conformance::CARRYING_SHARES,
    ];

    async fn connect(url: &str) -> Result<MysqlSessions> {
        MysqlSessions::connect(url).await
    }
}

impl Way for PostgresRow {
    type Backend = PostgresRowLocks;
    const LEFT_OUT: &'static [&'static [&'static str]] = &[
        conformance::LEASES,
        conformance::WAITERS,
        conformance::DOWNGRADING,
        conformance::STORED_SHARES,
        conformance::PERMITS,
        conformance::FAIRNESS,
        conformance::LEAVING,
        conformance::CARRYING,
        conformance::SESSIONS,
        conformance::CARRYING_SHARES,
    ];
    const AT_ONCE: usize = 110;

    async fn connect(url: &str) -> Result<PostgresRowLocks> {
        let options = PostgresOptions::from_url(url)?.with_max_connections(LOCKED_AT_ONCE);
        PostgresRowLocks::with_options(options).await
    }
}

impl Way for MysqlRow {
    type Backend = MysqlRowLocks;
    const LEFT_OUT: &'static [&'static [&'static str]] = &[
        conformance::LEASES,
        conformance::WAITERS,
        conformance::DOWNGRADING,
        conformance::STORED_SHARES,
        conformance::PERMITS,
        conformance::FAIRNESS,
        conformance::LEAVING,
        conformance::CARRYING,
        conformance::SESSIONS,
        conformance::CARRYING_SHARES,
    ];
    const AT_ONCE: usize = 110;

    async fn connect(url: &str) -> Result<MysqlRowLocks> {
        let options = MysqlOptions::from_url(url)?.with_max_connections(LOCKED_AT_ONCE);
        MysqlRowLocks::with_options(options).await
    }
}

fn suite<W: Way>(name: &str, _: W, url: String) -> Vec<Trial> {
    let url = Arc::<str>::from(url);
    conformance::tests(name, move || OnServer::<W> { url: Arc::clone(&url), way: std::marker::PhantomData })
}

#[tokio::main(flavor = "current_thread")]
async fn migrate(postgres: &str, mysql: &str) -> Result<()> {
    PostgresOptions::from_url(postgres)?.migrate().await?;
    MysqlOptions::from_url(mysql)?.migrate().await
}

fn main() -> std::result::Result<(), ServerError> {
    let arguments = Arguments::from_args();
    let postgres = PostgresServer::options().setting("max_connections", "500").start()?;
    let mysql = MysqlServer::options().setting("max-connections", "500").start()?;
    migrate(&postgres.url(), &mysql.url()).unwrap_or_else(|error| panic!("{error}"));
    let mut tests = suite("postgres", PostgresUrl, postgres.url());
    tests.extend(suite("postgres-pool", PostgresPool, postgres.url()));
    tests.extend(suite("postgres-session", PostgresSession, postgres.url()));
    tests.extend(suite("postgres-row", PostgresRow, postgres.url()));
    tests.extend(suite("mysql", MysqlUrl, mysql.url()));
    tests.extend(suite("mysql-pool", MysqlPool, mysql.url()));
    tests.extend(suite("mysql-session", MysqlSession, mysql.url()));
    tests.extend(suite("mysql-row", MysqlRow, mysql.url()));
    // So many rows are not locked at once, since each needs a connection.
    tests.retain(|test| !test.name().ends_with("-row::generated_keys_are_all_different_locks"));
    let conclusion = conformance::run(&arguments, tests);
    // `exit` would leave the servers behind.
    drop((postgres, mysql));
    conclusion.exit()
}
