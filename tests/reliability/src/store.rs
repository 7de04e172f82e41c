//! What the locks are kept in.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use dlock::{Guard, Lock, Locks, Memory};
use dlock_rig::proxy::{self, Grpc, Jute, Pgwire, Proxy, Resp};
use dlock_rig::servers::etcd::EtcdServer;
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_rig::servers::redis::RedisServer;
use dlock_rig::servers::zookeeper::{Administrator, ZooKeeperServer};
use dlock_rig::worker::Worker;

use crate::Failed;
use crate::cluster::{self, Cluster};

/// For how long a question is asked again: a busy machine makes answers late.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    Memory,
    Sqlite,
    Redis,
    Zk,
    Etcd,
    EtcdCluster,
    Postgres,
    Mysql,
    PostgresSession,
    MysqlSession,
}

impl Kind {
    /// Whether a lock lives as long as a connection, and not by a lease.
    pub(crate) const fn is_session(self) -> bool {
        matches!(self, Self::PostgresSession | Self::MysqlSession)
    }

    /// Whether the record of a session can keep a lock.
    pub(crate) const fn has_session_records(self) -> bool {
        matches!(self, Self::Memory | Self::Sqlite | Self::Redis | Self::Postgres | Self::Mysql)
    }

    /// The lease of those who fight under random faults, which is short, so that there is time for many.
    pub(crate) const fn lease(self) -> Duration {
        if self.is_etcd() { Duration::from_secs(1) } else { Duration::from_millis(500) }
    }

    /// Whether it is etcd, whose leases are counted in whole seconds and looked at twice a second.
    pub(crate) const fn is_etcd(self) -> bool {
        matches!(self, Self::Etcd | Self::EtcdCluster)
    }
}

/// A server that keeps locks.
#[derive(Debug)]
pub(crate) enum Server {
    Redis(RedisServer),
    ZooKeeper(ZooKeeperServer),
    Etcd(EtcdServer),
    EtcdCluster(Cluster),
    Postgres(PostgresServer),
    Mysql(MysqlServer),
}

/// The same call on whichever server it is.
macro_rules! whichever {
    ($server:expr, $it:ident => $call:expr) => {
        match $server {
            Server::Redis($it) => $call,
            Server::ZooKeeper($it) => $call,
            Server::Etcd($it) => $call,
            Server::EtcdCluster($it) => $call,
            Server::Postgres($it) => $call,
            Server::Mysql($it) => $call,
        }
    };
}

impl Server {
    /// A server that keeps its data when it is killed, and lets in all processes of an arena at once.
    fn start(kind: Kind) -> Result<Option<Self>, Failed> {
        Ok(Some(match kind {
            // With `everysec` it answers before it has written while its disk is busy.
            Kind::Redis => Self::Redis(RedisServer::options().append_only("always").start()?),
            Kind::Zk => Self::ZooKeeper(ZooKeeperServer::start()?),
            Kind::Etcd => Self::Etcd(cluster::options().start()?),
            Kind::EtcdCluster => Self::EtcdCluster(Cluster::start()?),
            Kind::Postgres | Kind::PostgresSession => {
                Self::Postgres(PostgresServer::options().setting("max_connections", "500").start()?)
            }
            Kind::Mysql | Kind::MysqlSession => {
                Self::Mysql(MysqlServer::options().setting("max-connections", "500").start()?)
            }
            Kind::Memory | Kind::Sqlite => return Ok(None),
        }))
    }

    pub(crate) fn pause(&self) {
        whichever!(self, server => server.pause());
    }

    pub(crate) fn resume(&self) {
        whichever!(self, server => server.resume());
    }

    /// Kills it and starts it again, with what it has on disk.
    pub(crate) fn restart(&mut self) -> Result<(), Failed> {
        Ok(whichever!(self, server => server.restart())?)
    }

    fn address(&self) -> SocketAddr {
        whichever!(self, server => server.address())
    }

    /// The URL that leads to it by way of `address`. The session of ZooKeeper, which is given there, is the lease.
    fn url_through(&self, address: SocketAddr, lease: Duration) -> String {
        match self {
            Self::Redis(server) => server.url_through(address),
            Self::ZooKeeper(_) => {
                format!("zk://{address}?tick_time=100ms&session_timeout={}ms", lease.as_millis())
            }
            Self::Etcd(server) => server.url_through(address),
            Self::EtcdCluster(cluster) => cluster.url(),
            Self::Postgres(server) => format!("{}&migrate=true", server.url_through(address)),
            Self::Mysql(server) => format!("{}?migrate=true", server.url_through(address)),
        }
    }
}

/// Somebody who takes locks away, by way of a connection that is there already.
pub(crate) enum Admin {
    Redis(Box<redis::Connection>),
    ZooKeeper(Administrator),
    Etcd(Locks),
    Postgres(dlock::sql::Postgres),
    Mysql(dlock::sql::Mysql),
}

impl Admin {
    /// Takes a lock away from its holder.
    pub(crate) async fn delete(&mut self, key: &str) -> Result<(), Failed> {
        let there = match self {
            Self::Redis(connection) => {
                redis::cmd("DEL").arg(format!("dlock:{key}")).query::<u32>(connection)? == 1
            }
            Self::ZooKeeper(admin) => {
                let places = admin.children(&format!("/dlock/{key}"));
                places.iter().for_each(|place| admin.delete(&format!("/dlock/{key}/{place}")));
                !places.is_empty()
            }
            Self::Etcd(locks) => locks.force_release(key).await?,
            Self::Postgres(postgres) => Locks::new(postgres.clone()).force_release(key).await?,
            Self::Mysql(mysql) => Locks::new(mysql.clone()).force_release(key).await?,
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
        let server = Server::start(kind)?.map(Mutex::new);
        Ok(Self { kind, memory, server, directory: tempfile::tempdir()?, keys: AtomicU64::new(0) })
    }

    pub(crate) const fn name(&self) -> &'static str {
        match self.kind {
            Kind::Memory => "memory",
            Kind::Sqlite => "SQLite",
            Kind::Redis => "Redis",
            Kind::Zk => "ZooKeeper",
            Kind::Etcd => "etcd",
            Kind::EtcdCluster => "etcd, three members",
            Kind::Postgres => "PostgreSQL",
            Kind::Mysql => "MariaDB",
            Kind::PostgresSession => "PostgreSQL, sessions",
            Kind::MysqlSession => "MariaDB, sessions",
        }
    }

    pub(crate) const fn kind(&self) -> Kind {
        self.kind
    }

    pub(crate) fn url(&self, lease: Duration) -> String {
        match self.server() {
            Some(server) => {
                let mode = if self.kind.is_session() { "&mode=session" } else { "" };
                server.url_through(server.address(), lease) + mode
            }
            None => format!("sqlite://{}", self.directory.path().join("locks.db").display()),
        }
    }

    /// The server that keeps the locks, where there is one.
    pub(crate) fn server(&self) -> Option<MutexGuard<'_, Server>> {
        let server = self.server.as_ref()?;
        Some(server.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Removes all that the server keeps.
    pub(crate) fn lose_data(&self) -> Result<(), Failed> {
        match self.server().as_deref() {
            Some(Server::Redis(server)) => Ok(redis::cmd("FLUSHALL").exec(&mut server.admin())?),
            _ => Err("only Redis loses its data here".into()),
        }
    }

    /// Who can take locks away, where there is a server.
    pub(crate) async fn admin(&self) -> Result<Admin, Failed> {
        let url = self.url(Duration::from_secs(1));
        match self.server().as_deref() {
            Some(Server::Redis(server)) => return Ok(Admin::Redis(Box::new(server.admin()))),
            Some(Server::ZooKeeper(server)) => return Ok(Admin::ZooKeeper(server.admin())),
            Some(Server::Etcd(_) | Server::EtcdCluster(_) | Server::Postgres(_) | Server::Mysql(_)) => {}
            None => return Err("there is no server".into()),
        }
        Ok(match self.kind {
            Kind::Etcd | Kind::EtcdCluster => Admin::Etcd(dlock::from_url(&url).await?.build()?),
            Kind::Mysql => Admin::Mysql(dlock::sql::Mysql::connect(&url).await?),
            _ => Admin::Postgres(dlock::sql::Postgres::connect(&url).await?),
        })
    }

    /// A way to the server that can be made to fail, where there is a server, and the URL that leads over it.
    pub(crate) fn proxy(&self, lease: Duration) -> Result<Option<(Proxy, String)>, Failed> {
        let Some(server) = self.server() else { return Ok(None) };
        let proxy = match *server {
            Server::Redis(_) => Proxy::speaking(Resp, server.address())?,
            Server::ZooKeeper(_) => Proxy::speaking(Jute::default(), server.address())?,
            Server::Etcd(_) => Proxy::speaking(Grpc::default(), server.address())?,
            Server::EtcdCluster(ref cluster) => return cluster.proxy().map(Some),
            Server::Postgres(_) => Proxy::speaking(Pgwire::default(), server.address())?,
            Server::Mysql(_) => Proxy::speaking(proxy::Mysql, server.address())?,
        };
        let url = server.url_through(proxy.address(), lease);
        Ok(Some((proxy, url)))
    }

    /// The store, opened as by a process of its own. The server may still be busy with the fault before.
    pub(crate) async fn locks(&self, lease: Duration) -> Result<Locks, Failed> {
        if let Kind::Memory = self.kind {
            return Ok(Locks::builder(self.memory.clone()).with_lease(lease).build()?);
        }
        let mut tries = 0;
        loop {
            match dlock::from_url(&self.url(lease)).await {
                Ok(builder) => return Ok(builder.with_lease(lease).build()?),
                Err(error) if error.is_retryable() && tries < 20 => tries += 1,
                Err(error) => return Err(error.into()),
            }
            tokio::time::sleep(lease / 4).await;
        }
    }

    /// What starts a process of its own: this program.
    pub(crate) fn command(&self) -> Result<Command, Failed> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("worker");
        Ok(command)
    }

    /// A process of its own with the store open.
    pub(crate) async fn worker(&self, lease: Duration) -> Result<Worker, Failed> {
        self.worker_at(&self.url(lease), lease).await
    }

    /// The same with these variables in its environment.
    pub(crate) async fn worker_with(
        &self,
        lease: Duration,
        variables: &[(&str, String)],
    ) -> Result<Worker, Failed> {
        let mut command = self.command()?;
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        Ok(Worker::open(command, &self.url(lease), lease).await?)
    }

    /// The same by way of this URL.
    pub(crate) async fn worker_at(&self, url: &str, lease: Duration) -> Result<Worker, Failed> {
        Ok(Worker::open(self.command()?, url, lease).await?)
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

/// How many of `keys` are held. Asks again where the error says that it may be worth while, for a while.
pub(crate) async fn held(locks: &Locks, keys: &[String]) -> Result<usize, Failed> {
    let mut held = 0;
    let end = Instant::now() + PATIENCE;
    for key in keys {
        held += loop {
            match locks.inspect(key).await {
                Ok(holder) => break usize::from(holder.is_some()),
                Err(error) if error.is_retryable() && Instant::now() < end => {}
                Err(error) => return Err(error.into()),
            }
        };
    }
    Ok(held)
}

/// Acquires, and tries again where the error says that it may be worth while: a machine that is busy with other things
/// makes requests late. Counts the errors in `failed`.
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
