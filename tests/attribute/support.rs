//! What the tests of the attribute share.
#![allow(dead_code)]

use dlock::{Locks, Memory};
use std::future::Future;

/// Runs `body` where the backend `memory` is a fresh one.
pub(crate) async fn on_memory<F: Future>(body: impl FnOnce(Locks) -> F) -> F::Output {
    with(Memory::new(), body).await
}

/// Runs `body` where the backend `memory` is this one.
pub(crate) async fn with<F: Future>(memory: Memory, body: impl FnOnce(Locks) -> F) -> F::Output {
    let locks = Locks::new(memory);
    dlock::with_backend("memory", locks.clone(), Box::pin(body(locks))).await
}

/// Whether somebody holds `key`.
pub(crate) async fn is_held(locks: &Locks, key: &str) -> bool {
    locks.inspect(key).await.expect("the backend answers").is_some()
}
