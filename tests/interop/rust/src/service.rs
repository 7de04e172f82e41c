//! The lock services that are shared with Java, and a store beside each.

use std::str::FromStr as _;
use std::time::Duration;

use anyhow::{Context as _, Result};
use dlock_core::Locks;
use dlock_redis::Redis;
use dlock_zk::ZooKeeper;
use redis::AsyncCommands as _;
use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use zookeeper::{Acls, Client, CreateMode, Error};

const COUNTERS: &str = "/counters";

/// Locks that share their names with Redisson or Curator, as the URL says. The second ones share their fences with
/// Redisson's fenced locks too; Curator's locks have none of their own, so that there they are the same ones.
///
/// # Errors
///
/// When the server does not answer.
pub async fn locks(url: &str, lease: Duration) -> Result<(Locks, Locks)> {
    let wait = Duration::from_secs(120);
    if is_zookeeper(url) {
        // The ticks of the test kit's servers.
        let backend = ZooKeeper::builder(url).with_tick_time(Duration::from_millis(100));
        let backend = backend.with_session_timeout(lease).connect().await?;
        let locks = Locks::builder(backend).with_wait(wait).build()?;
        return Ok((locks.clone(), locks));
    }
    let redis = async |fenced| {
        let backend = Redis::builder(url).with_prefix("").with_redisson_fences(fenced).connect().await?;
        anyhow::Ok(Locks::builder(backend).with_lease(lease).with_wait(wait).build()?)
    };
    Ok((redis(false).await?, redis(true).await?))
}

/// Locks that share their names with those of Redisson or Curator that have readers.
///
/// # Errors
///
/// When the server does not answer.
pub async fn with_readers(url: &str, lease: Duration) -> Result<Locks> {
    let wait = Duration::from_secs(120);
    if is_zookeeper(url) {
        let backend = ZooKeeper::builder(url).with_tick_time(Duration::from_millis(100));
        let backend = backend.with_session_timeout(lease).with_recipe(dlock_zk::Recipe::ReadWriteLock);
        return Ok(Locks::builder(backend.connect().await?).with_wait(wait).build()?);
    }
    let backend = Redis::builder(url).with_prefix("").with_recipe(dlock_redis::Recipe::ReadWriteLock);
    Ok(Locks::builder(backend.connect().await?).with_lease(lease).with_wait(wait).build()?)
}

/// Elections that Curator's leader latches take part in; none but on ZooKeeper.
///
/// # Errors
///
/// When the server does not answer.
pub async fn elections(url: &str, lease: Duration) -> Result<Option<Locks>> {
    if !is_zookeeper(url) {
        return Ok(None);
    }
    let backend = ZooKeeper::builder(url).with_tick_time(Duration::from_millis(100));
    let backend =
        backend.with_session_timeout(lease).with_recipe(dlock_zk::Recipe::LeaderLatch).connect().await?;
    Ok(Some(Locks::builder(backend).with_wait(Duration::from_secs(120)).build()?))
}

fn is_zookeeper(url: &str) -> bool {
    url.starts_with("zk:")
}

/// Numbers that locks guard, each under a name, where the processes of both sides find them.
pub enum Counters {
    /// Under the keys of a server.
    Redis(MultiplexedConnection),
    /// Under the keys of a cluster.
    RedisCluster(ClusterConnection),
    /// In the nodes of a server.
    ZooKeeper(Client),
}

impl Counters {
    /// Those of the server at `url`.
    ///
    /// # Errors
    ///
    /// When it does not answer.
    pub async fn open(url: &str) -> Result<Self> {
        if let Some(nodes) = url.strip_prefix("redis+cluster://") {
            let nodes = nodes.split(',').map(|node| format!("redis://{node}"));
            return Ok(Self::RedisCluster(ClusterClient::new(nodes)?.get_async_connection().await?));
        }
        if !is_zookeeper(url) {
            let connection = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
            return Ok(Self::Redis(connection));
        }
        let client = Client::connect(url.trim_start_matches("zk://")).await?;
        match client.create(COUNTERS, &[], &CreateMode::Persistent.with_acls(Acls::anyone_all())).await {
            Ok(_) | Err(Error::NodeExists) => Ok(Self::ZooKeeper(client)),
            Err(error) => Err(error.into()),
        }
    }

    /// The value of a counter, 0 at first.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub async fn read(&mut self, counter: &str) -> Result<u64> {
        match self {
            Self::Redis(connection) => {
                Ok(connection.get::<_, Option<u64>>(counter).await?.unwrap_or_default())
            }
            Self::RedisCluster(connection) => {
                Ok(connection.get::<_, Option<u64>>(counter).await?.unwrap_or_default())
            }
            Self::ZooKeeper(client) => match client.get_data(&path(counter)).await {
                Ok((data, _)) => Ok(u64::from_str(std::str::from_utf8(&data)?).context("no number")?),
                Err(Error::NoNode) => Ok(0),
                Err(error) => Err(error.into()),
            },
        }
    }

    /// Sets a counter.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub async fn write(&mut self, counter: &str, value: u64) -> Result<()> {
        match self {
            Self::Redis(connection) => Ok(connection.set(counter, value).await?),
            Self::RedisCluster(connection) => Ok(connection.set(counter, value).await?),
            Self::ZooKeeper(client) => {
                let (path, data) = (path(counter), value.to_string());
                let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
                loop {
                    match client.set_data(&path, data.as_bytes(), None).await {
                        Err(Error::NoNode) => {}
                        other => return Ok(other.map(drop)?),
                    }
                    match client.create(&path, data.as_bytes(), &options).await {
                        // Without a lock, somebody else may be faster.
                        Err(Error::NodeExists) => {}
                        other => return Ok(other.map(drop)?),
                    }
                }
            }
        }
    }
}

fn path(counter: &str) -> String {
    format!("{COUNTERS}/{counter}")
}

impl std::fmt::Debug for Counters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let server = match self {
            Self::Redis(_) | Self::RedisCluster(_) => "Redis",
            Self::ZooKeeper(_) => "ZooKeeper",
        };
        f.debug_tuple("Counters").field(&server).finish()
    }
}
