//! The question whether connections know statements by name.
//!
//! The count goes up by 4 for each connection that did not know a name, and down by 1 for each that did. At 4096 it
//! stays, and statements are sent whole from then on.

use std::sync::atomic::{AtomicU32, Ordering};

/// The count of connections that did not know a name, against those that did.
#[derive(Debug)]
pub(super) struct Names(AtomicU32);

impl Names {
    /// The weight of a connection that did not know a name, against those that did.
    const MISS: u32 = 4;
    /// The count at which nothing is named any more.
    const NONE: u32 = 4_096;

    pub(super) const fn new(simple: bool) -> Self {
        Self(AtomicU32::new(if simple { Self::NONE } else { 0 }))
    }

    pub(super) fn are_known(&self) -> bool {
        self.0.load(Ordering::Relaxed) < Self::NONE
    }

    fn note(&self, change: impl Fn(u32) -> u32) {
        // Once the end is reached it stays: no statement is named any more.
        let changed = |count| (count < Self::NONE).then(|| change(count));
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed);
    }

    pub(super) fn was_known(&self) {
        if self.0.load(Ordering::Relaxed) > 0 {
            self.note(|count| count.saturating_sub(1));
        }
    }

    pub(super) fn was_unknown(&self) {
        self.note(|count| count + Self::MISS);
    }

    pub(super) fn are_lost(&self) {
        self.note(|_| Self::NONE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_have_names_until_too_many_connections_have_forgotten_them() {
        let names = Names::new(false);
        for _ in 0..100_000 {
            names.was_unknown();
            (0..Names::MISS).for_each(|_| names.was_known());
        }
        assert!(names.are_known(), "each was known four times");
        let forgotten = (1..10_000).find(|_| {
            names.was_unknown();
            names.was_known();
            !names.are_known()
        });
        assert!(forgotten.is_some_and(|times| times > 1_000), "{forgotten:?}");
        names.was_known();
        assert!(!names.are_known() && !Names::new(true).are_known());
    }
}
