//! One attempt to take what is wanted, and how it went.

use smallvec::{SmallVec, smallvec};

use crate::backend::dynamic::DynClaim;
use crate::backend::{Attempt, BatchAttempt, Busy, Grant};
use crate::engine::Engine;
use crate::engine::pending::Pending;
use crate::error::{ErrorKind, Failure};

/// How one attempt went.
pub(super) enum Step {
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

impl Step {
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
pub(super) async fn request(engine: &Engine, pendings: &mut [Pending<'_>]) -> Step {
    let wanted = pendings.len();
    let mut claims = pendings.iter_mut().filter_map(|pending| pending.claim.as_mut());
    let failure = if wanted == 1 {
        let Some(claim) = claims.next() else { return Step::Failed(gone()) };
        match claim.attempt().await {
            Ok(Attempt::Granted(grant)) => return Step::Granted(smallvec![grant]),
            Ok(Attempt::Busy(busy)) => return Step::Busy(0, busy),
            Err(failure) => failure,
        }
    } else {
        match engine.backend.attempt_all(claims.collect()).await {
            Ok(BatchAttempt::Granted(grants)) if grants.len() == wanted => {
                return Step::Granted(grants.into());
            }
            Ok(BatchAttempt::Granted(_)) => Failure::unknown("the backend lost count of the locks"),
            Ok(BatchAttempt::Busy { place, busy }) => return Step::Busy(place.min(wanted - 1), busy),
            Ok(BatchAttempt::Separately) => return Step::Separately,
            Err(failure) => failure,
        }
    };
    // The same token is not asked about again once its grant is being withdrawn.
    match failure.kind() {
        ErrorKind::Unknown if !failure.is_worthless() => Step::Unknown(failure),
        _ => Step::Failed(failure),
    }
}

/// A backend that cannot tell of changes is polled; one that says the claim is finished ends the acquire.
pub(super) async fn watch(claim: &mut Box<dyn DynClaim>) -> Result<(), Failure> {
    match claim.changed().await {
        Err(failure) if failure.is_transient() => std::future::pending().await,
        told => told,
    }
}
