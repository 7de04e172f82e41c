//! What the tests of both kinds of servers stand on.

use std::future::Future;
use std::time::Duration;

use dlock_core::{Backend, Error, ErrorKind, Guard, Holder, Key, Locks, Result, Wait};
pub(crate) use dlock_rig::expect::until;
use dlock_rig::proxy::{self, Pgwire, Proxy};
use dlock_rig::servers::SteppedClock;
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_sql::{Mysql, MysqlOptions, Postgres, PostgresOptions};

/// A server, and the backend on it.
#[cfg_attr(not(feature = "tls"), allow(dead_code))]
pub(crate) trait Db: Send + Sync + Sized + 'static {
    type Backend: Backend + Clone;
    type Pool: Send + Sync;
    /// The lock's key, as a column.
    const KEY: &'static str;
    const MIGRATE: &'static str;

    fn start() -> Self;
    /// With a clock that a test can step.
    fn start_stepped() -> Self;
    /// With TLS for `localhost`, and an authority of its own.
    fn start_with_tls() -> Self;
    fn clock(&self) -> &SteppedClock;
    fn tls_url(&self) -> String;
    /// A way to the server on which single replies can be lost.
    fn proxy(&self) -> Proxy;
    fn url(&self) -> String;
    fn address(&self) -> std::net::SocketAddr;
    fn url_through(&self, address: std::net::SocketAddr) -> String;
    fn url_as(&self, user: &str, password: &str) -> String;
    fn query(&self, statements: &str) -> String;
    fn make_user(&self, user: &str, rights: &str);
    /// How many connections a user may have from now on.
    fn limit_connections(&self, user: &str, most: u32);
    fn read_only(&self, on: bool);
    /// Ends sessions that are idle for longer than a second.
    fn end_idle(&self);
    /// How many log-ins the server has refused because of the password.
    fn refused_log_ins(&self) -> usize;
    fn disconnect_all(&self) -> usize;
    fn pause(&self);
    fn resume(&self);
    fn restart(&mut self);
    fn connect(url: &str) -> impl Future<Output = Result<Self::Backend>> + Send;
    fn holders(backend: &Self::Backend) -> impl Future<Output = Result<Vec<(Key, Holder)>>> + Send;
    fn force(backend: &Self::Backend, key: &str) -> impl Future<Output = Result<bool>> + Send;
    fn prune(backend: &Self::Backend, unused: Duration) -> impl Future<Output = Result<u64>> + Send;
    fn pool(&self, connections: u32) -> Self::Pool {
        self.pool_that_takes(Duration::ZERO, connections)
    }
    /// A pool that takes this long to make a connection ready.
    fn pool_that_takes(&self, long: Duration, connections: u32) -> Self::Pool;
    fn pool_of(url: &str, connections: u32) -> Self::Pool;
    /// A backend on the table, which is there.
    fn backend_of(pool: &Self::Pool) -> impl Future<Output = Result<Self::Backend>> + Send;
    fn on_pool(pool: &Self::Pool) -> impl Future<Output = Result<Self::Backend>> + Send;
    /// Takes all connections of the pool until the result is dropped.
    fn exhaust(pool: &Self::Pool) -> impl Future<Output = Box<dyn Send>> + Send;

    /// The settings of a connection of the pool, and what else of it outlives a statement.
    fn state(pool: &Self::Pool) -> impl Future<Output = String> + Send;
    fn close_pool(pool: &Self::Pool) -> impl Future<Output = ()> + Send;
    /// Locks all rows of the table until the result is dropped.
    fn lock_rows(pool: &Self::Pool) -> impl Future<Output = Box<dyn Send>> + Send;

    /// Asks whether somebody has noted with the lock `k` that it waits.
    fn mark_of_waiters(&self) -> String {
        let mark = if Self::KEY == "key" { "awaited::int" } else { "RIGHT(holder, 8) = ' awaited'" };
        format!("SELECT {mark} FROM dlock WHERE {} = 'k'", Self::KEY)
    }

    /// A backend on the table, which is made.
    fn backend(&self) -> impl Future<Output = Self::Backend> + Send {
        async {
            let url = self.url();
            Self::connect(&format!("{url}{}", Self::MIGRATE)).await.unwrap()
        }
    }

    /// Locks that wait for 20 s.
    fn locks(&self) -> impl Future<Output = Locks> + Send {
        async { Locks::builder(self.backend().await).with_wait(Duration::from_secs(20)).build().unwrap() }
    }

    /// An hour passes for the row of a key.
    fn age(&self, key: &str) {
        let hour = 3_600_000_000_u64;
        let ended = if Self::KEY == "key" {
            format!("expires - interval '{hour} microseconds'")
        } else {
            format!("expires - {hour}")
        };
        let statement = "UPDATE dlock SET fence = fence";
        self.query(&format!("{statement} - {hour}, expires = {ended} WHERE {} = '{key}'", Self::KEY));
    }

    /// How many locks are held by what the table says.
    fn held(&self) -> usize {
        self.query("SELECT count(*) FROM dlock WHERE token IS NOT NULL").parse().unwrap()
    }
}

macro_rules! db {
    ($server:ident, $backend:ident, $pool:ty, $options:ident, $pools:ty, $key:literal, $migrate:literal, $user:expr, $limit:expr, $read_only:expr, $protocol:expr, $end_idle:literal, $refused:expr, $state:literal) => {
        impl Db for $server {
            type Backend = $backend;
            type Pool = $pool;
            const KEY: &'static str = $key;
            const MIGRATE: &'static str = $migrate;

            fn start() -> Self {
                Self::start().unwrap()
            }
            fn start_stepped() -> Self {
                Self::options().stepped_clock().start().unwrap()
            }
            fn start_with_tls() -> Self {
                Self::options().tls().start().unwrap()
            }
            fn clock(&self) -> &SteppedClock {
                (**self).clock()
            }
            fn tls_url(&self) -> String {
                Self::tls_url(self)
            }
            fn proxy(&self) -> Proxy {
                Proxy::speaking($protocol, (**self).address()).unwrap()
            }
            fn url(&self) -> String {
                Self::url(self)
            }
            fn address(&self) -> std::net::SocketAddr {
                (**self).address()
            }
            fn url_through(&self, address: std::net::SocketAddr) -> String {
                Self::url_through(self, address)
            }
            fn url_as(&self, user: &str, password: &str) -> String {
                Self::url_as(self, user, password)
            }
            fn query(&self, statements: &str) -> String {
                Self::query(self, statements)
            }
            fn make_user(&self, user: &str, rights: &str) {
                self.query(&$user(user, rights));
            }
            fn limit_connections(&self, user: &str, most: u32) {
                self.query(&$limit(user, most));
            }
            fn read_only(&self, on: bool) {
                for statement in $read_only(on) {
                    self.query(&statement);
                }
            }
            fn end_idle(&self) {
                for statement in $end_idle.split("; ") {
                    self.query(statement);
                }
            }
            fn refused_log_ins(&self) -> usize {
                $refused(self)
            }
            fn disconnect_all(&self) -> usize {
                Self::disconnect_all(self)
            }
            fn pause(&self) {
                // The server's own: PostgreSQL's children answer while only their parent is frozen.
                Self::pause(self);
            }
            fn resume(&self) {
                Self::resume(self);
            }
            fn restart(&mut self) {
                Self::restart(self).unwrap();
            }
            async fn connect(url: &str) -> Result<$backend> {
                // A busy machine takes its time to start a process for a connection, as PostgreSQL does.
                $options::from_url(url)?.with_connect_timeout(Duration::from_secs(20)).connect().await
            }
            async fn holders(backend: &$backend) -> Result<Vec<(Key, Holder)>> {
                Locks::new(backend.clone()).holders().await
            }
            async fn force(backend: &$backend, key: &str) -> Result<bool> {
                Locks::new(backend.clone()).force_release(key).await
            }
            async fn prune(backend: &$backend, unused: Duration) -> Result<u64> {
                backend.prune(unused).await
            }
            fn pool_that_takes(&self, long: Duration, connections: u32) -> $pool {
                let options = <$pools>::new().max_connections(connections).after_connect(move |_, _| {
                    Box::pin(async move {
                        tokio::time::sleep(long).await;
                        Ok(())
                    })
                });
                options.connect_lazy(&self.url()).unwrap()
            }
            fn pool_of(url: &str, connections: u32) -> $pool {
                <$pools>::new().max_connections(connections).connect_lazy(url).unwrap()
            }
            async fn backend_of(pool: &$pool) -> Result<$backend> {
                $backend::from_pool(pool).await
            }
            async fn on_pool(pool: &$pool) -> Result<$backend> {
                $options::from_pool(pool).migrate().await?;
                $backend::from_pool(pool).await
            }
            async fn exhaust(pool: &$pool) -> Box<dyn Send> {
                let mut all = Vec::new();
                for _ in 0..pool.options().get_max_connections() {
                    all.push(pool.acquire().await.unwrap());
                }
                Box::new(all)
            }
            async fn state(pool: &$pool) -> String {
                let rows = sqlx::raw_sql($state).fetch_all(pool).await.unwrap();
                let line = |row| -> String { sqlx::Row::get(row, 0) };
                rows.iter().map(line).collect::<Vec<_>>().join("\n")
            }
            async fn close_pool(pool: &$pool) {
                pool.close().await;
            }
            async fn lock_rows(pool: &$pool) -> Box<dyn Send> {
                let mut transaction = pool.begin().await.unwrap();
                sqlx::query("SELECT * FROM dlock FOR UPDATE").fetch_all(&mut *transaction).await.unwrap();
                Box::new(transaction)
            }
        }
    };
}

db!(
    PostgresServer,
    Postgres,
    sqlx::PgPool,
    PostgresOptions,
    sqlx::postgres::PgPoolOptions,
    "key",
    "&migrate=true",
    |user, rights| format!("CREATE USER {user} PASSWORD 'right'; GRANT {rights} ON dlock TO {user}"),
    |user, most| format!("ALTER ROLE {user} CONNECTION LIMIT {most}"),
    |on| [
        format!("ALTER SYSTEM SET default_transaction_read_only = {on}"),
        // Sessions learn of it a moment after the reload.
        "SELECT pg_reload_conf(), pg_sleep(0.2)".to_owned(),
    ],
    Pgwire::default(),
    "ALTER SYSTEM SET idle_session_timeout = '1s'; SELECT pg_reload_conf(), pg_sleep(0.2)",
    |server: &PostgresServer| server.output().matches("password authentication failed").count(),
    "SELECT name || ' = ' || setting FROM pg_settings \
     UNION ALL SELECT 'listens to ' || pg_listening_channels() \
     UNION ALL SELECT 'has ' || locktype FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory' \
     UNION ALL SELECT 'is ' || pg_backend_pid() ORDER BY 1"
);
db!(
    MysqlServer,
    Mysql,
    sqlx::MySqlPool,
    MysqlOptions,
    sqlx::mysql::MySqlPoolOptions,
    "`key`",
    "?migrate=true",
    |user, rights| format!(
        "CREATE USER {user}@'%' IDENTIFIED BY 'right'; GRANT {rights} ON dlock TO {user}@'%'"
    ),
    |user, most| format!("ALTER USER {user}@'%' WITH MAX_USER_CONNECTIONS {most}"),
    |on| [format!("SET GLOBAL read_only = {on}")],
    proxy::Mysql,
    "SET GLOBAL wait_timeout = 1; SET GLOBAL interactive_timeout = 1",
    |server: &MysqlServer| {
        let refused = server.query("SHOW GLOBAL STATUS LIKE 'Access_denied_errors'");
        refused.rsplit(char::is_whitespace).next().unwrap().parse().unwrap()
    },
    // Without what every statement changes.
    "SELECT CONCAT(variable_name, ' = ', variable_value) FROM information_schema.session_variables \
     WHERE variable_name NOT IN ('TIMESTAMP', 'RAND_SEED1', 'RAND_SEED2', 'LAST_INSERT_ID', 'IDENTITY', 'INSERT_ID', \
     'ERROR_COUNT', 'WARNING_COUNT', 'LAST_GTID', 'GTID_BINLOG_POS', 'GTID_CURRENT_POS') \
     UNION ALL SELECT CONCAT('is ', CONNECTION_ID()) ORDER BY 1"
);

/// Each test once for each kind of server, which it starts itself.
macro_rules! on_both_kinds {
    ($(async fn $name:ident<D: $db:ident>() $body:block)*) => {
        $(async fn $name<D: $db>() $body)*

        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name::<dlock_rig::servers::postgres::PostgresServer>().await;
            })*
        }

        mod mysql {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name::<dlock_rig::servers::mysql::MysqlServer>().await;
            })*
        }
    };
}
pub(crate) use on_both_kinds;

/// Each test once for each kind of server.
macro_rules! on_both {
    ($(async fn $name:ident<D: Db>($db:ident: $type:ty) $body:block)*) => {
        $crate::support::on_both_kinds! {
            $(async fn $name<D: Db>() {
                let $db: $type = <$type>::start();
                $body
            })*
        }
    };
}
pub(crate) use on_both;

/// The same, on servers whose clock can be stepped.
macro_rules! on_stepped {
    ($(async fn $name:ident<D: Db>($db:ident: $type:ty) $body:block)*) => {
        $crate::support::on_both_kinds! {
            $(async fn $name<D: Db>() {
                let $db: $type = <$type>::start_stepped();
                $body
            })*
        }
    };
}
pub(crate) use on_stepped;

/// A lock that is taken now.
pub(crate) async fn take(locks: &Locks, key: &str) -> Guard {
    locks.lock(key).acquire().await.unwrap_or_else(|error| panic!("{error}"))
}

/// An error of this kind whose text contains all of `parts`.
#[track_caller]
pub(crate) fn is_error<T>(result: Result<T>, kind: ErrorKind, parts: &[&str]) -> Error {
    let Err(error) = result else { panic!("no error, but {kind:?} was to come") };
    assert_eq!(error.kind(), kind, "{error}");
    for part in parts {
        assert!(error.to_string().contains(part), "{part:?} is missing in: {error}");
    }
    assert!(!error.to_string().contains("hunter2"), "a password in: {error}");
    error
}

/// Asks once.
pub(crate) fn once(locks: &Locks, key: &str) -> dlock_core::Lock {
    locks.lock(key).with_wait(Wait::No)
}
