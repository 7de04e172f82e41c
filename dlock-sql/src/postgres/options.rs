//! Where the database is.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Error, Failure, Operation, Result};
use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;

use super::Postgres;
use super::server::PostgresRows;
use crate::rows::{Rows, Server, Settings, split};
use crate::table::TableName;

/// The parameters of a URL that are the driver's.
const PARAMETERS: &[&str] = &[
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
];

/// Where the locks are: a server, and a table there.
///
/// | setting | default | meaning |
/// |---|---|---|
/// | table | `dlock` | each table has its own locks |
/// | max connections | 8 | how many connections attempts may use at a time; renewals, releases and waiting have one each besides |
/// | connect timeout | 2 s | how long one connection may take to open |
/// | notifications | yes | whether waiters are told of releases (`LISTEN`); else they ask every 10 to 250 ms |
#[derive(Clone)]
#[must_use = "connect() uses the options"]
pub struct PostgresOptions {
    driver: PgConnectOptions,
    pool: Option<PgPool>,
    settings: Settings,
    notified: bool,
}

impl PostgresOptions {
    /// With the driver's options, which can do more than a URL.
    pub fn new(driver: PgConnectOptions) -> Self {
        Self { driver, pool: None, settings: Settings::default(), notified: true }
    }

    /// With a pool, see [`Postgres::from_pool`].
    pub fn from_pool(pool: &PgPool) -> Self {
        Self { pool: Some(pool.clone()), ..Self::new(PgConnectOptions::clone(&pool.connect_options())) }
    }

    /// Reads `postgres://user:password@host:port/database`. Escape `@ / ? # :` in a password as `%40 %2F %3F %23 %3A`.
    ///
    /// | parameter | meaning |
    /// |---|---|
    /// | `table` | where it is not `dlock` |
    /// | `migrate` | `true`: [`connect`](Self::connect) makes the table where it is missing |
    /// | `max_connections` | as [`with_max_connections`](Self::with_max_connections) |
    /// | `sslmode` | `disable`, `allow`, `prefer` (default), `require`, `verify-ca`, `verify-full`; only the last two prove who the server is |
    /// | `sslrootcert`, `sslcert`, `sslkey` | paths of files in PEM form |
    /// | `host` | the directory of a unix socket, for example |
    /// | `hostaddr`, `port`, `dbname`, `user`, `password`, `application_name`, `options` | as in libpq |
    ///
    /// What the URL leaves out is taken from libpq's environment variables (`PGHOST`, ...) and password file.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](dlock_core::ErrorKind::InvalidConfig) when it is not such a URL.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::parse(url).map_err(refuse)
    }

    fn parse(url: &str) -> Result<Self, Failure> {
        const FORM: &str = "postgres://user:password@host:port/database";
        if !["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme)) {
            return Err(Failure::invalid_config(format!(
                "the URL does not begin with postgres://; write {FORM}"
            )));
        }
        let (settings, rest) = split(url, PARAMETERS, FORM)?;
        // The driver's error may repeat a part of the URL.
        let driver = rest.parse::<PgConnectOptions>().map_err(|_| {
            Failure::invalid_config(format!(
                "the URL cannot be read, or one of its parameters has a wrong value; write {FORM}"
            ))
        })?;
        settings.check()?;
        Ok(Self { settings, ..Self::new(driver) })
    }

    /// Another table, in a schema of the search path. Default `dlock`; 1 to 63 ASCII letters, digits and underscores, not
    /// starting with a digit.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](dlock_core::ErrorKind::InvalidConfig) when the name is not allowed.
    pub fn with_table(mut self, name: &str) -> Result<Self> {
        self.settings.table = TableName::new(name).map_err(refuse)?;
        Ok(self)
    }

    /// How many connections attempts may use at a time. Default 8; 1 to 1000. With a pool its own limit counts.
    pub const fn with_max_connections(mut self, count: u32) -> Self {
        self.settings.max_connections = count;
        self
    }

    /// How long one connection may take to open. Default 2 s; 1 ms to 60 s.
    pub const fn with_connect_timeout(mut self, limit: Duration) -> Self {
        self.settings.connect_timeout = limit;
        self
    }

    /// Whether waiters are told of releases, over one connection for all of them. Default yes; a proxy that pools
    /// transactions does not pass on notifications, and without them asking more often is better.
    pub const fn with_notifications(mut self, on: bool) -> Self {
        self.notified = on;
        self
    }

    /// Makes the table where it is missing. Does nothing to a lock table that is there.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect), except that the table need not be there.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: the table is made or not.
    pub async fn migrate(&self) -> Result<()> {
        self.make().await.map_err(refuse)
    }

    async fn make(&self) -> Result<(), Failure> {
        self.settings.check()?;
        let server = PostgresRows::new(self.own(), &self.settings, false);
        crate::rows::migrate(&*server, self.settings.connect_timeout).await
    }

    /// The options of our own connections. A proxy that pools connections refuses parameters it does not know.
    fn own(&self) -> PgConnectOptions {
        let own = self.driver.clone().extra_float_digits(None);
        if own.get_application_name().is_some() { own } else { own.application_name("dlock") }
    }

    /// What locks that live as long as a connection need, whose table is made if the URL says so.
    pub(super) async fn prepare(self) -> Result<(Arc<PostgresRows>, Settings)> {
        let preparing = async {
            self.settings.check()?;
            if self.settings.makes {
                self.make().await?;
            }
            Ok((PostgresRows::new(self.own(), &self.settings, false), self.settings.clone()))
        };
        preparing.await.map_err(refuse)
    }

    /// Connects, and checks the table and the rights. Makes nothing, unless the URL has `migrate=true`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](dlock_core::ErrorKind::InvalidConfig) when a setting is out of its bounds, the database or the
    /// table is missing, the table is no lock table of this version, or TLS is not possible as wanted;
    /// [`ErrorKind::Denied`](dlock_core::ErrorKind::Denied) for a wrong password or missing rights;
    /// [`ErrorKind::Unavailable`](dlock_core::ErrorKind::Unavailable) when no server answers, or it can only be read. No error
    /// contains a password.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn connect(self) -> Result<Postgres> {
        let connecting = async {
            self.settings.check()?;
            if self.settings.makes {
                self.make().await?;
            }
            let server = PostgresRows::new(self.own(), &self.settings, self.notified);
            let rows = Rows::start(server, self.pool.clone(), &self.settings)?;
            rows.connections.verify().await?;
            Ok(Postgres { rows, notified: self.notified })
        };
        connecting.await.map_err(refuse)
    }
}

impl fmt::Debug for PostgresOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresOptions")
            .field("settings", &self.settings)
            .field("pool", &self.pool.is_some())
            .field("notified", &self.notified)
            .finish_non_exhaustive()
    }
}

fn refuse(failure: Failure) -> Error {
    Error::new(Operation::Configure, failure).on(PostgresRows::NAME)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlock_core::ErrorKind;

    #[test]
    fn urls_name_a_server_a_database_and_a_table() {
        let url = "postgres://u:p%40@h:7/d?table=shop_locks&sslmode=verify-full&max_connections=3";
        let options = PostgresOptions::from_url(url).unwrap();
        let driver = &options.driver;
        assert_eq!((driver.get_host(), driver.get_port(), driver.get_database()), ("h", 7, Some("d")));
        assert_eq!(
            (options.settings.table.to_string().as_str(), options.settings.max_connections),
            ("shop_locks", 3)
        );
        assert!(!format!("{options:?}").contains("p@"));
        assert!(PostgresOptions::from_url("postgresql://h").is_ok());
    }

    #[test]
    fn other_urls_are_refused_and_no_password_is_repeated() {
        for url in [
            "",
            "mysql://h",
            "postgres:h",
            "postgres://u:hunter2@h:port/d",
            "postgres://u:hunter2@h/d?sslmode=hunter2",
            "postgres://u:hunter2@h/d?sslmod=require",
            "postgres://u:hunter2@h/d?table=a%20b",
            "postgres://u:hunter2@h/d?max_connections=0",
        ] {
            let error = PostgresOptions::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }
}
