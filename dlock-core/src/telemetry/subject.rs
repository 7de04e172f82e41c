//! What an event is about: names only, so that telemetry knows nothing of the engine.

use crate::error::ErrorKind;
use crate::key::Key;
use crate::options::LEADER;

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

/// Returns OpenTelemetry's name of the database that a backend is a client of, where it has one.
pub(super) fn db_system(backend: &str) -> Option<&'static str> {
    // What follows a dash is how the lock is kept there.
    match backend.split('-').next()? {
        "mysql" => Some("mysql"),
        "postgres" => Some("postgresql"),
        "redis" => Some("redis"),
        "sqlite" => Some("sqlite"),
        _ => None,
    }
}

/// The outcome of an acquire that gave no lock, and what kind of error it is. A lock that is busy is none.
pub(super) const fn acquire_outcome(kind: ErrorKind) -> (&'static str, Option<ErrorKind>) {
    match kind {
        ErrorKind::Busy => ("busy", None),
        ErrorKind::TimedOut => ("timed_out", Some(kind)),
        _ => ("failed", Some(kind)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backends_that_are_databases_are_named_as_opentelemetry_names_them() {
        let named =
            ["redis", "postgres-session", "mysql-row", "sqlite", "zk", "quorum", "memory"].map(db_system);
        let expected = [Some("redis"), Some("postgresql"), Some("mysql"), Some("sqlite"), None, None, None];
        assert_eq!(named, expected);
    }
}
