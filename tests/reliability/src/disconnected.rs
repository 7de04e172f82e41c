//! Connections that end while their session goes on, and sessions that run out.

use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use dlock_rig::proxy::Proxy;

use crate::figure::{Report, Spread, progress};
use crate::store::{Store, acquire};
use crate::{Failed, Volume};

const SESSION: Duration = Duration::from_secs(1);
/// How long after the end of its connection a lock may count as held.
const PROMISE: Duration = Duration::from_millis(20);

pub(crate) async fn measure(store: &Store, volume: Volume, report: &mut Report) -> Result<(), Failed> {
    closed(store, volume.of(200, 20), report).await?;
    run_out(store, volume.of(50, 5), report).await
}

fn way(store: &Store) -> Result<(Proxy, String), Failed> {
    store.proxy(SESSION)?.ok_or_else(|| "there is no server".into())
}

/// From the end of the connection to the guard that says so.
async fn closed(store: &Store, total: usize, report: &mut Report) -> Result<(), Failed> {
    let bar = progress("closed connections", store.name(), total);
    let (proxy, url) = way(store)?;
    let locks = dlock::from_url(&url).await?.build()?;
    let (mut times, failed) = (Vec::new(), AtomicU64::new(0));
    for _ in 0..total {
        let guard = acquire(&locks.lock(store.key()), &failed).await?;
        let held = guard.held();
        let closed = Instant::now();
        proxy.cut();
        held.at_risk().await;
        times.push(closed.elapsed());
        drop(guard.release().await);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let spread = Spread::of(times);
    let kept = spread.max <= PROMISE;
    let what = format!("{total} connections cut: time until the guard is suspect");
    report.add(store.name(), what, &spread, format!("{PROMISE:?} at the most"), kept);
    Ok(())
}

/// From the loss at the old holder to the grant to the next one.
async fn run_out(store: &Store, total: usize, report: &mut Report) -> Result<(), Failed> {
    let bar = progress("sessions that run out", store.name(), total);
    let theirs = store.locks(SESSION * 10).await?;
    let (mut margins, mut negative, failed) = (Vec::new(), 0, AtomicU64::new(0));
    for _ in 0..total {
        let (proxy, url) = way(store)?;
        let ours = dlock::from_url(&url).await?.build()?;
        let key = store.key();
        let guard = acquire(&ours.lock(&key), &failed).await?;
        let next = theirs.lock(&key).with_wait(SESSION * 20);
        let next = tokio::spawn(async move { next.acquire().await.map(|guard| (guard, Instant::now())) });
        proxy.black_hole();
        guard.lost().await;
        let lost = Instant::now();
        let (next, granted) = next.await??;
        match granted.checked_duration_since(lost) {
            Some(margin) => margins.push(margin),
            None => negative += 1,
        }
        next.release().await?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    let what = format!("{total} sessions of {SESSION:?} cut off: lost after the next holder had the lock");
    report.add(store.name(), what, negative, "0", negative == 0);
    let least = margins.iter().min().copied().unwrap_or_default();
    let value = format!("{}, least {least:.1?}", Spread::of(margins));
    report.note(store.name(), "the same: time from the loss to the next grant", value);
    Ok(())
}
