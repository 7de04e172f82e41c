//! One claim on a lock in memory.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::SharedMemory;
use crate::backend::{Attempt, Claim, ClaimRequest, Mode, Renewed, Signal, Withdrawal};
use crate::error::Failure;

/// A claim on a lock of [`Memory`].
pub struct MemoryClaim {
    shared: Arc<SharedMemory>,
    pub(super) request: ClaimRequest,
    /// How many fences the next attempt reserves.
    reserves: u32,
    /// A request is under way, or its answer was lost.
    pub(super) unsettled: bool,
    pub(super) held: bool,
    /// It was said since the last attempt that the lock is free.
    told: bool,
    /// It had a place in line at the last attempt.
    stands: bool,
}

impl MemoryClaim {
    pub(super) const fn new(shared: Arc<SharedMemory>, request: ClaimRequest) -> Self {
        Self { shared, request, reserves: 1, unsettled: false, held: false, told: false, stands: false }
    }

    /// The server's part of an attempt: one atomic step.
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
        let now = self.shared.clock.now();
        match self.shared.state().entry_mut(&self.request.key, self.request.token) {
            Some(entry) if entry.expires > now => {
                entry.expires = now + self.request.lease;
                Renewed::Extended
            }
            _ => Renewed::Gone,
        }
    }

    /// The server's part of a downgrade.
    fn let_others_read(&self) -> Renewed {
        let now = self.shared.clock.now();
        let (key, token) = (&self.request.key, self.request.token);
        let mut state = self.shared.state();
        if state.locks.get(key).is_some_and(|entry| entry.token == token && entry.expires > now)
            && let Some(mut entry) = state.locks.remove(key)
        {
            (entry.mode, entry.expires) = (Mode::Shared, now + self.request.lease);
            state.shared.insert(key, entry, now);
            self.shared.tell(state, key.as_str());
            return Renewed::Extended;
        }
        drop(state);
        // It is a reader's already, or gone.
        self.extend()
    }

    fn remove(&self) -> Withdrawal {
        let now = self.shared.clock.now();
        let mut state = self.shared.state();
        let key = &self.request.key;
        let mut gone = state.shared.stop_waiting(key, self.request.token);
        if self.request.fair {
            gone |= state.lines.leave(key, self.request.token);
        }
        match state.take(key, self.request.token, now) {
            Some(entry) => {
                let expired = entry.expires <= now;
                let others_waiting = self.shared.tell(state, key.as_str());
                let withdrawal = if expired { Withdrawal::ABSENT } else { Withdrawal::REMOVED };
                withdrawal.with_others_waiting(others_waiting)
            }
            None => {
                if gone {
                    // Those it kept out may come in.
                    self.shared.tell(state, key.as_str());
                }
                Withdrawal::ABSENT
            }
        }
    }

    /// The server's part of a release that leaves the key taken.
    fn leave_for(&self, taken_for: Duration) -> Withdrawal {
        let now = self.shared.clock.now();
        let (key, token) = (&self.request.key, self.request.token);
        let (left, until) = (token.left_behind(), now + taken_for);
        let mut state = self.shared.state();
        let is_left = state.entry_mut(key, left).is_some();
        match state.entry_mut(key, if is_left { left } else { token }) {
            Some(entry) if entry.expires > now => {
                entry.expires = if is_left { entry.expires.min(until) } else { until };
                (entry.token, entry.left_behind, entry.signal) = (left, true, None);
                Withdrawal::REMOVED.with_others_waiting(self.shared.tell(state, key.as_str()))
            }
            _ => Withdrawal::ABSENT,
        }
    }

    /// Whether it waits, and has to say so when it waits no more.
    pub(super) fn keeps_others_out(&self) -> bool {
        let request = &self.request;
        if self.held || !request.has_preference() {
            return false;
        }
        let state = self.shared.state();
        state.shared.prefers(&request.key, request.token) || state.lines.has(&request.key, request.token)
    }

    fn is_free(&self) -> bool {
        let now = self.shared.clock.now();
        let mut state = self.shared.state();
        let held = state.locks.get(&self.request.key).is_some_and(|entry| entry.expires > now);
        // An attempt that would fail is worth making: its caller gets the error.
        let free = !held && state.shared.busy(&self.request, now).map_or(true, |busy| busy.is_none());
        free && state.lines.others_turn(&self.request.key, self.request.token, now).is_none()
    }
}

impl Claim for MemoryClaim {
    fn reserve(&mut self, fences: u32) {
        self.reserves = fences.max(1);
    }

    async fn attempt(&mut self) -> Result<Attempt, Failure> {
        (self.unsettled, self.told) = (true, false);
        let answer = self.shared.faults.around(|| self.grant()).await?;
        self.held = matches!(answer, Ok(Attempt::Granted(_)));
        self.unsettled = self.keeps_others_out();
        let Ok(Attempt::Busy(mut busy)) = answer else { return answer };
        busy.requeued &= self.stands;
        self.stands = self.request.fair;
        Ok(Attempt::Busy(busy))
    }

    async fn changed(&mut self) -> Result<(), Failure> {
        let turn = match self.request.fair {
            true => self.shared.state().lines.turn_of(&self.request.key, self.request.token),
            false => None,
        };
        // One with a place is told of its turn alone.
        let watch = turn.is_none().then(|| self.shared.watch(&self.request.key));
        let Some(told) = turn.as_ref().or(watch.as_ref().map(|watch| &watch.changed)) else { return Ok(()) };
        loop {
            let changed = told.notified();
            let moved = self.shared.clock.moved();
            if !self.told && self.is_free() {
                break;
            }
            tokio::select! {
                biased;
                () = changed => break,
                () = moved => {}
            }
        }
        self.told = true;
        Ok(())
    }

    fn granted(&mut self, signal: Signal) {
        if let Some(entry) = self.shared.state().entry_mut(&self.request.key, self.request.token) {
            entry.signal = Some(signal);
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
        self.unsettled = false;
        self.held = false;
        Ok(answer)
    }

    async fn leave(&mut self, taken_for: Duration) -> Result<Withdrawal, Failure> {
        let answer = self.shared.faults.around(|| self.leave_for(taken_for)).await?;
        self.unsettled = false;
        self.held = false;
        Ok(answer)
    }

    fn is_clean(&self) -> bool {
        // A look at the key while it waits may have made it keep others out.
        !self.unsettled && !self.held && !self.keeps_others_out()
    }
}

impl fmt::Debug for MemoryClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryClaim").field("key", &self.request.key).finish_non_exhaustive()
    }
}
