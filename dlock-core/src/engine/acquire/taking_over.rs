//! An acquire that brings a baton, which is of no use a second time.

use super::Acquire;
use crate::clock::Timestamp;
use crate::options::margin;

impl Acquire<'_> {
    /// Whether it brings a baton.
    pub(super) fn takes_over(&self) -> bool {
        self.specs.iter().any(|spec| spec.options.takes_over.is_some())
    }

    /// Whether the lease of what was granted to a request sent then may have ended by the server's clock.
    pub(super) fn outlived(&self, sent: Timestamp) -> bool {
        let lease = self.specs[self.place].options.lease;
        self.engine.clock.now().since(sent) >= lease.saturating_sub(margin(lease))
    }
}
