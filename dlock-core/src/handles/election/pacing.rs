//! Pauses between what is asked for again and again.

use std::time::Duration;

use crate::backend::sleep;
use crate::engine::Engine;

/// Waits, whatever the caller's runtime is.
pub(in crate::handles) async fn pause(engine: &Engine, length: Duration) {
    // Without a keeper's thread nothing is left to wait for, and the next step says so.
    let _ = engine.run(sleep(length)).await;
}
