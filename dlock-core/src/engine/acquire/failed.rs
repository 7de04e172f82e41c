//! What an acquire does after an attempt that took nothing, since the servers were away or refused.

use std::time::Duration;

use super::Acquire;
use crate::engine::refusals::Refusals;
use crate::error::Failure;

impl Acquire<'_> {
    /// Whether it waits on after an attempt that took nothing: while the servers are away, and while they refuse what
    /// they allowed when the wait began.
    pub(super) fn goes_on_after(&self, failure: &Failure) -> bool {
        self.waits && (failure.is_transient() || self.was_busy && failure.kind().is_revocation())
    }

    /// How long it pauses then.
    pub(super) fn pause_after_failure(&mut self, failure: &Failure) -> Duration {
        if failure.is_transient() {
            return self.failures.pause(self.engine.entropy.fraction());
        }
        let refusals = self
            .refusals
            .get_or_insert_with(|| Box::new(Refusals::new(self.engine, self.specs[self.place].site)));
        refusals.pause(failure)
    }
}
