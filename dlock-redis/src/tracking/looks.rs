//! Looks at locks that others change too: readers, permits, and what is waited for in line.
//!
//! Such a lock changes whenever one of them comes, goes, renews or asks. A look reads whether this client's holds are
//! there, over the connection that is tracked, and changes nothing, so that it causes no other one. Only a hold that it
//! does not find is renewed, which says what has become of it. One look is for all holds of this client under a name.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Signal, within};
use futures_util::future::BoxFuture;
use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::request::Probe;

/// The pause after the first look. It doubles from each to the next, up to a twelfth of the lease, and is as short
/// again after two pauses without a look.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// How long an answer to a look is waited for at the most.
const PATIENCE: Duration = Duration::from_secs(5);
/// So many probes share a call, unless one hold has more: none is to keep the server from others for long.
const AT_ONCE: usize = 256;

/// Asks whether each of these finds something, over a connection that is tracked; `None` where nothing can be learned.
pub(crate) type Ask =
    Box<dyn Fn(Vec<Probe>, Duration) -> BoxFuture<'static, Option<Vec<bool>>> + Send + Sync>;

/// What shows that a claim has what it holds.
pub(crate) struct Probes {
    /// Where the claim is renewed.
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
    /// The names whose changes matter.
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

/// A hold, and how to see what a change means to it.
#[derive(Clone, Debug)]
pub(super) struct Watched {
    pub(super) signal: Signal,
    /// What shows that it has the lock still, where others change the lock too.
    pub(super) probes: Option<Arc<Probes>>,
}

/// When what has one name is looked at.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// A change that no look has seen that was sent since.
    pub(super) asked: bool,
    /// A task looks at it, and goes on as long as it is asked to.
    pub(super) under_way: bool,
    not_before: Option<Instant>,
    pause: Duration,
}

impl Pace {
    /// Notes a change; whether somebody has to begin to look.
    pub(super) fn ask(&mut self) -> bool {
        self.asked = true;
        !std::mem::replace(&mut self.under_way, true)
    }

    /// Whether a look is asked for, and when it may be.
    pub(super) fn due(&self) -> Option<Instant> {
        self.asked.then(|| self.not_before.unwrap_or_else(Instant::now))
    }

    /// Notes that a look is about to be sent.
    pub(super) fn looks(&mut self, longest: Duration) {
        let now = Instant::now();
        let quiet = self.not_before.is_none_or(|not_before| now > not_before + self.pause);
        self.pause = if quiet { FIRST_PAUSE } else { (self.pause * 2).min(longest).max(FIRST_PAUSE) };
        self.asked = false;
        self.not_before = Some(now + self.pause);
    }
}

/// The holds in parts that share a call.
pub(super) fn parts(holds: &[Watched]) -> impl Iterator<Item = &[Watched]> {
    let mut rest = holds;
    std::iter::from_fn(move || {
        let mut probes = 0;
        let fits = |hold: &&Watched| {
            let before = probes;
            probes += hold.probes.as_ref().map_or(0, |probes| probes.list.len());
            before == 0 || probes <= AT_ONCE
        };
        let count = rest.iter().take_while(fits).count();
        let (part, others) = rest.split_at(count);
        rest = others;
        (!part.is_empty()).then_some(part)
    })
}

/// Looks at these, and returns those that are to be renewed: all of them where nothing can be learned.
pub(super) async fn look_at(holds: &[Watched]) -> Vec<&Watched> {
    let each = || holds.iter().flat_map(|hold| hold.probes.as_deref().map(|probes| (hold, probes)));
    let Some((_, first)) = each().next() else { return Vec::new() };
    let list = each().flat_map(|(_, probes)| probes.list.iter().cloned()).collect();
    let patience = (first.lease / 4).min(PATIENCE);
    let asked = within(patience, (first.ask)(list, patience)).await;
    let Some(Some(found)) = asked else { return holds.iter().collect() };
    let (mut found, mut gone) = (&found[..], Vec::new());
    for (hold, probes) in each() {
        let (here, others) = found.split_at(probes.list.len().min(found.len()));
        found = others;
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
