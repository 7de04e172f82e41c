//! Locks that an administrator deletes while they are held.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::figure::{Report, Spread, progress};
use crate::store::Store;
use crate::{Failed, Volume};

const LEASE: Duration = Duration::from_secs(3);
const LANES: usize = 20;
/// Of the lease.
const PROMISE: f64 = 0.35;

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
            let mut admin = store.redis().ok_or("there is no server")?.admin();
            let bar = Arc::clone(&bar);
            lanes.spawn(async move {
                tokio::time::sleep(after).await;
                let deleted = Instant::now();
                let count: u32 = redis::cmd("DEL").arg(format!("dlock:{key}")).query(&mut admin)?;
                if count != 1 {
                    return Err("there was nothing to delete".into());
                }
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
    let kept = spread.max <= LEASE.mul_f64(PROMISE);
    report.add(
        store.name(),
        format!(
            "{} locks deleted: time until the holder knows, in % of the lease of {LEASE:?}",
            rounds * LANES
        ),
        spread.percent(LEASE),
        "35 % at the most",
        kept,
    );
    Ok(())
}
