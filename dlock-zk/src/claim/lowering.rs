//! A claim that has the lock alone, and goes on as a reader.

use std::time::SystemTime;

use dlock_core::backend::Renewed;
use dlock_core::{Failure, Fence};

use super::ZooKeeperClaim;
use crate::queue_node::lowering::{Lowered, Reader, content};

impl ZooKeeperClaim {
    /// Has the claim's node replaced by a reader's. Whatever is not known afterwards is asked for again.
    pub(super) async fn lower(&mut self) -> Result<Renewed, Failure> {
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
        let content = content(Fence::new(fence.cast_unsigned()), &request.describe_since(since));
        let Some(name) = node.recipe.lowered(&own.name) else {
            return Ok(Renewed::Extended);
        };
        // Its node may be another one at any moment.
        entry.moves(&node.path_of(&name).into());
        let lowered = node.lower(&sessions.config().acl, Reader { name, content }, until).await;
        if lowered.is_err() && !node.may_be_lowered() {
            // A server that refused has left its own node, whose end is that of the lock.
            entry.stays();
        }
        let lowered = lowered?;
        if let Lowered::Reads { path, czxid } = &lowered {
            entry.moved(path, *czxid);
        }
        Ok(Renewed::from(&lowered))
    }
}
