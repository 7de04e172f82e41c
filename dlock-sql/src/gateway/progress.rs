//! The progress of a request, for those that have to know whether it may still be carried out.
//!
//! ```text
//!                  `send`               `settle`
//!     Waiting ----------------> Sent --------------> Settled: what it did is done
//!        |                      |  ^
//!        | `settle`, `lose`,    |  +- `send` again, at a later moment
//!        | `try_cancel`         |
//!        v                      +-- `lose` --------> Lost: it may still be carried out,
//!     Cancelled: it never was,                       until its lease has passed
//!     and never will be
//! ```

use std::pin::pin;
use std::time::Duration;

use dlock_core::backend::{Mutex, RequestClock};
use tokio::sync::Notify;
use tokio::time::Instant;

/// The stages of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing was sent.
    Waiting,
    /// Nothing was sent, and nothing will be.
    Cancelled,
    /// It was sent at this moment, and not answered yet.
    Sent(Instant),
    /// It was answered: what it did is done.
    Settled,
    /// It was sent at this moment, and its connection is gone: it may have been carried out, or may be a little later.
    Lost(Instant),
}

/// The progress of one request.
#[derive(Debug)]
pub(crate) struct Progress {
    stage: Mutex<Stage>,
    ended: Notify,
    /// The clock of an attempt: the time that it waits for a connection is no part of its request.
    clock: Option<RequestClock>,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self { stage: Mutex::new(Stage::Waiting), ended: Notify::new(), clock: None }
    }

    /// Makes the progress of an attempt, which waits for a connection from now on.
    pub(crate) fn of_attempt(clock: &RequestClock) -> Self {
        // Until it is sent its time does not count: a server is not blamed for a queue of this process.
        clock.queued();
        Self { clock: Some(clock.clone()), ..Self::new() }
    }

    /// Notes that it is about to be sent. Returns whether it still may.
    pub(crate) fn send(&self) -> bool {
        // Under the mutex from the question to the note: a cancellation comes before, and forbids the sending, or
        // after, and finds it sent.
        let mut stage = self.stage.lock();
        let may = matches!(*stage, Stage::Waiting | Stage::Sent(_)) && self.count();
        if may {
            *stage = Stage::Sent(Instant::now());
        }
        may
    }

    /// Starts its request timeout, since it is sent, or what is sent answers it too. Returns whether it is still
    /// wanted.
    pub(crate) fn count(&self) -> bool {
        self.clock.as_ref().is_none_or(RequestClock::written)
    }

    /// Notes that it was answered, or will not be sent.
    pub(crate) fn settle(&self) {
        self.end(|_| Stage::Settled);
    }

    /// Notes that no answer will come.
    pub(crate) fn lose(&self) {
        self.end(Stage::Lost);
    }

    /// Cancels it unless it was sent. Returns whether it certainly was not carried out, and will not be.
    pub(crate) fn try_cancel(&self) -> bool {
        self.end(Stage::Sent) == Stage::Cancelled
    }

    /// Ends it: as cancelled unless it was sent, and then in the stage that `sent` makes of it.
    fn end(&self, sent: impl FnOnce(Instant) -> Stage) -> Stage {
        let mut stage = self.stage.lock();
        *stage = match *stage {
            Stage::Waiting => Stage::Cancelled,
            Stage::Sent(at) => sent(at),
            other => other,
        };
        let now = *stage;
        // No waker runs while the mutex is locked.
        drop(stage);
        if !matches!(now, Stage::Sent(_)) {
            self.ended.notify_waiters();
        }
        now
    }

    /// Cancels it unless it was sent. Returns `true` if it was answered, or was not sent and never will be.
    pub(crate) fn will_not_arrive(&self) -> bool {
        matches!(self.end(Stage::Sent), Stage::Cancelled | Stage::Settled)
    }

    /// Returns `true` if it was answered.
    pub(crate) fn is_settled(&self) -> bool {
        *self.stage.lock() == Stage::Settled
    }

    /// Returns `true` if nothing of it is to come or left: it was answered, never sent, or sent so long ago that its
    /// lease has passed.
    pub(crate) fn is_over(&self, lease: Duration) -> bool {
        match *self.stage.lock() {
            Stage::Waiting => false,
            Stage::Sent(at) | Stage::Lost(at) => at.elapsed() >= lease,
            Stage::Cancelled | Stage::Settled => true,
        }
    }

    /// Resolves once it was answered, or no answer will come.
    pub(crate) async fn ended(&self) {
        let mut ended = pin!(self.ended.notified());
        // Enabled before the stage is read, so that an end between the two is not missed.
        ended.as_mut().enable();
        if matches!(*self.stage.lock(), Stage::Sent(_) | Stage::Waiting) {
            ended.await;
        }
    }
}

impl PartialEq for Progress {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_not_sent_can_be_cancelled_and_what_was_sent_cannot() {
        let progress = Progress::new();
        assert!(progress.try_cancel());
        assert!(!progress.send(), "it was cancelled");
        progress.ended().await;

        let progress = Progress::new();
        assert!(progress.send());
        assert!(!progress.try_cancel());
        progress.settle();
        assert!(!progress.try_cancel(), "it was carried out");
        assert!(progress.is_settled());
        progress.ended().await;
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_the_end_is_notified_however_it_ends() {
        let ends: [fn(&Progress); 3] = [
            |of| {
                of.try_cancel();
            },
            Progress::settle,
            Progress::lose,
        ];
        for end in ends {
            let progress = Progress::new();
            let ended = tokio::time::timeout(Duration::from_secs(1), progress.ended());
            let (ended, ()) = tokio::join!(ended, async { end(&progress) });
            ended.expect("it has ended");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_lost_counts_from_when_it_was_sent() {
        let progress = Progress::new();
        progress.send();
        tokio::time::advance(Duration::from_secs(3)).await;
        progress.lose();
        progress.ended().await;
        assert!(!progress.try_cancel());
        assert!(progress.is_over(Duration::from_secs(3)));
        assert!(!progress.is_over(Duration::from_secs(4)));
    }
}
