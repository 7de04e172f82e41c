//! The work under way, so that a shutdown can wait for it.
//!
//! ```text
//! begin ──▶ a step ── into_background ──▶ in the background
//!              │                                  │
//!              └───────────── dropped ────────────┴──▶ over: those who wait look again
//! ```

use std::sync::Arc;

use crate::guarded::wake_all;
use crate::sync::Notify;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Counts acquires and releases under way, and clean-ups in the background.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    steps: AtomicUsize,
    background: AtomicUsize,
    /// Is `true` once a shutdown or a test waits for the end, so that until then an end costs no notification.
    watched: AtomicBool,
    changed: Notify,
}

impl Activity {
    /// Counts a step until its token is dropped. To be begun before anything is taken off the registry for it, so that
    /// nothing is between two places when a shutdown looks.
    pub(crate) fn begin(self: &Arc<Self>) -> ActivityToken {
        self.steps.fetch_add(1, Ordering::SeqCst);
        ActivityToken { activity: Arc::clone(self), in_background: false }
    }

    /// Returns the number of clean-ups that go on in the background.
    pub(super) fn in_background(&self) -> usize {
        self.background.load(Ordering::SeqCst)
    }

    /// Resolves when `idle` holds and nothing is under way. `idle` is asked again whenever something ended or
    /// [`changed`](Self::changed) was called.
    pub(crate) async fn settled(&self, idle: impl Fn() -> bool) {
        loop {
            // Listens and sets the flag before it looks: work that ends after the look notifies.
            let changed = self.changed.notified();
            self.watched.store(true, Ordering::SeqCst);
            // In the order in which a lock goes from the registry to a step and to the background. The second look is
            // for an acquire that ended meanwhile, and may have listed a hold.
            if idle()
                && self.steps.load(Ordering::SeqCst) == 0
                && self.background.load(Ordering::SeqCst) == 0
                && idle()
            {
                return;
            }
            changed.await;
        }
    }

    /// Resolves when nothing goes on in the background.
    pub(super) async fn quiet(&self) {
        loop {
            let changed = self.changed.notified();
            self.watched.store(true, Ordering::SeqCst);
            if self.in_background() == 0 {
                return;
            }
            changed.await;
        }
    }

    /// Has the waiters look again.
    pub(super) fn changed(&self) {
        if self.watched.load(Ordering::SeqCst) {
            wake_all(&self.changed);
        }
    }
}

/// One piece of work under way, which is over when this is dropped, however that comes about.
#[derive(Debug)]
#[must_use = "what it stands for is over when it is dropped"]
pub(crate) struct ActivityToken {
    activity: Arc<Activity>,
    in_background: bool,
}

impl ActivityToken {
    /// Counts the work as in the background from here on.
    pub(super) fn into_background(mut self) -> Self {
        if !std::mem::replace(&mut self.in_background, true) {
            // Counted there before it is taken off here: a shutdown that looks in between finds it.
            self.activity.background.fetch_add(1, Ordering::SeqCst);
            self.activity.steps.fetch_sub(1, Ordering::SeqCst);
        }
        self
    }
}

impl Drop for ActivityToken {
    fn drop(&mut self) {
        let counter = if self.in_background { &self.activity.background } else { &self.activity.steps };
        // Taken off before the notification, after which a waiter looks.
        counter.fetch_sub(1, Ordering::SeqCst);
        self.activity.changed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_settles_when_the_last_token_is_gone_wherever_it_went() {
        let activity = Arc::new(Activity::default());
        let (step, job) = (activity.begin(), activity.begin().into_background());
        assert_eq!(activity.in_background(), 1);
        let waits = Arc::clone(&activity);
        let waiter = tokio::spawn(async move { waits.settled(|| true).await });
        tokio::task::yield_now().await;
        drop(step);
        tokio::task::yield_now().await;
        assert!(!waiter.is_finished());
        let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _job = job;
            std::panic::resume_unwind(Box::new(()))
        }));
        assert!(unwound.is_err());
        waiter.await.unwrap();
    }
}
