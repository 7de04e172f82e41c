//! Tasks on dlock's own thread, which end whether their caller polls them or not.
//!
//! A transaction of SQLite that writes keeps every other process from the database, and a connection of dlock's own
//! belongs to dlock's thread. A future may stay unpolled for as long as its caller likes, in a `select!` loop that is
//! busy in another branch for instance, so neither is left to it.

use dlock_core::backend::boxed;
use dlock_core::{Failure, keeper};

#[cfg(any(feature = "mysql", feature = "postgres"))]
use crate::failure::unchanged;

/// Runs `step` on dlock's own thread.
///
/// # Cancel safety
///
/// A `step` goes on to its end when its caller is dropped.
pub(crate) fn detached<T: Send + 'static>(
    step: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> impl Future<Output = Result<T, Failure>> + Send {
    // Outside of the future below: one that connects is deep, and the futures of all callers would contain it.
    let step = boxed(step);
    // Dropping the handle of a task detaches it, which is what lets the step go on.
    async move { keeper::runtime()?.spawn(step).await.unwrap_or_else(|_| Err(gone())) }
}

/// Opens something on dlock's own thread, which changes nothing on the server where it fails.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn on_the_keeper<T: Send + 'static>(
    opening: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> impl Future<Output = Result<T, Failure>> + Send {
    let opened = detached(opening);
    async move { opened.await.map_err(unchanged) }
}

/// Reports that the runtime ended, and the request with it.
pub(crate) fn gone() -> Failure {
    Failure::unknown("the runtime that the request was made on is gone")
}
