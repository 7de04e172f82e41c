//! A claim on a lock that several may hold: a reader's, one of permits, or one of a writer who found readers. Or on one
//! that is waited for in line.

use dlock_core::Failure;
use dlock_core::backend::{Attempt, Renewed, Withdrawal};

use super::RedisClaim;
use super::answers::{senseless, withdrawn};
use crate::error::refusal;
use crate::request::{Answer, ShareRequest, ShareStep, Who};
use crate::servers::Reply;

impl RedisClaim {
    fn share(&self, step: ShareStep) -> ShareRequest {
        ShareRequest { names: self.names.clone(), token: self.request.token, fair: self.request.fair, step }
    }

    /// Whether what this claim has, or may have, is withdrawn by the script of what several hold. That knows what is
    /// held alone, too.
    pub(super) fn is_share(&self) -> bool {
        !self.is_plain() || self.waits_for_all && !self.held
    }

    pub(super) async fn attempt_share(&mut self) -> Result<Attempt, Failure> {
        if !self.client.format.shares() {
            return Err(refusal("WRONGTYPE the key holds something that is no lock"));
        }
        let mode = self.request.mode;
        let listens = match &mut self.listener {
            Some(listener) if self.request.fair => {
                listener.forget();
                true
            }
            _ if self.request.fair => false,
            _ => self.listens()?,
        };
        let request = self.share(ShareStep::Acquire {
            mode,
            lease: self.lease(),
            listens,
            prefers: self.request.has_preference(),
            who: Who::of(&self.request),
        });
        // From here on it may keep others out.
        self.waits_for_all = self.request.has_preference();
        let reply = self.carry_out_share(&request).await?;
        match &reply.answer {
            Answer::Granted(fence) | Answer::Adopted(Some(fence)) => self.granted(&reply, *fence, 1),
            Answer::Used(other) => Err(mode.conflict(other).unwrap_or_else(senseless)),
            Answer::Busy { left, holder } => Ok(self.busy(*left, Some(holder.clone()))),
            Answer::KeptOut { left } => Ok(self.busy(*left, None)),
            _ => Err(senseless()),
        }
    }

    async fn carry_out_share(&mut self, request: &ShareRequest) -> Result<Reply, Failure> {
        let patience = self.patience();
        self.client.servers.carry_out(request, patience, &mut self.unanswered).await
    }

    pub(super) async fn renew_share(&mut self) -> Result<Renewed, Failure> {
        let request = self.share(ShareStep::Renew { lease: self.lease() });
        let reply = self.client.servers.carry_out(&request, self.patience(), &mut self.overdue).await?;
        match reply.answer {
            Answer::Done(true) => self.too_few(reply.acknowledged).map_or(Ok(Renewed::Extended), Err),
            Answer::Done(false) => Ok(Renewed::Gone),
            _ => Err(senseless()),
        }
    }

    pub(super) async fn withdraw_share(&mut self) -> Result<Withdrawal, Failure> {
        let request = self.share(ShareStep::Withdraw);
        if !self.held && !self.unanswered.is_empty() {
            let limit = (self.request.lease, self.patience());
            let withdrawal = self.unanswered.withdraw(&self.client.servers, &request, limit).await?;
            self.waits_for_all &= !withdrawal.settled;
            return Ok(withdrawal);
        }
        let reply = self.client.servers.carry_out(&request, self.patience(), &mut self.overdue).await?;
        (self.held, self.waits_for_all) = (false, false);
        let withdrawal = withdrawn(&reply.answer)?;
        Ok(if self.unanswered.is_empty() { withdrawal } else { withdrawal.unsettled() })
    }
}
