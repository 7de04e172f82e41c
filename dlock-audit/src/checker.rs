//! Whether the holds of one key exclude each other, decided from when each was believed in.
//!
//! | checker | finds |
//! |---|---|
//! | [`beside`] | a hold beside one that is held alone, and more permits than there are |
//! | [`order`] | fences that do not follow the order of the holds |
//! | [`most`] | how many were believed in at one time |
//!
//! Times of one clock compare exactly. Those of two clocks compare on the time that all clocks have, with the error of
//! each hold: what is found is certain in spite of it, or is said to be [undecided](Findings).
//!
//! ```
//! use dlock_audit::checker::{HeldAs, HoldRecord, What, beside};
//!
//! let hold = |number, from, until| HoldRecord::new(number, HeldAs::Alone, (from, until));
//! let found = beside(&[hold(1, 0, 10), hold(2, 10, 20), hold(3, 19, 30)]);
//! assert_eq!(found.certain.len(), 1);
//! assert_eq!((found.certain[0].holds, found.certain[0].what), ([1, 2], What::Overlap));
//! ```

mod exclusion;
mod order;
mod permits;

use serde::{Deserialize, Serialize};

pub use exclusion::{beside, most};
pub use order::order;

/// What a hold leaves to others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldAs {
    /// Nothing: nobody else has the lock.
    #[default]
    Alone,
    /// Others read too.
    Reader,
    /// Some permits of a number.
    Permits {
        /// So many of them are taken.
        taken: u32,
        /// So many there are.
        of: u32,
    },
}

/// One hold of a key, or the part of one that was held in one way. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldRecord {
    /// The process that had it.
    pub process: u32,
    /// Its number in the process. Parts of one hold have the same.
    pub number: u64,
    /// Its fence.
    pub fence: Option<u64>,
    /// How it was held.
    pub held_as: HeldAs,
    /// When it was asked for, where that is known.
    pub asked: Option<u64>,
    /// From when it was believed in.
    pub from: u64,
    /// Until when it was believed in.
    pub until: u64,
    /// Until when it was promised, which decides about the order of fences: no higher one begins before. 0 for one that
    /// was promised nothing any more when it was granted.
    pub promised_until: u64,
    /// The clock of these times.
    pub clock: u32,
    /// From when and until when it was believed in, on the clock that all have.
    pub shared: (u64, u64),
    /// By how much these may be wrong.
    pub error: u64,
}

impl HoldRecord {
    /// Creates the record of a hold of process 0, without a fence, that was believed in and promised for this time.
    #[must_use]
    pub const fn new(number: u64, held_as: HeldAs, (from, until): (u64, u64)) -> Self {
        let (process, clock, error, fence, asked) = (0, 0, 0, None, None);
        let (promised_until, shared) = (until, (from, until));
        Self { process, number, fence, held_as, asked, from, until, promised_until, clock, shared, error }
    }

    /// Returns whether both are parts of one hold.
    #[must_use]
    pub const fn is_same_hold(&self, other: &Self) -> bool {
        self.process == other.process && self.number == other.number
    }

    const fn is_alone(&self) -> bool {
        matches!(self.held_as, HeldAs::Alone)
    }

    /// Is `true` if it was believed in at some time.
    const fn is_believed(&self) -> bool {
        self.until > self.from
    }

    /// Returns for how long both were believed in, below zero for how far they are apart, and the error of that.
    #[must_use]
    pub fn both(&self, other: &Self) -> Span {
        if self.clock == other.clock {
            return Span::between(self.from.max(other.from), self.until.min(other.until), 0);
        }
        let (from, until) = (self.shared.0.max(other.shared.0), self.shared.1.min(other.shared.1));
        Span::between(from, until, self.error.saturating_add(other.error))
    }
}

/// A time between two moments, which may be below zero, and by how much it may be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The time.
    pub by: i64,
    /// By how much it may be wrong.
    pub error: u64,
}

impl Span {
    fn between(from: u64, until: u64, error: u64) -> Self {
        let by = i128::from(until) - i128::from(from);
        let by = by.clamp(i128::from(i64::MIN), i128::from(i64::MAX));
        Self { by: i64::try_from(by).unwrap_or_default(), error }
    }

    /// Is `true` if it is above zero for certain.
    #[must_use]
    pub fn is_certain(&self) -> bool {
        i128::from(self.by) > i128::from(self.error)
    }

    /// Is `true` if it may be above zero.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        i128::from(self.by) > -i128::from(self.error)
    }

    /// Returns the most that it can be.
    #[must_use]
    pub fn at_most(&self) -> u64 {
        u64::try_from(i128::from(self.by) + i128::from(self.error)).unwrap_or(0)
    }
}

/// Two holds that do not go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Their places in the list, the earlier one first; of fences, the one with the lower fence.
    pub holds: [usize; 2],
    /// What is wrong.
    pub what: What,
    /// By how much.
    pub span: Span,
}

/// What is wrong with two holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// Both were believed in, and one of them was held alone.
    Overlap,
    /// With the second, more permits were taken than there are.
    TooManyPermits,
    /// They have one fence, and one of them was held alone.
    SameFence,
    /// The higher fence was granted before the time was over that the lower one was promised.
    TooEarly,
    /// The lower fence was asked for after the higher one was granted.
    AskedLate,
}

/// What a checker found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// What is wrong for certain.
    pub certain: Vec<Finding>,
    /// What is wrong unless the clocks are: by less than their error, and no fences show the order.
    pub undecided: Vec<Finding>,
    /// The longest overlap that could not be told from none. 0 where all times are of one clock.
    pub resolution: u64,
}

impl Findings {
    fn decide(&mut self, finding: Finding, is_shown_by_fences: bool) {
        let span = finding.span;
        if span.is_certain() {
            self.certain.push(finding);
        } else if span.by > 0 && !is_shown_by_fences {
            self.undecided.push(finding);
        } else if span.is_possible() {
            self.resolution = self.resolution.max(span.at_most());
        }
    }
}
