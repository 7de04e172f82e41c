//! The faults that a test can set.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::backend::sleep;
use crate::error::Failure;

/// Faults of a [`Memory`](crate::Memory) backend, for tests. They apply to all requests of all clones.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
/// use dlock_core::{ErrorKind, Locks, Memory};
///
/// let memory = Memory::new();
/// let locks = Locks::new(memory.clone());
/// memory.faults().drop_replies(1);
/// let guard = locks.lock("room_7").acquire().await?; // asked again, and adopted
/// assert_eq!(locks.stats().rechecks, 1);
///
/// memory.faults().set_unavailable(true);
/// let error = locks.lock("room_8").try_acquire().await.unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Unavailable);
/// # memory.faults().set_unavailable(false);
/// # Ok(()) }
/// ```
#[derive(Debug, Default)]
pub struct Faults {
    /// Is `false` until a fault is set, so that the common case costs one load. It stays `true` after the last lost
    /// request or reply.
    any: AtomicBool,
    unavailable: AtomicBool,
    hanging: AtomicBool,
    stepping: AtomicBool,
    delay: AtomicU64,
    lost_replies: AtomicUsize,
    lost_requests: AtomicUsize,
    thawed: Notify,
}

impl Faults {
    /// Sets whether requests are refused and change nothing.
    pub fn set_unavailable(&self, on: bool) {
        self.unavailable.store(on, Ordering::SeqCst);
        self.note();
    }

    /// Sets whether requests get no answer until this is lifted. They are carried out then, unless their sender has
    /// gone.
    pub fn set_hanging(&self, on: bool) {
        self.hanging.store(on, Ordering::SeqCst);
        self.note();
        self.thawed.notify_waiters();
    }

    /// Sets how long requests take, half on the way there and half on the way back.
    pub fn set_delay(&self, delay: Duration) {
        self.delay.store(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX), Ordering::SeqCst);
        self.note();
    }

    /// Sets whether requests take one turn of the executor on the way there and one on the way back, which gives a test
    /// an await point at which to cancel them.
    pub fn set_stepping(&self, on: bool) {
        self.stepping.store(on, Ordering::SeqCst);
        self.note();
    }

    /// Loses the replies of the next `count` requests, which are carried out.
    pub fn drop_replies(&self, count: usize) {
        self.lost_replies.store(count, Ordering::SeqCst);
        self.note();
    }

    /// Loses the next `count` requests on the way there: they are not carried out, and the sender does not know.
    pub fn drop_requests(&self, count: usize) {
        self.lost_requests.store(count, Ordering::SeqCst);
        self.note();
    }

    fn note(&self) {
        let any = self.unavailable.load(Ordering::SeqCst)
            || self.hanging.load(Ordering::SeqCst)
            || self.stepping.load(Ordering::SeqCst)
            || self.delay.load(Ordering::SeqCst) > 0
            || self.lost_replies.load(Ordering::SeqCst) > 0
            || self.lost_requests.load(Ordering::SeqCst) > 0;
        self.any.store(any, Ordering::SeqCst);
    }

    /// Carries out one request among the faults.
    pub(super) async fn around<T>(&self, request: impl FnOnce() -> T + Send) -> Result<T, Failure> {
        if !self.any.load(Ordering::Relaxed) {
            return Ok(request());
        }
        self.travel().await;
        if self.unavailable.load(Ordering::SeqCst) {
            return Err(Failure::unavailable("the backend was made unavailable"));
        }
        if take_one(&self.lost_requests) {
            return Err(Failure::unknown("the request was made to get lost"));
        }
        let answer = request();
        self.travel().await;
        if take_one(&self.lost_replies) {
            return Err(Failure::unknown("the reply was made to get lost"));
        }
        Ok(answer)
    }

    async fn travel(&self) {
        loop {
            let thawed = self.thawed.notified();
            if !self.hanging.load(Ordering::SeqCst) {
                break;
            }
            thawed.await;
        }
        let delay = Duration::from_nanos(self.delay.load(Ordering::SeqCst));
        if !delay.is_zero() {
            sleep(delay / 2).await;
        }
        if self.stepping.load(Ordering::SeqCst) {
            tokio::task::yield_now().await;
        }
    }
}

fn take_one(count: &AtomicUsize) -> bool {
    count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok()
}
