//! Several locks of one server, or of one slot of a cluster, in one call.

use std::sync::Arc;

use dlock_core::Failure;
use dlock_core::backend::{BatchAttempt, Busy, Grant, Validity};

use super::RedisClaim;
use super::answers::{senseless, without_fence};
use super::in_flight::InFlightAttempts;
use crate::client::Client;
use crate::error::Fault;
use crate::request::{Answer, Request, RequestAll, Step, TakenAll, Who};
use crate::servers::{Connection, Route, Track};
use dlock_core::Fence;

/// So many at the most, so that no call keeps the server from others for long.
const MOST: usize = 256;

/// Takes the locks of all these claims, or none.
pub(crate) async fn attempt_all(
    client: &Arc<Client>,
    claims: &mut [&mut RedisClaim],
) -> Result<BatchAttempt, Failure> {
    let Some(first) = claims.first() else { return Ok(BatchAttempt::Granted(Vec::new())) };
    let (slot, patience) = (first.names.slot, first.patience());
    if !claims.iter().all(|claim| claim.is_plain()) {
        return Ok(BatchAttempt::Separately);
    }
    if claims.len() > MOST || claims.iter().any(|claim| claim.names.slot != slot) {
        return Ok(BatchAttempt::Separately);
    }
    let patience = claims.iter().map(|claim| claim.patience()).min().unwrap_or(patience);
    let mut requests = Vec::with_capacity(claims.len());
    for claim in claims.iter_mut() {
        requests.push(claim.asking()?);
    }
    let request = RequestAll(requests);
    let mut tracks = Tracks(claims.iter_mut().map(|claim| &mut claim.unanswered).collect());
    let reply = client.servers.carry_out(&request, patience, &mut tracks).await?;
    match &reply.answer {
        TakenAll::Busy(place, Answer::Busy { left, holder }) => {
            let mut busy = Busy::default();
            busy.retry_after = *left;
            busy.holder = Some(holder.clone());
            Ok(BatchAttempt::Busy { place: *place, busy })
        }
        TakenAll::Taken(answers) => {
            claims.iter_mut().for_each(|claim| claim.held = true);
            if let Some(failure) = claims[0].too_few(reply.acknowledged) {
                return Err(failure.of_worthless_grant());
            }
            let grants = claims.iter_mut().zip(answers).map(|(claim, answer)| claim.grant(answer));
            Ok(BatchAttempt::Granted(grants.collect::<Result<_, _>>()?))
        }
        TakenAll::Apart => Ok(BatchAttempt::Separately),
        TakenAll::Busy(_, Answer::Refused(text)) => Err(Fault::Refused(text.clone()).into_failure()),
        TakenAll::Busy(..) => Err(senseless()),
    }
}

impl RedisClaim {
    /// What to ask for, from now on with an ear on the channel where somebody of this client listens already.
    pub(super) fn asking(&mut self) -> Result<Request, Failure> {
        let (listens, who) = (self.listens()?, Who::of(&self.request));
        Ok(self.step(Step::Acquire { lease: self.lease(), listens, fences: self.reserves, who }))
    }

    /// Whether there is an ear on the channel for it, which there is where somebody of this client listens already.
    pub(super) fn listens(&mut self) -> Result<bool, Failure> {
        self.names.check()?;
        match &mut self.listener {
            Some(listener) => listener.forget(),
            none => {
                let channel = self.client.format.channel(&self.names, self.request.mode);
                *none = self.client.channels.join(&channel);
            }
        }
        // One that may not listen leaves the same mark: others are to know that it waits.
        Ok(self.listener.is_some() || self.contended)
    }

    fn grant(&mut self, answer: &Answer) -> Result<Grant, Failure> {
        match answer {
            Answer::Granted(fence) | Answer::Adopted(Some(fence)) if *fence > 0 => {
                self.listener = None;
                let lease = std::time::Duration::from_millis(self.lease());
                Ok(Grant::new(Validity::Lease(lease)).with_fence(Fence::new(*fence)))
            }
            Answer::Adopted(_) => Err(without_fence()),
            _ => Err(senseless()),
        }
    }
}

/// The accounts of all claims at once.
struct Tracks<'a>(Vec<&'a mut InFlightAttempts>);

impl Track for Tracks<'_> {
    fn awaits(&self, connection: &Arc<Connection>) -> bool {
        self.0.iter().any(|track| track.awaits(connection))
    }

    fn before(&mut self, route: &Route) {
        self.0.iter_mut().for_each(|track| track.before(route));
    }

    fn unsent(&mut self, route: &Route) {
        self.0.iter_mut().for_each(|track| track.unsent(route));
    }

    fn after(&mut self, route: &Route) {
        self.0.iter_mut().for_each(|track| track.after(route));
    }
}
