//! The state of one key, and its steps.

use std::time::Duration;

use smallvec::SmallVec;

use super::entries::{HolderEntry, Others, Permits, Preference, QueueEntry};
use super::request::{Answer, Downgraded, Granted, LockRequest, Verdict, Withdrawn};
use crate::clock::Timestamp;
use crate::fence::Fence;
use crate::mode::{Mode, PERMITS_REMEMBERED, PREFERENCE_ALIVE};
use crate::token::Token;

/// The holders of one key, the preferred claim, the number of permits, and the last fence. See the [module](super) for
/// the states and steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyState<D> {
    /// Most keys have one holder.
    holders: SmallVec<[HolderEntry<D>; 1]>,
    others: Option<Others>,
    permits: Option<Permits>,
    preferred: Option<Preference>,
    first_in_queue: Option<QueueEntry>,
    last_fence: Fence,
}

impl<D> Default for KeyState<D> {
    fn default() -> Self {
        Self::new()
    }
}

/// Construction from stored parts, and access to the parts to store.
impl<D> KeyState<D> {
    /// Creates the state of a key without holders.
    #[must_use]
    pub fn new() -> Self {
        Self {
            holders: SmallVec::new(),
            others: None,
            permits: None,
            preferred: None,
            first_in_queue: None,
            last_fence: Fence::new(0),
        }
    }

    /// Adds a holder.
    #[must_use]
    pub fn with_holder(mut self, entry: HolderEntry<D>) -> Self {
        self.holders.push(entry);
        self
    }

    /// Sets the sum of the holders that are not [added](Self::with_holder).
    #[must_use]
    pub fn with_others(self, others: Option<Others>) -> Self {
        Self { others, ..self }
    }

    /// Sets the number of permits.
    #[must_use]
    pub fn with_permits(self, permits: Option<Permits>) -> Self {
        Self { permits, ..self }
    }

    /// Sets the claim that is preferred.
    #[must_use]
    pub fn with_preference(self, preferred: Option<Preference>) -> Self {
        Self { preferred, ..self }
    }

    /// Sets the first of the claims that wait in order.
    #[must_use]
    pub fn with_first_in_queue(self, first: Option<QueueEntry>) -> Self {
        Self { first_in_queue: first, ..self }
    }

    /// Sets the last fence that was drawn for this key.
    #[must_use]
    pub fn with_last_fence(self, last_fence: Fence) -> Self {
        Self { last_fence, ..self }
    }

    /// Sets the first of the claims that wait in order, in a state that is kept.
    pub const fn set_first_in_queue(&mut self, first: Option<QueueEntry>) {
        self.first_in_queue = first;
    }

    /// Returns all entries, also the ended ones.
    pub fn entries(&self) -> impl Iterator<Item = &HolderEntry<D>> {
        self.holders.iter()
    }

    /// Returns all holders of the key.
    pub fn holders(&self, now: Timestamp) -> impl Iterator<Item = &HolderEntry<D>> {
        self.holders.iter().filter(move |entry| entry.expires > now)
    }

    /// Returns the holder whose time ends first.
    #[must_use]
    pub fn first_to_end(&self, now: Timestamp) -> Option<&HolderEntry<D>> {
        self.holders(now).min_by_key(|entry| entry.expires)
    }

    /// Returns the hold of this token.
    #[must_use]
    pub fn holder(&self, token: &Token, now: Timestamp) -> Option<&HolderEntry<D>> {
        self.holders(now).find(|entry| entry.token == *token)
    }

    /// Returns the entry of this token, also if its time has ended.
    pub fn entry_mut(&mut self, token: &Token) -> Option<&mut HolderEntry<D>> {
        self.holders.iter_mut().find(|entry| entry.token == *token)
    }

    /// Returns all entries, of a key that is forgotten.
    pub fn into_entries(self) -> impl Iterator<Item = HolderEntry<D>> {
        self.holders.into_iter()
    }

    /// Returns the number of permits; `None` if the key is no semaphore, or its number is forgotten.
    #[must_use]
    pub fn permits(&self, now: Timestamp) -> Option<u32> {
        self.permits.filter(|permits| permits.remembered_until > now).map(|permits| permits.of)
    }

    /// Returns the stored number of permits, also if it is forgotten by now.
    #[must_use]
    pub const fn stored_permits(&self) -> Option<Permits> {
        self.permits
    }

    /// Returns the claim that is preferred, or was.
    #[must_use]
    pub const fn preferred(&self) -> Option<Preference> {
        self.preferred
    }

    /// Returns whether this claim is preferred.
    #[must_use]
    pub fn prefers(&self, token: &Token) -> bool {
        self.preferred.is_some_and(|preferred| preferred.token == *token)
    }

    /// Returns the last fence that was drawn.
    #[must_use]
    pub const fn last_fence(&self) -> Fence {
        self.last_fence
    }

    /// Returns the time until which the key has to be kept for its holders and its number of permits; `None` if it has
    /// neither.
    #[must_use]
    pub fn taken_until(&self, now: Timestamp) -> Option<Timestamp> {
        let remembered = self.permits.map(|permits| permits.remembered_until).filter(|until| *until > now);
        let others = self.others.map(|others| others.last_end);
        self.holders(now).map(|entry| entry.expires).chain(others).chain(remembered).max()
    }

    /// Returns whether nothing is left of the key but its last fence.
    #[must_use]
    pub fn is_idle(&self, now: Timestamp) -> bool {
        self.taken_until(now).is_none() && self.preferred.is_none_or(|preferred| preferred.is_over(now))
    }
}

/// The steps.
impl<D> KeyState<D> {
    /// Returns the outcome that an attempt would have, and changes nothing.
    pub fn judge(&self, request: &LockRequest, now: Timestamp) -> Verdict {
        // A token that holds the key comes before every rule: its earlier attempt was granted, whatever has changed
        // since.
        if self.holder(&request.token, now).is_some() {
            return Verdict::Held;
        }
        if let Some(alone) = self.alone(now) {
            return match request.mode.permits() {
                Some(_) => Verdict::Conflict(Mode::Exclusive),
                None => Verdict::Taken(alone.expires),
            };
        }
        // Conflicts come before room: a caller with another number of permits has to learn of it also while the
        // semaphore is full.
        let (taken, first_end) = self.taken(now);
        match (self.permits(now), request.mode.permits()) {
            (Some(of), asked) if asked != Some(of) => {
                return Verdict::Conflict(Mode::Permits { of, take: 1 });
            }
            (None, Some(_)) if taken > 0 => return Verdict::Conflict(Mode::Shared),
            _ => {}
        }
        let has_room = match request.mode {
            Mode::Exclusive => taken == 0,
            Mode::Shared => true,
            Mode::Permits { of, take } => taken.saturating_add(take) <= of,
        };
        if !has_room {
            return Verdict::Taken(first_end.unwrap_or(now));
        }
        // Claims that wait in order are kept out by their order alone.
        let preferred = self.preferred.filter(|other| !request.in_order && other.token != request.token);
        let first = self.first_in_queue.filter(|first| first.token != request.token);
        let turn = first.map(|first| first.alive_until).filter(|until| *until > now);
        match preferred.and_then(|preferred| preferred.keeps_out_until(now)).or(turn) {
            Some(until) => Verdict::KeptOut(until),
            None => Verdict::Free,
        }
    }

    /// Grants the key, adopts the hold of the token, or refuses, which may make the claim the preferred one.
    pub fn attempt(&mut self, request: &LockRequest, now: Timestamp, detail: impl FnOnce() -> D) -> Answer {
        match self.judge(request, now) {
            Verdict::Free | Verdict::Held => Answer::Granted(self.grant(request, now, detail)),
            Verdict::Taken(until) => {
                self.prefer(request, now);
                Answer::Busy { until }
            }
            Verdict::KeptOut(until) => Answer::Busy { until },
            Verdict::Conflict(mode) => Answer::Conflict(mode),
        }
    }

    /// Grants the key after [`judge`](Self::judge) found it free or held by this token. Several keys are granted as one
    /// by judging all of them first.
    pub fn grant(&mut self, request: &LockRequest, now: Timestamp, detail: impl FnOnce() -> D) -> Granted {
        if let Some(entry) = self.holder_mut(&request.token, now) {
            entry.expires = now + request.lease;
            let fence = entry.fence;
            self.remember(request.lease, now);
            return Granted { fence, reserved: 1, adopted: true };
        }
        // Ended entries count for nothing. They are deleted here, so that they do not pile up.
        self.holders.retain(|entry| entry.expires > now);
        if request.mode == Mode::Exclusive {
            (self.permits, self.preferred) = (None, None);
        } else {
            // Only its own preference ends: another claim may wait for the readers or permits that are held beside this
            // one.
            self.stop_waiting(&request.token);
            self.permits = request.mode.permits().map(|of| {
                // A number that is stored already keeps its time, which may be that of a longer lease.
                let known = self.permits.filter(|permits| permits.of == of);
                known.unwrap_or(Permits { of, remembered_until: now })
            });
            self.remember(request.lease, now);
        }
        let (fence, reserved) = self.draw(request);
        self.holders.push(HolderEntry {
            token: request.token,
            mode: request.mode,
            fence,
            expires: now + request.lease,
            left_behind: false,
            detail: detail(),
        });
        Granted { fence, reserved, adopted: false }
    }

    /// Has a claim that was refused keep newcomers out, if it wants to and no other claim does. Returns whether it
    /// does.
    pub fn prefer(&mut self, request: &LockRequest, now: Timestamp) -> bool {
        if !request.prefers || self.alone(now).is_some() {
            return false;
        }
        // The claim is alive because it asks: each attempt moves the end, and only the begin bounds the preference as a
        // whole.
        let (token, alive_until) = (request.token, now + PREFERENCE_ALIVE);
        let since = match self.preferred.filter(|preferred| !preferred.is_over(now)) {
            None => now,
            Some(ours) if ours.token == token => ours.since,
            Some(_) => return false,
        };
        self.preferred = Some(Preference { token, since, alive_until });
        true
    }

    /// Ends the preference of a claim. Returns whether it had one.
    pub fn stop_waiting(&mut self, token: &Token) -> bool {
        self.preferred.take_if(|preferred| preferred.token == *token).is_some()
    }

    /// Starts the lease again. Returns whether the token holds the key.
    pub fn renew(&mut self, token: &Token, lease: Duration, now: Timestamp) -> bool {
        let Some(entry) = self.holder_mut(token, now) else { return false };
        entry.expires = now + lease;
        self.remember(lease, now);
        true
    }

    /// Makes a reader of the writer with this token.
    pub fn downgrade(&mut self, token: &Token, lease: Duration, now: Timestamp) -> Downgraded {
        let Some(entry) = self.holder_mut(token, now) else { return Downgraded::Gone };
        if entry.mode != Mode::Exclusive {
            self.renew(token, lease, now);
            return Downgraded::Before;
        }
        (entry.mode, entry.expires) = (Mode::Shared, now + lease);
        // Readers that wait get in now. A preference for a writer would keep them out although the key is shared.
        self.preferred = None;
        Downgraded::Now
    }

    /// Takes away everything that a claim has: its hold and its preference.
    pub fn withdraw(&mut self, token: &Token, now: Timestamp) -> Withdrawn<D> {
        let preferred = self.stop_waiting(token);
        let index = self.holders.iter().position(|entry| entry.token == *token);
        let entry = index.map(|index| self.holders.remove(index));
        // A semaphore is remembered from its last use. The end of an entry that has run out is no use of it.
        if entry.as_ref().is_some_and(|entry| entry.expires > now) {
            self.remember(Duration::ZERO, now);
        }
        Withdrawn { entry, preferred }
    }

    /// Leaves the hold of a claim under the [token that is left behind](Token::left_behind), for so long, or no longer
    /// than it is left already. Returns the entry that was left.
    pub fn leave(
        &mut self,
        token: &Token,
        taken_for: Duration,
        now: Timestamp,
    ) -> Option<&mut HolderEntry<D>> {
        let (left, until) = (token.left_behind(), now + taken_for);
        // A repetition finds the key left already, and may only shorten the time: it may be a request that arrives
        // late.
        let is_left = self.holder(&left, now).is_some();
        let entry = self.holder_mut(if is_left { &left } else { token }, now)?;
        entry.expires = if is_left { entry.expires.min(until) } else { until };
        (entry.token, entry.left_behind) = (left, true);
        let expires = entry.expires;
        // The number must outlive what is left under it, or a take-over would find a semaphore without one.
        if let Some(permits) = &mut self.permits {
            permits.remembered_until = permits.remembered_until.max(expires);
        }
        self.entry_mut(&left)
    }

    /// Takes over the entry left under `left`, if it is as much of the key as the request names.
    pub fn take_over(
        &mut self,
        request: &LockRequest,
        left: &Token,
        now: Timestamp,
        detail: impl FnOnce() -> D,
    ) -> Answer {
        let same_part = |entry: &HolderEntry<D>| entry.mode.has_same_part(&request.mode);
        // An earlier attempt took it over, and its answer was lost.
        if self.holder(&request.token, now).is_some_and(same_part) {
            return Answer::Granted(self.grant(request, now, detail));
        }
        let is_left = |entry: &HolderEntry<D>| entry.left_behind && same_part(entry);
        if !self.holder(left, now).is_some_and(is_left) {
            return Answer::Busy { until: self.taken(now).1.unwrap_or(now) };
        }
        let (fence, reserved) = self.draw(request);
        if let Some(entry) = self.holder_mut(left, now) {
            (entry.token, entry.left_behind, entry.detail) = (request.token, false, detail());
            (entry.fence, entry.expires) = (fence, now + request.lease);
        }
        self.remember(request.lease, now);
        Answer::Granted(Granted { fence, reserved, adopted: false })
    }

    /// Changes the number of permits, and returns the previous one; `None` if the key is no semaphore.
    ///
    /// # Errors
    ///
    /// The mode in which the key is held, if it is held as a lock.
    pub fn resize(&mut self, permits: u32, now: Timestamp) -> Result<Option<u32>, Mode> {
        let Some(before) = self.permits(now) else {
            let alone = self.alone(now).map(|entry| entry.mode);
            let shared = (self.taken(now).0 > 0).then_some(Mode::Shared);
            return alone.or(shared).map_or(Ok(None), Err);
        };
        if let Some(stored) = &mut self.permits {
            stored.of = permits;
        }
        for entry in &mut self.holders {
            entry.mode = Mode::Permits { of: permits, take: entry.mode.taken() };
        }
        Ok(Some(before))
    }

    /// Returns the entry of an exclusive holder.
    fn alone(&self, now: Timestamp) -> Option<&HolderEntry<D>> {
        self.holders(now).find(|entry| entry.mode == Mode::Exclusive)
    }

    fn holder_mut(&mut self, token: &Token, now: Timestamp) -> Option<&mut HolderEntry<D>> {
        self.holders.iter_mut().find(|entry| entry.token == *token && entry.expires > now)
    }

    /// Returns the number of readers, or of permits in use, and the time at which the first of them ends.
    fn taken(&self, now: Timestamp) -> (u32, Option<Timestamp>) {
        let others = self.others.map(|others| (others.taken, others.first_end));
        let all = self.holders(now).map(|entry| (entry.mode.taken(), entry.expires)).chain(others);
        all.fold((0_u32, None), |(sum, first), (taken, end)| {
            (sum.saturating_add(taken), Some(first.map_or(end, |first: Timestamp| first.min(end))))
        })
    }

    /// Keeps the number of permits, if there is one, for at least as long as a hold of this lease.
    fn remember(&mut self, lease: Duration, now: Timestamp) {
        if let Some(permits) = &mut self.permits {
            let until = now + lease.max(PERMITS_REMEMBERED);
            permits.remembered_until = permits.remembered_until.max(until);
        }
    }

    /// Draws the fences of a grant. Returns the first of them, and their number.
    fn draw(&mut self, request: &LockRequest) -> (Fence, u32) {
        let fences = if request.mode == Mode::Exclusive { request.fences.max(1) } else { 1 };
        // A store may draw from a clock or a shared counter. Whichever is higher wins, so that fences grow also after a
        // key was forgotten.
        let first = self.last_fence.get().saturating_add(1).max(request.least_fence.get());
        self.last_fence = Fence::new(first.saturating_add(u64::from(fences - 1)));
        (Fence::new(first), fences)
    }
}
