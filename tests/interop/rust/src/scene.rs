//! What every check needs.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use dlock_interop::other_clients::{self, OtherClients};
use dlock_interop::peer::{Peer, Setting};
use dlock_interop::service::{Counters, locks};
use dlock_interop::{java, read_all};
use dlock_rig::servers::etcd::EtcdServer;
use dlock_rig::servers::redis::{RedisCluster, RedisServer, is_at_least_7};
use dlock_rig::servers::zookeeper::ZooKeeperServer;
use dlock_testkit::history::Event;
use tempfile::TempDir;

/// All sides; their processes have numbers from a thousand times their place here on.
pub(crate) const SIDES: [&str; 4] = ["rust", "java", "kazoo", "go"];
const PROCESSES: u32 = 1_000;

/// The side of a process.
pub(crate) fn side_of(process: u32) -> &'static str {
    SIDES.get((process / PROCESSES) as usize).copied().unwrap_or_default()
}

pub(crate) fn in_java(process: u32) -> bool {
    side_of(process) == "java"
}

/// Small machines run four of them at a time.
const JAVA_OPTIONS: &[&str] = &["-XX:+UseSerialGC", "-Xmx256m"];

/// A server that both sides lock on.
enum Server {
    Redis(RedisServer),
    Cluster(RedisCluster),
    ZooKeeper(ZooKeeperServer),
    Etcd(EtcdServer),
}

/// The server and the programs that all checks share.
pub(crate) struct Scene {
    server: Server,
    programs: Programs,
}

/// The programs of the other sides.
enum Programs {
    /// Of Redis, in Java.
    Java(PathBuf),
    /// Of ZooKeeper.
    All(PathBuf, OtherClients),
    /// Of etcd.
    Go(PathBuf),
}

impl Scene {
    pub(crate) async fn redis() -> Result<Self> {
        let programs = Programs::Java(java::build().await?);
        Ok(Self { programs, server: Server::Redis(RedisServer::start()?) })
    }

    pub(crate) async fn redis_cluster() -> Result<Self> {
        let programs = Programs::Java(java::build().await?);
        Ok(Self { programs, server: Server::Cluster(RedisCluster::start()?) })
    }

    pub(crate) async fn zookeeper() -> Result<Self> {
        let programs = Programs::All(java::build().await?, OtherClients::build().await?);
        Ok(Self { programs, server: Server::ZooKeeper(ZooKeeperServer::start()?) })
    }

    pub(crate) async fn etcd() -> Result<Self> {
        let programs = Programs::Go(other_clients::etcd().await?);
        Ok(Self { programs, server: Server::Etcd(EtcdServer::start()?) })
    }

    /// The side beside Rust, or the first of them.
    pub(crate) fn other(&self) -> &'static str {
        if let Programs::Go(_) = self.programs { "go" } else { "java" }
    }

    /// All sides that lock on this server.
    pub(crate) fn sides(&self) -> Vec<&'static str> {
        match &self.programs {
            Programs::Java(_) | Programs::Go(_) => vec!["rust", self.other()],
            Programs::All(..) => SIDES.to_vec(),
        }
    }

    /// How long after the end of a lease the server may notice it. etcd looks for such leases twice a second.
    pub(crate) fn late(&self) -> Duration {
        if let Server::Etcd(_) = self.server { Duration::from_secs(1) } else { Duration::ZERO }
    }

    /// Whether the first place of a lock was left behind by its holder in Rust.
    pub(crate) fn is_left(&self, name: &str) -> Result<bool> {
        let first = self.places(name)?.into_iter().next().unwrap_or_default();
        let mark = if let Server::Etcd(_) = self.server { "/dlock-" } else { "-left-" };
        Ok(first.contains(mark))
    }

    fn url(&self) -> String {
        match &self.server {
            Server::Redis(server) => server.url(),
            Server::Cluster(cluster) => cluster.url(),
            Server::ZooKeeper(server) => server.url(),
            Server::Etcd(server) => server.url(),
        }
    }

    /// The kind of the usual locks of the other side.
    pub(crate) fn kind(&self) -> &'static str {
        match &self.server {
            Server::Redis(_) | Server::Cluster(_) => "rlock",
            Server::ZooKeeper(_) | Server::Etcd(_) => "mutex",
        }
    }

    pub(crate) fn act(&self, lease: Duration) -> Result<Act<'_>> {
        Ok(Act { scene: self, lease, started: AtomicU32::new(0), histories: tempfile::tempdir()? })
    }

    pub(crate) async fn counter(&self, name: &str) -> Result<usize> {
        Ok(usize::try_from(Counters::open(&self.url()).await?.read(name).await?)?)
    }

    /// How often a waiter in Rust asks although nobody told it to, at the least.
    pub(crate) async fn safety_net(&self) -> Result<Duration> {
        let capabilities = locks(&self.url(), Duration::from_secs(1)).await?.0.capabilities();
        anyhow::ensure!(capabilities.notified, "waiters are not told of releases");
        // It is drawn from the upper quarter of this.
        Ok(capabilities.poll_to * 3 / 4)
    }

    /// Resolves when `count` clients wait for the lock `name`, and will be told when it is their turn.
    pub(crate) async fn listened_to(&self, name: &str, count: usize) -> Result<()> {
        let waiting = async {
            while self.listeners(name).await? < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            anyhow::Ok(())
        };
        match tokio::time::timeout(Duration::from_secs(20), waiting).await {
            Ok(listened) => listened,
            Err(_) => anyhow::bail!("nobody waits for {name}"),
        }
    }

    async fn listeners(&self, name: &str) -> Result<usize> {
        match &self.server {
            Server::Redis(server) => {
                let channel = channel(name);
                let mut connection =
                    redis::Client::open(server.url())?.get_multiplexed_async_connection().await?;
                let (_, listeners): (String, usize) =
                    redis::cmd("PUBSUB").arg("NUMSUB").arg(&channel).query_async(&mut connection).await?;
                Ok(listeners)
            }
            // Both sides listen there, where the servers have sharded channels.
            Server::Cluster(cluster) if !is_at_least_7() => {
                let channel = channel(name);
                let listeners =
                    |node: &RedisServer| node.command::<(String, usize)>(&["PUBSUB", "NUMSUB", &channel]).1;
                Ok(cluster.nodes().iter().map(listeners).sum())
            }
            Server::Cluster(cluster) => {
                let question = ["PUBSUB", "SHARDNUMSUB", &channel(name)];
                Ok(cluster.command_at::<(String, usize)>(name, &question).1)
            }
            // One of them holds the lock, and each of the others watches the one before it.
            Server::ZooKeeper(server) => {
                let watches = usize::try_from(server.admin().watches())?;
                Ok(watches.min(self.places(name)?.len().saturating_sub(1)))
            }
            Server::Etcd(server) => {
                let watches = usize::try_from(server.admin().watches())?;
                Ok(watches.min(self.places(name)?.len().saturating_sub(1)))
            }
        }
    }

    /// Resolves when so many stand in line for a fair lock of Redis.
    pub(crate) async fn stand_in_line(&self, name: &str, count: usize) -> Result<()> {
        let Server::Redis(server) = &self.server else { anyhow::bail!("only on one server of Redis") };
        let queue = format!("redisson_lock_queue:{{{name}}}");
        let waiting = async {
            while server.command::<usize>(&["LLEN", &queue]) < count {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), waiting).await.context("nobody comes into the line")
    }

    /// Who holds a lock and who waits for it, as the server has them, in order.
    pub(crate) fn places(&self, name: &str) -> Result<Vec<String>> {
        match &self.server {
            Server::Redis(_) | Server::Cluster(_) => anyhow::bail!("Redis has no queues"),
            Server::ZooKeeper(server) => {
                let mut places = server.admin().try_children(&format!("/dlock/{name}"))?;
                places.sort_by_key(|place| place.rsplit('-').next().map(str::to_owned));
                Ok(places)
            }
            Server::Etcd(server) => Ok(server.admin().keys(&format!("dlock/{name}/"))),
        }
    }
}

/// Redisson's channel for the releases of a lock.
fn channel(name: &str) -> String {
    if name.contains('{') {
        format!("redisson_lock__channel:{name}")
    } else {
        format!("redisson_lock__channel:{{{name}}}")
    }
}

/// One check: its workers, and what they record.
pub(crate) struct Act<'a> {
    scene: &'a Scene,
    lease: Duration,
    started: AtomicU32,
    histories: TempDir,
}

impl Act<'_> {
    pub(crate) async fn worker(&self, side: &str) -> Result<Peer> {
        let url = self.scene.url();
        let at = SIDES.iter().position(|one| *one == side).context("no such side")?;
        let process = self.started.fetch_add(1, Ordering::Relaxed) + u32::try_from(at)? * PROCESSES;
        let setting = Setting { url: &url, lease: self.lease, process, histories: self.histories.path() };
        match (side, &self.scene.programs) {
            ("rust", _) => Peer::rust(setting).await,
            ("java", Programs::Java(jar) | Programs::All(jar, _)) => {
                Peer::java(jar, JAVA_OPTIONS, setting).await
            }
            ("kazoo", Programs::All(_, others)) => Peer::kazoo(others, setting).await,
            ("go", Programs::All(_, others)) => Peer::go(others, setting).await,
            ("go", Programs::Go(program)) => Peer::etcd(program, setting).await,
            _ => anyhow::bail!("{side} does not lock on this server"),
        }
    }

    /// One worker of each side.
    pub(crate) async fn pair(&self) -> Result<(Peer, Peer)> {
        Ok((self.worker("rust").await?, self.worker(self.scene.other()).await?))
    }

    pub(crate) fn events(&self) -> Result<Vec<Event>> {
        read_all(self.histories.path())
    }
}
