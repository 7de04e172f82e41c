//! What the locks are kept in.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clap::ValueEnum;
use dlock::{Guard, Lock, Locks, Memory};
use dlock_testkit::proxy::{Jute, Proxy, Resp};
use dlock_testkit::servers::redis::RedisServer;
use dlock_testkit::servers::zookeeper::{Administrator, ZooKeeperServer};
use dlock_testkit::worker::Worker;

use crate::Failed;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    Memory,
    Sqlite,
    Redis,
    Zk,
}

/// A server that keeps locks.
#[derive(Debug)]
pub(crate) enum Server {
    Redis(RedisServer),
    ZooKeeper(ZooKeeperServer),
}

impl Server {
    pub(crate) fn pause(&self) {
        match self {
            Self::Redis(server) => server.pause(),
            Self::ZooKeeper(server) => server.pause(),
        }
    }

    pub(crate) fn resume(&self) {
        match self {
            Self::Redis(server) => server.resume(),
            Self::ZooKeeper(server) => server.resume(),
        }
    }

    /// Kills it and starts it again, with what it has on disk.
    pub(crate) fn restart(&mut self) -> Result<(), Failed> {
        match self {
            Self::Redis(server) => Ok(server.restart()?),
            Self::ZooKeeper(server) => Ok(server.restart()?),
        }
    }

    fn address(&self) -> SocketAddr {
        match self {
            Self::Redis(server) => server.address(),
            Self::ZooKeeper(server) => server.address(),
        }
    }

    /// The URL that leads to it by way of `address`. The session of ZooKeeper, which is given there, is the lease.
    fn url_through(&self, address: SocketAddr, lease: Duration) -> String {
        match self {
            Self::Redis(server) => server.url_through(address),
            Self::ZooKeeper(_) => format!("zk://{address}?session_timeout={}ms", lease.as_millis()),
        }
    }

    /// Who can delete locks, by way of a connection that is there already.
    pub(crate) fn admin(&self) -> Admin {
        match self {
            Self::Redis(server) => Admin::Redis(Box::new(server.admin())),
            Self::ZooKeeper(server) => Admin::ZooKeeper(server.admin()),
        }
    }
}

/// Somebody who deletes locks.
pub(crate) enum Admin {
    Redis(Box<redis::Connection>),
    ZooKeeper(Administrator),
}

impl Admin {
    /// Takes a lock away from its holder.
    pub(crate) fn delete(&mut self, key: &str) -> Result<(), Failed> {
        let there = match self {
            Self::Redis(connection) => {
                redis::cmd("DEL").arg(format!("dlock:{key}")).query::<u32>(connection)? == 1
            }
            Self::ZooKeeper(admin) => {
                let places = admin.children(&format!("/dlock/{key}"));
                places.iter().for_each(|place| admin.delete(&format!("/dlock/{key}/{place}")));
                !places.is_empty()
            }
        };
        there.then_some(()).ok_or_else(|| "there was nothing to delete".into())
    }
}

/// A store of locks that is empty at first.
#[derive(Debug)]
pub(crate) struct Store {
    kind: Kind,
    memory: Memory,
    server: Option<Mutex<Server>>,
    directory: tempfile::TempDir,
    keys: AtomicU64,
}

impl Store {
    pub(crate) fn new(kind: Kind) -> Result<Self, Failed> {
        let memory = Memory::new();
        // Gives what is cancelled an await point on the way there and one on the way back.
        memory.faults().set_stepping(true);
        // The server has to keep its data when it is killed. With `everysec` it answers before it has written while its
        // disk is busy.
        let server = match kind {
            Kind::Redis => Some(Server::Redis(RedisServer::options().append_only("always").start()?)),
            Kind::Zk => Some(Server::ZooKeeper(ZooKeeperServer::start()?)),
            Kind::Memory | Kind::Sqlite => None,
        };
        let server = server.map(Mutex::new);
        Ok(Self { kind, memory, server, directory: tempfile::tempdir()?, keys: AtomicU64::new(0) })
    }

    pub(crate) const fn name(&self) -> &'static str {
        match self.kind {
            Kind::Memory => "memory",
            Kind::Sqlite => "SQLite",
            Kind::Redis => "Redis",
            Kind::Zk => "ZooKeeper",
        }
    }

    pub(crate) const fn kind(&self) -> Kind {
        self.kind
    }

    pub(crate) fn url(&self, lease: Duration) -> String {
        match self.server() {
            Some(server) => server.url_through(server.address(), lease),
            None => format!("sqlite://{}", self.directory.path().join("locks.db").display()),
        }
    }

    /// The server that keeps the locks, where there is one.
    pub(crate) fn server(&self) -> Option<MutexGuard<'_, Server>> {
        let server = self.server.as_ref()?;
        Some(server.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A way to the server that can be made to fail, where there is a server, and the URL that leads over it.
    pub(crate) fn proxy(&self, lease: Duration) -> Result<Option<(Proxy, String)>, Failed> {
        let Some(server) = self.server() else { return Ok(None) };
        let proxy = match *server {
            Server::Redis(_) => Proxy::speaking(Resp, server.address())?,
            Server::ZooKeeper(_) => Proxy::speaking(Jute::default(), server.address())?,
        };
        let url = server.url_through(proxy.address(), lease);
        Ok(Some((proxy, url)))
    }

    /// The store, opened as by a process of its own.
    pub(crate) async fn locks(&self, lease: Duration) -> Result<Locks, Failed> {
        let builder = match self.kind {
            Kind::Memory => Locks::builder(self.memory.clone()),
            Kind::Sqlite | Kind::Redis | Kind::Zk => dlock::from_url(&self.url(lease)).await?,
        };
        Ok(builder.with_lease(lease).build()?)
    }

    /// What starts a process of its own: this program.
    pub(crate) fn command(&self) -> Result<Command, Failed> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("worker");
        Ok(command)
    }

    /// A process of its own with the store open.
    pub(crate) async fn worker(&self, lease: Duration) -> Result<Worker, Failed> {
        Ok(Worker::open(self.command()?, &self.url(lease), lease).await?)
    }

    /// A key that no other call returned.
    pub(crate) fn key(&self) -> String {
        format!("key-{}", self.keys.fetch_add(1, Ordering::Relaxed))
    }

    /// A file of its own.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(format!("{name}-{}", self.keys.fetch_add(1, Ordering::Relaxed)))
    }
}

/// How many of `keys` are held.
pub(crate) async fn held(locks: &Locks, keys: &[String]) -> Result<usize, Failed> {
    let mut held = 0;
    for key in keys {
        held += usize::from(locks.inspect(key).await?.is_some());
    }
    Ok(held)
}

/// Acquires, and tries again where the error says that it may be worth while: a machine that is busy with other things makes
/// requests late. Counts the errors in `failed`.
pub(crate) async fn acquire(lock: &Lock, failed: &AtomicU64) -> Result<Guard, Failed> {
    let mut tries = 0;
    loop {
        match lock.acquire().await {
            Ok(guard) => return Ok(guard),
            Err(error) if error.is_retryable() && tries < 50 => {
                tries += 1;
                failed.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => return Err(error.into()),
        }
    }
}
