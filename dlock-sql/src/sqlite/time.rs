//! The clock of the leases in the database.
//!
//! On Linux an expiry is a reading of `CLOCK_BOOTTIME`, which no step of the wall clock moves and which counts on while
//! the machine is suspended. It means nothing after a reboot, so the boot's id is stored along with it. Elsewhere the
//! wall clock has to serve, and a step of it shortens or lengthens leases.

use std::time::{SystemTime, UNIX_EPOCH};

use dlock_core::Failure;

/// Which boot of the machine a time belongs to.
#[cfg(target_os = "linux")]
pub(super) fn boot_id() -> Result<Vec<u8>, Failure> {
    let path = "/proc/sys/kernel/random/boot_id";
    match std::fs::read_to_string(path) {
        Ok(id) if !id.trim().is_empty() => Ok(id.trim().as_bytes().to_vec()),
        Ok(_) => Err(Failure::invalid_config(format!(
            "{path} is empty, so that leases of different boots cannot be distinguished"
        ))),
        Err(error) => Err(Failure::invalid_config(format!(
            "{path} cannot be read, so that leases of different boots cannot be distinguished; mount /proc"
        ))
        .with_source(error)),
    }
}

/// Nanoseconds since the machine started, including the time it was suspended.
#[cfg(target_os = "linux")]
pub(super) fn now() -> i64 {
    i64::try_from(dlock_core::Clock::system().now().as_nanos()).unwrap_or(i64::MAX / 2)
}

/// Times of the wall clock are good across boots.
#[cfg(not(target_os = "linux"))]
pub(super) fn boot_id() -> Result<Vec<u8>, Failure> {
    Ok(b"wall clock".to_vec())
}

/// Nanoseconds of the wall clock.
#[cfg(not(target_os = "linux"))]
pub(super) fn now() -> i64 {
    nanos(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// Microseconds of the wall clock: where the fences of a table start that has none yet.
pub(super) fn wall_micros() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(0)
}

/// `length` in nanoseconds.
pub(super) fn nanos(length: std::time::Duration) -> i64 {
    i64::try_from(length.as_nanos()).unwrap_or(i64::MAX / 4)
}
