//! One clock for all processes of a host.

/// Nanoseconds of a clock that all processes of this host share and nobody can set: `CLOCK_BOOTTIME` on Linux.
#[must_use]
pub fn now_ns() -> u64 {
    dlock_core::Clock::system().now().as_nanos()
}
