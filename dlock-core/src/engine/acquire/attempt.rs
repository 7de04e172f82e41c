//! One attempt to take what is wanted, and how it went.

use smallvec::{SmallVec, smallvec};

use crate::backend::{Attempt, BatchAttempt, Busy, Grant};
use crate::engine::Engine;
use crate::engine::pending::Pending;
use crate::error::{ErrorKind, Failure};
use crate::holder::Holder;

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

/// Says that what was handed over is not there to be taken.
pub(super) fn not_there(holder: Option<&Holder>) -> Failure {
    let why = match holder {
        Some(holder) if holder.left_behind => {
            "the key is kept for another baton, or stays taken after a release: this baton was taken over before, or is \
             one of another server, table or prefix"
        }
        Some(_) => {
            "somebody else has the lock: the baton was taken over before, or its time is over, or it is one of another \
             server, table or prefix"
        }
        None => {
            "the baton was taken over before and the lock released, or its time is over, or it is one of another server, \
             table or prefix"
        }
    };
    Failure::new(ErrorKind::NotHeld, why)
}

/// Says that the baton may have been used up by a request whose answer came too late, or not at all.
pub(super) fn used_up() -> Failure {
    Failure::unknown(
        "a request took the lock over, or may have, and its answer came when its lease had ended: what is left of it is \
         released, and the baton is of no use any more",
    )
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
