//! Who waits for a lock in the order in which they came.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use foldhash::fast::RandomState;

use crate::backend::shares::QueueEntry;
use crate::backend::{ClaimRequest, PREFERENCE_ALIVE};
use crate::clock::Timestamp;
use crate::key::Key;
use crate::sync::Notify;
use crate::token::Token;

/// The lines of all keys. Only keys with waiters have one.
#[derive(Default)]
pub(super) struct Lines(HashMap<Key, Line, RandomState>);

#[derive(Default)]
struct Line {
    last: u64,
    places: BTreeMap<u64, Place>,
    of_tokens: HashMap<Token, u64, RandomState>,
}

struct Place {
    token: Token,
    /// When it has not asked again until then, its place is lost.
    alive_until: Timestamp,
    /// It hears of its turn by this.
    turn: Arc<Notify>,
}

impl Lines {
    /// The first in line who is alive, or asks.
    pub(super) fn first(&mut self, key: &Key, asking: Token, now: Timestamp) -> Option<QueueEntry> {
        if self.0.is_empty() {
            return None;
        }
        let first = self.0.get_mut(key)?.first(Some(asking), now);
        let first = first.map(|first| QueueEntry { token: first.token, alive_until: first.alive_until });
        self.tidy(key);
        first
    }

    /// Takes a place at the end, or keeps the one that this claim has. Whether it is first, and whether it is new.
    pub(super) fn stand(&mut self, request: &ClaimRequest, now: Timestamp) -> (bool, bool) {
        let line = self.0.entry(request.key.clone()).or_default();
        let (last, token) = (&mut line.last, request.token);
        let mut is_new = false;
        let number = *line.of_tokens.entry(token).or_insert_with(|| {
            (*last, is_new) = (*last + 1, true);
            *last
        });
        let alive_until = now + PREFERENCE_ALIVE;
        let place = line.places.entry(number);
        place.or_insert_with(|| Place { token, alive_until, turn: Arc::default() }).alive_until = alive_until;
        (line.first(Some(token), now).is_some_and(|first| first.token == token), is_new)
    }

    /// Whether this claim has a place.
    pub(super) fn has(&self, key: &Key, token: Token) -> bool {
        self.0.get(key).is_some_and(|line| line.of_tokens.contains_key(&token))
    }

    /// What tells this claim of its turn, if it has a place.
    pub(super) fn turn_of(&self, key: &Key, token: Token) -> Option<Arc<Notify>> {
        let line = self.0.get(key)?;
        Some(Arc::clone(&line.places.get(line.of_tokens.get(&token)?)?.turn))
    }

    /// What tells the first in line of its turn, if anybody waits.
    pub(super) fn next_turn(&mut self, key: &str, now: Timestamp) -> Option<Arc<Notify>> {
        if self.0.is_empty() {
            return None;
        }
        self.0.get_mut(key)?.first(None, now).map(|first| Arc::clone(&first.turn))
    }

    /// Gives the place up. Whether it was the first.
    pub(super) fn leave(&mut self, key: &Key, token: Token) -> bool {
        let Some(line) = self.0.get_mut(key) else { return false };
        let Some(number) = line.of_tokens.remove(&token) else { return false };
        let was_first = line.places.first_key_value().is_some_and(|(first, _)| *first == number);
        line.places.remove(&number);
        self.tidy(key);
        was_first
    }

    fn tidy(&mut self, key: &Key) {
        if self.0.get(key).is_some_and(|line| line.places.is_empty()) {
            self.0.remove(key);
        }
    }
}

impl Line {
    /// The first one that is alive, or that is `asking`. Those before it lose their places.
    fn first(&mut self, asking: Option<Token>, now: Timestamp) -> Option<&Place> {
        while let Some(first) = self.places.first_entry() {
            if first.get().alive_until > now || asking == Some(first.get().token) {
                break;
            }
            let place = first.remove();
            self.of_tokens.remove(&place.token);
        }
        self.places.first_key_value().map(|(_, place)| place)
    }
}
