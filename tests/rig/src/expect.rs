//! What tests expect, and for how long.

use std::time::Duration;

use dlock_core::{Error, ErrorKind, Guard, Result};

/// How long anything may take that is certain to come.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits for what has to come.
///
/// # Panics
///
/// When it does not.
///
/// # Cancel safety
///
/// That of `future`.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what} did not come within {PATIENCE:?}"),
    }
}

/// Waits until something holds that nobody tells of.
///
/// # Panics
///
/// When it never does.
///
/// # Cancel safety
///
/// May be dropped and called again.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(what, wait).await;
}

/// Returns the error that a result has to be, which is of this kind.
///
/// # Panics
///
/// When it is none, or of another kind.
#[track_caller]
pub fn error_of<T>(result: Result<T>, kind: ErrorKind) -> Error {
    let Err(error) = result else { panic!("no error, but {kind:?} was to come") };
    assert_eq!(error.kind(), kind, "{error}");
    error
}

/// Returns the number of the guard's fence.
///
/// # Panics
///
/// When the backend has no fences.
#[must_use]
pub fn fence(guard: &Guard) -> u64 {
    guard.fence().expect("every grant has a fence").get()
}
