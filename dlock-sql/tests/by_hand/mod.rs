//! Claims made by hand, without the engine between.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_core::backend::{Attempt, Busy, ClaimRequest, Grant, LockId, Renewed, Withdrawal};
use dlock_core::{Backend, Capabilities, Claim, Failure, Holder, Key, Locks, Wait};

/// Makes requests for claims, which only the engine can, by catching those it makes.
#[derive(Clone, Debug, Default)]
struct Catcher(Arc<Mutex<Option<ClaimRequest>>>);

struct Nothing;

impl Backend for Catcher {
    type Claim = Nothing;

    fn name(&self) -> &'static str {
        "catcher"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::basic()
    }

    fn lock_id(&self, key: &Key) -> LockId {
        LockId::new("catcher", key.as_str())
    }

    fn claim(&self, request: ClaimRequest) -> Nothing {
        *self.0.lock().unwrap() = Some(request);
        Nothing
    }

    async fn inspect(&self, _: &Key) -> Result<Option<Holder>, Failure> {
        Ok(None)
    }
}

impl Claim for Nothing {
    async fn attempt(&mut self) -> Result<Attempt, Failure> {
        Ok(Attempt::Busy(Busy::default()))
    }

    async fn renew(&mut self) -> Result<Renewed, Failure> {
        Ok(Renewed::Gone)
    }

    async fn withdraw(&mut self) -> Result<Withdrawal, Failure> {
        Ok(Withdrawal::ABSENT)
    }

    fn is_clean(&self) -> bool {
        true
    }
}

/// A request as the engine makes it, with a token of its own.
pub(crate) async fn request(key: &str, lease: Duration) -> ClaimRequest {
    let catcher = Catcher::default();
    let locks = Locks::builder(catcher.clone()).with_label("tests").build().unwrap();
    locks.lock(key).with_lease(lease).with_wait(Wait::No).acquire().await.unwrap_err();
    catcher.0.lock().unwrap().take().unwrap()
}

pub(crate) fn granted(attempt: Attempt) -> Grant {
    match attempt {
        Attempt::Granted(grant) => grant,
        Attempt::Busy(busy) => panic!("somebody else has it: {busy:?}"),
    }
}

pub(crate) fn busy(attempt: Attempt) -> Busy {
    match attempt {
        Attempt::Granted(grant) => panic!("it was granted: {grant:?}"),
        Attempt::Busy(busy) => busy,
    }
}
