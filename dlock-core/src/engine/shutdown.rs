//! The end of `Locks`: draining them, and shutting them down.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::engine::Engine;
use crate::engine::cleanup::give_up;
use crate::error::{Error, ErrorKind, Failure, Operation};
use crate::telemetry::Loss;

/// See [`Locks::drain`](crate::Locks::drain).
pub(crate) async fn drain(engine: Arc<Engine>, timeout: Duration) -> Result<(), Error> {
    engine.registry.drain();
    if engine.timers.within(timeout, engine.registry.settled()).await.is_some() {
        return Ok(());
    }
    let held = engine.registry.stats().held;
    let what =
        format!("{held} locks are still held after {timeout:?}; shut down to take them from their bodies");
    Err(engine.error(Operation::Shutdown, Failure::new(ErrorKind::TimedOut, what)))
}

/// See [`Locks::shutdown`](crate::Locks::shutdown).
pub(crate) async fn shut_down(engine: Arc<Engine>, timeout: Duration) -> Result<(), Error> {
    let registry = &engine.registry;
    let started = Instant::now();
    registry.close();
    for hold in registry.held() {
        hold.lose_by(Loss::Shutdown);
    }
    let mut settled = engine.timers.within(timeout / 2, registry.settled()).await.is_some();
    if !settled {
        for hold in registry.held() {
            give_up(&hold);
        }
        settled = engine.timers.within(timeout / 10 * 4, registry.settled()).await.is_some();
    }
    // The process may end before the keeper does it.
    registry.telemetry.tell_untold();
    let left = timeout.saturating_sub(started.elapsed());
    let is_closed = engine.timers.within(left, engine.backend.close()).await.is_some();
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
