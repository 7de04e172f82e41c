//! A server, the ways to it, and what an administrator does there.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::ValueEnum;
use dlock_rig::proxy::{Jute, Pgwire, Proxy, Resp};
use dlock_rig::servers::postgres::PostgresServer;
use dlock_rig::servers::redis::RedisServer;
use dlock_rig::servers::zookeeper::ZooKeeperServer;

use crate::contender::Contender;
use crate::peers::{Peer, Programs};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Store {
    Redis,
    #[value(name = "zookeeper")]
    ZooKeeper,
    Postgres,
}

impl Store {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Redis => "Redis",
            Self::ZooKeeper => "ZooKeeper",
            Self::Postgres => "PostgreSQL",
        }
    }

    /// The request whose answer grants a lock; any where nothing else is sent.
    pub(crate) const fn grants(self) -> &'static str {
        match self {
            Self::Redis => "",
            Self::ZooKeeper => "CREATE",
            Self::Postgres => "EXECUTE",
        }
    }

    pub(crate) fn url(self, address: SocketAddr) -> String {
        match self {
            Self::Redis => format!("redis://{address}"),
            Self::ZooKeeper => format!("zk://{address}"),
            Self::Postgres => format!("postgres://postgres@{address}/postgres?sslmode=disable"),
        }
    }
}

#[derive(Debug)]
enum Server {
    Redis(RedisServer),
    ZooKeeper(ZooKeeperServer),
    Postgres(PostgresServer),
}

/// A library at a server that was started.
#[derive(Debug)]
pub(crate) struct Stage<'a> {
    pub(crate) peer: Peer,
    pub(crate) lease: Duration,
    pub(crate) volume: Volume,
    hall: &'a Hall,
    programs: &'a Programs,
}

/// How much is done, and what it hangs on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Volume {
    pub(crate) quick: bool,
    pub(crate) seed: u64,
}

impl Volume {
    pub(crate) const fn of(self, full: usize, quick: usize) -> usize {
        if self.quick { quick } else { full }
    }
}

/// A server that is used by all libraries of its store, one after the other.
#[derive(Debug)]
pub(crate) struct Hall {
    server: Server,
    keys: AtomicU64,
}

/// How often sessions are looked at, as ZooKeeper has it by default.
const TICK: Duration = Duration::from_secs(2);

impl Hall {
    pub(crate) fn start(store: Store, quick: bool) -> Result<Self> {
        let server = match store {
            Store::Redis => Server::Redis(RedisServer::start()?),
            Store::ZooKeeper if quick => Server::ZooKeeper(ZooKeeperServer::start()?),
            Store::ZooKeeper => Server::ZooKeeper(ZooKeeperServer::options().tick(TICK).start()?),
            Store::Postgres => {
                Server::Postgres(PostgresServer::options().setting("max_connections", "1300").start()?)
            }
        };
        Ok(Self { server, keys: AtomicU64::new(0) })
    }

    fn address(&self) -> SocketAddr {
        match &self.server {
            Server::Redis(server) => server.address(),
            Server::ZooKeeper(server) => server.address(),
            Server::Postgres(server) => server.address(),
        }
    }
}

impl<'a> Stage<'a> {
    pub(crate) fn new(
        peer: Peer,
        lease: Duration,
        volume: Volume,
        hall: &'a Hall,
        programs: &'a Programs,
    ) -> Self {
        Self { peer, lease, volume, hall, programs }
    }

    /// The same, with another lease.
    pub(crate) fn with_lease(&self, lease: Duration) -> Self {
        Self { lease, ..*self }
    }

    /// A proxy in front of the server.
    pub(crate) fn proxy(&self) -> Result<Proxy> {
        let address = self.hall.address();
        Ok(match self.peer.store {
            Store::Redis => Proxy::speaking(Resp, address)?,
            Store::ZooKeeper => Proxy::speaking(Jute::default(), address)?,
            Store::Postgres => Proxy::speaking(Pgwire::default(), address)?,
        })
    }

    /// A process of the library at the server.
    pub(crate) async fn open(&self) -> Result<Contender> {
        self.open_at(self.hall.address()).await
    }

    /// A process of the library behind a proxy.
    pub(crate) async fn open_behind(&self, proxy: &Proxy) -> Result<Contender> {
        self.open_at(proxy.address()).await
    }

    async fn open_at(&self, address: SocketAddr) -> Result<Contender> {
        Contender::start(self.peer.command(self.programs, address, self.lease)?).await
    }

    /// Keys that nobody has used.
    pub(crate) fn keys(&self, count: usize) -> Vec<String> {
        (0..count).map(|_| format!("key-{}", self.hall.keys.fetch_add(1, Ordering::Relaxed))).collect()
    }

    /// Takes a lock away from its holder. False where only the end of its session does that.
    pub(crate) fn delete(&self, key: &str) -> Result<bool> {
        let place = format!("{}{key}", self.peer.place);
        let deleted = match &self.hall.server {
            Server::Redis(server) => server.command::<u32>(&["DEL", &place]) == 1,
            Server::ZooKeeper(server) => {
                let nodes = server.admin().children(&place);
                nodes.iter().for_each(|node| server.admin().delete(&format!("{place}/{node}")));
                !nodes.is_empty()
            }
            Server::Postgres(_) if self.peer.has_sessions() => return Ok(false),
            Server::Postgres(server) => {
                let freed = format!("UPDATE dlock SET token = NULL WHERE key = '{key}' RETURNING true");
                server.query(&freed) == "t"
            }
        };
        ensure!(deleted, "there was nothing to delete of {place}");
        Ok(true)
    }

    /// Ends the connections and sessions of all clients, as an administrator does, or the server after a long pause.
    pub(crate) fn end_sessions(&self) {
        match &self.hall.server {
            Server::Redis(server) => drop(server.command::<u32>(&["CLIENT", "KILL", "TYPE", "normal"])),
            Server::ZooKeeper(server) => server.admin().expire_all(),
            Server::Postgres(server) => drop(server.disconnect_all()),
        }
    }
}
