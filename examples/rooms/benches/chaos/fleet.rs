//! The replicas of the service, and what stands between them and their clients.

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use reqwest::Client;
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use sqlx::Connection;
use sqlx::sqlite::SqliteConnection;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use crate::load::Addresses;

/// How often the balancer asks a replica whether it is ready.
const ROUND: Duration = Duration::from_millis(50);
/// How long a replica may take to start, and to stop.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is in the database in the end.
pub(crate) struct Sums {
    pub(crate) bookings: i64,
    pub(crate) double: i64,
}

pub(crate) struct Fleet {
    url: String,
    directory: tempfile::TempDir,
    replicas: Vec<Replica>,
    started: usize,
    lines: Arc<AtomicUsize>,
    /// Those that are started and not being stopped.
    serving: Addresses,
    /// Those of them that are ready, or all if none is.
    ready: Addresses,
    balancer: JoinHandle<()>,
}

struct Replica {
    child: Child,
    address: SocketAddr,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.balancer.abort();
    }
}

impl Fleet {
    pub(crate) async fn start(url: &str, replicas: usize) -> Result<Self> {
        let (serving, ready) = (Addresses::default(), Addresses::default());
        let balancer = tokio::spawn(balance(Arc::clone(&serving), Arc::clone(&ready)));
        let (lines, directory) = (Arc::default(), tempfile::tempdir()?);
        let mut fleet = Self {
            url: url.to_owned(),
            directory,
            replicas: Vec::new(),
            started: 0,
            lines,
            serving,
            ready,
            balancer,
        };
        for _ in 0..replicas {
            fleet.add().await?;
        }
        Ok(fleet)
    }

    async fn add(&mut self) -> Result<()> {
        self.started += 1;
        let mut child = Command::new(env!("CARGO_BIN_EXE_rooms"))
            .args(["serve", "--faults", "--name", &format!("rooms-{}", self.started), "--data"])
            .arg(self.directory.path().join("bookings.db"))
            .env("DLOCK_URL", &self.url)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("starting a replica")?;
        let errors = child.stderr.take().context("the replica has no errors")?;
        let lines = Arc::clone(&self.lines);
        tokio::spawn(async move {
            let mut all = BufReader::new(errors).lines();
            while let Ok(Some(line)) = all.next_line().await {
                if line.contains(" dlock") {
                    lines.fetch_add(1, Ordering::Relaxed);
                }
                if std::env::var_os("CHAOS_LINES").is_some() {
                    eprintln!("{line}");
                }
            }
        });
        let mut said = BufReader::new(child.stdout.take().context("the replica has no output")?).lines();
        let first =
            tokio::time::timeout(PATIENCE, said.next_line()).await.context("a replica is not ready")??;
        let address = first.as_deref().and_then(|line| line.strip_prefix("listening on "));
        let address = address.context("a replica did not start")?.parse()?;
        tokio::spawn(async move { while let Ok(Some(_)) = said.next_line().await {} });
        self.replicas.push(Replica { child, address });
        self.serving.write().unwrap_or_else(PoisonError::into_inner).push(address);
        Ok(())
    }

    /// Where clients send their requests.
    pub(crate) const fn addresses(&self) -> &Addresses {
        &self.ready
    }

    /// How many lines dlock has written to the logs of all replicas.
    pub(crate) fn lines(&self) -> usize {
        self.lines.load(Ordering::Relaxed)
    }

    /// Waits until each replica says that it is ready.
    pub(crate) async fn all_ready(&self, limit: Duration) -> Result<()> {
        let client = Client::builder().no_proxy().build()?;
        let end = Instant::now() + limit;
        for replica in &self.replicas {
            while !is_ready(&client, replica.address).await {
                ensure!(Instant::now() < end, "a replica is not ready");
                tokio::time::sleep(ROUND).await;
            }
        }
        Ok(())
    }

    /// Starts a replica, and stops the oldest one once it is ready.
    pub(crate) async fn deploy(&mut self) -> Result<()> {
        self.add().await?;
        self.all_ready(PATIENCE).await?;
        let old = self.replicas.remove(0);
        for list in [&self.serving, &self.ready] {
            list.write().unwrap_or_else(PoisonError::into_inner).retain(|address| *address != old.address);
        }
        stop(old).await
    }

    /// Forbids, or allows again, to open anything.
    pub(crate) fn descriptors(&self, allowed: bool) -> Result<()> {
        for replica in &self.replicas {
            let limit = rustix::process::getrlimit(Resource::Nofile);
            // The lowest number that may not be given out: what is open stays so.
            let current = if allowed { limit.current } else { Some(3) };
            prlimit(Some(pid(replica)?), Resource::Nofile, Rlimit { current, maximum: limit.maximum })?;
        }
        Ok(())
    }

    /// Blocks all threads of one replica's runtime.
    pub(crate) async fn block_one(&self, time: Duration) -> Result<()> {
        let address = self.replicas[0].address;
        let client = Client::builder().no_proxy().build()?;
        let response = client.post(format!("http://{address}/block/{}", time.as_millis())).send();
        // Its answer may wait for the end.
        match tokio::time::timeout(ROUND, response).await {
            Ok(Ok(response)) => ensure!(response.status().is_success(), "it cannot be blocked"),
            Ok(Err(error)) => return Err(error.into()),
            Err(_) => {}
        }
        Ok(())
    }

    pub(crate) async fn stop(mut self) -> Result<Sums> {
        for replica in std::mem::take(&mut self.replicas) {
            stop(replica).await?;
        }
        let data = self.directory.path().join("bookings.db");
        let mut data = SqliteConnection::connect(&format!("sqlite://{}", data.display())).await?;
        let (bookings, double) = sqlx::query_as(
            "SELECT count(*), (SELECT count(*) FROM (SELECT 1 FROM bookings GROUP BY room, day HAVING count(*) > 1))
             FROM bookings",
        )
        .fetch_one(&mut data)
        .await?;
        Ok(Sums { bookings, double })
    }
}

fn pid(replica: &Replica) -> Result<Pid> {
    replica.child.id().and_then(|id| Pid::from_raw(id.cast_signed())).context("a replica ended by itself")
}

async fn stop(mut replica: Replica) -> Result<()> {
    kill_process(pid(&replica)?, Signal::TERM)?;
    match tokio::time::timeout(PATIENCE, replica.child.wait()).await {
        Ok(status) => ensure!(status?.success(), "a replica failed in the end"),
        Err(_) => bail!("a replica did not stop"),
    }
    Ok(())
}

async fn is_ready(client: &Client, address: SocketAddr) -> bool {
    let asked = client.get(format!("http://{address}/ready")).timeout(Duration::from_secs(1)).send().await;
    asked.is_ok_and(|response| response.status().is_success())
}

async fn balance(serving: Addresses, ready: Addresses) {
    let Ok(client) = Client::builder().no_proxy().build() else { return };
    loop {
        let all = serving.read().unwrap_or_else(PoisonError::into_inner).clone();
        let asked = all.iter().map(|address| {
            let client = client.clone();
            let address = *address;
            (address, tokio::spawn(async move { is_ready(&client, address).await }))
        });
        let mut able = Vec::new();
        for (address, asked) in asked.collect::<Vec<_>>() {
            if asked.await.unwrap_or(false) {
                able.push(address);
            }
        }
        let now = serving.read().unwrap_or_else(PoisonError::into_inner).clone();
        able.retain(|address| now.contains(address));
        *ready.write().unwrap_or_else(PoisonError::into_inner) = if able.is_empty() { now } else { able };
        tokio::time::sleep(ROUND).await;
    }
}
