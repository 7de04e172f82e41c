//! What an acquire does after an attempt that took nothing, since the servers were away or refused.

use std::time::Duration;

use super::Acquire;
use crate::backend::Busy;
use crate::engine::refusals::Refusals;
use crate::error::Failure;
use crate::holder::Holder;
use crate::options::Role;

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

    /// Whether a job finds that it was run, which ends its wait: what a run has left is there for the window.
    pub(super) fn finds_a_run(&self, busy: &Busy) -> bool {
        let is_left = busy.holder.as_ref().is_some_and(|holder| holder.left_behind);
        is_left && self.specs[0].options.role == Some(Role::Job)
    }

    /// Somebody else has what is wanted.
    pub(super) fn note_busy(&mut self, busy: Busy) {
        self.span.busy(busy.holder.as_deref(), busy.retry_after);
        if busy.requeued {
            self.span.requeued();
        }
        let fence = |holder: Option<&Holder>| holder.and_then(|holder| holder.fence);
        let (before, now) = (fence(self.holder.as_ref()), fence(busy.holder.as_deref()));
        // Of many it may be the holder of another one.
        self.changed_hands = self.specs.len() == 1 && before.is_some() && now.is_some() && before != now;
        if self.specs.len() > 1 || busy.holder.is_some() {
            self.holder = busy.holder.map(|holder| *holder);
        }
    }
}
