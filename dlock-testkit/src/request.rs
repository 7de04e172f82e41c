//! What the engine asks of a backend, for tests that carry out the steps of a claim by themselves.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{
    Attempt, Backend, Capabilities, Claim, ClaimRequest, LockId, Mutex, Renewed, Withdrawal,
};
use dlock_core::{Error, Failure, Holder, Key, Locks, Wait};

/// A backend that keeps what it is asked to claim, and refuses it.
#[derive(Clone, Debug, Default)]
struct Capture(Arc<Mutex<Vec<ClaimRequest>>>);

struct Refused;

impl Backend for Capture {
    type Claim = Refused;

    fn name(&self) -> &'static str {
        "capture"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::basic()
    }

    fn lock_id(&self, key: &Key) -> LockId {
        LockId::new("capture", key)
    }

    fn claim(&self, request: ClaimRequest) -> Refused {
        self.0.lock().push(request);
        Refused
    }

    async fn inspect(&self, _: &Key) -> Result<Option<Holder>, Failure> {
        Ok(None)
    }
}

impl Claim for Refused {
    async fn attempt(&mut self) -> Result<Attempt, Failure> {
        Err(Failure::unavailable("it only listens"))
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

/// Returns what the engine asks a backend to claim for an acquire of `key` with this lease, under a token of its own;
/// `waits`, for one that waits where the lock is busy. Its label is "tests".
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use dlock_core::backend::{Attempt, Backend, Claim};
///
/// let request = dlock_testkit::claim_request("room_7", Duration::from_secs(30), false).await?;
/// let mut claim = dlock_core::Memory::new().claim(request);
/// assert!(matches!(claim.attempt().await, Ok(Attempt::Granted(_))));
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// [`ErrorKind::InvalidKey`](dlock_core::ErrorKind::InvalidKey) and
/// [`InvalidConfig`](dlock_core::ErrorKind::InvalidConfig), as of an acquire.
///
/// # Cancel safety
///
/// May be dropped and called again: nothing is asked of any server.
pub async fn claim_request(key: &str, lease: Duration, waits: bool) -> Result<ClaimRequest, Error> {
    let capture = Capture::default();
    let wait = if waits { Wait::For(Duration::from_millis(1)) } else { Wait::No };
    let locks = Locks::builder(capture.clone()).with_label("tests").build()?;
    let lock = locks.lock(key).with_lease(lease).with_wait(wait);
    let refused = lock.acquire().await.map(drop);
    let request = capture.0.lock().pop();
    match (request, refused) {
        (Some(request), _) => Ok(request),
        (None, Err(error)) => Err(error),
        (None, Ok(())) => unreachable!("the backend refuses"),
    }
}
