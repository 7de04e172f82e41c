//! The clocks of a host: how they are read, and which times compare exactly.

use std::time::{Duration, SystemTime};

use dlock_core::Clock;

/// The clock of leases and the wall clock, read at one moment, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) mono: u64,
    pub(crate) wall: u64,
}

impl Pair {
    /// Reads both clocks. A reading that was interrupted for longer than a millisecond is repeated, a few times.
    pub(crate) fn read() -> Self {
        let clock = Clock::system();
        let read = || {
            let before = clock.now();
            let wall = SystemTime::now();
            let took = clock.now().since(before);
            let since = wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            (Self { mono: (before + took / 2).as_nanos(), wall: nanos(since) }, took)
        };
        let mut best = read();
        for _ in 0..4 {
            if best.1 < Duration::from_millis(1) {
                break;
            }
            let next = read();
            if next.1 < best.1 {
                best = next;
            }
        }
        best.0
    }
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the name of the clock that processes of this host share; `run` where it is not known, so that no other
/// process is taken for one that shares it.
pub(crate) fn name_of_clock(run: &str) -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let boot = boot.trim();
    // A container may have a time namespace of its own, whose clock has another beginning.
    let namespace = std::fs::read_link("/proc/self/ns/time").ok();
    match (boot.is_empty(), namespace) {
        (false, Some(namespace)) => format!("{boot}/{}", namespace.display()),
        _ => run.to_owned(),
    }
}

#[cfg(unix)]
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(not(unix))]
pub(crate) fn host_name() -> String {
    std::env::var("COMPUTERNAME").or_else(|_| std::env::var("HOSTNAME")).unwrap_or_else(|_| "unknown".into())
}
