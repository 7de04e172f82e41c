//! Servers that refuse requests which they may well be asked: a password was rotated, a right removed, a table renamed.
//!
//! An operator can mend that within seconds, so that nothing that goes on for long ends by it. A warning reports it,
//! and the servers are asked again, more and more rarely.
//!
//! | `refused` | at a refusal | at an answer |
//! |---|---|---|
//! | no | set, and a pause of up to 1 s | stays so |
//! | yes | a pause twice as long, up to 30 s | cleared and reported; the next pause is short again |

use std::time::Duration;

use crate::backend::PauseLimit;
use crate::engine::Engine;
use crate::error::Failure;
use crate::telemetry::Site;

/// The refusals that one wait meets.
pub(crate) struct Refusals<'a> {
    engine: &'a Engine,
    site: Site,
    pauses: PauseLimit,
    /// Is `true` if the last answer was a refusal.
    refused: bool,
}

impl<'a> Refusals<'a> {
    pub(crate) fn new(engine: &'a Engine, site: Site) -> Self {
        Self { engine, site, pauses: PauseLimit::of_refusals(), refused: false }
    }

    /// Reports a refusal, and returns how long to pause after it.
    pub(crate) fn pause(&mut self, failure: &Failure) -> Duration {
        self.refused = true;
        self.engine.telemetry.refused(self.site, failure);
        self.pauses.pause(self.engine.entropy.fraction())
    }

    /// Is `true` if the servers refused the last request.
    pub(crate) const fn last(&self) -> bool {
        self.refused
    }

    /// Notes that the servers answered.
    pub(crate) fn are_over(&mut self) {
        // Each answer comes here, and only the first after a refusal is worth a report.
        if std::mem::take(&mut self.refused) {
            self.pauses = PauseLimit::of_refusals();
            self.engine.telemetry.refusals_over();
        }
    }
}
