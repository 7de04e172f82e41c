//! What is done on other connections than those that keep locks.

use dlock_core::Fence;

use super::{Name, RowServer, SessionServer, Wanted};
use crate::rows::Step;
use crate::server::{Conn, SqlResult};

/// Says which session answers.
pub(super) struct WhoAmI;

impl<S: SessionServer> Step<S> for WhoAmI {
    type Reply = i64;

    async fn perform(&self, _: &S, on: &mut Conn<S>) -> SqlResult<i64> {
        S::ping(on).await
    }
}

/// Counts a grant to a session, and says with which fence.
pub(super) struct Count(pub(super) Wanted, pub(super) i64);

impl<S: RowServer> Step<S> for Count {
    type Reply = Fence;

    async fn perform(&self, server: &S, on: &mut Conn<S>) -> SqlResult<Fence> {
        server.count(on, &self.0, self.1).await
    }
}

/// Makes a row that is to be locked; whether it was missing.
pub(super) struct MakeRow(pub(super) Name);

impl<S: RowServer> Step<S> for MakeRow {
    type Reply = bool;

    async fn perform(&self, server: &S, on: &mut Conn<S>) -> SqlResult<bool> {
        server.make_row(on, &self.0).await
    }
}
