//! The take-over of a lock that was left for the bearer of a token.

use dlock_core::backend::{Attempt, Busy};
use dlock_core::{Failure, Token};

use super::RedisClaim;
use crate::administration::inspect_granted;
use crate::request::{Answer, ScriptKind, Step, Who};

impl RedisClaim {
    /// Tries to take over the lock that was left under the token `left`, and takes no free lock.
    pub(super) async fn take_over(&mut self, left: Token) -> Result<Attempt, Failure> {
        self.names.check()?;
        let (lease, who) = (self.lease(), Who::of(&self.request));
        let step = Step::Acquire { lease, listens: false, who, fences: 1, prefers: false, mark: None };
        let request = self.request_of(ScriptKind::TakeOver { left }, step);
        let reply = self.acquire_by(&request).await?;
        match reply.answer {
            Answer::Done(false) | Answer::KeptOut { .. } => Ok(Attempt::Busy(Busy::default())),
            // The key is a hash: several clients hold the lock, or wait for it in a queue.
            Answer::NoLock => {
                let holder = inspect_granted(&self.client, &self.names).await?;
                Ok(self.busy(None, holder.map(Box::new)))
            }
            _ => self.taken(&request, &reply).await,
        }
    }
}
