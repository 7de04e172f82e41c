//! The waiters of this process, in one queue per key.
//!
//! If the backend has no queue of its own, only the first waiter of a key asks it; the others wait here, in their
//! order. A release in this process wakes the first waiter at once, and no waiter asks while the lock is known to be
//! held in this process. So a herd of local waiters costs the server no more than one waiter, and a handoff costs no
//! more than its release and its acquire.
//!
//! When the first waiter of a key asks is decided by the [`AskPlan`] of its queue. Readers are also invited to ask
//! beside others, see [`readers`].
//!
//! * Only the waiter that becomes the first is woken. A waiter that leaves from the middle wakes none, and costs the
//!   same whatever the length of the queue.
//! * The lock itself may be handed to the first waiter, which then need not ask. A waiter that leaves without taking it
//!   leaves it to the next.
//! * A release between an answer and the place in the queue is not missed: releases are counted, and `join` compares.

pub(crate) mod ask;
mod readers;
mod waiter;

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::hash::BuildHasher;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use foldhash::fast::RandomState;
use foldhash::quality::FixedState;
use slab::Slab;
use tokio::time::Instant;

use crate::backend::PauseLimit;
use crate::guarded::{drop_guarded, wake};
use crate::key::Key;
use crate::runtime::timer::Timers;
use crate::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::telemetry::Waiters;
use ask::{AskAt, AskPlan};
use readers::Reader;
use waiter::Waiter;

/// The number of shards. Keys of different shards do not wait for each other.
const SHARDS: usize = 32;
/// The number of counters of releases. Keys that share a counter cost each other a needless request now and then, and
/// never a missed release.
const COUNTERS: usize = 512;
/// A shard that had more waiters than this frees its memory when all have left.
const KEPT: usize = 256;

/// The lock itself, on its way to a waiter; dropping it releases the lock.
pub(super) type Offer = Box<dyn Any + Send>;

/// The queues of all keys.
pub(crate) struct WaitQueue {
    /// The number of waiters of all keys, so that the common case need not look.
    waiting: AtomicUsize,
    releases: [AtomicU32; COUNTERS],
    shards: [Mutex<Shard>; SHARDS],
    /// The pauses between polls that a new queue begins with.
    polls: PauseLimit,
    /// Is `true` if the first waiter is notified of releases elsewhere.
    notified: bool,
    timers: Timers,
}

#[derive(Default)]
struct Shard {
    lines: HashMap<Key, KeyQueue, RandomState>,
    waiters: Slab<Waiter>,
}

/// The waiters of one key, and what is known of its lock.
struct KeyQueue {
    first: usize,
    last: usize,
    plan: AskPlan,
    /// The number of readers that are not invited, so that a grant need not look for them.
    readers: usize,
}

/// The remains of a waiter that has left, to be dealt with after the shard is unlocked.
#[derive(Default)]
struct Left {
    waker: Option<Waker>,
    /// The waker of the waiter that is the first now.
    next: Option<Waker>,
    /// The waker of the reader that is invited in its place.
    invited: Option<Waker>,
    /// A lock that was handed over, and that the next waiter does not take either.
    offer: Option<(Duration, Offer)>,
}

/// The reason why an attempt is worth while now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The lock was released in this process, or it was never asked for.
    Released,
    /// The pause ended without a notification.
    Due,
}

/// A waiter's place in its queue, which it leaves when dropped.
pub(crate) struct Ticket<'a> {
    queue: &'a WaitQueue,
    key: &'a Key,
    shard: usize,
    place: usize,
    /// The pause of the waiter behind, where this one leaves with the lock.
    won: Option<Duration>,
}

impl WaitQueue {
    /// Creates queues whose first waiter polls with these pauses.
    pub(crate) fn new(polls: PauseLimit, notified: bool) -> Self {
        Self {
            waiting: AtomicUsize::new(0),
            releases: [const { AtomicU32::new(0) }; COUNTERS],
            shards: std::array::from_fn(|_| Mutex::default()),
            polls,
            notified,
            timers: Timers::default(),
        }
    }

    /// Has waiters use these timers.
    pub(super) fn timed_by(self, timers: Timers) -> Self {
        Self { timers, ..self }
    }

    /// Hashes a key to the same number in every process, so that simulations repeat.
    fn hash(key: &Key) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
        let hash = FixedState::with_seed(0).hash_one(key) as usize;
        hash
    }

    fn shard(&self, number: usize) -> MutexGuard<'_, Shard> {
        self.shards[number].lock()
    }

    /// Is `true` if a waiter of this process waits for `key`.
    pub(crate) fn has(&self, key: &Key) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
            && self.shard(Self::hash(key) % SHARDS).lines.contains_key(key)
    }

    /// Returns the number of releases in this process of `key` and the keys that share its counter. The number is read
    /// before a request is sent, and passed to [`join`](Self::join).
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
        // A queue that exists is notified of each release, so that `seen` is compared only for the first waiter of a
        // new one.
        if let Some(line) = lines.get_mut(key) {
            waiters[line.last].after = Some(place);
            waiters[place].before = Some(line.last);
            line.last = place;
        } else {
            let missed =
                seen.is_none_or(|seen| self.releases[hash % COUNTERS].load(Ordering::SeqCst) != seen);
            // A waiter that has asked before it joined is taken to have asked just now, which puts a poll off by no
            // more than the way of that answer.
            let asked_at = seen.map(|_| Instant::now());
            let plan = AskPlan::new(self.polls, self.notified, asked_at, missed);
            let line = KeyQueue { first: place, last: place, plan, readers: 0 };
            lines.insert(key.clone(), line);
        }
        Ticket { queue: self, key, shard: number, place, won: None }
    }

    /// Notes that the lock was released in this process: its first waiter may try.
    pub(crate) fn released(&self, key: &Key) {
        let hash = Self::hash(key);
        // Counted before `waiting` is read, the reverse of `join`: a waiter that is not seen here sees the count there.
        self.releases[hash % COUNTERS].fetch_add(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            let first = self.shard(hash % SHARDS).tell(key);
            wake(first);
        }
    }

    /// Notes that the lock was released, and is left to other processes until this moment: no waiter here asks before.
    pub(super) fn yield_until(&self, key: &Key, until: Instant) {
        let hash = Self::hash(key);
        // Counted as any release: a waiter that has asked and joins later learns from it that its answer is old.
        self.releases[hash % COUNTERS].fetch_add(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            let first = self.shard(hash % SHARDS).yield_until(key, until);
            wake(first);
        }
    }

    /// Passes the lock, whose lease is this long, on to the first waiter of `key`, if that waits for its turn and wants
    /// such a lock. Returns the lock otherwise.
    pub(super) fn hand_off(&self, key: &Key, lease: Duration, offer: Offer) -> Result<(), Offer> {
        let first = {
            let mut shard = self.shard(Self::hash(key) % SHARDS);
            let Shard { lines, waiters } = &mut *shard;
            let Some(line) = lines.get_mut(key) else { return Err(offer) };
            // The first waiter alone is offered the lock, also where a later one would take it: no waiter is overtaken.
            let first = &mut waiters[line.first];
            first.put((lease, offer)).map_err(|(_, offer)| offer)?;
            line.plan.is_passed_on();
            first.waker.take()
        };
        wake(first);
        Ok(())
    }
}

/// Wakers are code of others: they are returned, to be woken and dropped after the shard is unlocked.
impl Shard {
    /// Returns the first waiter, to be woken.
    fn tell(&mut self, key: &Key) -> Option<Waker> {
        let line = self.lines.get_mut(key)?;
        line.plan.released();
        self.waiters[line.first].waker.take()
    }

    /// Returns the first waiter, to be woken.
    fn yield_until(&mut self, key: &Key, until: Instant) -> Option<Waker> {
        let line = self.lines.get_mut(key)?;
        line.plan.yields(until);
        self.waiters[line.first].waker.take()
    }

    fn leave(&mut self, key: &Key, place: usize, won: Option<Duration>) -> Left {
        // A ticket leaves once, so that its place is there.
        let Some(left) = self.waiters.try_remove(place) else { return Left::default() };
        let Waiter { before, after, waker, reader, mut offer, .. } = left;
        let mut next_waker = None;
        if let Some(line) = self.lines.get_mut(key).filter(|_| reader == Reader::Waits) {
            line.readers -= 1;
        }
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
                    match won {
                        Some(pause) => line.plan.wins(Instant::now(), pause),
                        None if offer.is_some() => line.plan.is_passed_on(),
                        None => line.plan.gives_up(),
                    }
                }
                let next = &mut self.waiters[next];
                next_waker = next.waker.take();
                // The plan takes the lock for held here also if the next waiter declines: dropping the lock then
                // releases it, which notifies.
                offer = offer.and_then(|offer| next.put(offer).err());
            }
            (None, None) => {
                // All that was known of the lock goes with the last waiter. A waiter that comes later compares the
                // releases.
                self.lines.remove(key);
                // The slab holds the waiters of all keys of the shard. It is empty here, so that no place is lost.
                if self.lines.is_empty() && self.waiters.capacity() > KEPT {
                    *self = Self::default();
                }
            }
        }
        // An invitation that was not answered is one for the next reader: it may be the only one.
        let invited = if reader == Reader::Invited { self.invite_readers(key, 1).pop() } else { None };
        Left { waker, next: next_waker, invited, offer }
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

    /// Is `true` if this waiter is the first.
    pub(super) fn is_first(&self) -> bool {
        self.as_first(|_| ()).is_some()
    }

    /// Resolves when this waiter is the first.
    pub(crate) async fn first(&self) {
        std::future::poll_fn(|context| self.poll_when(context, |_| true)).await;
    }

    /// Resolves when this waiter is the first, and no former waiter of this queue holds the lock: its release is
    /// reported without a listener.
    pub(crate) async fn may_listen(&self) {
        std::future::poll_fn(|context| self.poll_when(context, |line| line.plan.listens())).await;
    }

    /// Resolves when this waiter is the first and an attempt is worth while, or the lock is there to be
    /// [taken](Self::take_offer).
    pub(crate) async fn turn(&self) -> Turn {
        self.first().await;
        loop {
            let ask_at = self.as_first(|line| line.plan.ask_at());
            let Some(AskAt::Due(due_at)) = ask_at else { return Turn::Released };
            // A later moment ends the wait too: the timer below is set for the old one.
            let changed = |line: &KeyQueue| line.plan.ask_at() != AskAt::Due(due_at);
            let changed = std::future::poll_fn(|context| self.poll_when(context, changed));
            if self.queue.timers.until(due_at, changed).await.is_none() {
                return Turn::Due;
            }
            // With an offer or an invitation every wait ends at once: without this look the loop would spin.
            if self.is_called() {
                return Turn::Released;
            }
        }
    }

    /// Accepts a lock with this lease from the section before, until this waiter asks by itself.
    pub(super) fn accept(&self, lease: Duration) {
        if let Some(waiter) = self.shard().waiters.get_mut(self.place) {
            waiter.takes = Some(lease);
        }
    }

    /// Resolves when the lock is there to be [taken](Self::take_offer).
    pub(super) async fn passed_on(&self) {
        std::future::poll_fn(|context| self.poll_when(context, |_| false)).await;
    }

    /// Resolves when the lock is there to be [taken](Self::take_offer), or this is the first waiter of a lock that was
    /// released. Returns which.
    pub(super) async fn passed_on_or_released(&self) -> bool {
        std::future::poll_fn(|context| self.poll_when(context, |line| line.plan.has_news())).await;
        self.has_offer()
    }

    fn is_called(&self) -> bool {
        self.shard().waiters.get(self.place).is_some_and(Waiter::is_called)
    }

    fn has_offer(&self) -> bool {
        self.shard().waiters.get(self.place).is_some_and(|waiter| waiter.offer.is_some())
    }

    /// Takes the lock, if it was passed on to this waiter.
    pub(super) fn take_offer(&self) -> Option<Offer> {
        let mut shard = self.shard();
        shard.waiters.get_mut(self.place)?.offer.take().map(|(_, offer)| offer)
    }

    /// Returns the number of waiters behind this one, counted up to `most`.
    pub(super) fn followers(&self, most: usize) -> usize {
        let shard = self.shard();
        let after = |place: usize| shard.waiters.get(place).and_then(|waiter| waiter.after);
        std::iter::successors(after(self.place), |place| after(*place)).take(most).count()
    }

    /// Is `true` if this waiter is the first and the lock is left to other processes.
    pub(super) fn yields(&self) -> bool {
        self.as_first(|line| line.plan.is_yielded()).unwrap_or_default()
    }

    /// Keeps the waiters of this queue from asking before this moment, if this waiter is the first.
    pub(super) fn yield_until(&self, until: Instant) {
        self.as_first(|line| line.plan.yields(until));
    }

    fn poll_when(&self, context: &mut Context<'_>, test: impl FnOnce(&KeyQueue) -> bool) -> Poll<()> {
        // Cloned before the shard is locked, and the old one dropped after: both may run code of others.
        let waker = context.waker().clone();
        let before = {
            let mut shard = self.shard();
            let Shard { lines, waiters } = &mut *shard;
            let ready = |line: &KeyQueue| line.first == self.place && test(line);
            // A place that is gone has nothing to wait for; a wait that never ended would be worse than one that ends
            // early.
            let Some(waiter) = waiters.get_mut(self.place) else { return Poll::Ready(()) };
            // An offer ends every wait, whatever it is for, and so does an invitation. The test and the waker are under
            // one lock, so no wake-up is lost.
            if waiter.is_called() || lines.get(self.key).is_none_or(ready) {
                return Poll::Ready(());
            }
            waiter.waker.replace(waker)
        };
        drop(before);
        Poll::Pending
    }

    /// Notes that the lock is being asked for. If a release was the reason, and this waiter leaves before the answer,
    /// the next waiter learns of the release. A reader is invited to ask beside a writer: it may be the readers' turn.
    pub(super) fn ask(&self) {
        let reader = {
            let mut shard = self.shard();
            shard.asks_as_reader(self.key, self.place);
            let Shard { lines, waiters } = &mut *shard;
            let Some(line) = lines.get_mut(self.key).filter(|line| line.first == self.place) else { return };
            line.plan.asks(Instant::now());
            let waiter = &mut waiters[self.place];
            // From here on the request may be granted: an offer that came beside it would be a second hold.
            waiter.takes = None;
            match waiter.reader {
                Reader::No => shard.invite_readers(self.key, 1).pop(),
                _ => None,
            }
        };
        wake(reader);
    }

    /// Has the first waiter ask at once.
    pub(super) fn tell(&self) {
        let first = self.shard().tell(self.key);
        wake(first);
    }

    /// Returns the pause until the next poll, which is longer each time. `fraction` is random, from 0 to 1.
    pub(super) fn next_pause(&self, fraction: f64) -> Option<Duration> {
        self.as_first(|line| line.plan.next_pause(fraction))
    }

    /// Makes the next pause shorter: the lock goes from holder to holder, and may be free for moments only.
    pub(super) fn speed_up(&self) {
        self.as_first(|line| line.plan.speed_up());
    }

    /// Notes the answer that the lock has a holder: it is asked for again after this pause at the latest.
    pub(super) fn poll_after(&self, pause: Duration) {
        let mut shard = self.shard();
        shard.answered_as_reader(self.key, self.place);
        if let Some(line) = shard.lines.get_mut(self.key).filter(|line| line.first == self.place) {
            line.plan.answered(Instant::now(), pause);
        }
    }

    /// Leaves the queue with the lock. The next waiter waits for its release, and asks by itself after `pause`.
    pub(super) fn win(mut self, pause: Duration) {
        self.won = Some(pause);
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let Left { waker, next, invited, offer } = self.shard().leave(self.key, self.place, self.won);
        // Last: a release that reads zero here notifies no waiter. A waiter that joins meanwhile stands behind this
        // one, in a queue that is taken to know of all releases, and would not compare the counts.
        self.queue.waiting.fetch_sub(1, Ordering::SeqCst);
        drop_guarded(waker);
        // The next waiter did not want the lock: dropping it has it released.
        drop(offer);
        wake(next);
        wake(invited);
    }
}

impl Default for WaitQueue {
    fn default() -> Self {
        Self::new(PauseLimit::new(Duration::from_millis(10), Duration::from_millis(250)), true)
    }
}

impl fmt::Debug for WaitQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitQueue").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
