//! PostgreSQL: one server with one database.
//!
//! ```no_run
//! use dlock_rig::servers::postgres::PostgresServer;
//!
//! let mut server = PostgresServer::start()?;
//! server.query("CREATE TABLE a (b int)");
//! server.restart()?;
//! assert_eq!(server.query("SELECT count(*) FROM a"), "0");
//! # Ok::<(), dlock_rig::servers::ServerError>(())
//! ```

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::account::{self, Account};
use super::running::{Running, is_running};
use super::{Certificates, Ports, Process, Program, ServerError, SteppedClock, tls};

const PACKAGE: &str = "postgresql";
/// How long a server may take to start.
const START: Duration = Duration::from_secs(90);
/// The administrator, who is asked for no password.
const ADMIN: &str = "postgres";
/// What a server is started with: small, and not safe from power failures. Later arguments win.
const SETTINGS: [&str; 8] = [
    "fsync=off",
    "full_page_writes=off",
    "shared_buffers=16MB",
    "listen_addresses=127.0.0.1",
    "autovacuum=off",
    "max_wal_size=64MB",
    "log_min_messages=warning",
    // In the data directory: a server that is killed leaves it behind.
    "dynamic_shared_memory_type=mmap",
];

/// How a [`PostgresServer`] is started.
#[derive(Clone, Debug, Default)]
pub struct PostgresOptions {
    stepped_clock: bool,
    tls: bool,
    settings: Vec<String>,
}

/// One PostgreSQL server. Dropping it ends it at once.
pub struct PostgresServer {
    running: Running,
    options: PostgresOptions,
    account: Account,
}

impl PostgresOptions {
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

    /// Any setting of `postgresql.conf`.
    #[must_use]
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push(format!("{name}={value}"));
        self
    }

    /// Starts it, and waits until it answers.
    ///
    /// # Errors
    ///
    /// When PostgreSQL is missing or does not start.
    pub fn start(self) -> Result<PostgresServer, ServerError> {
        let account = Account::unprivileged("postgres", PACKAGE)?;
        let directory = account.directory()?;
        account::copy(template(&account)?, &directory.path().join("data"))?;
        let clock =
            if self.stepped_clock { Some(SteppedClock::in_directory(directory.path())?) } else { None };
        let certificates = if self.tls { Some(account.certificates(directory.path())?) } else { None };
        PostgresServer::start_in(directory, self, account, clock, certificates)
    }

    fn spawn(
        &self,
        account: &Account,
        port: u16,
        directory: &Path,
        clock: Option<&SteppedClock>,
    ) -> Result<Process, ServerError> {
        let (data, sockets) = (directory.join("data"), directory.display().to_string());
        let mut arguments =
            vec!["-D".to_owned(), data.display().to_string(), "-p".to_owned(), port.to_string()];
        let sockets = format!("unix_socket_directories={sockets}");
        for setting in SETTINGS.into_iter().chain([&*sockets]).chain(self.settings.iter().map(|it| &**it)) {
            arguments.extend(["-c".to_owned(), setting.to_owned()]);
        }
        if self.tls {
            let file = |name: &str| directory.join(name).display().to_string();
            for setting in [
                "ssl=on".to_owned(),
                format!("ssl_cert_file={}", file(tls::CERTIFICATE)),
                format!("ssl_key_file={}", file(tls::KEY)),
            ] {
                arguments.extend(["-c".to_owned(), setting]);
            }
        }
        let (program, arguments) =
            account.command(program("postgres")?, arguments.iter().map(String::as_str));
        let environment = clock.map(SteppedClock::environment).into_iter().flatten();
        Process::start(program, arguments, environment, directory)
    }
}

impl PostgresServer {
    /// A server with the default settings.
    ///
    /// # Errors
    ///
    /// When PostgreSQL is missing or does not start.
    pub fn start() -> Result<Self, ServerError> {
        PostgresOptions::default().start()
    }

    /// For a server with other settings.
    #[must_use]
    pub fn options() -> PostgresOptions {
        PostgresOptions::default()
    }

    /// Waits until the server answers.
    ///
    /// # Errors
    ///
    /// When it ends, or does not answer within `limit`.
    pub fn wait_until_ready(&mut self, limit: Duration) -> Result<(), ServerError> {
        let url = self.url();
        self.running.wait_until_ready(limit, || psql(&url, "SELECT 1").map(drop))
    }

    /// Starts a standby that follows this server by streaming replication, and can be [promoted](Self::promote).
    ///
    /// # Errors
    ///
    /// When it cannot be copied or does not start.
    pub fn standby(&self) -> Result<Self, ServerError> {
        let account = self.account.clone();
        let directory = account.directory()?;
        let (data, url) = (directory.path().join("data").display().to_string(), self.url());
        let copy = ["--write-recovery-conf", "--checkpoint=fast", "--no-sync", "-D", &*data, "-d", &*url];
        account.run(program("pg_basebackup")?, copy)?;
        let options =
            PostgresOptions { settings: self.options.settings.clone(), ..PostgresOptions::default() };
        Self::start_in(directory, options, account, None, None)
    }

    fn start_in(
        directory: TempDir,
        options: PostgresOptions,
        account: Account,
        clock: Option<SteppedClock>,
        certificates: Option<Certificates>,
    ) -> Result<Self, ServerError> {
        let spawn =
            |port, directory: &Path, clock: Option<&_>| options.spawn(&account, port, directory, clock);
        let running = Running::start(directory, Ports::free(), clock, certificates, spawn)?;
        let mut server = Self { running, options, account };
        server.wait_until_ready(START)?;
        Ok(server)
    }

    /// Makes a standby a primary, and waits until it is.
    ///
    /// # Panics
    ///
    /// When it does not become one.
    pub fn promote(&self) {
        assert_eq!(self.query("SELECT pg_promote(true, 30)"), "t", "it was promoted");
    }

    /// `postgres://` of the administrator.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_through(self.address())
    }

    /// [`url`](Self::url), but to this address: a proxy in front of the server.
    #[must_use]
    pub fn url_through(&self, address: SocketAddr) -> String {
        // The servers of tests have no certificates.
        format!("postgres://{ADMIN}@{address}/{ADMIN}?sslmode=disable")
    }

    /// `postgres://` of the administrator over TLS, by a name that the certificate is for, with
    /// [`PostgresOptions::tls`].
    #[must_use]
    pub fn tls_url(&self) -> String {
        let authority = self.certificates().authority().display();
        format!(
            "postgres://{ADMIN}@localhost:{}/{ADMIN}?sslmode=verify-full&sslrootcert={authority}",
            self.port()
        )
    }

    /// `postgres://` of another user. Passwords are checked for all but the administrator.
    #[must_use]
    pub fn url_as(&self, user: &str, password: &str) -> String {
        format!("postgres://{user}:{password}@{}/{ADMIN}?sslmode=disable", self.address())
    }

    /// The directory of its unix socket.
    #[must_use]
    pub fn unix_socket_directory(&self) -> PathBuf {
        self.directory().to_owned()
    }

    /// Runs statements as the administrator; the rows of the last one, a line each, columns divided by `|`.
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
        psql(&self.url(), statements)
    }

    /// Ends all connections but the administrator's own, and says how many.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    pub fn disconnect_all(&self) -> usize {
        let ended = "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity \
                     WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'";
        self.query(ended).parse().expect("a number")
    }

    /// Freezes it with all its processes: connections stay open, and nothing is answered until
    /// [`resume`](Self::resume).
    pub fn pause(&self) {
        // First the one that would start new ones.
        self.running.pause();
        self.signal_children(Signal::STOP);
    }

    /// Thaws it. What was sent to it meanwhile is carried out now.
    pub fn resume(&self) {
        self.signal_children(Signal::CONT);
        self.running.resume();
    }

    fn signal_children(&self, signal: Signal) {
        for pid in self.children() {
            // One that has ended since is none of ours to signal, and none that matters.
            let _ = kill_process(pid, signal);
        }
    }

    fn children(&self) -> Vec<Pid> {
        let pid = self.running.process.pid();
        let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        list.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
    }

    /// Kills it with all its processes, as a crash would.
    pub fn kill(&mut self) {
        let children = self.children();
        self.running.kill();
        for pid in children {
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    /// Kills it and starts it again on the same port, with what it has on disk, and waits until it answers.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub fn restart(&mut self) -> Result<(), ServerError> {
        self.kill();
        let mut tries = 100;
        loop {
            let Self { running, options, account } = self;
            running.start_again(|port, directory, clock| options.spawn(account, port, directory, clock))?;
            match self.wait_until_ready(START) {
                // The last of its processes needs a moment to end.
                Err(error) if tries > 0 && error.to_string().contains("in use") => {
                    tries -= 1;
                    std::thread::sleep(Duration::from_millis(20));
                }
                other => return other,
            }
        }
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        if self.running.process.is_running() {
            // In an orderly way, since a crash leaves a piece of shared memory behind.
            self.running.process.quit(Duration::from_secs(5));
        } else {
            self.kill();
        }
    }
}

is_running!(PostgresServer);

/// A program of the server, which Debian keeps out of `PATH`; in place of `psql` it has a script there that costs more
/// than the program.
fn program(name: &'static str) -> Result<Program, ServerError> {
    static POSTGRES: OnceLock<&'static str> = OnceLock::new();
    static INITDB: OnceLock<&'static str> = OnceLock::new();
    static BASEBACKUP: OnceLock<&'static str> = OnceLock::new();
    static PSQL: OnceLock<&'static str> = OnceLock::new();
    let (place, package) = match name {
        "initdb" => (&INITDB, PACKAGE),
        "pg_basebackup" => (&BASEBACKUP, PACKAGE),
        "psql" => (&PSQL, "postgresql-client"),
        _ => (&POSTGRES, PACKAGE),
    };
    let name = place.get_or_init(|| {
        let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
        let found = account::find(name, versions.map(|version| version.path().join("bin")));
        found.map_or(name, |path| path.display().to_string().leak())
    });
    Ok(Program { name, package })
}

/// An empty cluster, made once for all servers of this process.
fn template(account: &Account) -> Result<&'static Path, ServerError> {
    static TEMPLATE: OnceLock<Result<PathBuf, ServerError>> = OnceLock::new();
    let made = TEMPLATE.get_or_init(|| {
        let directory = account.directory()?;
        let data = directory.path().join("data");
        let path = data.display().to_string();
        let arguments = ["--no-sync", "--no-instructions", "--encoding=UTF8", "--locale=C", "--auth=trust"];
        account
            .run(program("initdb")?, arguments.into_iter().chain(["--username", ADMIN, "--pgdata", &path]))?;
        let rules =
            format!("local all all trust\nhost all {ADMIN} all trust\nhost replication {ADMIN} all trust\nhost all all all scram-sha-256\n");
        std::fs::write(data.join("pg_hba.conf"), rules)
            .map_err(|error| ServerError::because("pg_hba.conf", &error))?;
        Ok(account::keep(directory)?.join("data"))
    });
    made.as_deref().map_err(Clone::clone)
}

fn psql(url: &str, statements: &str) -> Result<String, ServerError> {
    let said = program("psql")?.run([
        "--no-psqlrc",
        "-v",
        "ON_ERROR_STOP=1",
        "-qAt",
        "-d",
        url,
        "-c",
        statements,
    ])?;
    Ok(said.trim_end().to_owned())
}

#[cfg(test)]
mod tests;
