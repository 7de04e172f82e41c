//! The nodes that this process left in queues, and removes when their time is over.
//!
//! A claim that comes to a key removes the nodes there whose time is over. This task is for claims of other programs
//! that wait there already, and for keys that no claim comes to again. A process that has ended removes nothing:
//! `ZooKeeper::prune` is for that.
//!
//! | the task `remove_all` | entered when | ends by |
//! |---|---|---|
//! | does not run | at first; nothing is left to remove | `remove_later` |
//! | sleeps | the next node is not due | its time, for [`NAP`] at the most; `remove_later`, which wakes it |
//! | removes | nodes are due | those that remain, or could not be removed, are due again later |

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use dlock_core::backend::{Mutex, sleep_until};
use dlock_core::{ErrorKind, Failure, keeper};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Sessions;

/// The number of nodes that are remembered.
const MOST: usize = 100_000;
/// The number of nodes that are removed by one look at the servers' time.
const AT_ONCE: usize = 64;
/// The time that one look may take.
const LOOK: Duration = Duration::from_secs(5);
/// The time after which a failure is followed by another try.
const AGAIN: Duration = Duration::from_secs(1);
/// The time after which a refusal is followed by another try; a refusal ends when an administrator restores a right.
const REFUSED: Duration = Duration::from_secs(30);
/// The longest sleep, after which it is checked whether the backend is still in use.
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
    /// The time at which to look.
    at: Instant,
    /// Its end by the servers' clock.
    ends: i64,
    path: Arc<str>,
}

impl Sessions {
    /// Removes a node that was left, in so long, once its end has come by the servers' clock.
    pub(crate) fn remove_later(self: &Arc<Self>, path: Arc<str>, ends: i64, within: Duration) {
        let mut state = self.leftovers.0.lock();
        // Beyond that, other claims and `ZooKeeper::prune` remove it.
        if state.due.len() >= MOST {
            return;
        }
        state.due.push(Reverse(Leftover { at: Instant::now() + within, ends, path }));
        if let Some(wake) = &state.wake {
            return wake.notify_one();
        }
        // The node stays in the list, and the next one that is left tries to start the task.
        let Ok(runtime) = keeper::runtime() else { return };
        let wake = Arc::new(Notify::new());
        state.wake = Some(Arc::clone(&wake));
        runtime.spawn(remove_all(Arc::downgrade(self), wake));
    }

    /// Returns the time of the next look, or `None` if nothing is left.
    fn next_due(&self) -> Option<Instant> {
        let mut state = self.leftovers.0.lock();
        let at = state.due.peek().map(|Reverse(next)| next.at);
        // Under the mutex: `remove_later` sees either the task, or that it has to start one.
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

    /// Removes those of `due` whose time is over. Those that remain in `due` are still there, as far as is known.
    async fn remove(self: &Arc<Self>, due: &mut Vec<Leftover>) -> Result<(), Failure> {
        let until = Instant::now() + LOOK;
        let session = self.get(until).await?;
        session.connected(until).await?;
        // By the servers' clock: the local time only decides when to look.
        let now = session.server_time(until).await?;
        // Planned anew first, so that a failure below leaves each of them with a time to look.
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
                // `at` stays: another node has that place now.
                Ok(()) => drop(due.swap_remove(at)),
                // Only this node is refused; the others may be of other keys.
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

/// Removes nodes whose time is over, until none is left.
async fn remove_all(sessions: Weak<Sessions>, wake: Arc<Notify>) {
    loop {
        // A weak reference, so that this task does not keep the backend.
        let Some(at) = sessions.upgrade().and_then(|sessions| sessions.next_due()) else { return };
        tokio::select! {
            () = sleep_until(at.min(Instant::now() + NAP)) => {}
            () = wake.notified() => continue,
        }
        // Strong from here on, for one removal: its session must not be closed in the middle.
        let Some(sessions) = sessions.upgrade() else { return };
        let mut due = sessions.take_due();
        if due.is_empty() {
            continue;
        }
        match sessions.remove(&mut due).await {
            Ok(()) => {}
            // The backend was closed: the nodes are left to other programs.
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
