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
//! * The lock itself may be handed to the first waiter, who then need not ask. One who leaves without taking it leaves
//!   it to the next.
//! * A release between an answer and the place in line is not missed: releases are counted, and who joins compares.

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

use crate::backend::Backoff;
use crate::guarded::{drop_guarded, wake};
use crate::key::Key;
use crate::runtime::timer::Timers;
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

/// The lock itself, on its way to a waiter; dropping it releases the lock.
pub(super) type Parcel = Box<dyn Any + Send>;

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
    timers: Timers,
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
    /// It is left to others: nobody here asks, or listens, before this moment.
    back_until: Option<Instant>,
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
    /// The lease of the lock that it would take from the one before; `None` while it asks by itself.
    takes: Option<Duration>,
    parcel: Option<(Duration, Parcel)>,
}

/// One who has left: what is to be done when nothing is locked any more.
#[derive(Default)]
struct Left {
    waker: Option<Waker>,
    /// Of the one who is the first now.
    next: Option<Waker>,
    /// What was handed over, and is taken by nobody.
    parcel: Option<(Duration, Parcel)>,
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
            timers: Timers::default(),
        }
    }

    /// Has waiters use these timers.
    pub(super) fn timed_by(self, timers: Timers) -> Self {
        Self { timers, ..self }
    }

    /// The same in every process: simulations repeat.
    fn hash(key: &Key) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
        let hash = FixedState::with_seed(0).hash_one(key) as usize;
        hash
    }

    fn shard(&self, number: usize) -> MutexGuard<'_, Shard> {
        self.shards[number].lock()
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
                back_until: None,
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

    /// The lock was released, and is left to others until this moment: nobody here asks before.
    pub(super) fn stand_back(&self, key: &Key, until: Instant) {
        let hash = Self::hash(key);
        self.releases[hash % COUNTERS].fetch_add(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            let first = self.shard(hash % SHARDS).stand_back(key, until);
            wake(first);
        }
    }

    /// Passes the lock, whose lease is this long, on to the first waiter of `key`, if that one waits for its turn and
    /// wants such a lock. Gives it back otherwise.
    pub(super) fn pass_on(&self, key: &Key, lease: Duration, parcel: Parcel) -> Result<(), Parcel> {
        let first = {
            let mut shard = self.shard(Self::hash(key) % SHARDS);
            let Shard { lines, waiters } = &mut *shard;
            let Some(line) = lines.get_mut(key) else { return Err(parcel) };
            let first = &mut waiters[line.first];
            first.put((lease, parcel)).map_err(|(_, parcel)| parcel)?;
            (line.released, line.held_here, line.asker, line.back_until) = (false, true, None, None);
            first.waker.take()
        };
        wake(first);
        Ok(())
    }
}

impl Waiter {
    /// Hands it the lock, or gives the lock back if it takes no such one.
    fn put(&mut self, (lease, parcel): (Duration, Parcel)) -> Result<(), (Duration, Parcel)> {
        if self.takes != Some(lease) {
            return Err((lease, parcel));
        }
        (self.takes, self.parcel) = (None, Some((lease, parcel)));
        Ok(())
    }
}

/// Wakers are other people's code: they are returned, to be woken and dropped when the shard is not locked any more.
impl Shard {
    /// Returns the first waiter, to be woken.
    fn tell(&mut self, key: &Key) -> Option<Waker> {
        let line = self.lines.get_mut(key)?;
        (line.released, line.held_here, line.asker, line.back_until) = (true, false, None, None);
        self.waiters[line.first].waker.take()
    }

    /// Returns the first waiter, to be woken.
    fn stand_back(&mut self, key: &Key, until: Instant) -> Option<Waker> {
        let line = self.lines.get_mut(key)?;
        line.stand_back(until);
        self.waiters[line.first].waker.take()
    }

    fn leave(&mut self, key: &Key, place: usize, won: bool) -> Left {
        let Some(left) = self.waiters.try_remove(place) else { return Left::default() };
        let Waiter { before, after, waker, owes_an_answer, mut parcel, .. } = left;
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
                    line.first_left(won || parcel.is_some());
                }
                let next = &mut self.waiters[next];
                next_waker = next.waker.take();
                parcel = parcel.and_then(|parcel| next.put(parcel).err());
            }
            (None, None) => {
                self.lines.remove(key);
                if self.lines.is_empty() && self.waiters.capacity() > KEPT {
                    *self = Self::default();
                }
            }
        }
        Left { waker, next: next_waker, parcel }
    }
}

impl KeyQueue {
    /// One who leaves with the lock holds it in this process until a release tells. One who leaves without it says
    /// nothing new.
    fn first_left(&mut self, won: bool) {
        if won {
            (self.released, self.held_here, self.asker, self.back_until) = (false, true, None, None);
        } else if self.back_until.is_some() {
            // Whoever follows asks then.
        } else if let (Some(due_at), Some(asked_at), Some(unheard)) =
            (self.due_at, self.asked_at, self.unheard)
        {
            self.due_at = Some(due_at.min(asked_at + unheard));
        }
    }

    /// Nobody asks, or listens, before this moment.
    fn stand_back(&mut self, until: Instant) {
        (self.released, self.asker) = (false, None);
        (self.back_until, self.due_at) = (Some(until), Some(until));
    }

    /// It is asked for. Until there is an answer, whoever follows asks no earlier than after the next pause.
    fn asked(&mut self) {
        let now = Instant::now();
        (self.asked_at, self.held_here, self.back_until) = (Some(now), false, None);
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

    /// Whether nobody waits before.
    pub(super) fn is_first(&self) -> bool {
        self.as_first(|_| ()).is_some()
    }

    /// Resolves when nobody waits before.
    pub(crate) async fn first(&self) {
        std::future::poll_fn(|context| self.poll_when(context, |_| true)).await;
    }

    /// Resolves when nobody waits before, and the lock is not held by one who waited here: that one's release tells.
    pub(crate) async fn may_listen(&self) {
        std::future::poll_fn(|context| {
            self.poll_when(context, |line| !line.held_here && line.back_until.is_none())
        })
        .await;
    }

    /// Resolves when nobody waits before and it is worth while to ask, or the lock is there to be
    /// [taken](Self::take_parcel).
    pub(crate) async fn turn(&self) -> Turn {
        self.first().await;
        loop {
            let due_at = match self.as_first(|line| (line.released, line.due_at)) {
                Some((false, Some(due_at))) => due_at,
                _ => return Turn::Released,
            };
            let changed = |line: &KeyQueue| line.released || line.due_at != Some(due_at);
            let changed = std::future::poll_fn(|context| self.poll_when(context, changed));
            if self.queue.timers.until(due_at, changed).await.is_none() {
                return Turn::Due;
            }
            if self.has_parcel() {
                return Turn::Released;
            }
        }
    }

    /// Takes the lock from the one before, if it has such a lease, until this one asks by itself.
    pub(super) fn accept(&self, lease: Duration) {
        if let Some(waiter) = self.shard().waiters.get_mut(self.place) {
            waiter.takes = Some(lease);
        }
    }

    /// Resolves when the lock is there to be [taken](Self::take_parcel).
    pub(super) async fn passed_on(&self) {
        std::future::poll_fn(|context| self.poll_when(context, |_| false)).await;
    }

    /// Resolves when the lock is there to be [taken](Self::take_parcel), or this is the first waiter of a lock that was
    /// released. Returns which.
    pub(super) async fn passed_on_or_released(&self) -> bool {
        std::future::poll_fn(|context| self.poll_when(context, |line| line.released)).await;
        self.has_parcel()
    }

    fn has_parcel(&self) -> bool {
        self.shard().waiters.get(self.place).is_some_and(|waiter| waiter.parcel.is_some())
    }

    /// The lock, if it was passed on to this one.
    pub(super) fn take_parcel(&self) -> Option<Parcel> {
        let mut shard = self.shard();
        shard.waiters.get_mut(self.place)?.parcel.take().map(|(_, parcel)| parcel)
    }

    /// How many wait behind, counted up to `most`.
    pub(super) fn followers(&self, most: usize) -> usize {
        let shard = self.shard();
        let after = |place: usize| shard.waiters.get(place).and_then(|waiter| waiter.after);
        std::iter::successors(after(self.place), |place| after(*place)).take(most).count()
    }

    /// Whether the lock is left to others.
    pub(super) fn stands_back(&self) -> bool {
        self.as_first(|line| line.back_until.is_some()).unwrap_or_default()
    }

    /// Nobody here asks before this moment.
    pub(super) fn stand_back(&self, until: Instant) {
        self.as_first(|line| line.stand_back(until));
    }

    fn poll_when(&self, context: &mut Context<'_>, test: impl FnOnce(&KeyQueue) -> bool) -> Poll<()> {
        let waker = context.waker().clone();
        let before = {
            let mut shard = self.shard();
            let Shard { lines, waiters } = &mut *shard;
            let ready = |line: &KeyQueue| line.first == self.place && test(line);
            let Some(waiter) = waiters.get_mut(self.place) else { return Poll::Ready(()) };
            if waiter.parcel.is_some() || lines.get(self.key).is_none_or(ready) {
                return Poll::Ready(());
            }
            waiter.waker.replace(waker)
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
            waiters[self.place].takes = None;
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
            // One that stands back since it asked does so in any case.
            line.due_at = line.back_until.or_else(|| Some(Instant::now() + pause));
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
        let Left { waker, next, parcel } = self.shard().leave(self.key, self.place, self.won);
        // Not before: a release that sees nobody waiting tells nobody, and one who joins meanwhile stands behind this
        // one, in a line that is taken to know of all releases.
        self.queue.waiting.fetch_sub(1, Ordering::SeqCst);
        drop_guarded(waker);
        // The next in line did not want it: released.
        drop(parcel);
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
mod tests;
