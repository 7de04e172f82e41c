//! One claim on a lock in memory.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::SharedMemory;
use crate::backend::shares::{Downgraded, Verdict};
use crate::backend::{Attempt, Claim, ClaimRequest, InFlight, Renewed, Signal, Withdrawal};
use crate::error::Failure;

/// A claim on a lock of [`Memory`](crate::Memory).
pub struct MemoryClaim {
    shared: Arc<SharedMemory>,
    pub(super) request: ClaimRequest,
    /// The number of fences that the next attempt reserves.
    reserves: u32,
    pub(super) in_flight: InFlight<()>,
    pub(super) held: bool,
    /// Is `true` if `changed` has resolved since the last attempt.
    notified: bool,
    /// Is `true` if the claim had a place in the queue at the last attempt.
    queued: bool,
}

impl MemoryClaim {
    pub(super) fn new(shared: Arc<SharedMemory>, request: ClaimRequest) -> Self {
        let in_flight = InFlight::default();
        Self { shared, request, reserves: 1, in_flight, held: false, notified: false, queued: false }
    }

    /// Carries out the server's part of an attempt, in one atomic step.
    fn grant(&self) -> Result<Attempt, Failure> {
        let now = self.shared.clock.now();
        let mut state = self.shared.state();
        if let Some(left) = self.request.takes_over {
            return Ok(state.take_over(&self.request, left, self.reserves, now));
        }
        Ok(match state.busy(&self.request, now)? {
            Some(busy) => Attempt::Busy(busy),
            None => Attempt::Granted(state.grant(&self.request, self.reserves, now)),
        })
    }

    fn extend(&self) -> Renewed {
        let (now, request) = (self.shared.clock.now(), &self.request);
        let mut state = self.shared.state();
        let stored = state.keys.get_mut(&request.key);
        match stored.is_some_and(|stored| stored.renew(&request.token, request.lease, now)) {
            true => Renewed::Extended,
            false => Renewed::Gone,
        }
    }

    /// Carries out the server's part of a downgrade.
    fn let_others_read(&self) -> Renewed {
        let (now, request) = (self.shared.clock.now(), &self.request);
        let mut state = self.shared.state();
        let Some(stored) = state.keys.get_mut(&request.key) else { return Renewed::Gone };
        match stored.downgrade(&request.token, request.lease, now) {
            Downgraded::Gone => return Renewed::Gone,
            Downgraded::Before => {}
            Downgraded::Now => {
                self.shared.notify(state, request.key.as_str());
            }
        }
        Renewed::Extended
    }

    fn remove(&self) -> Withdrawal {
        let now = self.shared.clock.now();
        let (key, token) = (&self.request.key, self.request.token);
        let mut state = self.shared.state();
        let left_queue = self.request.fair && state.queues.leave(key, token);
        // The place in the queue and the hold go in one step: a waiter that is notified in between would find the key
        // taken.
        let withdrawn = state.keys.withdraw(key, &token, now);
        // Claims that this one kept out may come in.
        let others_waiting = match withdrawn.makes_room() || left_queue {
            true => self.shared.notify(state, key.as_str()),
            false => 0,
        };
        match withdrawn.entry {
            Some(entry) if entry.expires > now => Withdrawal::REMOVED.with_others_waiting(others_waiting),
            Some(_) => Withdrawal::ABSENT.with_others_waiting(others_waiting),
            None => Withdrawal::ABSENT,
        }
    }

    /// Carries out the server's part of a release that leaves the key taken.
    fn leave_for(&self, taken_for: Duration) -> Withdrawal {
        let now = self.shared.clock.now();
        let (key, token) = (&self.request.key, self.request.token);
        let mut state = self.shared.state();
        let stored = state.keys.get_mut(key);
        let Some(entry) = stored.and_then(|stored| stored.leave(&token, taken_for, now)) else {
            return Withdrawal::ABSENT;
        };
        // The hold has ended: later events of the key are no news of it.
        entry.detail.signal = None;
        Withdrawal::REMOVED.with_others_waiting(self.shared.notify(state, key.as_str()))
    }

    /// Is `true` if the claim waits in a way that others see, which a withdrawal has to end.
    fn keeps_others_out(&self) -> bool {
        let request = &self.request;
        if self.held || !request.has_preference() {
            return false;
        }
        let state = self.shared.state();
        let prefers = state.keys.get(&request.key).is_some_and(|stored| stored.prefers(&request.token));
        prefers || state.queues.has(&request.key, request.token)
    }

    fn is_free(&self) -> bool {
        let (now, request) = (self.shared.clock.now(), &self.request);
        let mut state = self.shared.state();
        let first = state.queues.first(&request.key, request.token, now);
        // The turn is the first condition: a free key is not free to the claims behind the first.
        if first.is_some_and(|first| first.token != request.token) {
            return false;
        }
        // An attempt that would fail is worth making: its caller gets the error.
        let judged = state.keys.get_mut(&request.key).map(|stored| {
            // The state has the first in the queue as of the last attempt, which may have left since.
            stored.set_first_in_queue(first);
            stored.judge(&request.to_lock_request(), now)
        });
        !matches!(judged, Some(Verdict::Taken(_) | Verdict::KeptOut(_)))
    }
}

impl Claim for MemoryClaim {
    fn reserve(&mut self, fences: u32) {
        self.reserves = fences.max(1);
    }

    async fn attempt(&mut self) -> Result<Attempt, Failure> {
        // In flight from before the request until its answer: this future may be dropped at any await in between.
        self.in_flight.begin(());
        self.notified = false;
        let answer = self.shared.faults.around(|| self.grant()).await?;
        self.held = matches!(answer, Ok(Attempt::Granted(_)));
        // Memory has no way on which an attempt could arrive later than this answer.
        self.in_flight.clear();
        let Ok(Attempt::Busy(mut busy)) = answer else { return answer };
        // A first place is not one that was lost.
        busy.requeued &= self.queued;
        self.queued = self.request.fair;
        Ok(Attempt::Busy(busy))
    }

    async fn changed(&mut self) -> Result<(), Failure> {
        let turn = match self.request.fair {
            true => self.shared.state().queues.turn_of(&self.request.key, self.request.token),
            false => None,
        };
        // A claim with a place is notified of its turn alone.
        let watch = turn.is_none().then(|| self.shared.watch(&self.request.key));
        let Some(wake) = turn.as_ref().or(watch.as_ref().map(|watch| &watch.changed)) else { return Ok(()) };
        loop {
            // Registered before the look, so that a release in between is not missed.
            let changed = wake.notified();
            let moved = self.shared.clock.moved();
            if !self.notified && self.is_free() {
                break;
            }
            tokio::select! {
                biased;
                () = changed => break,
                () = moved => {}
            }
        }
        self.notified = true;
        Ok(())
    }

    fn granted(&mut self, signal: Signal) {
        let (key, token) = (&self.request.key, &self.request.token);
        let mut state = self.shared.state();
        if let Some(entry) = state.keys.get_mut(key).and_then(|stored| stored.entry_mut(token)) {
            entry.detail.signal = Some(signal);
        }
    }

    async fn renew(&mut self) -> Result<Renewed, Failure> {
        self.shared.faults.around(|| self.extend()).await
    }

    async fn downgrade(&mut self) -> Result<Renewed, Failure> {
        self.shared.faults.around(|| self.let_others_read()).await
    }

    async fn withdraw(&mut self) -> Result<Withdrawal, Failure> {
        let answer = self.shared.faults.around(|| self.remove()).await?;
        self.in_flight.clear();
        self.held = false;
        Ok(answer)
    }

    async fn leave(&mut self, taken_for: Duration) -> Result<Withdrawal, Failure> {
        let answer = self.shared.faults.around(|| self.leave_for(taken_for)).await?;
        self.in_flight.clear();
        self.held = false;
        Ok(answer)
    }

    fn is_clean(&self) -> bool {
        self.in_flight.is_empty() && !self.held && !self.keeps_others_out()
    }
}

impl fmt::Debug for MemoryClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryClaim").field("key", &self.request.key).finish_non_exhaustive()
    }
}
