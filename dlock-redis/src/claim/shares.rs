//! A claim on a lock that several may hold: a reader's, one of permits, or one of a writer who found readers. Or on one
//! that is waited for in line.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Attempt, Grant, Renewed, Withdrawal};
use dlock_core::{ErrorKind, Failure};

use super::RedisClaim;
use super::answers::{senseless, withdrawn};
use crate::error::{is_cut_short, refusal};
use crate::format::NO_LOCK;
use crate::request::{Answer, ShareRequest, ShareStep, Who};
use crate::servers::Reply;

impl RedisClaim {
    fn share(&self, step: ShareStep) -> ShareRequest {
        let (mode, fair) = (self.request.mode, self.request.fair);
        let (names, clock) = (self.names.clone(), Some(self.clock.clone()));
        ShareRequest { names, token: self.request.token, mode, fair, step, clock }
    }

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
        let request = self.share(ShareStep::Acquire {
            lease: self.lease(),
            listens,
            prefers: self.request.has_preference(),
            who: Who::of(&self.request),
            mark: self.client.format.passes_on().then(|| asked.as_nanos()),
        });
        // From here on it may keep others out.
        self.waits_for_all =
            self.request.has_preference() && (!self.is_plain() || self.client.format.withdraws_both());
        let reply = match self.carry_out_share(&request).await {
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
            Answer::Granted(fence) | Answer::Adopted(Some(fence)) => self.granted(&reply, *fence, 1),
            Answer::Used(other) => Err(mode.conflict(other).unwrap_or_else(|| refusal(NO_LOCK))),
            Answer::Busy { left, holder } => Ok(self.busy(*left, Some(holder.clone()))),
            Answer::KeptOut { left } => Ok(self.busy(*left, None)),
            _ => Err(senseless()),
        }
    }

    /// The lock, where the release before has taken it for us and said so. Where replicas have to know of it, they are
    /// asked.
    fn given(&mut self) -> Option<Grant> {
        if !self.request.fair || !self.unanswered.is_empty() || self.client.replicas.is_some() {
            return None;
        }
        let given = self.client.format.given(&self.listener.as_ref()?.text()?)?;
        let grant = self.line.given(given, Duration::from_millis(self.lease()))?;
        self.held = true;
        Some(grant)
    }

    async fn carry_out_share(&mut self, request: &ShareRequest) -> Result<Reply, Failure> {
        let patience = self.patience();
        self.client.servers.carry_out(request, patience, &mut self.unanswered).await
    }

    /// Has the lease run for its full length again, by this step.
    pub(super) async fn extend_share(&mut self, step: fn(u64) -> ShareStep) -> Result<Renewed, Failure> {
        let is_tracked = self.is_tracked();
        let request = self.share(step(self.lease()));
        let reply = self.client.servers.carry_out(&request, self.patience(), &mut self.overdue).await?;
        if is_tracked && let Some(tracked) = &self.tracked {
            tracked.look();
        }
        match reply.answer {
            Answer::Done(true) => self.too_few(reply.acknowledged).map_or(Ok(Renewed::Extended), Err),
            Answer::Done(false) => Ok(Renewed::Gone),
            _ => Err(senseless()),
        }
    }

    pub(super) async fn withdraw_share(&mut self) -> Result<Withdrawal, Failure> {
        let gives = self.request.fair && self.client.format.passes_on();
        if !self.held && !self.unanswered.is_empty() {
            // Nobody has it by this claim, most times. Those that follow attempts on their connections are under way
            // for longer than this call.
            let request = self.share(ShareStep::Withdraw { passes_on: false });
            let request = ShareRequest { clock: None, ..request };
            let limit = (self.request.lease, self.patience());
            let withdrawal = self.unanswered.withdraw(&self.client.servers, &request, limit).await?;
            self.waits_for_all &= !withdrawal.settled;
            return Ok(withdrawal);
        }
        let withdraw = |passes_on| self.share(ShareStep::Withdraw { passes_on });
        let (request, client, patience) = (withdraw(gives), Arc::clone(&self.client), self.patience());
        let mut reply = client.servers.carry_out(&request, patience, &mut self.overdue).await?;
        if reply.answer == Answer::Apart {
            // The counter is on another server for now: the first in line is told that it is its turn.
            let request = self.share(ShareStep::Withdraw { passes_on: false });
            reply = Box::pin(client.servers.carry_out(&request, patience, &mut self.overdue)).await?;
        }
        (self.held, self.waits_for_all) = (false, false);
        let withdrawal = withdrawn(&reply.answer)?;
        Ok(if self.unanswered.is_empty() { withdrawal } else { withdrawal.unsettled() })
    }
}
