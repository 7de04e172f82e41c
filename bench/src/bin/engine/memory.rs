//! The engine alone: locks in memory, where the backend costs next to nothing.

use std::time::Duration;

use anyhow::Result;
use dlock::{Error, Lock, Locks, Memory, distributed_lock};
use tokio::runtime::Runtime;

use crate::measure::{self, Settings, per_call};
use dlock_bench::report::{Row, Spread};
use dlock_bench::thread_time;

fn locks() -> Result<Locks> {
    Ok(Locks::builder(Memory::new()).build()?)
}

#[distributed_lock(key = "room_<id>", locks = locks)]
async fn annotated(locks: &Locks, id: u64) -> Result<u64, Error> {
    Ok(id + 1)
}

async fn by_hand(locks: &Locks, id: u64) -> Result<u64, Error> {
    locks.lock(format!("room_{id}")).with_template("room_<id>").run(async move { Ok(id + 1) }).await?
}

async fn acquire_and_release(lock: &Lock) -> Result<(), Error> {
    lock.acquire().await?.release().await
}

/// The attribute against the same by hand.
pub(crate) fn attribute(settings: &Settings) -> Result<Vec<Row>> {
    let (runtime, locks, calls) = (measure::runtime()?, locks()?, settings.calls);
    let comparison = measure::compare(
        settings.rounds,
        || {
            measure::busy_time(calls, || {
                runtime.block_on(async {
                    for id in 0..u64::from(calls) {
                        annotated(&locks, id % 64).await?;
                    }
                    Ok(())
                })
            })
        },
        || {
            measure::busy_time(calls, || {
                runtime.block_on(async {
                    for id in 0..u64::from(calls) {
                        by_hand(&locks, id % 64).await?;
                    }
                    Ok(())
                })
            })
        },
    )?;
    Ok(comparison.rows("memory: call of an annotated fn", "the same by hand", 1.05))
}

/// A lock that the session of its process keeps, against one with a lease.
pub(crate) fn under_a_session(settings: &Settings) -> Result<Vec<Row>> {
    let (runtime, calls) = (measure::runtime()?, settings.calls);
    let kept = Locks::builder(Memory::new()).with_session(Duration::from_secs(10)).build()?.lock("room_7");
    let leased = locks()?.lock("room_7");
    // The first acquire opens the session.
    runtime.block_on(acquire_and_release(&kept))?;
    let time = |lock: &Lock| {
        measure::busy_time(calls, || {
            runtime.block_on(async {
                for _ in 0..calls {
                    acquire_and_release(lock).await?;
                }
                Ok(())
            })
        })
    };
    let comparison = measure::compare(settings.rounds, || time(&kept), || time(&leased))?;
    Ok(comparison.rows("memory: acquire and release under a session", "the same with a lease", 1.1))
}

/// Nobody else wants the lock.
pub(crate) fn pair(settings: &Settings) -> Result<Vec<Row>> {
    let (runtime, lock) = (measure::runtime()?, locks()?.lock("room_7"));
    let spread = time_pairs(&runtime, &lock, settings)?;
    let counted = 10_000_u32;
    let mut result = Ok(());
    let allocated = allocation_counter::measure(|| {
        result = runtime.block_on(async {
            for _ in 0..counted {
                acquire_and_release(&lock).await?;
            }
            Ok::<(), Error>(())
        });
    });
    result?;
    let per_pair = |total: u64| total as f64 / f64::from(counted);
    let count = per_pair(allocated.count_total);
    Ok(vec![
        Row::spread("memory: acquire and release", spread, "ns").at_most(spread.median, 1_800.0, "ns"),
        Row::new("memory: allocations of an acquire and release", count, "").at_most(count, 5.0, ""),
        Row::new("memory: bytes allocated by them", per_pair(allocated.bytes_total), "B"),
    ])
}

fn time_pairs(runtime: &Runtime, lock: &Lock, settings: &Settings) -> Result<Spread> {
    measure::rounds(settings.rounds, || {
        measure::busy_time(settings.calls, || {
            runtime.block_on(async {
                for _ in 0..settings.calls {
                    acquire_and_release(lock).await?;
                }
                Ok(())
            })
        })
    })
}

/// A call inside a body that holds the same lock.
pub(crate) fn reentrant(settings: &Settings) -> Result<Vec<Row>> {
    let (runtime, locks, calls) = (measure::runtime()?, locks()?, settings.calls);
    let outer = locks.lock("room_7");
    let guards = measure::rounds(settings.rounds, || {
        let nested = async {
            let start = thread_time();
            for _ in 0..calls {
                acquire_and_release(&outer).await?;
            }
            Ok::<_, Error>(per_call(thread_time().saturating_sub(start), calls))
        };
        Ok(runtime.block_on(outer.run(nested))??)
    })?;
    let functions = measure::rounds(settings.rounds, || {
        let nested = async {
            let start = thread_time();
            for _ in 0..calls {
                annotated(&locks, 7).await?;
            }
            Ok::<_, Error>(per_call(thread_time().saturating_sub(start), calls))
        };
        Ok(runtime.block_on(outer.run(nested))??)
    })?;
    Ok(vec![
        Row::spread("memory: re-entrant acquire and release", guards, "ns").at_most(
            guards.median,
            80.0,
            "ns",
        ),
        Row::spread("memory: re-entrant call of an annotated fn", functions, "ns"),
    ])
}

/// A lock that is released before its first renewal must not wake the keeper.
pub(crate) fn wakes(settings: &Settings) -> Result<Vec<Row>> {
    let (runtime, locks, calls) = (measure::runtime()?, locks()?, settings.wakes_over);
    let lock = locks.lock("room_7");
    // The keeper is awake at the start, to find out that there is nothing to do.
    runtime.block_on(async {
        acquire_and_release(&lock).await?;
        tokio::time::sleep(Duration::from_millis(50)).await;
        Ok::<_, Error>(())
    })?;
    let before = locks.stats();
    runtime.block_on(async {
        for _ in 0..calls {
            acquire_and_release(&lock).await?;
        }
        Ok::<_, Error>(())
    })?;
    let after = locks.stats();
    let wakes = (after.keeper_wakes - before.keeper_wakes) as f64;
    let looks = (after.keeper_looks - before.keeper_looks) as f64;
    Ok(vec![
        Row::new(format!("memory: keeper wakes over {calls} acquires"), wakes, "").at_most(wakes, 0.0, ""),
        Row::new("memory: looks of the keeper by itself meanwhile", looks, ""),
    ])
}
