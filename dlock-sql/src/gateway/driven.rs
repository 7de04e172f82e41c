//! The driving of a request: by its caller, or by a runtime.
//!
//! | `Caller::drives` | while the caller waits | after it was dropped |
//! |---|---|---|
//! | yes | the caller polls it, and looks at the time | spawned on `runtime`, bounded by `limit` |
//! | no | a task of `runtime` polls it | the task goes on |
//!
//! Either way a request whose caller has gone is not repeated.

use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use dlock_core::backend::{by_then_if, within};
use dlock_core::{Failure, keeper};
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::keeper_task::gone;

/// The caller of a request.
#[derive(Clone)]
pub(super) struct Caller {
    /// Is `true` if it still waits for the answer.
    waits: Arc<AtomicBool>,
    /// Is `true` if it drives the request while it waits.
    drives: bool,
}

impl Caller {
    pub(super) fn new(drives: bool) -> Self {
        Self { waits: Arc::new(AtomicBool::new(true)), drives }
    }

    pub(super) fn waits(&self) -> bool {
        self.waits.load(Ordering::Acquire)
    }
}

type Boxed<T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send>>;

/// The answer to a request. A request that the caller drives is part of its task, which spares the way to another and
/// back. When the caller is cancelled, `runtime` goes on with it, for `limit` at the most.
pub(crate) struct Driven<T: Send + 'static> {
    request: Option<Boxed<T>>,
    runtime: Handle,
    limit: Duration,
    caller: Caller,
}

impl<T: Send + 'static> Driven<T> {
    pub(super) fn new(
        request: impl Future<Output = Result<T, Failure>> + Send + 'static,
        runtime: Handle,
        limit: Duration,
        caller: Caller,
    ) -> Self {
        // Polled in place, the answer wakes the caller directly. As a task it needs no caller at all, as renewals and
        // most releases must not.
        let request: Boxed<T> = if caller.drives {
            Box::pin(request)
        } else {
            let task = runtime.spawn(request);
            Box::pin(async { task.await.unwrap_or_else(|_| Err(gone())) })
        };
        Self { request: Some(request), runtime, limit, caller }
    }
}

impl<T: Send + 'static> Future for Driven<T> {
    type Output = Result<T, Failure>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let Some(request) = &mut this.request else { return Poll::Ready(Err(gone())) };
        let answer = ready!(request.as_mut().poll(context));
        // An ended request is not to be spawned by the drop.
        this.request = None;
        Poll::Ready(answer)
    }
}

impl<T: Send + 'static> Drop for Driven<T> {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            // Before it is polled again: a request without a caller is not repeated, and looks at the time by itself.
            self.caller.waits.store(false, Ordering::Release);
            if self.caller.drives {
                let limit = self.limit;
                // The runtime of its connection may not be driven any more, and then answers nothing. The timer is not
                // of that runtime.
                drop(self.runtime.spawn(within(limit, request)));
            }
        }
    }
}

/// Waits until `end`, but only where dlock's own thread polls it: the timer of another runtime would wake that thread
/// each time.
pub(crate) async fn sleep_on_own_thread(end: Instant) {
    let is_own = || match (keeper::runtime(), Handle::try_current()) {
        (Ok(own), Ok(current)) => own.id() == current.id(),
        _ => false,
    };
    by_then_if(end, is_own, pending::<()>()).await;
}

/// Returns the output of a request, unless it is still not there at `end`. As long as the caller drives it, the caller
/// looks at the time: a timer of the request's own would wake dlock's thread for each request.
pub(super) fn unless_late<T>(
    request: impl Future<Output = T>,
    end: Instant,
    caller: &Caller,
) -> impl Future<Output = Option<T>> {
    by_then_if(end, || !(caller.drives && caller.waits()), request)
}
