//! When a request was written, for backends whose requests may wait in this process first.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::{Clock, Timestamp};

/// Tells the engine when a claim's request was written to the connection.
///
/// Without it a request counts from the call of the attempt. That is wrong where thousands of requests wait in this
/// process for their turn on one connection: the request timeout would pass, and a short lease run, while nothing was
/// sent yet. A backend with such a queue gives each claim one of these, returns it from
/// [`Claim::request_clock`](super::Claim::request_clock), calls [`queued`](Self::queued) when an attempt enters the
/// queue, and [`written`](Self::written) right before the bytes go out, from whatever task.
///
/// ```
/// use dlock_core::Clock;
/// use dlock_core::backend::RequestClock;
///
/// let request = RequestClock::new(Clock::system());
/// request.queued();
/// // On the task that writes, right before it does:
/// if request.written() {
///     // Write it. Otherwise nobody waits for the answer any more, and it must not be written.
/// }
/// ```
#[derive(Clone, Debug)]
pub struct RequestClock(Arc<ClockState>);

#[derive(Debug)]
struct ClockState {
    clock: Clock,
    /// When it was written in nanoseconds, or one of the marks.
    at: AtomicU64,
}

/// It counts from the call.
const CALLED: u64 = 0;
const QUEUED: u64 = u64::MAX;
/// It was not written, and must not be any more.
const CANCELLED: u64 = u64::MAX - 1;

/// What to say of one that was given up before it was written.
pub(crate) const UNSENT: &str =
    "the request was not sent in time: no connection, or too many requests of this process before it";

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestStage {
    /// Nothing is known: it counts from the call.
    Called,
    Queued,
    Written(Timestamp),
}

impl RequestClock {
    /// Creates one for a claim of a backend with this clock, which is that of
    /// [`Backend::clock`](super::Backend::clock).
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self(Arc::new(ClockState { clock, at: AtomicU64::new(CALLED) }))
    }

    /// Says that the attempt's request waits in a queue of this process.
    pub fn queued(&self) {
        self.0.at.store(QUEUED, Ordering::SeqCst);
    }

    /// Says that the request is about to be written. Returns whether it still may be: a request that the engine has
    /// given up while it was queued must not be written, since the engine counts on it.
    #[must_use]
    pub fn written(&self) -> bool {
        if self.0.at.load(Ordering::SeqCst) == CALLED {
            return true;
        }
        let now = self.0.clock.now().as_nanos().clamp(CALLED + 1, CANCELLED - 1);
        match self.0.at.compare_exchange(QUEUED, now, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => true,
            Err(at) => at != CANCELLED,
        }
    }

    /// An attempt begins.
    pub(crate) fn begin(&self) {
        self.0.at.store(CALLED, Ordering::SeqCst);
    }

    /// Gives the request up. Returns whether it certainly was not written, and will not be.
    pub(crate) fn cancel(&self) -> bool {
        self.0.at.compare_exchange(QUEUED, CANCELLED, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    pub(crate) fn stage(&self) -> RequestStage {
        match self.0.at.load(Ordering::SeqCst) {
            CALLED => RequestStage::Called,
            QUEUED | CANCELLED => RequestStage::Queued,
            at => RequestStage::Written(Timestamp::from_nanos(at)),
        }
    }
}
