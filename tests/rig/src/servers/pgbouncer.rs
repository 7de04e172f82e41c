//! PgBouncer before a PostgreSQL server.

use std::net::TcpStream;
use std::time::Duration;

use tempfile::TempDir;

use super::account::Account;
use super::postgres::PostgresServer;
use super::{Ports, Process, Program, ServerError};

const PROGRAM: Program = Program { name: "pgbouncer", package: "pgbouncer" };

/// A PgBouncer. Where it pools transactions, each one of a client's gets any of two connections to the server.
#[derive(Debug)]
pub struct PgBouncer {
    process: Process,
    account: Account,
    port: u16,
    directory: TempDir,
}

impl PgBouncer {
    /// Starts one before `server` that pools transactions, and waits until it listens.
    ///
    /// # Errors
    ///
    /// When PgBouncer is missing or does not start.
    pub fn start(server: &PostgresServer) -> Result<Self, ServerError> {
        Self::pooling(server, "pool_mode = transaction\ndefault_pool_size = 2\nserver_round_robin = 1")
    }

    /// The same, but it pools sessions: a client keeps its connection to the server until it ends.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn of_sessions(server: &PostgresServer) -> Result<Self, ServerError> {
        Self::pooling(server, "pool_mode = session\ndefault_pool_size = 50")
    }

    fn pooling(server: &PostgresServer, mode: &str) -> Result<Self, ServerError> {
        // It refuses to run as root.
        let account = Account::unprivileged("postgres", PROGRAM.package)?;
        let (directory, port) = (account.directory()?, Ports::free());
        let settings = format!(
            "[databases]\npostgres = host=127.0.0.1 port={} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = any\n{mode}\n",
            server.address().port()
        );
        let file = directory.path().join("pgbouncer.ini");
        std::fs::write(&file, settings).map_err(|error| ServerError::because(file.display(), &error))?;
        let process = spawn(&account, &directory)?;
        let mut this = Self { process, account, port, directory };
        this.wait_until_ready()?;
        Ok(this)
    }

    /// Returns the URL of the server's database through it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres?sslmode=disable", self.port)
    }

    /// Kills it, and starts it again where it was.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub fn restart(&mut self) -> Result<(), ServerError> {
        self.process.kill();
        self.process = spawn(&self.account, &self.directory)?;
        self.wait_until_ready()
    }

    fn wait_until_ready(&mut self) -> Result<(), ServerError> {
        let port = self.port;
        let connects =
            || TcpStream::connect(("127.0.0.1", port)).map(drop).map_err(|error| error.to_string());
        self.process.wait_until_ready(Duration::from_secs(20), connects)
    }
}

fn spawn(account: &Account, directory: &TempDir) -> Result<Process, ServerError> {
    let (program, arguments) = account.command(PROGRAM, ["pgbouncer.ini"]);
    Process::start(program, arguments, [("LC_ALL", "C")], directory.path())
}
