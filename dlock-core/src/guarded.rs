//! Guards around code that is not dlock's own, so that its panics end where it was called.
//!
//! Subscribers of `tracing`, exporters of metrics, backends and wakers are foreign code. None of them may end the
//! keeper, unwind out of a `Drop`, or keep a request from being counted: all calls of such code go through this module.
//! Nor does any of it run while a mutex is locked that it might need: a waker may drop the future that it wakes.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use futures_util::FutureExt;

use crate::error::Failure;
use crate::sync::Notify;

/// The message of a panic.
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
                // The destructor of the payload is foreign code too, and may panic like the code it comes from.
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
/// [`Panicked`] when the code did not return.
pub(crate) fn guard<T>(code: impl FnOnce() -> T) -> Result<T, Panicked> {
    // State that the code leaves half done is its own: dlock reads none of it afterwards.
    catch_unwind(AssertUnwindSafe(code)).map_err(Panicked::new)
}

/// Wakes a task.
pub(crate) fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        let _ = guard(|| waker.wake());
    }
}

/// A wrapper of a caller's waker for threads that a panic of it must not end: those of timers and sockets call it
/// outside of any task.
#[derive(Default)]
pub(crate) struct Wakes(Option<(Arc<Guarded>, Waker)>);

impl Wakes {
    /// Returns a waker that does what `waker` does, and does not panic. The wrapper of the last call is used again if
    /// it still fits.
    pub(crate) fn of(&mut self, waker: &Waker) -> &Waker {
        let (_, guarded) = match self.0.take() {
            // A task mostly polls with one waker, so the wrapper is made once and kept.
            Some(same) if same.0.0.as_ref().is_some_and(|of| of.will_wake(waker)) => self.0.insert(same),
            _ => {
                let of = Arc::new(Guarded(Some(waker.clone())));
                self.0.insert((Arc::clone(&of), Waker::from(of)))
            }
        };
        guarded
    }
}

/// Awaits a future that may pass the waker to foreign threads: a panic of the waker would end the thread of a driver,
/// or the process.
pub(crate) async fn with_guarded_wakes<F: Future + ?Sized>(mut future: Pin<&mut F>) -> F::Output {
    let mut wakes = Wakes::default();
    std::future::poll_fn(|context| future.as_mut().poll(&mut Context::from_waker(wakes.of(context.waker()))))
        .await
}

struct Guarded(Option<Waker>);

impl Wake for Guarded {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let _ = guard(|| self.0.as_ref().map(Waker::wake_by_ref));
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        drop_guarded(self.0.take());
    }
}

/// Wakes all tasks that wait for `notify`.
pub(crate) fn wake_all(notify: &Notify) {
    let _ = guard(|| notify.notify_waiters());
}

/// Reports an event to a subscriber of `tracing`, or to an exporter. If it panics, it misses the event, and nothing
/// else changes.
///
/// ```
/// # use dlock_core::backend::tell;
/// tell(|| tracing::debug!(target: "dlock", "the server cannot notify"));
/// ```
pub fn tell(event: impl FnOnce()) {
    let _ = guard(event);
}

/// Awaits the opening of a connection, which calls code that is not dlock's own: a driver that may fail to start a
/// thread, or the function that gives a password. A panic there becomes a failure with the message of the panic.
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
/// [`Unavailable`](crate::ErrorKind::Unavailable) when `opening` panicked: nothing is open then, and a next try may
/// succeed.
///
/// # Cancel safety
///
/// As that of `opening`.
pub async fn guard_opening<F: Future>(opening: F) -> Result<F::Output, Failure> {
    AssertUnwindSafe(opening).catch_unwind().await.map_err(|panic| {
        Failure::unavailable(format!("opening a connection panicked; try again: {}", Panicked::new(panic)))
    })
}

/// Drops a value that foreign code made.
pub(crate) fn drop_guarded<T>(value: T) {
    // A destructor that panics leaves nothing that dlock could act on.
    let _ = guard(|| drop(value));
}
