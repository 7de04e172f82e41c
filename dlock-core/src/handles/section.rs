//! A body that runs under a lock.
//!
//! ```text
//!              enter            taken           the body has returned           leave
//!   Outside ─────────▶ Entering ──────▶ Locked ───────────────────────▶ Finished ─────▶ Leaving ──▶ Outside
//!                         └── unavailable, and that is allowed ──▶ Unlocked ── leave ──▶ Outside
//! ```
//!
//! A lock that is entered again goes from `Outside` to `Locked`. A lock that was lost stays `Locked` until the caller
//! has dropped the body, and is released by the drop of the section.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use crate::engine::acquire::Shares;
use crate::engine::attended::Attended;
use crate::engine::scope::Scope;
use crate::error::{Error, ErrorKind, Failure, Operation, Result};
use crate::handles::batch::{Batch, BatchGuard};
use crate::handles::guard::Guard;
use crate::handles::held::Held;
use crate::handles::lock::Lock;
use crate::options::OnLost;
use crate::telemetry::{Span, Telemetry};

/// A critical section: acquires, runs a pinned body, releases. [`Lock::run`], [`Batch::run`] and the attribute are made
/// of it.
///
/// It owns the guard, so that a caller that declares it before the body drops the body first when it is cancelled
/// itself: the lock is released after everything that was done under it.
#[derive(Debug)]
pub struct Section {
    target: SectionTarget,
    state: SectionState,
    run_when_unavailable: bool,
    /// The surroundings of the body while it runs.
    running: Option<Running>,
}

#[derive(Debug)]
enum SectionTarget {
    Lock(Lock),
    Batch(Batch),
}

enum SectionState {
    Outside,
    Entering(Entering),
    Locked(SectionGuard),
    /// The body has returned; the lock is still held.
    Finished(SectionGuard),
    Leaving(Held, Step<Result<()>>),
    /// The backend could not be asked, and the caller wants the body run all the same.
    Unlocked,
}

enum Entering {
    One(Attended<Option<Shares>>),
    All(Step<Result<SectionGuard>>),
}

/// Boxed, so that the futures of all annotated functions, which contain the section, are small and alike.
type Step<T> = Pin<Box<dyn Future<Output = T> + Send>>;

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

    /// Returns the rest of the release; the result where nothing is left to do.
    fn end(self) -> std::result::Result<Step<Result<()>>, Result<()>> {
        match self {
            Self::One(guard) => guard.end().map(|leaving| -> Step<_> { Box::pin(leaving) }),
            Self::All(guards) => Ok(Box::pin(guards.release())),
        }
    }
}

impl SectionTarget {
    /// Begins to take the lock, or returns the guard of a lock that is entered again.
    fn take(&self) -> Result<SectionState> {
        Ok(match self {
            Self::Lock(lock) => {
                let key = lock.checked(lock.options())?;
                match lock.reenter(key, false)? {
                    Some(guard) => SectionState::Locked(SectionGuard::One(guard)),
                    None => SectionState::Entering(Entering::One(lock.begin(key)?)),
                }
            }
            Self::Batch(batch) => {
                let batch = batch.clone();
                let taking = async move { batch.acquire_unnoted().await.map(SectionGuard::All) };
                SectionState::Entering(Entering::All(Box::pin(taking)))
            }
        })
    }

    fn first(&self) -> Option<&Lock> {
        match self {
            Self::Lock(lock) => Some(lock),
            Self::Batch(batch) => batch.first(),
        }
    }

    fn on_lost(&self) -> OnLost {
        match self {
            Self::Lock(lock) => lock.options().on_lost,
            Self::Batch(batch) => batch.on_lost(),
        }
    }
}

impl fmt::Debug for SectionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Outside => "Outside",
            Self::Entering(_) => "Entering",
            Self::Locked(_) => "Locked",
            Self::Finished(_) => "Finished",
            Self::Leaving(..) => "Leaving",
            Self::Unlocked => "Unlocked",
        })
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
        Self { target, state: SectionState::Outside, run_when_unavailable: false, running: None }
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
    /// If dropped, the next call goes on with what this one began. When the section is dropped too, as
    /// [`Lock::acquire`].
    pub async fn enter(&mut self) -> Result<()> {
        std::future::poll_fn(|cx| self.poll_enter(cx)).await
    }

    /// Polls what [`enter`](Self::enter) does.
    ///
    /// # Errors
    ///
    /// Those of [`enter`](Self::enter).
    pub fn poll_enter(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        // A release that was dropped midway: the lock is this section's no more.
        if matches!(self.state, SectionState::Leaving(..)) {
            ready!(self.poll_leave(cx));
        }
        if matches!(self.state, SectionState::Outside) {
            self.running = None;
            self.state = match self.target.take() {
                Ok(state) => state,
                Err(error) => return Poll::Ready(self.refused(error)),
            };
        }
        let SectionState::Entering(taking) = &mut self.state else { return Poll::Ready(Ok(())) };
        let taken = match (taking, &self.target) {
            (Entering::One(taking), SectionTarget::Lock(lock)) => {
                ready!(lock.poll_taking(taking, cx)).map(SectionGuard::One)
            }
            (Entering::All(taking), _) => ready!(taking.as_mut().poll(cx)),
            (Entering::One(_), SectionTarget::Batch(_)) => unreachable!("one lock is taken for a lock"),
        };
        self.state = SectionState::Outside;
        Poll::Ready(match taken {
            Ok(taken) => {
                self.state = SectionState::Locked(taken);
                Ok(())
            }
            Err(error) => self.refused(error),
        })
    }

    /// Ends an acquire that failed, or goes on without the lock if that is allowed.
    fn refused(&mut self, error: Error) -> Result<()> {
        if !self.run_when_unavailable || !is_unavailable(error.kind()) {
            return Err(error);
        }
        if let Some(lock) = self.target.first() {
            lock.engine().telemetry.body_unlocked(lock.site(), &error);
        }
        self.state = SectionState::Unlocked;
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
    /// If dropped, the lock is released in the background once the section is dropped too.
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
    pub async fn run_body<F: Future>(&mut self, mut body: Pin<&mut F>) -> Result<F::Output> {
        self.enter().await?;
        let mut output = None;
        std::future::poll_fn(|cx| {
            self.poll_body(cx, &mut |cx| body.as_mut().poll(cx).map(|returned| output = Some(returned)))
        })
        .await?;
        Ok(output.unwrap_or_else(|| unreachable!("the body has returned")))
    }

    /// Polls a body under the lock, which is taken first if [`enter`](Self::enter) did not: what
    /// [`run_body`](Self::run_body) does at each poll, compiled once for all bodies.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        body: &mut dyn FnMut(&mut Context<'_>) -> Poll<()>,
    ) -> Poll<Result<()>> {
        if self.running.is_none() {
            ready!(self.poll_enter(cx))?;
            self.running = Some(Running::new(self.held(), self.target.on_lost()));
        }
        let is_lost = self.running.as_mut().map_or(Poll::Ready(false), |running| running.poll(cx, body));
        let is_lost = ready!(is_lost);
        let running = self.running.take();
        // After a loss, the guard stays until the caller has dropped the body.
        if let Some(running) = running.filter(|_| is_lost) {
            return Poll::Ready(Err(loss(&running.held)));
        }
        self.state = match std::mem::replace(&mut self.state, SectionState::Outside) {
            SectionState::Locked(taken) => SectionState::Finished(taken),
            other => other,
        };
        Poll::Ready(Ok(()))
    }

    /// Releases the lock of a body that has returned; a failure is logged. Does nothing else.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the next call goes on with what this one began. When the section is dropped too, the release
    /// goes on in the background.
    pub async fn leave(&mut self) {
        std::future::poll_fn(|cx| self.poll_leave(cx)).await;
    }

    /// Polls what [`leave`](Self::leave) does.
    pub fn poll_leave(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.state = match std::mem::replace(&mut self.state, SectionState::Outside) {
            SectionState::Finished(taken) => {
                let held = taken.held();
                match taken.end() {
                    Ok(leaving) => SectionState::Leaving(held, leaving),
                    Err(result) => {
                        note_release(&held, result);
                        SectionState::Outside
                    }
                }
            }
            SectionState::Unlocked => SectionState::Outside,
            other => other,
        };
        if let SectionState::Leaving(held, leaving) = &mut self.state {
            let result = ready!(leaving.as_mut().poll(cx));
            note_release(held, result);
            self.state = SectionState::Outside;
        }
        Poll::Ready(())
    }

    /// Returns the view of the hold; of nothing outside, and for a body that runs without the lock.
    pub(super) fn held(&self) -> Held {
        match &self.state {
            SectionState::Locked(taken) | SectionState::Finished(taken) => taken.held(),
            _ => Held::nothing(),
        }
    }
}

/// Reports a release that failed.
fn note_release(held: &Held, result: Result<()>) {
    if let Err(error) = result
        && let Some(hold) = held.holds().first()
    {
        hold.engine.telemetry.release_after_body_failed(hold.subject(), &error);
    }
}

fn loss(held: &Held) -> Error {
    let failure = |cause| Failure::new(ErrorKind::Lost, cause);
    match held.find_lost() {
        Some(hold) => {
            let lost = hold.engine.refuse_in_child().err().unwrap_or_else(|| failure(hold.cause()));
            hold.error(Operation::Hold, lost)
        }
        None => Error::new(Operation::Hold, failure("".into())),
    }
}

/// The surroundings of a body that runs: its scope, its span, and the end that a loss makes for it.
struct Running {
    held: Held,
    scope: Scope,
    span: Span,
    /// Is `true` if a loss ends it.
    ends: bool,
    /// Waits for the loss, once the body waits for something.
    lost: Option<Loss>,
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Running").field(&self.held).finish()
    }
}

type Loss = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

impl Running {
    fn new(held: Held, on_lost: OnLost) -> Self {
        let span = held.holds().first().map_or_else(Span::none, |hold| {
            let telemetry = &hold.engine.telemetry;
            telemetry.body_started(hold.subject(), held.holds().len(), held.fence())
        });
        let ends = !held.holds().is_empty() && on_lost == OnLost::Abort;
        Self { scope: Scope::of_body(held.locks()), held, span, ends, lost: None }
    }

    /// Polls the body. Ready when it has returned, or must not go on because a lock was lost; returns `true` if it was
    /// lost.
    ///
    /// The loss is looked for before each poll, so that a process that was stopped and continues does not run a
    /// single step of the body any more.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        body: &mut dyn FnMut(&mut Context<'_>) -> Poll<()>,
    ) -> Poll<bool> {
        let Self { held, scope, span, ends, lost } = self;
        scope.enter_now(|| {
            span.in_scope(|| {
                if !*ends {
                    return body(cx).map(|()| false);
                }
                let is_lost = if held.find_lost().is_some() {
                    true
                } else if body(cx).is_ready() {
                    false
                } else {
                    let lost = lost.get_or_insert_with(|| {
                        let held = held.clone();
                        Box::pin(async move { held.lost().await })
                    });
                    ready!(lost.as_mut().poll(cx));
                    true
                };
                Telemetry::body_ended(is_lost);
                Poll::Ready(is_lost)
            })
        })
    }
}

const fn is_unavailable(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Unavailable | ErrorKind::Unknown | ErrorKind::QuorumNotReached)
}

/// Runs `body` under what is held already; `None` when that was lost before the body was done. The caller keeps the
/// guard.
pub(super) fn run_held<F: Future>(held: Held, body: F) -> impl Future<Output = Option<F::Output>> {
    // On the heap, as in `run`.
    let mut body = Box::pin(body);
    async move {
        let mut running = Running::new(held, OnLost::Abort);
        let mut output = None;
        std::future::poll_fn(|cx| {
            running.poll(cx, &mut |cx| body.as_mut().poll(cx).map(|returned| output = Some(returned)))
        })
        .await;
        output
    }
}

impl Lock {
    /// Takes the lock, runs `body`, and releases the lock.
    ///
    /// Inside the body the lock is reentrant: a nested acquire of the same key on the same `Locks` succeeds at once
    /// and sees the same fence. When the lock is lost, the body is dropped at its current await, unless
    /// [`with_on_lost`](Self::with_on_lost) lets it continue. A body that has returned wins over a failed release,
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
    /// If dropped, the body is dropped first and the lock is then released in the background.
    pub fn run<F: Future>(&self, body: F) -> impl Future<Output = Result<F::Output>> + use<F> {
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
    pub fn run_with<F, B>(&self, body: B) -> impl Future<Output = Result<F::Output>> + use<F, B>
    where
        F: Future,
        B: FnOnce(Held) -> F,
    {
        run_with(Section::new(self.clone()), body)
    }
}

impl Batch {
    /// Takes all locks, runs `body`, and releases the locks. See [`Lock::run`]: inside the body every one of the keys
    /// is reentrant, and the body is dropped when one of the locks is lost, unless the options of all of them let it
    /// continue.
    ///
    /// # Errors
    ///
    /// Those of [`acquire`](Self::acquire), and [`ErrorKind::Lost`].
    ///
    /// # Cancel safety
    ///
    /// If dropped, the body is dropped first and the locks are then released in the background.
    pub fn run<F: Future>(&self, body: F) -> impl Future<Output = Result<F::Output>> + use<F> {
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
    pub fn run_with<F, B>(&self, body: B) -> impl Future<Output = Result<F::Output>> + use<F, B>
    where
        F: Future,
        B: FnOnce(Held) -> F,
    {
        run_with(Section::from(self.clone()), body)
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

/// Runs a body as [`run`] does, which is made once the lock is taken.
async fn run_with<F, B>(mut section: Section, body: B) -> Result<F::Output>
where
    F: Future,
    B: FnOnce(Held) -> F,
{
    section.enter().await?;
    let mut body = Box::pin(body(section.held()));
    section.run(body.as_mut()).await
}
