//! Which connections a request may be under way on.

use std::sync::Arc;

use super::{Connection, Route};

/// Keeps account of the connections that a request may be under way on.
pub(crate) trait Track: Send {
    /// Whether an answer is overdue on this connection.
    fn awaits(&self, connection: &Arc<Connection>) -> bool;
    /// Notes that a request is about to go over this connection.
    fn before(&mut self, route: &Route);
    /// Notes that it was not sent after all.
    fn unsent(&mut self, route: &Route);
    /// Notes that everything that went over this connection has been answered.
    fn after(&mut self, route: &Route);
}

/// Keeps no account.
pub(crate) struct Untracked;

impl Track for Untracked {
    fn awaits(&self, _: &Arc<Connection>) -> bool {
        false
    }
    fn before(&mut self, _: &Route) {}
    fn unsent(&mut self, _: &Route) {}
    fn after(&mut self, _: &Route) {}
}
