//! etcd: one server, or a cluster of three.
//!
//! ```no_run
//! use dlock_rig::servers::etcd::EtcdServer;
//!
//! let mut server = EtcdServer::start()?;
//! server.admin().put("rooms/1", "taken");
//! server.restart()?;
//! assert_eq!(server.admin().entry("rooms/1").unwrap().value, "taken", "keys are kept");
//! # Ok::<(), dlock_rig::servers::ServerError>(())
//! ```

mod admin;
mod cluster;
mod front;
mod options;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use super::running::{Running, is_running};
use super::{Certificates, Ports, Process, Program, ServerError, SteppedClock, directory};

pub use admin::{EtcdAdministrator, EtcdEntry};
pub use cluster::EtcdCluster;
pub use options::EtcdOptions;

use options::Member;

const ETCD: Program = Program { name: "etcd", package: "etcd-server" };

/// How long a server may take to start, and to elect a leader.
const START: Duration = Duration::from_secs(60);

/// How long a server that is starting may take to answer.
const EARLY_ANSWER: Duration = Duration::from_millis(500);

/// One etcd server. Dropping it ends it at once.
pub struct EtcdServer {
    running: Running,
    tls_port: Option<u16>,
    options: EtcdOptions,
    member: Member,
}

impl EtcdServer {
    /// A server that stands alone and asks for no password.
    ///
    /// # Errors
    ///
    /// When `etcd` is missing or does not start.
    pub fn start() -> Result<Self, ServerError> {
        EtcdOptions::default().start()
    }

    /// For a server with other settings.
    #[must_use]
    pub fn options() -> EtcdOptions {
        EtcdOptions::default()
    }

    fn start_with(options: EtcdOptions) -> Result<Self, ServerError> {
        let mut tries = 5;
        loop {
            let mut server = Self::start_at_once(options.clone(), Member::alone())?;
            match server.wait_until_ready(START) {
                Ok(()) => {
                    server.admin().set_up(&server.options)?;
                    return Ok(server);
                }
                // Another process may have taken the port that was free a moment ago.
                Err(error) if options.port.is_none() && tries > 0 && error.to_string().contains("in use") => {
                    tries -= 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Starts it without waiting until it serves.
    fn start_at_once(options: EtcdOptions, member: Member) -> Result<Self, ServerError> {
        let directory = directory::temporary()?;
        let clock = if options.stepped_clock {
            Some(SteppedClock::for_go_in_directory(directory.path())?)
        } else {
            None
        };
        let certificates =
            if options.tls { Some(Certificates::in_directory(directory.path())?) } else { None };
        let port = options.port.unwrap_or_else(Ports::free);
        let tls_port = options.tls.then(Ports::free);
        let spawn = |port, directory: &Path, clock: Option<&_>| {
            spawn(&options, &member, port, tls_port, directory, clock)
        };
        let running = Running::start(directory, port, clock, certificates, spawn)?;
        Ok(Self { running, tls_port, options, member })
    }

    /// Waits until the server serves, for which a majority of its cluster is needed.
    ///
    /// # Errors
    ///
    /// When it ends, or does not serve within `limit`.
    pub fn wait_until_ready(&mut self, limit: Duration) -> Result<(), ServerError> {
        let admin = EtcdAdministrator::of(self.address(), None);
        self.running.process.wait_until_ready(limit, || admin.health(EARLY_ANSWER))
    }

    /// `etcd://`, with the name and the password of the administrator where it asks for one.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_through(self.address())
    }

    /// [`url`](Self::url), but to this address: a proxy in front of the server.
    #[must_use]
    pub fn url_through(&self, address: SocketAddr) -> String {
        format!("etcd://{}{address}", self.options.who())
    }

    /// `etcd://` for a user of its own, see [`EtcdOptions::user`].
    #[must_use]
    pub fn url_as(&self, user: &str, password: &str) -> String {
        format!("etcd://{user}:{password}@{}", self.address())
    }

    /// `etcd+tls://localhost`, with [`EtcdOptions::tls`].
    ///
    /// # Panics
    ///
    /// When the server was started without it.
    #[must_use]
    pub fn tls_url(&self) -> String {
        format!("etcd+tls://{}localhost:{}", self.options.who(), self.tls_port.expect("started with `tls`"))
    }

    /// Its administrator.
    ///
    /// # Panics
    ///
    /// When the server is frozen or was killed, and would not answer.
    #[must_use]
    #[track_caller]
    pub fn admin(&self) -> EtcdAdministrator {
        assert!(self.is_running(), "etcd at {} is frozen, or was killed", self.port());
        EtcdAdministrator::of(self.address(), self.options.password.as_deref())
    }

    /// Kills it and starts it again on the same port, with the keys and leases that it had, and waits until it serves.
    /// Leases have their whole time again.
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
        let Self { running, options, member, tls_port } = self;
        running
            .start_again(|port, directory, clock| spawn(options, member, port, *tls_port, directory, clock))
    }
}

is_running!(EtcdServer);

fn spawn(
    options: &EtcdOptions,
    member: &Member,
    port: u16,
    tls_port: Option<u16>,
    directory: &Path,
    clock: Option<&SteppedClock>,
) -> Result<Process, ServerError> {
    let mut environment = member.environment();
    let clock = clock.map(SteppedClock::environment).into_iter().flatten();
    environment.extend(clock.map(|(name, value)| (name, value.into())));
    Process::start(ETCD, options.arguments(member, port, tls_port, directory), environment, directory)
}

#[cfg(test)]
mod tests;
