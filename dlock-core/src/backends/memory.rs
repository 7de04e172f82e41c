//! Locks inside this process: the reference for authors of backends, and the tool with which users test their code.

mod faults;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use foldhash::fast::RandomState;

use crate::backend::{
    Attempt, Backend, BatchAttempt, Busy, Capabilities, Claim, ClaimRequest, Grant, LockId, Renewed, Signal,
    Term, Withdrawal,
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
pub use faults::Faults;

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
    /// Who waits for a change of a key. Only keys with waiters have an entry.
    watched: HashMap<Key, Arc<Notify>, RandomState>,
    /// The last fence of any key. One counter for all keys needs no memory for keys that are free.
    fence: u64,
}

struct StoredLock {
    token: Token,
    fence: Fence,
    expires: Timestamp,
    identity: Arc<Identity>,
    since: Timestamp,
    trace: Trace,
    signal: Option<Signal>,
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

    /// Takes the lock of `key` away from its holder, who is notified at once, and returns whether there was one.
    pub fn lose(&self, key: &str) -> bool {
        let entry = self.0.remove(key);
        if let Some(signal) = entry.as_ref().and_then(|entry| entry.signal.as_ref()) {
            signal.lost("the test took it away");
        }
        entry.is_some()
    }

    /// Deletes the lock of `key` behind its holder's back, as an administrator or a lost server would. The holder
    /// finds out at its next renewal. Whether there was one.
    pub fn delete(&self, key: &str) -> bool {
        self.0.remove(key).is_some()
    }

    /// Returns how many locks are held now.
    #[must_use]
    pub fn held(&self) -> usize {
        let now = self.0.clock.now();
        self.0.state().locks.values().filter(|entry| entry.expires > now).count()
    }
}

impl SharedMemory {
    fn state(&self) -> MutexGuard<'_, MemoryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server's part of an attempt for several locks: one atomic step.
    fn grant_all(&self, claims: &[&mut MemoryClaim]) -> BatchAttempt {
        let now = self.clock.now();
        let mut state = self.state();
        let busy = claims.iter().map(|claim| state.busy(&claim.request, now));
        match busy.enumerate().find_map(|(place, busy)| Some((place, busy?))) {
            Some((place, busy)) => BatchAttempt::Busy { place, busy },
            None => {
                BatchAttempt::Granted(claims.iter().map(|claim| state.grant(&claim.request, now)).collect())
            }
        }
    }

    fn remove(&self, key: &str) -> Option<StoredLock> {
        let mut state = self.state();
        let entry = state.locks.remove(key);
        if entry.is_some() {
            self.tell(state, key);
        }
        entry
    }

    /// Tells those who wait for `key`, whose wakers are run when nothing is locked.
    fn tell(&self, state: MutexGuard<'_, MemoryState>, key: &str) {
        let watched = state.watched.get_key_value(key);
        let watch = watched.map(|(key, changed)| KeyWatch {
            shared: self,
            key: key.clone(),
            changed: Arc::clone(changed),
        });
        drop(state);
        if let Some(watch) = watch {
            wake_all(&watch.changed);
        }
    }

    /// The notification of this key, shared by all who wait for it.
    fn watch(&self, key: &Key) -> KeyWatch<'_> {
        let changed = Arc::clone(self.state().watched.entry(key.clone()).or_default());
        KeyWatch { shared: self, key: key.clone(), changed }
    }
}

impl MemoryState {
    /// Who else has the lock.
    fn busy(&self, request: &ClaimRequest, now: Timestamp) -> Option<Busy> {
        let entry = self.locks.get(&request.key)?;
        (entry.token != request.token && entry.expires > now).then(|| Busy {
            retry_after: Some(entry.expires.since(now)),
            holder: Some(Box::new(entry.holder(now))),
            ..Busy::default()
        })
    }

    /// Gives the lock, which nobody else has.
    fn grant(&mut self, request: &ClaimRequest, now: Timestamp) -> Grant {
        let grant = Grant::new(Term::Lease(request.lease));
        if let Some(entry) = self.locks.get_mut(&request.key)
            && entry.token == request.token
            && entry.expires > now
        {
            // The reply of an earlier attempt was lost: adopt what it took.
            entry.expires = now + request.lease;
            return grant.with_fence(entry.fence);
        }
        self.fence += 1;
        let fence = Fence::new(self.fence);
        let entry = StoredLock {
            token: request.token,
            fence,
            expires: now + request.lease,
            identity: Arc::clone(&request.identity),
            since: now,
            trace: request.trace.clone(),
            signal: None,
        };
        self.locks.insert(request.key.clone(), entry);
        grant.with_fence(fence)
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
    }

    fn clock(&self) -> Clock {
        self.0.clock.clone()
    }

    fn lock_id(&self, key: &Key) -> LockId {
        LockId::new(format_args!("memory:{}", self.0.number.0), key.as_str())
    }

    fn claim(&self, request: ClaimRequest) -> MemoryClaim {
        MemoryClaim { shared: Arc::clone(&self.0), request, unsettled: false, held: false }
    }

    async fn attempt_all(&self, claims: &mut [&mut MemoryClaim]) -> Result<BatchAttempt, Failure> {
        let before: Vec<bool> =
            claims.iter_mut().map(|claim| std::mem::replace(&mut claim.unsettled, true)).collect();
        let answer = self.0.faults.around(|| self.0.grant_all(claims)).await?;
        let granted = matches!(answer, BatchAttempt::Granted(_));
        for (claim, before) in claims.iter_mut().zip(before) {
            // What an earlier attempt took may still be there when this one took nothing.
            claim.unsettled = before && !granted;
            claim.held = granted;
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
                state.locks.get(key).filter(|entry| entry.expires > now).map(|entry| entry.holder(now))
            })
            .await
    }

    async fn holders(&self) -> Result<Vec<(Key, Holder)>, Failure> {
        let shared = &self.0;
        let list = || {
            let now = shared.clock.now();
            let state = shared.state();
            let held = state.locks.iter().filter(|(_, entry)| entry.expires > now);
            held.map(|(key, entry)| (key.clone(), entry.holder(now))).collect()
        };
        shared.faults.around(list).await
    }

    async fn force_release(&self, key: &Key) -> Result<bool, Failure> {
        let shared = &self.0;
        let force = || {
            let now = shared.clock.now();
            shared.remove(key.as_str()).is_some_and(|entry| entry.expires > now)
        };
        shared.faults.around(force).await
    }
}

impl StoredLock {
    fn holder(&self, now: Timestamp) -> Holder {
        let since = SystemTime::now().checked_sub(now.since(self.since));
        let mut holder = self.identity.to_holder(since.unwrap_or(SystemTime::UNIX_EPOCH));
        holder.trace = self.trace.to_text();
        holder.fence = Some(self.fence);
        holder.expires_in = Some(self.expires.since(now));
        holder
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("locks", &self.0.state().locks.len()).finish_non_exhaustive()
    }
}

/// A claim on a lock of [`Memory`].
pub struct MemoryClaim {
    shared: Arc<SharedMemory>,
    request: ClaimRequest,
    /// A request is under way, or its answer was lost.
    unsettled: bool,
    held: bool,
}

impl MemoryClaim {
    /// The server's part of an attempt: one atomic step.
    fn grant(&self) -> Attempt {
        let now = self.shared.clock.now();
        let mut state = self.shared.state();
        match state.busy(&self.request, now) {
            Some(busy) => Attempt::Busy(busy),
            None => Attempt::Granted(state.grant(&self.request, now)),
        }
    }

    fn extend(&self) -> Renewed {
        let now = self.shared.clock.now();
        match self.shared.state().locks.get_mut(&self.request.key) {
            Some(entry) if entry.token == self.request.token && entry.expires > now => {
                entry.expires = now + self.request.lease;
                Renewed::Extended
            }
            _ => Renewed::Gone,
        }
    }

    fn remove(&self) -> Withdrawal {
        let now = self.shared.clock.now();
        let mut state = self.shared.state();
        let key = &self.request.key;
        match state.locks.get(key) {
            Some(entry) if entry.token == self.request.token => {
                let expired = entry.expires <= now;
                state.locks.remove(key);
                self.shared.tell(state, key.as_str());
                if expired { Withdrawal::ABSENT } else { Withdrawal::REMOVED }
            }
            _ => Withdrawal::ABSENT,
        }
    }

    fn is_free(&self) -> bool {
        let now = self.shared.clock.now();
        self.shared.state().locks.get(&self.request.key).is_none_or(|entry| entry.expires <= now)
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

impl Claim for MemoryClaim {
    async fn attempt(&mut self) -> Result<Attempt, Failure> {
        self.unsettled = true;
        let answer = self.shared.faults.around(|| self.grant()).await?;
        self.unsettled = false;
        self.held = matches!(answer, Attempt::Granted(_));
        Ok(answer)
    }

    async fn changed(&mut self) -> Result<(), Failure> {
        let watch = self.shared.watch(&self.request.key);
        loop {
            let changed = watch.changed.notified();
            let moved = self.shared.clock.moved();
            if self.is_free() {
                return Ok(());
            }
            tokio::select! {
                biased;
                () = changed => return Ok(()),
                () = moved => {}
            }
        }
    }

    fn granted(&mut self, signal: Signal) {
        if let Some(entry) = self.shared.state().locks.get_mut(&self.request.key)
            && entry.token == self.request.token
        {
            entry.signal = Some(signal);
        }
    }

    async fn renew(&mut self) -> Result<Renewed, Failure> {
        self.shared.faults.around(|| self.extend()).await
    }

    async fn withdraw(&mut self) -> Result<Withdrawal, Failure> {
        let answer = self.shared.faults.around(|| self.remove()).await?;
        self.unsettled = false;
        self.held = false;
        Ok(answer)
    }

    fn is_clean(&self) -> bool {
        !self.unsettled && !self.held
    }
}

impl fmt::Debug for MemoryClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryClaim").field("key", &self.request.key).finish_non_exhaustive()
    }
}
