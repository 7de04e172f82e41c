//! Passing a lock on from a section that ends to the next one of its process: the decisions, without a clock.
//!
//! Each row asks that those above it do not apply.
//!
//! | when a section ends | the lock is |
//! |---|---|
//! | no fence is left of those that were reserved with the lock | released |
//! | the key is to stay taken, also for this process | left |
//! | a session keeps it | released |
//! | the tenure is out of time: others may wait elsewhere | released |
//! | another process wants it | released |
//! | a renewal is due or under way: the backend may have asked for it, and the answer is lost with the hold | released |
//! | it is at risk | released |
//! | less than half of the lease is left, counted from the last confirmation | released |
//! | in any other case | passed on, with the next fence and the deadline that it has |

use crate::backend::{Grant, Validity};
use crate::clock::Timestamp;
use crate::engine::hold::lease::LeaseTerms;
use crate::fence::Fence;

/// The fence of a section, and those that were reserved for the sections that follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReservedFences {
    own: Option<Fence>,
    /// The last one; zero where the lock is not to be passed on.
    last: u64,
}

impl ReservedFences {
    /// Takes the fences of a grant, which `may_be_passed_on` or not.
    pub fn granted(grant: &Grant, may_be_passed_on: bool) -> Self {
        let last = match grant.fence {
            // A hold that follows counts on the whole lease, which the server has not confirmed after a first lease.
            Some(fence) if may_be_passed_on && grant.first_lease.is_none() => {
                fence.get().saturating_add(u64::from(grant.reserved.saturating_sub(1)))
            }
            _ => 0,
        };
        Self { own: grant.fence, last }
    }

    /// Returns the fence of the section.
    pub const fn own(self) -> Option<Fence> {
        self.own
    }

    /// Returns the fences of the section that follows; `None` where none is left.
    pub fn next(self) -> Option<Self> {
        let own = self.own.filter(|own| own.get() < self.last)?;
        Some(Self { own: Some(Fence::new(own.get() + 1)), ..self })
    }
}

/// What is known of a lock when its section ends, beside its fences.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a reason of its own to release the lock")]
pub struct SectionEnd {
    /// The key is to stay taken, also for this process.
    pub stays_taken: bool,
    /// The process has had the lock for as long as it may without a request.
    pub is_out_of_time: bool,
    /// Another process wants it.
    pub is_wanted: bool,
    /// A renewal is due, or under way.
    pub is_renewing: bool,
    /// It is not certain that the server still has it.
    pub is_at_risk: bool,
    /// The send time of the last request that confirmed it.
    pub confirmed_at: Timestamp,
    /// The time at which the section ends.
    pub now: Timestamp,
}

impl LeaseTerms {
    /// Returns whether the lock is passed on at the end of a section that leaves a fence.
    pub fn passes_on(&self, end: &SectionEnd) -> bool {
        let Validity::Lease(length) = self.validity else { return false };
        !(end.stays_taken || end.is_out_of_time || end.is_wanted || end.is_renewing || end.is_at_risk)
            // The section that follows begins without a request.
            && end.now < end.confirmed_at + length / 2
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LEASE: Duration = Duration::from_secs(10);
    const NO_FENCE: Option<Fence> = None;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_nanos(0) + Duration::from_millis(millis)
    }

    fn terms(validity: Validity) -> LeaseTerms {
        LeaseTerms::new(validity, LEASE, Timestamp::NEVER)
    }

    #[test]
    fn each_end_of_a_section_is_followed_by_what_the_table_says() {
        let (lease, session) = (terms(Validity::Lease(LEASE)), terms(Validity::Session(Some(LEASE))));
        let end = SectionEnd {
            stays_taken: false,
            is_out_of_time: false,
            is_wanted: false,
            is_renewing: false,
            is_at_risk: false,
            confirmed_at: at(1_000),
            now: at(5_999),
        };
        let rows = [
            ("in time", lease, end, true),
            ("a key that stays taken", lease, SectionEnd { stays_taken: true, ..end }, false),
            ("a session", session, end, false),
            ("a tenure that is out of time", lease, SectionEnd { is_out_of_time: true, ..end }, false),
            ("a lock that is wanted", lease, SectionEnd { is_wanted: true, ..end }, false),
            ("a renewal under way", lease, SectionEnd { is_renewing: true, ..end }, false),
            ("a lock at risk", lease, SectionEnd { is_at_risk: true, ..end }, false),
            ("half of the lease", lease, SectionEnd { now: at(6_000), ..end }, false),
        ];
        for (what, terms, end, passed_on) in rows {
            assert_eq!(terms.passes_on(&end), passed_on, "{what}");
        }
    }

    #[test]
    fn each_section_has_one_of_the_fences_that_were_reserved_and_the_last_leaves_none() {
        let grant = |fence: Option<Fence>, reserved| {
            let grant = Grant::new(Validity::Lease(LEASE)).with_reserved(reserved);
            fence.map_or(grant, |fence| grant.with_fence(fence))
        };
        let sections = |fences: ReservedFences| {
            let all = std::iter::successors(Some(fences), |fences| fences.next());
            all.map(|fences| fences.own().map(Fence::get)).collect::<Vec<_>>()
        };
        let seven = Some(Fence::new(7));
        let granted = |fence, reserved, passed_on| {
            sections(ReservedFences::granted(&grant(fence, reserved), passed_on))
        };
        assert_eq!(granted(seven, 3, true), [Some(7), Some(8), Some(9)]);
        assert_eq!(granted(seven, 1, true), [Some(7)]);
        assert_eq!(granted(seven, 0, true), [Some(7)]);
        assert_eq!(granted(seven, 3, false), [Some(7)], "it is not to be passed on");
        assert_eq!(granted(NO_FENCE, 3, true), [None]);
        let first = grant(seven, 3).with_first_lease(LEASE / 10);
        assert_eq!(sections(ReservedFences::granted(&first, true)), [Some(7)], "the lease is not confirmed");
    }
}
