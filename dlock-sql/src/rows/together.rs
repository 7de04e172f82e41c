//! Attempts and releases of which several go out in one statement.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Failure, Holder, Key, Token};

use super::lease_table::LeaseTable;
use super::steps::{Release, ReleaseAll, TakeAll};
use crate::gateway::{Connections, Joint, Kind, Lane, Line, Progress, ask_together};
use crate::limits::Limits;
use crate::protocol::{Ask, Released, Taken};
use crate::stored;

impl Ask {
    /// Who has the lock after this attempt, as far as is known.
    pub(super) fn seen_by_others(&self, taken: &Taken) -> Option<Box<Holder>> {
        match taken {
            Taken::Granted(fence) => {
                // One that is not known is below zero in a row.
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

    fn line(lane: &Lane<S>) -> &Line<Self, Taken> {
        &lane.takes
    }

    fn key(&self) -> &Key {
        &self.key
    }

    fn all(requests: &[&Self]) -> TakeAll {
        TakeAll(requests.iter().copied().cloned().collect())
    }

    fn after(&self, first: &Self, reply: &Taken) -> Option<Taken> {
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

    fn line(lane: &Lane<S>) -> &Line<Self, Released> {
        &lane.releases
    }

    fn key(&self) -> &Key {
        &self.0
    }

    fn all(requests: &[&Self]) -> ReleaseAll {
        ReleaseAll(requests.iter().copied().cloned().collect())
    }

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
    let route = connections.route(Kind::Release);
    if let Some(lane) = route.line().filter(|_| S::TOGETHER > 1) {
        let (limits, progress) = (Limits::of(limit, limit), Arc::new(Progress::new()));
        let released = ask_together(connections, &lane, (key.clone(), *token), limits, &progress).await?;
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
