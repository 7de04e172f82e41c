//! The decision that the session of another process is over: without I/O and without a clock.
//!
//! ```text
//!           ┌── there: looked at again when its lease ends ──┐
//!           ▼                                                │
//!  new ── a look ──▶ live ───────────────────────────────────┘
//!           │          ▲ │
//!           │    there │ │ absent
//!           │          │ ▼
//!           └──────▶ gone ── absent, a lease of the record after it was first seen to be gone ──▶ over
//! ```
//!
//! A look that fails changes nothing. Over is final: a record never comes back.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::options::margin;

/// The time by which a look comes later than the end of what it waits for, which the server may notice late.
const LATER: Duration = Duration::from_millis(5);

/// The answer to a look at a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Look {
    /// The record is there, and its lease ends in this time if it is not renewed.
    There(Option<Duration>),
    /// The record is not there.
    Absent,
    /// No answer came.
    Failed,
}

/// What is known of a session of another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Watch {
    /// The lease of its record.
    lease: Duration,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    Live { look_at: Timestamp },
    Gone { since: Timestamp, look_at: Timestamp },
    Over,
}

impl Watch {
    /// Begins to watch a session whose record has this lease, with a look at `now`.
    #[must_use]
    pub const fn new(lease: Duration, now: Timestamp) -> Self {
        Self { lease, state: State::Live { look_at: now } }
    }

    /// Returns the time of the next look; `None` once the session is over.
    #[must_use]
    pub const fn look_at(&self) -> Option<Timestamp> {
        match self.state {
            State::Live { look_at } | State::Gone { look_at, .. } => Some(look_at),
            State::Over => None,
        }
    }

    /// Is `true` if the session is over: whatever it kept may be taken away from it.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// Is `true` if its record was there at the last look.
    #[must_use]
    pub const fn is_live(&self) -> bool {
        matches!(self.state, State::Live { .. })
    }

    /// Notes the answer to a look, which came at `now`.
    pub fn looked(&mut self, look: Look, now: Timestamp) {
        self.state = match (self.state, look) {
            (State::Over, _) => State::Over,
            (_, Look::There(left)) => {
                // Not sooner than a part of the lease: a record that ends just now may be renewed just now.
                let left = left.unwrap_or(self.lease).clamp(self.lease / 16, self.lease);
                State::Live { look_at: now + left + LATER }
            }
            // From the answer on, and not from the look: the holder may have had an answer to a renewal in between.
            (State::Live { .. }, Look::Absent) => State::Gone { since: now, look_at: now + self.grace() },
            (State::Gone { since, .. }, Look::Absent) if now >= since + self.grace() => State::Over,
            (State::Gone { since, .. }, Look::Absent) => State::Gone { since, look_at: since + self.grace() },
            (State::Live { .. }, Look::Failed) => State::Live { look_at: now + self.lease / 4 },
            (State::Gone { since, look_at }, Look::Failed) => {
                State::Gone { since, look_at: look_at.max(now + self.lease / 4) }
            }
        };
    }

    /// Returns for how long a session that is gone is left its locks: the holder may have had its last renewal
    /// confirmed at the moment at which its record ended, and counts on it for a lease. The clocks of two processes
    /// run at slightly different rates.
    fn grace(&self) -> Duration {
        self.lease + margin(self.lease)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(4);

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_nanos(millis * 1_000_000)
    }

    /// The name of the row; looks with the times of their answers; the time of the next look.
    type Row<'a> = (&'a str, &'a [(Look, u64)], Option<u64>);

    fn watched(looks: &[(Look, u64)]) -> Watch {
        let mut watch = Watch::new(LEASE, at(0));
        for (look, now) in looks {
            watch.looked(*look, at(*now));
        }
        watch
    }

    #[test]
    fn a_session_is_over_a_lease_of_its_record_after_it_was_seen_to_be_gone_and_not_earlier() {
        use Look::{Absent, Failed, There};
        // A lease of 4 s has a margin of 40 ms.
        const fn there(millis: u64) -> Look {
            There(Some(Duration::from_millis(millis)))
        }
        let rows: [Row<'_>; 13] = [
            ("not looked at", &[], Some(0)),
            ("there", &[(there(3_000), 10)], Some(3_015)),
            ("there, and about to end", &[(there(1), 10)], Some(265)),
            ("there, for longer than its lease", &[(there(9_000), 10)], Some(4_015)),
            ("there, without an end", &[(There(None), 10)], Some(4_015)),
            ("gone", &[(Absent, 10)], Some(4_050)),
            ("gone, and looked at early", &[(Absent, 10), (Absent, 4_049)], Some(4_050)),
            ("gone for a lease", &[(Absent, 10), (Absent, 4_050)], None),
            ("gone, and there again", &[(Absent, 10), (there(3_000), 4_050)], Some(7_055)),
            ("gone, there and gone", &[(Absent, 10), (there(1), 20), (Absent, 4_050)], Some(8_090)),
            ("no answer", &[(Failed, 10)], Some(1_010)),
            ("gone, and no answer", &[(Absent, 10), (Failed, 4_050)], Some(5_050)),
            ("gone, no answer, and gone", &[(Absent, 10), (Failed, 4_050), (Absent, 5_050)], None),
        ];
        for (what, looks, look_at) in rows {
            let watch = watched(looks);
            assert_eq!(watch.look_at(), look_at.map(at), "{what}");
            assert_eq!(watch.is_over(), look_at.is_none(), "{what}");
        }
        let over = watched(&[(Absent, 10), (Absent, 4_050), (there(3_000), 4_060)]);
        assert!(over.is_over(), "a record never comes back");
    }
}
