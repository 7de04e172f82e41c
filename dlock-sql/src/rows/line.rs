//! The waiters for a lock, in the order in which they came.
//!
//! Each of them has a row beside the row of the key, with its place as the fence, and its token. It expires when the
//! waiter has not asked for some time; then it counts for nothing, and is deleted by the next claim that gets the lock.
//! Numbers begin anew when a line is empty, so that a place is only ever found together with its token.
//!
//! ```text
//!     asks, is not first       asks again: place kept       its turn, the row is free
//!     ------------------> place ----------------------> place --------------------------> granted, place deleted
//!                           |
//!                           +- silent for too long: counts for nothing, and deleted by the next grant
//! ```
//!
//! The row of the key says that there is a line: the token of the first waiter stands at the end of its line about the
//! holder. A release finds it there, leaves the row to those in line, under the token [`TURN`](crate::stored::TURN),
//! and notifies the first where the server can do that. So a claim that knows nothing of all this finds the lock taken.
//! Also when its holder's lease has ended the row is kept for those in line, for a while. When one of the waiters asks,
//! the rows of all decide on the turn: it is that of the first that was not silent for too long. Each change of these
//! rows locks the row of the key first, as with [shares](super::shares).

use std::time::{Duration, Instant};

use dlock_core::backend::PREFERENCE_ALIVE;
use dlock_core::{Holder, Key};

use crate::digest::digest;

/// The first byte of the keys of these rows, with which no text begins.
const LINE: u8 = 0xfc;
/// The number of bytes of the digest of a key in these.
const DIGEST: usize = 24;

/// The time for which the row of a key is kept for those in line when they are silent.
pub(crate) const KEPT_FOR_LINE: Duration = Duration::from_secs(3);

/// The time for which the place of a silent waiter is kept, how much longer for each place before it, and the bound of
/// that.
pub(crate) const KEPT: Duration = PREFERENCE_ALIVE;
pub(crate) const KEPT_PER_PLACE: Duration = Duration::from_millis(2);
pub(crate) const KEPT_LONGER: Duration = Duration::from_secs(8);

/// The pause of a waiter for each place before its own, where the server notifies no waiter of its turn.
const PAUSE_PER_PLACE: Duration = Duration::from_millis(4);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// The pause then of the first in line before it asks again.
const FIRST_ASKS: Duration = Duration::from_millis(4);

/// The keys of the rows of those that wait for a key.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    /// The prefix of all of them, which is lower than each.
    pub(crate) low: Vec<u8>,
    /// A key that is higher than each.
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

/// The place of a claim, as its attempt states it.
#[derive(Clone, Debug)]
pub(crate) struct Stand {
    /// Is `true` if it takes a place when it is not its turn.
    pub(crate) waits: bool,
    /// The place that it has, as far as it knows.
    pub(crate) known: Option<i64>,
}

/// The place of a claim, as it knows it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    pub(crate) number: Option<i64>,
    /// The largest possible number of waiters before it.
    before: u32,
    /// The moment from which it is worth while to ask again.
    asks_at: Option<Instant>,
}

impl Place {
    /// Makes the place of this number, with so many before it at the most.
    pub(crate) fn of(number: i64, before: i64, is_told: bool) -> Self {
        let before = u32::try_from(before.max(0)).unwrap_or(u32::MAX);
        let mut place = Self { number: Some(number), before, asks_at: None };
        // The first asks whenever it may.
        place.asks_at = (before > 0 && !is_told).then(|| Instant::now() + place.pause());
        place
    }

    /// Returns `true` if it is not worth while yet to ask again.
    pub(super) fn pauses(&self) -> bool {
        self.asks_at.is_some_and(|at| Instant::now() < at)
    }

    /// Returns the pause where no waiter is notified.
    fn pause(&self) -> Duration {
        PAUSE_PER_PLACE.saturating_mul(self.before).min(LONGEST_PAUSE)
    }

    /// Returns for how long it is kept when its waiter is silent.
    pub(super) fn kept(&self) -> Duration {
        KEPT + KEPT_PER_PLACE.saturating_mul(self.before).min(KEPT_LONGER)
    }

    /// Returns the time after which the engine is to ask again, which may be before the holder's lease ends.
    pub(super) fn retry_after(&self, left: Option<Duration>, is_told: bool) -> Option<Duration> {
        // A notified waiter has nothing to ask about. Only the end of a lease comes without a notification, and only
        // the first can use it.
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
    /// The holder of the lock.
    pub(crate) holder: Option<Box<Holder>>,
    /// Is `true` if it may be taken, or that is not known.
    pub(crate) is_free: bool,
    /// The time for which the place is still kept.
    pub(crate) kept: Duration,
    /// The largest possible number of waiters before it.
    pub(crate) before: i64,
}
