//! The account of the connections on which a request may be under way.

use std::sync::Arc;

use super::{Connection, Route};

/// Keeps account of the connections on which a request may be under way.
pub(crate) trait Track: Send {
    /// Returns `true` if an answer is overdue on this connection.
    fn awaits(&self, connection: &Arc<Connection>) -> bool;
    /// Notes that a request is about to be sent over this connection.
    fn before(&mut self, route: &Route);
    /// Notes that the request was not sent after all.
    fn unsent(&mut self, route: &Route);
    /// Notes that every request on this connection was answered.
    fn after(&mut self, route: &Route);
}

/// The account of requests that take nothing: none is kept.
pub(crate) struct Untracked;

impl Track for Untracked {
    fn awaits(&self, _: &Arc<Connection>) -> bool {
        false
    }
    // Nothing is withdrawn, so that it does not matter what is under way.
    fn before(&mut self, _: &Route) {}
    fn unsent(&mut self, _: &Route) {}
    fn after(&mut self, _: &Route) {}
}
