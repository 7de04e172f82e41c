//! Several locks of one server, or of one slot of a cluster, taken by one call.

use std::sync::Arc;

use dlock_core::Failure;
use dlock_core::backend::{BatchAttempt, Busy, InFlight, Mode};

use super::RedisClaim;
use super::in_flight::Sent;
use crate::client::Client;
use crate::command::Command;
use crate::error::{Fault, senseless, without_fence};
use crate::request::Answer;
use crate::servers::{Connection, Route, Track};

/// The most locks in one call. A larger batch would keep the server from its other clients for too long.
const MOST: usize = 256;

/// Takes the locks of all these claims, or none of them.
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
    // The shortest of all: no claim of the batch may wait longer for a connection than it would alone.
    let patience = claims.iter().map(|claim| claim.patience()).min().unwrap_or(patience);
    let mut requests = Vec::with_capacity(claims.len());
    for claim in claims.iter_mut() {
        // Each claim joins its own release channel, so that any of them can be notified if the batch is refused.
        requests.push(claim.asking()?);
    }
    // One call, and an entry in the account of every claim: each of them has to withdraw what the call may have taken.
    let mut tracks = Tracks(claims.iter_mut().map(|claim| &mut claim.in_flight).collect());
    let reply = match client.servers.carry_out(Command::All(&requests), patience, &mut tracks).await {
        Err(failure) => return Err(named(client, failure, claims[0]).await),
        reply => reply?,
    };
    match reply.answer {
        // The script changed nothing: one lock that is taken is enough to leave all others alone.
        Answer::BusyAt(place, answer) => match *answer {
            Answer::Busy { left, holder } => {
                let mut busy = Busy::default();
                (busy.retry_after, busy.holder) = (left, Some(holder));
                Ok(BatchAttempt::Busy { place, busy })
            }
            Answer::Refused(text) => Err(named(client, Fault::Refused(text).into_failure(), claims[0]).await),
            _ => Err(senseless()),
        },
        Answer::All(answers) => {
            // All are marked as held before anything is refused: the engine withdraws every claim of a grant that is
            // worth nothing.
            claims.iter_mut().for_each(|claim| claim.held = true);
            if let Some(failure) = claims[0].too_few(reply.acknowledged) {
                return Err(failure.of_worthless_grant());
            }
            let grants = claims.iter_mut().zip(&answers).map(|(claim, answer)| {
                claim.listener = None;
                match answer {
                    // An adopted lock without a fence cannot get one here. The engine withdraws the batch.
                    Answer::Adopted(Some(0)) => Err(without_fence()),
                    answer => claim.grant(answer, 1),
                }
            });
            Ok(BatchAttempt::Granted(grants.collect::<Result<_, _>>()?))
        }
        Answer::SplitSlot => Ok(BatchAttempt::Separately),
        _ => Err(senseless()),
    }
}

/// Returns the failure with the names of the missing rights, where the server did not name them.
async fn named(client: &Client, failure: Failure, claim: &RedisClaim) -> Failure {
    let limit = claim.request.request_timeout;
    Box::pin(client.named(failure, &claim.names, (Mode::Exclusive, false), limit)).await
}

/// The accounts of all claims of a batch, which are kept in step.
struct Tracks<'a>(Vec<&'a mut InFlight<Sent>>);

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
