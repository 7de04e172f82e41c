//! The time at which a request was written, for backends whose requests may wait in this process first.
//!
//! ```text
//!          begin()            queued()             written()
//! any stage -------> called ----------> queued ---------------> written at a time
//!                                         |
//!                                         +--cancel()--> cancelled: written() returns false
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::{Clock, Timestamp};

/// Reports to the engine when a claim's request was written to the connection.
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
///     // Write it. Otherwise its answer is not awaited any more, and it must not be written.
/// }
/// ```
#[derive(Clone, Debug)]
pub struct RequestClock(Arc<ClockState>);

#[derive(Debug)]
struct ClockState {
    clock: Clock,
    /// The time in nanoseconds at which the request was written, or one of the marks.
    at: AtomicU64,
}

/// The request counts from the call.
const CALLED: u64 = 0;
const QUEUED: u64 = u64::MAX;
/// The request was not written, and must not be any more.
const CANCELLED: u64 = u64::MAX - 1;

/// The stage of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestStage {
    /// Nothing is known: the request counts from the call.
    Called,
    /// It waits in a queue of this process.
    Queued,
    /// It was written at this time.
    Written(Timestamp),
}

impl RequestClock {
    /// The message about a request that was given up before it was written.
    pub const UNSENT: &'static str =
        "the request was not sent in time: no connection, or too many requests of this process before it";

    /// Creates the clock of a claim. `clock` is that of its backend, [`Backend::clock`](super::Backend::clock).
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self(Arc::new(ClockState { clock, at: AtomicU64::new(CALLED) }))
    }

    /// Marks that the attempt's request waits in a queue of this process.
    pub fn queued(&self) {
        self.0.at.store(QUEUED, Ordering::SeqCst);
    }

    /// Marks that the request is about to be written. Returns whether it still may be: a request that the engine has
    /// given up while it was queued must not be written, since the engine relies on that.
    #[must_use]
    pub fn written(&self) -> bool {
        if self.0.at.load(Ordering::SeqCst) == CALLED {
            return true;
        }
        // Read before the exchange: the time must not be later than the write, or the lease would count from too late.
        let now = self.0.clock.now().as_nanos().clamp(CALLED + 1, CANCELLED - 1);
        // One exchange decides between the writer and `cancel`: exactly one of them wins.
        match self.0.at.compare_exchange(QUEUED, now, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => true,
            Err(at) => at != CANCELLED,
        }
    }

    /// Begins an attempt. The engine calls this and the methods below, and so does a backend that is made of others and
    /// asks these itself.
    pub fn begin(&self) {
        self.0.at.store(CALLED, Ordering::SeqCst);
    }

    /// Gives the request up. Returns whether it certainly was not written, and will not be.
    #[must_use]
    pub fn cancel(&self) -> bool {
        self.0.at.compare_exchange(QUEUED, CANCELLED, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Returns how far the request has come.
    #[must_use]
    pub fn stage(&self) -> RequestStage {
        match self.0.at.load(Ordering::SeqCst) {
            CALLED => RequestStage::Called,
            // A cancelled request was not written either, which is all that the engine asks here.
            QUEUED | CANCELLED => RequestStage::Queued,
            at => RequestStage::Written(Timestamp::from_nanos(at)),
        }
    }
}
