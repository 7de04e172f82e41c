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
        // The node is kept only while the task works with it; its drop is what ends the task.
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
                        // A failure is no reason to end connections: the sentinels may be gone while the master is
                        // there.
                        && let Ok(master) = sentinels.master().await
                    {
                        node.leave(&master);
                    }
                }
                match within(GLANCE, news.recv()).await {
                    Some(Some(PushInfo { kind: PushKind::Disconnection, .. }) | None) => break,
                    Some(Some(PushInfo { kind, .. })) => changed = kind == PushKind::Message,
                    None if node.strong_count() == 0 => return,
                    // No news within a second. What a lost message would have said is found when the connection ends.
                    None => changed = false,
                }
            }
            drop(connection);
        }
        sleep(GLANCE).await;
    }
}
