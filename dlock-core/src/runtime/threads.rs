//! The threads that dlock owns.
//!
//! One drives the connections of backends, and one has the timers. The latter runs nothing but the wakers of callers:
//! a backend that blocks its thread delays no timer, and a waker that blocks delays all of them. The keepers of `Locks`
//! run on others, each on a thread of its own while there are not many, so that a backend that blocks its thread holds
//! up its own locks and no others. Threads are kept for the next `Locks`. All belong to one process: a child made by
//! `fork` has none of its parent's, and starts its own.

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

/// How many threads keepers have at the most; more `Locks` share them.
const MOST_KEEPERS: usize = 16;

thread_local! {
    /// Whether this thread is one of dlock's own.
    static IS_OWN: Cell<bool> = const { Cell::new(false) };
}

/// A thread with a runtime. It ends when this is dropped.
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
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        let (stop, stopped) = oneshot::channel();
        // The runtime is made on its own thread: it could not be dropped inside another when there is no thread for
        // it.
        let run = move || match runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => {
                IS_OWN.set(true);
                let _ = tell.send(Ok(runtime.handle().clone()));
                let _: Result<(), _> = runtime.block_on(stopped);
            }
            Err(error) => {
                let _ = tell.send(Err(error));
            }
        };
        thread.name(name.into()).spawn(run).map_err(refused)?;
        let started = told.recv().unwrap_or_else(|_| Err(std::io::Error::other("it ended at once")));
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
    /// Those of a child of this process, as seen there.
    child: OnceLock<Box<Self>>,
}

impl Threads {
    /// Nothing is remembered of a failure: the next call tries again.
    fn of_this_process() -> Result<&'static Self, Failure> {
        static THREADS: OnceLock<Box<Threads>> = OnceLock::new();
        let process = std::process::id();
        let mut threads = &THREADS;
        loop {
            match threads.get() {
                Some(found) if found.process == process => return Ok(found),
                Some(of_parent) => threads = &of_parent.child,
                None => {
                    let connections = Thread::start("dlock-io", Builder::new())?;
                    let timers = Thread::start("dlock-timer", Builder::new())?;
                    let (keepers, child) = (Mutex::default(), OnceLock::new());
                    // Where another thread was faster, this one ends again.
                    let _ = threads.set(Box::new(Self { process, connections, timers, keepers, child }));
                }
            }
        }
    }
}

/// The runtime that drives the connections of backends.
pub(crate) fn of_connections() -> Result<&'static Handle, Failure> {
    Threads::of_this_process().map(|threads| threads.connections.runtime())
}

/// The runtime that has the timers.
pub(crate) fn of_timers() -> Result<&'static Handle, Failure> {
    Threads::of_this_process().map(|threads| threads.timers.runtime())
}

/// A thread for a keeper: one that no other has, if there is one or can be one more.
pub(crate) fn of_keeper() -> Result<Arc<Thread>, Failure> {
    let threads = Threads::of_this_process()?;
    let mut keepers = threads.keepers.lock();
    // Each keeper holds its thread, and this list holds all.
    let least = keepers.iter().min_by_key(|thread| Arc::strong_count(thread)).map(Arc::clone);
    // One is this list's, and one is that of this function.
    let taken = |thread: &Arc<Thread>| Arc::strong_count(thread) > 2;
    match least {
        Some(least) if !taken(&least) || keepers.len() >= MOST_KEEPERS => Ok(least),
        least => match (Thread::start("dlock-keeper", Builder::new()), least) {
            (Ok(thread), _) => {
                let thread = Arc::new(thread);
                keepers.push(Arc::clone(&thread));
                Ok(thread)
            }
            // To share one is better than to have none.
            (Err(_), Some(least)) => Ok(least),
            (Err(failure), None) => Err(failure),
        },
    }
}

/// Whether this is one of dlock's own threads.
pub(crate) fn is_own() -> bool {
    IS_OWN.get()
}

/// Whether tokio's clock is not the machine's here: it stands still, or was moved, in a test.
pub(crate) fn is_time_virtual() -> bool {
    let before = Instant::now();
    let now = tokio::time::Instant::now().into_std();
    now < before || now > Instant::now()
}

/// Whether the calling code is in a tokio runtime, whatever that has and has not.
pub(crate) fn is_in_runtime() -> bool {
    Handle::try_current().is_ok()
}

/// Whether the caller's runtime can go on with what asks servers: there is one, whose time is that of the servers.
pub(crate) fn serves_requests() -> bool {
    is_own() || is_in_runtime() && !is_time_virtual()
}

/// Whether a driver that takes its timers from the caller's runtime may do so here. In a program that is built with
/// `panic = "abort"` that is taken for granted.
pub(crate) fn may_have_timers() -> bool {
    thread_local! {
        /// What was found out about the runtime that this thread was in last.
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
    // A runtime does not tell. One without timers panics.
    let may = guard(|| drop(tokio::time::sleep(Duration::ZERO))).is_ok();
    LAST.set(Some((id, may)));
    may
}

/// The runtimes that were found to have no I/O, the last ones.
static WITHOUT_IO: Mutex<VecDeque<runtime::Id>> = Mutex::new(VecDeque::new());

/// So many are remembered; one that was forgotten is found out again.
const REMEMBERED: usize = 64;

/// Where the calling code is, and whether a connection may be opened there.
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
    // Several connections may be opened at once, and each finds it out.
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
