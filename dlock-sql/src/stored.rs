//! What a row says of its holder, and of those who wait.
//!
//! A row has the last of the fences that were reserved with its lock, so that whoever takes it next counts on from
//! there; how many these are stands in the line about the holder. A waiter who found the lock taken adds a mark at the
//! end of that line, which the next holder overwrites: the release finds it there.

use std::time::Duration;

use dlock_core::backend::{ClaimRequest, Grant};
use dlock_core::{Fence, Holder};

/// What a waiter adds to the line. Not a field: readers pass it over.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(crate) const AWAITED: &str = " awaited";

const RESERVED: &str = "reserved";

/// The line to store with a lock that is taken with so many fences.
pub(crate) fn line(request: &ClaimRequest, fences: u32) -> String {
    let line = request.describe();
    if fences > 1 { format!("{line} {RESERVED}={fences}") } else { line }
}

/// The holder by what was stored, with the first of its fences.
pub(crate) fn holder(line: &str, last: i64, left: Duration) -> Holder {
    let mut fields = line.split(' ').rev().filter_map(|field| field.split_once('='));
    let reserved =
        fields.next().filter(|(name, _)| *name == RESERVED).and_then(|(_, count)| count.parse().ok());
    let mut holder = Holder::parse(line);
    holder.fence = Some(first(last.unsigned_abs(), reserved.unwrap_or(1)));
    holder.expires_in = Some(left);
    holder
}

/// The first of so many fences.
fn first(last: u64, fences: u32) -> Fence {
    Fence::new(last.saturating_sub(u64::from(fences.max(1) - 1)))
}

/// Adds the fences of a lock whose row has this one, where `fresh` says that no earlier attempt may have taken it: what
/// that one reserved is not known, and its last fence is certainly unused.
pub(crate) fn with_fences(grant: Grant, last: Fence, fences: u32, fresh: bool) -> Grant {
    let fences = if fresh { fences } else { 1 };
    grant.with_fence(first(last.get(), fences)).with_reserved(fences)
}
