//! How a server is started.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use super::super::tls;
use super::admin::SUPERUSER_DIGEST;
use super::{ServerError, ZooKeeperServer};

/// Debian's, which names the other libraries that it needs.
const LIBRARY: &str = "/usr/share/java/zookeeper.jar";

/// What the server logs with.
const LOGGER: &str = "/usr/share/java/slf4j-simple.jar";

/// What a server with TLS needs besides.
const NETTY: &str = "/usr/share/java/netty-codec.jar:/usr/share/java/netty-resolver.jar:\
    /usr/share/java/netty-transport-native-unix-common.jar";

/// Names a directory with the libraries of another release, to be used in place of Debian's.
const OTHER: &str = "DLOCK_TEST_ZOOKEEPER";

const CONFIG: &str = "zoo.cfg";

/// The libraries of the server, as a Java class path.
fn libraries(tls: bool) -> Result<String, ServerError> {
    if let Ok(other) = std::env::var(OTHER) {
        return Ok(format!("{other}/*"));
    }
    if !Path::new(LIBRARY).exists() {
        return Err(ServerError::new(format!(
            "{LIBRARY} is missing; install it with `sudo apt-get install --yes zookeeper`, or run \
             `cargo xtask test`, which does"
        )));
    }
    let libraries = format!("{LIBRARY}:{LOGGER}");
    Ok(if tls { format!("{libraries}:{NETTY}") } else { libraries })
}

/// How a [`ZooKeeperServer`] is started.
#[derive(Clone, Debug)]
pub struct ZooKeeperOptions {
    pub(super) port: Option<u16>,
    pub(super) tick: Duration,
    settings: Vec<(String, String)>,
    properties: Vec<(String, String)>,
    pub(super) id: Option<u8>,
    pub(super) tls: bool,
}

impl Default for ZooKeeperOptions {
    fn default() -> Self {
        Self {
            port: None,
            tick: Duration::from_millis(100),
            settings: Vec::new(),
            properties: Vec::new(),
            id: None,
            tls: false,
        }
    }
}

impl ZooKeeperOptions {
    /// Listens on this port instead of any free one.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// How finely the server measures time: sessions end up to this much later than they could. Default 100 ms.
    #[must_use]
    pub fn tick(mut self, tick: Duration) -> Self {
        self.tick = tick;
        self
    }

    /// How often empty containers are looked for, instead of once a minute.
    #[must_use]
    pub fn container_check(self, every: Duration) -> Self {
        self.property("znode.container.checkIntervalMs", &every.as_millis().to_string())
    }

    /// Any other setting of `zoo.cfg`.
    #[must_use]
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Any other system property of the Java machine.
    #[must_use]
    pub fn property(mut self, name: &str, value: &str) -> Self {
        self.properties.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Listens with TLS too, as `localhost`, on a port of its own.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// The settings of TLS, by certificates that are in `directory`.
    pub(super) fn secured(self, port: u16, directory: &Path) -> Result<Self, ServerError> {
        let read = |name| {
            std::fs::read_to_string(directory.join(name)).map_err(|error| ServerError::because(name, &error))
        };
        // The key first, then who it belongs to.
        let identity = format!("{}{}", read(tls::KEY)?, read(tls::CERTIFICATE)?);
        let store = directory.join("identity.pem");
        std::fs::write(&store, identity).map_err(|error| ServerError::because("identity.pem", &error))?;
        let text = |path: &Path| path.display().to_string();
        Ok(self
            .setting("serverCnxnFactory", "org.apache.zookeeper.server.NettyServerCnxnFactory")
            .setting("secureClientPort", &port.to_string())
            .setting("secureClientPortAddress", "127.0.0.1")
            .setting("ssl.keyStore.location", &text(&store))
            .setting("ssl.trustStore.location", &text(&directory.join(tls::AUTHORITY)))
            .setting("ssl.clientAuth", "none"))
    }

    /// Is this one of an ensemble.
    pub(super) fn member(mut self, id: u8) -> Self {
        self.id = Some(id);
        self
    }

    /// Starts it, and waits until it serves.
    ///
    /// # Errors
    ///
    /// When ZooKeeper is missing or does not start.
    pub fn start(self) -> Result<ZooKeeperServer, ServerError> {
        ZooKeeperServer::start_with(self)
    }

    /// Writes what the server reads when it starts.
    pub(super) fn write(&self, port: u16, directory: &Path) -> Result<(), ServerError> {
        let data = directory.join("data");
        let mut text = format!(
            "tickTime={tick}\nminSessionTimeout={tick}\nmaxSessionTimeout=600000\ndataDir={data}\nclientPort={port}\n\
             clientPortAddress=127.0.0.1\nadmin.enableServer=false\n4lw.commands.whitelist=*\nmaxClientCnxns=0\n",
            tick = self.tick.as_millis(),
            data = data.display(),
        );
        for (name, value) in &self.settings {
            writeln!(text, "{name}={value}").expect("a text grows");
        }
        let file = |error| ServerError::because(directory.display(), &error);
        std::fs::create_dir_all(&data).map_err(file)?;
        if let Some(id) = self.id {
            std::fs::write(data.join("myid"), id.to_string()).map_err(file)?;
        }
        std::fs::write(directory.join(CONFIG), text).map_err(file)
    }

    pub(super) fn arguments(&self, directory: &Path) -> Result<Vec<OsString>, ServerError> {
        let libraries = libraries(self.tls)?;
        // A small machine that is up at once; what was written is safe from a crash of the process as it is.
        let mut all: Vec<OsString> = ["-Xms16m", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
            .into_iter()
            .chain([
                "-XX:-UsePerfData",
                "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
                "-Dzookeeper.forceSync=no",
            ])
            .map(OsString::from)
            .collect();
        all.push(format!("-Dzookeeper.DigestAuthenticationProvider.superDigest={SUPERUSER_DIGEST}").into());
        all.extend(self.properties.iter().map(|(name, value)| format!("-D{name}={value}").into()));
        let main = if self.id.is_some() { "quorum.QuorumPeerMain" } else { "ZooKeeperServerMain" };
        all.extend(["-cp".into(), libraries.into()]);
        all.extend([format!("org.apache.zookeeper.server.{main}").into(), directory.join(CONFIG).into()]);
        Ok(all)
    }
}
