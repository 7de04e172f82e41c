//! The keeper: the thread that dlock owns.
//!
//! Renewal, the release of dropped guards and the clean-up of abandoned claims run here, so that a user who blocks every
//! worker thread of his runtime, or shuts it down, neither loses a lock nor leaks one. There is one thread for the
//! process, with one task for each `Locks`; a backend that hangs holds up its own locks only.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::runtime::{Builder, Handle};
use tokio::sync::mpsc;

use crate::backend::Backoff;
use crate::backend::dynamic::DynClaim;
use crate::backend::{Renewed, Withdrawal};
use crate::clock::Timestamp;
use crate::engine::hold::{Condition, Hold};
use crate::engine::{Engine, HoldRegistry};
use crate::error::{ErrorKind, Failure};
use crate::guarded::Panicked;
use crate::handles::options::Site;
use crate::key::Key;
use crate::telemetry::span::Spanned;
use crate::telemetry::spans;
use crate::telemetry::{Loss, Trace};

/// Work for the keeper.
pub(crate) enum Job {
    /// Give back a hold that was closed.
    Release(Arc<Hold>),
    /// Withdraw a claim that nobody waits for any more.
    Withdraw(Cleanup),
}

/// A claim that nobody waits for any more.
pub(crate) struct Cleanup {
    pub(crate) engine: Arc<Engine>,
    pub(crate) key: Key,
    pub(crate) site: Site,
    pub(crate) claim: Box<dyn DynClaim>,
    pub(crate) lease: Duration,
    pub(crate) request_timeout: Duration,
}

/// The runtime of the keeper's thread. A backend drives its own connections there, so that they live on when
/// the user's runtime is blocked or gone.
///
/// # Errors
///
/// [`ErrorKind::Unavailable`] when the operating system gives no thread.
pub fn runtime() -> Result<&'static Handle, Failure> {
    static KEEPER: OnceLock<Result<Handle, String>> = OnceLock::new();
    let started = KEEPER.get_or_init(|| {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
        let handle = runtime.handle().clone();
        std::thread::Builder::new()
            .name("dlock-keeper".into())
            .spawn(move || runtime.block_on(std::future::pending::<()>()))
            .map_err(|e| e.to_string())?;
        Ok(handle)
    });
    started.as_ref().map_err(|e| Failure::unavailable(format!("the keeper thread could not be started: {e}")))
}

/// Runs a keeper's tasks in place of dlock's own thread: the seam for simulations, which decide themselves who goes on next.
#[doc(hidden)]
pub trait Spawn: fmt::Debug + Send + Sync + 'static {
    /// Runs `task` to its end, inside a tokio runtime with timers.
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>);
}

/// Where the tasks of one keeper run.
#[derive(Clone, Debug)]
pub(crate) enum Tasks {
    Runtime(&'static Handle),
    Given(Arc<dyn Spawn>),
}

impl Tasks {
    pub(crate) fn new(given: Option<Arc<dyn Spawn>>) -> Result<Self, Failure> {
        match given {
            Some(given) => Ok(Self::Given(given)),
            None => runtime().map(Self::Runtime),
        }
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        match self {
            Self::Runtime(runtime) => drop(runtime.spawn(task)),
            Self::Given(given) => given.spawn(Box::pin(task)),
        }
    }
}

/// Looks after one registry until its engine is gone.
pub(crate) fn look_after(registry: Arc<HoldRegistry>, inbox: mpsc::UnboundedReceiver<Job>) {
    registry.tasks.clone().spawn(supervise(registry, inbox));
}

/// Keeps until the engine is gone, whatever happens: foreign code is caught where it is run, and what panics all the same
/// is begun anew. When this task itself is ended, nobody renews any more, and the registry says so.
async fn supervise(registry: Arc<HoldRegistry>, mut inbox: mpsc::UnboundedReceiver<Job>) {
    let alive = Alive(&registry);
    while let Err(panic) = AssertUnwindSafe(keep(&registry, &mut inbox)).catch_unwind().await {
        spans::keeper_panicked(&Panicked::new(panic));
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
                    registry.metrics.keeper_lagged(registry.clock.now().since(next));
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
    let span = spans::renew_span(&renewal.0);
    renew_once(&renewal.0).in_span(span).await;
}

/// A renewal under way. However it ends, the next one is planned while the hold lasts.
struct Renewal(Arc<Hold>);

impl Drop for Renewal {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.renewal_failed();
        }
        // The plan of the next renewal may lie before the keeper's next look.
        self.0.engine.registry.look_by(self.0.due_at());
    }
}

async fn renew_once(hold: &Hold) {
    let mut claim = hold.claim().await;
    let Some(claim) = claim.as_mut() else { return };
    if matches!(hold.condition(), Condition::Lost | Condition::Released) {
        return;
    }
    let clock = &hold.engine.clock;
    let registry = &hold.engine.registry;
    let sent = clock.now();
    let limit = hold.request_timeout.min(hold.deadline().since(sent));
    let answer = tokio::select! {
        biased;
        // A release must not wait for a renewal; one that is on its way changes nothing once the token is gone.
        () = hold.ended() => return,
        answer = tokio::time::timeout(limit, claim.renew()) => answer,
    };
    match answer {
        Ok(Ok(Renewed::Extended)) => {
            hold.confirm(sent);
            registry.count(|counters| &counters.renewals);
            registry.metrics.renewal(hold.site, "renewed", None, || clock.now().since(sent));
            spans::renewed(hold);
        }
        Ok(Ok(Renewed::Gone)) => {
            hold.engine.registry.metrics.renewal(hold.site, "gone", None, || clock.now().since(sent));
            spans::outcome("gone");
            hold.lose_by(Loss::Gone);
        }
        failed => {
            let failure = match failed {
                Ok(Err(failure)) => failure,
                _ => Failure::unknown(format!("no answer to a renewal within {limit:?}")),
            };
            registry.count(|counters| &counters.failed_renewals);
            let took = || clock.now().since(sent);
            registry.metrics.renewal(hold.site, "failed", Some(failure.kind()), took);
            // First what counts, then what is told of it.
            hold.renewal_failed();
            spans::renewal_failed(hold, &failure);
        }
    }
}

impl Job {
    async fn carry_out(self) {
        let mut trace = Trace::default();
        let abandoned = match self {
            Self::Withdraw(abandoned) => abandoned,
            Self::Release(hold) => match hold.take_claim().await {
                Some(claim) => {
                    trace = hold.trace.clone();
                    Cleanup {
                        engine: Arc::clone(&hold.engine),
                        key: hold.key.clone(),
                        site: hold.site,
                        claim,
                        lease: hold.lease,
                        request_timeout: hold.request_timeout,
                    }
                }
                None => return hold.engine.registry.finished(),
            },
        };
        let span = spans::release_span(&abandoned.engine, &abandoned.key, abandoned.site, true);
        trace.adopt(&span);
        abandoned.withdraw().in_span(span).await;
    }
}

impl Cleanup {
    /// Withdraws, again and again until it is confirmed or the lease has ended it anyway.
    async fn withdraw(mut self) {
        // A request that is still on its way starts its lease when it arrives. What a session keeps has no lease, and would be
        // kept for as long as this process lives.
        let until = match self.engine.capabilities.session_kept {
            true => Timestamp::NEVER,
            false => self.engine.clock.now() + self.lease + self.request_timeout,
        };
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
        loop {
            match withdraw_once(&mut self.claim, self.request_timeout).await {
                Ok(withdrawal) if withdrawal.settled || self.engine.clock.now() >= until => {
                    spans::outcome("released");
                    break;
                }
                // What was sent before may still take effect: withdrawn again until it cannot any more.
                Ok(_) => {}
                Err(failure) => {
                    self.engine.registry.count(|counters| &counters.failed_withdrawals);
                    self.engine.registry.metrics.release_failed(self.site, failure.kind());
                    let given_up = !failure.is_transient() || self.engine.clock.now() >= until;
                    spans::withdrawal_failed(&self.engine, &self.key, &failure, given_up);
                    if given_up {
                        self.engine.registry.count(|counters| &counters.abandoned);
                        self.engine.registry.metrics.abandoned(self.site);
                        spans::failed(failure.kind());
                        break;
                    }
                }
            }
            tokio::time::sleep(backoff.next_pause()).await;
        }
        self.engine.wait_queue.released(&self.key);
        self.engine.registry.finished();
    }
}

/// One bounded request to withdraw.
pub(crate) async fn withdraw_once(
    claim: &mut Box<dyn DynClaim>,
    limit: Duration,
) -> Result<Withdrawal, Failure> {
    match tokio::time::timeout(limit, claim.withdraw()).await {
        Ok(answer) => answer,
        Err(_) => Err(Failure::new(ErrorKind::Unknown, format!("no answer to a release within {limit:?}"))),
    }
}
