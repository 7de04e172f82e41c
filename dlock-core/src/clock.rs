//! The clock that leases are measured with.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

/// A point in time of one [`Clock`], in nanoseconds since some fixed moment. Points of different clocks do not compare.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The end of time: later than every other point.
    pub const NEVER: Self = Self(u64::MAX);

    /// Creates the point at which a clock shows this many nanoseconds: the clock of a store, or a reading that was
    /// [stored](Self::as_nanos).
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the reading in nanoseconds. For [`Clock::system`] on Linux, all processes of one time namespace read the
    /// same clock, so a backend on one host may store the reading. It means nothing after a reboot.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time from `earlier` to this point; zero when it is not earlier.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl std::ops::Sub<Duration> for Timestamp {
    type Output = Self;

    fn sub(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// The clock that leases are measured with.
///
/// [`Clock::system`] counts on while the machine is suspended, on Linux (`CLOCK_BOOTTIME`) and macOS, and is not moved
/// by steps of the wall clock. On other systems (on Windows it is [`std::time::Instant`]) it may stand still during
/// suspension: a holder that was suspended for longer than its lease then believes in its lock until the next renewal
/// is answered, or for the rest of the lease; the [fence](crate::Fence) protects the resource as ever. A
/// [`ManualClock`] is for tests. Waiting for a busy lock is measured with tokio's clock instead, so that
/// `tokio::time::pause` works as usual in memory; where servers are asked, whose time goes on, a paused clock does not
/// count.
#[derive(Clone, Debug, Default)]
pub struct Clock(TimeSource);

#[derive(Clone, Default)]
enum TimeSource {
    #[default]
    System,
    Manual(Arc<Movable>),
    Simulated(Arc<dyn Fn() -> Timestamp + Send + Sync>),
}

impl Clock {
    /// Returns the machine's clock.
    #[must_use]
    pub const fn system() -> Self {
        Self(TimeSource::System)
    }

    /// Creates a clock that reads what `nanos` returns, for a simulation whose time is tokio's paused one.
    #[doc(hidden)]
    pub fn simulated(nanos: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(TimeSource::Simulated(Arc::new(move || Timestamp(nanos()))))
    }

    fn movable(&self) -> Option<&Arc<Movable>> {
        match &self.0 {
            TimeSource::Manual(movable) => Some(movable),
            TimeSource::System | TimeSource::Simulated(_) => None,
        }
    }

    /// Returns the current time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            TimeSource::System => boot_time(),
            TimeSource::Manual(movable) => movable.now(),
            TimeSource::Simulated(now) => now(),
        }
    }

    /// Resolves when the clock has reached `at`.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub async fn sleep_until(&self, at: Timestamp) {
        // tokio's timers stand still while the machine is suspended, and this clock does not: the sleep is in short
        // pieces.
        const PIECE: Duration = Duration::from_secs(1);
        loop {
            // Registered before the time is read, so that a move in between is not missed.
            let moved = self.movable().map(|movable| movable.moved.notified());
            let left = at.since(self.now());
            if left.is_zero() {
                return;
            }
            let stopped = self.movable().is_some_and(|movable| movable.stopped);
            match moved {
                None => tokio::time::sleep(left.min(PIECE)).await,
                Some(moved) if stopped => moved.await,
                Some(moved) => {
                    let _ = tokio::time::timeout(left.min(PIECE), moved).await;
                }
            }
        }
    }

    /// Resolves when the clock is moved; never for the machine's clock.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time. A move between two calls is not seen.
    pub async fn moved(&self) {
        match self.movable() {
            None => std::future::pending().await,
            Some(movable) => movable.moved.notified().await,
        }
    }
}

/// A clock that a test can move forward, to let a lease run out without waiting for it.
///
/// ```
/// use std::time::Duration;
/// use dlock_core::ManualClock;
///
/// let clock = ManualClock::stopped();
/// let before = clock.clock().now();
/// clock.advance(Duration::from_secs(30));
/// assert_eq!(clock.clock().now().since(before), Duration::from_secs(30));
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<Movable>);

struct Movable {
    offset: AtomicU64,
    stopped: bool,
    moved: Notify,
}

impl ManualClock {
    /// Creates a clock that runs like the machine's and can also be moved forward.
    #[must_use]
    pub fn running() -> Self {
        Self(Arc::new(Movable { offset: AtomicU64::new(0), stopped: false, moved: Notify::new() }))
    }

    /// Creates a clock that stands still except for [`advance`](Self::advance).
    #[must_use]
    pub fn stopped() -> Self {
        Self(Arc::new(Movable {
            offset: AtomicU64::new(boot_time().as_nanos()),
            stopped: true,
            moved: Notify::new(),
        }))
    }

    /// Moves the clock forward and wakes every task that waits for a time now reached.
    pub fn advance(&self, by: Duration) {
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX / 4);
        self.0.offset.fetch_add(by, Ordering::SeqCst);
        self.0.moved.notify_waiters();
    }

    /// Returns the clock to give to a backend.
    #[must_use]
    pub fn clock(&self) -> Clock {
        Clock(TimeSource::Manual(Arc::clone(&self.0)))
    }
}

impl Movable {
    fn now(&self) -> Timestamp {
        let offset = self.offset.load(Ordering::SeqCst);
        if self.stopped { Timestamp(offset) } else { boot_time() + Duration::from_nanos(offset) }
    }
}

impl fmt::Debug for TimeSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System => f.write_str("System"),
            Self::Manual(movable) => movable.fmt(f),
            Self::Simulated(now) => f.debug_tuple("Simulated").field(&now()).finish(),
        }
    }
}

impl fmt::Debug for Movable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Movable").field("now", &self.now()).field("stopped", &self.stopped).finish()
    }
}

/// Reads the machine's clock: on Linux and Android `CLOCK_BOOTTIME`; on macOS and iOS `CLOCK_MONOTONIC`, which counts
/// through sleep there; on other Unixes `CLOCK_MONOTONIC`, which may stand still while the machine sleeps.
#[cfg(unix)]
fn boot_time() -> Timestamp {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let clock = rustix::time::ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let clock = rustix::time::ClockId::Monotonic;
    let time = rustix::time::clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Timestamp(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

/// Reads the monotonic clock of the standard library, since the first call in this process.
#[cfg(not(unix))]
fn boot_time() -> Timestamp {
    static START: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
    Timestamp(u64::try_from(START.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_clock_does_not_go_back() {
        let clock = Clock::system();
        let mut last = clock.now();
        for _ in 0..10_000 {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
    }

    #[tokio::test]
    async fn moving_a_stopped_clock_wakes_its_sleepers() {
        let movable = ManualClock::stopped();
        let clock = movable.clock();
        let at = clock.now() + Duration::from_secs(3_600);
        let sleeper = tokio::spawn(async move { clock.sleep_until(at).await });
        tokio::task::yield_now().await;
        movable.advance(Duration::from_secs(3_599));
        tokio::task::yield_now().await;
        assert!(!sleeper.is_finished());
        movable.advance(Duration::from_secs(1));
        sleeper.await.unwrap();
    }
}
