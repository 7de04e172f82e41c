//! Attempts and releases of which several go out in one statement.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Failure, Holder, Key, Token};

use super::lease_table::LeaseTable;
use super::steps::{Release, ReleaseAll, TakeAll};
use crate::gateway::{Connections, Joint, Kind, PendingBatch, Progress, RuntimePool, ask_together};
use crate::limits::Limits;
use crate::protocol::{Ask, Released, Taken};
use crate::stored;

impl Ask {
    /// Returns the holder of the lock after this attempt, as far as is known.
    pub(super) fn seen_by_others(&self, taken: &Taken) -> Option<Box<Holder>> {
        match taken {
            Taken::Granted(fence) => {
                // An unknown fence is below zero in a row.
                let fence = fence.and_then(|fence| i64::try_from(fence.get()).ok()).unwrap_or(-1);
                Some(Box::new(stored::holder(&self.holder, fence, self.lease)))
            }
            Taken::Busy(holder) => holder.clone(),
            Taken::Elsewhere(_) | Taken::Uncounted => None,
        }
    }
}

impl<S: LeaseTable> Joint<S> for Ask {
    const KIND: Kind = Kind::Ordinary;
    const AT_ONCE: usize = S::TOGETHER;
    type Reply = Taken;
    type All = TakeAll;

    fn pending(runtime_pool: &RuntimePool<S>) -> &PendingBatch<Self, Taken> {
        &runtime_pool.takes
    }

    fn key(&self) -> &Key {
        &self.key
    }

    fn all(requests: &[&Self]) -> TakeAll {
        TakeAll(requests.iter().copied().cloned().collect())
    }

    fn after(&self, first: &Self, reply: &Taken) -> Option<Taken> {
        // With another token the lock is the first one's. That of the same claim can only be an earlier attempt of its
        // own.
        Some(match reply {
            Taken::Granted(fence) if self.token == first.token => Taken::Granted(*fence),
            Taken::Elsewhere(way) => Taken::Elsewhere(*way),
            taken => Taken::Busy(first.seen_by_others(taken)),
        })
    }
}

impl<S: LeaseTable> Joint<S> for (Key, Token) {
    const KIND: Kind = Kind::Release;
    const AT_ONCE: usize = S::TOGETHER;
    type Reply = Released;
    type All = ReleaseAll;

    fn pending(runtime_pool: &RuntimePool<S>) -> &PendingBatch<Self, Released> {
        &runtime_pool.releases
    }

    fn key(&self) -> &Key {
        &self.0
    }

    fn all(requests: &[&Self]) -> ReleaseAll {
        ReleaseAll(requests.iter().copied().cloned().collect())
    }

    // A second release has nothing to follow from the first: it is sent.
    fn after(&self, _: &Self, _: &Released) -> Option<Released> {
        None
    }
}

/// Releases a lock: at once where a connection can be written to, and together with others otherwise, where the server
/// can do that.
pub(super) async fn release_together<S: LeaseTable>(
    connections: &Arc<Connections<S>>,
    key: &Key,
    token: &Token,
    limit: Duration,
) -> Result<Option<Released>, Failure> {
    // Decided once: the same route serves both ways of sending.
    let route = connections.route(Kind::Release);
    if let Some(runtime_pool) = route.batching_pool().filter(|_| S::TOGETHER > 1) {
        let (limits, progress) = (Limits::of(limit, limit), Arc::new(Progress::new()));
        let released =
            ask_together(connections, &runtime_pool, (key.clone(), *token), limits, &progress).await?;
        // No answer: the release was not sent with the others, or the row was not found by their statement. It goes by
        // itself.
        if released.is_some() {
            return Ok(released);
        }
    }
    connections.within_on(route, Release(key.clone(), *token), limit).await
}

#[cfg(test)]
mod tests {
    use dlock_core::Fence;

    use super::*;

    #[test]
    fn the_fence_of_a_grant_that_has_none_is_none_for_the_others_too() {
        let (key, token, lease) = (Key::new("k").unwrap(), Token::random().unwrap(), Duration::from_secs(30));
        let ask = Ask { key, token, lease, holder: "host=h".to_owned(), fences: 1 };
        let seen = |fence| ask.seen_by_others(&Taken::Granted(fence)).unwrap().fence;
        assert_eq!(seen(None), None);
        assert_eq!(seen(Some(Fence::new(9))), Some(Fence::new(9)));
    }
}
