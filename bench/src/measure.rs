//! Options, rounds, medians, and loops of many tasks, for the benches of servers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use dlock_core::Locks;
#[cfg(any(feature = "etcd", feature = "redis", feature = "zk"))]
use dlock_interop::peer::Peer;
use tokio::runtime::{Builder, Runtime};

use crate::process_time;
use crate::report::{Row, Spread};

/// How long each client works in one round. Short: what else runs on the machine then meets neighbours alike.
pub const SLICE: Duration = Duration::from_millis(200);

/// What is measured, and how.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Only the benches whose name contains this; one that none contains lists them all
    pub filter: Option<String>,
    /// Fewer rounds
    #[arg(long)]
    pub quick: bool,
    /// Run the clients in Rust on as many threads as there are cores, instead of one
    #[arg(long)]
    pub threads: bool,
}

impl Options {
    /// How many rounds; odd, so that there is a middle one.
    #[must_use]
    pub const fn rounds(&self) -> usize {
        if self.quick { 9 } else { 31 }
    }
}

/// What one way of doing it achieved in one round.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Pairs of acquire and release a second.
    pub rate: f64,
    /// Microseconds a pair, the middle one.
    pub p50: f64,
    /// Microseconds a pair, of which one in a hundred takes longer.
    pub p99: f64,
    /// Microseconds of the client's processor time a pair; not a number where it is another process.
    pub client: f64,
    /// Microseconds of the server's processor time a pair; not a number until somebody asks the server.
    pub server: f64,
}

impl Pace {
    fn of(mut nanos: Vec<u32>, took: Duration, used: Duration) -> Self {
        nanos.sort_unstable();
        let at = |index: usize| nanos.get(index).map_or(f64::NAN, |nanos| f64::from(*nanos) / 1e3);
        Self {
            rate: nanos.len() as f64 / took.as_secs_f64(),
            p50: at(nanos.len() / 2),
            p99: at(nanos.len() * 99 / 100),
            client: used.as_secs_f64() * 1e6 / nanos.len() as f64,
            server: f64::NAN,
        }
    }
}

/// A client that acquires and releases a lock, again and again.
pub trait Pairs: Send + Sync + 'static {
    /// Acquires and releases the lock named `key`.
    fn pair(&self, key: &str) -> impl Future<Output = Result<()>> + Send;
}

impl Pairs for Locks {
    async fn pair(&self, key: &str) -> Result<()> {
        Ok(self.lock(key).acquire().await?.release().await?)
    }
}

/// Lets a worker process make pairs with `tasks` tasks or threads, each with a lock of its own, for as long as `slice`.
///
/// # Errors
///
/// When the worker says so.
#[cfg(any(feature = "etcd", feature = "redis", feature = "zk"))]
pub async fn peer_pairs(peer: &mut Peer, kind: &str, tasks: usize, slice: Duration) -> Result<Pace> {
    let answer = peer.ask(&format!("bench {kind} room_ {tasks} {}", slice.as_millis())).await?;
    let figures: Vec<f64> = answer.split(' ').map(str::parse).collect::<Result<_, _>>()?;
    let (pairs, p50, p99, client) = match figures[..] {
        [pairs, p50, p99] => (pairs, p50, p99, f64::NAN),
        [pairs, p50, p99, client] => (pairs, p50, p99, client),
        _ => anyhow::bail!("an answer to bench has three or four parts: {answer}"),
    };
    let rate = pairs / slice.as_secs_f64();
    Ok(Pace { rate, p50: p50 / 1e3, p99: p99 / 1e3, client, server: f64::NAN })
}

/// Returns the seconds of processor time that a server has used.
///
/// # Errors
///
/// When there is no such process.
pub fn server_time(pid: u32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(") ").context("the name of a process is in brackets")?;
    let ticks = |field: usize| -> Result<f64> {
        Ok(fields.split(' ').nth(field).context("there are more fields")?.parse()?)
    };
    // utime and stime, in what all kernels show as hundredths.
    Ok((ticks(11)? + ticks(12)?) / 100.0)
}

/// A runtime of one thread, or of as many as there are cores.
///
/// # Errors
///
/// When the system has no more threads.
pub fn runtime(threads: bool) -> Result<Runtime> {
    let mut builder = if threads { Builder::new_multi_thread() } else { Builder::new_current_thread() };
    builder.enable_all().build().context("no runtime")
}

/// The best of some paces: whatever else runs on the machine disturbs the best round of each the least.
#[must_use]
pub fn best(paces: &[Pace]) -> f64 {
    paces.iter().map(|pace| pace.rate).fold(0.0, f64::max)
}

/// The line of one client.
#[must_use]
pub fn pace_row(what: &str, paces: &[Pace]) -> Row {
    let median = |figure: fn(&Pace) -> f64| Spread::of(paces.iter().map(figure).collect()).median;
    let (p50, p99) = (median(|pace| pace.p50), median(|pace| pace.p99));
    let mut what = format!("{what}\n    p50 {p50:.0} us, p99 {p99:.0} us");
    for (whose, used) in [("server", median(|pace| pace.server)), ("client", median(|pace| pace.client))] {
        if !used.is_nan() {
            what += &format!("; processor time: {whose} {used:.1} us");
        }
    }
    Row::spread(what, Spread::of(paces.iter().map(|pace| pace.rate).collect()), "")
}

/// Lets `tasks` tasks, each with a key of its own, make pairs for as long as `slice`.
///
/// # Errors
///
/// When the client fails.
pub async fn drive<P: Pairs>(client: &Arc<P>, tasks: usize, slice: Duration) -> Result<Pace> {
    let (start, used) = (Instant::now(), process_time());
    let running: Vec<_> = (0..tasks)
        .map(|task| {
            let client = Arc::clone(client);
            tokio::spawn(async move {
                let key = format!("room_{task}");
                let mut nanos = Vec::new();
                let mut begin = Instant::now();
                while begin - start < slice {
                    client.pair(&key).await?;
                    let end = Instant::now();
                    nanos.push(u32::try_from((end - begin).as_nanos()).unwrap_or(u32::MAX));
                    begin = end;
                }
                anyhow::Ok(nanos)
            })
        })
        .collect();
    let mut nanos = Vec::new();
    for task in running {
        nanos.extend(task.await??);
    }
    Ok(Pace::of(nanos, start.elapsed(), process_time() - used))
}
