//! The claims that wait for a lock in the order in which they came.
//!
//! ```text
//! an attempt finds the lock taken --> a place at the end --first, and the lock is free--> granted, given up
//!                                       |
//!                                       +--withdrawn--> given up
//!                                       +--no attempt for `PREFERENCE_ALIVE`, and first--> lost
//! ```

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use foldhash::fast::RandomState;

use crate::backend::PREFERENCE_ALIVE;
use crate::backend::shares::QueueEntry;
use crate::clock::Timestamp;
use crate::key::Key;
use crate::sync::Notify;
use crate::token::Token;

/// The queues of all keys. Only keys with waiters have one.
#[derive(Default)]
pub(super) struct Queues(HashMap<Key, Queue, RandomState>);

#[derive(Default)]
struct Queue {
    last: u64,
    places: BTreeMap<u64, Place>,
    of_tokens: HashMap<Token, u64, RandomState>,
}

struct Place {
    token: Token,
    /// The time at which the place is lost, unless the claim asks again before.
    alive_until: Timestamp,
    /// Notifies the claim of its turn.
    turn: Arc<Notify>,
}

impl Queues {
    /// Returns the first claim in the queue that is alive, or is `asking`.
    pub(super) fn first(&mut self, key: &Key, asking: Token, now: Timestamp) -> Option<QueueEntry> {
        // Most memories never have a queue: no key is looked up then.
        if self.0.is_empty() {
            return None;
        }
        let first = self.0.get_mut(key)?.first(Some(asking), now);
        let first = first.map(|first| QueueEntry { token: first.token, alive_until: first.alive_until });
        // Looking for the first may have dropped the last place.
        self.tidy(key);
        first
    }

    /// Takes a place at the end, or keeps the one that this claim has. Returns whether it is the first, and whether it
    /// is new.
    pub(super) fn enter(&mut self, key: &Key, token: Token, now: Timestamp) -> (bool, bool) {
        let queue = self.0.entry(key.clone()).or_default();
        let last = &mut queue.last;
        let mut is_new = false;
        let number = *queue.of_tokens.entry(token).or_insert_with(|| {
            (*last, is_new) = (*last + 1, true);
            *last
        });
        // Each attempt is a sign of life, also of a claim that has its place already.
        let alive_until = now + PREFERENCE_ALIVE;
        let place = queue.places.entry(number);
        place.or_insert_with(|| Place { token, alive_until, turn: Arc::default() }).alive_until = alive_until;
        // `first` comes last: it drops the places of dead claims before this one.
        (queue.first(Some(token), now).is_some_and(|first| first.token == token), is_new)
    }

    /// Is `true` if this claim has a place.
    pub(super) fn has(&self, key: &Key, token: Token) -> bool {
        self.0.get(key).is_some_and(|queue| queue.of_tokens.contains_key(&token))
    }

    /// Returns the notification of this claim's turn, if it has a place.
    pub(super) fn turn_of(&self, key: &Key, token: Token) -> Option<Arc<Notify>> {
        let queue = self.0.get(key)?;
        Some(Arc::clone(&queue.places.get(queue.of_tokens.get(&token)?)?.turn))
    }

    /// Returns the notification of the first in the queue, if there are waiters.
    pub(super) fn next_turn(&mut self, key: &str, now: Timestamp) -> Option<Arc<Notify>> {
        if self.0.is_empty() {
            return None;
        }
        let turn = self.0.get_mut(key)?.first(None, now).map(|first| Arc::clone(&first.turn));
        if turn.is_none() {
            self.0.remove(key);
        }
        turn
    }

    /// Gives the place up. Returns whether it was the first.
    pub(super) fn leave(&mut self, key: &Key, token: Token) -> bool {
        let Some(queue) = self.0.get_mut(key) else { return false };
        let Some(number) = queue.of_tokens.remove(&token) else { return false };
        // Only the end of the first place gives another claim its turn.
        let was_first = queue.places.first_key_value().is_some_and(|(first, _)| *first == number);
        queue.places.remove(&number);
        self.tidy(key);
        was_first
    }

    fn tidy(&mut self, key: &Key) {
        if self.0.get(key).is_some_and(|queue| queue.places.is_empty()) {
            self.0.remove(key);
        }
    }
}

impl Queue {
    /// Returns the first place whose claim is alive, or is `asking`. Those before it are lost.
    fn first(&mut self, asking: Option<Token>, now: Timestamp) -> Option<&Place> {
        // Dead claims are dropped only when they come first: nothing depends on those further behind, and no timer is
        // needed.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_drops_a_queue_whose_claims_are_all_lost() {
        let (mut queues, key, start) = (Queues::default(), Key::new("k").unwrap(), Timestamp::from_nanos(0));
        queues.enter(&key, Token::from_bytes([1; 16]), start);
        assert!(queues.next_turn("k", start).is_some() && !queues.0.is_empty());
        assert!(queues.next_turn("k", start + PREFERENCE_ALIVE).is_none());
        assert!(queues.0.is_empty());
    }
}
