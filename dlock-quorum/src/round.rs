//! The requests of one round, to all nodes at once.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use dlock_core::Failure;
use dlock_core::backend::{Host, by_then};
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::vote::{Vote, VoteAnswer};

type NodeRequest<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Requests to several nodes, with the place of each.
///
/// They are part of the keeper's runtime wherever they are polled: their timers and connections must outlive a runtime
/// that is shut down while they are [left](Self::leave).
pub(crate) struct Round<T> {
    pending: Vec<(usize, NodeRequest<T>)>,
    ready: VecDeque<(usize, T)>,
    ends: Instant,
    /// The requests that may wait in this process before they are written, whose patience is the vote's.
    queued: Vec<(usize, Arc<Vote>)>,
    ends_at_last: Instant,
    host: Host,
    runtime: Option<Handle>,
}

impl<T: Send + 'static> Round<T> {
    /// Starts a round whose answers are waited for as long as `limit`.
    pub(crate) fn new(limit: Duration, host: &Host) -> Self {
        let ends = Instant::now() + limit;
        Self {
            pending: Vec::new(),
            ready: VecDeque::new(),
            ends,
            queued: Vec::new(),
            ends_at_last: ends,
            host: host.clone(),
            runtime: host.runtime(),
        }
    }

    /// Waits up to `limit` for answers to requests that took a while to be written.
    pub(crate) fn waiting_at_most(mut self, limit: Duration) -> Self {
        self.ends_at_last = self.ends.max(Instant::now() + limit);
        self
    }

    pub(crate) fn ask(&mut self, place: usize, request: impl Future<Output = T> + Send + 'static) {
        self.pending.push((place, Box::pin(request)));
    }

    /// Returns the number of requests whose answers were not taken yet.
    pub(crate) fn open(&self) -> usize {
        self.pending.len() + self.ready.len()
    }

    /// Returns the places that have not answered.
    pub(crate) fn silent(&self) -> impl Iterator<Item = usize> + '_ {
        self.pending.iter().map(|(place, _)| *place)
    }

    /// Returns the time that it may still take.
    pub(crate) fn left(&self) -> Duration {
        self.ends.saturating_duration_since(Instant::now())
    }

    /// Ends the round at this moment, or earlier.
    pub(crate) fn end_by(&mut self, at: Instant) {
        self.ends = self.ends.min(at);
    }

    /// Returns the next answer; `None` when there is none left, or none in time.
    pub(crate) async fn next(&mut self) -> Option<(usize, T)> {
        loop {
            let ends = self.ends;
            if let Some(next) = by_then(ends, self.poll_all()).await {
                return next;
            }
            self.ends = self.later_end()?;
        }
    }

    /// Returns the time at which to give up the requests that were not written in time, or not long ago; `None` when
    /// there are none.
    fn later_end(&self) -> Option<Instant> {
        let is_open = |place| self.silent().any(|open| open == place);
        let open = self.queued.iter().filter(|(place, _)| is_open(*place));
        let left = open.filter_map(|(_, vote)| vote.patience()).max()?;
        // Bounded: a queue that moves slowly must not keep an attempt beyond its time.
        let ends = (Instant::now() + left).min(self.ends_at_last);
        (ends > self.ends).then_some(ends)
    }

    async fn poll_all(&mut self) -> Option<(usize, T)> {
        let (pending, ready, runtime) = (&mut self.pending, &mut self.ready, &self.runtime);
        std::future::poll_fn(|context| {
            // For each poll, since the caller's runtime may be another one at each.
            let _entered = runtime.as_ref().map(Handle::enter);
            // All of them each time, also those behind one that is ready: no request waits for another to be sent.
            let mut at = 0;
            while at < pending.len() {
                match pending[at].1.as_mut().poll(context) {
                    Poll::Ready(answer) => {
                        let (place, _) = pending.remove(at);
                        ready.push_back((place, answer));
                    }
                    Poll::Pending => at += 1,
                }
            }
            match ready.pop_front() {
                None if !pending.is_empty() => Poll::Pending,
                next => Poll::Ready(next),
            }
        })
        .await
    }

    /// Returns the answers that are there already.
    pub(crate) fn at_hand(&mut self) -> impl Iterator<Item = (usize, T)> + '_ {
        self.ready.drain(..)
    }

    /// Lets the requests under way come to their end on the keeper's thread, for as long as the round may take.
    pub(crate) fn leave(self) -> Result<(), Failure> {
        let mut rest = self;
        if rest.pending.is_empty() {
            return Ok(());
        }
        let (left, host) = (rest.left(), rest.host.clone());
        // The round ends in time: a request that waits in this process prolongs it no more.
        rest.queued.clear();
        host.spawn(async move {
            // Begun anew there: the task may wait for its turn on the keeper's thread.
            rest.ends = Instant::now() + left;
            while rest.next().await.is_some() {}
        })
    }
}

impl Round<VoteAnswer> {
    /// Asks a node for its vote.
    pub(crate) fn ask_for(&mut self, place: usize, vote: &Arc<Vote>) {
        self.queued.push((place, Arc::clone(vote)));
        self.ask(place, Arc::clone(vote).ask());
    }
}
