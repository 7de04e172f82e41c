//! What cases expect.

use std::fmt::Debug;
use std::time::Duration;

use dlock_core::{Error, ErrorKind, Guard, Result};

use super::Process;

/// Longer than anything that is to happen by itself takes on a busy machine, and much shorter than the long lease.
pub(super) const SOON: Duration = Duration::from_secs(8);

/// The error that `result` is, which is of one of `kinds`.
#[track_caller]
pub(super) fn error_of<T: Debug>(result: Result<T>, kinds: &[ErrorKind]) -> Error {
    match result {
        Err(error) if kinds.contains(&error.kind()) => error,
        Err(error) => panic!("expected {kinds:?}, got {error:?}"),
        Ok(value) => panic!("expected {kinds:?}, got {value:?}"),
    }
}

/// What `future` resolves to, which it does soon.
#[track_caller]
pub(super) fn soon<F: Future>(what: &str, future: F) -> impl Future<Output = F::Output> {
    let at = std::panic::Location::caller();
    async move {
        match tokio::time::timeout(SOON, future).await {
            Ok(output) => output,
            Err(_) => panic!("{what} did not happen within {SOON:?} ({at})"),
        }
    }
}

/// Asks again and again until `test` holds.
pub(super) async fn until(what: &str, mut test: impl FnMut() -> bool + Send) {
    soon(what, async {
        while !test() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

impl Process {
    /// Takes `key`, which nobody holds.
    pub(super) async fn take(&self, key: &str) -> Guard {
        match self.locks.lock(key).try_acquire().await {
            Ok(Some(guard)) => guard,
            Ok(None) => panic!("{key:?} is held, and should be free"),
            Err(error) => panic!("{key:?} could not be taken: {error}"),
        }
    }

    /// Takes `key` as soon as it is free, which is soon.
    pub(super) async fn take_soon(&self, key: &str) -> Guard {
        match self.locks.lock(key).with_wait(SOON).acquire().await {
            Ok(guard) => guard,
            Err(error) => panic!("{key:?} did not become free: {error}"),
        }
    }

    /// `key` becomes free soon, and is left so.
    pub(super) async fn sees_free_soon(&self, key: &str) {
        give_back(self.take_soon(key).await).await;
    }

    /// `key` is held by somebody else.
    pub(super) async fn sees_held(&self, key: &str) {
        match self.locks.lock(key).try_acquire().await {
            Ok(None) => {}
            Ok(Some(_)) => panic!("{key:?} is free, and should be held"),
            Err(error) => panic!("{key:?} could not be asked for: {error}"),
        }
    }
}

/// Releases a lock that is held.
#[track_caller]
pub(super) fn give_back(guard: Guard) -> impl Future<Output = ()> + Send {
    let at = std::panic::Location::caller();
    async move {
        if let Err(error) = guard.release().await {
            panic!("a held lock could not be released ({at}): {error}");
        }
    }
}
