//! The course of one acquire, as it is told of in spans and metrics.

use std::time::Duration;

use tokio::time::Instant;

use crate::engine::Engine;
use crate::error::{Error, Failure};
use crate::fence::Fence;
use crate::handles::options::Site;
use crate::holder::Holder;
use crate::key::Key;
use crate::telemetry::Trace;
use crate::telemetry::spans;

/// One acquire. Dropping it before its end is an end too: the caller went away.
pub(crate) struct AcquireSpan<'a> {
    engine: &'a Engine,
    key: &'a Key,
    site: Site,
    started: Instant,
    attempts: u32,
    waits: bool,
    over: bool,
    /// The holder that its span was linked to last.
    linked: Trace,
}

impl<'a> AcquireSpan<'a> {
    pub(crate) fn begin(engine: &'a Engine, key: &'a Key, site: Site, started: Instant) -> Self {
        Self { engine, key, site, started, attempts: 0, waits: false, over: false, linked: Trace::default() }
    }

    /// From here on it is this key that is waited for.
    pub(crate) fn turn_to(&mut self, key: &'a Key) {
        if self.key != key {
            if self.waits {
                self.engine.registry.holders.line_left(self.key, &self.engine.wait_queue);
            }
            self.key = key;
        }
    }

    /// It goes on in another way, which is told of by itself.
    pub(crate) const fn set_aside(&mut self) {
        self.over = true;
    }

    /// The backend is asked.
    pub(crate) const fn attempt(&mut self) {
        self.attempts = self.attempts.saturating_add(1);
    }

    pub(crate) const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Somebody else has the lock.
    pub(crate) fn busy(&mut self, holder: Option<&Holder>, retry_after: Option<Duration>) {
        spans::busy(self.attempts, retry_after);
        if let Some(text) = holder.and_then(|holder| holder.trace.as_deref()) {
            self.link(Trace::parse(text));
        }
    }

    /// It waits for the holder, in line with others of this process or as the first of them.
    pub(crate) fn wait(&mut self) {
        if !std::mem::replace(&mut self.waits, true) {
            self.engine.registry.metrics.wait_begins(self.site);
        }
        self.link_to_local_holder();
    }

    /// Its turn in line has come.
    pub(crate) fn turn(&mut self) {
        self.link_to_local_holder();
        spans::woken();
    }

    /// One in this process may be told of by nobody else.
    fn link_to_local_holder(&mut self) {
        self.link(self.engine.registry.holders.of(self.key));
    }

    fn link(&mut self, holder: Trace) {
        if holder.is_some() && !self.linked.is_same_span(&holder) {
            holder.link();
            self.linked = holder;
        }
    }

    /// Its place in the backend's queue was lost, and it goes on waiting at another.
    pub(crate) fn requeued(&self) {
        spans::requeued(self.engine);
        self.engine.registry.metrics.requeued(self.site);
    }

    /// Asking again may be worth while.
    pub(crate) fn woken(&self) {
        spans::woken();
    }

    /// The outcome of an attempt is unknown.
    pub(crate) fn unknown(&self, failure: &Failure, again: bool) {
        spans::unknown_outcome(failure, again);
    }

    /// The owner was asked again after an unknown outcome.
    pub(crate) fn rechecked(&self, found: &'static str) {
        spans::rechecked(found);
        self.engine.registry.metrics.rechecked(self.site, found);
    }

    /// We have it.
    pub(crate) fn acquired(&mut self, fence: Option<Fence>, waited: Duration) {
        self.over = true;
        spans::acquired(fence, waited, self.attempts);
        self.engine.registry.metrics.acquire_ended(self.site, None, waited, self.attempts);
    }

    /// We do not get it.
    pub(crate) fn not_acquired(&mut self, error: &Error, waited: Duration) {
        self.over = true;
        spans::not_acquired(error, waited, self.attempts);
        self.engine.registry.metrics.acquire_ended(self.site, Some(error.kind()), waited, self.attempts);
    }
}

impl Drop for AcquireSpan<'_> {
    fn drop(&mut self) {
        let metrics = &self.engine.registry.metrics;
        if self.waits {
            metrics.wait_ends(self.site);
            self.engine.registry.holders.line_left(self.key, &self.engine.wait_queue);
        }
        if !self.over {
            let waited = self.started.elapsed();
            spans::acquire_cancelled(waited, self.attempts);
            metrics.acquire_cancelled(self.site, waited, self.attempts);
        }
    }
}
