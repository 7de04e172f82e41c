//! How a server is started.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use super::super::tls;
use super::{EtcdServer, Ports, ServerError};

/// How an [`EtcdServer`] is started.
#[derive(Clone, Debug, Default)]
pub struct EtcdOptions {
    pub(super) password: Option<String>,
    pub(super) port: Option<u16>,
    pub(super) stepped_clock: bool,
    pub(super) tls: bool,
    pub(super) users: Vec<User>,
    arguments: Vec<String>,
}

/// A user who may read and write below some prefixes.
#[derive(Clone, Debug)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) password: String,
    pub(super) prefixes: Vec<String>,
}

impl EtcdOptions {
    /// Asks for a name and a password, and this is the password of the administrator, `root`.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Adds a user who may read and write the keys that begin with one of `prefixes`. Only where it asks for a
    /// [`password`](Self::password) are there users.
    #[must_use]
    pub fn user(mut self, name: &str, password: &str, prefixes: &[&str]) -> Self {
        let prefixes = prefixes.iter().map(|&prefix| prefix.to_owned()).collect();
        self.users.push(User { name: name.to_owned(), password: password.to_owned(), prefixes });
        self
    }

    /// Listens with TLS too, for `localhost`, with certificates made for this server.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Refuses to grow beyond this many bytes on disk, until the alarm that it then raises is
    /// [disarmed](super::EtcdAdministrator::disarm). An empty server has 20 KiB.
    #[must_use]
    pub fn quota(self, bytes: u64) -> Self {
        self.argument("quota-backend-bytes", &bytes.to_string())
    }

    /// The leader tells the others this often that it is there, and they elect another one when they have not heard of
    /// it for `timeout`; 100 ms and a second by default. One and a half timeouts, in whole seconds, are the shortest
    /// time of a lease.
    #[must_use]
    pub fn election(self, heartbeat: Duration, timeout: Duration) -> Self {
        self.argument("heartbeat-interval", &heartbeat.as_millis().to_string())
            .argument("election-timeout", &timeout.as_millis().to_string())
    }

    /// Listens on this port instead of any free one.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Reads a wall clock that the test can step, see [`Running::clock`](crate::servers::Running::clock).
    #[must_use]
    pub fn stepped_clock(mut self) -> Self {
        self.stepped_clock = true;
        self
    }

    /// Any other option of `etcd`.
    #[must_use]
    pub fn argument(mut self, name: &str, value: &str) -> Self {
        self.arguments.push(format!("--{name}={value}"));
        self
    }

    /// Starts it, and waits until it serves.
    ///
    /// # Errors
    ///
    /// When `etcd` is missing or does not start.
    pub fn start(self) -> Result<EtcdServer, ServerError> {
        EtcdServer::start_with(self)
    }

    /// The administrator, as a URL names a user.
    pub(super) fn who(&self) -> String {
        self.password.as_ref().map_or_else(String::new, |password| format!("root:{password}@"))
    }

    pub(super) fn arguments(
        &self,
        member: &Member,
        port: u16,
        tls_port: Option<u16>,
        directory: &Path,
    ) -> Vec<OsString> {
        let mut all = Vec::<OsString>::new();
        let mut set = |name: &str, value: &dyn AsRef<std::ffi::OsStr>| {
            all.push(format!("--{name}").into());
            all.push(value.as_ref().to_owned());
        };
        let mut listen = format!("http://127.0.0.1:{port}");
        set("name", &member.name);
        set("data-dir", &directory.join("data"));
        set("advertise-client-urls", &listen);
        if let Some(tls_port) = tls_port {
            listen.push_str(&format!(",https://127.0.0.1:{tls_port}"));
            set("cert-file", &directory.join(tls::CERTIFICATE));
            set("key-file", &directory.join(tls::KEY));
        }
        set("listen-client-urls", &listen);
        set("listen-peer-urls", &format!("http://127.0.0.1:{}", member.peer_port));
        set("initial-advertise-peer-urls", &member.peer_url());
        set("initial-cluster", &member.cluster);
        set("logger", &"zap");
        set("log-outputs", &"stderr");
        all.extend(self.arguments.iter().map(OsString::from));
        all
    }
}

/// What a server is to the other members of its cluster.
#[derive(Clone, Debug)]
pub(super) struct Member {
    name: String,
    peer_port: u16,
    /// All members, as each of them has to be started with them.
    cluster: String,
    /// The SOCKS proxy by which it reaches the others.
    front: Option<SocketAddr>,
}

impl Member {
    /// The only one.
    pub(super) fn alone() -> Self {
        let mut member =
            Self { name: "m0".to_owned(), peer_port: Ports::free(), cluster: String::new(), front: None };
        member.cluster = member.in_cluster();
        member
    }

    /// One of those who listen on these ports, which reaches the others by `front`.
    pub(super) fn of(peer_ports: &[u16], index: usize, front: SocketAddr) -> Self {
        let member = |index: usize| Self {
            name: format!("m{index}"),
            peer_port: peer_ports[index],
            cluster: String::new(),
            front: Some(front),
        };
        let all: Vec<String> = (0..peer_ports.len()).map(|index| member(index).in_cluster()).collect();
        Self { cluster: all.join(","), ..member(index) }
    }

    /// What the other members reach it by: an address of this machine that Go does not take for one, since it asks no
    /// proxy for those.
    fn peer_url(&self) -> String {
        format!("http://0.0.0.0:{}", self.peer_port)
    }

    fn in_cluster(&self) -> String {
        format!("{}={}", self.name, self.peer_url())
    }

    pub(super) fn environment(&self) -> Vec<(&'static str, OsString)> {
        let Some(front) = self.front else { return Vec::new() };
        let front = format!("socks5://{front}");
        // Whatever else is set must not lead past it.
        vec![("HTTP_PROXY", front.into()), ("NO_PROXY", "".into()), ("no_proxy", "".into())]
    }
}
