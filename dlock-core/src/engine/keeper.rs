//! The keeper, which runs on a thread that dlock owns.
//!
//! Renewal, the release of dropped guards and the clean-up of abandoned claims run here, so that a program that blocks
//! every worker thread of its runtime, or shuts it down, neither loses a lock nor leaks one. Each `Locks` has a keeper,
//! on a thread of its own while there are not many, so that a backend that hangs or blocks holds up its own locks only.
//!
//! ```text
//!           ┌─────────────────── the time of the next look, or a hold that is due earlier ───────────────────┐
//!           ▼                                                                                                │
//!   look at the registry ──┬── renewals that are due ──▶ a task each ──▶ replan ─────────────────────────────┤
//!                          ├── past its deadline ──────▶ lost, which wakes `lost()` and `ended()`            │
//!                          ├── kept and overdue ───────▶ given up                                            │
//!                          └── then: tasks of the inbox, each spawned ───────────────────────────────────────┘
//! ```

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::mpsc;

use crate::backend::Renewed;
use crate::backend::dynamic::DynBackend;
use crate::engine::bounds::RequestBounds;
use crate::engine::cleanup::give_up;
use crate::engine::hold::{Condition, Hold};
use crate::engine::registry::{DueWork, HoldRegistry};
use crate::engine::{Engine, Own};
use crate::guarded::Panicked;
use crate::runtime::tasks::{Task, Tasks};
use crate::telemetry::{Spanned, Telemetry};

/// Builds an engine, with a keeper of its own that runs on `tasks`.
pub(crate) fn start(
    backend: Arc<dyn DynBackend>,
    telemetry: Arc<Telemetry>,
    tasks: Tasks,
    own: Own,
) -> Arc<Engine> {
    let (sender, inbox) = mpsc::unbounded_channel();
    let engine = Engine::new(backend, telemetry, tasks, sender, own);
    look_after(Arc::clone(&engine.registry), inbox);
    engine
}

/// Looks after one registry until its engine is gone.
fn look_after(registry: Arc<HoldRegistry>, inbox: mpsc::UnboundedReceiver<Task>) {
    // Made here: a task that is dropped before it has run reports its end too.
    let alive = Alive(Some(Arc::clone(&registry)));
    registry.tasks.clone().spawn(supervise(registry, inbox, alive));
}

/// Keeps until the engine is gone, whatever happens: code of others is caught where it is run, and a panic in spite of
/// that begins the loop anew. When this task itself is ended, holds are not renewed any more, and the registry says so.
async fn supervise(registry: Arc<HoldRegistry>, mut inbox: mpsc::UnboundedReceiver<Task>, mut alive: Alive) {
    while let Err(panic) = AssertUnwindSafe(keep_and_tell(&registry, &mut inbox)).catch_unwind().await {
        Telemetry::keeper_panicked(&Panicked::new(panic));
        tokio::time::sleep(AFTER_PANIC).await;
    }
    registry.telemetry.tell_untold();
    // The engine is gone, and every hold with it: this end is no death of the keeper.
    alive.0 = None;
}

/// The rest of the keeper after a panic of its own, so that a panic that comes back does not spin.
const AFTER_PANIC: Duration = Duration::from_millis(10);

/// Marks the keeper dead when dropped, unless the engine is gone too.
struct Alive(Option<Arc<HoldRegistry>>);

impl Drop for Alive {
    fn drop(&mut self) {
        if let Some(registry) = &self.0 {
            registry.keeper_is_dead();
        }
    }
}

/// Keeps, and reports in time what was only counted. Returns when the engine is gone.
async fn keep_and_tell(registry: &Arc<HoldRegistry>, inbox: &mut mpsc::UnboundedReceiver<Task>) {
    tokio::select! {
        biased;
        () = keep(registry, inbox) => {}
        () = registry.telemetry.keep_telling() => {}
    }
}

/// Looks at the registry and runs tasks, until the engine is gone.
async fn keep(registry: &Arc<HoldRegistry>, inbox: &mut mpsc::UnboundedReceiver<Task>) {
    loop {
        let DueWork { due, overdue, next } = registry.look();
        // Nothing is kept until the next look: a hold keeps its engine.
        overdue.into_iter().for_each(|hold| give_up(&hold));
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
        // Tasks are received within one look: each of them would otherwise cost a look at the registry.
        loop {
            tokio::select! {
                biased;
                () = &mut look => break,
                task = inbox.recv() => match task {
                    Some(task) => registry.tasks.spawn(task),
                    None => return,
                },
            }
        }
    }
}

async fn renew(hold: Arc<Hold>) {
    let renewal = RenewalInProgress(hold);
    let hold = &renewal.0;
    let span = hold.engine.telemetry.renewal_started(hold.subject(), &hold.trace);
    renew_once(hold).in_span(span).await;
}

/// A renewal under way. However it ends, the next one is planned while the hold lasts.
struct RenewalInProgress(Arc<Hold>);

impl Drop for RenewalInProgress {
    fn drop(&mut self) {
        // A renewal that panicked has reported nothing. A renewal that was cancelled by the end of the hold needs no
        // report.
        if std::thread::panicking() {
            self.0.renewal_failed();
        }
        // The next renewal is due before the end of the lease, for which the hold is listed now.
        self.0.engine.registry.replan(&self.0);
    }
}

async fn renew_once(hold: &Hold) {
    // A release or a handoff has taken the claim.
    let Some(mut lent) = hold.claim().await else { return };
    let Some(claim) = lent.claim() else { return };
    // The hold may have ended while this waited for the claim, and a downgrade may have had that.
    if matches!(hold.condition(), Condition::Lost | Condition::Released) {
        return;
    }
    let clock = &hold.engine.clock;
    let telemetry = &hold.engine.telemetry;
    let sent = clock.now();
    // While it waits for its turn it is of use until the lease ends.
    let bounds = RequestBounds::of(
        &**claim,
        hold.engine.of_requests(),
        hold.renewal_limit(sent),
        hold.deadline().since(sent),
    );
    let answer = tokio::select! {
        biased;
        // A release must not wait for a renewal; a renewal that is on its way changes nothing once the token is gone.
        () = hold.ended() => return,
        answer = bounds.answer(claim.renew()) => answer.unwrap_or_else(|none| Err(none.into_failure())),
    };
    // The lease counts from the write, where that is known: a wait for a turn in this process is not lost.
    let sent = bounds.written_at().map_or(sent, |at| at.max(sent));
    let took = || clock.now().since(sent);
    match answer {
        Ok(Renewed::Extended) => {
            hold.confirm(sent);
            hold.engine.registry.contacted(sent);
            telemetry.renewed(hold.site, took);
        }
        Ok(Renewed::Gone) => {
            hold.gone();
            telemetry.renewal_found_gone(hold.site, took);
        }
        Err(failure) => {
            // The hold is marked before a subscriber, which may block, is called.
            hold.renewal_failed();
            let left = || hold.deadline().since(clock.now());
            telemetry.renewal_failed(hold.site, &failure, took, left);
        }
    }
}
