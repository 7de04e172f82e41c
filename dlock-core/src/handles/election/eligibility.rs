//! The switch for whether a process may lead.

use std::fmt;
use std::sync::{Arc, Weak};

use crate::engine::hold::Hold;
use crate::guarded::wake_all;
use crate::sync::{Mutex, Notify};
use crate::telemetry::Loss;

/// A switch for whether this process may lead: off while it drains, while its cache is cold, while it is in the wrong
/// zone. Clones are the same switch, and any number of [elections](crate::Election) may have it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
/// use dlock_core::{Eligibility, Locks, Memory};
///
/// let locks = Locks::new(Memory::new());
/// let eligibility = Eligibility::new();
/// let mut campaign = locks.election("billing").with_eligibility(&eligibility).campaign();
/// let term = campaign.next().await.expect("nobody else stands");
/// eligibility.set(false);
/// assert!(term.check().is_err(), "it gave up its term");
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Eligibility(Arc<Switch>);

struct Switch {
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    eligible: bool,
    /// The terms that end when it is switched off.
    terms: Vec<Weak<Hold>>,
}

impl Eligibility {
    /// Creates a switch that is on.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Switch {
            state: Mutex::new(State { eligible: true, terms: Vec::new() }),
            changed: Notify::new(),
        }))
    }

    /// Sets whether this process may lead. Takes effect before it returns, needs no runtime and makes no request.
    ///
    /// * Off: a campaign that waits withdraws. A term ends as by a loss, so that its body is dropped at its current
    ///   await, and is resigned once the body is gone. A term that is used by hand counts as lost at once; if its owner
    ///   keeps it all the same, others lead when its lease ends.
    /// * On: the campaigns stand again, as newcomers.
    pub fn set(&self, eligible: bool) {
        // Set before the terms are lost: a term that begins meanwhile finds the switch off.
        let ended = {
            let mut state = self.0.state.lock();
            state.eligible = eligible;
            if eligible { Vec::new() } else { std::mem::take(&mut state.terms) }
        };
        for hold in ended.iter().filter_map(Weak::upgrade) {
            hold.lose_by(Loss::Ineligible);
        }
        wake_all(&self.0.changed);
    }

    /// Returns whether this process may lead.
    #[must_use]
    pub fn is_eligible(&self) -> bool {
        self.0.state.lock().eligible
    }

    /// Resolves when the switch is in this position.
    pub(super) async fn becomes(&self, eligible: bool) {
        loop {
            let changed = self.0.changed.notified();
            if self.is_eligible() == eligible {
                return;
            }
            changed.await;
        }
    }

    /// Lists a term that begins, unless the switch is off by now.
    pub(super) fn admit(&self, hold: &Arc<Hold>) -> bool {
        let mut state = self.0.state.lock();
        if state.eligible {
            state.terms.retain(|term| term.strong_count() > 0);
            state.terms.push(Arc::downgrade(hold));
        }
        state.eligible
    }
}

impl Default for Eligibility {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Eligibility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Eligibility").field(&self.is_eligible()).finish()
    }
}
