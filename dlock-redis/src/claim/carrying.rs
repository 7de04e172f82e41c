//! Taking a lock over that was left for whoever brings its token.

use std::sync::Arc;

use dlock_core::backend::{Attempt, Busy};
use dlock_core::{Failure, Token};

use super::RedisClaim;
use crate::administration::inspect_granted;
use crate::request::{Answer, RequestTakeOver, Step, Who};

impl RedisClaim {
    /// Tries for what was left under this token, and for nothing else.
    pub(super) async fn take_over(&mut self, left: Token) -> Result<Attempt, Failure> {
        self.names.check()?;
        let who = Who::of(&self.request);
        let request = self.step(Step::Acquire { lease: self.lease(), listens: false, fences: 1, who });
        let client = Arc::clone(&self.client);
        let asked = RequestTakeOver { request: &request, left, mode: self.request.mode };
        let reply = client.servers.carry_out(&asked, self.patience(), &mut self.unanswered).await?;
        match reply.answer {
            Answer::Done(false) | Answer::KeptOut { .. } => Ok(Attempt::Busy(Busy::default())),
            // Several hold it, or stand in line for it.
            Answer::NoLock => {
                let holder = inspect_granted(&self.client, &self.names).await?;
                Ok(self.busy(None, holder.map(Box::new)))
            }
            _ => self.taken(&request, &reply).await,
        }
    }
}
