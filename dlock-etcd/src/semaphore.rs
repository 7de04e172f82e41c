//! The number of permits of a semaphore.
//!
//! It stands beside the directory of its claims, as `<number> <second of the day it was written>`, on a lease of its
//! own that is more than twice as long as a number has to be remembered. A grant writes it again once it is older than
//! that, so that no grant has to write it besides.

use std::time::{SystemTime, UNIX_EPOCH};

use dlock_core::backend::PERMITS_REMEMBERED;
use etcd_client::{Compare, CompareOp, KeyValue};

/// The number of permits, as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Number {
    pub(crate) permits: u32,
    written: u64,
    pub(crate) lease: i64,
    /// The revision of the last change.
    pub(crate) changed: i64,
}

/// The seconds for which the number is remembered after it was written.
pub(crate) const REMEMBERED: i64 = 50 * 3_600;

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl Number {
    pub(crate) fn of(stored: &KeyValue) -> Option<Self> {
        let (permits, written) = std::str::from_utf8(stored.value()).ok()?.split_once(' ')?;
        let (permits, written) =
            (permits.parse().ok().filter(|permits| *permits > 0)?, written.parse().ok()?);
        Some(Self { permits, written, lease: stored.lease(), changed: stored.mod_revision() })
    }

    /// Returns whether it is to be written again. A clock that differs makes it earlier or later by as much.
    pub(crate) fn is_old(&self) -> bool {
        now().abs_diff(self.written) > PERMITS_REMEMBERED.as_secs()
    }
}

pub(crate) fn text(permits: u32) -> String {
    format!("{permits} {}", now())
}

/// Returns the comparisons that hold if the key has this number, whenever it was written.
pub(crate) fn is(key: &str, permits: u32) -> [Compare; 2] {
    // `!` is the character after the blank.
    let bound = |op, end| Compare::value(key, op, format!("{permits}{end}"));
    [bound(CompareOp::Greater, ' '), bound(CompareOp::Less, '!')]
}
