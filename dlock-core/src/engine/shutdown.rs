//! The end of `Locks`: draining them, and shutting them down.
//!
//! ```text
//! drain      refuses ── nothing is held, nothing goes on ──▶ drained
//!               └────── the time is up ───────────────────▶ an error; acquires stay refused
//!
//! shut_down  refuses, every hold is lost ── settled, or half of the time ──▶ what is left is given up
//!               ── settled, or four tenths of the time ──▶ the backend closes, in the rest of the time
//! ```

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use crate::engine::cleanup::give_up;
use crate::engine::{Engine, threads};
use crate::error::{Error, ErrorKind, Failure, Operation};
use crate::telemetry::Loss;

/// See [`Locks::drain`](crate::Locks::drain).
pub(crate) async fn drain(engine: &Arc<Engine>, timeout: Duration) -> Result<(), Error> {
    let refuse = |failure| engine.error(Operation::Shutdown, failure);
    engine.refuse_in_child().map_err(refuse)?;
    engine.run(until_drained(Arc::clone(engine), timeout)).await.map_err(refuse)?
}

async fn until_drained(engine: Arc<Engine>, timeout: Duration) -> Result<(), Error> {
    engine.registry.drain();
    if settles(&engine, timeout).await {
        return Ok(());
    }
    let held = engine.registry.stats().held;
    let what =
        format!("{held} locks are still held after {timeout:?}; shut down to take them from their bodies");
    Err(engine.error(Operation::Shutdown, Failure::new(ErrorKind::TimedOut, what)))
}

/// Waits, at most for so long, until nothing is held and nothing goes on in the background. Returns whether that is so.
async fn settles(engine: &Engine, limit: Duration) -> bool {
    let settled = || engine.registry.settled();
    if !(engine.capabilities.in_process && threads::is_time_virtual()) {
        return engine.timers.within(limit, settled()).await.is_some();
    }
    engine.finish_background().await;
    if engine.timers.within(limit, settled()).await.is_none() {
        // The release of a hold may have begun just now.
        engine.finish_background().await;
    }
    engine.timers.within(Duration::ZERO, settled()).await.is_some()
}

/// See [`Locks::drain_all`](crate::Locks::drain_all).
pub(crate) async fn drain_all(engines: &[&Arc<Engine>], timeout: Duration) -> Result<(), Error> {
    let Some(first) = engines.first() else { return Ok(()) };
    // All are joined before one is drained: bodies under any of them may acquire from the others until the end.
    for engine in engines {
        engine.registry.join(&first.registry);
    }
    let listed_so_far = || engines.iter().map(|engine| engine.registry.listed_so_far()).sum::<u64>();
    let started = Instant::now();
    loop {
        let before = listed_so_far();
        // One bound for all rounds: each of them gets what those before it have left.
        let left = timeout.saturating_sub(started.elapsed());
        let drained = join_all(engines.iter().map(|engine| drain(engine, left))).await;
        drained.into_iter().collect::<Result<(), Error>>()?;
        // Otherwise a body may have taken a lock of those that were drained already.
        if listed_so_far() == before {
            return Ok(());
        }
    }
}

/// See [`Locks::shutdown`](crate::Locks::shutdown).
pub(crate) async fn shut_down(engine: Arc<Engine>, timeout: Duration) -> Result<(), Error> {
    let registry = &engine.registry;
    let started = Instant::now();
    // Closed before the holds are listed: an acquire that lists a hold afterwards releases it.
    registry.close();
    for hold in registry.held() {
        // Lost and not closed: the body sees the loss at its next poll, and its guard does the release.
        hold.lose_by(Loss::Shutdown);
    }
    let mut settled = settles(&engine, timeout / 2).await;
    // Half of the time is for guards to release; then the locks of all others are released for them.
    if !settled {
        for hold in registry.held() {
            give_up(&hold);
        }
        // The last tenth is for the backend, which needs its connections until the releases have gone out.
        settled = settles(&engine, timeout / 10 * 4).await;
    }
    // Reported now, since the process may end before the keeper does it.
    registry.telemetry.tell_untold();
    let left = timeout.saturating_sub(started.elapsed());
    let close = async {
        // After the locks that it kept: others may take them soon after it.
        engine.timers.within(left / 2, engine.sessions.close()).await;
        engine.backend.close().await;
    };
    let is_closed = engine.timers.within(left, close).await.is_some();
    let left = registry.stats();
    let what = match (settled, is_closed) {
        (true, true) => return Ok(()),
        (true, false) => "the backend did not close its connections in time".into(),
        (false, _) => format!(
            "{} locks and {} background releases were left to their leases",
            left.held, left.background
        ),
    };
    Err(engine.error(Operation::Shutdown, Failure::new(ErrorKind::TimedOut, what)))
}
