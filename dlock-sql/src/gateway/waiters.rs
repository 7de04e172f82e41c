//! Requests that wait for a connection.
//!
//! A queue is idle, or has one task that sends: the request that finds `is_driven` unset spawns it, and the task unsets
//! it in the same step in which it finds the queue empty.

use std::collections::VecDeque;
use std::sync::Arc;

use dlock_core::backend::{Mutex, MutexGuard};
use dlock_core::{ErrorKind, Failure};
use tokio::sync::oneshot;

use super::progress::Progress;
use crate::limits::Limits;

/// The answer to a request; `None` where it was not sent, and has to be sent by itself.
pub(crate) type JointResult<R> = Result<Option<R>, Failure>;

/// A request that waits for a connection.
pub(super) struct Waiter<Q, R> {
    pub(super) request: Q,
    pub(super) limits: Limits,
    pub(super) progress: Arc<Progress>,
    pub(super) answer: Option<oneshot::Sender<JointResult<R>>>,
}

impl<Q, R> Waiter<Q, R> {
    pub(super) fn is_awaited(&self) -> bool {
        self.answer.as_ref().is_some_and(|answer| !answer.is_closed())
    }

    pub(super) fn answer(mut self, answer: JointResult<R>) {
        // The stage before the answer: a claim that reads the answer may ask at once whether something can still
        // arrive.
        match &answer {
            Err(failure) if failure.kind() == ErrorKind::Unknown => self.progress.lose(),
            _ => self.progress.settle(),
        }
        if let Some(sender) = self.answer.take() {
            drop(sender.send(answer));
        }
    }
}

impl<Q, R> Drop for Waiter<Q, R> {
    // Answered, this does nothing: its stage is final. Otherwise nothing of it will be sent, or no answer will come.
    fn drop(&mut self) {
        self.progress.lose();
    }
}

/// The queue of requests of one kind that wait for a connection.
pub(crate) struct PendingBatch<Q, R>(Mutex<State<Q, R>>);

pub(super) struct State<Q, R> {
    pub(super) waiting: VecDeque<Waiter<Q, R>>,
    /// Set while a task sends the requests.
    pub(super) is_driven: bool,
}

impl<Q, R> Default for PendingBatch<Q, R> {
    fn default() -> Self {
        Self(Mutex::new(State { waiting: VecDeque::new(), is_driven: false }))
    }
}

impl<Q, R> PendingBatch<Q, R> {
    pub(super) fn state(&self) -> MutexGuard<'_, State<Q, R>> {
        self.0.lock()
    }

    /// Returns `true` if no request waits any more. Then the next one spawns the task that sends.
    pub(super) fn is_done(&self) -> bool {
        let mut state = self.state();
        // Under the same mutex as the queueing of a request: none is left behind between the look and the note.
        state.is_driven = !state.waiting.is_empty();
        !state.is_driven
    }
}

/// A guard for the task that sends: when it ends before it is done, nothing that waits will be sent.
pub(super) struct Leaving<'a, Q, R>(pub(super) &'a PendingBatch<Q, R>);

impl<Q, R> Drop for Leaving<'_, Q, R> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.is_driven = false;
        state.waiting.clear();
    }
}
