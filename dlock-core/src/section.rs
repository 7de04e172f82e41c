//! A body that runs under a lock.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use tracing::Instrument;

use crate::error::Failure;
use crate::error::{ErrorKind, Operation, Result};
use crate::guard::{Guard, Held};
use crate::hold::{Condition, Hold};
use crate::lock::Lock;
use crate::observe;
use crate::options::OnLost;
use crate::scope::{self, Scope};

/// A critical section: acquires, runs a pinned body, releases. What [`Lock::run`] and the attribute are made of.
///
/// It owns the guard, so that a caller who declares it before the body has the body dropped first when he is
/// cancelled himself: the lock is given back after everything that was done under it.
#[derive(Debug)]
pub struct Section {
    lock: Lock,
    state: State,
    run_when_unavailable: bool,
}

#[derive(Debug)]
enum State {
    Outside,
    Locked(Guard),
    /// The backend could not be asked, and the caller wants the body run all the same.
    Unlocked,
}

impl Section {
    /// A section under `lock`, which is not yet taken.
    #[must_use]
    pub const fn new(lock: Lock) -> Self {
        Self { lock, state: State::Outside, run_when_unavailable: false }
    }

    /// Runs the body without the lock when the backend cannot be asked for it.
    #[must_use]
    pub const fn run_when_unavailable(mut self) -> Self {
        self.run_when_unavailable = true;
        self
    }

    /// Takes the lock. Does nothing when it is taken already.
    ///
    /// # Errors
    ///
    /// Those of [`Lock::acquire`].
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`].
    pub async fn enter(&mut self) -> Result<()> {
        if !matches!(self.state, State::Outside) {
            return Ok(());
        }
        self.state = match self.lock.acquire_unnoted().await {
            Ok(guard) => State::Locked(guard),
            Err(error) if self.run_when_unavailable && is_unavailable(error.kind()) => {
                observe::running_unlocked(&error);
                State::Unlocked
            }
            Err(error) => return Err(error),
        };
        Ok(())
    }

    /// Takes the lock if [`enter`](Self::enter) did not, runs `body`, and gives the lock back.
    ///
    /// A body that has returned wins over a failed release, which is logged and bounded by the lease.
    ///
    /// # Errors
    ///
    /// Those of [`Lock::acquire`], and [`ErrorKind::Lost`] when the lock was lost before the body was done and the lock's
    /// `on_lost` is [`OnLost::Abort`]. The body is then not polled again; the caller drops it.
    ///
    /// # Cancel safety
    ///
    /// When dropped, the lock is given back in the background once the section is dropped too.
    pub async fn run<F: Future>(&mut self, body: Pin<&mut F>) -> Result<F::Output> {
        self.enter().await?;
        let hold = match &self.state {
            State::Locked(guard) => Some(Arc::clone(guard.hold())),
            _ => None,
        };
        let span = hold.as_deref().map_or_else(tracing::Span::none, observe::hold_span);
        let supervised = supervise(hold.as_deref(), self.lock.options().on_lost, body).instrument(span);
        let result = if hold.as_ref().is_some_and(scope::is_innermost) {
            supervised.await
        } else {
            Scope::of_body(hold.clone()).enter(supervised).await
        };
        match (std::mem::replace(&mut self.state, State::Outside), result) {
            (State::Locked(guard), Some(output)) => {
                if let Err(error) = guard.release().await
                    && let Some(hold) = &hold
                {
                    observe::release_failed_after_body(hold, &error);
                }
                Ok(output)
            }
            (_, Some(output)) => Ok(output),
            (state, None) => {
                let failure =
                    Failure::new(ErrorKind::Lost, hold.as_deref().map(Hold::cause).unwrap_or_default());
                let error = match &state {
                    State::Locked(guard) => guard.hold().error(Operation::Hold, failure),
                    _ => self.lock.error(Operation::Hold, failure),
                };
                // The guard stays until the caller has dropped the body.
                self.state = state;
                Err(error)
            }
        }
    }
}

/// Runs `body` to its end; `None` when the lock is lost before and the body is not to go on.
///
/// The loss is looked for before each poll, so that a process that was stopped and continues does not run a
/// single step of the body any more.
async fn supervise<F: Future>(
    hold: Option<&Hold>,
    on_lost: OnLost,
    mut body: Pin<&mut F>,
) -> Option<F::Output> {
    let Some(hold) = hold.filter(|_| on_lost == OnLost::Abort) else { return Some(body.await) };
    let mut lost = std::pin::pin!(hold.when(|hold| hold.condition() == Condition::Lost));
    let output = std::future::poll_fn(|cx| {
        if hold.condition() == Condition::Lost {
            return Poll::Ready(None);
        }
        if let Poll::Ready(output) = body.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        lost.as_mut().poll(cx).map(|()| None)
    })
    .await;
    observe::body_ended(output.is_none());
    output
}

const fn is_unavailable(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Unavailable | ErrorKind::Unknown | ErrorKind::QuorumNotReached)
}

impl Lock {
    /// Takes the lock, runs `body`, and gives the lock back.
    ///
    /// Inside of the body the lock is reentrant: a nested acquire of the same key on the same `Locks` succeeds at once and
    /// sees the same fence. When the lock is lost, the body is dropped at its current await, unless
    /// [`with_on_lost`](Self::with_on_lost) says to continue. A body that has returned wins over a failed release, which
    /// is logged and bounded by the lease.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
    /// use dlock_core::{Locks, Memory};
    ///
    /// let locks = Locks::new(Memory::new());
    /// let sold = locks.lock("stock").run(async { 1 }).await?;
    /// assert_eq!(sold, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`acquire`](Self::acquire), and [`ErrorKind::Lost`].
    ///
    /// # Cancel safety
    ///
    /// When dropped, the body is dropped first and the lock is then given back in the background.
    pub async fn run<F: Future>(&self, body: F) -> Result<F::Output> {
        let mut section = Section::new(self.clone());
        let body = std::pin::pin!(body);
        section.run(body).await
    }

    /// Like [`run`](Self::run), for a body that wants to see the hold: its fence, what remains, whether it is lost.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    pub async fn run_with<F, B>(&self, body: B) -> Result<F::Output>
    where
        F: Future,
        B: FnOnce(Held) -> F,
    {
        let mut section = Section::new(self.clone());
        section.enter().await?;
        let held = match &section.state {
            State::Locked(guard) => guard.held(),
            _ => Held::nothing(),
        };
        let body = std::pin::pin!(body(held));
        section.run(body).await
    }
}
