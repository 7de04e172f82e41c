//! Where the locks of a database server are.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::within;
use dlock_core::{Error, Failure, Operation, Result, keeper};
use sqlx::Pool;

use crate::address;
use crate::connector::{Connector, Password, Refused, Room, end};
use crate::failure::unchanged;
use crate::lease_rows::LeaseRows;
use crate::rows::{Connections, MARK, QUESTION, Rows, gone};
use crate::server::{Conn, DriverOptions, Server};
use crate::settings::{Settings, split};
use crate::table::TableName;

/// Where the locks are: a server, and a table there. See [`PostgresOptions`](crate::PostgresOptions) and
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
pub struct ServerOptions<S: Server> {
    driver: DriverOptions<S>,
    pool: Option<Pool<S::Database>>,
    password: Option<Password>,
    pub(crate) settings: Settings,
}

impl<S: Server> ServerOptions<S> {
    /// Creates options from the driver's, which can do more than a URL.
    pub fn new(driver: DriverOptions<S>) -> Self {
        Self { driver, pool: None, password: None, settings: Settings::default() }
    }

    /// Creates options with a pool, see [`LeaseRows::from_pool`].
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
    /// | `sslmode` | `disable`, `allow`, `prefer` (default), `require`, `verify-ca`, `verify-full`. **Only the last two prove who the server is**: with the default whoever can answer in its place is given the password in clear |
    /// | `sslrootcert`, `sslcert`, `sslkey` | paths of files in PEM form |
    /// | `host` | the directory of a unix socket, for example |
    /// | `hostaddr`, `port`, `dbname`, `user`, `password`, `application_name`, `options` | as in libpq |
    ///
    /// What the URL leaves out is taken from libpq's environment variables (`PGHOST`, ...) and password file.
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
    /// count of users whose rights this user has, of superusers and of the owner of the database; one of somebody else
    /// is refused where there is no other. `migrate` makes it in the first schema of the search path that it may, the
    /// user's own last.
    /// Names have 1 to 63 ASCII letters, digits and underscores, and do not start with a digit.
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
    /// writes nothing. What is given up: the resource cannot tell a holder who was overtaken, whose connection ended
    /// without his knowledge, from the one after him; nobody is notified who holds a lock; and on MariaDB and MySQL,
    /// and for names on PostgreSQL, [`Locks::holders`](dlock_core::Locks::holders) does not list it. Use it for all who
    /// lock in a table, or for none.
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

    /// Makes the table where it is missing. Does nothing to a lock table that is there.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect), except that the table need not be there.
    ///
    /// # Cancel safety
    ///
    /// When dropped, it goes on in the background; call it again.
    pub async fn migrate(&self) -> Result<()> {
        self.clone().make_on_the_keeper().await.map_err(Self::refused)
    }

    pub(crate) async fn make_on_the_keeper(self) -> Result<(), Failure> {
        on_the_keeper(async move { self.make().await }).await
    }

    async fn make(&self) -> Result<(), Failure> {
        self.settings.check()?;
        let connector = self.connector();
        let mut connection = connector.open().await?;
        let found = Self::locate(&mut connection, &self.settings.table).await?;
        let table = found.as_ref().unwrap_or(&self.settings.table);
        let failed = |error| unchanged(S::classify(error, table).failure);
        let server = S::on_table(table, &connector, &self.settings);
        let mark = if found.is_some() { server.mark(&mut connection).await } else { Ok(None) };
        match mark {
            Ok(Some(_)) => {}
            Err(error) if !S::is_missing(&error) => return Err(failed(error)),
            Ok(None) | Err(_) => server.make(&mut connection).await.map_err(failed)?,
        }
        let table = Self::located(&mut connection, table).await?;
        let server = S::on_table(&table, &connector, &self.settings);
        let mark = server.mark(&mut connection).await.map_err(failed)?;
        end(connection).await;
        verify(mark.as_deref(), &table)
    }

    /// The table with the one schema that has it, if any does: wherever the search path of a user or of a connection
    /// leads, this is the table. One of a stranger, who may have made it to run his code in its users, is looked into
    /// only where it was named with its schema, and keeps nobody from a table that can be trusted.
    async fn locate(on: &mut Conn<S>, table: &TableName) -> Result<Option<TableName>, Failure> {
        if table.schema().is_some() {
            return Ok(Some(table.clone()));
        }
        let schemas = within(QUESTION, S::schemas_of(on, table)).await;
        let schemas =
            schemas.ok_or_else(|| Failure::unavailable(format!("no answer within {QUESTION:?}")))?;
        let schemas = schemas.map_err(|error| unchanged(S::classify(error, table).failure))?;
        match &*schemas.trusted {
            [] => strangers(table, &schemas.strange).map_or(Ok(None), Err),
            [only] => Ok(Some(table.clone().within(only.clone()))),
            [first, ..] => Err(Failure::invalid_config(format!(
                "table {table} is in several schemas ({}), and who has another search path would lock in another one; name the \
                 one that all are to use, such as table={first}.{table}",
                schemas.trusted.join(", ")
            ))),
        }
    }

    async fn located(on: &mut Conn<S>, table: &TableName) -> Result<TableName, Failure> {
        Self::locate(on, table).await?.ok_or_else(|| S::nowhere(table))
    }

    pub(crate) fn connector(&self) -> Arc<Connector<S>> {
        let limit = self.settings.connect_timeout;
        Arc::new(Connector {
            driver: self.driver.clone(),
            pool: self.pool.clone(),
            password: self.password.clone(),
            table: self.settings.table.clone(),
            // What a pool does to its new connections takes its time.
            limit: self.pool.as_ref().map_or(limit, |pool| limit.max(pool.options().get_acquire_timeout())),
            refused: Refused::default(),
            room: Room::default(),
        })
    }

    /// Opens a connection and finds the table, which is made if the URL says so. The table is looked at later.
    /// `for_leases`: attempts use the pool's connections, or those of their runtime.
    pub(crate) async fn open(mut self, for_leases: bool) -> Result<Arc<Connections<S>>, Failure> {
        self.settings.check()?;
        on_the_keeper(async move {
            if std::mem::take(&mut self.settings.makes) {
                self.make().await?;
            }
            let mut connection = self.connector().open().await?;
            self.settings.table = Self::located(&mut connection, &self.settings.table).await?;
            let connections = self.connections(for_leases)?;
            connections.put_back(connection);
            Ok(connections)
        })
        .await
    }

    /// The same without a connection. The schema that the table is in cannot be asked for then, and locks that are the
    /// same have to have the same id in all processes.
    pub(crate) fn open_later(self, for_leases: bool) -> Result<Arc<Connections<S>>, Failure> {
        self.settings.check()?;
        if self.settings.table.schema().is_none() {
            return Err(Failure::invalid_config(
                "where the server is connected to later, the table has to be named with its schema, on MariaDB and \
                 MySQL with its database, such as table=public.dlock",
            ));
        }
        self.connections(for_leases)
    }

    fn connections(self, for_leases: bool) -> Result<Arc<Connections<S>>, Failure> {
        let (connector, settings) = (self.connector(), self.settings.clone());
        let server = Arc::new(S::on_table(&settings.table, &connector, &settings));
        let pool = self.pool.clone().filter(|_| for_leases);
        let maker = settings.makes.then_some(self);
        Connections::start(server, connector, pool, for_leases, &settings, maker)
    }

    /// Connects, and checks the table and the rights. Makes nothing, unless the URL has `migrate=true`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](dlock_core::ErrorKind::InvalidConfig) when a setting is out of its bounds, the
    /// database or the table is missing, the table is no lock table of this version, or TLS is not possible as wanted;
    /// [`ErrorKind::Denied`](dlock_core::ErrorKind::Denied) for a wrong password or missing rights;
    /// [`ErrorKind::Unavailable`](dlock_core::ErrorKind::Unavailable) when no server answers, or it can only be read.
    /// No error contains a password.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn connect(self) -> Result<LeaseRows<S>> {
        let connecting = async move {
            self.check_for_rows()?;
            let rows = Rows::start(self.open(true).await?)?;
            rows.ready(QUESTION).await?;
            Ok(LeaseRows(rows))
        };
        keeper::anywhere(connecting).await.and_then(|connected| connected).map_err(Self::refused)
    }

    /// Creates the backend without a connection: it connects, and checks the table and the rights, when it is first
    /// used, so that a program can start while the server is away. The table has to be named with its schema, on
    /// MariaDB and MySQL with its database: [`with_table`](Self::with_table).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](dlock_core::ErrorKind::InvalidConfig) when a setting is out of its bounds, or the
    /// table has no schema. What [`connect`](Self::connect) would have found is the error of what is done first.
    pub fn build(self) -> Result<LeaseRows<S>> {
        let building = || {
            self.check_for_rows()?;
            Rows::start(self.open_later(true)?).map(LeaseRows)
        };
        building().map_err(Self::refused)
    }

    fn check_for_rows(&self) -> Result<(), Failure> {
        match self.settings.fences {
            true => Ok(()),
            false => Err(Failure::invalid_config(
                "lease rows have fences; fences=false is for locks by sessions and locked rows",
            )),
        }
    }

    pub(crate) fn refused(failure: Failure) -> Error {
        Error::new(Operation::Configure, failure).on(S::NAME)
    }
}

/// Refuses what only others have made, who need not be trusted. Another table beside it would split those who lock in
/// it, if there are any, in two.
fn strangers(table: &TableName, strange: &[(String, String)]) -> Option<Failure> {
    let what = match strange {
        [] => return None,
        [(schema, owner)] => {
            format!("is in schema {schema}, outside the search path, and belongs to {owner}, whose")
        }
        several => {
            let all = several.iter().map(|(schema, owner)| format!("{schema} of {owner}"));
            let all = all.collect::<Vec<_>>().join(", ");
            format!("is in several schemas outside the search path, of others ({all}), whose")
        }
    };
    Some(Failure::invalid_config(format!(
        "table {table} {what} rights this user does not have; name the one that all are to use, such as table={}.{table}",
        strange[0].0
    )))
}

/// Checks what a table that may be a lock table says of itself.
pub(crate) fn verify(mark: Option<&str>, table: &TableName) -> Result<(), Failure> {
    match mark {
        Some(MARK) => Ok(()),
        Some(mark) => Err(Failure::invalid_config(format!(
            "table {table} is of another version of dlock ({mark:?}); use that version or another table name"
        ))),
        None => Err(Failure::invalid_config(format!(
            "table {table} has lost its mark row; stop all its users and call migrate(), which makes another"
        ))),
    }
}

/// Connections of our own belong to dlock's thread: what opens one runs there.
pub(crate) async fn on_the_keeper<T: Send + 'static>(
    opening: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> Result<T, Failure> {
    keeper::runtime()?.spawn(opening).await.unwrap_or_else(|_| Err(unchanged(gone())))
}

impl<S: Server> Clone for ServerOptions<S> {
    fn clone(&self) -> Self {
        let Self { driver, pool, password, settings } = self;
        let (driver, pool, password) = (driver.clone(), pool.clone(), password.clone());
        Self { driver, pool, password, settings: settings.clone() }
    }
}

impl<S: Server> fmt::Debug for ServerOptions<S> {
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

    fn read<S: Server>(url: &str) -> Result<ServerOptions<S>> {
        ServerOptions::from_url(url)
    }

    /// Of rows with a lease; what it says of the schema is asked of the server.
    fn address<S: Server>(url: &str) -> String {
        let options = read::<S>(url).unwrap();
        format!("{}/{}", S::address(&options.driver), options.settings.table)
    }

    fn reads<S: Server>(tls: &str, wrong_tls: &str) {
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

    fn keeps_a_password<S: Server>() {
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

    fn has_one_address<S: Server>(other_way: &str) {
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
