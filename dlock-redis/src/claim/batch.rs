//! Several locks of one server, or of one slot of a cluster, in one call.

use std::sync::Arc;

use dlock_core::Failure;
use dlock_core::backend::{BatchAttempt, Busy, Claim, Grant, Term};

use super::{RedisClaim, Unanswered, senseless};
use crate::backend::{Shared, holder};
use crate::connection::{Link, Path, Track};
use crate::scripts::{Answer, Request, RequestAll, Step, TakenAll};
use dlock_core::Fence;

/// So many at the most, so that no call keeps the server from others for long.
const MOST: usize = 256;

/// Takes the locks of all these claims, or none.
pub(crate) async fn attempt_all(
    shared: &Arc<Shared>,
    claims: &mut [&mut RedisClaim],
) -> Result<BatchAttempt, Failure> {
    let Some(first) = claims.first() else { return Ok(BatchAttempt::Granted(Vec::new())) };
    let (slot, patience) = (first.names.slot, first.patience());
    if claims.len() > MOST || claims.iter().any(|claim| claim.names.slot != slot) {
        return Ok(BatchAttempt::Separately);
    }
    let patience = claims.iter().map(|claim| claim.patience()).min().unwrap_or(patience);
    let mut requests = Vec::with_capacity(claims.len());
    for claim in claims.iter_mut() {
        requests.push(claim.asking());
    }
    let request = RequestAll(requests);
    let mut tracks = Tracks(claims.iter_mut().map(|claim| &mut claim.unanswered).collect());
    let reply = shared.servers.carry_out(&request, patience, &mut tracks).await?;
    match &reply.answer {
        TakenAll::Busy(place, Answer::Busy { left, who, fence }) => {
            let mut busy = Busy::default();
            busy.retry_after = *left;
            busy.holder = Some(Box::new(holder(who.as_deref(), *fence, *left)));
            Ok(BatchAttempt::Busy { place: *place, busy })
        }
        TakenAll::Taken(answers) => {
            claims.iter_mut().for_each(|claim| claim.held = true);
            if let Some(failure) = claims[0].too_few(reply.acknowledged) {
                return Err(give_back(claims, failure).await);
            }
            let grants = claims.iter_mut().zip(answers).map(|(claim, answer)| claim.grant(answer));
            Ok(BatchAttempt::Granted(grants.collect::<Result<_, _>>()?))
        }
        TakenAll::Busy(..) => Err(senseless()),
    }
}

/// Too few replicas know of the locks: they are worth nothing.
async fn give_back(claims: &mut [&mut RedisClaim], failure: Failure) -> Failure {
    let withdrawals = claims.iter_mut().map(|claim| claim.withdraw());
    let outcomes = futures_util::future::join_all(withdrawals).await;
    match outcomes.into_iter().find_map(Result::err) {
        None => failure,
        Some(other) => Failure::unknown(format!("{}, and not all could be withdrawn", failure.message()))
            .with_source(other),
    }
}

impl RedisClaim {
    /// What to ask for, from now on with an ear on the channel where somebody of this client listens already.
    pub(super) fn asking(&mut self) -> Request {
        match &mut self.listener {
            Some(listener) => listener.forget(),
            none => *none = self.shared.hub.join(&self.names.channel),
        }
        let who = self.request.describe().into();
        self.step(Step::Acquire { lease: self.lease(), who })
    }

    fn grant(&mut self, answer: &Answer) -> Result<Grant, Failure> {
        match answer {
            Answer::Granted(fence) | Answer::Adopted(Some(fence)) => {
                self.listener = None;
                let lease = std::time::Duration::from_millis(self.lease());
                Ok(Grant::new(Term::Lease(lease)).with_fence(Fence::new(*fence)))
            }
            Answer::Adopted(None) => {
                Err(Failure::unknown("somebody removed the fence from the lock; do not edit locks"))
            }
            _ => Err(senseless()),
        }
    }
}

/// The accounts of all claims at once.
struct Tracks<'a>(Vec<&'a mut Unanswered>);

impl Track for Tracks<'_> {
    fn awaits(&self, link: &Arc<Link>) -> bool {
        self.0.iter().any(|track| track.awaits(link))
    }

    fn before(&mut self, path: &Path) {
        self.0.iter_mut().for_each(|track| track.before(path));
    }

    fn unsent(&mut self, path: &Path) {
        self.0.iter_mut().for_each(|track| track.unsent(path));
    }

    fn after(&mut self, path: &Path) {
        self.0.iter_mut().for_each(|track| track.after(path));
    }
}
