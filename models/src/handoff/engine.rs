//! What a process decides at the end of a section: by the engine's own state machines, at a moment of the model.

use std::time::Duration;

use dlock_core::backend::{Grant, Validity};
use dlock_core::decisions::hold::{LeaseTerms, ReservedFences, SectionEnd};
use dlock_core::{Fence, Timestamp};

const TICK: Duration = Duration::from_secs(1);

const NOW: Timestamp = Timestamp::from_nanos(1_000_000_000_000);

/// Returns the fences of the first section after a grant, which `may_be_passed_on` or not.
pub(super) fn granted(first: u8, last: u8, may_be_passed_on: bool) -> ReservedFences {
    let reserved = u32::from(last - first) + 1;
    let grant =
        Grant::new(Validity::Lease(TICK)).with_fence(Fence::new(first.into())).with_reserved(reserved);
    ReservedFences::granted(&grant, may_be_passed_on)
}

/// Returns the number of the fence of a section.
pub(super) fn fence(fences: ReservedFences) -> u8 {
    fences.own().and_then(|fence| u8::try_from(fence.get()).ok()).unwrap_or_default()
}

/// Returns whether a lock that is believed in for so long is passed on, while a renewal is under way or not.
pub(super) fn passes_on(left: u8, lease: u8, is_renewing: bool) -> bool {
    let length = TICK * u32::from(lease);
    let end = SectionEnd {
        stays_taken: false,
        is_out_of_time: false,
        is_wanted: false,
        is_renewing,
        is_at_risk: false,
        confirmed_at: NOW - TICK * u32::from(lease.saturating_sub(left)),
        now: NOW,
    };
    LeaseTerms::new(Validity::Lease(length), length, Timestamp::NEVER).passes_on(&end)
}
