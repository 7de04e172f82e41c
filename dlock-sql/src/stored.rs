//! The texts and tokens that a row has about its holder, and about waiters.
//!
//! A row has the last of the fences that were reserved with its lock, so that the next grant counts on from there; how
//! many these are stands in the line about the holder. A waiter that found the lock taken adds a mark at the end of
//! that line, which the next holder overwrites: the release finds it there.

use std::time::Duration;

#[cfg(feature = "sqlite")]
use dlock_core::backend::LEFT_BEHIND;
use dlock_core::backend::{Busy, ClaimRequest, Grant, Mode, Validity};
use dlock_core::{Fence, Holder};

/// The mark that a waiter adds to the line. It is no field: readers pass it over.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(crate) const AWAITED: &str = " awaited";

const RESERVED: &str = "reserved";

/// The field in the line of a row that several hold at a time: the number of permits, 0 of a lock.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) const SEVERAL: &str = "several";

/// The token of a lock that several hold.
pub(crate) const SHARED: [u8; 16] = *b"\xfdheld by several";

/// The token of a lock that is free for the first in line alone.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) const TURN: [u8; 16] = *b"\xfcof the next one";

/// The field in the line of a row for which a claim stands in line: the token of the first, in hexadecimal.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) const IN_LINE: &str = "line";

/// Returns the line to store with a lock that is taken with so many fences.
pub(crate) fn line(request: &ClaimRequest, fences: u32) -> String {
    let line = request.describe();
    if fences > 1 { format!("{line} {RESERVED}={fences}") } else { line }
}

/// Reads the holder from what was stored, with the first of its fences.
pub(crate) fn holder(line: &str, last: i64, left: Duration) -> Holder {
    let mut fields = line.split(' ').rev().filter_map(|field| field.split_once('='));
    let mut holder = Holder::parse(line);
    let mut reserved = 1;
    let last_field = fields.next();
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    let last_field = if matches!(last_field, Some((IN_LINE, _))) { fields.next() } else { last_field };
    match last_field {
        Some((RESERVED, count)) => reserved = count.parse().unwrap_or(1),
        #[cfg(any(feature = "mysql", feature = "postgres"))]
        Some((SEVERAL, of)) => holder.mode = several(of.parse().unwrap_or_default()),
        _ => {}
    }
    holder.fence = fence(last).map(|last| first(last.get(), reserved));
    holder.expires_in = Some(left);
    holder
}

/// Returns the mode of a lock that several hold, by its number of permits.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) const fn several(of: u32) -> Mode {
    if of == 0 { Mode::Shared } else { Mode::Permits { of, take: 1 } }
}

/// Returns the text about one of the claims that hold a lock together: how much of it is taken, and the line.
pub(crate) fn share_line(mode: Mode, line: &str) -> String {
    format!("{} {line}", mode.taken())
}

/// Returns the text about one of them that is left for a baton, by the text before.
#[cfg(feature = "sqlite")]
pub(crate) fn left_share(text: &str) -> String {
    let (taken, line) = text.split_once(' ').unwrap_or((text, ""));
    format!("{taken} {LEFT_BEHIND}{line}")
}

/// Reads one of them from its text, where `of` is the number of permits of a semaphore.
pub(crate) fn share(text: &str, fence: i64, left: Duration, of: Option<u32>) -> Holder {
    let (taken, line) = text.split_once(' ').unwrap_or((text, ""));
    let mut shared = holder(line, fence, left);
    shared.mode = match of {
        Some(of) => Mode::Permits { of, take: taken.parse().unwrap_or(1) },
        None => Mode::Shared,
    };
    shared
}

/// Returns the fence that stands in a row. A fence below zero was never given: another program has written it.
pub(crate) fn fence(stored: i64) -> Option<Fence> {
    u64::try_from(stored).ok().map(Fence::new)
}

/// Returns the first of so many fences.
fn first(last: u64, fences: u32) -> Fence {
    Fence::new(last.saturating_sub(u64::from(fences.max(1) - 1)))
}

/// Returns the grant of a lock whose row has the last of so many fences. An attempt after one whose outcome is not
/// known reserves one: what the earlier one reserved is not known, and its last fence is certainly unused.
pub(crate) fn grant(lease: Duration, last: Option<Fence>, fences: u32) -> Grant {
    let grant = Grant::new(Validity::Lease(lease));
    let with_fences = |last: Fence| grant.with_fence(first(last.get(), fences)).with_reserved(fences);
    last.map_or(grant, with_fences)
}

/// Returns the answer to an attempt on a lock that is held, and may be free in so long.
pub(crate) fn busy(holder: Option<Box<Holder>>, retry_after: Option<Duration>) -> Busy {
    let mut busy = Busy::default();
    (busy.holder, busy.retry_after) = (holder, retry_after);
    busy
}

/// The reading of any text in a row, which other programs may have written: for a property test and for a fuzzer.
#[cfg(any(test, fuzzing))]
pub(crate) mod hostile {
    use std::time::Duration;

    use dlock_core::Holder;

    /// Reads a text in all ways in which a row is read, and returns the holders. Its fence stands before the first `|`.
    #[must_use]
    #[cfg_attr(test, expect(unreachable_pub, reason = "a fuzzer reaches it"))]
    pub fn holders_in(text: &str) -> Vec<Holder> {
        let (fence, line) = text.split_once('|').unwrap_or(("-1", text));
        let (fence, left) = (fence.parse().unwrap_or(i64::MIN), Duration::from_secs(1));
        vec![
            super::holder(line, fence, left),
            super::share(line, fence, left, None),
            super::share(line, fence, left, Some(4)),
        ]
    }

    #[cfg(test)]
    mod tests {
        use dlock_testkit::hostile;

        #[test]
        fn whatever_stands_in_a_row_is_read_without_a_panic_and_shown_in_one_harmless_line() {
            hostile::for_each_text(|text| super::holders_in(text).iter().for_each(hostile::assert_harmless));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_below_zero_is_none() {
        let left = Duration::from_secs(1);
        for of in [None, Some(4)] {
            assert_eq!(share("1 host=h", -5, left, of).fence, None);
        }
        assert_eq!(holder("host=h reserved=3", -5, left).fence, None);
        assert_eq!(holder("host=h reserved=3", 5, left).fence, Some(Fence::new(3)));
        assert_eq!(holder("host=h reserved=3", 0, left).fence, Some(Fence::new(0)));
    }
}
