//! One attempt to take what is wanted, and how it went.

use smallvec::{SmallVec, smallvec};

use crate::backend::{Attempt, BatchAttempt, Busy, Grant};
use crate::engine::Engine;
use crate::engine::pending::Pending;
use crate::error::{ErrorKind, Failure};

/// How one attempt went.
pub(super) enum AttemptOutcome {
    /// A grant for each.
    Granted(SmallVec<[Grant; 1]>),
    /// Somebody else has this one.
    Busy(usize, Busy),
    /// They have to be taken one after the other.
    Separately,
    /// Nothing was changed.
    Failed(Failure),
    /// Something may have been changed.
    Unknown(Failure),
}

impl AttemptOutcome {
    pub(super) const fn outcome(&self) -> &'static str {
        match self {
            Self::Granted(_) => "acquired",
            Self::Busy(..) => "busy",
            Self::Separately | Self::Failed(_) => "failed",
            Self::Unknown(_) => "unknown",
        }
    }
}

pub(super) fn gone() -> Failure {
    Failure::new(ErrorKind::Closed, "the claim is gone")
}

/// The one request that differs between one lock and many.
pub(super) async fn request(engine: &Engine, pendings: &mut [Pending<'_>]) -> AttemptOutcome {
    let wanted = pendings.len();
    let mut claims = pendings.iter_mut().filter_map(|pending| pending.claim.as_mut());
    let failure = if wanted == 1 {
        let Some(claim) = claims.next() else { return AttemptOutcome::Failed(gone()) };
        match claim.attempt().await {
            Ok(Attempt::Granted(grant)) => return AttemptOutcome::Granted(smallvec![grant]),
            Ok(Attempt::Busy(busy)) => {
                engine.registry.contacted(engine.clock.now());
                return AttemptOutcome::Busy(0, busy);
            }
            Err(failure) => failure,
        }
    } else {
        match engine.backend.attempt_all(claims.collect()).await {
            Ok(BatchAttempt::Granted(grants)) if grants.len() == wanted => {
                return AttemptOutcome::Granted(grants.into());
            }
            Ok(BatchAttempt::Granted(_)) => Failure::unknown("the backend lost count of the locks"),
            Ok(BatchAttempt::Busy { place, busy }) => {
                engine.registry.contacted(engine.clock.now());
                return AttemptOutcome::Busy(place.min(wanted - 1), busy);
            }
            Ok(BatchAttempt::Separately) => return AttemptOutcome::Separately,
            Err(failure) => failure,
        }
    };
    // The same token is not asked about again once its grant is being withdrawn.
    match failure.kind() {
        ErrorKind::Unknown if !failure.is_worthless() => AttemptOutcome::Unknown(failure),
        _ => AttemptOutcome::Failed(failure),
    }
}
