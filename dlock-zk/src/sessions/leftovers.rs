//! What this process left in queues, and removes when its time is over.
//!
//! Whoever comes to a key removes what has ended there; this is for those who only wait, in other programs, and for
//! keys that nobody comes to any more. A process that has ended removes nothing: `ZooKeeper::prune` is for that.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use dlock_core::backend::{Mutex, sleep_until};
use dlock_core::{ErrorKind, Failure, keeper};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Sessions;

/// So many are remembered.
const MOST: usize = 100_000;
/// So many are removed by one look at the servers' time.
const AT_ONCE: usize = 64;
/// How long one look may take.
const LOOK: Duration = Duration::from_secs(5);
/// When to try again after a failure.
const AGAIN: Duration = Duration::from_secs(1);
/// When to try again after a refusal, which ends when somebody gives a right back.
const REFUSED: Duration = Duration::from_secs(30);
/// The longest sleep, after which it is seen whether anybody has the locks still.
const NAP: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(super) struct Leftovers(Mutex<State>);

#[derive(Default)]
struct State {
    due: BinaryHeap<Reverse<Leftover>>,
    /// Wakes the one task that removes them, while there is one.
    wake: Option<Arc<Notify>>,
}

/// A node that was left.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Leftover {
    /// When to look.
    at: Instant,
    /// When it is over, by the servers' clock.
    ends: i64,
    path: Arc<str>,
}

impl Sessions {
    /// Removes a node that was left, in so long, once its end has come by the servers' clock.
    pub(crate) fn remove_later(self: &Arc<Self>, path: Arc<str>, ends: i64, within: Duration) {
        let mut state = self.leftovers.0.lock();
        if state.due.len() >= MOST {
            return;
        }
        state.due.push(Reverse(Leftover { at: Instant::now() + within, ends, path }));
        if let Some(wake) = &state.wake {
            return wake.notify_one();
        }
        let Ok(runtime) = keeper::runtime() else { return };
        let wake = Arc::new(Notify::new());
        state.wake = Some(Arc::clone(&wake));
        runtime.spawn(remove_all(Arc::downgrade(self), wake));
    }

    /// When to look next; `None` when nothing is left.
    fn next_due(&self) -> Option<Instant> {
        let mut state = self.leftovers.0.lock();
        let at = state.due.peek().map(|Reverse(next)| next.at);
        if at.is_none() {
            state.wake = None;
        }
        at
    }

    fn take_due(&self) -> Vec<Leftover> {
        let (mut state, now, mut due) = (self.leftovers.0.lock(), Instant::now(), Vec::new());
        while due.len() < AT_ONCE
            && let Some(next) = state.due.peek_mut()
            && next.0.at <= now
        {
            due.push(std::collections::binary_heap::PeekMut::pop(next).0);
        }
        due
    }

    /// Removes those of `due` that are over; what remains in it is still there, as far as is known.
    async fn remove(self: &Arc<Self>, due: &mut Vec<Leftover>) -> Result<(), Failure> {
        let until = Instant::now() + LOOK;
        let session = self.get(until).await?;
        session.connected(until).await?;
        let now = session.server_time(until).await?;
        for leftover in due.iter_mut() {
            let left = u64::try_from(leftover.ends.saturating_sub(now)).unwrap_or_default();
            leftover.at = Instant::now() + Duration::from_millis(left);
        }
        let mut at = 0;
        while let Some(leftover) = due.get_mut(at) {
            if leftover.ends > now {
                at += 1;
                continue;
            }
            match session.delete(&leftover.path, until).await {
                Ok(()) => drop(due.swap_remove(at)),
                Err(failure) if failure.kind() == ErrorKind::Denied => {
                    leftover.at = Instant::now() + REFUSED;
                    at += 1;
                }
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }
}

/// Removes what is over, until nothing is left.
async fn remove_all(sessions: Weak<Sessions>, wake: Arc<Notify>) {
    loop {
        let Some(at) = sessions.upgrade().and_then(|sessions| sessions.next_due()) else { return };
        tokio::select! {
            () = sleep_until(at.min(Instant::now() + NAP)) => {}
            () = wake.notified() => continue,
        }
        let Some(sessions) = sessions.upgrade() else { return };
        let mut due = sessions.take_due();
        if due.is_empty() {
            continue;
        }
        match sessions.remove(&mut due).await {
            Ok(()) => {}
            // Nobody uses the locks any more: that is for others.
            Err(failure) if failure.kind() == ErrorKind::Closed => return,
            Err(failure) if !failure.is_transient() && failure.kind() != ErrorKind::Denied => due.clear(),
            Err(failure) => {
                let again = Instant::now() + if failure.is_transient() { AGAIN } else { REFUSED };
                due.iter_mut().for_each(|leftover| leftover.at = again);
            }
        }
        sessions.leftovers.0.lock().due.extend(due.into_iter().map(Reverse));
    }
}
