//! MariaDB: one server with one database, `locks`. Where the environment variable `DLOCK_TEST_MYSQLD` is the path of
//! MySQL's `mysqld`, version 8, it is that.
//!
//! ```no_run
//! use dlock_rig::servers::mysql::MysqlServer;
//!
//! let mut server = MysqlServer::start()?;
//! server.query("CREATE TABLE a (b int)");
//! server.restart()?;
//! assert_eq!(server.query("SELECT count(*) FROM a"), "0");
//! # Ok::<(), dlock_rig::servers::ServerError>(())
//! ```

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::account::{self, Account};
use super::running::{Running, is_running};
use super::{Ports, Process, Program, ServerError, SteppedClock, tls};

const PACKAGE: &str = "mariadb-server";
const CLIENT: Program = Program { name: "mariadb", package: "mariadb-client" };
/// How long a server may take to start.
const START: Duration = Duration::from_secs(90);
/// The administrator, who is asked for no password.
const ADMIN: &str = "admin";
const DATABASE: &str = "locks";
/// What a server is started with: small, and not safe from power failures. Later arguments win.
const SETTINGS: [&str; 10] = [
    "bind-address=127.0.0.1",
    "innodb-buffer-pool-size=16M",
    "innodb-flush-log-at-trx-commit=2",
    "innodb-flush-method=nosync",
    "innodb-log-file-size=8M",
    "innodb-fast-shutdown=2",
    "key-buffer-size=1M",
    "performance-schema=off",
    "skip-log-bin",
    "skip-name-resolve",
];
/// What MySQL is configured with besides: passwords without TLS, and no certificates of its own.
const OF_MYSQL: [&str; 3] = ["mysqlx=off", "default-authentication-plugin=mysql_native_password", "skip-ssl"];
/// Run at each start.
const INIT: &str = "\
CREATE USER IF NOT EXISTS admin@'%';
GRANT ALL ON *.* TO admin@'%' WITH GRANT OPTION;
CREATE DATABASE IF NOT EXISTS locks;
";

/// How a [`MysqlServer`] is started.
#[derive(Clone, Debug, Default)]
pub struct MysqlOptions {
    stepped_clock: bool,
    tls: bool,
    settings: Vec<String>,
}

/// One MariaDB server. Dropping it ends it at once.
pub struct MysqlServer {
    running: Running,
    options: MysqlOptions,
    account: Account,
}

impl MysqlOptions {
    /// Reads a wall clock that the test can step, see [`Running::clock`].
    #[must_use]
    pub fn stepped_clock(mut self) -> Self {
        self.stepped_clock = true;
        self
    }

    /// Speaks TLS too, for `localhost`, with certificates made for this server.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Any setting of `my.cnf`.
    #[must_use]
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push(format!("{name}={value}"));
        self
    }

    /// Starts it, and waits until it answers.
    ///
    /// # Errors
    ///
    /// When MariaDB is missing or does not start.
    pub fn start(self) -> Result<MysqlServer, ServerError> {
        let account = Account::unprivileged("mysql", PACKAGE)?;
        let directory = account.directory()?;
        account::copy(template(&account)?, &directory.path().join("data"))?;
        let init = directory.path().join("init.sql");
        std::fs::write(&init, INIT).map_err(|error| ServerError::because("init.sql", &error))?;
        let clock =
            if self.stepped_clock { Some(SteppedClock::in_directory(directory.path())?) } else { None };
        let certificates = if self.tls { Some(account.certificates(directory.path())?) } else { None };
        let spawn = |port, directory: &Path, clock: Option<&_>| self.spawn(&account, port, directory, clock);
        let running = Running::start(directory, Ports::free(), clock, certificates, spawn)?;
        let mut server = MysqlServer { running, options: self, account };
        server.wait_until_ready(START)?;
        Ok(server)
    }

    fn spawn(
        &self,
        account: &Account,
        port: u16,
        directory: &Path,
        clock: Option<&SteppedClock>,
    ) -> Result<Process, ServerError> {
        let path = |name: &str| directory.join(name).display().to_string();
        let places = [
            format!("datadir={}", path("data")),
            format!("socket={}", path("mysql.sock")),
            format!("pid-file={}", path("mysql.pid")),
            format!("init-file={}", path("init.sql")),
            // A server that starts removes the temporary tables there, whosesoever they are.
            format!("tmpdir={}", directory.display()),
            format!("port={port}"),
        ];
        let tls = [("ssl-ca", tls::AUTHORITY), ("ssl-cert", tls::CERTIFICATE), ("ssl-key", tls::KEY)];
        let tls = tls.into_iter().filter(|_| self.tls).map(|(name, file)| format!("{name}={}", path(file)));
        let of_mysql = OF_MYSQL.into_iter().filter(|_| mysqld().is_some() && !self.tls);
        let settings = SETTINGS
            .into_iter()
            .chain(of_mysql)
            .map(str::to_owned)
            .chain(places)
            .chain(tls)
            .chain(self.settings.iter().cloned());
        let arguments: Vec<String> = settings.map(|setting| format!("--{setting}")).collect();
        let all = ["--no-defaults"].into_iter().chain(arguments.iter().map(String::as_str));
        let (program, arguments) = account.command(program("mariadbd"), all);
        let environment = clock.map(SteppedClock::environment).into_iter().flatten();
        Process::start(program, arguments, environment, directory)
    }
}

impl MysqlServer {
    /// A server whose commits wait for its [replica](Self::replica), once there is one, and are seen by nobody before
    /// (semi-synchronous replication, `AFTER_SYNC`). MariaDB only.
    ///
    /// # Errors
    ///
    /// When MariaDB is missing or does not start.
    pub fn primary() -> Result<Self, ServerError> {
        let logging = Self::options().setting("server-id", "1").setting("log-bin", "binlog");
        logging
            .setting("rpl-semi-sync-master-wait-point", "AFTER_SYNC")
            .setting("rpl-semi-sync-master-timeout", "60000")
            .start()
    }

    /// Starts a replica of a [primary](Self::primary), which others can only read until it is
    /// [promoted](Self::promote), and waits until the primary waits for it.
    ///
    /// # Errors
    ///
    /// When it does not start or follow.
    pub fn replica(&self) -> Result<Self, ServerError> {
        let options = Self::options().setting("server-id", "2").setting("read-only", "on");
        let replica = options.setting("rpl-semi-sync-slave-enabled", "on").start()?;
        // Not before there is one to wait for.
        self.try_query("SET GLOBAL rpl_semi_sync_master_enabled = ON")?;
        let port = self.port();
        replica.try_query(&format!(
            "CHANGE MASTER TO master_host = '127.0.0.1', master_port = {port}, master_user = '{ADMIN}',
                master_use_gtid = slave_pos;
            START SLAVE"
        ))?;
        let end = Instant::now() + START;
        while self.try_query("SHOW STATUS LIKE 'Rpl_semi_sync_master_clients'")?.ends_with("\t0") {
            if Instant::now() > end {
                return Err(ServerError::new(replica.try_query("SHOW SLAVE STATUS")?));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(replica)
    }

    /// Makes a replica a primary, once it has carried out all that it has received.
    ///
    /// # Panics
    ///
    /// When that fails.
    pub fn promote(&self) {
        self.query("STOP SLAVE IO_THREAD");
        let end = Instant::now() + START;
        while !self.query("SHOW SLAVE STATUS").contains("has read all relay log") {
            assert!(Instant::now() < end, "{}", self.query("SHOW SLAVE STATUS"));
            std::thread::sleep(Duration::from_millis(20));
        }
        self.query("STOP SLAVE; RESET SLAVE ALL; SET GLOBAL read_only = 0");
    }

    /// A server with the default settings.
    ///
    /// # Errors
    ///
    /// When MariaDB is missing or does not start.
    pub fn start() -> Result<Self, ServerError> {
        MysqlOptions::default().start()
    }

    /// For a server with other settings.
    #[must_use]
    pub fn options() -> MysqlOptions {
        MysqlOptions::default()
    }

    /// Waits until the server answers.
    ///
    /// # Errors
    ///
    /// When it ends, or does not answer within `limit`.
    pub fn wait_until_ready(&mut self, limit: Duration) -> Result<(), ServerError> {
        let port = self.port();
        self.running.wait_until_ready(limit, || client(port, "SELECT 1").map(drop))
    }

    /// `mysql://` of the administrator.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_through(self.address())
    }

    /// [`url`](Self::url), but to this address: a proxy in front of the server.
    #[must_use]
    pub fn url_through(&self, address: SocketAddr) -> String {
        format!("mysql://{ADMIN}@{address}/{DATABASE}")
    }

    /// `mysql://` of the administrator over TLS, by a name that the certificate is for, with [`MysqlOptions::tls`].
    #[must_use]
    pub fn tls_url(&self) -> String {
        let authority = self.certificates().authority().display();
        format!(
            "mysql://{ADMIN}@localhost:{}/{DATABASE}?ssl-mode=verify_identity&ssl-ca={authority}",
            self.port()
        )
    }

    /// `mysql://` of another user.
    #[must_use]
    pub fn url_as(&self, user: &str, password: &str) -> String {
        format!("mysql://{user}:{password}@{}/{DATABASE}", self.address())
    }

    /// The path of its unix socket.
    #[must_use]
    pub fn unix_socket(&self) -> PathBuf {
        self.directory().join("mysql.sock")
    }

    /// Runs statements as the administrator; their rows, a line each, columns divided by tabs.
    ///
    /// # Panics
    ///
    /// When one fails.
    #[track_caller]
    pub fn query(&self, statements: &str) -> String {
        self.try_query(statements).unwrap_or_else(|error| panic!("{statements}: {error}"))
    }

    /// Runs statements as the administrator.
    ///
    /// # Errors
    ///
    /// When one fails.
    pub fn try_query(&self, statements: &str) -> Result<String, ServerError> {
        client(self.port(), statements)
    }

    /// Ends all connections but the administrator's own, and says how many.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    pub fn disconnect_all(&self) -> usize {
        let others = "SELECT id FROM information_schema.processlist \
                      WHERE id <> connection_id() AND command NOT IN ('Daemon', 'Binlog Dump')";
        // One may have ended by itself meanwhile.
        self.query(others).lines().filter(|id| self.try_query(&format!("KILL {id}")).is_ok()).count()
    }

    /// Freezes it: connections stay open, and nothing is answered until [`resume`](Self::resume).
    pub fn pause(&self) {
        self.running.pause();
    }

    /// Thaws it. What was sent to it meanwhile is carried out now.
    pub fn resume(&self) {
        self.running.resume();
    }

    /// Kills it and starts it again on the same port, with what it has on disk, and waits until it answers.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub fn restart(&mut self) -> Result<(), ServerError> {
        let Self { running, options, account } = self;
        running.start_again(|port, directory, clock| options.spawn(account, port, directory, clock))?;
        self.wait_until_ready(START)
    }
}

is_running!(MysqlServer);

/// MySQL's server, if it is to be tested.
fn mysqld() -> Option<&'static str> {
    static MYSQLD: OnceLock<Option<String>> = OnceLock::new();
    MYSQLD.get_or_init(|| std::env::var("DLOCK_TEST_MYSQLD").ok()).as_deref()
}

/// The server, which may lie outside of a user's `PATH`.
fn program(name: &'static str) -> Program {
    static MARIADBD: OnceLock<&'static str> = OnceLock::new();
    if let Some(name) = mysqld() {
        return Program { name, package: PACKAGE };
    }
    let name = MARIADBD.get_or_init(|| {
        let found = account::find(name, [PathBuf::from("/usr/sbin"), PathBuf::from("/usr/libexec")]);
        found.map_or(name, |path| path.display().to_string().leak())
    });
    Program { name, package: PACKAGE }
}

/// An empty data directory, made once for all servers of this process.
fn template(account: &Account) -> Result<&'static Path, ServerError> {
    static TEMPLATE: OnceLock<Result<PathBuf, ServerError>> = OnceLock::new();
    let made = TEMPLATE.get_or_init(|| {
        let directory = account.directory()?;
        let data = directory.path().join("data");
        let (place, temporary) =
            (format!("--datadir={}", data.display()), format!("--tmpdir={}", directory.path().display()));
        if mysqld().is_some() {
            let arguments = ["--no-defaults", "--initialize-insecure", "--innodb-log-file-size=8M"];
            account.run(program("mysqld"), arguments.into_iter().chain([&*place, &*temporary]))?;
            return Ok(account::keep(directory)?.join("data"));
        }
        let install = Program { name: "mariadb-install-db", package: PACKAGE };
        let arguments = [
            "--no-defaults",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--skip-name-resolve",
            "--innodb-log-file-size=8M",
        ];
        account.run(install, arguments.into_iter().chain([&*place, &*temporary]))?;
        Ok(account::keep(directory)?.join("data"))
    });
    made.as_deref().map_err(Clone::clone)
}

fn client(port: u16, statements: &str) -> Result<String, ServerError> {
    let port = port.to_string();
    let options = ["--no-defaults", "--batch", "--skip-column-names", "--host=127.0.0.1", "--port", &port];
    let rest = ["--user", ADMIN, "--execute", statements, DATABASE];
    Ok(CLIENT.run(options.into_iter().chain(rest))?.trim_end().to_owned())
}

#[cfg(test)]
mod tests;
