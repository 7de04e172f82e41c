//! A server that was started: what all kinds of them have in common.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use super::{Certificates, Process, ServerError, SteppedClock};

/// How long a listening socket may take to accept a connection.
const ANSWER: Duration = Duration::from_secs(1);

/// A server that was started, in a directory of its own. Dropping it ends it at once.
pub struct Running {
    pub(super) process: Process,
    port: u16,
    clock: Option<SteppedClock>,
    certificates: Option<Certificates>,
    directory: TempDir,
}

impl Running {
    /// Runs what `spawn` starts in `directory`, with these.
    pub(super) fn start(
        directory: TempDir,
        port: u16,
        clock: Option<SteppedClock>,
        certificates: Option<Certificates>,
        spawn: impl FnOnce(u16, &Path, Option<&SteppedClock>) -> Result<Process, ServerError>,
    ) -> Result<Self, ServerError> {
        let process = spawn(port, directory.path(), clock.as_ref())?;
        Ok(Self { process, port, clock, certificates, directory })
    }

    /// Kills it and runs what `spawn` starts instead, in the same place.
    pub(super) fn start_again(
        &mut self,
        spawn: impl FnOnce(u16, &Path, Option<&SteppedClock>) -> Result<Process, ServerError>,
    ) -> Result<(), ServerError> {
        self.process.kill();
        self.process = spawn(self.port, self.directory.path(), self.clock.as_ref())?;
        Ok(())
    }

    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Waits until it listens and `answers`, which may cost a process of its own.
    pub(super) fn wait_until_ready(
        &mut self,
        limit: Duration,
        answers: impl Fn() -> Result<(), ServerError>,
    ) -> Result<(), ServerError> {
        let address = self.address();
        self.process.wait_until_ready(limit, || {
            TcpStream::connect_timeout(&address, ANSWER).map_err(|error| error.to_string())?;
            answers().map_err(|error| error.to_string())
        })
    }

    /// Where it listens, without TLS.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Where it listens, without TLS.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What the server proves itself with, when it was started with TLS.
    ///
    /// # Panics
    ///
    /// When it was started without.
    #[must_use]
    pub fn certificates(&self) -> &Certificates {
        self.certificates.as_ref().expect("started with `tls`")
    }

    /// The clock that the server reads, when it was started with a stepped clock.
    ///
    /// # Panics
    ///
    /// When it was started without.
    #[must_use]
    pub fn clock(&self) -> &SteppedClock {
        self.clock.as_ref().expect("started with `stepped_clock`")
    }

    /// What it has logged so far.
    #[must_use]
    pub fn output(&self) -> String {
        self.process.output()
    }

    /// Freezes it: its connections stay open, and nothing is answered until [`resume`](Self::resume).
    pub fn pause(&self) {
        self.process.pause();
    }

    /// Thaws it. What was sent to it meanwhile is carried out now.
    pub fn resume(&self) {
        self.process.resume();
    }

    /// Returns its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Whether it runs, and is not frozen.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.process.is_running()
    }

    /// Kills it as a crash would.
    pub fn kill(&mut self) {
        self.process.kill();
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running")
            .field("port", &self.port)
            .field("pid", &self.process.pid())
            .finish_non_exhaustive()
    }
}

/// Makes a server show what it is as a running one.
macro_rules! is_running {
    ($server:ident) => {
        impl std::ops::Deref for $server {
            type Target = $crate::servers::Running;

            fn deref(&self) -> &Self::Target {
                &self.running
            }
        }

        impl std::ops::DerefMut for $server {
            fn deref_mut(&mut self) -> &mut Self::Target {
                &mut self.running
            }
        }

        impl std::fmt::Debug for $server {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_tuple(stringify!($server)).field(&self.running).finish()
            }
        }
    };
}

pub(super) use is_running;
