//! Runtimes that are blocked for three leases.

use std::time::Duration;

use dlock::Lock;
use tokio::task::JoinSet;

use crate::figure::{Report, progress};
use crate::store::Store;
use crate::{Failed, Volume};

const LEASE: Duration = Duration::from_secs(1);

pub(crate) async fn measure(store: &Store, volume: Volume, report: &mut Report) -> Result<(), Failed> {
    let total = volume.of(32, 8);
    let bar = progress("blocked runtimes", store.name(), total);
    let (ours, theirs) = (store.locks(LEASE).await?, store.locks(LEASE).await?);
    let (mut kept, mut let_in) = (0, 0);
    let mut holders = JoinSet::new();
    for _ in 0..total {
        let key = store.key();
        let (lock, other) = (ours.lock(&key), theirs.lock(&key));
        holders.spawn(async move {
            let holder = tokio::task::spawn_blocking(move || block(&lock));
            tokio::time::sleep(LEASE / 4).await;
            // Not let in for as long as the other one is blocked.
            let wait = other.with_wait(LEASE * 5 / 2).acquire().await;
            Ok::<_, Failed>((holder.await?.map_err(Failed::from)?, wait.is_ok()))
        });
    }
    while let Some(holder) = holders.join_next().await {
        let (held, other) = holder??;
        kept += usize::from(held);
        let_in += usize::from(other);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let what = format!("runtimes blocked for three leases of {LEASE:?}: locks kept");
    let value = format!("{kept} of {total}, {let_in} times another was let in");
    report.add(store.name(), what, value, "all", kept == total && let_in == 0);
    Ok(())
}

/// Holds the lock on a runtime whose only thread is blocked. Whether it was kept.
fn block(lock: &Lock) -> Result<bool, std::io::Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let guard = lock.acquire().await?;
        std::thread::sleep(LEASE * 3);
        let kept = guard.check().is_ok();
        guard.release().await?;
        Ok(kept)
    })
}
