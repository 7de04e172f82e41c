//! The clients that are measured beside each other.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dlock_core::{Backend, Locks, Wait};
use dlock_redis::Redis;
use dlock_sql::Postgres;
use redis::aio::MultiplexedConnection;
use redis::{Client, IntoConnectionInfo, Script};
use rslock::LockManager;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use crate::recorded::Recorded;
use dlock_bench::measure::Pairs;

/// The lease of every client.
pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// What is measured.
pub(crate) async fn dlock(url: &str) -> Result<Locks> {
    built(Redis::connect(url).await?)
}

/// Connects dlock to the server at `url`, which is Redis or PostgreSQL.
pub(crate) async fn of_url(url: &str) -> Result<Locks> {
    if url.starts_with("postgres") { built(Postgres::connect(url).await?) } else { dlock(url).await }
}

fn built(backend: impl Backend) -> Result<Locks> {
    Ok(Locks::builder(backend).with_lease(LEASE).with_wait(Wait::Forever).build()?)
}

/// A connection of the bare client, which sends at once, as dlock's do.
pub(crate) async fn connection(url: &str) -> Result<MultiplexedConnection> {
    let info = url.into_connection_info()?;
    let settings = info.tcp_settings().clone().set_nodelay(true);
    Ok(Client::open(info.set_tcp_settings(settings))?.get_multiplexed_async_connection().await?)
}

/// A connection of the bare client with its default settings, which gathers small packets (Nagle).
pub(crate) async fn default_connection(url: &str) -> Result<MultiplexedConnection> {
    Ok(Client::open(url)?.get_multiplexed_async_connection().await?)
}

/// The same scripts as dlock through the bare client: no waiting, no renewal, no clean-up, no local validity.
pub(crate) struct Scripts {
    pub(crate) connection: MultiplexedConnection,
    pub(crate) recorded: Recorded,
}

impl Pairs for Scripts {
    async fn pair(&self, key: &str) -> Result<()> {
        let mut connection = self.connection.clone();
        let token = token();
        self.recorded.acquire.command(key, &token).exec_async(&mut connection).await?;
        self.recorded.release.command(key, &token).exec_async(&mut connection).await?;
        Ok(())
    }
}

/// The same scripts on a socket that the caller's task itself writes and reads, one request after the other.
pub(crate) struct OwnTask {
    socket: Mutex<TcpStream>,
    recorded: Recorded,
}

impl OwnTask {
    pub(crate) async fn new(url: &str, recorded: Recorded) -> Result<Self> {
        let address = url.trim_start_matches("redis://").trim_end_matches('/');
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        Ok(Self { socket: Mutex::new(socket), recorded })
    }
}

impl Pairs for OwnTask {
    async fn pair(&self, key: &str) -> Result<()> {
        let token = token();
        for request in [&self.recorded.acquire, &self.recorded.release] {
            let packed = request.command(key, &token).get_packed_command();
            let (mut socket, mut reply) = (self.socket.lock().await, [0; 512]);
            socket.write_all(&packed).await?;
            let count = socket.read(&mut reply).await?;
            ensure!(reply.starts_with(b"$"), "{}", String::from_utf8_lossy(&reply[..count]));
        }
        Ok(())
    }
}

/// `SET NX PX` and compare-and-delete: no fence, no message to waiters.
pub(crate) struct SetNx {
    connection: MultiplexedConnection,
    delete: Script,
}

impl SetNx {
    pub(crate) fn new(connection: MultiplexedConnection) -> Self {
        let delete =
            "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
        Self { connection, delete: Script::new(delete) }
    }

    pub(crate) async fn try_acquire(&self, key: &str, token: &str) -> Result<bool> {
        let set: Option<String> = redis::cmd("SET")
            .arg(key)
            .arg(token)
            .arg("NX")
            .arg("PX")
            .arg(LEASE.as_millis() as u64)
            .query_async(&mut self.connection.clone())
            .await?;
        Ok(set.is_some())
    }

    pub(crate) async fn release(&self, key: &str, token: &str) -> Result<()> {
        let deleted: u8 = self.delete.key(key).arg(token).invoke_async(&mut self.connection.clone()).await?;
        (deleted == 1).then_some(()).context("the lock was gone")
    }
}

impl Pairs for SetNx {
    async fn pair(&self, key: &str) -> Result<()> {
        let token = token();
        self.try_acquire(key, &token).await?.then_some(()).context("the lock was taken")?;
        self.release(key, &token).await
    }
}

/// `rslock` with its default settings.
pub(crate) struct Rslock(pub(crate) LockManager);

impl Rslock {
    pub(crate) fn new(url: &str) -> Self {
        let mut manager = LockManager::new(vec![url.to_owned()]);
        // Its default gives up after three tries, which no waiter could live with.
        manager.set_retry(u32::MAX, Duration::from_millis(200));
        Self(manager)
    }
}

impl Pairs for Rslock {
    async fn pair(&self, key: &str) -> Result<()> {
        let lock = self.0.lock(key, LEASE).await?;
        self.0.unlock(&lock).await;
        Ok(())
    }
}

pub(crate) fn token() -> String {
    format!("{:032x}", fastrand::u128(..))
}
