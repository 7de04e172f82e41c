//! A claim on a lock that several may hold: a reader's, one of permits, or one of a writer who found readers. Or on one
//! that is waited for in line.

use std::time::Duration;

use dlock_core::backend::{Attempt, Grant};
use dlock_core::{ErrorKind, Failure};

use super::RedisClaim;
use super::answers::senseless;
use crate::error::{is_cut_short, refusal};
use crate::format::NO_LOCK;
use crate::request::{Answer, Step, Who};

impl RedisClaim {
    /// Whether what this claim has, or may have, is withdrawn by the script of what several hold. That knows what is
    /// held alone, too.
    pub(super) fn is_share(&self) -> bool {
        !self.is_plain() || self.downgraded || self.waits_for_all && !self.held
    }

    pub(super) async fn attempt_share(&mut self) -> Result<Attempt, Failure> {
        let mode = self.request.mode;
        self.client.format.check(mode)?;
        let fair = self.request.fair;
        if !self.is_plain() && !self.client.is_tried(mode, fair) {
            // It waits for its turn meanwhile: one asks for all.
            self.clock.queued();
            Box::pin(self.client.may_use(&self.names, (mode, fair), self.request.request_timeout)).await?;
        }
        if let Some(grant) = self.given() {
            return Ok(Attempt::Granted(grant));
        }
        let listens = match &mut self.listener {
            Some(listener) if self.request.fair => {
                listener.forget();
                true
            }
            _ if self.request.fair => self.names.check().map(|()| false)?,
            _ => self.listens()?,
        };
        let before = self.line;
        let asked = self.line.asks();
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
        // From here on it may keep others out.
        self.waits_for_all =
            self.request.has_preference() && (!self.is_plain() || self.client.format.withdraws_both());
        let reply = match self.acquire_by(&request).await {
            Ok(reply) => reply,
            Err(failure) if is_cut_short(&failure) => {
                // A right was taken away since it was tried: the step may have ended in the middle.
                self.client.try_anew(mode, fair);
                self.held = true;
                return Err(failure.of_worthless_grant());
            }
            Err(failure) => {
                if failure.kind() != ErrorKind::Unknown {
                    // Nothing was changed by this request, and the place is what it was.
                    self.line = before;
                }
                return Err(failure);
            }
        };
        if matches!(reply.answer, Answer::Busy { .. } | Answer::KeptOut { .. }) {
            self.line.waits(asked);
        }
        match &reply.answer {
            Answer::Granted(_) | Answer::Adopted(Some(_)) => self.granted(&reply, 1),
            Answer::Used(other) => Err(mode.conflict(other).unwrap_or_else(|| refusal(NO_LOCK))),
            Answer::Busy { left, holder } => Ok(self.busy(*left, Some(holder.clone()))),
            Answer::KeptOut { left } => Ok(self.busy(*left, None)),
            _ => Err(senseless()),
        }
    }

    /// The lock, where the release before has taken it for us and said so. Where replicas have to know of it, they are
    /// asked.
    fn given(&mut self) -> Option<Grant> {
        if !self.request.fair || !self.in_flight.is_empty() || self.client.replicas.is_some() {
            return None;
        }
        let given = self.client.format.given(&self.listener.as_ref()?.text()?)?;
        let grant = self.line.given(given, Duration::from_millis(self.lease()))?;
        self.held = true;
        Some(grant)
    }
}
