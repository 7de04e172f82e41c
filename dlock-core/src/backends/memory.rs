//! Locks inside this process: the reference for authors of backends, and the tool with which users test their code.

mod announced;
mod claim;
mod faults;
mod queue;
mod stored;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use foldhash::fast::RandomState;

use crate::backend::shares::{Answer, Granted, HolderEntry, Verdict};
use crate::backend::{
    Administration, Announcements, Attempt, Backend, BatchAttempt, BoxedFuture, Busy, Capabilities,
    ClaimRequest, Forced, Grant, LockId, Mode, Occupancy, Validity, boxed,
};
use crate::clock::{Clock, Timestamp};
use crate::error::Failure;
use crate::fence::Fence;
use crate::guarded::wake_all;
use crate::holder::Holder;
use crate::key::Key;
use crate::sync::Notify;
use crate::sync::plain::{Mutex, MutexGuard};
use crate::token::Token;
use announced::Announced;
use claim::MemoryClaim;
pub use faults::Faults;
use queue::Queues;
use stored::{HolderDetail, Keys, Stored, busy, holder};

/// A backend in this process's memory.
///
/// Clones share their locks, so two `Locks` built over clones behave like two processes. [`faults`](Self::faults) and a
/// [movable clock](crate::ManualClock) let a test show what a service does when a lock is lost, a reply is lost, or the
/// backend is slow or away.
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
    announced: Announced,
}

/// A number that distinguishes the memories of this process.
struct Number(u64);

impl Default for Number {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

#[derive(Default)]
struct MemoryState {
    keys: Keys,
    /// The waiters in order.
    queues: Queues,
    /// The waiters for a change of a key. Only keys with waiters have an entry.
    watched: HashMap<Key, Arc<Notify>, RandomState>,
    /// The last fence of any key. One counter for all keys needs no memory for keys that are free.
    fence: u64,
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

    /// Returns the faults that a test can set.
    #[must_use]
    pub fn faults(&self) -> &Faults {
        &self.0.faults
    }

    /// Takes the lock of `key` away from all its holders, which are notified at once, and returns whether there was
    /// one.
    pub fn lose(&self, key: &str) -> bool {
        let entries = self.0.remove(key);
        for signal in entries.iter().filter_map(|entry| entry.detail.signal.as_ref()) {
            signal.lost("the test took it away");
        }
        !entries.is_empty()
    }

    /// Deletes the lock of `key` behind its holder's back, as an administrator or a lost server would. The holder finds
    /// out at its next renewal. Returns whether there was one.
    pub fn delete(&self, key: &str) -> bool {
        !self.0.remove(key).is_empty()
    }

    /// Returns the number of locks that are held now.
    #[must_use]
    pub fn held(&self) -> usize {
        let now = self.0.clock.now();
        self.0.state().keys.holders(now).count()
    }
}

impl SharedMemory {
    fn state(&self) -> MutexGuard<'_, MemoryState> {
        self.state.lock()
    }

    /// Carries out the server's part of an attempt for several locks, in one atomic step.
    fn grant_all(&self, claims: &[&mut MemoryClaim]) -> Result<BatchAttempt, Failure> {
        let now = self.clock.now();
        let mut state = self.state();
        for (place, claim) in claims.iter().enumerate() {
            if let Some(busy) = state.busy(&claim.request, now)? {
                // The batch waits for this key alone. If it kept newcomers out of the others too, two batches would
                // wait for each other while all is free.
                let others = claims.iter().enumerate().filter(|(other, _)| *other != place);
                let freed: Vec<_> = others
                    .map(|(_, claim)| &claim.request)
                    .filter(|request| state.stop_waiting(&request.key, &request.token))
                    .map(|request| request.key.clone())
                    .collect();
                drop(state);
                for key in freed {
                    self.notify(self.state(), key.as_str());
                }
                return Ok(BatchAttempt::Busy { place, busy });
            }
        }
        // All keys were judged before the first is granted, and the mutex is still locked: all or nothing.
        let granted = claims.iter().map(|claim| state.grant(&claim.request, 1, now));
        Ok(BatchAttempt::Granted(granted.collect()))
    }

    fn remove(&self, key: &str) -> Vec<HolderEntry<HolderDetail>> {
        self.remove_from(self.state(), key)
    }

    fn remove_from(
        &self,
        mut state: MutexGuard<'_, MemoryState>,
        key: &str,
    ) -> Vec<HolderEntry<HolderDetail>> {
        let entries = state.keys.remove(key);
        if !entries.is_empty() {
            self.notify(state, key);
        }
        entries
    }

    /// Notifies the waiters for `key`, whose wakers are run when nothing is locked, and returns their number. If there
    /// is a queue, it is the turn of its first, and no other waiter is notified.
    fn notify(&self, mut state: MutexGuard<'_, MemoryState>, key: &str) -> u32 {
        if let Some(turn) = state.queues.next_turn(key, self.clock.now()) {
            drop(state);
            wake_all(&turn);
            return 0;
        }
        let watched = state.watched.get_key_value(key);
        // Counted as a watch of its own, so that the entry stays while the waiters are woken below, and is removed if
        // they have all gone by then.
        let watch = watched.map(|(key, changed)| KeyWatch {
            shared: self,
            key: key.clone(),
            changed: Arc::clone(changed),
        });
        drop(state);
        watch.map_or(0, |watch| {
            // The list has one reference, and `watch` has one.
            let waiting = Arc::strong_count(&watch.changed).saturating_sub(2);
            wake_all(&watch.changed);
            u32::try_from(waiting).unwrap_or(u32::MAX)
        })
    }

    /// Returns the notification of this key, which all its waiters share.
    fn watch(&self, key: &Key) -> KeyWatch<'_> {
        let changed = Arc::clone(self.state().watched.entry(key.clone()).or_default());
        KeyWatch { shared: self, key: key.clone(), changed }
    }
}

impl MemoryState {
    /// Returns the other holder of the lock, or the one whose turn it is. A claim that waits in order has a place in
    /// the queue from now on.
    fn busy(&mut self, request: &ClaimRequest, now: Timestamp) -> Result<Option<Busy>, Failure> {
        let Some(mut busy) = self.taken(request, now)? else { return Ok(None) };
        if request.fair && request.waits {
            let (is_first, is_new) = self.queues.enter(&request.key, request.token, now);
            // The claim knows whether it had a place before, and clears this for its first one.
            busy.requeued = is_new;
            // The claims behind the first have no reason to ask when the holder's lease ends.
            busy.retry_after.take_if(|_| !is_first && busy.holder.is_some());
        }
        Ok(Some(busy))
    }

    fn taken(&mut self, request: &ClaimRequest, now: Timestamp) -> Result<Option<Busy>, Failure> {
        let first = self.queues.first(&request.key, request.token, now);
        let mut free = None;
        // A free key without a queue needs no state, which is the common case. With a queue, an empty state judges
        // whose turn it is.
        let state = match self.keys.get_mut(&request.key) {
            None if first.is_none() => return Ok(None),
            state => state.unwrap_or_else(|| free.insert(Stored::new())),
        };
        // The state keeps no queue: it gets the first claim before each judgement, since that may have changed.
        state.set_first_in_queue(first);
        let asked = request.to_lock_request();
        let until = match state.judge(&asked, now) {
            Verdict::Free | Verdict::Held => return Ok(None),
            Verdict::Conflict(other) => return request.mode.conflict(&other).map_or(Ok(None), Err),
            Verdict::KeptOut(until) => until,
            Verdict::Taken(until) => {
                state.prefer(&asked, now);
                until
            }
        };
        Ok(Some(busy(state, until, now)))
    }

    /// Ends the preference of a claim. Returns whether it had one.
    fn stop_waiting(&mut self, key: &Key, token: &Token) -> bool {
        self.keys.get_mut(key).is_some_and(|state| state.stop_waiting(token))
    }

    /// Gives the key that was left under this token to the claim that presents it.
    fn take_over(&mut self, request: &ClaimRequest, left: Token, fences: u32, now: Timestamp) -> Attempt {
        let asked = request.to_lock_request().with_fences(fences, Fence::new(self.fence + 1));
        let Some(state) = self.keys.get_mut(&request.key) else { return Attempt::Busy(Busy::default()) };
        match state.take_over(&asked, &left, now, || HolderDetail::of(request, now)) {
            Answer::Granted(granted) => {
                // The counter is that of all keys, so that a key that was forgotten in between gets no lower fence.
                self.fence = self.fence.max(state.last_fence().get());
                Attempt::Granted(grant(request, granted))
            }
            Answer::Busy { until } => Attempt::Busy(busy(state, until, now)),
            Answer::Conflict(_) => Attempt::Busy(Busy::default()),
        }
    }

    /// Grants the lock, which has no other holder, with so many fences.
    fn grant(&mut self, request: &ClaimRequest, fences: u32, now: Timestamp) -> Grant {
        if request.fair {
            self.queues.leave(&request.key, request.token);
        }
        let asked = request.to_lock_request().with_fences(fences, Fence::new(self.fence + 1));
        let state = self.keys.get_or_insert(&request.key, now);
        let granted = state.grant(&asked, now, || HolderDetail::of(request, now));
        self.fence = self.fence.max(state.last_fence().get());
        grant(request, granted)
    }
}

fn grant(request: &ClaimRequest, granted: Granted) -> Grant {
    Grant::new(Validity::Lease(request.lease)).with_fence(granted.fence).with_reserved(granted.reserved)
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
            .with_sharing()
            .with_downgrading()
            .with_permits()
            .with_fairness_on_request()
            .with_leaving()
            .with_handing_over()
            .with_handing_over_of_shares()
            .with_pipelining()
            .with_session_records()
            .with_announcements()
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
            // Each claim waits in a queue of its own, and two batches could wait for each other.
            return Ok(BatchAttempt::Separately);
        }
        claims.iter_mut().for_each(|claim| claim.in_flight.begin(()));
        // All of them are in flight from here on: the batch may be dropped while a fault delays it.
        let answer = self.0.faults.around(|| self.0.grant_all(claims)).await??;
        let granted = matches!(answer, BatchAttempt::Granted(_));
        for claim in claims.iter_mut() {
            claim.held = granted;
            match granted {
                true => claim.in_flight.clear(),
                // An earlier attempt may have been granted, and what it took may still be there.
                false => claim.in_flight.took_nothing(&()),
            }
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
                let held = state.keys.get(key).and_then(|stored| stored.holders(now).next());
                held.map(|entry| holder(entry, now))
            })
            .await
    }

    async fn occupancy(&self, key: &Key) -> Result<Occupancy, Failure> {
        let shared = &self.0;
        let look = || {
            let now = shared.clock.now();
            let state = shared.state();
            let Some(stored) = state.keys.get(key) else { return Occupancy::default() };
            let held = stored.holders(now).map(|entry| holder(entry, now));
            Occupancy::new(stored.permits(now), held.collect())
        };
        shared.faults.around(look).await
    }

    async fn announce(&self, key: &Key) -> Result<(), Failure> {
        self.0.announced.announce(key);
        Ok(())
    }

    fn announcements(&self, key: &Key) -> Announcements {
        self.0.announced.subscribe(key.clone())
    }

    fn administration(&self) -> Option<&dyn Administration> {
        Some(self)
    }
}

impl Administration for Memory {
    fn holders(&self) -> BoxedFuture<'_, Result<Vec<(Key, Holder)>, Failure>> {
        let shared = &self.0;
        let list = move || {
            let now = shared.clock.now();
            let state = shared.state();
            state.keys.holders(now).map(|(key, entry)| (key.clone(), holder(entry, now))).collect()
        };
        boxed(shared.faults.around(list))
    }

    fn force_release(&self, key: Key, seen: Option<Vec<Holder>>) -> BoxedFuture<'_, Result<Forced, Failure>> {
        let shared = &self.0;
        let force = move || {
            let now = shared.clock.now();
            // Without `seen`, entries whose time has ended are removed too, but do not count as released.
            let Some(seen) = seen else {
                let held = shared.remove(key.as_str()).iter().any(|entry| entry.expires > now);
                return if held { Forced::Released } else { Forced::Free };
            };
            let state = shared.state();
            let held = state.keys.get(&key).into_iter().flat_map(|stored| stored.holders(now));
            let held: Vec<_> = held.map(|entry| holder(entry, now)).collect();
            Forced::without_release(&held, &seen).unwrap_or_else(|| {
                shared.remove_from(state, key.as_str());
                Forced::Released
            })
        };
        boxed(shared.faults.around(force))
    }

    fn resize(&self, key: Key, permits: u32) -> BoxedFuture<'_, Result<Option<u32>, Failure>> {
        let shared = &self.0;
        let resize = move || {
            let now = shared.clock.now();
            let mut state = shared.state();
            let resized = state.keys.get_mut(&key).map_or(Ok(None), |stored| stored.resize(permits, now));
            let before = match resized {
                Ok(before) => before,
                Err(other) => {
                    let conflict = Mode::Permits { of: permits, take: 1 }.conflict(&other);
                    return conflict.map_or(Ok(None), Err);
                }
            };
            // The number of permits may have grown.
            shared.notify(state, key.as_str());
            Ok(before)
        };
        boxed(async move { shared.faults.around(resize).await? })
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("locks", &self.0.state().keys.len()).finish_non_exhaustive()
    }
}

/// One waiter of a key, or a call that notifies them. The last one removes the entry.
struct KeyWatch<'a> {
    shared: &'a SharedMemory,
    key: Key,
    changed: Arc<Notify>,
}

impl Drop for KeyWatch<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        // One reference is the map's, and one is this one.
        if Arc::strong_count(&self.changed) == 2 {
            state.watched.remove(&self.key);
        }
    }
}
