//! Announcements of a memory's elections.

use futures_util::stream::unfold;
use tokio::sync::broadcast::Sender;
use tokio::sync::broadcast::error::RecvError;

use crate::backend::Announcements;
use crate::guarded::guard;
use crate::key::Key;

/// The keys that are announced. Each observer receives those of all elections, which are few, so that no subscription
/// has to be removed for an observer that is dropped.
pub(super) struct Announced(Sender<Key>);

impl Default for Announced {
    fn default() -> Self {
        Self(Sender::new(16))
    }
}

impl Announced {
    pub(super) fn announce(&self, key: &Key) {
        // Without an observer nothing is sent, which is no failure.
        let _ = guard(|| self.0.send(key.clone()));
    }

    pub(super) fn subscribe(&self, key: Key) -> Announcements {
        Announcements::new(unfold((self.0.subscribe(), key), |(mut announced, key)| async move {
            loop {
                match announced.recv().await {
                    Ok(of) if of != key => {}
                    Err(RecvError::Closed) => return None,
                    Ok(_) | Err(RecvError::Lagged(_)) => return Some(((), (announced, key))),
                }
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use crate::{Locks, Memory};

    #[tokio::test(start_paused = true)]
    async fn an_observer_that_is_dropped_leaves_no_subscription() {
        let memory = Memory::new();
        let listening = || memory.0.announced.0.receiver_count();
        let mut changes = Locks::new(memory.clone()).election("k").changes();
        assert_eq!(listening(), 0, "the observer has not asked yet");
        assert!(changes.next().await.unwrap().is_none());
        assert_eq!(listening(), 1);
        let next = tokio::time::timeout(std::time::Duration::from_secs(5), changes.next()).await;
        assert!(next.is_err() && listening() == 1, "one subscription for all its requests");
        drop(changes);
        assert_eq!(listening(), 0);
    }
}
