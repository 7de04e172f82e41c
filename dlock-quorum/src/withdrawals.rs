//! The votes that are still to be released on one node.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Backoff, ClaimRequest, Entropy, Mutex, sleep, within};
use dlock_core::{Failure, Timestamp};
use futures_util::future::join_all;

use crate::vote::Vote;

/// The largest number of votes that are kept for a node that does not answer. The oldest ones are then left to their
/// leases, where they have any.
const MOST: usize = 1_024;

/// The number of requests that a node that answers gets at a time; a node that does not gets one.
const AT_ONCE: usize = 16;

/// The votes that one node has not released yet. Whatever their number, a node that does not answer costs one request
/// at a time, with pauses that grow.
#[derive(Debug, Default)]
pub(crate) struct Withdrawals(Mutex<WithdrawalQueue>);

#[derive(Debug, Default)]
struct WithdrawalQueue {
    left: VecDeque<Left>,
    is_served: bool,
}

/// A vote that was left to be released.
struct Left {
    vote: Arc<Vote>,
    /// The time at which its lease has ended it anyway.
    until: Timestamp,
    limit: Duration,
}

impl std::fmt::Debug for Left {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Left").field("until", &self.until).finish_non_exhaustive()
    }
}

impl Withdrawals {
    /// Releases the vote on the node in the background, with requests of up to `limit`, until nothing is left or the
    /// lease ended it. Closes the vote first.
    pub(crate) fn clean_up(
        self: &Arc<Self>,
        vote: &Arc<Vote>,
        limit: Duration,
        request: &ClaimRequest,
    ) -> Result<(), Failure> {
        let Some(until) = vote.queue(limit) else { return Ok(()) };
        let (is_served, too_many) = {
            let mut queue = self.0.lock();
            // Queued and marked as served in one step: the task that serves the queue ends only under this lock, with
            // an empty one.
            queue.left.push_back(Left { vote: Arc::clone(vote), until, limit });
            let is_served = std::mem::replace(&mut queue.is_served, true);
            // A session's vote never ends by itself, and is kept whatever the number.
            let too_many = queue.left.len() > MOST && until != Timestamp::NEVER;
            (is_served, if too_many { queue.left.pop_front() } else { None })
        };
        if let Some(left) = too_many {
            left.vote.leave_to_lease("it does not answer, and too many locks are to be released there");
        }
        if is_served {
            return Ok(());
        }
        let serving = Arc::clone(self).serve(request.entropy.clone());
        request.host.spawn(serving).inspect_err(|_| {
            let mut queue = self.0.lock();
            queue.is_served = false;
            queue.left.retain(|left| !Arc::ptr_eq(&left.vote, vote));
            drop(queue);
            vote.unqueue();
        })
    }

    /// Takes up to `most` of the oldest; `None` when there are none, after which the queue is not served any more.
    fn next(&self, most: usize) -> Option<Vec<Left>> {
        let mut queue = self.0.lock();
        let some = most.min(queue.left.len());
        queue.is_served = some > 0;
        (some > 0).then(|| queue.left.drain(..some).collect())
    }

    async fn serve(self: Arc<Self>, entropy: Entropy) {
        let pauses =
            || Backoff::new(Duration::from_millis(20), Duration::from_secs(1)).with_entropy(&entropy);
        let (mut most, mut backoff) = (AT_ONCE, pauses());
        while let Some(some) = self.next(most) {
            let asked = some.len();
            let again: Vec<_> = join_all(some.into_iter().map(Left::give_back)).await;
            let again: VecDeque<_> = again.into_iter().flatten().collect();
            // At least one was settled: the node gets many requests at a time again.
            if again.len() < asked {
                (most, backoff) = (AT_ONCE, pauses());
            } else {
                most = 1;
            }
            let pauses = !again.is_empty();
            self.0.lock().left.extend(again);
            if pauses {
                sleep(backoff.next_pause()).await;
            }
        }
    }
}

impl Left {
    /// Asks once; returns itself when that has to be done again.
    async fn give_back(self) -> Option<Self> {
        if self.vote.now() >= self.until {
            self.vote.leave_to_lease("it did not confirm the release before the lease had ended");
            return None;
        }
        // The vote notes the answer.
        let _ = within(self.limit, Arc::clone(&self.vote).withdraw()).await;
        (!self.vote.is_done()).then_some(self)
    }
}
