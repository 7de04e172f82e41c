//! The bound on how long one process goes on with a lock that others want.
//!
//! A tenure is the sections of one process that follow each other, passed on or acquired anew, without another process
//! between them. It ends after 64 sections or 50 ms ([`HandoffLimits`]) where others wait elsewhere: the process then
//! yields for a moment, so that one of them has the lock. Where no other process is known to wait, nothing is
//! remembered and the process does not yield; the time alone bounds for how long the lock is passed on without a
//! request.
//!
//! The order of the others depends on how the backend notifies them, and some would be the last each time. So where the
//! backend counts them, each process lets as many of the releases pass as there are others that wait for longer, after
//! its own tenure: it asks a little later after these, and at once after the next one.
//!
//! A process that is far away needs a longer moment, and is seen to wait now and then only. So a sighting counts for a
//! while, and some pauses of a process that finds the lock free after each of them are longer.
//!
//! A reader that waits elsewhere is let in at the next release on the server, before all writers, and not while the
//! lock passes from section to section here. So a process that has seen one passes the lock on for a short time only.
//! It does not yield for that: where no reader waits at a release, the next section here goes on. Where readers wait
//! here too, the first of them in line ends the passing on, and no other bound is needed.
//!
//! The turn of readers ends no tenure: the writers elsewhere wait on, and readers that come again and again would have
//! this process begin anew each time, and never yield. The time that readers have does not count.
//!
//! Between two sections of this process a key has one of these states:
//!
//! ```text
//! state           entry                          left by
//! forgotten       none                           a release while others wait: goes on, or yields
//! goes on         tenure                         a grant: one section more; another holder: forgotten, but a reader
//!                                                that was seen to wait
//! yields          tenure, yields_until           a grant: a new tenure, with its pauses; another holder: see below
//! yields turns    lets_pass > 0, no tenure       lets_pass releases elsewhere, or lets_pass_until
//! knows readers   reader_at, no tenure           a grant; REMEMBERED
//! ```
//!
//! Another holder ends the tenure of a process that yields; what is left is its turns and the reader that it has seen,
//! if there are any.

use std::collections::HashMap;
use std::time::Duration;

use foldhash::fast::RandomState;
use tokio::time::Instant;

use crate::backend::OthersWaiting;
use crate::clock::Timestamp;
use crate::error::Failure;
use crate::holder::Holder;
use crate::key::Key;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicUsize, Ordering};

/// The largest number of fences that are reserved at once, where no other process was seen to wait. The time of a
/// tenure bounds the wait of others.
const BLOCK: u32 = 256;
/// The number of them for each local waiter. Not more: a counter that keeps up with a clock is not to run ahead of it,
/// also where thousands of keys with a waiter or two are granted in each second.
const FOR_EACH: u32 = 8;
/// The number of waiters from which on a whole block is reserved.
pub(super) const MOST_FOLLOWERS: usize = (BLOCK / FOR_EACH) as usize;
/// The delay of this process's attempt after a release, for each release that it lets pass from then on. It is about as
/// long as a tenure for five of them, so that most processes that are not in turn do not ask in vain; and where those
/// before it are gone, the lock is free for no longer.
const LATER: Duration = Duration::from_millis(10);
/// The largest number of turns that a process yields: with more processes than this, each waits as if there were so
/// many.
const MOST_LET_PASS: u32 = 32;
/// The time after which the memory of a lock is of no use.
const REMEMBERED: Duration = Duration::from_secs(1);
/// The time for which others that were seen to wait are taken to wait: the way to a process that is far and back, and
/// its own waits on it.
const SEEN: Duration = Duration::from_millis(250);
/// The time for which a process passes a lock on where it has seen a reader wait elsewhere within [`REMEMBERED`]. Not
/// shorter: where most read and some write, a turn of the readers after each writer costs more than it gives, and
/// writers that follow each other share one.
const WITH_READERS: Duration = Duration::from_millis(10);
/// The same after a grant of the backend that follows a section here, with no reader between: one that came at the
/// moment of the grant is not seen before the next release. Long enough for a request to cost little beside it.
const NEXT_WITH_READERS: Duration = Duration::from_millis(5);
/// The number of keys from which on entries that are of no use any more are removed.
const KEYS: usize = 256;
/// Every so many pauses, one is longer: twice as long as the last such one, up to [`LONGEST_PAUSE`], and then as short
/// as the first again. A process that keeps a far one waiting lets it in within a second or so, and a process that
/// keeps no other waiting, but is taken to, loses a fifth of its time.
const LONGER_EACH: u32 = 4;
const LONGEST_PAUSE: Duration = Duration::from_millis(80);

/// The bounds of a tenure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HandoffLimits {
    pub(crate) sections: u32,
    pub(crate) time: Duration,
}

impl Default for HandoffLimits {
    fn default() -> Self {
        Self { sections: 64, time: Duration::from_millis(50) }
    }
}

impl HandoffLimits {
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if !(1..=BLOCK).contains(&self.sections) {
            return Err(Failure::invalid_config(format!(
                "the handoff limit is {} sections; use 1 to {BLOCK}",
                self.sections
            )));
        }
        if !(Duration::from_millis(1)..=Duration::from_secs(10)).contains(&self.time) {
            return Err(Failure::invalid_config(format!(
                "the handoff time is {:?}; use 1 ms to 10 s",
                self.time
            )));
        }
        Ok(())
    }
}

/// The sections of this process that followed each other so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tenure {
    since: Timestamp,
    /// The time until which it passes the lock on where readers wait elsewhere; counted from each grant of the backend.
    with_readers_until: Timestamp,
    sections: u32,
    /// The number of tenures that ended in a pause since another process was found to have the lock.
    pauses: u32,
    /// The time at which others were seen to wait.
    seen_at: Option<Timestamp>,
    /// The time at which a reader was seen to wait.
    reader_at: Option<Timestamp>,
}

impl Tenure {
    /// Begins a tenure, with its first section.
    pub(super) fn begin(now: Timestamp) -> Self {
        let with_readers_until = now + WITH_READERS;
        Self { since: now, with_readers_until, sections: 1, pauses: 0, seen_at: None, reader_at: None }
    }

    /// Adds one section.
    pub(super) const fn next(self) -> Self {
        Self { sections: self.sections.saturating_add(1), ..self }
    }

    /// Adds one section, which the backend granted. The time of readers that had their turn since `left_at` is left
    /// out.
    fn next_granted(self, now: Timestamp, left_at: Timestamp, readers_turn: bool) -> Self {
        let (others_had_it, passes_on) = match readers_turn {
            true => (now.since(left_at), WITH_READERS),
            false => (Duration::ZERO, NEXT_WITH_READERS),
        };
        Self { since: self.since + others_had_it, with_readers_until: now + passes_on, ..self.next() }
    }

    /// Is `true` if others were kept waiting for as long as they may be.
    const fn is_over(&self, limits: &HandoffLimits, now: Timestamp) -> bool {
        self.sections >= limits.sections || now.since(self.since).as_nanos() >= limits.time.as_nanos()
    }

    /// Is `true` if the next section must be granted by the backend. That bounds a tenure also where no other process
    /// is known to wait. `readers_wait_here` is asked only where it matters.
    pub(super) fn ends_passing_on(
        &self,
        limits: &HandoffLimits,
        now: Timestamp,
        readers_wait_here: impl FnOnce() -> bool,
    ) -> bool {
        now.since(self.since) >= limits.time
            || now >= self.with_readers_until && self.knows_readers(now) && !readers_wait_here()
    }

    /// Is `true` if a reader was seen to wait, and may wait again.
    fn knows_readers(&self, now: Timestamp) -> bool {
        self.reader_at.is_some_and(|at| now.since(at) < REMEMBERED)
    }
}

/// The tenures of locks that others want, between two sections.
pub(crate) struct Tenures {
    limits: HandoffLimits,
    /// The shortest time for which this process yields.
    pause: Duration,
    /// The number of keys, so that the common case need not look.
    count: AtomicUsize,
    recent: Mutex<RecentKeys>,
}

struct RecentKeys {
    keys: HashMap<Key, Recent, RandomState>,
    /// The number of keys at which entries that are of no use any more are removed.
    crowded_at: usize,
}

struct Recent {
    /// The tenure that goes on; `None` when another process has had the lock since.
    tenure: Option<Tenure>,
    left_at: Timestamp,
    /// The end of the time in which this process does not ask.
    yields_until: Option<Instant>,
    /// The number of releases by others after which it leaves the lock to them, and until when that counts.
    lets_pass: u32,
    lets_pass_until: Timestamp,
    /// The time at which a reader was seen to wait.
    reader_at: Option<Timestamp>,
    /// Is `true` if one was seen at the last release: the lock is a reader's next, and then any writer's.
    readers_turn: bool,
}

impl Recent {
    /// Ends what another holder ends. Returns whether nothing is left.
    fn end(&mut self) -> bool {
        // The turns outlive the tenure: they are counted by the releases of the others. `yields_until` ends with it:
        // the lock did go to another process, which is all that the yield was for.
        // What is known of readers outlives it too.
        (self.tenure, self.yields_until) = (None, None);
        self.lets_pass == 0 && self.reader_at.is_none()
    }
}

impl Tenures {
    pub(super) fn new(limits: HandoffLimits, pause: Duration) -> Self {
        let recent = RecentKeys { keys: HashMap::default(), crowded_at: KEYS };
        Self { limits, pause, count: AtomicUsize::new(0), recent: Mutex::new(recent) }
    }

    pub(super) const fn limits(&self) -> &HandoffLimits {
        &self.limits
    }

    fn change<T>(&self, change: impl FnOnce(&mut RecentKeys) -> T) -> T {
        let mut recent = self.recent.lock();
        let result = change(&mut recent);
        self.count.store(recent.keys.len(), Ordering::SeqCst);
        result
    }

    /// Returns the time until which this process yields `key`; `None` when it does not.
    pub(super) fn yields_until(&self, key: &Key) -> Option<Instant> {
        // Most locks are contended by one process only: these cost a load here, and no mutex.
        if self.count.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let until = self.change(|recent| recent.keys.get(key)?.yields_until);
        until.filter(|until| *until > Instant::now())
    }

    /// Returns the number of fences to reserve for `followers` that wait behind: no more than the sections left of a
    /// tenure that goes on. `contended` is `true` if another process had the lock.
    pub(super) fn block(&self, key: &Key, followers: usize, contended: bool) -> u32 {
        // `MOST_FOLLOWERS` is such that the product is a block at most.
        let wanted = u32::try_from(followers.min(MOST_FOLLOWERS)).unwrap_or(BLOCK) * FOR_EACH;
        if wanted == 0 {
            return 1;
        }
        let sections = match self.count.load(Ordering::SeqCst) {
            0 => None,
            _ => self.change(|recent| {
                recent.keys.get(key).map(|recent| match (recent.yields_until, recent.tenure) {
                    (None, Some(tenure)) => tenure.sections,
                    // It yields, or another process has had the lock: the next grant begins a new tenure.
                    _ => 0,
                })
            }),
        };
        let left = match sections {
            Some(sections) => self.limits.sections.saturating_sub(sections).max(1),
            // Another process had the lock, so sections bound the tenure too; otherwise only time does.
            None if contended => self.limits.sections,
            None => BLOCK,
        };
        wanted.min(left)
    }

    /// Returns the tenure that a grant at `now` belongs to.
    pub(super) fn granted(&self, key: &Key, now: Timestamp) -> Tenure {
        // Removed and not read: while the lock is held its hold has the tenure, and `released` puts it back where
        // others wait.
        let before = match self.count.load(Ordering::SeqCst) {
            0 => None,
            _ => self.change(|recent| recent.keys.remove(key)),
        };
        let before = before.filter(|before| now.since(before.left_at) < REMEMBERED);
        let reader_at = before.as_ref().and_then(|before| before.reader_at);
        let tenure = match before {
            Some(Recent { tenure: Some(tenure), yields_until: None, readers_turn, left_at, .. }) => {
                tenure.next_granted(now, left_at, readers_turn)
            }
            // This process yielded and still got the lock: no other process waits, or it is too far away to use the
            // gap.
            Some(Recent { tenure: Some(Tenure { pauses, seen_at, .. }), .. }) => {
                Tenure { pauses, seen_at, ..Tenure::begin(now) }
            }
            Some(Recent { tenure: None, .. }) | None => Tenure::begin(now),
        };
        Tenure { reader_at, ..tenure }
    }

    /// Notes that the lock was found to be taken, and by whom, as far as the backend says so.
    pub(super) fn found_taken(&self, key: &Key, holder: Option<&Holder>) {
        self.end_unless(key, |of| {
            // In their turn readers are there, or about to come.
            let reads = holder.is_none_or(|holder| !holder.mode.is_exclusive());
            reads && of.readers_turn && of.yields_until.is_none()
        });
    }

    /// Notes that another process has the lock.
    pub(super) fn ended(&self, key: &Key) {
        self.end_unless(key, |_| false);
    }

    fn end_unless(&self, key: &Key, goes_on: impl FnOnce(&Recent) -> bool) {
        if self.count.load(Ordering::SeqCst) > 0 {
            self.change(|recent| {
                if recent.keys.get_mut(key).is_some_and(|of| !goes_on(of) && of.end()) {
                    recent.keys.remove(key);
                }
            });
        }
    }

    /// Returns how long to leave `key`, which another process has just released, to processes that wait for longer, if
    /// there are any.
    pub(super) fn released_elsewhere(&self, key: &Key, now: impl FnOnce() -> Timestamp) -> Option<Duration> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return None;
        }
        self.change(|recent| {
            let of = recent.keys.get_mut(key).filter(|of| of.lets_pass > 0)?;
            // Taken first, so that turns which are void are gone with this look.
            let turns = std::mem::take(&mut of.lets_pass);
            // The others are gone, or slower than their bound: their turns are void.
            if now() >= of.lets_pass_until {
                return None;
            }
            of.lets_pass = turns - 1;
            Some(LATER * turns)
        })
    }

    /// Notes a release. Returns until when this process yields, if others wait elsewhere and had to wait for long.
    pub(super) fn released(
        &self,
        key: &Key,
        mut tenure: Tenure,
        others: OthersWaiting,
        now: impl FnOnce() -> Timestamp,
    ) -> Option<Instant> {
        if others == OthersWaiting::NONE && tenure.seen_at.is_none() && tenure.reader_at.is_none() {
            self.ended(key);
            return None;
        }
        // The clock is read only where others are known to wait.
        let now = now();
        if others.count > 0 {
            tenure.seen_at = Some(now);
        }
        if others.reader {
            tenure.reader_at = Some(now);
        }
        // A backend may see a far waiter now and then only, so that the last sighting counts for a while.
        let others_wait = tenure.seen_at.is_some_and(|seen_at| now.since(seen_at) <= SEEN);
        if !others_wait && !tenure.knows_readers(now) {
            self.ended(key);
            return None;
        }
        let yields_until = (others_wait && tenure.is_over(&self.limits, now)).then(|| {
            tenure.pauses = tenure.pauses.saturating_add(1);
            Instant::now() + self.pause_after(tenure.pauses)
        });
        // One less than wait: the pause itself lets the first of them in. The last of them has its turn at the release
        // after which this process asks at once.
        let lets_pass =
            if yields_until.is_some() { others.count.saturating_sub(1).min(MOST_LET_PASS) } else { 0 };
        // Twice a tenure for each of them, which has to learn of its turn, and for the first of them, which the pause
        // lets in.
        let lets_pass_until = now + self.limits.time * 2 * (lets_pass + 1);
        self.change(|recent| {
            // Swept when the map has doubled, so that the cost for each release stays constant.
            if recent.keys.len() >= recent.crowded_at {
                recent.keys.retain(|_, other| now.since(other.left_at) < REMEMBERED);
                recent.crowded_at = KEYS.max(recent.keys.len() * 2);
            }
            let (tenure, reader_at) = (others_wait.then_some(tenure), tenure.reader_at);
            let readers_turn = others.reader;
            let of = Recent {
                tenure,
                left_at: now,
                yields_until,
                lets_pass,
                lets_pass_until,
                reader_at,
                readers_turn,
            };
            recent.keys.insert(key.clone(), of);
        });
        yields_until
    }

    /// Returns how long this process yields after so many tenures.
    fn pause_after(&self, tenures: u32) -> Duration {
        // Doubled up to four times, and then from the beginning: no process is slowed down for good by a wrong guess.
        let longer = (tenures / LONGER_EACH).saturating_sub(1) % 4 + 1;
        match tenures % LONGER_EACH {
            0 => (self.pause * (1 << longer)).min(LONGEST_PAUSE).max(self.pause),
            _ => self.pause,
        }
    }
}

#[cfg(test)]
mod tests;
