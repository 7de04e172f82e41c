//! Processes whose session keeps their locks, killed and frozen. The leases of the locks are far beyond the
//! measurement, so that nothing but the end of a session makes them free.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use dlock_rig::worker::{Order, Worker};
use dlock_testkit::now_ns;
use tokio::task::JoinSet;

use crate::figure::{Report, Spread, progress};
use crate::frozen::freeze;
use crate::store::{Store, acquire};
use crate::{Failed, Volume};

/// The timeout of the sessions.
const TIMEOUT: Duration = Duration::from_secs(2);
const LEASE: Duration = Duration::from_secs(3_600);
const LANES: usize = 8;

pub(crate) async fn measure(store: &Store, volume: Volume, report: &mut Report) -> Result<(), Failed> {
    kill(store, volume, report).await?;
    let rounds = volume.of(12, 2);
    let total = rounds * LANES;
    let bar = Arc::new(progress("frozen sessions", store.name(), total));
    let mut lanes = JoinSet::new();
    for _ in 0..LANES {
        let (mut worker, locks) = (worker(store).await?, store.locks(LEASE).await?);
        let keys: Vec<_> = (0..rounds).map(|_| store.key()).collect();
        let bar = Arc::clone(&bar);
        lanes.spawn(async move {
            let mut seen = Vec::new();
            for key in keys {
                seen.push(freeze(&mut worker, &locks, key, TIMEOUT).await?);
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
    let what = format!("processes frozen for two and a half timeouts of their sessions of {TIMEOUT:?}");
    let of = format!("{believed} of {total}");
    report.add(store.name(), format!("{what}: first check still fine"), of, "0", believed == 0);
    Ok(())
}

async fn kill(store: &Store, volume: Volume, report: &mut Report) -> Result<(), Failed> {
    let rounds = volume.of(12, 2);
    let total = rounds * LANES;
    let bar = Arc::new(progress("killed sessions", store.name(), total));
    let locks = store.locks(LEASE).await?;
    let mut random = fastrand::Rng::with_seed(volume.seed ^ 2);
    let mut times = Vec::new();
    for _ in 0..rounds {
        let mut lane = JoinSet::new();
        for _ in 0..LANES {
            let (mut holder, key) = (worker(store).await?, store.key());
            let lock = locks.lock(&key).with_wait(TIMEOUT * 10);
            // Anywhere between two renewals of the record.
            let after = TIMEOUT.mul_f64(random.f64());
            let bar = Arc::clone(&bar);
            lane.spawn(async move {
                holder.ask(&Order::Acquire { key, wait_ms: 0 }).await?;
                let waiter = tokio::spawn(async move {
                    acquire(&lock, &AtomicU64::new(0)).await.map(|guard| (guard, now_ns()))
                });
                tokio::time::sleep(after).await;
                let killed = now_ns();
                holder.kill().await?;
                let (guard, at) = waiter.await??;
                guard.release().await?;
                bar.inc(1);
                Ok::<_, Failed>(Duration::from_nanos(at.saturating_sub(killed)))
            });
        }
        while let Some(time) = lane.join_next().await {
            times.push(time??);
        }
    }
    bar.finish_and_clear();
    let spread = Spread::of(times);
    let kept = spread.max <= TIMEOUT * 2;
    report.add(
        store.name(),
        format!(
            "{total} holders with a session killed: time to the takeover, in % of its timeout of {TIMEOUT:?}"
        ),
        spread.percent(TIMEOUT),
        "about 100 % at the most (accepted here: 200 %)",
        kept,
    );
    Ok(())
}

/// Starts a process with a session.
async fn worker(store: &Store) -> Result<Worker, Failed> {
    store.worker_with(LEASE, &[("DLOCK_SESSION", format!("{}ms", TIMEOUT.as_millis()))]).await
}
