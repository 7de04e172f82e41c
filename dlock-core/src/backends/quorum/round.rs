//! Asking all nodes at once.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::error::Failure;
use crate::keeper;

type NodeRequest<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Requests to several nodes, with the place of each.
///
/// They are part of the keeper's runtime wherever they are polled: their timers and connections must outlive a runtime
/// that is shut down while they are [left](Self::leave).
pub(super) struct Round<T> {
    pending: Vec<(usize, NodeRequest<T>)>,
    ready: VecDeque<(usize, T)>,
    ends: Instant,
    runtime: Option<Handle>,
}

impl<T: Send + 'static> Round<T> {
    /// A round whose answers are waited for as long as `limit`.
    pub(super) fn new(limit: Duration) -> Self {
        let runtime = keeper::runtime().ok().cloned();
        Self { pending: Vec::new(), ready: VecDeque::new(), ends: Instant::now() + limit, runtime }
    }

    pub(super) fn ask(&mut self, place: usize, request: impl Future<Output = T> + Send + 'static) {
        self.pending.push((place, Box::pin(request)));
    }

    /// How many have not answered.
    pub(super) fn open(&self) -> usize {
        self.pending.len() + self.ready.len()
    }

    /// The places that have not answered.
    pub(super) fn silent(&self) -> impl Iterator<Item = usize> + '_ {
        self.pending.iter().map(|(place, _)| *place)
    }

    /// How long it may still take.
    pub(super) fn left(&self) -> Duration {
        self.ends.saturating_duration_since(Instant::now())
    }

    /// Waits no longer than this.
    pub(super) fn end_by(&mut self, at: Instant) {
        self.ends = self.ends.min(at);
    }

    /// The next answer; `None` when there is none left, or none in time.
    pub(super) async fn next(&mut self) -> Option<(usize, T)> {
        let (pending, ready, runtime) = (&mut self.pending, &mut self.ready, &self.runtime);
        let next = std::future::poll_fn(|context| {
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
        });
        tokio::time::timeout_at(self.ends, next).await.unwrap_or_default()
    }

    /// The answers that are there already.
    pub(super) fn at_hand(&mut self) -> impl Iterator<Item = (usize, T)> + '_ {
        self.ready.drain(..)
    }

    /// Lets what is under way come to its end on the keeper's thread, for as long as the round may take.
    pub(super) fn leave(self) -> Result<(), Failure> {
        let mut rest = self;
        if rest.pending.is_empty() {
            return Ok(());
        }
        let left = rest.left();
        keeper::runtime()?.spawn(async move {
            rest.ends = Instant::now() + left;
            while rest.next().await.is_some() {}
        });
        Ok(())
    }
}
