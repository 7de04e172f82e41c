//! Asking for the holder of a key again and again, and the pauses in between.
//!
//! | state | `announcements` | `looked` | the next look is due |
//! |---|---|---|---|
//! | fresh, or the last look had no end | any | none | at once |
//! | looked, subscribed | some | when it ended | when something is announced, or the interval is over |
//! | looked, not subscribed | none | when it ended | when the interval is over; before the look it subscribes again |
//!
//! A subscription comes before the look, so that nothing is missed between the two.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use futures_util::{FutureExt, StreamExt};
use tokio::time::Instant;

use crate::backend::{Announcements, sleep};
use crate::engine::Engine;
use crate::key::Key;

/// The number of announcements that one look answers.
const MOST_MERGED: usize = 64;

/// The looks at a key that other processes change.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    announcements: Option<Announcements>,
    /// The time at which the last look ended.
    looked: Option<Instant>,
}

impl Looks {
    /// Waits until the next look is due, which is at once until one has [ended](Self::ended).
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any await: no announcement is lost by it, and the next call waits for the rest of the
    /// interval.
    pub(crate) async fn due(&mut self, engine: &Engine, key: &Key, interval: Duration) {
        if let Some(looked) = self.looked {
            let left = interval.saturating_sub(engine.timers.now() - looked);
            self.wait(engine, left).await;
            // Cleared only after the wait: a call that is dropped in it leaves the rest of the interval to the next
            // one.
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
                    Either::Left((announced, _)) => announced,
                    Either::Right(_) => Some(()),
                }
            };
            if due.is_some() {
                // One look answers all announcements until now. Bounded, since a backend's stream may always be ready.
                for _ in 0..MOST_MERGED {
                    if announcements.next().now_or_never().flatten().is_none() {
                        break;
                    }
                }
                return;
            }
            // The stream has ended. `due` subscribes anew before the next look, which finds what was missed meanwhile.
            self.announcements = None;
        }
        pause.await;
    }
}

impl Engine {
    /// Waits, whatever the caller's runtime is.
    pub(crate) async fn pause(&self, length: Duration) {
        // If the keeper's thread is gone, there is nothing to wait for, and the next step fails with that.
        let _ = self.run(sleep(length)).await;
    }
}
