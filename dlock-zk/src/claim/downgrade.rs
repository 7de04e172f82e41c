//! Downgrades a claim that holds its lock exclusively to a reader.

use std::time::SystemTime;

use dlock_core::backend::Renewed;
use dlock_core::{Failure, Fence};

use super::ZooKeeperClaim;
use crate::holder;
use crate::queue_node::downgrade::{Downgraded, Reader};

impl ZooKeeperClaim {
    /// Has the claim's node replaced by that of a reader. After an unknown outcome, the next call finds it out.
    pub(super) async fn downgrade_node(&mut self) -> Result<Renewed, Failure> {
        let until = self.patience();
        let Self { node: Some(node), request, sessions, entry: Some(entry), .. } = self else {
            return Ok(Renewed::Gone);
        };
        if node.session.ended().is_some() {
            return Ok(Renewed::Gone);
        }
        node.session.connected(until).await?;
        let Some(own) = node.node() else { return Ok(Renewed::Gone) };
        if node.recipe.reads(&own.name) {
            return Ok(Renewed::Extended);
        }
        let since = {
            let now = SystemTime::now();
            now.checked_sub(node.session.clock.now().since(own.known)).unwrap_or(now)
        };
        let fence = entry.fence().unwrap_or(own.czxid);
        let content = holder::reader(Fence::new(fence.cast_unsigned()), &request.describe_since(since));
        let Some(name) = node.recipe.downgraded(&own.name) else {
            return Ok(Renewed::Extended);
        };
        // Before the transaction is sent: from now on the lock may have either node.
        entry.moves(&node.path_of(&name).into());
        let downgraded = node.downgrade(&sessions.config().acl, Reader { name, content }, until).await;
        if downgraded.is_err() && !node.may_be_downgraded() {
            // The server refused it: the lock still has its own node only.
            entry.stays();
        }
        let downgraded = downgraded?;
        if let Downgraded::Reads { path, czxid } = &downgraded {
            entry.moved(path, *czxid);
        }
        Ok(Renewed::from(&downgraded))
    }
}
