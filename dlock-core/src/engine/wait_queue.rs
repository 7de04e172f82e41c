//! The waiters of this process, in line per key.
//!
//! Where the backend has no queue of its own, only the first waiter of a key asks it; the others wait here, in their
//! order. A release in this process wakes the first at once, and nobody asks while the lock is known to be held in this
//! process. So a herd of local waiters costs the server no more than one, and a hand-over no more than its release and its
//! acquire.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::key::Key;

/// The lines of all keys.
#[derive(Debug, Default)]
pub(crate) struct WaitQueue {
    /// How many wait in all, so that the common case need not look.
    waiting: AtomicUsize,
    places: Mutex<HashMap<Key, VecDeque<Arc<Waiter>>>>,
}

#[derive(Debug, Default)]
struct Waiter {
    first: AtomicBool,
    /// The one before took the lock, so that it is held here until a release tells.
    follows_holder: AtomicBool,
    /// Told when the place becomes the first, and of releases while it is.
    told: Notify,
}

/// A place in line; leaves it when dropped.
#[derive(Debug)]
pub(crate) struct Ticket<'a> {
    line: &'a WaitQueue,
    key: &'a Key,
    place: Arc<Waiter>,
    won: bool,
}

impl WaitQueue {
    fn places(&self) -> MutexGuard<'_, HashMap<Key, VecDeque<Arc<Waiter>>>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether somebody waits for `key`.
    pub(crate) fn has(&self, key: &Key) -> bool {
        self.waiting.load(Ordering::Acquire) > 0 && self.places().contains_key(key)
    }

    /// Takes the last place.
    pub(crate) fn join<'a>(&'a self, key: &'a Key) -> Ticket<'a> {
        let place = Arc::new(Waiter::default());
        let mut places = self.places();
        let line = places.entry(key.clone()).or_default();
        place.first.store(line.is_empty(), Ordering::Release);
        line.push_back(Arc::clone(&place));
        self.waiting.fetch_add(1, Ordering::AcqRel);
        Ticket { line: self, key, place, won: false }
    }

    /// The lock was given back in this process: its first waiter may try.
    pub(crate) fn released(&self, key: &Key) {
        if self.waiting.load(Ordering::Acquire) == 0 {
            return;
        }
        if let Some(first) = self.places().get(key).and_then(VecDeque::front) {
            first.told.notify_one();
        }
    }
}

impl Ticket<'_> {
    /// Resolves when this place is the first.
    pub(crate) async fn first(&self) {
        while !self.place.first.load(Ordering::Acquire) {
            self.place.told.notified().await;
        }
    }

    /// Whether the lock is held in this process, by the one who stood before.
    pub(crate) fn follows_holder(&self) -> bool {
        self.place.follows_holder.load(Ordering::Acquire)
    }

    /// Leaves the line with the lock.
    pub(crate) fn win(mut self) {
        self.won = true;
    }

    /// Resolves when the lock was given back in this process. May resolve for nothing.
    pub(crate) async fn released(&self) {
        self.place.told.notified().await;
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut places = self.line.places();
        self.line.waiting.fetch_sub(1, Ordering::AcqRel);
        let Some(line) = places.get_mut(self.key) else { return };
        line.retain(|place| !Arc::ptr_eq(place, &self.place));
        match line.front() {
            None => {
                places.remove(self.key);
            }
            Some(next) => {
                // One who leaves without the lock says nothing new about it.
                next.follows_holder.store(self.won, Ordering::Release);
                next.first.store(true, Ordering::Release);
                // Also hands on a release that the leaving place was told of and did not use.
                next.told.notify_one();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn places_come_first_in_their_order_and_nothing_is_left() {
        let line = WaitQueue::default();
        let key = Key::new("k").unwrap();
        let (a, b, c) = (line.join(&key), line.join(&key), line.join(&key));
        a.first().await;
        assert!(!b.place.first.load(Ordering::Acquire));
        drop(b);
        drop(a);
        c.first().await;
        assert!(line.has(&key));
        drop(c);
        assert!(!line.has(&key) && line.places().is_empty());
    }

    #[tokio::test]
    async fn who_follows_a_holder_knows_and_hears_of_its_release() {
        let line = WaitQueue::default();
        let key = Key::new("k").unwrap();
        let (a, b, c) = (line.join(&key), line.join(&key), line.join(&key));
        a.first().await;
        a.win();
        // Even when the release comes before the next one looks.
        line.released(&key);
        b.first().await;
        assert!(b.follows_holder());
        b.released().await;
        drop(b);
        c.first().await;
        assert!(!c.follows_holder());
    }

    #[tokio::test]
    async fn a_release_wakes_the_first_only() {
        let line = WaitQueue::default();
        let (key, other) = (Key::new("k").unwrap(), Key::new("o").unwrap());
        let (a, b, o) = (line.join(&key), line.join(&key), line.join(&other));
        line.released(&key);
        a.released().await;
        for quiet in [&b, &o] {
            let told = tokio::time::timeout(std::time::Duration::from_millis(20), quiet.released()).await;
            assert!(told.is_err());
        }
    }
}
