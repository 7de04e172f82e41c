//! The ways in which a key is locked, of which one at a time has it.
//!
//! | the key is of | `token` of the row of the key | `expires` of the row with the fence |
//! |---|---|---|
//! | lease rows | anything else | that of [`Way::Lease`], or there is no row |
//! | sessions | [`ELSEWHERE`] | that of [`Way::Session`] |
//! | locked rows | [`ELSEWHERE`] | that of [`Way::Row`] |
//!
//! A lease is granted by the first row, which is never to be had while it says [`ELSEWHERE`]. A session, or a
//! transaction that has locked a row, counts its grant in the second row, and only while both say that the key is its
//! own. So each finds out in the message that it sends in any case.
//!
//! A claim that is refused has the key *moved* to its own way: this locks both rows, and is refused while the key is
//! held in another way. The server's own locks show whether a session or a transaction has it, so that a session that
//! ends without a word leaves nothing. A claim that counts has such a lock already. If a move has overlooked that, the
//! move was there first, and the count finds the key moved. A forced release by an earlier version takes [`ELSEWHERE`]
//! away: the next count has the key moved to where it was, or is refused.
//!
//! | moved to | by | refused while |
//! |---|---|---|
//! | lease rows | an attempt that found the key elsewhere | a session has the name, or a transaction the row |
//! | sessions | the count of a name that the session has | a lease runs, or a transaction has the row |
//! | locked rows | the count of a row that the transaction has | a lease runs, or a session has the name |

use std::fmt;

use dlock_core::{ErrorKind, Failure};

/// The token of the row of a key that sessions or locked rows have.
pub(crate) const ELSEWHERE: [u8; 16] = *b"\xfbheld elsewhere.";

/// The first words of the line about the holder of such a row.
pub(crate) const HELD_ELSEWHERE: &str = "held elsewhere";

/// A way in which a key is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// As a lease row.
    Lease,
    /// By a session.
    Session,
    /// As a locked row.
    Row,
}

impl Way {
    /// Returns the end in the row with the fence of a key that is locked in this way, in seconds or microseconds.
    pub(crate) const fn state(self) -> i64 {
        match self {
            Self::Lease => 0,
            Self::Session => 1,
            Self::Row => 2,
        }
    }

    /// Returns the way with this end.
    pub(crate) fn of(state: i64) -> Option<Self> {
        [Self::Lease, Self::Session, Self::Row].into_iter().find(|way| way.state() == state)
    }

    /// Refuses a lock that is asked for in this way, and held in another one.
    pub(crate) fn conflict(self, theirs: Self) -> Failure {
        let text = format!("{theirs} holds it, and this asks for {self}; use one mode for a key");
        Failure::new(ErrorKind::Conflict, text)
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lease => "a lease row (mode=lease)",
            Self::Session => "a session (mode=session)",
            Self::Row => "a locked row (mode=row)",
        })
    }
}
