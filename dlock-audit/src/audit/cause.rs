//! What probably led to a violation.

use crate::checker::What;
use crate::report::ViolationKind;
use crate::trail::{Ended, RecordedHold};

pub(super) const fn kind_of(what: What) -> ViolationKind {
    match what {
        What::Overlap => ViolationKind::Overlap,
        What::TooManyPermits => ViolationKind::TooManyPermits,
        What::SameFence => ViolationKind::SameFence,
        What::TooEarly | What::AskedLate => ViolationKind::FenceWentBack,
    }
}

/// Returns what probably led to it and what to look at, for the earlier and the later one.
pub(super) fn cause(kind: ViolationKind, first: &RecordedHold, second: &RecordedHold) -> &'static str {
    let went_back = matches!((first.fence, second.fence), (Some(first), Some(second)) if second < first);
    match kind {
        ViolationKind::SameFence => {
            "the store granted one fence twice: it was restored from a backup, or lost its last writes in a failover, \
             or the key and its counter were deleted"
        }
        ViolationKind::FenceWentBack => {
            "the store counted from an earlier number: it was restored from a backup, lost writes in a failover, or \
             the key and its counter were deleted"
        }
        _ if went_back => {
            "the store had forgotten the first grant and its fence: it was restored from a backup, lost writes in a \
             failover, or the key and its counter were deleted"
        }
        ViolationKind::TooManyPermits => {
            "the store had forgotten a grant, or a permit was taken away by force: look for a failover, deleted keys \
             and `release --force`"
        }
        ViolationKind::Overlap => match (first.end, first.fence) {
            (Ended::Gone, _) => {
                "the first was taken away in the store while it was held, and its process learned that at its next \
                 renewal: by `release --force`, a deleted key or row, or a failover that lost the grant"
            }
            (Ended::Expired | Ended::Lost, _) => {
                "the first counted on its lease for longer than the store did: the clock of the host or of the store \
                 was set or stood still, or a failover lost the grant or its last renewal"
            }
            (Ended::Released | Ended::HandedOver, Some(_)) => {
                "the store granted the lock again while it was held: the key or row was deleted, released by force, \
                 or lost in a failover, or the store's clock was set forward"
            }
            (Ended::Released | Ended::HandedOver, None) => {
                "the lock was granted again while it was held: nodes of a quorum forgot it, or it was released by \
                 force"
            }
        },
    }
}
