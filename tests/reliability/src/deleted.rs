//! Locks that an administrator deletes while they are held.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::figure::{Report, Spread, progress};
use crate::store::{Kind, Store};
use crate::{Failed, Volume};

const LEASE: Duration = Duration::from_secs(3);
const LANES: usize = 20;

pub(crate) async fn measure(store: &Store, volume: Volume, report: &mut Report) -> Result<(), Failed> {
    let rounds = volume.of(10, 2);
    let bar = Arc::new(progress("deleted locks", store.name(), rounds * LANES));
    let locks = store.locks(LEASE).await?;
    let mut random = fastrand::Rng::with_seed(volume.seed ^ 2);
    let mut times = Vec::new();
    for _ in 0..rounds {
        let mut lanes = JoinSet::new();
        for _ in 0..LANES {
            let key = store.key();
            let guard = locks.lock(&key).acquire().await?;
            // Anywhere between two renewals, the first of which is to come.
            let after = LEASE.mul_f64(random.f64());
            let mut admin = store.admin().await?;
            let bar = Arc::clone(&bar);
            lanes.spawn(async move {
                tokio::time::sleep(after).await;
                let deleted = Instant::now();
                admin.delete(&key).await?;
                guard.lost().await;
                bar.inc(1);
                Ok::<_, Failed>(deleted.elapsed())
            });
        }
        while let Some(time) = lanes.join_next().await {
            times.push(time??);
        }
    }
    bar.finish_and_clear();
    let spread = Spread::of(times);
    // At a third of the lease, and ZooKeeper's at the next beat of the session after that.
    let promise = if store.kind() == Kind::Zk { 0.5 } else { 0.35 };
    let kept = spread.max <= LEASE.mul_f64(promise);
    report.add(
        store.name(),
        format!(
            "{} locks deleted: time until the holder knows, in % of the lease of {LEASE:?}",
            rounds * LANES
        ),
        spread.percent(LEASE),
        format!("{:.0} % at the most", 100.0 * promise),
        kept,
    );
    Ok(())
}
