//! The report of one acquire, in spans, metrics and counts.

use std::cell::LazyCell;
use std::time::Duration;

use tokio::time::Instant;

use super::{Subject, Telemetry, Trace, Waiters, spans};
use crate::error::{Error, Failure};
use crate::fence::Fence;
use crate::holder::Holder;
use crate::key::Key;

/// The report of one acquire. Dropping it before its end is an end too: the caller was cancelled.
pub(crate) struct AcquireSpan<'a> {
    to: &'a Telemetry,
    waiters: &'a dyn Waiters,
    lock: Subject<'a>,
    started: Instant,
    attempts: u32,
    waits: bool,
    over: bool,
    /// The holder that the span was linked to last.
    linked: Trace,
}

impl<'a> AcquireSpan<'a> {
    pub(crate) fn begin(
        to: &'a Telemetry,
        waiters: &'a dyn Waiters,
        lock: Subject<'a>,
        started: Instant,
    ) -> Self {
        let linked = Trace::default();
        Self { to, waiters, lock, started, attempts: 0, waits: false, over: false, linked }
    }

    /// Reports that the acquire waits for this key from here on.
    pub(crate) fn turn_to(&mut self, key: &'a Key) {
        if self.lock.key != key {
            if self.waits {
                self.to.holders.waiter_left(self.lock.key, self.waiters);
            }
            self.lock.key = key;
        }
    }

    /// Reports that the acquire goes on in another way, which has a span of its own.
    pub(crate) const fn set_aside(&mut self) {
        self.over = true;
    }

    /// Reports an attempt at the backend, which is a re-check if the outcome of the last one is unknown.
    pub(crate) fn attempt(&mut self, again: bool) {
        self.attempts = self.attempts.saturating_add(1);
        if again {
            self.to.counts.rechecks.add();
        }
    }

    pub(crate) const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Reports that another holder has the lock.
    pub(crate) fn busy(&mut self, holder: Option<&Holder>, retry_after: Option<Duration>) {
        spans::busy(self.attempts, retry_after);
        if let Some(text) = holder.and_then(|holder| holder.trace.as_deref()) {
            self.link(Trace::parse(text));
        }
    }

    /// Reports that the acquire waits for the holder, in the queue of this process or as its first.
    pub(crate) fn wait(&mut self) {
        if !std::mem::replace(&mut self.waits, true) {
            self.to.metrics.wait_begins(self.lock.site);
        }
        self.link_to_local_holder();
    }

    /// Reports that the acquire is first in the queue.
    pub(crate) fn turn(&mut self) {
        self.link_to_local_holder();
        spans::woken();
    }

    /// Links to a holder in this process, which the backend may never name.
    fn link_to_local_holder(&mut self) {
        self.link(self.to.holders.of(self.lock.key));
    }

    fn link(&mut self, holder: Trace) {
        if holder.is_some() && !self.linked.is_same_span(&holder) {
            holder.link();
            self.linked = holder;
        }
    }

    /// Reports that the section of `before` passed the lock on to this acquire.
    pub(crate) fn passed_on(&mut self, before: &Trace) {
        self.link(before.clone());
        spans::received();
        self.to.counts.handoffs.add();
        self.to.metrics.passed_on(self.lock.site);
    }

    /// Reports that a place in the backend's queue was lost, and that the wait goes on at another place.
    pub(crate) fn requeued(&self) {
        spans::requeued(self.to);
        self.to.metrics.requeued(self.lock.site);
    }

    /// Reports a wake-up, after which asking again may be worth while.
    pub(crate) fn woken(&self) {
        spans::woken();
    }

    /// Reports that the outcome of an attempt is unknown.
    pub(crate) fn unknown(&self, failure: &Failure, again: bool) {
        spans::unknown_outcome(failure, again);
    }

    /// Reports what a re-check after an unknown outcome found.
    pub(crate) fn rechecked(&self, found: &'static str) {
        spans::rechecked(found);
        self.to.metrics.rechecked(self.lock.site, found);
    }

    /// Reports that the lock was granted.
    pub(crate) fn acquired(&mut self, fence: Option<Fence>) {
        self.over = true;
        // Read only if a subscriber or a meter wants it: a look at the clock costs as much as all else here.
        let waited = LazyCell::new(|| self.started.elapsed());
        spans::acquired(fence, || *waited, self.attempts);
        self.to.metrics.acquire_ended(self.lock.site, None, || *waited, self.attempts);
    }

    /// Reports that the acquire failed.
    pub(crate) fn not_acquired(&mut self, error: &Error, waited: Duration) {
        self.over = true;
        spans::not_acquired(error.kind(), waited, self.attempts);
        self.to.metrics.acquire_ended(self.lock.site, Some(error.kind()), || waited, self.attempts);
    }
}

impl Drop for AcquireSpan<'_> {
    fn drop(&mut self) {
        if self.waits {
            self.to.metrics.wait_ends(self.lock.site);
            self.to.holders.waiter_left(self.lock.key, self.waiters);
        }
        if !self.over {
            let waited = self.started.elapsed();
            spans::acquire_cancelled(waited, self.attempts);
            self.to.metrics.acquire_cancelled(self.lock.site, waited, self.attempts);
        }
    }
}
