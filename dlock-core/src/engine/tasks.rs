//! Where the tasks of keepers and the connections of backends run: on dlock's own threads, which a user who blocks
//! every worker thread of their runtime, or shuts it down, does not stop.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::engine::threads::{self, Thread};
use crate::error::Failure;

/// Returns the runtime that drives connections, on a thread of dlock's own. A backend drives its connections there, so
/// that they live on when the user's runtime is blocked or gone. It must not block.
///
/// # Errors
///
/// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) when the operating system gives no thread; the next call
/// tries again.
pub fn runtime() -> Result<&'static Handle, Failure> {
    threads::of_connections()
}

/// Runs a keeper's tasks in place of dlock's own thread: the seam for simulations, which decide themselves who goes on
/// next.
#[doc(hidden)]
pub trait Spawn: fmt::Debug + Send + Sync + 'static {
    /// Runs `task` to its end, inside a tokio runtime with timers.
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>);
}

/// A piece of work for the keeper.
pub(super) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Where the tasks of one keeper run.
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
    pub(super) fn runtime(&self) -> Option<Handle> {
        match self {
            Self::Thread(thread) => Some(thread.runtime().clone()),
            Self::Given(_) => None,
        }
    }

    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        match self {
            Self::Thread(thread) => drop(thread.runtime().spawn(task)),
            Self::Given(given) => given.spawn(Box::pin(task)),
        }
    }

    /// Runs `future` there and awaits its end; `None` when the keeper ended before. Dropping this drops `future`.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let (mut tell, told) = oneshot::channel();
        self.spawn(async move {
            tokio::select! {
                biased;
                () = tell.closed() => {}
                output = future => drop(tell.send(output)),
            }
        });
        told.await.ok()
    }
}
