//! Taking a lock over that was left for whoever brings its token.

use dlock_core::backend::{Attempt, Busy};
use dlock_core::{Failure, Token};

use super::RedisClaim;
use crate::administration::inspect_granted;
use crate::request::{Answer, ScriptKind, Step, Who};

impl RedisClaim {
    /// Tries for what was left under this token, and for nothing else.
    pub(super) async fn take_over(&mut self, left: Token) -> Result<Attempt, Failure> {
        self.names.check()?;
        let (lease, who) = (self.lease(), Who::of(&self.request));
        let step = Step::Acquire { lease, listens: false, who, fences: 1, prefers: false, mark: None };
        let request = self.request_of(ScriptKind::TakeOver { left }, step);
        let reply = self.acquire_by(&request).await?;
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
