//! How a server is started.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;

use super::super::tls;
use super::{RedisServer, ServerError};

pub(super) const UNIX_SOCKET: &str = "redis.sock";
const USERS: &str = "users.acl";

/// How a [`RedisServer`] is started.
#[derive(Clone, Debug, Default)]
pub struct RedisOptions {
    pub(super) password: Option<String>,
    pub(super) port: Option<u16>,
    pub(super) stepped_clock: bool,
    pub(super) tls: bool,
    users: Vec<String>,
    arguments: Vec<String>,
}

impl RedisOptions {
    /// Asks for this password of the default user.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Adds a user that has exactly these rights, such as `["~dlock:*", "+evalsha"]`.
    #[must_use]
    pub fn user(mut self, name: &str, password: &str, rights: &[&str]) -> Self {
        self.users.push(format!("user {name} reset on >{password} {}", rights.join(" ")));
        self
    }

    /// Listens with TLS too, for `localhost`, with certificates made for this server.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Keeps its data in an append-only file that is flushed to the disk as `policy` says: `always`, `everysec`, `no`.
    #[must_use]
    pub fn append_only(self, policy: &str) -> Self {
        self.argument("appendonly", "yes").argument("appendfsync", policy)
    }

    /// May use this many bytes, and then does what `policy` says, such as `noeviction`.
    #[must_use]
    pub fn max_memory(self, bytes: u64, policy: &str) -> Self {
        self.argument("maxmemory", &bytes.to_string()).argument("maxmemory-policy", policy)
    }

    /// Listens on this port instead of any free one.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Replicates the master at this address, which may be a proxy in front of it.
    #[must_use]
    pub fn replica_of(self, master: SocketAddr) -> Self {
        self.argument("replicaof", &format!("{} {}", master.ip(), master.port()))
    }

    /// Reads a wall clock that the test can step, see [`Running::clock`](crate::servers::Running::clock).
    #[must_use]
    pub fn stepped_clock(mut self) -> Self {
        self.stepped_clock = true;
        self
    }

    /// Any other setting of `redis.conf`.
    #[must_use]
    pub fn argument(mut self, name: &str, value: &str) -> Self {
        self.arguments.push(format!("--{name}"));
        self.arguments.extend(value.split(' ').map(str::to_owned));
        self
    }

    /// Starts it, and waits until it answers.
    ///
    /// # Errors
    ///
    /// When `redis-server` is missing or does not start.
    pub fn start(self) -> Result<RedisServer, ServerError> {
        RedisServer::start_with(self)
    }

    pub(super) fn write_users(&self, directory: &Path) -> Result<(), ServerError> {
        if self.users.is_empty() {
            return Ok(());
        }
        let password =
            self.password.as_ref().map_or_else(|| "nopass".to_owned(), |password| format!(">{password}"));
        let text = format!("user default on {password} ~* &* +@all\n{}\n", self.users.join("\n"));
        std::fs::write(directory.join(USERS), text).map_err(|error| ServerError::because(USERS, &error))
    }

    pub(super) fn arguments(&self, port: u16, tls_port: Option<u16>, directory: &Path) -> Vec<OsString> {
        let mut all = Vec::<OsString>::new();
        let mut set = |name: &str, value: &dyn AsRef<std::ffi::OsStr>| {
            all.push(format!("--{name}").into());
            all.push(value.as_ref().to_owned());
        };
        set("port", &port.to_string());
        set("bind", &"127.0.0.1");
        set("dir", &directory);
        set("unixsocket", &directory.join(UNIX_SOCKET));
        set("save", &"");
        if super::is_at_least_7() {
            set("enable-debug-command", &"local");
        }
        // A replica is there at once, instead of after five seconds.
        set("repl-diskless-sync-delay", &"0");
        if let Some(tls_port) = tls_port {
            set("tls-port", &tls_port.to_string());
            set("tls-cert-file", &directory.join(tls::CERTIFICATE));
            set("tls-key-file", &directory.join(tls::KEY));
            set("tls-ca-cert-file", &directory.join(tls::AUTHORITY));
            set("tls-auth-clients", &"no");
        }
        if !self.users.is_empty() {
            set("aclfile", &directory.join(USERS));
        } else if let Some(password) = &self.password {
            set("requirepass", password);
        }
        if let Some(password) = &self.password {
            set("masterauth", password);
        }
        all.extend(self.arguments.iter().map(OsString::from));
        all
    }
}
