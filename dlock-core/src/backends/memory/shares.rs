//! What several hold at a time: readers, and permits of semaphores.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use super::StoredLock;
use crate::backend::{Busy, ClaimRequest, Mode, PERMITS_REMEMBERED, PREFERENCE, PREFERENCE_ALIVE};
use crate::clock::Timestamp;
use crate::error::Failure;
use crate::key::Key;
use crate::token::Token;

/// With more keys than this, semaphores are forgotten that nobody uses any more.
const KEYS: usize = 64;

/// The locks that several hold.
#[derive(Default)]
pub(super) struct SharedLocks {
    keys: HashMap<Key, SharedLock, RandomState>,
    /// Beyond so many keys it is looked which ones can be forgotten.
    tidy_at: usize,
}

/// One of them: with holders, or a semaphore that had some.
struct SharedLock {
    /// Of a semaphore.
    permits: Option<u32>,
    holders: Vec<StoredLock>,
    preferred: Option<Preferred>,
    used_at: Timestamp,
}

/// One that waits for all of it, or for several permits, and keeps newcomers out.
struct Preferred {
    token: Token,
    since: Timestamp,
    /// When it has not asked again until then, it is no more.
    alive_until: Timestamp,
}

impl Preferred {
    /// Until when newcomers are kept out; `None` when they are not.
    fn keeps_out_until(&self, now: Timestamp) -> Option<Timestamp> {
        let until = self.alive_until.min(self.since + PREFERENCE);
        (until > now).then_some(until)
    }

    /// Whether another one may take its place, or it may begin anew.
    fn is_over(&self, now: Timestamp) -> bool {
        self.alive_until <= now || self.since + PREFERENCE * 2 <= now
    }
}

impl SharedLocks {
    pub(super) fn entries(&self) -> impl Iterator<Item = (&Key, &StoredLock)> {
        self.keys.iter().flat_map(|(key, lock)| lock.holders.iter().map(move |holder| (key, holder)))
    }

    pub(super) fn entries_of(&self, key: &Key) -> impl Iterator<Item = &StoredLock> {
        self.keys.get(key).into_iter().flat_map(|lock| &lock.holders)
    }

    pub(super) fn entry_mut(&mut self, key: &Key, token: Token) -> Option<&mut StoredLock> {
        if self.keys.is_empty() {
            return None;
        }
        self.keys.get_mut(key)?.holders.iter_mut().find(|holder| holder.token == token)
    }

    pub(super) fn permits(&self, key: &Key) -> Option<u32> {
        self.keys.get(key)?.permits
    }

    /// Who is in the way of this claim, which is preferred from now on where it has to be.
    pub(super) fn busy(&mut self, request: &ClaimRequest, now: Timestamp) -> Result<Option<Busy>, Failure> {
        if self.keys.is_empty() {
            return Ok(None);
        }
        let Some(lock) = self.keys.get_mut(&request.key) else { return Ok(None) };
        lock.holders.retain(|holder| holder.expires > now);
        if let Some(of) = lock.permits {
            if lock.is_idle(now) {
                lock.permits = request.mode.permits();
            } else if let Some(failure) = request.mode.conflict(&Mode::Permits { of, take: 1 }) {
                return Err(failure);
            }
        } else if let (Some(_), false) = (request.mode.permits(), lock.holders.is_empty()) {
            return request.mode.conflict(&Mode::Shared).map_or(Ok(None), Err);
        }
        if lock.holders.iter().any(|holder| holder.token == request.token) {
            return Ok(None);
        }
        // Whose turn it is, is said by the line alone.
        let other = lock.preferred.as_ref().filter(|other| !request.fair && other.token != request.token);
        let kept_out = other.and_then(|preferred| preferred.keeps_out_until(now));
        let has_room = match request.mode {
            Mode::Exclusive => lock.holders.is_empty(),
            Mode::Shared => true,
            Mode::Permits { of, take } => lock.taken().saturating_add(take) <= of,
        };
        if has_room && kept_out.is_none() {
            return Ok(None);
        }
        if request.has_preference() {
            lock.prefer(request.token, now);
        }
        // Also while nobody has it: one that is preferred is told of that, and has to get in before others do.
        let first = lock.holders.iter().min_by_key(|holder| holder.expires);
        let mut busy = first.map(|holder| holder.busy(now)).unwrap_or_default();
        if let (true, Some(until)) = (has_room, kept_out) {
            busy.retry_after = Some(until.since(now));
        }
        Ok(Some(busy))
    }

    pub(super) fn insert(&mut self, key: &Key, holder: StoredLock, now: Timestamp) {
        self.tidy(now);
        let lock = self.keys.entry(key.clone()).or_insert_with(|| SharedLock {
            permits: holder.mode.permits(),
            holders: Vec::new(),
            preferred: None,
            used_at: now,
        });
        if let Some(permits) = holder.mode.permits() {
            lock.permits = Some(permits);
        }
        lock.preferred.take_if(|preferred| preferred.token == holder.token);
        lock.used_at = now;
        lock.holders.push(holder);
    }

    /// Takes away what one has.
    pub(super) fn take(&mut self, key: &Key, token: Token, now: Timestamp) -> Option<StoredLock> {
        if self.keys.is_empty() {
            return None;
        }
        let lock = self.keys.get_mut(key)?;
        let place = lock.holders.iter().position(|holder| holder.token == token)?;
        let holder = lock.holders.remove(place);
        lock.used_at = now;
        if lock.holders.is_empty() && lock.permits.is_none() && lock.preferred.is_none() {
            self.keys.remove(key);
        }
        Some(holder)
    }

    /// Whether this one keeps others out.
    pub(super) fn prefers(&self, key: &Key, token: Token) -> bool {
        let preferred = self.keys.get(key).and_then(|lock| lock.preferred.as_ref());
        preferred.is_some_and(|preferred| preferred.token == token)
    }

    /// One that waits keeps nobody out any more. Whether it did.
    pub(super) fn stop_waiting(&mut self, key: &Key, token: Token) -> bool {
        if self.keys.is_empty() {
            return false;
        }
        let Some(lock) = self.keys.get_mut(key) else { return false };
        let kept_out = lock.preferred.take_if(|preferred| preferred.token == token).is_some();
        if kept_out && lock.holders.is_empty() && lock.permits.is_none() {
            self.keys.remove(key);
        }
        kept_out
    }

    /// The lock is held alone from now on.
    pub(super) fn forget(&mut self, key: &Key) {
        if !self.keys.is_empty() {
            self.keys.remove(key);
        }
    }

    /// Takes it away from all who have it.
    pub(super) fn remove_all(&mut self, key: &str) -> Vec<StoredLock> {
        self.keys.remove(key).map(|lock| lock.holders).unwrap_or_default()
    }

    /// Changes the number of permits; returns what it was.
    pub(super) fn resize(&mut self, key: &Key, permits: u32) -> Result<Option<u32>, Failure> {
        let Some(lock) = self.keys.get_mut(key) else { return Ok(None) };
        if lock.permits.is_none() {
            return Mode::Permits { of: permits, take: 1 }.conflict(&Mode::Shared).map_or(Ok(None), Err);
        }
        for holder in &mut lock.holders {
            holder.mode = Mode::Permits { of: permits, take: holder.mode.taken() };
        }
        Ok(lock.permits.replace(permits))
    }

    /// Forgets what tells nothing any more, each time that there are twice as many keys as were left.
    fn tidy(&mut self, now: Timestamp) {
        if self.keys.len() < self.tidy_at.max(KEYS) {
            return;
        }
        self.keys.retain(|_, lock| {
            lock.holders.retain(|holder| holder.expires > now);
            !lock.is_idle(now) || lock.preferred.as_ref().is_some_and(|preferred| !preferred.is_over(now))
        });
        self.tidy_at = self.keys.len() * 2;
    }
}

impl SharedLock {
    fn taken(&self) -> u32 {
        self.holders.iter().fold(0, |sum, holder| sum.saturating_add(holder.mode.taken()))
    }

    /// Whether nobody has it, and of a semaphore the number of permits is not remembered any more.
    fn is_idle(&self, now: Timestamp) -> bool {
        self.holders.is_empty() && (self.permits.is_none() || self.used_at + PERMITS_REMEMBERED <= now)
    }

    /// This one waits: it is preferred, unless another one is.
    fn prefer(&mut self, token: Token, now: Timestamp) {
        let alive_until = now + PREFERENCE_ALIVE;
        match &mut self.preferred {
            Some(preferred) if !preferred.is_over(now) => {
                if preferred.token == token {
                    preferred.alive_until = alive_until;
                }
            }
            preferred => *preferred = Some(Preferred { token, since: now, alive_until }),
        }
    }
}
