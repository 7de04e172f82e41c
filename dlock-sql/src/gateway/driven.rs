//! Who drives a request.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use dlock_core::backend::{sleep_until, within};
use dlock_core::{Failure, keeper};
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::keeper_task::gone;

/// Who made a request.
#[derive(Clone)]
pub(super) struct Caller {
    /// Whether he still waits for the answer.
    waits: Arc<AtomicBool>,
    /// Whether he drives it while he waits.
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

/// The answer to a request. One that the caller drives is part of its task: this spares the way to another and back.
/// When the caller is cancelled, `runtime` goes on with it, for `limit` at the most.
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
        this.request = None;
        Poll::Ready(answer)
    }
}

impl<T: Send + 'static> Drop for Driven<T> {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            self.caller.waits.store(false, Ordering::Release);
            if self.caller.drives {
                let limit = self.limit;
                // The runtime of its connection may not be driven any more, and then answers nothing. The timer is not
                // its own.
                drop(self.runtime.spawn(within(limit, request)));
            }
        }
    }
}

/// Waits until then, but only where dlock's own thread polls it: a timer of another's would wake that thread each time.
pub(crate) async fn sleep_on_own_thread(end: Instant) {
    let mut sleep = pin!(None);
    poll_fn(|context| {
        let own = keeper::runtime().map(Handle::id).ok();
        if own.is_none() || own != Handle::try_current().map(|current| current.id()).ok() {
            return Poll::Pending;
        }
        if sleep.is_none() {
            sleep.set(Some(sleep_until(end)));
        }
        sleep.as_mut().as_pin_mut().map_or(Poll::Pending, |sleep| sleep.poll(context))
    })
    .await;
}

/// What a request answers, unless it is still not there at `end`. As long as the caller drives it, it is he who looks
/// at the time: a timer of its own would wake our thread for each request.
pub(super) async fn unless_late<F: Future + Send>(
    mut request: Pin<&mut F>,
    end: Instant,
    caller: &Caller,
) -> Option<F::Output> {
    let mut late = pin!(None);
    poll_fn(|context| {
        if let Poll::Ready(answer) = request.as_mut().poll(context) {
            return Poll::Ready(Some(answer));
        }
        if caller.drives && caller.waits() {
            return Poll::Pending;
        }
        if late.is_none() {
            late.set(Some(sleep_until(end)));
        }
        match late.as_mut().as_pin_mut() {
            Some(late) => late.poll(context).map(|()| None),
            None => Poll::Pending,
        }
    })
    .await
}
