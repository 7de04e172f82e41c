//! Processes that are killed while they hold a lock.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use dlock_rig::worker::Order;
use dlock_testkit::now_ns;
use tokio::task::JoinSet;

use crate::figure::{Report, Spread, progress};
use crate::store::{Store, acquire};
use crate::{Failed, Volume};

const LEASE: Duration = Duration::from_secs(1);
const LANES: usize = 8;

pub(crate) async fn measure(store: &Store, volume: Volume, report: &mut Report) -> Result<(), Failed> {
    let rounds = volume.of(25, 3);
    let total = rounds * LANES;
    let bar = Arc::new(progress("killed holders", store.name(), total));
    let store = &Arc::new(store);
    let mut times = Vec::new();
    // What a session keeps does not wait for the end of a lease; a longer one leaves a busy machine more time to
    // answer.
    let lease = if store.kind().is_session() { LEASE * 6 } else { LEASE };
    let locks = store.locks(lease).await?;
    let mut random = fastrand::Rng::with_seed(volume.seed ^ 1);
    for _ in 0..rounds {
        let mut lane = JoinSet::new();
        for _ in 0..LANES {
            let (mut holder, key) = (store.worker(lease).await?, store.key());
            let lock = locks.lock(&key).with_wait(LEASE * 10);
            // Anywhere between two renewals.
            let after = LEASE.mul_f64(random.f64());
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
    if store.kind().is_session() {
        let what = format!("{total} holders killed: time to the takeover");
        // The server sees the connection end; waiters ask now and then.
        let promise = Duration::from_millis(300);
        report.add(store.name(), what, &spread, format!("{promise:?} at the most"), spread.max <= promise);
        return Ok(());
    }
    let kept = spread.max <= LEASE * 2;
    report.add(
        store.name(),
        format!("{total} holders killed: time to the takeover, in % of the lease of {LEASE:?}"),
        spread.percent(LEASE),
        "about 100 % at the most (accepted here: 200 %)",
        kept,
    );
    Ok(())
}
