//! The part of one acquire that may be on the servers, and since when. No clock: times come in.
//!
//! ```text
//!                    begin
//!   nothing stands ─────────▶ something may stand, since the first attempt that may have taken effect
//!      ▲                        │ │        ▲ │
//!      │                        │ │        └─┘ begin, recheck
//!      ├── busy, anew, granted ─┘ │
//!      └── took_nothing, where ───┘
//!          nothing stood before
//! ```
//!
//! An unknown outcome leaves the state as it is, until something certain is known.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::options::margin;

/// The part of one acquire that may be on the servers; see the [states](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsettled {
    /// The send time of the first request whose effect may still stand.
    first_sent: Option<Timestamp>,
    /// The send time of the last request.
    last_sent: Timestamp,
    /// The number of attempts after unknown outcomes since an outcome was last certain.
    unknowns: u32,
    /// Is `true` if an attempt may have taken effect, with a lease that has ended since.
    may_have_ended: bool,
}

/// An attempt under way, and what stood before it.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    pub(super) at: Timestamp,
    first_before: Option<Timestamp>,
}

impl Unsettled {
    /// Nothing was sent yet.
    pub const NOTHING: Self =
        Self { first_sent: None, last_sent: Timestamp::from_nanos(0), unknowns: 0, may_have_ended: false };

    /// Makes the state of an acquire whose first attempt that may have taken effect was sent then, if there was one.
    #[must_use]
    pub fn since(first_sent: Option<Timestamp>) -> Self {
        // The models begin here with what a claim may have left before; the engine itself begins with `NOTHING`.
        Self { first_sent, last_sent: first_sent.unwrap_or(Self::NOTHING.last_sent), ..Self::NOTHING }
    }

    /// Returns when the first request was sent whose effect may still be standing.
    #[must_use]
    pub const fn first_sent(&self) -> Option<Timestamp> {
        self.first_sent
    }

    /// Returns whether an attempt may have taken something that still stands.
    pub const fn may_stand(&self) -> bool {
        self.first_sent.is_some()
    }

    /// Returns whether an earlier attempt may have taken effect, with a lease that has ended since.
    pub const fn may_have_ended(&self) -> bool {
        self.may_have_ended
    }

    /// Returns how many attempts followed an unknown outcome since one was last certain.
    pub const fn unknowns(&self) -> u32 {
        self.unknowns
    }

    /// Notes that an attempt is about to go out, before it does: from now on something may be on the server.
    pub fn begin(&mut self, at: Timestamp) -> Sent {
        let first_before = self.first_sent;
        // The first one stays: a grant to a later attempt may be that of the first, whose lease runs since then.
        self.first_sent.get_or_insert(at);
        self.last_sent = at;
        Sent { at, first_before }
    }

    /// Notes when the attempt was written, from which it counts where that is known.
    pub fn written(&mut self, sent: &Sent, at: Timestamp) {
        self.last_sent = at.max(sent.at);
        // A wait in this process, before the write, started no lease on the server.
        self.first_sent = sent.first_before.or(Some(self.last_sent));
    }

    /// Notes that the attempt took nothing. What an earlier one may have taken is still open.
    pub const fn took_nothing(&mut self, sent: &Sent) {
        self.first_sent = sent.first_before;
    }

    /// Notes that another claim has the lock, so that an earlier attempt of this acquire does not. `in_flight` is
    /// `true` if one may still arrive.
    pub fn busy(&mut self, sent: &Sent, in_flight: bool, now: Timestamp, lease: Duration) {
        // By the server's clock the lease of what was granted to that attempt may have ended. The margin allows for a
        // clock there that runs faster than this one.
        let outlived = |first: Timestamp| now.since(first) >= lease.saturating_sub(margin(lease));
        self.may_have_ended = in_flight && sent.first_before.is_some_and(outlived);
        (self.first_sent, self.unknowns) = (None, 0);
    }

    /// Notes that an outcome is unknown and is asked about.
    pub const fn recheck(&mut self) {
        self.unknowns += 1;
    }

    /// Notes that the claims are new: what the old ones may have is withdrawn.
    pub const fn anew(&mut self) {
        (self.first_sent, self.unknowns) = (None, 0);
    }

    /// Takes the moment from which a grant counts.
    pub const fn granted(&mut self) -> Option<Timestamp> {
        // Taken and not read: the hold has that moment from here on, and an acquire that goes on after a late grant
        // starts with new claims.
        self.first_sent.take()
    }

    /// Returns the time until which a request that took effect may hold a lock of this lease. A request that is still
    /// on its way starts its lease when it arrives.
    pub fn may_hold_until(&self, lease: Duration, request_timeout: Duration) -> Timestamp {
        self.last_sent + lease + request_timeout
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(10);

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn a_grant_counts_from_the_first_attempt_that_may_have_taken_effect() {
        let mut unsettled = Unsettled::NOTHING;
        unsettled.begin(at(1));
        unsettled.recheck();
        unsettled.begin(at(2));
        assert_eq!(unsettled.granted(), Some(at(1)));
    }

    #[test]
    fn an_attempt_that_took_nothing_leaves_what_stood_before_it() {
        let mut unsettled = Unsettled::NOTHING;
        let first = unsettled.begin(at(1));
        unsettled.took_nothing(&first);
        assert!(!unsettled.may_stand());
        unsettled.begin(at(2));
        let third = unsettled.begin(at(3));
        unsettled.took_nothing(&third);
        assert_eq!(unsettled.granted(), Some(at(2)));
    }

    #[test]
    fn an_attempt_counts_from_when_it_was_written_unless_an_earlier_one_stands() {
        let mut unsettled = Unsettled::NOTHING;
        let first = unsettled.begin(at(1));
        unsettled.written(&first, at(3));
        assert_eq!(unsettled.may_hold_until(LEASE, LEASE), at(23));
        let second = unsettled.begin(at(4));
        unsettled.written(&second, at(5));
        assert_eq!(unsettled.granted(), Some(at(3)));
        // A clock of the backend that is behind gives no time away, and takes none.
        let third = unsettled.begin(at(7));
        unsettled.written(&third, at(6));
        assert_eq!(unsettled.granted(), Some(at(7)));
    }

    #[test]
    fn another_holder_settles_what_was_unknown_whose_lease_may_have_ended() {
        // Less a margin of 1 %.
        let millis = |millis: u64| Timestamp::from_nanos(millis * 1_000_000);
        for (in_flight, asked_at, may_have_ended) in
            [(true, 9_899, false), (true, 9_900, true), (false, 10_000, false)]
        {
            let mut unsettled = Unsettled::NOTHING;
            unsettled.begin(at(0));
            unsettled.recheck();
            let second = unsettled.begin(at(1));
            unsettled.busy(&second, in_flight, millis(asked_at), LEASE);
            assert_eq!((unsettled.may_stand(), unsettled.unknowns()), (false, 0));
            assert_eq!(unsettled.may_have_ended(), may_have_ended, "{in_flight} {asked_at}");
        }
    }
}
