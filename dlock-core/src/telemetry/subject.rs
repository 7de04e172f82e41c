//! What an event is about: names only, so that telemetry knows nothing of the engine.

use crate::key::Key;

/// The mode of a lock whose holder leads.
pub(crate) const LEADER: &str = "leader";

/// Where in the program a lock is used: labels with few values, for spans and metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Site {
    /// The pattern the key was made from.
    pub(crate) template: Option<&'static str>,
    /// The function that the attribute stands on.
    pub(crate) function: Option<&'static str>,
    /// How it is held; `None` for the common way, which is alone.
    pub(crate) mode: Option<&'static str>,
}

impl Site {
    /// Whether who holds the lock leads.
    pub(super) fn leads(&self) -> bool {
        self.mode == Some(LEADER)
    }
}

/// The lock that something happens to.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) key: &'a Key,
    pub(crate) site: Site,
}

/// Knows who waits for locks in this process.
pub(crate) trait Waiters: Sync {
    /// Returns whether somebody waits for `key`.
    #[cfg_attr(not(feature = "otel"), expect(dead_code, reason = "only links between spans need it"))]
    fn has(&self, key: &Key) -> bool;
}
