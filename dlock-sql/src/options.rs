//! The place of the locks of a database server.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Error, Failure, Operation, Result};
use sqlx::Pool;

use crate::address;
use crate::connector::{Connector, Password, Refused, Room};
use crate::driver::{Driver, DriverOptions};
use crate::settings::{Settings, split};
use crate::table::TableName;

/// The place of the locks: a server, and a table there. See [`PostgresOptions`](crate::PostgresOptions) and
/// [`MysqlOptions`](crate::MysqlOptions).
///
/// | setting | default | meaning |
/// |---|---|---|
/// | table | `dlock` | each table has its own locks |
/// | max connections | 8 | how many connections attempts may use at a time; renewals and waiting have some of their own, and releases as many at the most |
/// | connect timeout | 2 s | how long one connection may take to open |
/// | fences | yes | whether sessions and locked rows have fences, which cost a write for each lock |
/// | password | the driver's | a function that is asked for it at each connect |
/// | notifications (PostgreSQL) | yes | whether waiters are notified of releases (`LISTEN`); else they ask every 10 to 250 ms |
#[must_use = "connect() uses the options"]
pub struct ServerOptions<S: Driver> {
    driver: DriverOptions<S>,
    pub(crate) pool: Option<Pool<S::Database>>,
    password: Option<Password>,
    pub(crate) settings: Settings,
}

impl<S: Driver> ServerOptions<S> {
    /// Creates options from the driver's, which can do more than a URL.
    pub fn new(driver: DriverOptions<S>) -> Self {
        Self { driver, pool: None, password: None, settings: Settings::default() }
    }

    /// Creates options with a pool, see [`LeaseRows::from_pool`](crate::LeaseRows::from_pool).
    pub fn from_pool(pool: &Pool<S::Database>) -> Self {
        Self { pool: Some(pool.clone()), ..Self::new(DriverOptions::<S>::clone(&pool.connect_options())) }
    }

    /// Reads `postgres://user:password@host:port/database` or `mysql://user:password@host:port/database`. Escape `@ / ?
    /// # :` in a password as `%40 %2F %3F %23 %3A`.
    ///
    /// | parameter | meaning |
    /// |---|---|
    /// | `table` | where it is not `dlock`; `schema.table` is possible |
    /// | `migrate` | `true`: [`connect`](Self::connect) makes the table where it is missing |
    /// | `max_connections` | as [`with_max_connections`](Self::with_max_connections) |
    /// | `fences` | `false`: as [`with_fences`](Self::with_fences) |
    ///
    /// | of PostgreSQL | |
    /// |---|---|
    /// | `sslmode` | `disable`, `allow`, `prefer` (default), `require`, `verify-ca`, `verify-full`. **Only the last two prove who the server is**: with the default, a program that answers in the server's place gets the password in clear |
    /// | `sslrootcert`, `sslcert`, `sslkey` | paths of files in PEM form |
    /// | `host` | the directory of a unix socket, for example |
    /// | `hostaddr`, `port`, `dbname`, `user`, `password`, `application_name`, `options` | as in libpq |
    ///
    /// Parts that the URL leaves out are taken from libpq's environment variables (`PGHOST`, ...) and password file.
    ///
    /// | of MariaDB and MySQL | |
    /// |---|---|
    /// | `ssl-mode` | `disabled`, `preferred` (default), `required`, `verify_ca`, `verify_identity`; only the last two prove who the server is |
    /// | `ssl-ca`, `ssl-cert`, `ssl-key` | paths of files in PEM form |
    /// | `socket` | the path of a unix socket |
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](dlock_core::ErrorKind::InvalidConfig) when it is not such a URL.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::parse(url).map_err(Self::refused)
    }

    fn parse(url: &str) -> Result<Self, Failure> {
        let form = format!("{}user:password@host:port/database", S::SCHEMES[0]);
        let Some(place) = S::SCHEMES.iter().find_map(|scheme| url.strip_prefix(scheme)) else {
            return Err(Failure::invalid_config(format!(
                "the URL does not begin with {}; write {form}",
                S::SCHEMES[0]
            )));
        };
        let (settings, rest) = split(&format!("{}{place}", S::SCHEMES[0]), S::PARAMETERS, &form)?;
        let (rest, host) = address::for_driver(&rest, S::PARAMETERS.contains(&"host"))?;
        // The driver's error may repeat a part of the URL.
        let driver = rest.parse().map_err(|_| {
            Failure::invalid_config(format!(
                "the URL cannot be read, or one of its parameters has a wrong value; write {form}"
            ))
        })?;
        settings.check()?;
        let driver = host.iter().fold(driver, |driver, host| S::with_host(driver, host));
        Ok(Self { settings, ..Self::new(driver) })
    }

    /// Sets another table. Default `dlock`; `schema.table` is possible. Without a schema it is the only table of that
    /// name in the database, whatever the search path, and several are refused. Outside the search path only tables
    /// count of users whose rights this user has, of superusers and of the owner of the database; a table of another
    /// user is refused where there is no other table. `migrate` makes it in the first schema of the search path that it
    /// may, the user's own last. Names have 1 to 63 ASCII letters, digits and underscores, and do not start with a
    /// digit.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](dlock_core::ErrorKind::InvalidConfig) when the name is not allowed.
    pub fn with_table(mut self, name: &str) -> Result<Self> {
        self.settings.table = TableName::qualified(name).map_err(Self::refused)?;
        Ok(self)
    }

    /// Sets how many connections attempts may use at a time: of the runtime that locks, and as many of dlock's own
    /// thread for releases and callers from elsewhere. Default 8; 1 to 1000. With a pool its own limit counts.
    pub const fn with_max_connections(mut self, count: u32) -> Self {
        self.settings.max_connections = count;
        self
    }

    /// Sets whether grants have fences. Default yes; without, for locks by sessions and by locked rows only, an acquire
    /// writes nothing. Without fences the resource cannot distinguish a holder that was overtaken, whose connection
    /// ended without its knowledge, from the next holder; the holder of a lock is not shown; and on MariaDB and MySQL,
    /// and for names on PostgreSQL, [`Locks::holders`](dlock_core::Locks::holders) does not list the lock. Use it for
    /// all programs that lock in a table, or for none.
    pub const fn with_fences(mut self, on: bool) -> Self {
        self.settings.fences = on;
        self
    }

    /// Sets how long one connection may take to open. Default 2 s; 1 ms to 60 s.
    pub const fn with_connect_timeout(mut self, limit: Duration) -> Self {
        self.settings.connect_timeout = limit;
        self
    }

    /// Sets a function that is asked for the password each time a connection of dlock's own is opened, within the
    /// connect timeout: for tokens that rotate. It runs on dlock's own thread, or on the runtime of who takes a lock,
    /// and must not block either. With a pool, the pool's options of the moment count already; see
    /// [`Pool::set_connect_options`].
    ///
    /// ```no_run
    /// # async fn token() -> Result<String, std::io::Error> { Ok(String::new()) }
    /// use dlock_sql::PostgresOptions;
    ///
    /// # fn example() -> dlock_core::Result<()> {
    /// let options = PostgresOptions::from_url("postgres://app@db.internal/shop")?;
    /// let options = options.with_password_from(|| async { token().await });
    /// # Ok(()) }
    /// ```
    pub fn with_password_from<F, A, E>(mut self, ask: F) -> Self
    where
        F: Fn() -> A + Send + Sync + 'static,
        A: Future<Output = Result<String, E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.password = Some(Arc::new(move || {
            let asking = ask();
            Box::pin(async move { asking.await.map_err(Into::into) })
        }));
        self
    }

    pub(crate) fn connector(&self) -> Arc<Connector<S>> {
        let limit = self.settings.connect_timeout;
        Arc::new(Connector {
            driver: self.driver.clone(),
            pool: self.pool.clone(),
            password: self.password.clone(),
            table: self.settings.table.clone(),
            // A pool may take its time to make a new connection ready.
            limit: self.pool.as_ref().map_or(limit, |pool| limit.max(pool.options().get_acquire_timeout())),
            refused: Refused::default(),
            room: Room::default(),
        })
    }

    pub(crate) fn refused(failure: Failure) -> Error {
        Error::new(Operation::Configure, failure).on(S::NAME)
    }
}

impl<S: Driver> Clone for ServerOptions<S> {
    fn clone(&self) -> Self {
        let Self { driver, pool, password, settings } = self;
        let (driver, pool, password) = (driver.clone(), pool.clone(), password.clone());
        Self { driver, pool, password, settings: settings.clone() }
    }
}

impl<S: Driver> fmt::Debug for ServerOptions<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The driver's options contain a password.
        f.debug_struct("ServerOptions")
            .field("server", &S::NAME)
            .field("settings", &self.settings)
            .field("pool", &self.pool.is_some())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlock_core::ErrorKind;

    fn read<S: Driver>(url: &str) -> Result<ServerOptions<S>> {
        ServerOptions::from_url(url)
    }

    /// Returns the address of rows with a lease; what it says of the schema is asked of the server.
    fn address<S: Driver>(url: &str) -> String {
        let options = read::<S>(url).unwrap();
        format!("{}/{}", S::address(&options.driver), options.settings.table)
    }

    fn reads<S: Driver>(tls: &str, wrong_tls: &str) {
        let scheme = S::SCHEMES[0];
        let url = format!("{scheme}u:hunter2%40@h:7/d?table=s.locks&{tls}&max_connections=3");
        assert_eq!(address::<S>(&url), format!("{scheme}h:7/d/s.locks"));
        let options = read::<S>(&url).unwrap();
        assert_eq!(options.settings.max_connections, 3);
        assert!(!format!("{options:?}").contains("hunter2"));
        assert!(read::<S>(&format!("{}h", S::SCHEMES[1])).is_ok());
        for url in ["", "other://h", scheme.trim_end_matches("//")] {
            assert_eq!(read::<S>(url).unwrap_err().kind(), ErrorKind::InvalidConfig, "{url}");
        }
        for part in [
            "h:port/d",
            "h/d?table=a%20b",
            "h/d?max_connections=0",
            &format!("h/d?{wrong_tls}"),
            "h/d?sslmod=require",
        ] {
            let url = format!("{scheme}u:hunter2@{part}");
            let error = read::<S>(&url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }

    fn keeps_a_password<S: Driver>() {
        let dividers = (' '..='~').chain("\n\0ä🔒".chars()).map(String::from);
        for divider in dividers.chain(["1/".into(), "@h/".into()]) {
            for after in ["@h:7/d", "@h/d?table=t", "@h?migrate=true"] {
                let url = format!("{}u:Xq7Vz{divider}Wk9Jp{after}", S::SCHEMES[0]);
                let text = match read::<S>(&url) {
                    Ok(options) => {
                        let address = S::address(&options.driver);
                        assert!(address.starts_with(&format!("{}h:", S::SCHEMES[0])), "{url}: {address}");
                        format!("{options:?} {address}")
                    }
                    Err(error) => format!("{error} {error:?}"),
                };
                assert!(!text.contains("Xq7Vz") && !text.contains("k9Jp"), "{url}: {text}");
            }
        }
    }

    fn has_one_address<S: Driver>(other_way: &str) {
        let scheme = S::SCHEMES[0];
        let one = address::<S>(&format!("{scheme}u:hunter2@h/d"));
        assert!(!one.contains("hunter2"));
        for url in [other_way, &format!("{scheme}u@h/d?max_connections=3")] {
            assert_eq!(address::<S>(url), one, "{url}");
        }
        let v6 = ["[::1]/d", "u@[0:0:0:0:0:0:0:1]/d", "[::0001]/d"];
        for of in v6 {
            assert_eq!(address::<S>(&format!("{scheme}{of}")), address::<S>(&format!("{scheme}{}", v6[0])));
        }
        let others = ["h:7/d", "i/d", "h/e", "h/d?table=other", v6[0], "[::2]/d", "[fe80::1%25eth0]/d"];
        let mut all: Vec<_> = others.iter().map(|of| address::<S>(&format!("{scheme}{of}"))).collect();
        all.push(one);
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count, "{all:#?}");
    }

    #[cfg(feature = "postgres")]
    mod postgres {
        type Postgres = crate::postgres::PostgresServer;

        #[test]
        fn urls_name_a_server_a_database_and_a_table() {
            super::reads::<Postgres>("sslmode=verify-full", "sslmode=hunter2");
        }

        #[test]
        fn a_password_of_any_characters_is_read_whole_or_refused_without_being_repeated() {
            super::keeps_a_password::<Postgres>();
        }

        #[test]
        fn a_database_has_one_address_however_it_is_written() {
            super::has_one_address::<Postgres>("postgresql://H:5432/d?sslmode=require");
            let of_param = "postgres://u@/d?hostaddr=0:0::1&port=5432";
            assert_eq!(
                super::address::<Postgres>(of_param),
                super::address::<Postgres>("postgres://[::1]/d")
            );
        }

        #[test]
        fn a_database_that_is_not_named_is_that_of_the_user() {
            let of = |user: &str| super::address::<Postgres>(&format!("postgres://{user}@h"));
            assert_ne!(of("one"), of("other"));
            assert_eq!(of("one"), super::address::<Postgres>("postgres://other@h/one"));
        }
    }

    #[cfg(feature = "mysql")]
    mod mysql {
        type Mysql = crate::mysql::MysqlServer;

        #[test]
        fn urls_name_a_server_a_database_and_a_table() {
            super::reads::<Mysql>("ssl-mode=verify_identity", "ssl-mode=hunter2");
            super::read::<Mysql>("mysql://u@h/d?charset=latin1").unwrap_err();
        }

        #[test]
        fn a_password_of_any_characters_is_read_whole_or_refused_without_being_repeated() {
            super::keeps_a_password::<Mysql>();
        }

        #[test]
        fn a_database_has_one_address_however_it_is_written() {
            super::has_one_address::<Mysql>("mariadb://H:3306/d");
        }
    }
}
