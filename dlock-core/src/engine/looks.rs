//! Looking at a key again and again, and pauses between what is asked for again.
//!
//! | state | `announcements` | `looked` | the next look is due |
//! |---|---|---|---|
//! | fresh, or the last look had no end | any | none | at once |
//! | looked, heard | some | when it ended | when something is announced, or the interval is over |
//! | looked, deaf | none | when it ended | when the interval is over; before it the backend is asked to tell again |
//!
//! Who looks listens before the look, so that nothing is missed between the two.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use futures_util::{FutureExt, StreamExt};
use tokio::time::Instant;

use crate::backend::{Announcements, sleep};
use crate::engine::Engine;
use crate::key::Key;

/// When a key is looked at that others change.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    announcements: Option<Announcements>,
    /// When the last look ended.
    looked: Option<Instant>,
}

impl Looks {
    /// Waits until the next look is due, which is at once until one has [ended](Self::ended).
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any await: what was heard leads to a look in any case.
    pub(crate) async fn due(&mut self, engine: &Engine, key: &Key, interval: Duration) {
        if let Some(looked) = self.looked {
            let left = interval.saturating_sub(engine.timers.now() - looked);
            self.wait(engine, left).await;
            self.looked = None;
        }
        if self.announcements.is_none() && engine.capabilities.announces {
            self.announcements = Some(engine.backend.announcements(key));
        }
    }

    /// Notes that the look had an end.
    pub(crate) fn ended(&mut self, engine: &Engine) {
        self.looked = Some(engine.timers.now());
    }

    async fn wait(&mut self, engine: &Engine, length: Duration) {
        let mut pause = pin!(engine.pause(length));
        if let Some(announcements) = &mut self.announcements {
            let due = {
                let next = pin!(announcements.next());
                match select(pin!(engine.awaited(next)), &mut pause).await {
                    Either::Left((heard, _)) => heard,
                    Either::Right(_) => Some(()),
                }
            };
            if due.is_some() {
                // One look is for all that was heard until now.
                while announcements.next().now_or_never().flatten().is_some() {}
                return;
            }
            self.announcements = None;
        }
        pause.await;
    }
}

impl Engine {
    /// Waits, whatever the caller's runtime is.
    pub(crate) async fn pause(&self, length: Duration) {
        // Without a keeper's thread nothing is left to wait for, and the next step says so.
        let _ = self.run(sleep(length)).await;
    }
}
