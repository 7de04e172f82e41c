//! The threads that dlock owns.
//!
//! ```text
//! dlock-io      1 for the process   drives the connections of backends
//! dlock-timer   1 for the process   has the timers, and runs nothing but the wakers of callers
//! dlock-keeper  up to 16            each runs the keepers of one or more `Locks`
//! ```
//!
//! A backend that blocks its thread delays no timer, and a waker that blocks delays all of them. A keeper has a thread
//! of its own while there are not many, so that a backend that blocks its thread holds up its own locks and no others.
//! Threads are kept for the next `Locks`. All belong to one process: a child made by `fork` has none of its parent's,
//! and starts its own.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::thread::Builder;
use std::time::{Duration, Instant};

use tokio::runtime::{self, Handle};
use tokio::sync::oneshot;

use crate::error::Failure;
use crate::guarded::guard;
use crate::sync::plain::Mutex;

/// The most threads that keepers have; further `Locks` share them.
const MOST_KEEPERS: usize = 16;

thread_local! {
    /// Is `true` on a thread of dlock's own.
    static IS_OWN: Cell<bool> = const { Cell::new(false) };
}

/// A thread with a runtime. Dropping this ends it.
#[derive(Debug)]
pub(crate) struct Thread {
    runtime: Handle,
    _stop: oneshot::Sender<()>,
}

impl Thread {
    fn start(name: &str, thread: Builder) -> Result<Self, Failure> {
        let refused = |error: std::io::Error| {
            Failure::unavailable(format!(
                "dlock's own thread `{name}` could not be started; try again: {error}"
            ))
        };
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        let (stop, stopped) = oneshot::channel();
        // The runtime is made on its own thread: if no thread can be started, there is none to be dropped here, where
        // dropping a runtime inside another one would panic.
        let run = move || match runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => {
                IS_OWN.set(true);
                let _ = sender.send(Ok(runtime.handle().clone()));
                let _: Result<(), _> = runtime.block_on(stopped);
            }
            Err(error) => {
                let _ = sender.send(Err(error));
            }
        };
        thread.name(name.into()).spawn(run).map_err(refused)?;
        let started = receiver.recv().unwrap_or_else(|_| Err(std::io::Error::other("it ended at once")));
        Ok(Self { runtime: started.map_err(refused)?, _stop: stop })
    }

    pub(crate) const fn runtime(&self) -> &Handle {
        &self.runtime
    }
}

/// The threads of one process.
struct Threads {
    process: u32,
    connections: Thread,
    timers: Thread,
    keepers: Mutex<Vec<Arc<Thread>>>,
    /// The threads of a forked child of this process; only set in the child.
    child: OnceLock<Box<Self>>,
}

impl Threads {
    /// Returns the threads of this process, which it starts first if there are none. A failure is not remembered: the
    /// next call tries again.
    fn of_this_process() -> Result<&'static Self, Failure> {
        static THREADS: OnceLock<Box<Threads>> = OnceLock::new();
        let process = std::process::id();
        let mut threads = &THREADS;
        // A fork copies the parent's entry, whose threads the child does not have. So each generation has an entry of
        // its own, below that of its parent.
        loop {
            match threads.get() {
                Some(found) if found.process == process => return Ok(found),
                Some(of_parent) => threads = &of_parent.child,
                None => {
                    let connections = Thread::start("dlock-io", Builder::new())?;
                    let timers = Thread::start("dlock-timer", Builder::new())?;
                    let (keepers, child) = (Mutex::default(), OnceLock::new());
                    // If another thread was faster, the threads started here end again.
                    let _ = threads.set(Box::new(Self { process, connections, timers, keepers, child }));
                }
            }
        }
    }
}

/// Returns the runtime that drives the connections of backends.
pub(crate) fn of_connections() -> Result<&'static Handle, Failure> {
    Threads::of_this_process().map(|threads| threads.connections.runtime())
}

/// Returns the runtime that has the timers.
pub(crate) fn of_timers() -> Result<&'static Handle, Failure> {
    Threads::of_this_process().map(|threads| threads.timers.runtime())
}

/// Returns a thread for a keeper: a thread without one if there is one or can be one more, and otherwise a shared one.
pub(crate) fn of_keeper() -> Result<Arc<Thread>, Failure> {
    let threads = Threads::of_this_process()?;
    let mut keepers = threads.keepers.lock();
    // Each keeper has a reference to its thread, and this list has one to all.
    let least = keepers.iter().min_by_key(|thread| Arc::strong_count(thread)).map(Arc::clone);
    // The list and `least` have one reference each.
    let taken = |thread: &Arc<Thread>| Arc::strong_count(thread) > 2;
    match least {
        Some(least) if !taken(&least) || keepers.len() >= MOST_KEEPERS => Ok(least),
        least => match (Thread::start("dlock-keeper", Builder::new()), least) {
            (Ok(thread), _) => {
                let thread = Arc::new(thread);
                keepers.push(Arc::clone(&thread));
                Ok(thread)
            }
            // A shared thread is better than none.
            (Err(_), Some(least)) => Ok(least),
            (Err(failure), None) => Err(failure),
        },
    }
}

/// Is `true` on a thread of dlock's own.
pub(crate) fn is_own() -> bool {
    IS_OWN.get()
}

/// Is `true` if tokio's clock is not the machine's here: a test has paused or moved it.
pub(crate) fn is_time_virtual() -> bool {
    let before = Instant::now();
    let now = tokio::time::Instant::now().into_std();
    now < before || now > Instant::now()
}

/// Is `true` if the calling code is in a tokio runtime, whether that has timers and I/O or not.
pub(crate) fn is_in_runtime() -> bool {
    Handle::try_current().is_ok()
}

/// Is `true` if the caller's runtime can poll requests to servers: there is one, and its time is that of the servers.
pub(crate) fn serves_requests() -> bool {
    is_own() || is_in_runtime() && !is_time_virtual()
}

/// Is `true` if a driver that takes its timers from the caller's runtime may do so here. In a program that is built
/// with `panic = "abort"` that is taken for granted.
pub(crate) fn may_have_timers() -> bool {
    thread_local! {
        /// The runtime that this thread was in last, and whether it may have timers.
        static LAST: Cell<Option<(runtime::Id, bool)>> = const { Cell::new(None) };
    }
    let Ok(runtime) = Handle::try_current() else { return false };
    let id = runtime.id();
    if cfg!(panic = "abort") {
        return true;
    }
    if let Some((_, known)) = LAST.get().filter(|(last, _)| *last == id) {
        return known;
    }
    // tokio has no way to ask for this: a runtime without timers panics.
    let may = guard(|| drop(tokio::time::sleep(Duration::ZERO))).is_ok();
    LAST.set(Some((id, may)));
    may
}

/// The runtimes that were last found to have no I/O.
static WITHOUT_IO: Mutex<VecDeque<runtime::Id>> = Mutex::new(VecDeque::new());

/// The number of runtimes that are remembered. A forgotten one is found out again.
const REMEMBERED: usize = 64;

/// The surroundings of the calling code, and whether a connection may be opened there.
pub(crate) struct Here {
    pub(crate) is_own: bool,
    pub(crate) runtime: Option<runtime::Id>,
    pub(crate) may: bool,
}

pub(crate) fn may_have_io() -> Here {
    let runtime = Handle::try_current().ok().map(|runtime| runtime.id());
    let lacks = |id| WITHOUT_IO.lock().contains(&id);
    let may = is_own() || cfg!(panic = "unwind") && runtime.is_some_and(|id| !lacks(id));
    Here { is_own: is_own(), runtime, may }
}

pub(crate) fn has_no_io(runtime: runtime::Id) {
    let mut without = WITHOUT_IO.lock();
    // Several connections may be opened at once, and each of them finds it out.
    if without.contains(&runtime) {
        return;
    }
    if without.len() == REMEMBERED {
        without.pop_front();
    }
    without.push_back(runtime);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_used_again_and_shared_when_there_are_many() {
        let taken: Vec<_> = (0..MOST_KEEPERS * 2).map(|_| of_keeper().unwrap()).collect();
        let mut different = taken.clone();
        different.sort_by_key(Arc::as_ptr);
        different.dedup_by(|a, b| Arc::ptr_eq(a, b));
        assert!(different.len() <= MOST_KEEPERS);
        drop((taken, different));
        let threads = Threads::of_this_process().unwrap();
        assert!(threads.keepers.lock().len() <= MOST_KEEPERS);
    }

    #[tokio::test]
    async fn a_thread_that_cannot_be_started_is_an_error_inside_of_a_runtime_too() {
        // No machine has as much memory.
        let failure =
            Thread::start("none", Builder::new().stack_size(usize::MAX / 4)).map(|_| ()).unwrap_err();
        assert!(failure.is_transient());
    }
}
