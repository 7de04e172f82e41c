//! Critical sections with a record.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlock_core::{Guard, Locks};
use futures_util::future::try_join_all;

use super::{Way, Work};
use crate::register::RegisterClient;
use dlock_testkit::history::{Event, HeldAs, Recorder};

/// How often the lock is checked while a section waits.
const STEP: Duration = Duration::from_millis(5);
/// How long a section waits for its lock.
const PATIENCE: Duration = Duration::from_secs(5);

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
    let tasks = (0..work.tasks).map(|task| one_task(locks, (work, task), &recorder, stop));
    let done = try_join_all(tasks).await?;
    Ok(done.into_iter().fold((0, 0), |(sections, failed), (some, others)| (sections + some, failed + others)))
}

async fn one_task(
    locks: &Locks,
    (work, task): (&Work, u64),
    recorder: &Recorder,
    stop: &AtomicBool,
) -> io::Result<(u64, u64)> {
    let mut register = RegisterClient::connect(work.register).await?;
    let mut random = fastrand::Rng::with_seed(work.seed ^ task << 32);
    let (mut sections, mut failed) = (0, 0);
    for hold in (task..).step_by(usize::try_from(work.tasks).unwrap_or(1)) {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        let (acquire, held_as) = acquire(locks, work, &mut random);
        let (event, guard) = Event::acquire(work.process, hold, &work.key, acquire).await;
        recorder.record(&event.with_held_as(held_as))?;
        let Ok(guard) = guard else {
            failed += 1;
            tokio::time::sleep(STEP).await;
            continue;
        };
        let fence = guard.fence().map_or(0, dlock_core::Fence::get);
        // Holders of permits do not keep each other from the register.
        let read = if held_as == HeldAs::Alone { register.read(fence).await? } else { Ok(0) };
        if let Ok(read) = read {
            let pause = Duration::from_millis(random.u64(work.pause_ms.0..=work.pause_ms.1));
            let until = tokio::time::Instant::now() + pause;
            while tokio::time::Instant::now() < until {
                tokio::time::sleep(STEP.min(pause)).await;
                recorder.record(&Event::check(work.process, hold, &guard))?;
            }
            match held_as {
                HeldAs::Alone => drop(register.write(fence, read, read + 1).await?),
                // Whoever wrote before is refused from now on.
                HeldAs::Reader => drop(register.read(fence).await?),
                HeldAs::Permits { .. } => {}
            }
            recorder.record(&Event::check(work.process, hold, &guard))?;
        }
        recorder.record(&Event::release_begins(work.process, hold, &guard))?;
        recorder.record(&Event::release(work.process, hold, guard).await)?;
        sections += 1;
    }
    Ok((sections, failed))
}

type Acquiring<'a> = Pin<Box<dyn Future<Output = dlock_core::Result<Guard>> + Send + 'a>>;

/// Takes the lock in one of the ways that the work asks for.
fn acquire<'a>(locks: &'a Locks, work: &'a Work, random: &mut fastrand::Rng) -> (Acquiring<'a>, HeldAs) {
    let lock = locks.lock(&work.key).with_wait(PATIENCE);
    let (lock, held_as) = match work.way {
        Way::Alone => (lock, HeldAs::Alone),
        Way::Fair => (lock.with_fairness(true), HeldAs::Alone),
        Way::Shared if random.u8(0..4) == 0 => (lock, HeldAs::Alone),
        Way::Shared => (lock.read(), HeldAs::Reader),
        Way::Permits(of) => {
            let taken = random.u32(1..=of);
            let permits = locks.semaphore(&work.key, of).take(taken).with_wait(PATIENCE);
            return (Box::pin(async move { permits.acquire().await }), HeldAs::Permits { taken, of });
        }
    };
    (Box::pin(async move { lock.acquire().await }), held_as)
}
