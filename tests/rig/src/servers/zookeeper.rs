//! ZooKeeper: one server, or an ensemble of three.
//!
//! ```no_run
//! use dlock_rig::servers::zookeeper::{NodeKind, ZooKeeperServer};
//!
//! let mut server = ZooKeeperServer::start()?;
//! server.admin().create("/rooms", b"", NodeKind::Container);
//! server.restart()?;
//! assert_eq!(server.admin().children("/"), ["rooms", "zookeeper"], "nodes are kept");
//! # Ok::<(), dlock_rig::servers::ServerError>(())
//! ```

mod admin;
mod ensemble;
mod options;
mod session;

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Certificates;
use super::running::{Running, is_running};
use super::{Ports, Process, Program, ServerError, directory};

pub use admin::{Administrator, Node, NodeKind};
pub use ensemble::ZooKeeperEnsemble;
pub use options::ZooKeeperOptions;

const JAVA: Program = Program { name: "java", package: "zookeeper" };

/// How long a server may take to start.
const START: Duration = Duration::from_secs(60);

/// How long a server that is starting may take to answer. It leaves a word that comes too early without an answer.
const EARLY_ANSWER: Duration = Duration::from_millis(250);

/// One ZooKeeper server.
pub struct ZooKeeperServer {
    running: Running,
    tls_port: Option<u16>,
    options: ZooKeeperOptions,
}

impl ZooKeeperServer {
    /// A server that stands alone.
    ///
    /// # Errors
    ///
    /// When ZooKeeper is missing or does not start.
    pub fn start() -> Result<Self, ServerError> {
        ZooKeeperOptions::default().start()
    }

    /// For a server with other settings.
    #[must_use]
    pub fn options() -> ZooKeeperOptions {
        ZooKeeperOptions::default()
    }

    fn start_with(options: ZooKeeperOptions) -> Result<Self, ServerError> {
        let mut tries = 5;
        loop {
            let mut server = Self::start_at_once(options.clone())?;
            match server.wait_until_ready(START) {
                Ok(()) => return Ok(server),
                // Somebody else may have taken the port that was free a moment ago.
                Err(error) if options.port.is_none() && tries > 0 && error.to_string().contains("in use") => {
                    tries -= 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Starts it without waiting until it serves.
    fn start_at_once(options: ZooKeeperOptions) -> Result<Self, ServerError> {
        let directory = directory::temporary()?;
        let port = options.port.unwrap_or_else(Ports::free);
        let (options, tls_port, certificates) = if options.tls {
            let (port, certificates) = (Ports::free(), Certificates::in_directory(directory.path())?);
            (options.secured(port, directory.path())?, Some(port), Some(certificates))
        } else {
            (options, None, None)
        };
        options.write(port, directory.path())?;
        let spawn = |_, directory: &Path, _: Option<&_>| spawn(&options, directory);
        let running = Running::start(directory, port, None, certificates, spawn)?;
        Ok(Self { running, tls_port, options })
    }

    /// Waits until the server serves; in an ensemble, until it follows or leads.
    ///
    /// # Errors
    ///
    /// When it ends, or does not serve within `limit`.
    pub fn wait_until_ready(&mut self, limit: Duration) -> Result<(), ServerError> {
        let admin = Administrator::of(self.address());
        self.running.process.wait_until_ready(limit, || {
            let word = |word| admin.word_within(EARLY_ANSWER, word).map_err(|error| error.to_string());
            let state = word("srvr")?;
            if !state.contains("Mode:") {
                return Err(state);
            }
            admin.try_children("/").map(drop).map_err(|error| error.to_string())
        })
    }

    /// `zk://` of its address.
    #[must_use]
    pub fn url(&self) -> String {
        format!("zk://{}", self.address())
    }

    /// `zk+tls://localhost`, with [`ZooKeeperOptions::tls`].
    ///
    /// # Panics
    ///
    /// When the server was started without it.
    #[must_use]
    pub fn tls_url(&self) -> String {
        format!("zk+tls://localhost:{}", self.tls_port.expect("started with `tls`"))
    }

    /// Returns the directory of its snapshots and logs.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.running.directory().join("data").join("version-2")
    }

    /// Its administrator.
    ///
    /// # Panics
    ///
    /// When the server is frozen or was killed, and would not answer.
    #[must_use]
    #[track_caller]
    pub fn admin(&self) -> Administrator {
        assert!(self.is_running(), "ZooKeeper at {} is frozen, or was killed", self.port());
        Administrator::of(self.address())
    }

    /// Kills it and starts it again on the same port, with the nodes and sessions that it had, and waits until it
    /// serves. Sessions have their whole time again.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub fn restart(&mut self) -> Result<(), ServerError> {
        self.restart_at_once()?;
        self.wait_until_ready(START)
    }

    /// [`restart`](Self::restart) without waiting.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub fn restart_at_once(&mut self) -> Result<(), ServerError> {
        let Self { running, options, .. } = self;
        running.start_again(|_, directory, _| spawn(options, directory))
    }
}

is_running!(ZooKeeperServer);

fn spawn(options: &ZooKeeperOptions, directory: &Path) -> Result<Process, ServerError> {
    const NO_ENV: [(&str, &str); 0] = [];
    Process::start(JAVA, options.arguments(directory)?, NO_ENV, directory)
}

#[cfg(test)]
mod tests;
