//! The waiters of this process, in line per key.
//!
//! Where the backend has no queue of its own, only the first waiter of a key asks it; the others wait here, in their
//! order. A release in this process wakes the first at once, and nobody asks while the lock is known to be held in this
//! process. So a herd of local waiters costs the server no more than one, and a handoff no more than its release and
//! its acquire.
//!
//! * What is known of a lock belongs to its line, not to its first waiter: when the first leaves, the next one knows
//!   when to ask, and asks no earlier.
//! * Only the waiter that becomes the first is woken. One that leaves from the middle wakes nobody, and costs the same
//!   whatever the length of the line.
//! * A release between an answer and the place in line is not missed: releases are counted, and who joins compares.

use std::collections::HashMap;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::PoisonError;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use foldhash::fast::RandomState;
use foldhash::quality::FixedState;
use slab::Slab;
use tokio::time::Instant;

use crate::backend::Backoff;
use crate::guarded::{drop_guarded, wake};
use crate::key::Key;
use crate::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::telemetry::Waiters;

/// Keys of different shards do not wait for each other.
const SHARDS: usize = 32;
/// Counters of releases. Keys that share one cost each other a needless request now and then, and never a missed
/// release.
const COUNTERS: usize = 512;
/// Where the backend notifies, one who becomes the first because the one before gave up asks so long after the lock
/// was asked for last: nobody listened for a moment. Each time that this finds the lock held, the next pause of that
/// kind is twice as long, so that a line of which one after the other gives up is polled no more than one that stays.
const UNHEARD: Duration = Duration::from_millis(20);
/// A shard that had more waiters than this gives its memory back when all have left.
const KEPT: usize = 256;

/// The lines of all keys.
pub(crate) struct WaitQueue {
    /// How many wait in all, so that the common case need not look.
    waiting: AtomicUsize,
    releases: [AtomicU32; COUNTERS],
    shards: [Mutex<Shard>; SHARDS],
    /// The pauses between polls of a line that begins.
    polls: Backoff,
    /// Whether the first waiter is notified of releases elsewhere.
    notified: bool,
}

#[derive(Default)]
struct Shard {
    lines: HashMap<Key, KeyQueue, RandomState>,
    waiters: Slab<Waiter>,
}

/// Who waits for one key, and what is known of its lock.
struct KeyQueue {
    first: usize,
    last: usize,
    /// The lock was released since it was asked for last.
    released: bool,
    /// One who waited here has it, whose release tells.
    held_here: bool,
    asked_at: Option<Instant>,
    /// When it is to be asked for if nobody tells; at once when this is not known.
    due_at: Option<Instant>,
    polls: Backoff,
    /// The next [`UNHEARD`] pause; `None` where nobody listens, so that nothing is missed when the first one leaves.
    unheard: Option<Duration>,
    /// The waiter that asked last, unless there was news of the lock since.
    asker: Option<usize>,
}

#[derive(Default)]
struct Waiter {
    before: Option<usize>,
    after: Option<usize>,
    waker: Option<Waker>,
    /// A release was taken as the reason to ask, and there is no answer yet.
    owes_an_answer: bool,
}

/// Why it is worth while to ask now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The lock was released in this process, or it was never asked for.
    Released,
    /// Nobody told of it for long enough.
    Due,
}

/// A waiter's place in line; leaves it when dropped.
pub(crate) struct Ticket<'a> {
    queue: &'a WaitQueue,
    key: &'a Key,
    shard: usize,
    place: usize,
    won: bool,
}

impl WaitQueue {
    /// Lines whose first waiter polls with these pauses.
    pub(crate) fn new(polls: Backoff, notified: bool) -> Self {
        Self {
            waiting: AtomicUsize::new(0),
            releases: [const { AtomicU32::new(0) }; COUNTERS],
            shards: std::array::from_fn(|_| Mutex::default()),
            polls,
            notified,
        }
    }

    /// The same in every process: simulations repeat.
    fn hash(key: &Key) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
        let hash = FixedState::with_seed(0).hash_one(key) as usize;
        hash
    }

    fn shard(&self, number: usize) -> MutexGuard<'_, Shard> {
        self.shards[number].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether somebody waits for `key`.
    pub(crate) fn has(&self, key: &Key) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
            && self.shard(Self::hash(key) % SHARDS).lines.contains_key(key)
    }

    /// Counts the releases of `key` in this process, and of some other keys. To be read before it is asked for.
    pub(crate) fn releases(&self, key: &Key) -> u32 {
        self.releases[Self::hash(key) % COUNTERS].load(Ordering::SeqCst)
    }

    /// Takes the last place. `seen` is what [`releases`](Self::releases) was before the lock was asked for, if it was.
    pub(crate) fn join<'a>(&'a self, key: &'a Key, seen: Option<u32>) -> Ticket<'a> {
        let hash = Self::hash(key);
        let number = hash % SHARDS;
        let mut shard = self.shard(number);
        let Shard { lines, waiters } = &mut *shard;
        let place = waiters.insert(Waiter::default());
        // Before the count of releases is read: a release either sees this waiter, or is seen by it.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        if let Some(line) = lines.get_mut(key) {
            waiters[line.last].after = Some(place);
            waiters[place].before = Some(line.last);
            line.last = place;
        } else {
            let missed =
                seen.is_none_or(|seen| self.releases[hash % COUNTERS].load(Ordering::SeqCst) != seen);
            let asked_at = seen.map(|_| Instant::now());
            let line = KeyQueue {
                first: place,
                last: place,
                released: missed,
                held_here: false,
                asked_at,
                due_at: None,
                polls: self.polls.clone(),
                unheard: self.notified.then_some(UNHEARD),
                asker: None,
            };
            lines.insert(key.clone(), line);
        }
        Ticket { queue: self, key, shard: number, place, won: false }
    }

    /// The lock was released in this process: its first waiter may try.
    pub(crate) fn released(&self, key: &Key) {
        let hash = Self::hash(key);
        self.releases[hash % COUNTERS].fetch_add(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            let first = self.shard(hash % SHARDS).tell(key);
            wake(first);
        }
    }
}

/// Wakers are other people's code: they are returned, to be woken and dropped when the shard is not locked any more.
impl Shard {
    /// Returns the first waiter, to be woken.
    fn tell(&mut self, key: &Key) -> Option<Waker> {
        let line = self.lines.get_mut(key)?;
        (line.released, line.held_here, line.asker) = (true, false, None);
        self.waiters[line.first].waker.take()
    }

    /// Returns the one who left, and the one who is the first now, to be woken.
    fn leave(&mut self, key: &Key, place: usize, won: bool) -> (Option<Waker>, Option<Waker>) {
        let Some(left) = self.waiters.try_remove(place) else { return (None, None) };
        let Waiter { before, after, waker, owes_an_answer } = left;
        let mut next_waker = None;
        if let Some(before) = before {
            self.waiters[before].after = after;
        }
        if let Some(after) = after {
            self.waiters[after].before = before;
        }
        match (before, after) {
            (Some(_), Some(_)) => {}
            (Some(before), None) => {
                if let Some(line) = self.lines.get_mut(key) {
                    line.last = before;
                }
            }
            (None, Some(next)) => {
                if let Some(line) = self.lines.get_mut(key) {
                    line.first = next;
                    line.released |= owes_an_answer;
                    line.first_left(won);
                }
                next_waker = self.waiters[next].waker.take();
            }
            (None, None) => {
                self.lines.remove(key);
                if self.lines.is_empty() && self.waiters.capacity() > KEPT {
                    *self = Self::default();
                }
            }
        }
        (waker, next_waker)
    }
}

impl KeyQueue {
    /// One who leaves with the lock holds it in this process until a release tells. One who leaves without it says
    /// nothing new.
    fn first_left(&mut self, won: bool) {
        if won {
            (self.released, self.held_here, self.asker) = (false, true, None);
        } else if let (Some(due_at), Some(asked_at), Some(unheard)) =
            (self.due_at, self.asked_at, self.unheard)
        {
            self.due_at = Some(due_at.min(asked_at + unheard));
        }
    }

    /// It is asked for. Until there is an answer, whoever follows asks no earlier than after the next pause.
    fn asked(&mut self) {
        let now = Instant::now();
        (self.asked_at, self.held_here) = (Some(now), false);
        self.due_at = Some(now + self.polls.next_at_most());
        let followed = self.asker.replace(self.first).is_some_and(|last| last != self.first);
        if let Some(unheard) = &mut self.unheard {
            *unheard = if followed { (*unheard * 2).min(self.polls.at_most()) } else { UNHEARD };
        }
    }
}

impl Waiters for WaitQueue {
    fn has(&self, key: &Key) -> bool {
        Self::has(self, key)
    }
}

impl Ticket<'_> {
    fn shard(&self) -> MutexGuard<'_, Shard> {
        self.queue.shard(self.shard)
    }

    /// Applies `change` to the line, if this is its first waiter.
    fn as_first<T>(&self, change: impl FnOnce(&mut KeyQueue) -> T) -> Option<T> {
        self.shard().lines.get_mut(self.key).filter(|line| line.first == self.place).map(change)
    }

    /// Resolves when nobody waits before.
    pub(crate) async fn first(&self) {
        std::future::poll_fn(|context| self.poll_when(context, |_| true)).await;
    }

    /// Resolves when nobody waits before, and the lock is not held by one who waited here: that one's release tells.
    pub(crate) async fn may_listen(&self) {
        std::future::poll_fn(|context| self.poll_when(context, |line| !line.held_here)).await;
    }

    /// Resolves when nobody waits before and it is worth while to ask.
    pub(crate) async fn turn(&self) -> Turn {
        self.first().await;
        let released = std::future::poll_fn(|context| self.poll_when(context, |line| line.released));
        match self.as_first(|line| line.due_at).flatten() {
            None => Turn::Released,
            Some(due_at) => match tokio::time::timeout_at(due_at, released).await {
                Ok(()) => Turn::Released,
                Err(_) => Turn::Due,
            },
        }
    }

    fn poll_when(&self, context: &mut Context<'_>, test: impl FnOnce(&KeyQueue) -> bool) -> Poll<()> {
        let waker = context.waker().clone();
        let before = {
            let mut shard = self.shard();
            let Shard { lines, waiters } = &mut *shard;
            if lines.get(self.key).is_none_or(|line| line.first == self.place && test(line)) {
                return Poll::Ready(());
            }
            waiters.get_mut(self.place).and_then(|waiter| waiter.waker.replace(waker))
        };
        drop(before);
        Poll::Pending
    }

    /// The lock is asked for. A release that was the reason is known to the next one if this one leaves before the
    /// answer.
    pub(super) fn ask(&self) {
        let mut shard = self.shard();
        let Shard { lines, waiters } = &mut *shard;
        if let Some(line) = lines.get_mut(self.key).filter(|line| line.first == self.place) {
            line.asked();
            waiters[self.place].owes_an_answer |= std::mem::take(&mut line.released);
        }
    }

    /// Whoever is the first asks at once.
    pub(super) fn tell(&self) {
        let first = self.shard().tell(self.key);
        wake(first);
    }

    /// Returns the pause until the next poll, which is longer each time; `fraction` is random, of one.
    pub(super) fn next_pause(&self, fraction: f64) -> Option<Duration> {
        self.as_first(|line| line.polls.pause(fraction))
    }

    /// The lock goes from holder to holder, and may be free for moments only: the next pause is shorter.
    pub(super) fn quicken(&self) {
        self.as_first(|line| line.polls.quicken());
    }

    /// The answer was that somebody has it: to be asked for after this pause at the latest.
    pub(super) fn poll_after(&self, pause: Duration) {
        let mut shard = self.shard();
        let Shard { lines, waiters } = &mut *shard;
        if let Some(line) = lines.get_mut(self.key).filter(|line| line.first == self.place) {
            line.due_at = Some(Instant::now() + pause);
            waiters[self.place].owes_an_answer = false;
        }
    }

    /// Leaves the line with the lock. The next one waits for its release, and asks by itself after a while.
    pub(super) fn win(mut self, pause: Duration) {
        let polls = self.queue.polls.clone();
        self.as_first(|line| {
            line.polls = polls;
            line.due_at = Some(Instant::now() + pause);
        });
        self.won = true;
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let (left, next) = self.shard().leave(self.key, self.place, self.won);
        // Not before: a release that sees nobody waiting tells nobody, and one who joins meanwhile stands behind this
        // one, in a line that is taken to know of all releases.
        self.queue.waiting.fetch_sub(1, Ordering::SeqCst);
        drop_guarded(left);
        wake(next);
    }
}

impl Default for WaitQueue {
    fn default() -> Self {
        Self::new(Backoff::new(Duration::from_millis(10), Duration::from_millis(250)), true)
    }
}

impl fmt::Debug for WaitQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitQueue").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    /// Whether this resolves now.
    fn is_ready(future: impl Future) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        pin!(future).poll(&mut context).is_ready()
    }

    #[tokio::test]
    async fn a_release_that_was_not_answered_is_known_to_the_next_one() {
        let line = WaitQueue::default();
        let key = Key::new("k").unwrap();
        let (a, b, c) = (line.join(&key, None), line.join(&key, None), line.join(&key, None));
        assert_eq!(a.turn().await, Turn::Released);
        a.ask();
        a.poll_after(Duration::from_secs(60));
        assert!(!is_ready(a.turn()));
        line.released(&key);
        assert_eq!(a.turn().await, Turn::Released);
        a.ask();
        // Cancelled, or refused by the backend, with the request under way.
        drop(a);
        assert_eq!(b.turn().await, Turn::Released);
        b.ask();
        b.poll_after(Duration::from_secs(60));
        // This one has learned that somebody has it.
        drop(b);
        assert!(!is_ready(c.turn()));
    }

    #[tokio::test]
    async fn places_come_first_in_their_order_and_nothing_is_left() {
        let line = WaitQueue::default();
        let key = Key::new("k").unwrap();
        let (a, b, c) = (line.join(&key, None), line.join(&key, None), line.join(&key, None));
        a.first().await;
        assert!(!is_ready(b.first()));
        drop(b);
        drop(a);
        c.first().await;
        assert!(line.has(&key));
        drop(c);
        assert!(!line.has(&key) && line.shards.iter().all(|shard| shard.lock().unwrap().waiters.is_empty()));
    }

    #[tokio::test(start_paused = true)]
    async fn who_follows_a_holder_waits_for_its_release() {
        let line = WaitQueue::default();
        let key = Key::new("k").unwrap();
        for early in [true, false] {
            let (a, b) = (line.join(&key, None), line.join(&key, None));
            assert_eq!(a.turn().await, Turn::Released, "never asked for");
            a.ask();
            a.win(Duration::from_secs(60));
            assert!(!is_ready(b.turn()));
            if early {
                line.released(&key);
                assert_eq!(b.turn().await, Turn::Released);
            } else {
                assert_eq!(b.turn().await, Turn::Due);
            }
        }
    }

    #[tokio::test]
    async fn a_release_is_told_to_the_first_only() {
        let line = WaitQueue::default();
        let (key, other) = (Key::new("k").unwrap(), Key::new("o").unwrap());
        let seen = (line.releases(&key), line.releases(&other));
        let (a, b) = (line.join(&key, Some(seen.0)), line.join(&key, Some(seen.0)));
        let o = line.join(&other, Some(seen.1));
        for ticket in [&a, &o] {
            ticket.poll_after(Duration::from_secs(60));
        }
        line.released(&key);
        assert!(is_ready(a.turn()) && !is_ready(b.turn()) && !is_ready(o.turn()));
    }

    #[tokio::test]
    async fn a_release_before_the_place_in_line_is_known_there() {
        let line = WaitQueue::default();
        let key = Key::new("k").unwrap();
        let seen = line.releases(&key);
        line.released(&key);
        let late = line.join(&key, Some(seen));
        late.poll_after(Duration::from_secs(60));
        assert!(is_ready(late.turn()));
    }

    /// Has one waiter after the other give up, each millisecond, and returns how often they were to ask in two seconds.
    async fn asked_by_those_who_give_up(line: &WaitQueue) -> u32 {
        let key = Key::new("k").unwrap();
        let seen = Some(line.releases(&key));
        let mut tickets: std::collections::VecDeque<_> = (0..2_000).map(|_| line.join(&key, seen)).collect();
        tickets[0].ask();
        tickets[0].poll_after(Duration::from_millis(100));
        let mut asked = 0;
        while let Some(first) = tickets.front() {
            let turn = tokio::time::timeout(Duration::from_millis(1), first.turn()).await;
            if turn.is_ok() {
                asked += 1;
                first.ask();
                let pause = first.next_pause(0.5).unwrap();
                // Every other one is gone before it has an answer.
                if asked % 2 == 0 {
                    first.poll_after(pause);
                }
            }
            drop(tickets.pop_front());
        }
        asked
    }

    #[tokio::test(start_paused = true)]
    async fn who_becomes_the_first_asks_when_the_one_before_would_have() {
        let polls = Backoff::new(Duration::from_millis(50), Duration::from_millis(250));
        let asked = asked_by_those_who_give_up(&WaitQueue::new(polls.clone(), false)).await;
        assert!((8..20).contains(&asked), "{asked}");
        // Nobody listened for a moment each time.
        let asked = asked_by_those_who_give_up(&WaitQueue::new(polls, true)).await;
        assert!((8..20).contains(&asked), "{asked}");
    }

    #[tokio::test]
    async fn who_gives_up_changes_nothing_for_the_others() {
        let line = WaitQueue::default();
        let key = Key::new("k").unwrap();
        let seen = Some(line.releases(&key));
        let (a, b, c, d) =
            (line.join(&key, seen), line.join(&key, seen), line.join(&key, seen), line.join(&key, seen));
        a.ask();
        a.poll_after(Duration::from_secs(60));
        // Neither one from the middle, nor the first, who had nothing to say.
        drop(c);
        assert!(!is_ready(a.turn()) && !is_ready(b.turn()));
        drop(a);
        assert!(is_ready(b.first()) && !is_ready(b.turn()));
        // A notification that the first did not use goes on to the next.
        line.released(&key);
        drop(b);
        assert!(is_ready(d.turn()));
    }
}
