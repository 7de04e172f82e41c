//! The subject of an event: names only, so that telemetry knows nothing of the engine.

use crate::error::ErrorKind;
use crate::key::Key;
use crate::options::LEADER;

/// The place in the program at which a lock is used: labels with few values, for spans and metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Site {
    /// The pattern the key was made from.
    pub(crate) template: Option<&'static str>,
    /// The function that the attribute stands on.
    pub(crate) function: Option<&'static str>,
    /// The mode in which the lock is held; `None` for the common one, which is exclusive.
    pub(crate) mode: Option<&'static str>,
}

impl Site {
    /// Is `true` if the holder of the lock leads.
    pub(super) fn leads(&self) -> bool {
        self.mode == Some(LEADER)
    }
}

/// The lock that an event is about.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) key: &'a Key,
    pub(crate) site: Site,
}

/// The waiters for locks in this process.
pub(crate) trait Waiters: Sync {
    /// Returns whether an acquire waits for `key`.
    #[cfg_attr(not(feature = "otel"), expect(dead_code, reason = "only links between spans need it"))]
    fn has(&self, key: &Key) -> bool;
}

/// Returns OpenTelemetry's name of the database that a backend is a client of, where it has one.
pub(super) fn db_system(backend: &str) -> Option<&'static str> {
    // The part after a dash is the way in which the lock is kept there.
    match backend.split('-').next()? {
        "mysql" => Some("mysql"),
        "postgres" => Some("postgresql"),
        "redis" => Some("redis"),
        "sqlite" => Some("sqlite"),
        _ => None,
    }
}

/// Returns the outcome of an acquire that gave no lock, and the kind of error. A busy lock is no error.
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
