//! The task that follows the sentinels' notifications of a new master.
//!
//! ```text
//!  upgrade the node ---> listen at a sentinel ---> ask for the master, leave all others
//!         ^                     | not reached             |         ^
//!         |                     v                         v         | +switch-master
//!         '------- pause -------+<---- disconnected ---- wait ------'
//! ```
//!
//! The task ends when the node is dropped, which it looks for every second.

use std::sync::Weak;
use std::time::Duration;

use dlock_core::backend::{sleep, within};
use redis::{PushInfo, PushKind};
use tokio::sync::mpsc;

use super::node::Node;

/// The interval at which the task looks whether the node still exists, and the pause before another sentinel is tried.
const GLANCE: Duration = Duration::from_secs(1);

/// Ends the connections to a former master as soon as the sentinels name another one: the former master may still
/// accept writes.
pub(crate) async fn follow(node: Weak<Node>) {
    loop {
        let Some(strong) = node.upgrade() else { return };
        let (said, mut news) = mpsc::unbounded_channel();
        let followed = match strong.sentinels() {
            Some(sentinels) => sentinels.listen(said).await,
            None => return,
        };
        // While it waits, the task does not keep the node alive.
        drop(strong);
        if let Ok(connection) = followed {
            // The master may have changed while no sentinel was listened to, so it is asked for at once.
            let mut changed = true;
            loop {
                if changed {
                    let Some(node) = node.upgrade() else { return };
                    if let Some(sentinels) = node.sentinels()
                        && let Ok(master) = sentinels.master().await
                    {
                        node.leave(&master);
                    }
                }
                match within(GLANCE, news.recv()).await {
                    Some(Some(PushInfo { kind: PushKind::Disconnection, .. }) | None) => break,
                    Some(Some(PushInfo { kind, .. })) => changed = kind == PushKind::Message,
                    None if node.strong_count() == 0 => return,
                    None => changed = false,
                }
            }
            drop(connection);
        }
        sleep(GLANCE).await;
    }
}
