//! The lock services that are shared with other languages, and a store beside each.

use std::str::FromStr as _;
use std::time::Duration;

use anyhow::{Context as _, Result};
use dlock_core::Locks;
use dlock_etcd::Etcd;
use dlock_redis::Redis;
use dlock_zk::ZooKeeper;
use redis::AsyncCommands as _;
use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use zookeeper::{Acls, Client, CreateMode, Error};

const COUNTERS: &str = "/counters";
/// In etcd.
const COUNTER_PREFIX: &str = "counters/";

/// Locks that share their names with Redisson, Curator or etcd's Go client, as the URL says. The second ones share
/// their fences with Redisson's fenced locks too; the others have none of their own, so that there they are the same
/// ones.
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
    if is_etcd(url) {
        let locks = etcd(url, lease).await?;
        return Ok((locks.clone(), locks));
    }
    let redis = async |fenced| {
        let backend = Redis::builder(url).with_prefix("").with_redisson_fences(fenced).connect().await?;
        anyhow::Ok(Locks::builder(backend).with_lease(lease).with_wait(wait).build()?)
    };
    Ok((redis(false).await?, redis(true).await?))
}

async fn etcd(url: &str, lease: Duration) -> Result<Locks> {
    let backend = Etcd::connect(url).await?;
    Ok(Locks::builder(backend).with_lease(lease).with_wait(Duration::from_secs(120)).build()?)
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
    if is_etcd(url) {
        return etcd(url, lease).await;
    }
    let backend = Redis::builder(url).with_prefix("").with_recipe(dlock_redis::Recipe::ReadWriteLock);
    Ok(Locks::builder(backend.connect().await?).with_lease(lease).with_wait(wait).build()?)
}

/// Elections that Curator's leader latches, or those of etcd's Go client, take part in; none on Redis.
///
/// # Errors
///
/// When the server does not answer.
pub async fn elections(url: &str, lease: Duration) -> Result<Option<Locks>> {
    if is_etcd(url) {
        return Ok(Some(etcd(url, lease).await?));
    }
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

fn is_etcd(url: &str) -> bool {
    url.starts_with("etcd:")
}

/// Numbers that locks guard, each under a name, where the processes of both sides find them.
pub enum Counters {
    /// Under the keys of a server.
    Redis(MultiplexedConnection),
    /// Under the keys of a cluster.
    RedisCluster(ClusterConnection),
    /// In the nodes of a server.
    ZooKeeper(Client),
    /// Under the keys of a server.
    Etcd(Box<etcd_client::Client>),
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
        if is_etcd(url) {
            let server = url.trim_start_matches("etcd://");
            return Ok(Self::Etcd(Box::new(etcd_client::Client::connect([server], None).await?)));
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
            Self::Etcd(client) => {
                let found = client.get(format!("{COUNTER_PREFIX}{counter}"), None).await?;
                found.kvs().first().map_or(Ok(0), |entry| entry.value_str()?.parse().context("no number"))
            }
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
            Self::Etcd(client) => {
                client.put(format!("{COUNTER_PREFIX}{counter}"), value.to_string(), None).await?;
                Ok(())
            }
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
            Self::Etcd(_) => "etcd",
        };
        f.debug_tuple("Counters").field(&server).finish()
    }
}
