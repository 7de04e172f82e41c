//! How far a request has come, for those who have to know whether it may still be carried out.

use std::pin::pin;
use std::time::Duration;

use dlock_core::backend::{Mutex, RequestClock};
use tokio::sync::Notify;
use tokio::time::Instant;

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing was sent.
    Waiting,
    /// Nothing was sent, and nothing will be.
    Cancelled,
    /// It was sent then, and not answered yet.
    Sent(Instant),
    /// It was answered: what it did is done.
    Settled,
    /// It was sent then, and its connection is gone: it may have been carried out, or may be a little later.
    Lost(Instant),
}

/// How far one request has come.
#[derive(Debug)]
pub(crate) struct Progress {
    stage: Mutex<Stage>,
    ended: Notify,
    /// Of an attempt: the time that it waits for a connection is no part of its request.
    clock: Option<RequestClock>,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self { stage: Mutex::new(Stage::Waiting), ended: Notify::new(), clock: None }
    }

    /// The progress of an attempt, which waits for a connection from now on.
    pub(crate) fn of_attempt(clock: &RequestClock) -> Self {
        clock.queued();
        Self { clock: Some(clock.clone()), ..Self::new() }
    }

    /// It is about to be sent; whether it still may.
    pub(crate) fn send(&self) -> bool {
        let mut stage = self.stage.lock();
        let may = matches!(*stage, Stage::Waiting | Stage::Sent(_)) && self.count();
        if may {
            *stage = Stage::Sent(Instant::now());
        }
        may
    }

    /// Its request timeout runs from now on, since it is sent, or what is sent answers it too. Returns whether it is
    /// still wanted.
    pub(crate) fn count(&self) -> bool {
        self.clock.as_ref().is_none_or(RequestClock::written)
    }

    /// It was answered.
    pub(crate) fn settle(&self) {
        *self.stage.lock() = Stage::Settled;
        self.ended.notify_waiters();
    }

    /// Nothing more will be heard of it.
    pub(crate) fn lose(&self) {
        let mut stage = self.stage.lock();
        *stage = match *stage {
            Stage::Sent(at) => Stage::Lost(at),
            Stage::Waiting => Stage::Settled,
            other => other,
        };
        drop(stage);
        self.ended.notify_waiters();
    }

    /// Cancels it unless it was sent. Returns whether it certainly does nothing any more: it was answered, or never
    /// will be sent.
    pub(crate) fn try_cancel(&self) -> bool {
        let mut stage = self.stage.lock();
        if *stage == Stage::Waiting {
            *stage = Stage::Cancelled;
            drop(stage);
            self.ended.notify_waiters();
            return true;
        }
        matches!(*stage, Stage::Cancelled | Stage::Settled)
    }

    /// Whether it was sent at least this long ago.
    pub(crate) fn is_older_than(&self, age: Duration) -> bool {
        match *self.stage.lock() {
            Stage::Sent(at) | Stage::Lost(at) => at.elapsed() >= age,
            _ => true,
        }
    }

    /// Resolves once it was answered, or nothing more will be heard of it.
    pub(crate) async fn ended(&self) {
        let mut ended = pin!(self.ended.notified());
        // From here on no end is missed.
        ended.as_mut().enable();
        if matches!(*self.stage.lock(), Stage::Sent(_) | Stage::Waiting) {
            ended.await;
        }
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
        assert!(progress.try_cancel());
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
        assert!(progress.is_older_than(Duration::from_secs(3)));
        assert!(!progress.is_older_than(Duration::from_secs(4)));
    }
}
