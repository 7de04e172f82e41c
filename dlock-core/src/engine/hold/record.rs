//! The record that a hold leaves to the sink of its locks when it ends. Where there is no sink, this is one branch.

use super::Hold;
use crate::audit::{AuditedHold, HoldEnd};
use crate::clock::Timestamp;
use crate::telemetry::Loss;

impl Hold {
    /// Reports that the hold began.
    pub(super) fn audit_begin(&self) {
        if let Some(audit) = &self.engine.audit {
            audit.tell(|sink, locks| sink.hold_began(locks));
        }
    }

    /// Reads the clock for a record of an end that may follow, where there is a sink. Before the end: what is read
    /// later could be a moment at which `check` is not Ok any more.
    pub(super) fn audit_clock(&self) -> Option<Timestamp> {
        let ends_at = || self.session.as_ref().map_or(Timestamp::NEVER, |session| session.deadline());
        self.engine.audit.as_ref().map(|_| self.engine.clock.now().min(self.deadline()).min(ends_at()))
    }

    /// Reports that the hold has ended, which it does once: it could be relied on until `until`.
    pub(super) fn audit_end(&self, until: Timestamp, loss: Option<Loss>) {
        let Some(audit) = &self.engine.audit else { return };
        let end = match loss {
            Some(loss) => HoldEnd::Lost(loss.as_str()),
            None if self.is_carried() => HoldEnd::HandedOver,
            None => HoldEnd::Released,
        };
        // A grant that came after its deadline was never relied on.
        let until = until.max(self.acquired_at);
        audit.tell(|sink, locks| {
            sink.hold_ended(&AuditedHold {
                locks,
                key: &self.key,
                fence: self.fence(),
                mode: self.granted_mode(),
                passed_on: self.is_passed_on(),
                believed: (self.acquired_at, until),
                alone_until: self.alone_until().map(|at| at.clamp(self.acquired_at, until)),
                end,
            });
        });
    }
}
