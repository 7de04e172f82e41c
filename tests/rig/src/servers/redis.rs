//! Redis: one server, a master with a replica, a cluster, a master watched by sentinels.
//!
//! ```no_run
//! use dlock_rig::servers::redis::RedisServer;
//!
//! let mut server = RedisServer::start()?;
//! server.command::<()>(&["SET", "key", "value"]);
//! server.restart()?;
//! assert_eq!(server.command::<Option<String>>(&["GET", "key"]), None, "nothing is kept unless asked for");
//! # Ok::<(), dlock_rig::servers::ServerError>(())
//! ```

mod cluster;
mod options;
mod pair;
mod sentinel;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use redis::{Client, Connection, FromRedisValue, IntoConnectionInfo as _, RedisConnectionInfo, RedisResult};

use super::running::{Running, is_running};
use super::{Certificates, Ports, Process, Program, ServerError, SteppedClock, directory};

pub use cluster::RedisCluster;
pub use options::RedisOptions;
pub use pair::RedisPair;
pub use sentinel::RedisSentinel;

/// The server: `redis-server`, or what the environment variable `DLOCK_TEST_REDIS_SERVER` names, such as a
/// `valkey-server`.
static REDIS: LazyLock<Program> = LazyLock::new(|| {
    let named = std::env::var("DLOCK_TEST_REDIS_SERVER").map(|path| &*path.leak());
    Program { name: named.unwrap_or("redis-server"), package: "redis-server" }
});

/// Whether the server is Redis 7 or later, or Valkey. Earlier ones do not know all settings and commands.
#[must_use]
pub fn is_at_least_7() -> bool {
    static IS: LazyLock<bool> = LazyLock::new(|| {
        let said = std::process::Command::new(REDIS.name).arg("--version").output();
        let said =
            said.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        // As in `Redis server v=6.2.16 sha=...`.
        let version = said.split("v=").nth(1).and_then(|rest| rest.split('.').next()?.parse().ok());
        version.is_none_or(|version: u32| version >= 7)
    });
    *IS
}

/// How long a server may take to start.
const START: Duration = Duration::from_secs(90);

/// How long the first answer of a server may take.
const ANSWER: Duration = Duration::from_secs(10);

/// One Redis server.
pub struct RedisServer {
    running: Running,
    tls_port: Option<u16>,
    options: RedisOptions,
}

impl RedisServer {
    /// A server without password that keeps nothing when it is restarted.
    ///
    /// # Errors
    ///
    /// When `redis-server` is missing or does not start.
    pub fn start() -> Result<Self, ServerError> {
        RedisOptions::default().start()
    }

    /// For a server with other settings.
    #[must_use]
    pub fn options() -> RedisOptions {
        RedisOptions::default()
    }

    fn start_with(options: RedisOptions) -> Result<Self, ServerError> {
        let mut tries = 5;
        loop {
            match Self::start_once(options.clone()) {
                // Somebody else may have taken the port that was free a moment ago.
                Err(error) if options.port.is_none() && tries > 0 && error.to_string().contains("in use") => {
                    tries -= 1;
                }
                other => return other,
            }
        }
    }

    fn start_once(options: RedisOptions) -> Result<Self, ServerError> {
        let directory = directory::temporary()?;
        let clock =
            if options.stepped_clock { Some(SteppedClock::in_directory(directory.path())?) } else { None };
        let certificates =
            if options.tls { Some(Certificates::in_directory(directory.path())?) } else { None };
        let port = options.port.unwrap_or_else(Ports::free);
        let tls_port = options.tls.then(Ports::free);
        options.write_users(directory.path())?;
        let spawn =
            |port, directory: &Path, clock: Option<&_>| spawn(&options, port, tls_port, directory, clock);
        let running = Running::start(directory, port, clock, certificates, spawn)?;
        let mut server = Self { running, tls_port, options };
        server.wait_until_ready(START)?;
        Ok(server)
    }

    /// Waits until the server answers commands.
    ///
    /// # Errors
    ///
    /// When it ends, or does not answer within `limit`.
    pub fn wait_until_ready(&mut self, limit: Duration) -> Result<(), ServerError> {
        let client = self.client();
        self.running.process.wait_until_ready(limit, || {
            let ping = || -> RedisResult<String> {
                let mut connection = client.get_connection_with_timeout(ANSWER)?;
                connection.set_read_timeout(Some(ANSWER))?;
                redis::cmd("PING").query(&mut connection)
            };
            ping().map(drop).map_err(|error| error.to_string())
        })
    }

    /// `redis://` with the password, if it has one.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_through(self.address())
    }

    /// [`url`](Self::url), but to this address: a proxy in front of the server.
    #[must_use]
    pub fn url_through(&self, address: SocketAddr) -> String {
        match &self.options.password {
            Some(password) => format!("redis://:{password}@{address}"),
            None => format!("redis://{address}"),
        }
    }

    /// `redis://` for a user of its own, see [`RedisOptions::user`].
    #[must_use]
    pub fn url_as(&self, user: &str, password: &str) -> String {
        format!("redis://{user}:{password}@{}", self.address())
    }

    /// `rediss://localhost`, with [`RedisOptions::tls`].
    ///
    /// # Panics
    ///
    /// Without that option.
    #[must_use]
    pub fn tls_url(&self) -> String {
        format!("rediss://localhost:{}", self.tls_port.expect("started with `tls`"))
    }

    /// The path of its unix socket.
    #[must_use]
    pub fn unix_socket(&self) -> PathBuf {
        self.directory().join(options::UNIX_SOCKET)
    }

    /// Kills it and starts it again on the same port, with what it has on disk, and waits until it answers.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub fn restart(&mut self) -> Result<(), ServerError> {
        self.restart_at_once()?;
        self.wait_until_ready(START)
    }

    /// [`restart`](Self::restart) without waiting: the server may still be loading its data.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub fn restart_at_once(&mut self) -> Result<(), ServerError> {
        let Self { running, options, tls_port } = self;
        running.start_again(|port, directory, clock| spawn(options, port, *tls_port, directory, clock))
    }

    fn client(&self) -> Client {
        let mut settings = RedisConnectionInfo::default();
        if let Some(password) = &self.options.password {
            settings = settings.set_password(password);
        }
        let address = ("127.0.0.1", self.port()).into_connection_info().expect("an address");
        Client::open(address.set_redis_settings(settings)).expect("an address")
    }

    /// A connection of the administrator.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    #[must_use]
    pub fn admin(&self) -> Connection {
        self.try_admin()
            .unwrap_or_else(|error| panic!("redis-server at {}: {error}\n{}", self.port(), self.output()))
    }

    fn try_admin(&self) -> RedisResult<Connection> {
        // Not by a limit on reads, which every signal that this process gets would end early.
        if !self.is_running() {
            return Err((redis::ErrorKind::Io, "the server is frozen, or was killed").into());
        }
        loop {
            match self.client().get_connection_with_timeout(ANSWER) {
                // A signal, such as the end of a child process, ends what has a limit.
                Err(error) if is_interrupted(&error) => {}
                outcome => return outcome,
            }
        }
    }

    /// Runs one command as the administrator.
    ///
    /// # Panics
    ///
    /// When it fails.
    #[track_caller]
    pub fn command<T: FromRedisValue>(&self, words: &[&str]) -> T {
        self.try_command(words).unwrap_or_else(|error| panic!("{}: {error}", words.join(" ")))
    }

    /// Runs one command as the administrator.
    ///
    /// # Errors
    ///
    /// When it fails.
    pub fn try_command<T: FromRedisValue>(&self, words: &[&str]) -> RedisResult<T> {
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(word);
        }
        command.query(&mut self.try_admin()?)
    }

    /// Waits until a replica has acknowledged whatever was written so far, by anybody.
    ///
    /// # Errors
    ///
    /// When none did within 30 s.
    pub fn wait_for_a_replica(&self) -> Result<(), ServerError> {
        wait_until(START, || {
            let acknowledged = self.try_admin().and_then(|mut admin| {
                // WAIT is about what its own connection has seen, which is nothing before the first command.
                let (acknowledged,): (u32,) =
                    redis::pipe().cmd("PING").ignore().cmd("WAIT").arg(1).arg(1_000).query(&mut admin)?;
                Ok(acknowledged)
            });
            match acknowledged {
                Ok(0) => Err("no replica acknowledges anything".to_owned()),
                Ok(_) => Ok(()),
                Err(error) => Err(error.to_string()),
            }
        })
    }

    /// Every key of database 0, in order.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.command(&["KEYS", "*"]);
        keys.sort();
        keys
    }

    /// The channels that somebody is subscribed to.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    #[must_use]
    pub fn channels(&self) -> Vec<String> {
        self.command(&["PUBSUB", "CHANNELS"])
    }

    /// How many different things were denied to users since the start, by the server's log of them.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    #[must_use]
    pub fn denials(&self) -> usize {
        self.denied().len()
    }

    /// Which commands, keys and channels were denied to users since the start.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    #[must_use]
    pub fn denied(&self) -> Vec<String> {
        let entries: Vec<BTreeMap<String, redis::Value>> = self.command(&["ACL", "LOG"]);
        let what = |entry: &BTreeMap<String, redis::Value>| match entry.get("object") {
            Some(redis::Value::BulkString(name)) => String::from_utf8_lossy(name).into_owned(),
            other => format!("{other:?}"),
        };
        entries.iter().map(what).collect()
    }

    /// A field of `INFO`, such as `role`.
    ///
    /// # Panics
    ///
    /// When the server does not answer or has no such field.
    #[must_use]
    pub fn info(&self, field: &str) -> String {
        // A master that is made to follow another one cuts its connections.
        let asked = self.try_command(&["INFO", "everything"]);
        let all: String = match asked {
            Err(error) if error.is_connection_dropped() => self.command(&["INFO", "everything"]),
            asked => asked.unwrap_or_else(|error| panic!("INFO everything: {error}")),
        };
        let value = all.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.unwrap_or_else(|| panic!("INFO has no field {field}")).to_owned()
    }

    /// How often each command was run, also by scripts, since the start or `CONFIG RESETSTAT`.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    #[must_use]
    pub fn command_calls(&self) -> BTreeMap<String, u64> {
        let all: String = self.command(&["INFO", "commandstats"]);
        let calls = |line: &str| {
            let (name, figures) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            Some((name.to_owned(), figures.split(',').next()?.parse().ok()?))
        };
        all.lines().filter_map(calls).collect()
    }
}

is_running!(RedisServer);

fn spawn(
    options: &RedisOptions,
    port: u16,
    tls_port: Option<u16>,
    directory: &Path,
    clock: Option<&SteppedClock>,
) -> Result<Process, ServerError> {
    let environment = clock.map(SteppedClock::environment).into_iter().flatten();
    Process::start(*REDIS, options.arguments(port, tls_port, directory), environment, directory)
}

/// Waits until `ready` holds.
fn wait_until(limit: Duration, mut ready: impl FnMut() -> Result<(), String>) -> Result<(), ServerError> {
    let end = std::time::Instant::now() + limit;
    loop {
        match ready() {
            Ok(()) => return Ok(()),
            Err(why) if std::time::Instant::now() > end => {
                return Err(ServerError::new(format!("not ready after {limit:?}: {why}")));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

fn is_interrupted(error: &redis::RedisError) -> bool {
    type Shared = std::sync::Arc<dyn std::error::Error + Send + Sync>;
    std::error::Error::source(error)
        .and_then(|source| source.downcast_ref::<Shared>())
        .and_then(|source| source.downcast_ref::<std::io::Error>())
        .is_some_and(|error| error.kind() == std::io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests;
