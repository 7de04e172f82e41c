//! The attempts of claims on shared locks: of readers, of permits, and of a writer that found readers. Also those of a
//! lock that is waited for in a queue.

use std::time::Duration;

use dlock_core::backend::{Attempt, Grant};
use dlock_core::{ErrorKind, Failure};

use super::RedisClaim;
use crate::error::{is_cut_short, refusal, senseless};
use crate::format::NO_LOCK;
use crate::request::{Answer, Step, Who};

impl RedisClaim {
    /// Sends one attempt by the script of shared locks, or of fair ones.
    pub(super) async fn attempt_share(&mut self) -> Result<Attempt, Failure> {
        let mode = self.request.mode;
        self.client.format.check(mode)?;
        let fair = self.request.fair;
        if !self.is_plain() && !self.client.is_tried(mode, fair) {
            // The request counts as queued meanwhile: one claim of the process checks the rights, and the others wait
            // for it.
            self.clock.queued();
            Box::pin(self.client.may_use(&self.names, (mode, fair), self.request.request_timeout)).await?;
        }
        // Before any request: an attempt would be answered with a lock that is held already, and costs a round trip.
        if let Some(grant) = self.given() {
            return Ok(Attempt::Granted(grant));
        }
        // A fair claim has a channel of its own, and subscribes to it in `changed`.
        let listens = match &mut self.listener {
            Some(listener) if self.request.fair => {
                listener.forget();
                true
            }
            _ if self.request.fair => self.names.check().map(|()| false)?,
            _ => self.listens()?,
        };
        let before = self.place;
        let asked = self.place.asks();
        let request = self.request_by(
            true,
            Step::Acquire {
                lease: self.lease(),
                listens,
                who: Who::of(&self.request),
                fences: 1,
                prefers: self.request.has_preference(),
                mark: self.client.format.passes_on().then(|| asked.as_nanos()),
            },
        );
        // Set before the request is sent: from then on the server may keep others out, whatever becomes of the answer.
        // A writer that found readers is withdrawn by the script of shared locks only where that knows exclusive locks
        // too.
        self.waits_for_all =
            self.request.has_preference() && (!self.is_plain() || self.client.format.withdraws_both());
        let reply = match self.acquire_by(&request).await {
            Ok(reply) => reply,
            Err(failure) if is_cut_short(&failure) => {
                // A right was taken away since it was checked. The step may have stopped in the middle, with the lock
                // taken.
                self.client.try_anew(mode, fair);
                self.held = true;
                return Err(failure.of_worthless_grant());
            }
            Err(failure) => {
                if failure.kind() != ErrorKind::Unknown {
                    // The request changed nothing, so that the place in the queue is the one of the request before.
                    self.place = before;
                }
                return Err(failure);
            }
        };
        if matches!(reply.answer, Answer::Busy { .. } | Answer::KeptOut { .. }) {
            self.place.waits(asked);
        }
        match &reply.answer {
            Answer::Granted(_) | Answer::Adopted(Some(_)) => self.granted(&reply, 1),
            Answer::Used(other) => Err(mode.conflict(other).unwrap_or_else(|| refusal(NO_LOCK))),
            Answer::Busy { left, holder } => Ok(self.busy(*left, Some(holder.clone()))),
            Answer::KeptOut { left } => Ok(self.busy(*left, None)),
            _ => Err(senseless()),
        }
    }

    /// Returns the grant that a release published for this claim, if there is one. Where replicas have to acknowledge a
    /// grant, there is none: the claim asks the server, which asks them.
    fn given(&mut self) -> Option<Grant> {
        // With an attempt in flight, only an answer settles what the claim has.
        if !self.request.fair || !self.in_flight.is_empty() || self.client.replicas.is_some() {
            return None;
        }
        let given = self.client.format.given(&self.listener.as_ref()?.text()?)?;
        let grant = self.place.given(given, Duration::from_millis(self.lease()))?;
        self.held = true;
        Some(grant)
    }
}
