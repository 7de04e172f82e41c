//! A body that runs under a lock.

use std::pin::Pin;
use std::task::Poll;

use crate::engine::scope::Scope;
use crate::error::{Error, ErrorKind, Failure, Operation, Result};
use crate::handles::batch::{Batch, BatchGuard};
use crate::handles::guard::Guard;
use crate::handles::held::Held;
use crate::handles::lock::Lock;
use crate::handles::options::OnLost;
use crate::telemetry::{Span, Spanned, Telemetry};

/// A critical section: acquires, runs a pinned body, releases. What [`Lock::run`], [`Batch::run`] and the attribute are
/// made of.
///
/// It owns the guard, so that a caller who declares it before the body has the body dropped first when he is
/// cancelled itself: the lock is released after everything that was done under it.
#[derive(Debug)]
pub struct Section {
    target: SectionTarget,
    state: SectionState,
    run_when_unavailable: bool,
}

#[derive(Debug)]
enum SectionTarget {
    Lock(Lock),
    Batch(Batch),
}

#[derive(Debug)]
enum SectionState {
    Outside,
    Locked(SectionGuard),
    /// The body has returned; the lock is still held.
    Finished(SectionGuard),
    /// The backend could not be asked, and the caller wants the body run all the same.
    Unlocked,
}

#[derive(Debug)]
enum SectionGuard {
    One(Guard),
    All(BatchGuard),
}

impl SectionGuard {
    fn held(&self) -> Held {
        match self {
            Self::One(guard) => guard.held(),
            Self::All(guards) => guards.held(),
        }
    }

    async fn release(self) -> Result<()> {
        match self {
            Self::One(guard) => guard.release().await,
            Self::All(guards) => guards.release().await,
        }
    }
}

impl SectionTarget {
    async fn take(&self) -> Result<SectionGuard> {
        match self {
            Self::Lock(lock) => lock.acquire_unnoted().await.map(SectionGuard::One),
            Self::Batch(batch) => batch.acquire_unnoted().await.map(SectionGuard::All),
        }
    }

    fn on_lost(&self) -> OnLost {
        match self {
            Self::Lock(lock) => lock.options().on_lost,
            Self::Batch(batch) => batch.on_lost(),
        }
    }
}

impl From<Lock> for Section {
    fn from(lock: Lock) -> Self {
        Self::new(lock)
    }
}

impl From<Batch> for Section {
    fn from(batch: Batch) -> Self {
        Self::of(SectionTarget::Batch(batch))
    }
}

impl Section {
    /// Creates a section under `lock`, which is not yet taken.
    #[must_use]
    pub const fn new(lock: Lock) -> Self {
        Self::of(SectionTarget::Lock(lock))
    }

    const fn of(target: SectionTarget) -> Self {
        Self { target, state: SectionState::Outside, run_when_unavailable: false }
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
        if !matches!(self.state, SectionState::Outside) {
            return Ok(());
        }
        self.state = match self.target.take().await {
            Ok(taken) => SectionState::Locked(taken),
            Err(error) if self.run_when_unavailable && is_unavailable(error.kind()) => {
                Telemetry::body_unlocked(&error);
                SectionState::Unlocked
            }
            Err(error) => return Err(error),
        };
        Ok(())
    }

    /// Takes the lock if [`enter`](Self::enter) did not, runs `body`, and releases the lock.
    ///
    /// A body that has returned wins over a failed release, which is logged and bounded by the lease.
    ///
    /// # Errors
    ///
    /// Those of [`Lock::acquire`], and [`ErrorKind::Lost`] when the lock was lost before the body was done and the
    /// lock's `on_lost` is [`OnLost::Abort`]. The body is then not polled again; the caller drops it.
    ///
    /// # Cancel safety
    ///
    /// When dropped, the lock is released in the background once the section is dropped too.
    pub async fn run<F: Future>(&mut self, body: Pin<&mut F>) -> Result<F::Output> {
        let output = self.run_body(body).await?;
        self.leave().await;
        Ok(output)
    }

    /// Takes the lock if [`enter`](Self::enter) did not, and runs `body`. The lock stays held until
    /// [`leave`](Self::leave), so that the caller can drop first what belongs to the body.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    pub async fn run_body<F: Future>(&mut self, body: Pin<&mut F>) -> Result<F::Output> {
        self.enter().await?;
        let held = self.held();
        let span = held.holds().first().map_or_else(Span::none, |hold| {
            let telemetry = &hold.engine.telemetry;
            telemetry.body_started(hold.subject(), held.holds().len(), held.fence())
        });
        let supervised = supervise(&held, self.target.on_lost(), body).in_span(span);
        let output = Scope::of_body(held.clone()).enter(supervised).await;
        // When the lock was lost, the guard stays until the caller has dropped the body.
        let output = output.ok_or_else(|| loss(&held))?;
        self.state = match std::mem::replace(&mut self.state, SectionState::Outside) {
            SectionState::Locked(taken) => SectionState::Finished(taken),
            other => other,
        };
        Ok(output)
    }

    /// Releases the lock of a body that has returned; a failure is logged. Does nothing else.
    ///
    /// # Cancel safety
    ///
    /// When dropped, the release goes on in the background.
    pub async fn leave(&mut self) {
        match std::mem::replace(&mut self.state, SectionState::Outside) {
            SectionState::Finished(taken) => {
                let held = taken.held();
                if let Err(error) = taken.release().await
                    && let Some(hold) = held.holds().first()
                {
                    hold.engine.telemetry.release_after_body_failed(hold.subject(), &error);
                }
            }
            SectionState::Unlocked | SectionState::Outside => {}
            locked @ SectionState::Locked(_) => self.state = locked,
        }
    }

    /// What is held; nothing outside, and for a body that runs without the lock.
    pub(super) fn held(&self) -> Held {
        match &self.state {
            SectionState::Locked(taken) | SectionState::Finished(taken) => taken.held(),
            SectionState::Outside | SectionState::Unlocked => Held::nothing(),
        }
    }
}

fn loss(held: &Held) -> Error {
    let failure = |cause| Failure::new(ErrorKind::Lost, cause);
    match held.find_lost() {
        Some(hold) => hold.error(Operation::Hold, failure(hold.cause())),
        None => Error::new(Operation::Hold, failure("".into())),
    }
}

/// Runs `body` to its end; `None` when a lock is lost before and the body is not to go on.
///
/// The loss is looked for before each poll, so that a process that was stopped and continues does not run a
/// single step of the body any more.
async fn supervise<F: Future>(held: &Held, on_lost: OnLost, mut body: Pin<&mut F>) -> Option<F::Output> {
    if held.holds().is_empty() || on_lost == OnLost::Continue {
        return Some(body.await);
    }
    let mut lost = std::pin::pin!(held.lost());
    let output = std::future::poll_fn(|cx| {
        if held.find_lost().is_some() {
            return Poll::Ready(None);
        }
        if let Poll::Ready(output) = body.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        lost.as_mut().poll(cx).map(|()| None)
    })
    .await;
    Telemetry::body_ended(output.is_none());
    output
}

const fn is_unavailable(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Unavailable | ErrorKind::Unknown | ErrorKind::QuorumNotReached)
}

impl Lock {
    /// Takes the lock, runs `body`, and releases the lock.
    ///
    /// Inside the body the lock is reentrant: a nested acquire of the same key on the same `Locks` succeeds at once
    /// and sees the same fence. When the lock is lost, the body is dropped at its current await, unless
    /// [`with_on_lost`](Self::with_on_lost) says to continue. A body that has returned wins over a failed release,
    /// which is logged and bounded by the lease.
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
    /// When dropped, the body is dropped first and the lock is then released in the background.
    pub fn run<F: Future>(&self, body: F) -> impl Future<Output = Result<F::Output>> + use<'_, F> {
        run(Section::new(self.clone()), body)
    }

    /// Runs a body like [`run`](Self::run), and shows it the hold: its fence, what remains, whether it is lost.
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
        run_with(Section::new(self.clone()), body).await
    }
}

impl Batch {
    /// Takes all locks, runs `body`, and releases the locks. See [`Lock::run`]: inside the body every one of the keys
    /// is reentrant, and the body is dropped when one of the locks is lost, unless the options of all of them say to
    /// continue.
    ///
    /// # Errors
    ///
    /// Those of [`acquire`](Self::acquire), and [`ErrorKind::Lost`].
    ///
    /// # Cancel safety
    ///
    /// When dropped, the body is dropped first and the locks are then released in the background.
    pub fn run<F: Future>(&self, body: F) -> impl Future<Output = Result<F::Output>> + use<'_, F> {
        run(Section::from(self.clone()), body)
    }

    /// Runs a body like [`run`](Self::run), and shows it what is held.
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
        run_with(Section::from(self.clone()), body).await
    }
}

/// Runs `body` in `section`, from its own place on the heap: a future that contains it would keep it twice, once as it
/// was given and once as it runs, and bodies in bodies would double with each level.
fn run<F: Future>(mut section: Section, body: F) -> impl Future<Output = Result<F::Output>> {
    let body = Box::pin(body);
    async move {
        section.enter().await?;
        // Declared after the section, to be dropped before the lock is released.
        let mut body = body;
        section.run(body.as_mut()).await
    }
}

/// As [`run`], with a body that is made once the lock is taken.
async fn run_with<F, B>(mut section: Section, body: B) -> Result<F::Output>
where
    F: Future,
    B: FnOnce(Held) -> F,
{
    section.enter().await?;
    let mut body = Box::pin(body(section.held()));
    section.run(body.as_mut()).await
}
