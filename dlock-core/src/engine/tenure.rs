//! How long one process goes on with a lock that others want.
//!
//! A tenure is the sections of one process that follow each other, passed on or acquired anew, without another process
//! between them. Its end is bounded where others wait elsewhere: the process then stands back for a moment, so that one
//! of them has the lock. Where nobody else waits, nothing is remembered and nobody stands back.
//!
//! Which of the others is the next depends on how the backend notifies them, and some would be the last each time. So
//! where the backend tells how many they are, each process lets as many of the releases pass as there are others that
//! wait for longer, after its own tenure: it asks a little later after these, and at once after the next one.
//!
//! Who is far away needs a longer moment, and is seen to wait now and then only. So what was seen counts for a while,
//! and of the pauses of a process that finds the lock free after each of them, some are longer.

use std::collections::HashMap;
use std::time::Duration;

use foldhash::fast::RandomState;
use tokio::time::Instant;

use crate::clock::Timestamp;
use crate::error::Failure;
use crate::key::Key;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicUsize, Ordering};

/// How many fences are reserved at once at most, where nobody else was seen to wait. The time of a tenure bounds what
/// others wait.
const BLOCK: u32 = 256;
/// How many of them for each who waits here. Not more: a counter that keeps up with a clock is not to run ahead of it,
/// also where thousands of keys with a waiter or two are granted in each second.
const FOR_EACH: u32 = 8;
/// So many waiters, and all beyond, have a whole block.
pub(super) const MOST_FOLLOWERS: usize = (BLOCK / FOR_EACH) as usize;
/// How much later this process asks after a release, for each that it lets pass from then on. About as long as a tenure
/// for five of them, so that most who are not in turn do not ask in vain; and where those before it are gone, the lock
/// is free for no longer.
const LATER: Duration = Duration::from_millis(10);
/// With more processes than this, each waits for its turn as if there were so many.
const MOST_LET_PASS: u32 = 32;
/// What is remembered of a lock longer than this tells nothing any more.
const REMEMBERED: Duration = Duration::from_secs(1);
/// Others who were seen to wait are taken to wait for so long: the way to one who is far and back, and what it waits
/// for on it.
const SEEN: Duration = Duration::from_millis(250);
/// With more keys than this, those that tell nothing any more are taken out.
const KEYS: usize = 256;
/// Every so many pauses, one is longer: twice as long as the last such one, up to [`LONGEST_PAUSE`], and then as short
/// as the first again. A process that keeps a far one waiting lets it in within a second or so, and one that keeps
/// nobody waiting, but is taken to, loses a fifth of its time.
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
    sections: u32,
    /// How many tenures ended in a pause since somebody else was found to have the lock.
    pauses: u32,
    /// When others were seen to wait.
    seen_at: Option<Timestamp>,
}

impl Tenure {
    /// Begins one, with its first section.
    pub(super) const fn begin(now: Timestamp) -> Self {
        Self { since: now, sections: 1, pauses: 0, seen_at: None }
    }

    /// One section more.
    pub(super) const fn next(self) -> Self {
        Self { sections: self.sections.saturating_add(1), ..self }
    }

    /// Whether others were kept waiting for as long as they may be.
    const fn is_over(&self, limits: &HandoffLimits, now: Timestamp) -> bool {
        self.sections >= limits.sections || self.is_out_of_time(limits, now)
    }

    /// Whether the time is up, which bounds a tenure also where nobody is known to wait.
    pub(super) const fn is_out_of_time(&self, limits: &HandoffLimits, now: Timestamp) -> bool {
        now.since(self.since).as_nanos() >= limits.time.as_nanos()
    }
}

/// The tenures of locks that others want, between two sections.
pub(crate) struct Tenures {
    limits: HandoffLimits,
    /// For how long this process stands back at least.
    pause: Duration,
    /// How many keys there are, so that the common case need not look.
    count: AtomicUsize,
    recent: Mutex<RecentKeys>,
}

struct RecentKeys {
    keys: HashMap<Key, Recent, RandomState>,
    /// With so many keys, those that tell nothing any more are taken out.
    crowded_at: usize,
}

struct Recent {
    /// The one that is going on; `None` when somebody else has had the lock since.
    tenure: Option<Tenure>,
    left_at: Timestamp,
    /// Until when this process does not ask.
    stands_back: Option<Instant>,
    /// After how many releases by others it leaves the lock to them, and until when that counts.
    lets_pass: u32,
    lets_pass_until: Timestamp,
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

    /// Until when this process stands back from `key`; `None` when it does not.
    pub(super) fn stands_back(&self, key: &Key) -> Option<Instant> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let until = self.change(|recent| recent.keys.get(key)?.stands_back);
        until.filter(|until| *until > Instant::now())
    }

    /// How many fences to reserve, with so many who wait behind: no more than sections are left of a tenure that goes
    /// on. `contended` tells that somebody else had the lock.
    pub(super) fn block(&self, key: &Key, followers: usize, contended: bool) -> u32 {
        let wanted = u32::try_from(followers.min(MOST_FOLLOWERS)).unwrap_or(BLOCK) * FOR_EACH;
        if wanted == 0 {
            return 1;
        }
        let sections = match self.count.load(Ordering::SeqCst) {
            0 => None,
            _ => self.change(|recent| {
                recent.keys.get(key).map(|recent| match (recent.stands_back, recent.tenure) {
                    (None, Some(tenure)) => tenure.sections,
                    _ => 0,
                })
            }),
        };
        let left = match sections {
            Some(sections) => self.limits.sections.saturating_sub(sections).max(1),
            None if contended => self.limits.sections,
            None => BLOCK,
        };
        wanted.min(left)
    }

    /// Returns the tenure that a grant at `now` belongs to.
    pub(super) fn granted(&self, key: &Key, now: Timestamp) -> Tenure {
        let before = match self.count.load(Ordering::SeqCst) {
            0 => None,
            _ => self.change(|recent| recent.keys.remove(key)),
        };
        match before.filter(|before| now.since(before.left_at) < REMEMBERED) {
            Some(Recent { tenure: Some(tenure), stands_back: None, .. }) => tenure.next(),
            // One who stood back, and has it all the same, kept nobody waiting, or somebody who is far.
            Some(Recent { tenure: Some(Tenure { pauses, seen_at, .. }), .. }) => {
                Tenure { pauses, seen_at, ..Tenure::begin(now) }
            }
            Some(Recent { tenure: None, .. }) | None => Tenure::begin(now),
        }
    }

    /// Somebody else has the lock.
    pub(super) fn ended(&self, key: &Key) {
        if self.count.load(Ordering::SeqCst) > 0 {
            self.change(|recent| match recent.keys.get_mut(key) {
                Some(of) if of.lets_pass > 0 => (of.tenure, of.stands_back) = (None, None),
                _ => drop(recent.keys.remove(key)),
            });
        }
    }

    /// Somebody else released `key`. Returns how long to leave it to those who wait for longer, if they are.
    pub(super) fn released_elsewhere(&self, key: &Key, now: impl FnOnce() -> Timestamp) -> Option<Duration> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return None;
        }
        self.change(|recent| {
            let of = recent.keys.get_mut(key).filter(|of| of.lets_pass > 0)?;
            let rank = std::mem::take(&mut of.lets_pass);
            if now() >= of.lets_pass_until {
                return None;
            }
            of.lets_pass = rank - 1;
            Some(LATER * rank)
        })
    }

    /// The lock was released. Returns until when this process stands back, where others wait elsewhere and had to wait
    /// for long.
    pub(super) fn released(
        &self,
        key: &Key,
        mut tenure: Tenure,
        others_waiting: u32,
        now: impl FnOnce() -> Timestamp,
    ) -> Option<Instant> {
        if others_waiting == 0 && tenure.seen_at.is_none() {
            self.ended(key);
            return None;
        }
        let now = now();
        if others_waiting > 0 {
            tenure.seen_at = Some(now);
        } else if tenure.seen_at.is_none_or(|seen_at| now.since(seen_at) > SEEN) {
            self.ended(key);
            return None;
        }
        let stands_back = tenure.is_over(&self.limits, now).then(|| {
            tenure.pauses = tenure.pauses.saturating_add(1);
            Instant::now() + self.pause_after(tenure.pauses)
        });
        // The last of them has its turn at the release after which this process asks at once.
        let lets_pass =
            if stands_back.is_some() { others_waiting.saturating_sub(1).min(MOST_LET_PASS) } else { 0 };
        let lets_pass_until = now + self.limits.time * 2 * (lets_pass + 1);
        self.change(|recent| {
            if recent.keys.len() >= recent.crowded_at {
                recent.keys.retain(|_, other| now.since(other.left_at) < REMEMBERED);
                recent.crowded_at = KEYS.max(recent.keys.len() * 2);
            }
            let tenure = Some(tenure);
            let of = Recent { tenure, left_at: now, stands_back, lets_pass, lets_pass_until };
            recent.keys.insert(key.clone(), of);
        });
        stands_back
    }

    /// For how long this process stands back after so many tenures.
    fn pause_after(&self, tenures: u32) -> Duration {
        let longer = (tenures / LONGER_EACH).saturating_sub(1) % 4 + 1;
        match tenures % LONGER_EACH {
            0 => (self.pause * (1 << longer)).min(LONGEST_PAUSE).max(self.pause),
            _ => self.pause,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_millis(5);

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_nanos(0) + Duration::from_millis(millis)
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_stands_back_after_its_bound_where_others_wait_and_never_else() {
        let limits = HandoffLimits { sections: 3, time: Duration::from_millis(50) };
        let (tenures, key) = (Tenures::new(limits, PAUSE), Key::new("k").unwrap());
        for others_waiting in [0, 1] {
            for section in 1..=3 {
                let tenure = tenures.granted(&key, at(section));
                if others_waiting > 0 {
                    assert_eq!(tenures.released(&key, tenure, 1, || at(section)).is_some(), section == 3);
                } else {
                    assert!(tenures.released(&key, tenure, 0, || at(section)).is_none());
                }
            }
        }
        assert!(tenures.stands_back(&key).is_some());
        tokio::time::advance(PAUSE).await;
        assert!(tenures.stands_back(&key).is_none());
        // Nobody else wanted it meanwhile: all begins anew.
        let tenure = tenures.granted(&key, at(10));
        assert!(tenures.released(&key, tenure, 1, || at(11)).is_none());
        let tenure = tenures.granted(&key, at(12));
        assert!(tenures.released(&key, tenure, 1, || at(70)).is_some(), "the time is up");
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenure_ends_when_another_has_the_lock_and_is_forgotten_after_a_while() {
        let limits = HandoffLimits { sections: 2, ..HandoffLimits::default() };
        let (tenures, key) = (Tenures::new(limits, PAUSE), Key::new("k").unwrap());
        for forget in [true, false] {
            let tenure = tenures.granted(&key, at(1));
            assert!(tenures.released(&key, tenure, 1, || at(2)).is_none());
            if forget {
                tenures.ended(&key);
            }
            let tenure = tenures.granted(&key, at(if forget { 3 } else { 2_000 }));
            assert!(tenures.released(&key, tenure, 1, || at(2_000)).is_none() || forget);
            tenures.ended(&key);
        }
        assert_eq!(tenures.block(&key, 1000, false), BLOCK);
        assert_eq!(tenures.block(&key, 1000, true), 2);
        assert_eq!(tenures.block(&key, 1, false), FOR_EACH, "few who wait need few");
        assert_eq!(tenures.block(&key, 0, false), 1);
        // What is remembered of keys that nobody takes again is bounded.
        for number in 0..u64::try_from(KEYS).unwrap() * 3 {
            let key = Key::new(format!("k{number}")).unwrap();
            let tenure = tenures.granted(&key, at(number * 100));
            tenures.released(&key, tenure, 1, || at(number * 100));
        }
        assert!(tenures.count.load(Ordering::SeqCst) <= KEYS);
    }

    #[tokio::test(start_paused = true)]
    async fn fences_are_reserved_for_what_is_left_of_a_tenure() {
        let limits = HandoffLimits { sections: 4, ..HandoffLimits::default() };
        let (tenures, key) = (Tenures::new(limits, PAUSE), Key::new("k").unwrap());
        let tenure = tenures.granted(&key, at(1)).next().next();
        assert!(tenures.released(&key, tenure, 1, || at(2)).is_none());
        assert_eq!(tenures.block(&key, 1000, false), 1);
        let tenure = tenures.granted(&key, at(3));
        assert!(tenures.released(&key, tenure, 1, || at(4)).is_some());
        assert_eq!(tenures.block(&key, 1000, false), 4, "it has stood back then");
    }

    /// The pauses of a process that has the lock in each millisecond, where others are seen in some of them.
    async fn pauses(tenures: &Tenures, key: &Key, millis: u64, seen: impl Fn(u64) -> bool) -> Vec<u64> {
        let (mut pauses, mut now) = (Vec::new(), 1);
        while now < millis {
            let tenure = tenures.granted(key, at(now));
            now += 1;
            if let Some(until) = tenures.released(key, tenure, seen(now).into(), || at(now)) {
                let pause = until - Instant::now();
                tokio::time::advance(pause).await;
                let pause = u64::try_from(pause.as_millis()).unwrap();
                now += pause;
                pauses.push(pause);
            }
        }
        pauses
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_while_nobody_else_is_found_to_have_the_lock() {
        let (tenures, key) = (Tenures::new(HandoffLimits::default(), PAUSE), Key::new("k").unwrap());
        let all = pauses(&tenures, &key, 2_000, |_| true).await;
        assert_eq!(all[..17], [5, 5, 5, 10, 5, 5, 5, 20, 5, 5, 5, 40, 5, 5, 5, 80, 5]);
        tenures.ended(&key);
        assert_eq!(pauses(&tenures, &key, 200, |_| true).await[..3], [5, 5, 5], "somebody else had it");
        let slow = Tenures::new(HandoffLimits::default(), Duration::from_millis(200));
        assert_eq!(pauses(&slow, &key, 2_000, |_| true).await[..5], [200; 5]);
    }

    #[tokio::test(start_paused = true)]
    async fn others_who_were_seen_to_wait_are_not_forgotten_at_the_next_release() {
        let (tenures, key) = (Tenures::new(HandoffLimits::default(), PAUSE), Key::new("k").unwrap());
        let all = pauses(&tenures, &key, 1_000, |now| now % 200 == 2).await;
        assert!(all.len() >= 10, "{all:?}");
        tenures.ended(&key);
        let all = pauses(&tenures, &key, 2_000, |now| now == 2).await;
        assert!((2..=6).contains(&all.len()), "they are gone: {all:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_lets_as_many_releases_pass_as_others_wait_for_longer() {
        let limits = HandoffLimits { sections: 1, ..HandoffLimits::default() };
        let (tenures, key) = (Tenures::new(limits, PAUSE), Key::new("k").unwrap());
        let elsewhere = |now| tenures.released_elsewhere(&key, || at(now));
        assert_eq!(elsewhere(0), None);
        let tenure = tenures.granted(&key, at(1));
        assert!(tenures.released(&key, tenure, 4, || at(2)).is_some());
        for rank in [3, 2, 1] {
            assert_eq!(elsewhere(3), Some(LATER * rank));
            // Another one was found to have it.
            tenures.ended(&key);
            assert_eq!(tenures.block(&key, 1000, true), 1);
        }
        assert_eq!(elsewhere(4), None, "it is in turn");
        // One other, or nobody knows how many: nothing is let pass but the pause.
        let tenure = tenures.granted(&key, at(5));
        assert!(tenures.released(&key, tenure, 1, || at(6)).is_some());
        assert_eq!(elsewhere(7), None);
        // What was counted long ago counts no more.
        let tenure = tenures.granted(&key, at(8));
        assert!(tenures.released(&key, tenure, 4, || at(9)).is_some());
        assert_eq!(elsewhere(10), Some(LATER * 3));
        assert_eq!(elsewhere(9 + 400), None);
        assert_eq!(elsewhere(9 + 400), None);
    }

    #[test]
    fn bounds_are_checked() {
        let limits = HandoffLimits::default();
        limits.check().unwrap();
        for wrong in [
            HandoffLimits { sections: 0, ..limits },
            HandoffLimits { sections: BLOCK + 1, ..limits },
            HandoffLimits { time: Duration::ZERO, ..limits },
            HandoffLimits { time: Duration::from_secs(11), ..limits },
        ] {
            assert!(wrong.check().unwrap_err().message().contains("use 1"), "{wrong:?}");
        }
    }
}
