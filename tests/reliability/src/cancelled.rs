//! Acquires that are cancelled at every await point.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use dlock::Locks;
use dlock_testkit::cancel::{Cut, Leave, cut_at, every_await_point};

use tokio::task::JoinSet;

use crate::figure::{Report, progress};
use crate::store::{Store, held};
use crate::{Failed, Volume};

/// Long: what is free soon was withdrawn and did not run out.
const LEASE: Duration = Duration::from_secs(60);
const BATCH: usize = 100;
const SOON: Duration = Duration::from_millis(100);
/// How long a waiter would wait that is not cut before.
const WAIT: Duration = Duration::from_millis(25);

pub(crate) fn measure(store: &Store, volume: Volume, report: &mut Report) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (ours, theirs) = (store.locks(LEASE).await?, store.locks(LEASE).await?);
        for contended in [false, true] {
            cancel_many(store, &ours, &theirs, contended, volume, report).await?;
        }
        Ok(())
    })
}

async fn cancel_many(
    store: &Store,
    ours: &Locks,
    theirs: &Locks,
    contended: bool,
    volume: Volume,
    report: &mut Report,
) -> Result<(), Failed> {
    let total = volume.of(10_000, 1_000);
    let what =
        if contended { "cancelled waits for a held lock" } else { "cancelled acquires of a free lock" };
    let bar = progress(what, store.name(), total);
    let cuts = cuts(store, ours, theirs, contended).await?;
    let (mut cancelled, mut late, mut orphans, mut n) = (0, 0, 0, 0);
    let (mut places, mut all) = (BTreeSet::new(), Vec::new());
    while cancelled < total {
        let keys: Vec<_> = (0..BATCH).map(|_| store.key()).collect();
        let mut holders = Vec::new();
        let mut acquires = JoinSet::new();
        for key in &keys {
            if contended {
                holders.push(theirs.lock(key).acquire().await?);
            }
            let (lock, cut) = (ours.lock(key).with_wait(WAIT), cuts[n % cuts.len()]);
            n += 1;
            acquires.spawn(async move { (cut, cut_at(lock.acquire(), cut).await.is_none()) });
        }
        while let Some(acquire) = acquires.join_next().await {
            let (cut, was_cut) = acquire?;
            if was_cut {
                places.insert((cut.polls, cut.leave == Leave::AtOnce));
                cancelled += 1;
                bar.inc(1);
            }
        }
        for holder in holders {
            holder.release().await?;
        }
        let left = Instant::now();
        tokio::time::sleep(SOON).await;
        late += held(theirs, &keys).await?;
        while ours.stats().background > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if left.elapsed() > LEASE / 2 {
            return Err("the clean-up took so long that a lease may have done it".into());
        }
        orphans += held(theirs, &keys).await?;
        all.extend(keys);
    }
    // A request that was overtaken by its own withdrawal would show up by now.
    orphans += held(theirs, &all).await?;
    bar.finish_and_clear();
    let what = format!("{what}, at {} places", places.len());
    let of = |n| format!("{n} of {cancelled}");
    report.add(store.name(), format!("{what}: locks left when cleaned up"), of(orphans), "0", orphans == 0);
    report.note(store.name(), format!("the same: still being cleaned up {SOON:?} later"), of(late));
    Ok(())
}

/// The places at which an acquire can be cut.
async fn cuts(store: &Store, ours: &Locks, theirs: &Locks, contended: bool) -> Result<Vec<Cut>, Failed> {
    let key = store.key();
    let _holder = if contended { Some(theirs.lock(&key).acquire().await?) } else { None };
    let lock = ours.lock(&key).with_wait(WAIT);
    let places = every_await_point(|| lock.acquire(), async |_cut, output| drop(output)).await;
    let all = (0..=places / 2)
        .flat_map(|polls| [Leave::AtOnce, Leave::WhenWoken].map(|leave| Cut { polls, leave }));
    Ok(all.collect())
}
