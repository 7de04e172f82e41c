//! The clock of the leases in the database.
//!
//! On Linux an expiry is a reading of `CLOCK_BOOTTIME`, which no step of the wall clock moves and which counts on while
//! the machine is suspended. A time namespace shows its processes other readings, from which the machine's are
//! computed. They mean nothing after a reboot, so the [boot](super::boot) is stored along with them. Elsewhere the wall
//! clock has to serve, and a step of it shortens or lengthens leases.

#[cfg(target_os = "linux")]
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use dlock_core::{Failure, Timestamp};

/// The nanoseconds by which the clock of this process is ahead of the machine's.
#[cfg(target_os = "linux")]
static AHEAD: AtomicI64 = AtomicI64::new(0);

/// Returns nanoseconds since the machine started, including the time it was suspended. Only good after
/// [`enter_namespace`].
#[cfg(target_os = "linux")]
pub(super) fn now() -> i64 {
    let read = i64::try_from(dlock_core::Clock::system().now().as_nanos()).unwrap_or(i64::MAX / 2);
    read.saturating_sub(AHEAD.load(Ordering::Relaxed))
}

/// Finds out by how much the time namespace of this process moves its clock, which does not change later.
#[cfg(target_os = "linux")]
pub(super) fn enter_namespace() -> Result<(), Failure> {
    const OFFSETS: &str = "/proc/self/timens_offsets";
    let unknown = |what: String| {
        Failure::invalid_config(format!(
            "{what}, so that it is not known how the clock of this process differs from the machine's"
        ))
    };
    let namespace = |name: &str| std::fs::read_link(format!("/proc/self/ns/{name}")).ok();
    // The offsets are those of the processes that this one starts.
    if namespace("time") != namespace("time_for_children") {
        return Err(unknown(
            "this process has left its time namespace; start another process in the new one".into(),
        ));
    }
    let ahead = match std::fs::read_to_string(OFFSETS) {
        Ok(offsets) => {
            boottime(&offsets).ok_or_else(|| unknown(format!("{OFFSETS} is of an unknown form")))?
        }
        // This kernel has no time namespaces.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
        Err(error) => {
            return Err(unknown(format!("{OFFSETS} cannot be read")).with_source(error));
        }
    };
    AHEAD.store(ahead, Ordering::Relaxed);
    Ok(())
}

/// Returns the offset of `CLOCK_BOOTTIME` in nanoseconds, by the lines of time_namespaces(7).
#[cfg(target_os = "linux")]
fn boottime(offsets: &str) -> Option<i64> {
    let mut words = offsets.lines().find_map(|line| line.strip_prefix("boottime"))?.split_whitespace();
    let mut number = || words.next()?.parse::<i64>().ok();
    number()?.checked_mul(1_000_000_000)?.checked_add(number()?)
}

/// Returns the start of the machine, in milliseconds of the wall clock.
#[cfg(target_os = "linux")]
pub(super) fn start() -> i64 {
    (wall_micros() - now() / 1_000) / 1_000
}

/// Returns nanoseconds of the wall clock.
#[cfg(not(target_os = "linux"))]
pub(super) fn now() -> i64 {
    nanos(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// Does nothing: there are no time namespaces here.
#[cfg(not(target_os = "linux"))]
pub(super) fn enter_namespace() -> Result<(), Failure> {
    Ok(())
}

/// Returns a start that never changes: times of the wall clock are good across boots.
#[cfg(not(target_os = "linux"))]
pub(super) fn start() -> i64 {
    0
}

/// Returns microseconds of the wall clock, from which the fences of a table start that has none yet.
pub(super) fn wall_micros() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(0)
}

/// Returns the moment of a reading of this clock, for the rules of who may hold a key.
pub(super) fn timestamp(nanos: i64) -> Timestamp {
    Timestamp::from_nanos(nanos.max(0).unsigned_abs())
}

/// Returns the reading at this moment.
pub(super) fn reading(at: Timestamp) -> i64 {
    i64::try_from(at.as_nanos()).unwrap_or(i64::MAX)
}

/// Returns `length` in nanoseconds.
pub(super) fn nanos(length: std::time::Duration) -> i64 {
    i64::try_from(length.as_nanos()).unwrap_or(i64::MAX / 4)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_offset_of_a_time_namespace_is_read_in_nanoseconds() {
        assert_eq!(boottime("monotonic           0         0\nboottime            0         0\n"), Some(0));
        assert_eq!(
            boottime("monotonic       86400         0\nboottime     -604800        50\n"),
            Some(-604_799_999_999_950)
        );
        for other in ["", "monotonic 0 0\n", "boottime 1\n", "boottime a 0\n"] {
            assert_eq!(boottime(other), None, "{other:?}");
        }
    }

    #[test]
    fn the_machine_started_at_one_time_whenever_it_is_asked() {
        enter_namespace().unwrap();
        let first = start();
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(first.abs_diff(start()) < 1_000_000, "{first} {}", start());
    }
}
