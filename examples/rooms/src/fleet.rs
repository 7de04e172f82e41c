//! Several replicas on loopback, a small load, and what came of it.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::task::JoinHandle;

use crate::bookings::Bookings;
use crate::{Show, load};

/// How long a replica may take to start, and to stop.
const PATIENCE: Duration = Duration::from_secs(30);

/// Starts the replicas, sends the load, stops them, and checks what is in the database.
pub(crate) async fn show(options: &Show) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let data = directory.path().join("bookings.db");
    let bookings = Bookings::open(&data).await?;
    let locks = options
        .locks
        .clone()
        .unwrap_or_else(|| format!("sqlite://{}", directory.path().join("locks.db").display()));
    let mut replicas = Vec::new();
    for number in 1..=options.replicas {
        replicas.push(Replica::start(&format!("rooms-{number}"), &locks, &data, options.night).await?);
    }
    let addresses: Vec<SocketAddr> = replicas.iter().map(|replica| replica.address).collect();
    println!("{} clients send {} requests", options.clients, options.requests);
    let begun = Instant::now();
    let tally = load::send(&addresses, options.requests, options.clients).await?;
    let took = begun.elapsed();
    // At least one night passes.
    tokio::time::sleep(Duration::from_millis(options.night + options.night / 2)).await;
    for replica in &replicas {
        replica.terminate()?;
    }
    for replica in replicas {
        replica.ended().await?;
    }
    let sums = bookings.sums().await?;
    let left = locks_left(&locks).await?;
    println!();
    println!("{:>6} rooms booked, {} moved, {} refused", tally.booked, tally.moved, tally.refused);
    println!("{:>6} requests failed", tally.failed);
    println!(
        "{:>6.0} ms for the slowest request; {:.1} s for all",
        tally.slowest.as_secs_f64() * 1e3,
        took.as_secs_f64()
    );
    println!("{:>6} bookings in the database, {} of them double", sums.bookings, sums.double);
    println!("{:>6} nights settled, {} of them twice", sums.nights, sums.twice);
    println!("{left:>6} locks left behind");
    ensure!(sums.double == 0, "a room was booked twice");
    ensure!(sums.bookings == i64::from(tally.booked), "a booking was lost");
    ensure!(sums.twice == 0, "a night was settled twice");
    ensure!(left == 0, "a lock was left behind");
    Ok(())
}

/// How many of this service's locks are still held.
async fn locks_left(url: &str) -> Result<usize> {
    let locks = dlock::connect(url).await?;
    let held = locks.holders().await?;
    let ours = |(_, holder): &&(dlock::Key, dlock::Holder)| {
        holder.label.as_deref().is_some_and(|label| label.starts_with("rooms-"))
    };
    Ok(held.iter().filter(ours).count())
}

/// One process. Dropping it kills it.
struct Replica {
    name: String,
    child: Child,
    address: SocketAddr,
    /// Passes on what it says.
    echo: JoinHandle<()>,
}

impl Replica {
    async fn start(name: &str, locks: &str, data: &Path, night: u64) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["serve", "--name", name, "--night", &night.to_string()])
            .arg("--data")
            .arg(data)
            // Not on the command line, where others could read a password.
            .env("DLOCK_URL", locks)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("starting a replica")?;
        let output = child.stdout.take().context("the replica has no output")?;
        let mut lines = BufReader::new(output).lines();
        let first =
            tokio::time::timeout(PATIENCE, lines.next_line()).await.context("a replica is not ready")??;
        let Some(address) = first.as_deref().and_then(|line| line.strip_prefix("listening on ")) else {
            bail!("{name} did not start");
        };
        let address = address.parse()?;
        println!("{name} listens on {address}");
        let echo = tokio::spawn(echo(name.to_owned(), lines));
        Ok(Self { name: name.to_owned(), child, address, echo })
    }

    fn terminate(&self) -> Result<()> {
        let id = self.child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let id = id.with_context(|| format!("{} ended by itself", self.name))?;
        Ok(kill_process(id, Signal::TERM)?)
    }

    async fn ended(mut self) -> Result<()> {
        let status = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        let status = status.with_context(|| format!("{} did not stop", self.name))??;
        let _ = self.echo.await;
        ensure!(status.success(), "{} ended with {status}", self.name);
        Ok(())
    }
}

async fn echo(name: String, mut lines: Lines<BufReader<ChildStdout>>) {
    while let Ok(Some(line)) = lines.next_line().await {
        println!("{name}: {line}");
    }
}
