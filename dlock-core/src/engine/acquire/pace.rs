//! The pace of an acquire: its pauses of each kind, and the distance between attempts that follow notifications.

use std::time::Duration;

use tokio::time::Instant;

use crate::backend::{Capabilities, PauseLimit};
use crate::engine::refusals::Refusals;

/// The pauses between attempts, by the reason for the wait.
pub(super) struct Pauses<'a> {
    /// The pauses between polls of a busy lock without a queue.
    pub(super) polls: PauseLimit,
    pub(super) notifications: NotificationPace,
    pub(super) failures: PauseLimit,
    pub(super) unknown_outcomes: PauseLimit,
    /// Made at the first refusal.
    pub(super) refusals: Option<Box<Refusals<'a>>>,
}

impl Pauses<'_> {
    pub(super) fn new(capabilities: &Capabilities) -> Self {
        Self {
            polls: PauseLimit::new(capabilities.poll_from, capabilities.poll_to),
            // No longer than the shortest poll: with more distance, notifications would be worse than polling.
            notifications: NotificationPace::new(capabilities.poll_from),
            failures: PauseLimit::of_failures(),
            unknown_outcomes: PauseLimit::of_unknown_outcomes(),
            refusals: None,
        }
    }
}

/// Keeps a distance between attempts that notifications ask for, once many of these were for nothing. A backend may
/// report changes that are none, as often as it likes.
pub(super) struct NotificationPace {
    distances: PauseLimit,
    /// The longest distance.
    to: Duration,
    /// The number of notifications after which the lock was still busy.
    wasted: u32,
}

impl NotificationPace {
    /// The number of such notifications that are tolerated before attempts are spaced out. Some are normal if several
    /// acquires want a lock that is held for moments only.
    const FREE: u32 = 16;
    /// A notification that comes so soon after the attempt was queued before it. Later ones set their own pace.
    const AT_ONCE: Duration = Duration::from_micros(100);

    /// Creates the pace. The longest distance is that of a useful pause between polls.
    pub(super) fn new(to: Duration) -> Self {
        // From a millisecond: the first distances must not cost a waiter the moment in which the lock is free.
        Self { distances: PauseLimit::new(Duration::from_millis(1), to), to, wasted: 0 }
    }

    /// Returns when to ask after a notification that was waited for so long; `None` for at once.
    pub(super) fn next(&mut self, waited: Duration, asked_at: Instant, fraction: f64) -> Option<Instant> {
        // It was waited for, so that attempts come no faster than notifications do.
        if waited >= Self::AT_ONCE {
            return None;
        }
        self.wasted = self.wasted.saturating_add(1);
        // From the attempt and not from now, so that the time since then counts as distance.
        (self.wasted > Self::FREE).then(|| asked_at + self.distances.pause(fraction))
    }

    pub(super) fn reset(&mut self) {
        *self = Self::new(self.to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seventeenth_notification_for_nothing_keeps_a_distance_and_a_fresh_start_none() {
        let (mut pace, now) = (NotificationPace::new(Duration::from_millis(10)), Instant::now());
        for n in 1..=NotificationPace::FREE {
            assert_eq!(pace.next(Duration::ZERO, now, 0.5), None, "notification {n}");
        }
        assert!(pace.next(Duration::ZERO, now, 0.5).is_some_and(|at| at > now));
        // A notification that had to be waited for sets its own pace.
        assert_eq!(pace.next(NotificationPace::AT_ONCE, now, 0.5), None);
        pace.reset();
        assert_eq!(pace.next(Duration::ZERO, now, 0.5), None);
    }
}
