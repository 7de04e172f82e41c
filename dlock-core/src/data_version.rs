//! Versions of data, by which a store refuses data that is older than its own.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::{Error, Operation, Result};
use crate::failure::Failure;

/// The place of some data in the order of its own source: a time, or a number that the source counts up.
///
/// A [`Fence`](crate::Fence) orders writers by when they got the lock, whatever they write. Where two services write
/// one value, the service with the data of 7:00 may get the lock after the service with the data of 7:05: its fence is
/// the higher one, and its stale data would win. The version is the data's: the store keeps the highest version that it
/// has accepted, and refuses data that is not newer, with `write_if_newer` of the backend for Redis and
/// `FencedCell::admit_newer` of that for SQL.
///
/// It is a whole number of 64 bits with a sign, and compared as such in every store. [`DataVersion::at`] makes one of a
/// time, in microseconds since 1970 (UTC). One value is written with versions of one kind: a count and a time do not
/// compare.
///
/// ```
/// use dlock_core::DataVersion;
/// use std::time::{Duration, UNIX_EPOCH};
///
/// # fn main() -> Result<(), dlock_core::Error> {
/// let seven = UNIX_EPOCH + Duration::from_secs(1_795_762_800);
/// let (older, newer) = (DataVersion::at(seven)?, DataVersion::at(seven + Duration::from_secs(300))?);
/// assert!(older < newer);
/// assert_eq!(older.to_string(), "1795762800000000");
/// assert!(DataVersion::new(-1) < DataVersion::new(0));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DataVersion(i64);

impl DataVersion {
    /// The lowest version.
    pub const MIN: Self = Self(i64::MIN);
    /// The highest version: nothing is newer.
    pub const MAX: Self = Self(i64::MAX);

    /// Creates a version with this number: a revision, an offset in a log, a sequence of a database.
    #[must_use]
    pub const fn new(number: i64) -> Self {
        Self(number)
    }

    /// Returns the version of data of this time: microseconds since 1970 (UTC), negative before.
    ///
    /// A part of a microsecond is dropped, always towards the past: a later time never has a lower version, and two
    /// times within one microsecond have the same, of which the second one to be written counts as not newer.
    ///
    /// Take the time at which the data became what it is, by the clock of its source: the column of the row that it was
    /// read from, the time stamp of the message. Times of several machines compare as well as their clocks do. Where a
    /// clock is ahead by a second, its data wins over data that others made up to a second later, and a time that lies
    /// far ahead keeps all others out until then. Where that matters, let one source count.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for a time that is more than 292,000 years away
    /// from 1970, such as one made of another unit.
    pub fn at(time: SystemTime) -> Result<Self> {
        let number = match time.duration_since(UNIX_EPOCH) {
            Ok(after) => i64::try_from(after.as_micros()).ok(),
            Err(before) => {
                i64::try_from(before.duration().as_nanos().div_ceil(1_000)).ok().map(|micros| -micros)
            }
        };
        number.map(Self).ok_or_else(|| {
            let failure = Failure::invalid_config(
                "the time is more than 292,000 years away from 1970; check the unit that it was made of",
            );
            Error::new(Operation::Configure, failure)
        })
    }

    /// Returns the number, to be stored with the data.
    #[must_use]
    pub const fn get(self) -> i64 {
        self.0
    }
}

impl fmt::Display for DataVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The answer of a store to a write of some [`DataVersion`]. Only [`Accepted`](Self::Accepted) changes anything.
#[must_use = "an older version was not written"]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum VersionCheck {
    /// The version is newer than all that were accepted before, and is remembered: Redis has written the value, and in
    /// SQL the caller writes it in the same transaction.
    Accepted,
    /// This very version was accepted before, and no newer one since. For a writer that repeats a write whose outcome
    /// was unknown, the write was made. For any other writer, its data is not newer: where two writers can come to the
    /// same version, the first one stays.
    AlreadyThere,
    /// A newer version was accepted before. If this is a repetition, the first try may have been made, and was
    /// overwritten since.
    Older {
        /// The newest version, which the store has.
        stored: DataVersion,
    },
}

impl VersionCheck {
    /// Returns whether the version is newer than all before.
    #[must_use]
    pub const fn is_accepted(self) -> bool {
        matches!(self, Self::Accepted)
    }

    /// Compares a version with the newest that a store remembers; for authors of backends.
    pub const fn of(version: DataVersion, stored: Option<DataVersion>) -> Self {
        match stored {
            Some(stored) if stored.0 == version.0 => Self::AlreadyThere,
            Some(stored) if stored.0 > version.0 => Self::Older { stored },
            _ => Self::Accepted,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::ErrorKind;

    fn at(nanos: i64) -> i64 {
        let away = Duration::from_nanos(nanos.unsigned_abs());
        let time = if nanos < 0 { UNIX_EPOCH - away } else { UNIX_EPOCH + away };
        DataVersion::at(time).unwrap().get()
    }

    #[test]
    fn times_are_microseconds_since_1970_and_rounded_to_the_past_on_both_sides() {
        for (nanos, micros) in
            [(0, 0), (999, 0), (1_000, 1), (1_999, 1), (-1, -1), (-999, -1), (-1_000, -1), (-1_001, -2)]
        {
            assert_eq!(at(nanos), micros, "{nanos} ns");
        }
    }

    #[test]
    fn a_time_that_64_bits_do_not_hold_is_refused_on_both_sides() {
        let most = UNIX_EPOCH + Duration::from_micros(i64::MAX.unsigned_abs());
        let least = UNIX_EPOCH - Duration::from_micros(i64::MAX.unsigned_abs());
        assert_eq!(DataVersion::at(most).unwrap(), DataVersion::MAX);
        assert_eq!(DataVersion::at(least).unwrap(), DataVersion::new(-i64::MAX));
        for beyond in [most + Duration::from_micros(1), least - Duration::from_micros(2)] {
            let error = DataVersion::at(beyond).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
            assert!(error.to_string().contains("check the unit"), "{error}");
        }
        // Nanoseconds that were taken for seconds.
        assert!(DataVersion::at(UNIX_EPOCH + Duration::from_secs(1_795_762_800_000_000_000)).is_err());
    }

    #[test]
    fn only_what_is_higher_is_newer() {
        let of = |version, stored| VersionCheck::of(DataVersion::new(version), stored);
        let stored = DataVersion::new(-7);
        assert_eq!(of(i64::MIN, None), VersionCheck::Accepted);
        assert_eq!(of(-6, Some(stored)), VersionCheck::Accepted);
        assert_eq!(of(-7, Some(stored)), VersionCheck::AlreadyThere);
        assert_eq!(of(-8, Some(stored)), VersionCheck::Older { stored });
        assert!(VersionCheck::Accepted.is_accepted() && !VersionCheck::AlreadyThere.is_accepted());
    }
}
