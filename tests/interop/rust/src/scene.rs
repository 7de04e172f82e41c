//! What every check needs.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::Result;
use dlock_interop::peer::{Peer, Setting};
use dlock_interop::{java, read_all, worker};
use dlock_testkit::history::Event;
use dlock_testkit::servers::redis::RedisServer;
use redis::aio::MultiplexedConnection;
use tempfile::TempDir;

/// Processes in Java have numbers from here on.
const JAVA: u32 = 1_000;

pub(crate) fn in_java(process: u32) -> bool {
    process >= JAVA
}

pub(crate) fn in_rust(process: u32) -> bool {
    !in_java(process)
}

/// Small machines run four of them at a time.
const JAVA_OPTIONS: &[&str] = &["-XX:+UseSerialGC", "-Xmx256m"];

/// The server and the Java program that all checks share.
pub(crate) struct Scene {
    server: RedisServer,
    jar: PathBuf,
}

impl Scene {
    pub(crate) async fn open() -> Result<Self> {
        let jar = java::build().await?;
        Ok(Self { server: RedisServer::start()?, jar })
    }

    pub(crate) fn act(&self, lease: Duration) -> Result<Act<'_>> {
        Ok(Act { scene: self, lease, started: AtomicU32::new(0), histories: tempfile::tempdir()? })
    }

    pub(crate) async fn connection(&self) -> Result<MultiplexedConnection> {
        Ok(redis::Client::open(self.server.url())?.get_multiplexed_async_connection().await?)
    }

    /// How often a waiter in Rust asks although nobody told it to, at the least.
    pub(crate) async fn safety_net(&self) -> Result<Duration> {
        let locks = worker::locks(&self.server.url(), Duration::from_secs(1), false).await?;
        let capabilities = locks.capabilities();
        anyhow::ensure!(capabilities.notified, "waiters are not told of releases");
        // It is drawn from the upper quarter of this.
        Ok(capabilities.poll_to * 3 / 4)
    }

    /// Resolves when `count` clients listen for releases of the lock `name`.
    pub(crate) async fn listened_to(&self, name: &str, count: usize) -> Result<()> {
        let mut connection = self.connection().await?;
        let channel = format!("redisson_lock__channel:{{{name}}}");
        let waiting = async {
            loop {
                let (_, listeners): (String, usize) =
                    redis::cmd("PUBSUB").arg("NUMSUB").arg(&channel).query_async(&mut connection).await?;
                if listeners >= count {
                    return Ok(());
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        match tokio::time::timeout(Duration::from_secs(20), waiting).await {
            Ok(listened) => listened,
            Err(_) => anyhow::bail!("nobody subscribed to {channel}"),
        }
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
        let (url, java) = (self.scene.server.url(), side == "java");
        let process = self.started.fetch_add(1, Ordering::Relaxed) + if java { JAVA } else { 0 };
        let setting = Setting { url: &url, lease: self.lease, process, histories: self.histories.path() };
        if java {
            Peer::java(&self.scene.jar, JAVA_OPTIONS, setting).await
        } else {
            Peer::rust(setting).await
        }
    }

    /// One worker of each side.
    pub(crate) async fn pair(&self) -> Result<(Peer, Peer)> {
        Ok((self.worker("rust").await?, self.worker("java").await?))
    }

    pub(crate) fn events(&self) -> Result<Vec<Event>> {
        read_all(self.histories.path())
    }
}
