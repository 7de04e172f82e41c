//! Who waits for a lock in the order in which they came.
//!
//! Each of them has a row beside the row of the key, with its place as the fence and its token. It expires when nothing
//! is heard of the waiter; then it counts for nothing, and is deleted by the next one who gets the lock. Numbers
//! begin anew when a line is empty, so that a place is only ever found together with its token.
//!
//! The row of the key says that there is a line: the token of the first stands at the end of its line about the holder.
//! Whoever releases the lock finds it there, leaves the row to those in line, under the token
//! [`TURN`](crate::stored::TURN), and notifies the first where the server can do that. So whoever knows nothing of all
//! this finds the lock taken. Also when its holder's lease has ended the row is kept for those in line, for a while.
//! Whose turn it is, is decided by the rows of those who wait, when one of them asks: the first of whom anything is
//! heard. Whoever changes any of them locks the row of the key first, as with [shares](super::shares).

use std::time::{Duration, Instant};

use dlock_core::backend::PREFERENCE_ALIVE;
use dlock_core::{Holder, Key};

use crate::digest::digest;

/// What begins the keys of these rows, which no text begins with.
const LINE: u8 = 0xfc;
/// How many bytes of the digest of a key these have.
const DIGEST: usize = 24;

/// For how long the row of a key is kept for those in line when nothing is heard of them.
pub(crate) const KEPT_FOR_LINE: Duration = Duration::from_secs(3);

/// How long a place is kept when nothing is heard of its waiter, how much longer for each place before it, and the
/// bound of that.
pub(crate) const KEPT: Duration = PREFERENCE_ALIVE;
pub(crate) const KEPT_PER_PLACE: Duration = Duration::from_millis(2);
pub(crate) const KEPT_LONGER: Duration = Duration::from_secs(8);

/// How much longer a waiter pauses for each place before its own, where the server notifies no waiter of its turn.
const PAUSE_PER_PLACE: Duration = Duration::from_millis(4);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// How long the first in line pauses then before it asks again.
const FIRST_ASKS: Duration = Duration::from_millis(4);

/// The keys of the rows of those who wait for a key.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    /// What is lower than all of them, and what they begin with.
    pub(crate) low: Vec<u8>,
    /// What is higher.
    pub(crate) high: Vec<u8>,
}

impl Places {
    pub(crate) fn of(key: &Key) -> Self {
        let digest = digest("dlock line", &[key.as_str()]);
        let low = [&[LINE], &digest[..DIGEST]].concat();
        let high = [&*low, &[0xff; 9]].concat();
        Self { low, high }
    }

    pub(crate) fn at(&self, place: i64) -> Vec<u8> {
        [&*self.low, &place.to_be_bytes()].concat()
    }
}

/// What an attempt in line says of its place.
#[derive(Clone, Debug)]
pub(crate) struct Stand {
    /// Whether it takes a place when it is not its turn.
    pub(crate) waits: bool,
    /// The place that it has, as far as it knows.
    pub(crate) known: Option<i64>,
}

/// What a claim knows of its place.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    pub(crate) number: Option<i64>,
    /// How many are before it, at the most.
    before: u32,
    /// When it is worth while to ask again.
    asks_at: Option<Instant>,
}

impl Place {
    /// The place of this number, with so many before it at the most.
    pub(crate) fn of(number: i64, before: i64, is_told: bool) -> Self {
        let before = u32::try_from(before.max(0)).unwrap_or(u32::MAX);
        let mut place = Self { number: Some(number), before, asks_at: None };
        // The first asks whenever it may.
        place.asks_at = (before > 0 && !is_told).then(|| Instant::now() + place.pause());
        place
    }

    /// Whether it is not worth while yet to ask again.
    pub(super) fn pauses(&self) -> bool {
        self.asks_at.is_some_and(|at| Instant::now() < at)
    }

    /// How long it pauses where nobody is notified.
    fn pause(&self) -> Duration {
        PAUSE_PER_PLACE.saturating_mul(self.before).min(LONGEST_PAUSE)
    }

    /// How long it is kept when nothing is heard of it.
    pub(super) fn kept(&self) -> Duration {
        KEPT + KEPT_PER_PLACE.saturating_mul(self.before).min(KEPT_LONGER)
    }

    /// When the engine is to ask again, which may be before the holder's lease ends.
    pub(super) fn retry_after(&self, left: Option<Duration>, is_told: bool) -> Option<Duration> {
        if is_told {
            return left.filter(|_| self.before == 0);
        }
        let pause = FIRST_ASKS + self.pause();
        Some(left.filter(|_| self.before == 0).map_or(pause, |left| left.min(pause)))
    }
}

/// The line as one of its waiters finds it.
#[derive(Debug)]
pub struct LineSeen {
    /// Who holds the lock.
    pub(crate) holder: Option<Box<Holder>>,
    /// Whether it may be taken, or it can not be told.
    pub(crate) is_free: bool,
    /// For how long the place is kept.
    pub(crate) kept: Duration,
    /// How many are before it, at the most.
    pub(crate) before: i64,
}
