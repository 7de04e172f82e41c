//! What the engine costs when there is much of everything: a million keys, and a hundred thousand locks or waiters.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use dlock::{Error, Guard, Lock, Locks, ManualClock, Memory, Wait};

use crate::measure::{self, Settings};
use dlock_bench::report::{Row, Spread};

/// Long enough for nothing to be renewed while it is measured.
const LEASE: Duration = Duration::from_secs(600);

type Waiting = Pin<Box<dyn Future<Output = Result<Guard, Error>> + Send>>;

fn locks() -> Result<Locks> {
    Ok(Locks::builder(Memory::new()).with_lease(LEASE).build()?)
}

fn waiter(lock: &Lock) -> Waiting {
    let lock = lock.clone().with_wait(Wait::Forever);
    Box::pin(async move { lock.acquire().await })
}

/// Polls once, after which a waiter stands in line.
async fn begin(waiter: &mut Waiting) -> Result<()> {
    let waits = poll_fn(|context| Poll::Ready(waiter.as_mut().poll(context).is_pending())).await;
    ensure!(waits, "nobody else has the lock");
    Ok(())
}

/// Keys that come and go leave nothing behind.
pub(crate) fn keys(settings: &Settings) -> Result<Vec<Row>> {
    let (runtime, locks, keys) = (measure::runtime()?, locks()?, settings.wakes_over);
    let over = async |from: u32, to: u32| {
        for n in from..to {
            locks.lock(format!("room_{n}")).acquire().await?.release().await?;
        }
        Ok::<_, Error>(())
    };
    // What there is one of is made by the first ones.
    runtime.block_on(over(0, 1_000))?;
    let mut result = Ok(());
    let allocated = allocation_counter::measure(|| result = runtime.block_on(over(1_000, keys + 1_000)));
    result?;
    let left = allocated.bytes_current as f64;
    Ok(vec![Row::new(format!("memory: bytes left by {keys} keys"), left, "B").at_most(left, 0.0, "B")])
}

/// What costs the same whatever else is held or waited for.
struct Steps {
    pair: f64,
    cancelled: f64,
    segmented: f64,
}

impl Steps {
    /// The least time of some rounds: what disturbs them only adds.
    async fn measure(locks: &Locks, settings: &Settings) -> Result<Self> {
        let calls = settings.calls / 25;
        let (pair, busy, segmented) = (locks.lock("pair"), locks.lock("busy"), locks.segmented("stock", 8));
        let held = busy.acquire().await?;
        let mut least = Self { pair: f64::MAX, cancelled: f64::MAX, segmented: f64::MAX };
        for _ in 0..settings.rounds {
            let start = dlock_bench::thread_time();
            for _ in 0..calls {
                pair.acquire().await?.release().await?;
            }
            let paired = dlock_bench::thread_time();
            for _ in 0..calls {
                begin(&mut waiter(&busy)).await?;
            }
            let cancelled = dlock_bench::thread_time();
            for _ in 0..calls {
                segmented.run(async |_| ()).await?;
            }
            let ran = dlock_bench::thread_time();
            let call = |from: Duration, to: Duration| measure::per_call(to.saturating_sub(from), calls);
            least.pair = least.pair.min(call(start, paired));
            least.cancelled = least.cancelled.min(call(paired, cancelled));
            least.segmented = least.segmented.min(call(cancelled, ran));
        }
        held.release().await?;
        Ok(least)
    }

    fn rows(&self, alone: &Self, among: &str) -> Vec<Row> {
        let row = |what, ours: f64, alone: f64| {
            let ratio = ours / alone;
            Row::new(format!("memory: {what} among {among} / alone"), ratio, "x").at_most(ratio, 2.0, "x")
        };
        vec![
            row("acquire and release", self.pair, alone.pair),
            row("a cancelled wait", self.cancelled, alone.cancelled),
            row("a segmented run", self.segmented, alone.segmented),
        ]
    }
}

/// Other locks that are held, and other lines of waiters, cost nothing.
pub(crate) fn others(settings: &Settings) -> Result<Vec<Row>> {
    let runtime = measure::runtime()?;
    runtime.block_on(async {
        let mut rows = Vec::new();
        let alone = Steps::measure(&locks()?, settings).await?;
        for others in [10_000, 100_000] {
            let locks = locks()?;
            let mut guards = Vec::with_capacity(others);
            for n in 0..others {
                guards.push(locks.lock(format!("other_{n}")).acquire().await?);
            }
            rows.extend(
                Steps::measure(&locks, settings).await?.rows(&alone, &format!("{others} locks held")),
            );
            // In lines of ten.
            let mut waiters: Vec<_> =
                (0..others).map(|n| waiter(&locks.lock(format!("other_{}", n / 10)))).collect();
            for waiter in &mut waiters {
                begin(waiter).await?;
            }
            rows.extend(
                Steps::measure(&locks, settings).await?.rows(&alone, &format!("{others} waiters besides")),
            );
        }
        Ok(rows)
    })
}

/// A lock with the shortest lease, and acquires beside it, while the keeper has many others to look after.
pub(crate) fn short_lease(_: &Settings) -> Result<Vec<Row>> {
    const OTHERS: usize = 100_000;
    const HOLDS: u32 = 3;
    let (runtime, locks) = (measure::runtime()?, locks()?);
    let (short, beside) = (locks.lock("short").with_lease(Duration::from_millis(50)), locks.lock("beside"));
    let (mut lost, mut longest) = (0, Duration::ZERO);
    runtime.block_on(async {
        let mut others = Vec::with_capacity(OTHERS);
        for n in 0..OTHERS {
            others.push(locks.lock(format!("other_{n}")).with_lease(LEASE * 6).acquire().await?);
        }
        for _ in 0..HOLDS {
            let guard = short.acquire().await?;
            let end = Instant::now() + Duration::from_secs(1);
            while Instant::now() < end {
                let start = Instant::now();
                beside.acquire().await?.release().await?;
                longest = longest.max(start.elapsed());
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            lost += u32::from(guard.check().is_err());
        }
        Ok::<_, Error>(())
    })?;
    let name =
        format!("memory: leases of 50 ms lost in {HOLDS} holds of 1 s among {OTHERS} locks of an hour");
    let (lost, longest) = (f64::from(lost), longest.as_secs_f64() * 1e3);
    Ok(vec![
        Row::new(name, lost, "").at_most(lost, 0.0, ""),
        Row::new("memory: the longest acquire and release beside it", longest, "ms"),
    ])
}

/// A long line of which all give up.
pub(crate) fn cancelled(_: &Settings) -> Result<Vec<Row>> {
    const WAITERS: usize = 100_000;
    let runtime = measure::runtime()?;
    let mut rounds = Vec::new();
    for _ in 0..3 {
        let locks = locks()?;
        let lock = locks.lock("room_7");
        rounds.push(runtime.block_on(async {
            let guard = lock.acquire().await?;
            let mut waiters: Vec<_> = (0..WAITERS).map(|_| waiter(&lock)).collect();
            for waiter in &mut waiters {
                begin(waiter).await?;
            }
            let start = dlock_bench::thread_time();
            drop(waiters);
            let took = dlock_bench::thread_time().saturating_sub(start);
            guard.release().await?;
            Ok::<_, anyhow::Error>(took.as_secs_f64() * 1e3)
        })?);
    }
    let spread = Spread::of(rounds);
    let row = Row::spread(format!("memory: {WAITERS} waiters of one key cancelled"), spread, "ms");
    Ok(vec![row.at_most(spread.median, 200.0, "ms")])
}

/// The renewals so far, once there are no more of them for a while.
async fn settled(locks: &Locks) -> u64 {
    let mut renewed = u64::MAX;
    loop {
        tokio::time::sleep(Duration::from_millis(200)).await;
        if std::mem::replace(&mut renewed, locks.stats().renewals) == renewed {
            return renewed;
        }
    }
}

/// Locks that were taken at once are renewed one after the other.
pub(crate) fn renewals(_: &Settings) -> Result<Vec<Row>> {
    const LOCKS: u32 = 50_000;
    const LEASE: Duration = Duration::from_secs(12);
    const SLOTS: u32 = 10;
    let runtime = measure::runtime()?;
    // Moved by hand, so that a machine with much else to do shows the same.
    let clock = ManualClock::stopped();
    let locks = Locks::builder(Memory::with_clock(clock.clock())).with_lease(LEASE).build()?;
    let histogram = runtime.block_on(async {
        let mut guards = Vec::new();
        for n in 0..LOCKS {
            guards.push(locks.lock(format!("room_{n}")).acquire().await?);
        }
        // The first renewals are due in the second half of a third of the lease.
        let half = LEASE / 3 / 2;
        clock.advance(half);
        let (mut histogram, mut before) = (Vec::new(), 0);
        for _ in 0..SLOTS {
            clock.advance(half / SLOTS);
            let renewed = settled(&locks).await;
            histogram.push(renewed - std::mem::replace(&mut before, renewed));
        }
        for guard in &guards {
            guard.check()?;
        }
        Ok::<_, Error>(histogram)
    })?;
    let bars = histogram.iter().map(|renewed| renewed.to_string()).collect::<Vec<_>>().join(" ");
    let most = histogram.iter().max().copied().unwrap_or_default() as f64;
    let share = most * 100.0 / f64::from(LOCKS);
    // All together would be 100 %, and all apart 10 %.
    let name = format!("memory: renewals of {LOCKS} locks, share in the fullest tenth ({bars})");
    Ok(vec![Row::new(name, share, "%").at_most(share, 20.0, "%")])
}
