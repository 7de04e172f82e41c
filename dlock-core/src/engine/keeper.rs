//! The keeper: the thread that dlock owns.
//!
//! Renewal, the release of dropped guards and the clean-up of abandoned claims run here, so that a user who blocks
//! every worker thread of his runtime, or shuts it down, neither loses a lock nor leaks one. Each `Locks` has a keeper,
//! on a thread of its own while there are not many, so that a backend that hangs or blocks holds up its own locks only.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use crate::backend::Renewed;
use crate::engine::activity::ActivityToken;
use crate::engine::cleanup::Cleanup;
use crate::engine::hold::{Condition, Hold};
use crate::engine::registry::HoldRegistry;
use crate::engine::threads::{self, Thread};
use crate::error::Failure;
use crate::guarded::Panicked;
use crate::telemetry::{Loss, Spanned, Telemetry};

/// Work for the keeper.
pub(crate) enum Job {
    /// Give back a hold that was closed.
    Release(Arc<Hold>, ActivityToken),
    /// Withdraw a claim that nobody waits for any more.
    Withdraw(Cleanup),
}

/// Returns the runtime that drives connections, on a thread of dlock's own. A backend drives its connections there, so
/// that they live on when the user's runtime is blocked or gone. It must not block.
///
/// # Errors
///
/// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) when the operating system gives no thread; the next call
/// tries again.
pub fn runtime() -> Result<&'static Handle, Failure> {
    threads::of_connections()
}

/// Runs a keeper's tasks in place of dlock's own thread: the seam for simulations, which decide themselves who goes on
/// next.
#[doc(hidden)]
pub trait Spawn: fmt::Debug + Send + Sync + 'static {
    /// Runs `task` to its end, inside a tokio runtime with timers.
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>);
}

/// Where the tasks of one keeper run.
#[derive(Clone, Debug)]
pub(crate) enum Tasks {
    Thread(Arc<Thread>),
    Given(Arc<dyn Spawn>),
}

impl Tasks {
    pub(crate) fn new(given: Option<Arc<dyn Spawn>>) -> Result<Self, Failure> {
        match given {
            Some(given) => Ok(Self::Given(given)),
            None => threads::of_keeper().map(Self::Thread),
        }
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        match self {
            Self::Thread(thread) => drop(thread.runtime().spawn(task)),
            Self::Given(given) => given.spawn(Box::pin(task)),
        }
    }

    /// Runs `future` there and awaits its end; `None` when the keeper ended before. Dropping this drops `future`.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let (mut tell, told) = oneshot::channel();
        self.spawn(async move {
            tokio::select! {
                biased;
                () = tell.closed() => {}
                output = future => drop(tell.send(output)),
            }
        });
        told.await.ok()
    }
}

/// Looks after one registry until its engine is gone.
pub(super) fn look_after(registry: Arc<HoldRegistry>, inbox: mpsc::UnboundedReceiver<Job>) {
    registry.tasks.clone().spawn(supervise(registry, inbox));
}

/// Keeps until the engine is gone, whatever happens: foreign code is caught where it is run, and what panics all the
/// same is begun anew. When this task itself is ended, nobody renews any more, and the registry says so.
async fn supervise(registry: Arc<HoldRegistry>, mut inbox: mpsc::UnboundedReceiver<Job>) {
    let alive = Alive(&registry);
    while let Err(panic) = AssertUnwindSafe(keep(&registry, &mut inbox)).catch_unwind().await {
        Telemetry::keeper_panicked(&Panicked::new(panic));
        tokio::time::sleep(AFTER_PANIC).await;
    }
    std::mem::forget(alive);
}

/// How long the keeper rests after a panic of its own, so that one that comes back does not spin.
const AFTER_PANIC: Duration = Duration::from_millis(10);

/// Says what the end of the keeper means, unless the engine is gone too.
struct Alive<'a>(&'a HoldRegistry);

impl Drop for Alive<'_> {
    fn drop(&mut self) {
        self.0.keeper_is_dead();
    }
}

/// Returns when the engine is gone.
async fn keep(registry: &Arc<HoldRegistry>, inbox: &mut mpsc::UnboundedReceiver<Job>) {
    loop {
        let (due, next) = registry.look();
        for hold in due {
            registry.tasks.spawn(renew(hold));
        }
        let look = async {
            tokio::select! {
                biased;
                () = registry.clock.sleep_until(next) => {
                    registry.telemetry.keeper_lagged(registry.clock.now().since(next));
                }
                () = registry.wake.notified() => {}
            }
        };
        tokio::pin!(look);
        loop {
            tokio::select! {
                biased;
                () = &mut look => break,
                job = inbox.recv() => match job {
                    Some(job) => registry.tasks.spawn(job.carry_out()),
                    None => return,
                },
            }
        }
    }
}

async fn renew(hold: Arc<Hold>) {
    let renewal = Renewal(hold);
    let hold = &renewal.0;
    let span = hold.engine.telemetry.renewal_started(hold.subject(), &hold.trace);
    renew_once(hold).in_span(span).await;
}

/// A renewal under way. However it ends, the next one is planned while the hold lasts.
struct Renewal(Arc<Hold>);

impl Drop for Renewal {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.renewal_failed();
        }
        // The next renewal is due before the end of the lease, for which the hold is listed now.
        self.0.engine.registry.replan(&self.0);
    }
}

async fn renew_once(hold: &Hold) {
    let Some(mut lent) = hold.claim().await else { return };
    let Some(claim) = lent.claim() else { return };
    if matches!(hold.condition(), Condition::Lost | Condition::Released) {
        return;
    }
    let clock = &hold.engine.clock;
    let telemetry = &hold.engine.telemetry;
    let sent = clock.now();
    let limit = hold.request_timeout.min(hold.deadline().since(sent));
    let answer = tokio::select! {
        biased;
        // A release must not wait for a renewal; one that is on its way changes nothing once the token is gone.
        () = hold.ended() => return,
        answer = tokio::time::timeout(limit, claim.renew()) => answer,
    };
    let took = || clock.now().since(sent);
    match answer {
        Ok(Ok(Renewed::Extended)) => {
            hold.confirm(sent);
            telemetry.renewed(hold.site, took);
        }
        Ok(Ok(Renewed::Gone)) => {
            hold.lose_by(Loss::Gone);
            telemetry.renewal_found_gone(hold.site, took);
        }
        failed => {
            let failure = match failed {
                Ok(Err(failure)) => failure,
                _ => Failure::unknown(format!("no answer to a renewal within {limit:?}")),
            };
            // First what counts, then what is told of it.
            hold.renewal_failed();
            let left = || hold.deadline().since(clock.now());
            telemetry.renewal_failed(hold.site, &failure, took, left);
        }
    }
}

impl Job {
    pub(super) fn into_background(self) -> Self {
        match self {
            Self::Release(hold, activity) => Self::Release(hold, activity.into_background()),
            Self::Withdraw(cleanup) => {
                Self::Withdraw(Cleanup { activity: cleanup.activity.into_background(), ..cleanup })
            }
        }
    }

    async fn carry_out(self) {
        match self {
            Self::Withdraw(cleanup) => cleanup.carry_out().await,
            Self::Release(hold, activity) => {
                // A renewal under way lets go of it at once, since the hold is closed.
                if let Some(claim) = hold.take_claim().await {
                    Cleanup::of_hold(&hold, claim, activity).carry_out().await;
                }
            }
        }
    }
}
