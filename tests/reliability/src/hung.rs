//! A quorum of three servers, of which one hangs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dlock::redis::Redis;
use dlock::{Guard, Locks, Quorum};
use dlock_rig::servers::redis::RedisServer;
use tokio::time::{Instant, MissedTickBehavior};

use crate::figure::{Report, Spread};
use crate::{Failed, Volume};

/// Of the sections; as long as the default.
const LEASE: Duration = Duration::from_secs(30);
/// Of the locks that are held all the time.
const SHORT: Duration = Duration::from_secs(2);
const HELD: usize = 20;
/// How many sections may be under way.
const MOST: u64 = 1_000;
const KEYS: u64 = 100_000;

/// What was done until now.
#[derive(Debug, Default)]
struct Counts {
    open: AtomicU64,
    done: AtomicU64,
    failed: AtomicU64,
    skipped: AtomicU64,
    times: std::sync::Mutex<Vec<Duration>>,
}

/// What was done in a while, each second.
struct Pace {
    done: f64,
    failed: u64,
    skipped: u64,
    times: Spread,
    cpu: f64,
}

impl Counts {
    /// Watches for so long.
    async fn watch(&self, length: Duration) -> Pace {
        let take = |count: &AtomicU64| count.swap(0, Ordering::Relaxed);
        let all = || (take(&self.done), take(&self.failed), take(&self.skipped));
        all();
        self.times.lock().expect("no panic").clear();
        let (started, used) = (Instant::now(), processor_time());
        tokio::time::sleep(length).await;
        let (done, failed, skipped) = all();
        let took = started.elapsed().as_secs_f64();
        let times = Spread::of(std::mem::take(&mut *self.times.lock().expect("no panic")));
        let cpu = (processor_time() - used) / took;
        #[allow(clippy::cast_precision_loss)]
        Pace { done: done as f64 / took, failed, skipped, times, cpu }
    }
}

impl std::fmt::Display for Pace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { done, failed, skipped, times, cpu } = self;
        write!(f, "{done:.0}/s, {failed} failed, {skipped} not begun, {times}, {cpu:.2} cores")
    }
}

/// Runs `rate` sections a second before, during and after `hang`, in which one server of three does not answer.
pub(crate) async fn measure(
    volume: Volume,
    rate: Option<u64>,
    hang: Option<Duration>,
    report: &mut Report,
) -> Result<(), Failed> {
    let rate = rate.unwrap_or(if volume.quick { 300 } else { 2_000 });
    let hang = hang.unwrap_or(Duration::from_secs(if volume.quick { 4 } else { 20 }));
    let around = Duration::from_secs(if volume.quick { 2 } else { 10 });
    let servers = (0..3).map(|_| RedisServer::start()).collect::<Result<Vec<_>, _>>()?;
    let locks = locks(&servers).await?;
    let mut held = Vec::new();
    for number in 0..HELD {
        held.push(locks.lock(format!("held_{number}")).with_lease(SHORT).acquire().await?);
    }
    let (counts, stop) = (Arc::new(Counts::default()), Arc::new(AtomicBool::new(false)));
    let load = tokio::spawn(load(locks.clone(), rate, Arc::clone(&counts), Arc::clone(&stop)));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = counts.watch(around).await;
    let memory_before = memory();
    let lost_before = lost(&held);
    servers[2].pause();
    let during = counts.watch(hang).await;
    let memory_during = memory();
    servers[2].resume();
    let after = counts.watch(around).await;
    let memory_after = memory();
    stop.store(true, Ordering::Relaxed);
    load.await?;
    let lost_after = lost(&held);
    let cause = held.iter().find_map(|guard| guard.check().err()).map(|error| error.to_string());
    for guard in held {
        let _ = Guard::release(guard).await;
    }
    let left = locks.shutdown(LEASE + Duration::from_secs(5)).await.err();

    let quorum = "quorum of 3 Redis";
    report.note(quorum, format!("{rate} sections a second asked for, all nodes well"), &before);
    let enough = during.done >= 0.9 * before.done && during.failed == 0;
    report.add(
        quorum,
        format!("the same, one node hangs for {hang:.0?}"),
        &during,
        ">= 0.9x, none failed",
        enough,
    );
    let enough = after.done >= 0.9 * before.done && after.failed == 0;
    report.add(quorum, "the same, the node is back", &after, ">= 0.9x, none failed", enough);
    let value = format!("{memory_before} MiB, {memory_during} MiB, {memory_after} MiB");
    let flat = memory_during.max(memory_after) <= memory_before + 32;
    report.add(quorum, "memory before, at the end of it, after", value, "within 32 MiB", flat);
    report.note(quorum, format!("locks of {SHORT:?} lost before it, of {HELD}"), lost_before);
    let value = format!("{} {}", lost_after - lost_before, cause.unwrap_or_default());
    report.add(quorum, "the same, lost during it and after", value.trim(), "0", lost_after == lost_before);
    let stats = locks.stats();
    report.note(quorum, "left to their leases on that node", stats.abandoned);
    let keys: usize = servers.iter().map(|server| server.keys().len()).sum();
    report.note(quorum, "keys left on the servers, marks included", keys);
    let value = left.as_ref().map_or_else(|| "yes".to_owned(), ToString::to_string);
    report.add(quorum, "everything was released within a lease", value, "yes", left.is_none());
    Ok(())
}

fn lost(held: &[Guard]) -> usize {
    held.iter().filter(|guard| guard.check().is_err()).count()
}

async fn locks(servers: &[RedisServer]) -> Result<Locks, Failed> {
    let mut nodes = Vec::new();
    for server in servers {
        nodes.push(Redis::connect(&server.url()).await?);
    }
    let quorum = Quorum::new(nodes)?;
    quorum.bootstrap().await?;
    Ok(Locks::builder(quorum).with_lease(LEASE).build()?)
}

async fn load(locks: Locks, rate: u64, counts: Arc<Counts>, stop: Arc<AtomicBool>) {
    let mut ticks = tokio::time::interval(Duration::from_millis(5));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let (mut begun, mut tick) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        ticks.tick().await;
        tick += 1;
        while begun < tick * rate / 200 {
            begun += 1;
            if counts.open.load(Ordering::Relaxed) >= MOST {
                counts.skipped.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            counts.open.fetch_add(1, Ordering::Relaxed);
            let (lock, counts) = (locks.lock(format!("section_{}", begun % KEYS)), Arc::clone(&counts));
            tokio::spawn(async move {
                let started = Instant::now();
                let done = async { lock.acquire().await?.release().await };
                match done.await {
                    Ok(()) => counts.done.fetch_add(1, Ordering::Relaxed),
                    Err(_) => counts.failed.fetch_add(1, Ordering::Relaxed),
                };
                counts.times.lock().expect("no panic").push(started.elapsed());
                counts.open.fetch_sub(1, Ordering::Relaxed);
            });
        }
    }
    while counts.open.load(Ordering::Relaxed) > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Of this process, in MiB.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0)
        / 1_024
}

/// Of this process, in seconds.
fn processor_time() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    fields.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}
