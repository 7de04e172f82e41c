//! Guards that go without a release.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dlock::Guard;

use crate::figure::{Report, Spread, progress};
use crate::store::{Store, acquire, held};
use crate::{Failed, Volume};

const LEASE: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_secs(1);

/// How a guard goes.
type Way = (&'static str, fn(Guard));

pub(crate) async fn measure(store: &Store, volume: Volume, report: &mut Report) -> Result<(), Failed> {
    cycles(store, volume, report).await?;
    let ways: [Way; 3] = [
        ("by a panic that unwinds", |guard| {
            let unwound = catch_unwind(AssertUnwindSafe(move || {
                let _guard = guard;
                // Without the panic hook's output.
                resume_unwind(Box::new("measured"));
            }));
            drop(unwound);
        }),
        ("on a thread without a runtime", |guard| {
            let _ = std::thread::spawn(move || drop(guard)).join();
        }),
        ("by a runtime that is shut down", |guard| {
            let Ok(runtime) = tokio::runtime::Builder::new_current_thread().build() else { return };
            runtime.spawn(async move {
                let _guard = guard;
                std::future::pending::<()>().await;
            });
            let _ = std::thread::spawn(move || drop(runtime)).join();
        }),
    ];
    for (how, way) in ways {
        dropped(store, how, way, volume, report).await?;
    }
    Ok(())
}

/// Acquire and drop, again and again: nothing may be renewed afterwards, and nothing may be left.
async fn cycles(store: &Store, volume: Volume, report: &mut Report) -> Result<(), Failed> {
    let total = volume.of(100_000, 4_000);
    let bar = progress("acquire and drop", store.name(), total);
    let (ours, theirs) = (store.locks(SHORT).await?, store.locks(LEASE).await?);
    let keys: Vec<_> = (0..64).map(|_| store.key()).collect();
    let failed = AtomicU64::new(0);
    for n in 0..total {
        drop(acquire(&ours.lock(&keys[n % keys.len()]), &failed).await?);
        bar.inc(1);
    }
    while ours.stats().background > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let at_the_end = ours.stats();
    let left = held(&theirs, &keys).await?;
    tokio::time::sleep(SHORT * 2).await;
    let later = ours.stats().renewals - at_the_end.renewals;
    bar.finish_and_clear();
    let what = format!("{total} times acquire and drop");
    report.add(store.name(), format!("{what}: locks left"), left, "0", left == 0);
    report.add(store.name(), format!("{what}: renewals after the last release"), later, "0", later == 0);
    let failed = failed.load(Ordering::Relaxed);
    report.note(store.name(), format!("{what}: acquires that failed and were made again"), failed);
    Ok(())
}

async fn dropped(
    store: &Store,
    how: &str,
    way: fn(Guard),
    volume: Volume,
    report: &mut Report,
) -> Result<(), Failed> {
    let total = volume.of(1_000, 200);
    let bar = progress(how, store.name(), total);
    let (ours, theirs) = (store.locks(LEASE).await?, store.locks(LEASE).await?);
    let keys: Vec<_> = (0..total).map(|_| store.key()).collect();
    let mut times = Vec::with_capacity(total);
    for key in &keys {
        let guard = ours.lock(key).acquire().await?;
        let began = Instant::now();
        way(guard);
        times.push(began.elapsed());
        bar.inc(1);
    }
    while ours.stats().background > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let left = held(&theirs, &keys).await?;
    bar.finish_and_clear();
    let what = format!("{total} guards dropped {how}");
    report.add(store.name(), format!("{what}: locks left"), left, "0", left == 0);
    report.note(store.name(), "the same: time until it was dropped", Spread::of(times));
    Ok(())
}
