//! What the claims of a backend share, and what goes on without them.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::notify::Channels;
use dlock_core::backend::{Turns, sleep};
use dlock_core::{Failure, keeper};
use etcd_client::{Txn, TxnOp};

use crate::answer::Answer;
use crate::semaphore::Number;
use crate::servers::{PATIENCE, Servers};

/// What the claims of a backend share.
pub(crate) struct Shared {
    pub(crate) servers: Arc<Servers>,
    pub(crate) channels: Channels,
    /// The claims that put their keys, for each directory in their order.
    pub(crate) turns: Turns,
}

impl Shared {
    /// Ends a lease in so long; if that fails, it ends by itself soon after.
    pub(crate) fn end_later(&self, id: i64, within: Duration) -> Result<(), Failure> {
        // Weak, so that this task does not keep the backend.
        let servers = Arc::downgrade(&self.servers);
        keeper::runtime()?.spawn(async move {
            sleep(within).await;
            if let Some(servers) = servers.upgrade() {
                let _ = servers.revoke(id, PATIENCE).await;
            }
        });
        Ok(())
    }

    /// Ends the lease that was made for a number of permits, unless the number is stored under it: it would stay for
    /// days. A request that still arrives stores nothing under a lease that has ended.
    pub(crate) fn end_unless_stored(&self, key: &str, lease: i64) {
        let (servers, key) = (Arc::downgrade(&self.servers), key.to_owned());
        let Ok(runtime) = keeper::runtime() else { return };
        runtime.spawn(async move {
            let Some(servers) = servers.upgrade() else { return };
            let look = Txn::new().and_then([TxnOp::get(&*key, None)]);
            let Ok(answer) = servers.txn(PATIENCE, look).await else { return };
            // Looked at first: the request that stores the number under this lease may have been carried out, although
            // its answer was lost.
            if Answer::of(&answer, &key).number.is_none_or(|number| number.lease != lease) {
                let _ = servers.revoke(lease, PATIENCE).await;
            }
        });
    }

    /// Writes a number of permits again, so that it is remembered from now on. If that fails, the next grant does it.
    pub(crate) fn remember(&self, key: &str, number: Number) {
        let (servers, key) = (Arc::clone(&self.servers), key.to_owned());
        if let Ok(runtime) = keeper::runtime() {
            runtime.spawn(async move {
                drop(servers.replace_number(PATIENCE, &key, number, number.permits).await);
            });
        }
    }
}
