//! Claims of this process that want one key at one moment, where nothing else brings their questions together: one of
//! them asks, and if it finds the key taken, that is the answer for all that came before it asked.
//!
//! ```text
//!     `turn` ---> waits for the turn ---+-- asked and found taken since it came ---> `Taken`
//!                                       +-- otherwise: `Ask`, with the next number
//!                                              | `found_taken`: noted with that number
//!                                              v
//!                                           the turn goes to the next claim
//! ```
//!
//! The answer of a question that had been asked before a claim came is of no use to it: the lock may be free since.

use std::collections::HashMap;
use std::sync::Arc;

use dlock_core::backend::{Mutex, by_then};
use dlock_core::{Failure, Holder, Key};
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

/// The keys that are asked for now, and how many claims want each.
#[derive(Default)]
pub(crate) struct Questions(Mutex<HashMap<Key, (usize, Arc<Question>)>>);

/// A key, and what is known of it.
#[derive(Default)]
struct Question {
    /// The right to ask.
    turn: Arc<tokio::sync::Mutex<()>>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// The number of times that it was asked for.
    asked: u64,
    /// The number of the last question that found it taken, and its holder if that is known.
    taken: (u64, Option<Box<Holder>>),
}

/// The turn of a claim.
pub(crate) enum Turn<'a> {
    Ask(Asking<'a>),
    /// Another claim has asked since this one came, and found the key taken.
    Taken(Option<Box<Holder>>),
}

/// The right to ask for a key, until it is dropped.
pub(crate) struct Asking<'a> {
    wanting: Wanting<'a>,
    number: u64,
    _turn: OwnedMutexGuard<()>,
}

/// A claim that wants a key.
struct Wanting<'a> {
    questions: &'a Questions,
    key: &'a Key,
    question: Arc<Question>,
}

impl Questions {
    /// Waits for the claims that ask for the key.
    ///
    /// # Errors
    ///
    /// When that takes too long; nothing was asked.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub(crate) async fn turn<'a>(&'a self, key: &'a Key, end: Instant) -> Result<Turn<'a>, Failure> {
        let wanting = Wanting::of(self, key);
        // Counted before the wait: only questions that are asked from here on answer this claim's.
        let before = wanting.question.known.lock().asked;
        let Some(turn) = by_then(end, Arc::clone(&wanting.question.turn).lock_owned()).await else {
            return Err(Failure::unavailable(
                "another task of this process asks for the same key, and the server has not answered it yet",
            ));
        };
        let number = {
            let mut known = wanting.question.known.lock();
            // The number is that of a question asked since this claim came, whichever claim asked it.
            if known.taken.0 > before {
                return Ok(Turn::Taken(known.taken.1.clone()));
            }
            known.asked += 1;
            known.asked
        };
        Ok(Turn::Ask(Asking { wanting, number, _turn: turn }))
    }
}

impl Asking<'_> {
    /// Reports to the claims that came before this one asked that the key is taken.
    pub(crate) fn found_taken(self, holder: Option<Box<Holder>>) {
        // Noted while `self` has the turn: the claim that gets it next reads this. An `Asking` that is dropped without
        // an answer notes nothing, and the next claim asks.
        self.wanting.question.known.lock().taken = (self.number, holder);
    }
}

impl<'a> Wanting<'a> {
    fn of(questions: &'a Questions, key: &'a Key) -> Self {
        let mut all = questions.0.lock();
        let (count, question) = all.entry(key.clone()).or_default();
        *count += 1;
        let question = Arc::clone(question);
        // The count keeps the entry: a claim that comes meanwhile finds this very question.
        drop(all);
        Self { questions, key, question }
    }
}

impl Drop for Wanting<'_> {
    fn drop(&mut self) {
        let mut all = self.questions.0.lock();
        let Some((count, _)) = all.get_mut(self.key) else { return };
        *count -= 1;
        // The last claim that wants the key takes its entry along.
        if *count == 0 {
            all.remove(self.key);
        }
    }
}
