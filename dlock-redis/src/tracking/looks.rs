//! Looks at locks that other clients change too: of readers, of permits, and with a queue of waiters.
//!
//! Such a lock changes whenever one of its holders or waiters comes, goes, renews or asks. A look reads whether this
//! client's holds are there, over the tracked connection, and changes nothing, so that it causes no other look. Only a
//! hold that it does not find is renewed, and the answer says what has become of it. One look serves all holds of this
//! client under a name.
//!
//! | [`Pace`] | `asked` | `under_way` | becomes |
//! |---|---|---|---|
//! | quiet | no | no | due at a change (`ask`), which starts a task |
//! | due | yes | yes | looking, once the pause is over (`looks`) |
//! | looking | no | yes | due at a change; quiet at the end of the look, and the task ends |

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Signal, within};
use futures_util::future::BoxFuture;
use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::request::Probe;

/// The pause after the first look. It doubles from look to look, up to a twelfth of the lease, and is this short again
/// after two pauses without a look.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest wait for the answer to a look.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most probes in one call, unless one hold has more. A larger call would keep the server from its other clients
/// for too long.
const AT_ONCE: usize = 256;

/// Asks over a tracked connection whether each probe finds its hold. Returns `None` if nothing can be learned.
pub(crate) type Ask =
    Box<dyn Fn(Vec<Probe>, Duration) -> BoxFuture<'static, Option<Vec<bool>>> + Send + Sync>;

/// The reads that show whether a claim still has what it holds.
pub(crate) struct Probes {
    /// The runtime on which the claim is renewed.
    pub(crate) runtime: Option<Handle>,
    pub(crate) lease: Duration,
    pub(crate) list: Vec<Probe>,
    pub(crate) ask: Ask,
}

impl fmt::Debug for Probes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probes").field("list", &self.list).finish_non_exhaustive()
    }
}

impl Probes {
    /// Returns the names whose changes concern the hold.
    pub(super) fn names(&self) -> SmallVec<[Arc<str>; 1]> {
        let mut names = SmallVec::new();
        for probe in &self.list {
            if !names.contains(&probe.name) {
                names.push(Arc::clone(&probe.name));
            }
        }
        names
    }
}

/// A hold, and the probes that show what a change means to it.
#[derive(Clone, Debug)]
pub(super) struct Watched {
    pub(super) signal: Signal,
    /// The probes of a hold whose lock other clients change too. `None` for an exclusive lock.
    pub(super) probes: Option<Arc<Probes>>,
}

/// The times at which one name is looked at.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// `true` if a change was noted after the last look was sent.
    pub(super) asked: bool,
    /// `true` while a task looks at the name.
    pub(super) under_way: bool,
    not_before: Option<Instant>,
    pause: Duration,
}

impl Pace {
    /// Notes a change. Returns `true` if the caller has to start a task that looks.
    pub(super) fn ask(&mut self) -> bool {
        self.asked = true;
        !std::mem::replace(&mut self.under_way, true)
    }

    /// Returns the earliest time of the next look, if one is asked for.
    pub(super) fn due(&self) -> Option<Instant> {
        self.asked.then(|| self.not_before.unwrap_or_else(Instant::now))
    }

    /// Notes that a look is about to be sent.
    pub(super) fn looks(&mut self, longest: Duration) {
        let now = Instant::now();
        // Two pauses: one until the next look was allowed, and one more in which none was asked for.
        let quiet = self.not_before.is_none_or(|not_before| now > not_before + self.pause);
        self.pause = if quiet { FIRST_PAUSE } else { (self.pause * 2).min(longest).max(FIRST_PAUSE) };
        self.asked = false;
        self.not_before = Some(now + self.pause);
    }
}

/// Splits the holds into the parts that share a call.
pub(super) fn parts(holds: &[Watched]) -> impl Iterator<Item = &[Watched]> {
    let mut rest = holds;
    std::iter::from_fn(move || {
        let mut probes = 0;
        let fits = |hold: &&Watched| {
            let before = probes;
            probes += hold.probes.as_ref().map_or(0, |probes| probes.list.len());
            // A hold with more probes than fit is a part by itself: one that fits nowhere would never be looked at.
            before == 0 || probes <= AT_ONCE
        };
        let count = rest.iter().take_while(fits).count();
        let (part, others) = rest.split_at(count);
        rest = others;
        (!part.is_empty()).then_some(part)
    })
}

/// Looks at these holds and returns those to renew: all of them if nothing can be learned.
pub(super) async fn look_at(holds: &[Watched]) -> Vec<&Watched> {
    let each = || holds.iter().flat_map(|hold| hold.probes.as_deref().map(|probes| (hold, probes)));
    // The first hold asks for all: the holds under one name are of one client and so of one server.
    let Some((_, first)) = each().next() else { return Vec::new() };
    let list = each().flat_map(|(_, probes)| probes.list.iter().cloned()).collect();
    // Late enough for a slow server, and early enough for a renewal to follow within the lease.
    let patience = (first.lease / 4).min(PATIENCE);
    let asked = within(patience, (first.ask)(list, patience)).await;
    // A renewal asks the server too, and has the engine's handling of unknown outcomes.
    let Some(Some(found)) = asked else { return holds.iter().collect() };
    let (mut found, mut gone) = (&found[..], Vec::new());
    for (hold, probes) in each() {
        let (here, others) = found.split_at(probes.list.len().min(found.len()));
        found = others;
        // A reply that is too short leaves holds without an answer, which are not taken for gone: their renewals find
        // out.
        if here.contains(&false) {
            gone.push(hold);
        }
    }
    gone
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn looks_at_what_changes_again_and_again_have_growing_pauses() {
        let (mut pace, longest) = (Pace::default(), Duration::from_millis(150));
        assert!(pace.ask() && !pace.ask(), "one task looks");
        let mut pauses = Vec::new();
        for _ in 0..4 {
            let due = pace.due().unwrap();
            pauses.push(due - Instant::now());
            tokio::time::sleep_until(due).await;
            pace.looks(longest);
            assert_eq!(pace.due(), None, "nothing has changed since");
            pace.ask();
        }
        assert_eq!(pauses, [0, 50, 100, 150].map(Duration::from_millis));
        tokio::time::sleep(longest * 2 + Duration::from_millis(1)).await;
        pace.looks(longest);
        assert_eq!(pace.pause, FIRST_PAUSE, "it was quiet");
    }
}
