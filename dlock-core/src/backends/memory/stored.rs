//! The stored state of each key.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use foldhash::fast::RandomState;

use crate::backend::shares::{HolderEntry, KeyState, Withdrawn};
use crate::backend::{Busy, ClaimRequest, Signal};
use crate::clock::Timestamp;
use crate::holder::{Holder, Identity};
use crate::key::Key;
use crate::telemetry::Trace;
use crate::token::Token;

/// The number of keys above which idle ones are forgotten.
const KEYS: usize = 64;

/// The state of one key.
pub(super) type Stored = KeyState<HolderDetail>;

/// The details of a holder besides those that the rules need.
pub(super) struct HolderDetail {
    identity: Arc<Identity>,
    since: Timestamp,
    trace: Trace,
    pub(super) signal: Option<Signal>,
}

impl HolderDetail {
    pub(super) fn of(request: &ClaimRequest, now: Timestamp) -> Self {
        let (identity, trace) = (Arc::clone(&request.identity), request.trace.clone());
        Self { identity, since: now, trace, signal: None }
    }
}

/// The states of all keys that are held, remembered or waited for.
#[derive(Default)]
pub(super) struct Keys {
    states: HashMap<Key, Stored, RandomState>,
    /// The number of keys at which to look for idle ones again.
    tidy_at: usize,
}

impl Keys {
    pub(super) fn len(&self) -> usize {
        self.states.len()
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Stored> {
        self.states.get(key)
    }

    pub(super) fn get_mut(&mut self, key: &Key) -> Option<&mut Stored> {
        self.states.get_mut(key)
    }

    /// Returns the state of a key that is about to be held.
    pub(super) fn get_or_insert(&mut self, key: &Key, now: Timestamp) -> &mut Stored {
        if self.states.len() >= self.tidy_at.max(KEYS) {
            self.states.retain(|_, state| !state.is_idle(now));
            self.tidy_at = self.states.len() * 2;
        }
        self.states.entry(key.clone()).or_default()
    }

    /// Returns all holders, each with its key.
    pub(super) fn holders(&self, now: Timestamp) -> impl Iterator<Item = (&Key, &HolderEntry<HolderDetail>)> {
        self.states.iter().flat_map(move |(key, state)| state.holders(now).map(move |entry| (key, entry)))
    }

    /// Takes away everything that a claim has.
    pub(super) fn withdraw(&mut self, key: &Key, token: &Token, now: Timestamp) -> Withdrawn<HolderDetail> {
        let Some(state) = self.states.get_mut(key) else {
            return Withdrawn { entry: None, preferred: false };
        };
        let withdrawn = state.withdraw(token, now);
        if state.is_idle(now) {
            self.states.remove(key);
        }
        withdrawn
    }

    /// Forgets a key, and returns all its entries.
    pub(super) fn remove(&mut self, key: &str) -> Vec<HolderEntry<HolderDetail>> {
        self.states.remove(key).map(|state| state.into_entries().collect()).unwrap_or_default()
    }
}

/// Returns the answer to a claim that is refused until `until`.
pub(super) fn busy(state: &Stored, until: Timestamp, now: Timestamp) -> Busy {
    let holder = state.first_to_end(now).map(|entry| Box::new(holder(entry, now)));
    Busy { retry_after: (until > now).then(|| until.since(now)), holder, ..Busy::default() }
}

/// Describes a holder.
pub(super) fn holder(entry: &HolderEntry<HolderDetail>, now: Timestamp) -> Holder {
    let since = SystemTime::now().checked_sub(now.since(entry.detail.since));
    let mut holder = entry.detail.identity.to_holder(since.unwrap_or(SystemTime::UNIX_EPOCH));
    holder.trace = entry.detail.trace.to_text();
    holder.fence = Some(entry.fence);
    holder.mode = entry.mode;
    holder.expires_in = Some(entry.expires.since(now));
    holder.left_behind = entry.left_behind;
    holder
}
