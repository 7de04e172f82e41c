//! The bound of one request.
//!
//! A request counts from when it was written, where the backend [knows](RequestClock) that. Before, it waits in this
//! process for its turn. To give it up there and to ask again would put it at the end of that queue, and make the queue
//! longer: it is kept, for as long as its answer is of use.
//!
//! ```text
//! called ──▶ queued ──▶ written ──▶ answer
//!   │          │           └─ `limit` after the write ──▶ Late
//!   │          └─ again and again for `limit`; `until` ──▶ Unsent
//!   └─ `limit` ──▶ Late
//! at `until`, whatever the state, and not cancelled ────▶ Over
//! ```

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::backend::dynamic::DynClaim;
use crate::backend::{RequestClock, RequestStage};
use crate::clock::{Clock, Timestamp};
use crate::error::Failure;
use crate::runtime::timer::Timers;

/// The bounds of one request.
pub(super) struct RequestBounds<'a> {
    pub(super) clock: &'a Clock,
    pub(super) timers: &'a Timers,
    /// The stage of the request on its way to the wire, if the backend reports it. It begins with the request.
    pub(super) written: Option<RequestClock>,
    /// The moment of the call.
    pub(super) from: Instant,
    /// The time that the answer may take from the write, or else from the call.
    pub(super) limit: Duration,
    /// The end of all, with the wait for its turn.
    pub(super) until: Option<Instant>,
}

/// The reason why there is no answer.
pub(super) enum Unanswered {
    /// The request was certainly not written, and will not be.
    Unsent,
    /// No answer came within this time.
    Late(Duration),
    /// No answer came until the end of all.
    Over,
}

impl<'a> RequestBounds<'a> {
    /// Bounds a request of a claim that begins now.
    pub(super) fn of(
        claim: &dyn DynClaim,
        (clock, timers): (&'a Clock, &'a Timers),
        limit: Duration,
        left: Duration,
    ) -> Self {
        // Begun here and not by the backend: what an earlier request of the claim has left on the clock is void.
        let (written, from) = (claim.request_clock().inspect(RequestClock::begin), Instant::now());
        Self { clock, timers, written, from, limit, until: from.checked_add(left) }
    }

    /// Returns the time at which the request was written, where that is known.
    pub(super) fn written_at(&self) -> Option<Timestamp> {
        match self.written.as_ref()?.stage() {
            RequestStage::Written(at) => Some(at),
            RequestStage::Called | RequestStage::Queued => None,
        }
    }

    /// Awaits the answer.
    pub(super) async fn answer<T>(&self, request: impl Future<Output = T>) -> Result<T, Unanswered> {
        let mut request = pin!(request);
        // From the call, as long as the backend has not reported that the request is queued or written.
        let mut end = self.from + self.limit;
        loop {
            // `until` ends even a request that is still queued; `end` moves on while it is.
            let over = self.until.is_some_and(|until| until <= end);
            let limit = if over { self.until.unwrap_or(end) } else { end };
            if let Some(answer) = self.timers.until(limit, &mut request).await {
                return Ok(answer);
            }
            // A request that is cancelled in the queue has certainly changed nothing, which spares its caller a doubt.
            if over && self.written.as_ref().is_some_and(RequestClock::cancel) {
                return Err(Unanswered::Unsent);
            }
            // Read once more after the timer: the request may have been written while it ran.
            let left = match self.written.as_ref().map(RequestClock::stage) {
                // The time of an answer begins with the write, which may come at any moment.
                Some(RequestStage::Queued) => self.limit,
                Some(RequestStage::Written(at)) => (at + self.limit).since(self.clock.now()),
                Some(RequestStage::Called) | None => Duration::ZERO,
            };
            if over {
                return Err(Unanswered::Over);
            }
            if left.is_zero() {
                return Err(Unanswered::Late(self.limit));
            }
            end = Instant::now() + left;
        }
    }
}

impl Unanswered {
    pub(super) fn into_failure(self) -> Failure {
        match self {
            Self::Unsent => Failure::unavailable(RequestClock::UNSENT),
            Self::Late(limit) => Failure::unknown(format!("no answer within {limit:?}")),
            Self::Over => Failure::unknown("no answer within what was left of the wait"),
        }
    }
}

/// The largest recent duration of an answer, which decays with each that follows.
#[derive(Debug, Default)]
pub(crate) struct RoundTrip(AtomicU64);

impl RoundTrip {
    /// Notes the duration of an answer.
    pub(super) fn note(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        // Without an exchange: a figure that is lost between two answers at once is made good by the next.
        let before = self.0.load(Ordering::Relaxed);
        let now = took.max(before - before / 8);
        if now != before {
            self.0.store(now, Ordering::Relaxed);
        }
    }

    pub(super) fn recent(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}
