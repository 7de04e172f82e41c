//! Readers, permits and fair locks: under random faults, and when those who have permits are killed.

use std::sync::Arc;
use std::time::Duration;

use dlock_rig::worker::{Order, Report as Said, Way};
use dlock_testkit::checkers::Misplaced;
use dlock_testkit::now_ns;
use tokio::task::JoinSet;

use crate::faults::{ARENAS, Fight};
use crate::figure::{Report, Spread, progress};
use crate::store::Store;
use crate::{Failed, Volume};

/// How many faults there are on each backend at the least, those of the server not counted.
const FAULTS: usize = 1000;
const PERMITS: u32 = 3;
const LEASE: Duration = Duration::from_secs(2);
const LANES: usize = 8;

pub(crate) async fn measure(store: &Store, volume: Volume, report: &mut Report) -> Result<(), Failed> {
    let can = store.locks(LEASE).await?.capabilities();
    let ways = [
        (can.shared, Way::Shared, "readers and writers"),
        (can.permits, Way::Permits(PERMITS), "permits"),
        (can.fair || can.fair_on_request, Way::Fair, "fair locks"),
    ];
    let ways: Vec<_> = ways.into_iter().filter(|(can, ..)| *can).collect();
    let rounds = volume.of(FAULTS.div_ceil(ARENAS * ways.len().max(1)), 4);
    for (_, way, what) in ways {
        let seed = volume.seed ^ u64::from(what.as_bytes()[0]) << 16;
        let (sets_clocks, loses_data) = (false, false);
        let fight = Fight { fenced: true, rounds, seed, sets_clocks, loses_data, way };
        judge(fight, what, store, report).await?;
    }
    if can.permits {
        killed(store, volume, report).await?;
    }
    Ok(())
}

async fn judge(fight: Fight, what: &str, store: &Store, report: &mut Report) -> Result<(), Failed> {
    let name = store.name();
    let mut all = fight.fought(&format!("faults, {what}"), store).await?;
    for misplaced in all.sharing.beside.iter().chain(&all.sharing.inversions) {
        eprintln!("{misplaced:?}");
    }
    // Whoever ends a session by force takes back what was promised to those who hold by it.
    let ended = all.sessions_ended();
    let early =
        all.sharing.inversions.extract_if(.., |it| ended > 0 && it.what == Misplaced::TOO_EARLY).count();
    if ended > 0 {
        let most = ended * usize::try_from(PERMITS)?;
        let what =
            format!("{what}, {ended} sessions ended by force: grants before the time promised to others");
        report.add(name, what, early, format!("{most} at the most"), early <= most);
    }
    let (holds, most) = (all.sharing.holds, all.sharing.most);
    let several = !matches!(fight.way, Way::Shared | Way::Permits(_)) || most > 1;
    report.add(
        name,
        format!(
            "{what}, {} over {} grants and {} releases, up to {most} at a time: beside each other",
            all.faults(),
            holds,
            all.releases
        ),
        all.sharing.beside.len(),
        "0",
        all.sharing.beside.is_empty() && several && all.releases > 0,
    );
    if !matches!(fight.way, Way::Permits(_)) {
        let inversions = all.sharing.inversions.len();
        report.add(name, "the same: fences out of order", inversions, "0", inversions == 0);
        let updates = all.updates;
        let value = format!("{} of {}", updates.stale_accepted, updates.stale_tried);
        report.add(name, "the same: stale writes accepted", value, "0", updates.stale_accepted == 0);
        let value = format!("{} of {}", updates.lost_updates, updates.tried);
        report.add(name, "the same: updates lost", value, "0", updates.lost_updates == 0);
    }
    Ok(())
}

/// Kills processes that have permits, and looks when these are there for others.
async fn killed(store: &Store, volume: Volume, report: &mut Report) -> Result<(), Failed> {
    let rounds = volume.of(8, 1);
    let total = rounds * LANES;
    let bar = Arc::new(progress("killed holders of permits", store.name(), total));
    let locks = store.locks(LEASE).await?;
    let mut random = fastrand::Rng::with_seed(volume.seed ^ 2);
    let mut times = Vec::new();
    for _ in 0..rounds {
        let mut lane = JoinSet::new();
        for _ in 0..LANES {
            let (mut holder, key) = (store.worker(LEASE).await?, store.key());
            let all = locks.semaphore(&key, PERMITS).take(PERMITS).with_wait(LEASE * 10);
            // Anywhere between two renewals.
            let after = LEASE.mul_f64(random.f64());
            let taken = random.u32(1..=PERMITS);
            let bar = Arc::clone(&bar);
            lane.spawn(async move {
                let said = holder.ask(&Order::Take { key, permits: taken, of: PERMITS }).await?;
                if !matches!(said, Said::Acquired { .. }) {
                    return Err(format!("permits that are free were not granted: {said:?}").into());
                }
                // A machine that is busy with other things makes requests late.
                let waiter = tokio::spawn(async move {
                    let mut tries = 0;
                    loop {
                        match all.acquire().await {
                            Err(error) if error.is_retryable() && tries < 50 => tries += 1,
                            granted => return granted.map(|guard| (guard, now_ns())),
                        }
                    }
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
    report.add(
        store.name(),
        format!("{total} holders of permits killed: time until all permits are granted to another, in % of the lease of {LEASE:?}"),
        spread.percent(LEASE),
        "about 110 % at the most (accepted here: 200 %)",
        spread.max <= LEASE * 2,
    );
    Ok(())
}
