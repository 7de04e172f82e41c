//! Critical sections with a record.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlock_core::Locks;

use super::Work;
use crate::register::RegisterClient;
use dlock_testkit::history::{Event, Recorder};

/// How often the lock is checked while a section waits.
const STEP: Duration = Duration::from_millis(5);

/// Runs critical sections until `stop` is set. Returns how many got to their end, and how many acquires failed.
///
/// A section writes without a look at whether the lock is still held, as most code does: it is the fence that has to
/// stop it.
///
/// # Errors
///
/// Those of the history's file and of the register's connection.
///
/// # Cancel safety
///
/// Dropping it ends the work in the middle of a section; the lock is released.
pub async fn work(locks: &Locks, work: &Work, stop: &AtomicBool) -> io::Result<(u64, u64)> {
    let recorder = Recorder::append(&work.history)?;
    let mut register = RegisterClient::connect(work.register).await?;
    let mut random = fastrand::Rng::with_seed(work.seed);
    let lock = locks.lock(&work.key).with_wait(Duration::from_secs(5));
    let (mut sections, mut failed) = (0, 0);
    for hold in 0.. {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        let (event, guard) = Event::acquire(work.process, hold, &work.key, lock.acquire()).await;
        recorder.record(&event)?;
        let Ok(guard) = guard else {
            failed += 1;
            tokio::time::sleep(STEP).await;
            continue;
        };
        let fence = guard.fence().map_or(0, dlock_core::Fence::get);
        if let Ok(read) = register.read(fence).await? {
            let pause = Duration::from_millis(random.u64(work.pause_ms.0..=work.pause_ms.1));
            let until = tokio::time::Instant::now() + pause;
            while tokio::time::Instant::now() < until {
                tokio::time::sleep(STEP.min(pause)).await;
                recorder.record(&Event::check(work.process, hold, &guard))?;
            }
            let _ = register.write(fence, read, read + 1).await?;
            recorder.record(&Event::check(work.process, hold, &guard))?;
        }
        recorder.record(&Event::release_begins(work.process, hold, &guard))?;
        recorder.record(&Event::release(work.process, hold, guard).await)?;
        sections += 1;
    }
    Ok((sections, failed))
}
