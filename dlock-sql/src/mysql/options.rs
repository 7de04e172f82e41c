//! Where the database is.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Error, Failure, Operation, Result};
use sqlx::MySqlPool;
use sqlx::mysql::MySqlConnectOptions;

use super::Mysql;
use super::server::MysqlRows;
use crate::rows::{Rows, Server, Settings, split};
use crate::table::TableName;

/// The parameters of a URL that are the driver's.
const PARAMETERS: &[&str] = &["ssl-mode", "ssl-ca", "ssl-cert", "ssl-key", "socket"];

/// Where the locks are: a server, and a table there.
///
/// | setting | default | meaning |
/// |---|---|---|
/// | table | `dlock` | each table has its own locks |
/// | max connections | 8 | how many connections attempts may use at a time; renewals and releases have one each besides |
/// | connect timeout | 2 s | how long one connection may take to open |
#[derive(Clone)]
#[must_use = "connect() uses the options"]
pub struct MysqlOptions {
    driver: MySqlConnectOptions,
    pool: Option<MySqlPool>,
    settings: Settings,
}

impl MysqlOptions {
    /// With the driver's options, which can do more than a URL.
    pub fn new(driver: MySqlConnectOptions) -> Self {
        Self { driver, pool: None, settings: Settings::default() }
    }

    /// With a pool, see [`Mysql::from_pool`].
    pub fn from_pool(pool: &MySqlPool) -> Self {
        Self { pool: Some(pool.clone()), ..Self::new(MySqlConnectOptions::clone(&pool.connect_options())) }
    }

    /// Reads `mysql://user:password@host:port/database`. Escape `@ / ? # :` in a password as `%40 %2F %3F %23 %3A`.
    ///
    /// | parameter | meaning |
    /// |---|---|
    /// | `table` | where it is not `dlock` |
    /// | `migrate` | `true`: [`connect`](Self::connect) makes the table where it is missing |
    /// | `max_connections` | as [`with_max_connections`](Self::with_max_connections) |
    /// | `ssl-mode` | `disabled`, `preferred` (default), `required`, `verify_ca`, `verify_identity`; only the last two prove who the server is |
    /// | `ssl-ca`, `ssl-cert`, `ssl-key` | paths of files in PEM form |
    /// | `socket` | the path of a unix socket |
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](dlock_core::ErrorKind::InvalidConfig) when it is not such a URL.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::parse(url).map_err(refuse)
    }

    fn parse(url: &str) -> Result<Self, Failure> {
        const FORM: &str = "mysql://user:password@host:port/database";
        if !["mysql://", "mariadb://"].iter().any(|scheme| url.starts_with(scheme)) {
            return Err(Failure::invalid_config(format!(
                "the URL does not begin with mysql://; write {FORM}"
            )));
        }
        let (settings, rest) = split(url, PARAMETERS, FORM)?;
        let rest = rest.replacen("mariadb://", "mysql://", 1);
        // The driver's error may repeat a part of the URL.
        let driver = rest.parse::<MySqlConnectOptions>().map_err(|_| {
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

    /// Makes the table where it is missing. Does nothing to a lock table that is there.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect), except that the table need not be there.
    ///
    /// # Cancel safety
    ///
    /// When dropped midway, an empty table may be left; call it again.
    pub async fn migrate(&self) -> Result<()> {
        self.make().await.map_err(refuse)
    }

    async fn make(&self) -> Result<(), Failure> {
        self.settings.check()?;
        let server = MysqlRows::new(self.own(), &self.settings);
        crate::rows::migrate(&*server, self.settings.connect_timeout).await
    }

    /// The options of our own connections, on which nothing is set: no statement depends on it.
    fn own(&self) -> MySqlConnectOptions {
        let own = self.driver.clone().pipes_as_concat(false).no_engine_substitution(false);
        own.timezone(None).set_names(false)
    }

    /// What locks that live as long as a connection need, whose table is made if the URL says so.
    pub(super) async fn prepare(self) -> Result<(Arc<MysqlRows>, Settings)> {
        let preparing = async {
            self.settings.check()?;
            if self.settings.makes {
                self.make().await?;
            }
            Ok((MysqlRows::new(self.own(), &self.settings), self.settings.clone()))
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
    pub async fn connect(self) -> Result<Mysql> {
        let connecting = async {
            self.settings.check()?;
            if self.settings.makes {
                self.make().await?;
            }
            let server = MysqlRows::new(self.own(), &self.settings);
            let rows = Rows::start(server, self.pool.clone(), &self.settings)?;
            rows.connections.verify().await?;
            Ok(Mysql(rows))
        };
        connecting.await.map_err(refuse)
    }
}

impl fmt::Debug for MysqlOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MysqlOptions")
            .field("settings", &self.settings)
            .field("pool", &self.pool.is_some())
            .finish_non_exhaustive()
    }
}

fn refuse(failure: Failure) -> Error {
    Error::new(Operation::Configure, failure).on(MysqlRows::NAME)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlock_core::ErrorKind;

    #[test]
    fn urls_name_a_server_a_database_and_a_table() {
        let url = "mysql://u:p%40@h:7/d?table=shop_locks&ssl-mode=verify_identity&max_connections=3";
        let options = MysqlOptions::from_url(url).unwrap();
        let driver = &options.driver;
        assert_eq!((driver.get_host(), driver.get_port(), driver.get_database()), ("h", 7, Some("d")));
        assert_eq!(
            (options.settings.table.to_string().as_str(), options.settings.max_connections),
            ("shop_locks", 3)
        );
        assert!(!format!("{options:?}").contains("p@"));
        assert!(MysqlOptions::from_url("mariadb://h").is_ok());
    }

    #[test]
    fn other_urls_are_refused_and_no_password_is_repeated() {
        for url in [
            "",
            "postgres://h",
            "mysql:h",
            "mysql://u:hunter2@h:port/d",
            "mysql://u:hunter2@h/d?ssl-mode=hunter2",
            "mysql://u:hunter2@h/d?charset=latin1",
            "mysql://u:hunter2@h/d?table=a%20b",
            "mysql://u:hunter2@h/d?max_connections=0",
        ] {
            let error = MysqlOptions::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }
}
