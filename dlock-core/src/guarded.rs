//! Code that is not dlock's own, run so that its panics end where it was called.
//!
//! Subscribers of `tracing`, exporters of metrics, backends and wakers are other people's. None of them may end the
//! keeper, unwind out of a `Drop`, or keep a request from being counted: whatever runs such code runs it through this
//! module. Nor is any of them run while a mutex is locked that they might need: a waker may drop the future that it
//! wakes.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

use futures_util::FutureExt;

use crate::error::Failure;
use crate::sync::Notify;

/// What a panic said.
#[derive(Debug)]
pub(crate) struct Panicked(String);

impl std::fmt::Display for Panicked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Panicked {
    pub(crate) fn new(payload: Box<dyn Any + Send>) -> Self {
        let payload = match payload.downcast::<&'static str>() {
            Ok(text) => return Self((*text).into()),
            Err(payload) => payload,
        };
        match payload.downcast::<String>() {
            Ok(text) => Self(*text),
            Err(payload) => {
                // Its destructor is foreign code too, and may panic like the code it comes from.
                std::mem::forget(payload);
                Self("without a message".into())
            }
        }
    }
}

/// Runs foreign code.
///
/// # Errors
///
/// [`Panicked`] when it did not return.
pub(crate) fn guard<T>(code: impl FnOnce() -> T) -> Result<T, Panicked> {
    // What the code leaves half done is its own: dlock reads nothing of it afterwards.
    catch_unwind(AssertUnwindSafe(code)).map_err(Panicked::new)
}

/// Wakes a task.
pub(crate) fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        let _ = guard(|| waker.wake());
    }
}

/// Wakes all who wait for `notify`.
pub(crate) fn wake_all(notify: &Notify) {
    let _ = guard(|| notify.notify_waiters());
}

/// Tells a subscriber of `tracing`, or an exporter, what happened. One that panics learns less, and nothing else
/// changes.
///
/// ```
/// # use dlock_core::backend::tell;
/// tell(|| tracing::debug!(target: "dlock", "the server cannot notify"));
/// ```
pub fn tell(event: impl FnOnce()) {
    let _ = guard(event);
}

/// Awaits what opens a connection, which calls code that is not dlock's own: a driver that can start no thread for what
/// it needs, or the function that gives a password. A panic there is a failure like others, which says what the panic
/// said.
///
/// ```
/// use dlock_core::{ErrorKind, backend::guard_opening};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let opened = guard_opening(async { panic!("no thread can be started") }).await;
/// let failure = opened.map(|(): ()| ()).unwrap_err();
/// assert_eq!(failure.kind(), ErrorKind::Unavailable);
/// assert!(failure.message().contains("no thread can be started"));
/// # }
/// ```
///
/// # Errors
///
/// [`Unavailable`](crate::ErrorKind::Unavailable) when it panicked: nothing is open then, and a next try may succeed.
///
/// # Cancel safety
///
/// As that of `opening`.
pub async fn guard_opening<F: Future>(opening: F) -> Result<F::Output, Failure> {
    AssertUnwindSafe(opening).catch_unwind().await.map_err(|panic| {
        Failure::unavailable(format!("opening a connection panicked; try again: {}", Panicked::new(panic)))
    })
}

/// Drops what foreign code made.
pub(crate) fn drop_guarded<T>(value: T) {
    // A destructor that panics has nothing more to say that anybody could act on.
    let _ = guard(|| drop(value));
}
