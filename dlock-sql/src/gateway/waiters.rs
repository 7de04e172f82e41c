//! Requests that wait for a connection.

use std::collections::VecDeque;
use std::sync::Arc;

use dlock_core::backend::{Mutex, MutexGuard};
use dlock_core::{ErrorKind, Failure};
use tokio::sync::oneshot;

use super::progress::Progress;
use crate::limits::Limits;

/// The answer to a request; nothing where it was not asked for, and has to be asked for by itself.
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
    fn drop(&mut self) {
        self.progress.lose();
    }
}

/// Requests of one kind that wait for a connection.
pub(crate) struct Line<Q, R>(Mutex<State<Q, R>>);

pub(super) struct State<Q, R> {
    pub(super) waiting: VecDeque<Waiter<Q, R>>,
    /// Somebody is there who sends what waits.
    pub(super) is_driven: bool,
}

impl<Q, R> Default for Line<Q, R> {
    fn default() -> Self {
        Self(Mutex::new(State { waiting: VecDeque::new(), is_driven: false }))
    }
}

impl<Q, R> Line<Q, R> {
    pub(super) fn state(&self) -> MutexGuard<'_, State<Q, R>> {
        self.0.lock()
    }

    /// Whether nobody waits any more. Then whoever comes next sends what waits.
    pub(super) fn is_done(&self) -> bool {
        let mut state = self.state();
        state.is_driven = !state.waiting.is_empty();
        !state.is_driven
    }
}

/// Who sends what waits is cancelled before it is done: nothing of it will be sent.
pub(super) struct Leaving<'a, Q, R>(pub(super) &'a Line<Q, R>);

impl<Q, R> Drop for Leaving<'_, Q, R> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.is_driven = false;
        state.waiting.clear();
    }
}
