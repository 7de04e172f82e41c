//! The tasks of keepers and the connections of backends. They run on dlock's own threads, and go on when a user blocks
//! every worker thread of the user's runtime, or shuts it down.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::error::Failure;
use crate::guarded::{guard_opening, with_guarded_wakes};
use crate::runtime::threads::{self, Thread};

/// Returns the runtime that drives connections, on a thread of dlock's own. A backend drives its connections there, so
/// that they live on when the user's runtime is blocked or gone. Code on it must not block.
///
/// # Errors
///
/// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) when the operating system gives no thread; the next call
/// tries again.
pub fn runtime() -> Result<&'static Handle, Failure> {
    threads::of_connections()
}

/// Awaits `future` here, or on dlock's own thread where the caller's runtime cannot serve: there is none, or its clock
/// is not the machine's, as in a test that pauses it.
///
/// # Errors
///
/// As [`runtime`], and [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) when that thread has ended.
///
/// # Cancel safety
///
/// Dropping this drops `future`.
pub fn anywhere<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> impl Future<Output = Result<T, Failure>> + Send {
    // Boxed outside of the future below: a future that connects is deep, and the caller's future would contain it.
    let mut future: Pin<Box<dyn Future<Output = T> + Send>> = Box::pin(future);
    async move {
        if threads::serves_requests() {
            return Ok(with_guarded_wakes(future.as_mut()).await);
        }
        let runtime = runtime()?;
        run_as(|task| drop(runtime.spawn(task)), future).await.ok_or_else(ended)
    }
}

/// Returns whether the caller is in a runtime from which a driver may take its timers: a caller's pool has no others.
///
/// To find that out panics inside, once for each thread, in a runtime without timers. In a program that is built with
/// `panic = "abort"` each runtime is taken to have them.
#[must_use]
pub fn may_have_timers() -> bool {
    threads::may_have_timers()
}

/// Returns the runtime of the caller, or that of dlock's thread where the caller has none.
///
/// # Errors
///
/// As [`runtime`].
pub fn current() -> Result<Handle, Failure> {
    Handle::try_current().or_else(|_| runtime().cloned())
}

/// Opens a connection by the future that `opening` makes: on the caller's runtime, which then drives it, or on dlock's
/// own thread if there is no runtime or it cannot.
///
/// Opening a connection panics in a runtime without I/O. In a program that is built with `panic = "abort"` dlock's
/// thread therefore opens all connections. In other programs it opens the connection that has panicked once more, and
/// from then on all connections for that runtime. So there is one panic for each such runtime, which is caught and
/// which a panic hook sees.
///
/// tokio 1.54 has no other way to find out. Its sockets, its `AsyncFd`, its signals and its processes all end in
/// `runtime::driver::Handle::io` or `signal` (`src/runtime/driver.rs`), which panic, and
/// `Registration::new_with_interest_and_handle` (`src/runtime/io/registration.rs`) calls them before anything that
/// returns an error. `Handle` and the stable metrics show nothing of the driver; the unstable `io_driver_*` metrics are
/// 0 without a driver, and also with one that has no sockets. To open all connections on dlock's thread needs no panic,
/// but each answer then wakes that thread first, which wakes the caller: the bare statements of a session's acquire and
/// release take 166 us instead of 123 us (docs/backends/sql.md).
///
/// # Errors
///
/// As [`runtime`], and as [`guard_opening`] where it panics on this thread too.
///
/// # Cancel safety
///
/// Dropping this drops the future.
pub async fn open<T, F>(opening: impl Fn() -> F + Send) -> Result<T, Failure>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let here = threads::may_have_io();
    // Tried here first, since a connection on the caller's runtime is faster. Whether it panicked for want of I/O shows
    // only when dlock's own thread succeeds where this runtime did not: only then is the runtime remembered as one
    // without I/O.
    if here.may {
        let opened = guard_opening(opening()).await;
        if opened.is_ok() || here.is_own {
            return opened;
        }
    }
    let (own, opening) = (runtime()?, guard_opening(opening()));
    let opened = run_as(|task| drop(own.spawn(task)), opening).await.unwrap_or_else(|| Err(ended()))?;
    if let Some(without) = here.runtime.filter(|_| here.may) {
        threads::has_no_io(without);
    }
    Ok(opened)
}

fn ended() -> Failure {
    Failure::unavailable("dlock's own thread has ended")
}

/// Runs a keeper's tasks in place of dlock's own thread: the seam for simulations, which decide the order of tasks
/// themselves.
#[doc(hidden)]
pub trait Spawn: fmt::Debug + Send + Sync + 'static {
    /// Runs `task` to its end, inside a tokio runtime with timers.
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>);
}

/// A piece of work for the keeper.
pub(crate) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The place where the tasks of one keeper run.
#[derive(Clone, Debug)]
pub(crate) enum Tasks {
    Thread(Arc<Thread>),
    Given(Arc<dyn Spawn>),
}

impl Tasks {
    pub(crate) fn new(given: Option<Arc<dyn Spawn>>) -> Result<Self, Failure> {
        match given {
            Some(given) => Ok(Self::Given(given)),
            None => threads::of_keeper().map(Self::Thread),
        }
    }

    /// Returns the runtime of the keeper's thread; `None` where a simulation runs the tasks.
    pub(crate) fn runtime(&self) -> Option<Handle> {
        match self {
            Self::Thread(thread) => Some(thread.runtime().clone()),
            Self::Given(_) => None,
        }
    }

    /// Is `true` if a simulation runs the tasks.
    pub(crate) const fn are_given(&self) -> bool {
        matches!(self, Self::Given(_))
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        match self {
            Self::Thread(thread) => drop(thread.runtime().spawn(task)),
            Self::Given(given) => given.spawn(Box::pin(task)),
        }
    }

    /// Runs `future` as a task of the keeper and awaits its end; `None` if the keeper ended before. Dropping this drops
    /// `future`.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        run_as(|task| self.spawn(task), future).await
    }
}

/// Runs `future` as a task and awaits its end; `None` if the task ended before. Dropping this drops `future`.
async fn run_as<T: Send + 'static>(
    spawn: impl FnOnce(Task) + Send,
    future: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    let (mut sender, receiver) = oneshot::channel();
    spawn(Box::pin(async move {
        // The receiver is watched first: a caller that has gone must not have `future` polled once more.
        tokio::select! {
            biased;
            () = sender.closed() => {}
            output = future => drop(sender.send(output)),
        }
    }));
    receiver.await.ok()
}
