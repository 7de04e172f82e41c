//! Replicas that take over while the last writes have not reached them.

use std::sync::Arc;
use std::time::Duration;

use dlock::Locks;
use dlock::redis::Redis;
use dlock_rig::servers::redis::RedisPair;
use tokio::task::JoinSet;

use crate::figure::{Report, progress};
use crate::{Failed, Volume};

const LEASE: Duration = Duration::from_secs(30);
const LANES: usize = 6;

/// What came of one failover.
#[derive(Default)]
struct Outcome {
    /// Somebody got the lock while its holder still believed in it.
    twice: usize,
    /// The first acquire was refused.
    refused: usize,
    /// The later holder had the higher fence.
    in_order: usize,
}

pub(crate) async fn measure(volume: Volume, report: &mut Report) -> Result<(), Failed> {
    let rounds = volume.of(17, 2);
    let total = rounds * LANES;
    for min_replicas in [0, 1] {
        let bar = Arc::new(progress(&format!("failovers, min_replicas {min_replicas}"), "Redis", total));
        let mut lanes = JoinSet::new();
        for _ in 0..LANES {
            let bar = Arc::clone(&bar);
            lanes.spawn(async move {
                let mut all = Outcome::default();
                for _ in 0..rounds {
                    let outcome = fail_over(min_replicas).await?;
                    all.twice += outcome.twice;
                    all.refused += outcome.refused;
                    all.in_order += outcome.in_order;
                    bar.inc(1);
                }
                Ok::<_, Failed>(all)
            });
        }
        let mut all = Outcome::default();
        while let Some(lane) = lanes.join_next().await {
            let lane = lane??;
            all.twice += lane.twice;
            all.refused += lane.refused;
            all.in_order += lane.in_order;
        }
        bar.finish_and_clear();
        let of = |count| format!("{count} of {total}");
        let what = format!("failover to a replica that was cut off, min_replicas {min_replicas}");
        if min_replicas == 0 {
            report.note("Redis", format!("{what}: lock granted twice"), of(all.twice));
            let kept = all.in_order == all.twice && all.twice > 0;
            let value = format!("{} of {}", all.in_order, all.twice);
            report.add("Redis", "the same: the later grant has the higher fence", value, "all", kept);
        } else {
            let kept = all.twice == 0 && all.refused == total;
            report.add("Redis", format!("{what}: lock granted twice"), of(all.twice), "0", kept);
            report.note("Redis", "the same: refused, since no replica acknowledged", of(all.refused));
        }
    }
    Ok(())
}

async fn fail_over(min_replicas: u32) -> Result<Outcome, Failed> {
    let mut pair = tokio::task::spawn_blocking(RedisPair::start).await??;
    let (ours, theirs) = (locks(&pair, min_replicas).await?, locks(&pair, 0).await?);
    pair.black_hole_the_replication();
    let first = ours.lock("room").acquire().await;
    let pair = tokio::task::spawn_blocking(move || {
        pair.fail_over();
        pair
    })
    .await?;
    let second = loop {
        match theirs.lock("room").acquire().await {
            Ok(guard) => break guard,
            Err(error) if error.is_retryable() => {}
            Err(error) => return Err(error.into()),
        }
    };
    let believed = first.as_ref().is_ok_and(|first| first.check().is_ok()) && second.check().is_ok();
    let in_order = first.as_ref().is_ok_and(|first| first.fence() < second.fence());
    let outcome = Outcome {
        twice: believed.into(),
        refused: first.is_err().into(),
        in_order: (believed && in_order).into(),
    };
    drop((first, second, pair));
    Ok(outcome)
}

async fn locks(pair: &RedisPair, min_replicas: u32) -> Result<Locks, Failed> {
    let redis = Redis::builder(&pair.url())
        .with_min_replicas(min_replicas)
        .with_replica_timeout(Duration::from_millis(200))
        .connect()
        .await?;
    Ok(Locks::builder(redis).with_lease(LEASE).with_wait(Duration::from_millis(300)).build()?)
}
