//! What cases expect.

use std::fmt::Debug;
use std::time::Duration;

use dlock_core::{Error, ErrorKind, Guard, Lock, Result};

use super::Process;

/// Longer than anything that is to happen by itself takes on a busy machine, and much shorter than the long lease.
pub(super) const SOON: Duration = Duration::from_secs(50);

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

/// Tries to take `lock`.
pub(super) async fn tried(lock: Lock) -> Result<Option<Guard>> {
    lock.try_acquire().await
}

/// The outcome of an attempt. A busy machine may be late with an answer, so that an unknown outcome is asked about
/// again; until that attempt is withdrawn, it may be what the next one finds.
pub(super) async fn outcome_of<F: Future<Output = Result<Option<Guard>>>>(
    try_it: impl Fn() -> F,
) -> Option<Guard> {
    let (mut late, mut looks) = (0, 0);
    loop {
        match try_it().await {
            Ok(None) if late > 0 && looks < 20 => {
                looks += 1;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Ok(guard) => return guard,
            Err(error) if error.kind() == ErrorKind::Unknown && late < 5 => late += 1,
            Err(error) => panic!("it could not be asked for: {error}"),
        }
    }
}

impl Process {
    /// Takes `key`, which nobody holds.
    pub(super) async fn take(&self, key: &str) -> Guard {
        let guard = outcome_of(|| tried(self.locks.lock(key))).await;
        guard.unwrap_or_else(|| panic!("{key:?} is held, and should be free"))
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
        let guard = outcome_of(|| tried(self.locks.lock(key))).await;
        assert!(guard.is_none(), "{key:?} is free, and should be held");
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
