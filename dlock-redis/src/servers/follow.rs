//! Which server is the master, as the sentinels say unasked.

use std::sync::Weak;
use std::time::Duration;

use dlock_core::backend::{sleep, within};
use redis::{PushInfo, PushKind};
use tokio::sync::mpsc;

use super::node::Node;

/// How often to look whether anybody still wants to know, and the pause before another sentinel is tried.
const GLANCE: Duration = Duration::from_secs(1);

/// Ends the connections to a server that the sentinels took the mastership from, as soon as they say so: such a server
/// may still take itself for the master.
pub(crate) async fn follow(node: Weak<Node>) {
    loop {
        let Some(strong) = node.upgrade() else { return };
        let (said, mut news) = mpsc::unbounded_channel();
        let followed = match strong.sentinels() {
            Some(sentinels) => sentinels.listen(said).await,
            None => return,
        };
        drop(strong);
        if let Ok(connection) = followed {
            // Between the look-ups of two connections it may have been somebody else's turn.
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
