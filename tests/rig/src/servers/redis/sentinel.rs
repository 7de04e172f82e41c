//! A master and its replica, watched by three sentinels.

use std::net::SocketAddr;
use std::time::Duration;

use redis::{Client, RedisResult};
use tempfile::TempDir;

use super::super::directory;
use super::{ANSWER, REDIS, RedisOptions, RedisServer, START, ServerError, wait_until};
use crate::servers::{Ports, Process};

/// The name under which the sentinels know the master.
const MASTER: &str = "locks";

/// Two servers, one of them the master, and three sentinels that promote the other one when it dies.
#[derive(Debug)]
pub struct RedisSentinel {
    servers: [RedisServer; 2],
    sentinels: Vec<Sentinel>,
}

#[derive(Debug)]
struct Sentinel {
    _process: Process,
    port: u16,
    _directory: TempDir,
}

impl RedisSentinel {
    /// Sentinels that know each other and the replica, so that they can fail over from now on.
    ///
    /// # Errors
    ///
    /// When `redis-server` is missing or does not start, or the sentinels do not come together.
    pub fn start() -> Result<Self, ServerError> {
        Self::start_with(RedisOptions::default())
    }

    /// The same with these options for the servers.
    ///
    /// # Errors
    ///
    /// When `redis-server` is missing or does not start, or the sentinels do not come together.
    pub fn start_with(options: RedisOptions) -> Result<Self, ServerError> {
        let password = options.password.clone();
        let master = options.clone().start()?;
        let replica = options.replica_of(master.address()).start()?;
        wait_until(START, || {
            let link = replica.info("master_link_status");
            (link == "up").then_some(()).ok_or_else(|| format!("the replica's link is {link}"))
        })?;
        let sentinels = (0..3)
            .map(|_| Sentinel::start(master.address(), password.as_deref()))
            .collect::<Result<Vec<_>, _>>()?;
        let watched = Self { servers: [master, replica], sentinels };
        wait_until(START, || {
            for sentinel in &watched.sentinels {
                let known = sentinel.master_state().map_err(|error| error.to_string())?;
                let of =
                    |name: &str| known.iter().position(|word| word == name).map_or("", |at| &known[at + 1]);
                if of("num-other-sentinels") != "2" || of("num-slaves") != "1" || of("flags") != "master" {
                    return Err(format!("{known:?}"));
                }
            }
            Ok(())
        })?;
        Ok(watched)
    }

    /// `redis+sentinel://` with every sentinel and the name of the master.
    #[must_use]
    pub fn url(&self) -> String {
        let sentinels: Vec<String> =
            self.sentinels.iter().map(|it| format!("127.0.0.1:{}", it.port)).collect();
        format!("redis+sentinel://{}/{MASTER}", sentinels.join(","))
    }

    /// Where the sentinels listen.
    #[must_use]
    pub fn sentinels(&self) -> Vec<SocketAddr> {
        self.sentinels.iter().map(|it| ([127, 0, 0, 1], it.port).into()).collect()
    }

    /// The name under which the sentinels know the master.
    #[must_use]
    pub fn master_name(&self) -> &'static str {
        MASTER
    }

    /// The two servers. The first one was the master at the start.
    #[must_use]
    pub fn servers(&self) -> &[RedisServer; 2] {
        &self.servers
    }

    /// One of the two servers.
    ///
    /// # Panics
    ///
    /// When `index` is above 1.
    pub fn server_mut(&mut self, index: usize) -> &mut RedisServer {
        &mut self.servers[index]
    }

    /// Which of the servers the sentinels call the master, when most of them agree and it says so itself.
    #[must_use]
    pub fn master(&self) -> Option<usize> {
        let says = |index: &usize| {
            let port = self.servers[*index].port().to_string();
            let votes =
                self.sentinels.iter().filter(|it| it.master_port().is_ok_and(|told| told == port)).count();
            votes >= 2
        };
        let index = (0..2).find(says)?;
        let server = &self.servers[index];
        (server.is_running() && server.info("role") == "master").then_some(index)
    }

    /// Waits until the other server than `old` is the master.
    ///
    /// # Errors
    ///
    /// When that takes too long.
    pub fn wait_for_failover(&self, old: usize) -> Result<(), ServerError> {
        wait_until(START, || match self.master() {
            Some(index) if index != old => Ok(()),
            other => Err(format!("the master is still {other:?}")),
        })
    }
}

impl Sentinel {
    fn start(master: SocketAddr, password: Option<&str>) -> Result<Self, ServerError> {
        let directory = directory::temporary()?;
        let port = Ports::free();
        let auth =
            password.map(|password| format!("sentinel auth-pass {MASTER} {password}\n")).unwrap_or_default();
        // A file, because sentinels write down there what they learn.
        let text = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\n\
             sentinel monitor {MASTER} {} {} 2\n{auth}\
             sentinel down-after-milliseconds {MASTER} 500\n\
             sentinel failover-timeout {MASTER} 3000\n",
            directory.path().display(),
            master.ip(),
            master.port(),
        );
        let config = directory.path().join("sentinel.conf");
        std::fs::write(&config, text).map_err(|error| ServerError::because(config.display(), &error))?;
        let arguments = [config.as_os_str(), "--sentinel".as_ref()];
        let mut process = Process::start(*REDIS, arguments, [("LC_ALL", "C")], directory.path())?;
        let ready = || Self::ask(port, &["PING"]).map(|_: String| ()).map_err(|error| error.to_string());
        process.wait_until_ready(Duration::from_secs(10), ready)?;
        Ok(Self { _process: process, port, _directory: directory })
    }

    fn ask<T: redis::FromRedisValue>(port: u16, words: &[&str]) -> RedisResult<T> {
        let mut connection = Client::open(("127.0.0.1", port))?.get_connection_with_timeout(ANSWER)?;
        connection.set_read_timeout(Some(ANSWER))?;
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(word);
        }
        command.query(&mut connection)
    }

    fn master_state(&self) -> RedisResult<Vec<String>> {
        Self::ask(self.port, &["SENTINEL", "MASTER", MASTER])
    }

    fn master_port(&self) -> RedisResult<String> {
        let address: Vec<String> = Self::ask(self.port, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER])?;
        Ok(address.into_iter().nth(1).unwrap_or_default())
    }
}
