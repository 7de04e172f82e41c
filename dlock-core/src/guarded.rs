//! Code that is not dlock's own, run so that its panics end where it was called.
//!
//! Subscribers of `tracing`, exporters of metrics, backends and wakers are other people's. None of them may end the
//! keeper, unwind out of a `Drop`, or keep a request from being counted: whatever runs such code runs it through this
//! module. Nor is any of them run while a mutex is locked that they might need: a waker may drop the future that it
//! wakes.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

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

/// The waker of a caller, for a thread that must not end by its panic: that of a timer or a socket calls it outside of
/// any task.
#[derive(Default)]
pub(crate) struct Wakes(Option<(Arc<Guarded>, Waker)>);

impl Wakes {
    /// Returns one that does what `waker` does, and does not panic.
    pub(crate) fn of(&mut self, waker: &Waker) -> &Waker {
        let (_, guarded) = match self.0.take() {
            Some(same) if same.0.0.as_ref().is_some_and(|of| of.will_wake(waker)) => self.0.insert(same),
            _ => {
                let of = Arc::new(Guarded(Some(waker.clone())));
                self.0.insert((Arc::clone(&of), Waker::from(of)))
            }
        };
        guarded
    }
}

/// Awaits what may hand the waker to threads of others: those of drivers end by its panic, or the process does.
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
