//! Locks inside this process: the reference for authors of backends, and the tool with which users test their code.

mod claim;
mod faults;
mod line;
mod shares;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use foldhash::fast::RandomState;

use crate::backend::{
    Attempt, Backend, BatchAttempt, Busy, Capabilities, ClaimRequest, Forced, Grant, LockId, Mode, Occupancy,
    Signal, Validity,
};
use crate::clock::{Clock, Timestamp};
use crate::error::Failure;
use crate::fence::Fence;
use crate::guarded::wake_all;
use crate::holder::{Holder, Identity};
use crate::key::Key;
use crate::sync::Notify;
use crate::telemetry::Trace;
use crate::token::Token;
use claim::MemoryClaim;
pub use faults::Faults;
use line::Lines;
use shares::SharedLocks;

/// A backend in this process's memory.
///
/// Clones share the same locks, so two `Locks` built over clones behave like two processes. [`faults`](Self::faults)
/// and a [movable clock](crate::ManualClock) let a test show what a service does when a lock is lost, a reply is lost,
/// or the backend is slow or away.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
/// use std::time::Duration;
/// use dlock_core::{ErrorKind, Locks, Memory, ManualClock};
///
/// let clock = ManualClock::stopped();
/// let locks = Locks::new(Memory::with_clock(clock.clock()));
/// let guard = locks.lock("room_7").acquire().await?;
/// guard.check()?;
/// clock.advance(Duration::from_secs(3_600));
/// assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct Memory(Arc<SharedMemory>);

#[derive(Default)]
struct SharedMemory {
    number: Number,
    clock: Clock,
    faults: Faults,
    state: Mutex<MemoryState>,
}

/// Tells the memories of this process apart.
struct Number(u64);

impl Default for Number {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

#[derive(Default)]
struct MemoryState {
    locks: HashMap<Key, StoredLock, RandomState>,
    /// What several hold at a time.
    shared: SharedLocks,
    /// Who waits in line.
    lines: Lines,
    /// Who waits for a change of a key. Only keys with waiters have an entry.
    watched: HashMap<Key, Arc<Notify>, RandomState>,
    /// The last fence of any key. One counter for all keys needs no memory for keys that are free.
    fence: u64,
}

struct StoredLock {
    token: Token,
    mode: Mode,
    fence: Fence,
    expires: Timestamp,
    identity: Arc<Identity>,
    since: Timestamp,
    trace: Trace,
    signal: Option<Signal>,
    /// It was released, and its key stays taken.
    left_behind: bool,
}

impl Memory {
    /// Creates an empty backend on the machine's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty backend whose leases run by `clock`.
    #[must_use]
    pub fn with_clock(clock: Clock) -> Self {
        Self(Arc::new(SharedMemory { clock, ..SharedMemory::default() }))
    }

    /// Returns what can be made to go wrong.
    #[must_use]
    pub fn faults(&self) -> &Faults {
        &self.0.faults
    }

    /// Takes the lock of `key` away from all its holders, who are notified at once, and returns whether there was one.
    pub fn lose(&self, key: &str) -> bool {
        let entries = self.0.remove(key);
        for signal in entries.iter().filter_map(|entry| entry.signal.as_ref()) {
            signal.lost("the test took it away");
        }
        !entries.is_empty()
    }

    /// Deletes the lock of `key` behind its holder's back, as an administrator or a lost server would. The holder
    /// finds out at its next renewal. Whether there was one.
    pub fn delete(&self, key: &str) -> bool {
        !self.0.remove(key).is_empty()
    }

    /// Returns how many locks are held now.
    #[must_use]
    pub fn held(&self) -> usize {
        let now = self.0.clock.now();
        let state = self.0.state();
        state.entries().filter(|(_, entry)| entry.expires > now).count()
    }
}

impl SharedMemory {
    fn state(&self) -> MutexGuard<'_, MemoryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server's part of an attempt for several locks: one atomic step.
    fn grant_all(&self, claims: &[&mut MemoryClaim]) -> Result<BatchAttempt, Failure> {
        let now = self.clock.now();
        let mut state = self.state();
        for (place, claim) in claims.iter().enumerate() {
            if let Some(busy) = state.busy(&claim.request, now)? {
                // The batch waits for this key alone; kept out of the others by it, two batches would wait for each
                // other while all is free.
                let others = claims.iter().enumerate().filter(|(other, _)| *other != place);
                let freed: Vec<_> = others
                    .map(|(_, claim)| &claim.request)
                    .filter(|request| state.shared.stop_waiting(&request.key, request.token))
                    .map(|request| request.key.clone())
                    .collect();
                drop(state);
                for key in freed {
                    self.tell(self.state(), key.as_str());
                }
                return Ok(BatchAttempt::Busy { place, busy });
            }
        }
        let granted = claims.iter().map(|claim| state.grant(&claim.request, 1, now));
        Ok(BatchAttempt::Granted(granted.collect()))
    }

    fn remove(&self, key: &str) -> Vec<StoredLock> {
        self.remove_from(self.state(), key)
    }

    fn remove_from(&self, mut state: MutexGuard<'_, MemoryState>, key: &str) -> Vec<StoredLock> {
        let mut entries = state.shared.remove_all(key);
        entries.extend(state.locks.remove(key));
        if !entries.is_empty() {
            self.tell(state, key);
        }
        entries
    }

    /// Tells those who wait for `key`, whose wakers are run when nothing is locked, and returns how many do. Where
    /// there is a line, it is the turn of the first, and no other one hears of it.
    fn tell(&self, mut state: MutexGuard<'_, MemoryState>, key: &str) -> u32 {
        if let Some(turn) = state.lines.next_turn(key, self.clock.now()) {
            drop(state);
            wake_all(&turn);
            return 0;
        }
        let watched = state.watched.get_key_value(key);
        let watch = watched.map(|(key, changed)| KeyWatch {
            shared: self,
            key: key.clone(),
            changed: Arc::clone(changed),
        });
        drop(state);
        watch.map_or(0, |watch| {
            // One of them is of the list, and one of this.
            let waiting = Arc::strong_count(&watch.changed).saturating_sub(2);
            wake_all(&watch.changed);
            u32::try_from(waiting).unwrap_or(u32::MAX)
        })
    }

    /// The notification of this key, shared by all who wait for it.
    fn watch(&self, key: &Key) -> KeyWatch<'_> {
        let changed = Arc::clone(self.state().watched.entry(key.clone()).or_default());
        KeyWatch { shared: self, key: key.clone(), changed }
    }
}

impl MemoryState {
    /// All that was granted, also what has ended meanwhile.
    fn entries(&self) -> impl Iterator<Item = (&Key, &StoredLock)> {
        self.locks.iter().chain(self.shared.entries())
    }

    /// Who else has the lock, or has its turn. Who is to be kept in line has a place from now on.
    fn busy(&mut self, request: &ClaimRequest, now: Timestamp) -> Result<Option<Busy>, Failure> {
        let Some(mut busy) = self.taken(request, now)? else { return Ok(None) };
        if request.fair && request.waits {
            let (is_first, is_new) = self.lines.stand(request, now);
            busy.requeued = is_new;
            // Those behind the first have no reason to ask when it ends.
            busy.retry_after.take_if(|_| !is_first && busy.holder.is_some());
        }
        Ok(Some(busy))
    }

    fn taken(&mut self, request: &ClaimRequest, now: Timestamp) -> Result<Option<Busy>, Failure> {
        let (key, token) = (&request.key, request.token);
        if let Some(entry) = self.locks.get(key)
            && entry.expires > now
        {
            return match request.mode.conflict(&Mode::Exclusive) {
                Some(failure) => Err(failure),
                None => Ok((entry.token != token).then(|| entry.busy(now))),
            };
        }
        if let Some(busy) = self.shared.busy(request, now)? {
            return Ok(Some(busy));
        }
        let Some(until) = self.lines.others_turn(key, token, now) else { return Ok(None) };
        if self.shared.entry_mut(key, token).is_some() {
            return Ok(None);
        }
        Ok(Some(Busy { retry_after: Some(until.since(now)), ..Busy::default() }))
    }

    /// All that was granted of one key.
    fn entries_of(&self, key: &Key) -> impl Iterator<Item = &StoredLock> {
        self.locks.get(key).into_iter().chain(self.shared.entries_of(key))
    }

    /// What was granted under this token.
    fn entry_mut(&mut self, key: &Key, token: Token) -> Option<&mut StoredLock> {
        let Self { locks, shared, .. } = self;
        let alone = locks.get_mut(key).filter(|entry| entry.token == token);
        alone.or_else(|| shared.entry_mut(key, token))
    }

    /// Takes away what was granted under this token.
    fn take(&mut self, key: &Key, token: Token, now: Timestamp) -> Option<StoredLock> {
        match self.locks.get(key) {
            Some(entry) if entry.token == token => self.locks.remove(key),
            _ => self.shared.take(key, token, now),
        }
    }

    /// Gives what was left under this token to the claim that presents it.
    fn take_over(&mut self, request: &ClaimRequest, left: Token, fences: u32, now: Timestamp) -> Attempt {
        let is_held_so =
            |entry: &&mut StoredLock| entry.expires > now && entry.mode.has_same_part(&request.mode);
        if self.entry_mut(&request.key, request.token).filter(is_held_so).is_some() {
            return Attempt::Granted(self.grant(request, fences, now));
        }
        let is_left = |entry: &&mut StoredLock| is_held_so(entry) && entry.left_behind;
        if self.entry_mut(&request.key, left).filter(is_left).is_none() {
            let other = self.entries_of(&request.key).find(|entry| entry.expires > now);
            return Attempt::Busy(other.map(|entry| entry.busy(now)).unwrap_or_default());
        }
        let (fence, reserved) = self.draw(request.mode, fences);
        if let Some(entry) = self.entry_mut(&request.key, left) {
            // There may be another number of permits by now.
            *entry = StoredLock { mode: entry.mode, ..StoredLock::of(request, fence, now) };
        }
        let grant = Grant::new(Validity::Lease(request.lease));
        Attempt::Granted(grant.with_fence(fence).with_reserved(reserved))
    }

    /// Draws so many fences, of which it returns the first; one for a mode that several hold.
    fn draw(&mut self, mode: Mode, fences: u32) -> (Fence, u32) {
        let fences = if mode == Mode::Exclusive { fences } else { 1 };
        let first = Fence::new(self.fence + 1);
        self.fence += u64::from(fences);
        (first, fences)
    }

    /// Gives the lock, which nobody else has, with so many fences.
    fn grant(&mut self, request: &ClaimRequest, fences: u32, now: Timestamp) -> Grant {
        let grant = Grant::new(Validity::Lease(request.lease));
        if let Some(entry) = self.entry_mut(&request.key, request.token)
            && entry.expires > now
        {
            // The reply of an earlier attempt was lost: adopt what it took, and of its fences the first.
            entry.expires = now + request.lease;
            return grant.with_fence(entry.fence);
        }
        if request.fair {
            self.lines.leave(&request.key, request.token);
        }
        let (fence, fences) = self.draw(request.mode, fences);
        let entry = StoredLock::of(request, fence, now);
        if request.mode == Mode::Exclusive {
            self.shared.forget(&request.key);
            self.locks.insert(request.key.clone(), entry);
        } else {
            self.shared.insert(&request.key, entry, now);
        }
        grant.with_fence(fence).with_reserved(fences)
    }
}

impl Backend for Memory {
    type Claim = MemoryClaim;

    fn name(&self) -> &'static str {
        "memory"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::basic()
            .with_fencing()
            .with_notifications(Duration::from_millis(500))
            .with_administration()
            .with_sharing()
            .with_downgrading()
            .with_permits()
            .with_fairness_on_request()
            .with_leaving()
            .with_handing_over()
            .with_handing_over_of_shares()
            .without_servers()
    }

    fn clock(&self) -> Clock {
        self.0.clock.clone()
    }

    fn lock_id(&self, key: &Key) -> LockId {
        LockId::new(format_args!("memory:{}", self.0.number.0), key.as_str())
    }

    fn claim(&self, request: ClaimRequest) -> MemoryClaim {
        MemoryClaim::new(Arc::clone(&self.0), request)
    }

    async fn attempt_all(&self, claims: &mut [&mut MemoryClaim]) -> Result<BatchAttempt, Failure> {
        if claims.len() > 1 && claims.iter().any(|claim| claim.request.fair) {
            // Each waits in a line of its own, and they could wait for each other.
            return Ok(BatchAttempt::Separately);
        }
        let before: Vec<bool> =
            claims.iter_mut().map(|claim| std::mem::replace(&mut claim.unsettled, true)).collect();
        let answer = self.0.faults.around(|| self.0.grant_all(claims)).await??;
        let granted = matches!(answer, BatchAttempt::Granted(_));
        for (claim, before) in claims.iter_mut().zip(before) {
            // What an earlier attempt took may still be there when this one took nothing.
            claim.held = granted;
            claim.unsettled = before && !granted || claim.keeps_others_out();
        }
        Ok(answer)
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Holder>, Failure> {
        let shared = &self.0;
        shared
            .faults
            .around(|| {
                let now = shared.clock.now();
                let state = shared.state();
                let mut held = state.entries_of(key).filter(|entry| entry.expires > now);
                held.next().map(|entry| entry.holder(now))
            })
            .await
    }

    async fn holders(&self) -> Result<Vec<(Key, Holder)>, Failure> {
        let shared = &self.0;
        let list = || {
            let now = shared.clock.now();
            let state = shared.state();
            let held = state.entries().filter(|(_, entry)| entry.expires > now);
            held.map(|(key, entry)| (key.clone(), entry.holder(now))).collect()
        };
        shared.faults.around(list).await
    }

    async fn force_release(&self, key: &Key) -> Result<bool, Failure> {
        let shared = &self.0;
        let force = || {
            let now = shared.clock.now();
            shared.remove(key.as_str()).iter().any(|entry| entry.expires > now)
        };
        shared.faults.around(force).await
    }

    async fn force_release_of(&self, key: &Key, seen: &[Holder]) -> Result<Forced, Failure> {
        let shared = &self.0;
        let force = || {
            let now = shared.clock.now();
            let state = shared.state();
            let held = state.entries_of(key).filter(|entry| entry.expires > now);
            let held: Vec<_> = held.map(|entry| entry.holder(now)).collect();
            Forced::without_release(&held, seen).unwrap_or_else(|| {
                shared.remove_from(state, key.as_str());
                Forced::Released
            })
        };
        shared.faults.around(force).await
    }

    async fn occupancy(&self, key: &Key) -> Result<Occupancy, Failure> {
        let shared = &self.0;
        let look = || {
            let now = shared.clock.now();
            let state = shared.state();
            let held = state.entries_of(key).filter(|entry| entry.expires > now);
            Occupancy::new(state.shared.permits(key), held.map(|entry| entry.holder(now)).collect())
        };
        shared.faults.around(look).await
    }

    async fn resize(&self, key: &Key, permits: u32) -> Result<Option<u32>, Failure> {
        let shared = &self.0;
        let resize = || {
            let now = shared.clock.now();
            let mut state = shared.state();
            if state.locks.get(key).is_some_and(|entry| entry.expires > now) {
                return Mode::Permits { of: permits, take: 1 }
                    .conflict(&Mode::Exclusive)
                    .map_or(Ok(None), Err);
            }
            let before = state.shared.resize(key, permits)?;
            // There may be more of them.
            shared.tell(state, key.as_str());
            Ok(before)
        };
        shared.faults.around(resize).await?
    }
}

impl StoredLock {
    /// What is granted to this request.
    fn of(request: &ClaimRequest, fence: Fence, now: Timestamp) -> Self {
        Self {
            token: request.token,
            mode: request.mode,
            fence,
            expires: now + request.lease,
            identity: Arc::clone(&request.identity),
            since: now,
            trace: request.trace.clone(),
            signal: None,
            left_behind: false,
        }
    }

    /// The answer to one who wants it too.
    fn busy(&self, now: Timestamp) -> Busy {
        Busy {
            retry_after: Some(self.expires.since(now)),
            holder: Some(Box::new(self.holder(now))),
            ..Busy::default()
        }
    }

    fn holder(&self, now: Timestamp) -> Holder {
        let since = SystemTime::now().checked_sub(now.since(self.since));
        let mut holder = self.identity.to_holder(since.unwrap_or(SystemTime::UNIX_EPOCH));
        holder.trace = self.trace.to_text();
        holder.fence = Some(self.fence);
        holder.mode = self.mode;
        holder.expires_in = Some(self.expires.since(now));
        holder.left_behind = self.left_behind;
        holder
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("locks", &self.0.state().locks.len()).finish_non_exhaustive()
    }
}

/// One waiter of a key, or somebody who tells them; the last one takes the entry away.
struct KeyWatch<'a> {
    shared: &'a SharedMemory,
    key: Key,
    changed: Arc<Notify>,
}

impl Drop for KeyWatch<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        // The map's own, and this one.
        if Arc::strong_count(&self.changed) == 2 {
            state.watched.remove(&self.key);
        }
    }
}
