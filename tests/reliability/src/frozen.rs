//! Processes that are frozen for longer than their lease.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use dlock::Locks;
use dlock_rig::register::RegisterServer;
use dlock_rig::worker::{Order, Report as Said, Worker};
use dlock_testkit::now_ns;
use dlock_testkit::register::Register;
use tokio::task::JoinSet;

use crate::figure::{Report, Spread, progress};
use crate::store::{Store, acquire};
use crate::{Failed, Volume};

const LEASE: Duration = Duration::from_millis(600);
const LANES: usize = 8;

/// What was seen of one process.
pub(crate) struct Thawed {
    pub(crate) first_check: bool,
    signal: Duration,
    refused: bool,
}

pub(crate) async fn measure(store: &Store, volume: Volume, report: &mut Report) -> Result<(), Failed> {
    let rounds = volume.of(12, 2);
    let total = rounds * LANES;
    let bar = Arc::new(progress("frozen processes", store.name(), total));
    let mut lanes = JoinSet::new();
    for _ in 0..LANES {
        let (mut worker, locks) = (store.worker(LEASE).await?, store.locks(LEASE).await?);
        let keys: Vec<_> = (0..rounds).map(|_| store.key()).collect();
        let bar = Arc::clone(&bar);
        lanes.spawn(async move {
            let mut seen = Vec::new();
            for key in keys {
                seen.push(freeze(&mut worker, &locks, key, LEASE).await?);
                bar.inc(1);
            }
            Ok::<_, Failed>(seen)
        });
    }
    let mut seen = Vec::new();
    while let Some(lane) = lanes.join_next().await {
        seen.extend(lane??);
    }
    bar.finish_and_clear();
    let believed = seen.iter().filter(|thawed| thawed.first_check).count();
    let accepted = seen.iter().filter(|thawed| !thawed.refused).count();
    let signals = Spread::of(seen.iter().map(|thawed| thawed.signal).collect());
    let what = format!("processes frozen for two and a half leases of {LEASE:?}");
    let of = |n| format!("{n} of {total}");
    report.add(store.name(), format!("{what}: first check still fine"), of(believed), "0", believed == 0);
    report.add(store.name(), format!("{what}: stale write accepted"), of(accepted), "0", accepted == 0);
    report.note(store.name(), format!("{what}: `lost` after they went on"), signals);
    Ok(())
}

/// Freezes a process that holds a lock for two and a half times the `term` after which others have it.
pub(crate) async fn freeze(
    worker: &mut Worker,
    locks: &Locks,
    key: String,
    term: Duration,
) -> Result<Thawed, Failed> {
    let server = RegisterServer::start(Register::fenced()).await?;
    let register = server.address();
    worker.ask(&Order::Acquire { key: key.clone(), wait_ms: 0 }).await?;
    worker.ask(&Order::Read { register }).await?;
    let gap_ms = u64::try_from(term.as_millis())?;
    worker.ask(&Order::Watch { gap_ms }).await?;
    worker.freeze()?;
    let frozen = tokio::time::Instant::now();
    let successor = acquire(&locks.lock(&key).with_wait(term * 10), &AtomicU64::new(0)).await?;
    let fence = successor.fence().ok_or("no fence")?;
    server.register().read(fence)?;
    tokio::time::sleep_until(frozen + term * 5 / 2).await;
    let thawed = now_ns();
    worker.thaw()?;
    let (mut first_check, mut signal) = (None, None);
    while first_check.is_none() || signal.is_none() {
        match worker.report().await? {
            Said::Paused { held, .. } => first_check = first_check.or(Some(held)),
            Said::Lost { at } => signal = Some(Duration::from_nanos(at.saturating_sub(thawed))),
            other => return Err(format!("unexpected: {other:?}").into()),
        }
    }
    let answer = worker.ask(&Order::Write { register, read: 0, value: 1 }).await?;
    // The lock is gone, which is what a release has to say.
    let _ = worker.ask(&Order::Release).await;
    successor.release().await?;
    Ok(Thawed {
        first_check: first_check.unwrap_or(true),
        signal: signal.unwrap_or(Duration::MAX),
        refused: answer == Said::Value(None),
    })
}
