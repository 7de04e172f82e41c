//! Questions and orders that are no lock's.
//!
//! The caller may leave the question unpolled, in a `select!` loop that is busy in another branch for instance, and it
//! would keep its connection from claims. So it is a task of its own.

use std::future::Future;

use dlock_core::{Failure, keeper};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

/// Carries out a question on the caller's runtime, or on dlock's own where there is none.
///
/// # Cancel safety
///
/// Dropping this drops `question`.
pub(crate) async fn asked<T: Send + 'static>(
    question: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> Result<T, Failure> {
    let runtime = match Handle::try_current() {
        Ok(current) => current,
        Err(_) => keeper::runtime()?.clone(),
    };
    // A set, since its drop ends the task: that of a handle would leave it running.
    let mut task = JoinSet::new();
    task.spawn_on(question, &runtime);
    match task.join_next().await {
        Some(Ok(answer)) => answer,
        _ => Err(Failure::unknown("the runtime that was asked on is gone")),
    }
}
