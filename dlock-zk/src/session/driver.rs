//! Drives a session: on a thread of its own, and on the runtimes of the senders of requests.
//!
//! The client library has tasks, which run where they are spawned, and a reactor, which is driven by any thread that
//! waits for input in it. One thread that does both saves each answer a wake-up between two threads. A request does not
//! need that thread to be sent: the sender's runtime polls the tasks once its ready tasks have run, so that all their
//! requests are written in one go. The thread steps in if that runtime is held up.
//!
//! | who polls the tasks | when | how the waiters of answers are woken |
//! |---|---|---|
//! | the sender's runtime | by a [`PollTurn`], after the tasks that are ready there; if the thread `looks` | directly |
//! | the sender itself | at once: outside of a task, or if the thread does not look | directly |
//! | the session's thread | when the session is woken; outside of a runtime, or if another runtime has the turn | in batches, each by a task of its runtime, or by the thread at its next look |
//!
//! One of them polls at a time. Another one that comes meanwhile sets `again`, and leaves the next poll to the first.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use async_io::Timer;
use dlock_core::backend::{Mutex, tell};
use spawns_core::{Spawn, Task};
use tokio::runtime::{self, Handle};
use tokio::sync::{Notify, oneshot};
use zookeeper::{Client, Error, SessionState, StateWatcher};

use crate::wire::Answer;

/// The time after which the thread looks for a runtime that is held up, while there is something to do.
const LOOK: Duration = Duration::from_millis(10);

thread_local! {
    /// `true` while this thread sends requests. It has the session polled afterwards, so that a wake-up is not needed.
    static SENDING: Cell<bool> = const { Cell::new(false) };
    /// The waiters that this thread wakes once it has polled the session; `None` while it does not poll.
    static ANSWERED: RefCell<Option<Vec<Answered>>> = const { RefCell::new(None) };
}

type Tasks = Vec<Pin<Box<dyn Future<Output = ()> + Send>>>;

/// The tasks of a session.
pub(crate) struct Driver {
    tasks: Mutex<Tasks>,
    spawned: Mutex<Tasks>,
    /// The current poller has to poll the tasks once more.
    again: AtomicBool,
    wakes: Arc<Wakes>,
    /// `wakes`, as the waker of the tasks.
    waker: Waker,
    /// The thread looks again within [`LOOK`].
    looks: AtomicBool,
    /// The runtime that is about to poll the session.
    sender: Mutex<Option<runtime::Id>>,
    connection: OnceLock<StateWatcher>,
    /// The connection was there after the last poll.
    connected: AtomicBool,
    /// The number of times that the connection was lost.
    losses: AtomicU64,
    /// Waiters that were left to their runtimes since the last look of the thread.
    handed: Mutex<Vec<Arc<Batch>>>,
    /// The session has no tasks any more.
    ended: AtomicBool,
    end: Notify,
}

/// Wakes the thread when the session is woken, unless the thread that wakes it is about to poll the session itself.
#[derive(Default)]
struct Wakes {
    thread: OnceLock<Waker>,
}

impl Wakes {
    fn thread(&self) {
        // Without a waker, the thread has not polled the session yet, and is going to.
        if let Some(thread) = self.thread.get() {
            thread.wake_by_ref();
        }
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !SENDING.get() {
            self.thread();
        }
    }
}

/// Wakes the waiter of an answer, but not before the session was polled to its end, since the waiter may want to poll
/// it too.
#[derive(Clone)]
struct Answered {
    waiter: Waker,
    /// The runtime of the waiter, if the waiter is a task.
    runtime: Option<Handle>,
}

impl Answered {
    fn by(waiter: &Waker) -> Self {
        // A waiter that is no task may block its runtime while it waits: a task that wakes it there would not run.
        let runtime = tokio::task::try_id().and_then(|_| Handle::try_current().ok());
        Self { waiter: waiter.clone(), runtime }
    }
}

impl Wake for Answered {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let later = ANSWERED.with_borrow_mut(|answered| {
            // Collected while this thread polls. On a thread that does not, `ANSWERED` is `None`, and the wake-up goes
            // out at once.
            let answered = answered.as_mut();
            answered.map(|answered| answered.push(Self::clone(self))).is_some()
        });
        // The client library may also wake a waiter outside of a poll.
        if !later {
            self.waiter.wake_by_ref();
        }
    }
}

/// Waiters of one runtime. One of its own tasks wakes them, so that they cost it one wake-up and not one each.
#[derive(Default)]
struct Batch(Mutex<Vec<Waker>>);

impl Batch {
    fn wake(&self) {
        // Taken by the task of the runtime or by the thread at its look, whichever comes first: each waiter is woken
        // once.
        let waiters = std::mem::take(&mut *self.0.lock());
        waiters.into_iter().for_each(|waiter| tell(|| waiter.wake()));
    }
}

/// Wakes a batch when it is dropped, also by a runtime that has ended.
struct Deliver(Arc<Batch>);

impl Drop for Deliver {
    fn drop(&mut self) {
        self.0.wake();
    }
}

/// Wraps an answer so that its waiter is woken when all answers are there that came together.
pub(crate) fn together<T: 'static>(mut answer: Answer<T>) -> Answer<T> {
    let mut waker: Option<(Waker, Waker)> = None;
    Box::pin(std::future::poll_fn(move |context| {
        let (_, ours) = match &mut waker {
            Some(waker) if waker.0.will_wake(context.waker()) => waker,
            waker => {
                let theirs = context.waker().clone();
                let ours = Waker::from(Arc::new(Answered::by(&theirs)));
                waker.insert((theirs, ours))
            }
        };
        answer.as_mut().poll(&mut Context::from_waker(ours))
    }))
}

impl Spawn for Driver {
    fn spawn(&self, task: Task) {
        // Not into `tasks`, which is locked while a task that spawns another one is polled.
        self.spawned.lock().push(Box::into_pin(task.future));
    }
}

impl Driver {
    fn new() -> Arc<Self> {
        let wakes = Arc::<Wakes>::default();
        Arc::new(Self {
            tasks: Mutex::default(),
            spawned: Mutex::default(),
            again: AtomicBool::new(false),
            waker: Waker::from(Arc::clone(&wakes)),
            wakes,
            looks: AtomicBool::new(false),
            sender: Mutex::default(),
            connection: OnceLock::new(),
            connected: AtomicBool::new(true),
            losses: AtomicU64::new(0),
            handed: Mutex::default(),
            ended: AtomicBool::new(false),
            end: Notify::new(),
        })
    }

    /// Returns how often the connection was lost. The number grows before anything is answered over the next
    /// connection.
    pub(crate) fn losses(&self) -> u64 {
        self.losses.load(Ordering::SeqCst)
    }

    /// Returns `true` if the session is no longer driven, also after a panic of the client library, which does not
    /// report its end then.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// Waits until the session is no longer driven.
    pub(crate) async fn until_ended(&self) {
        let mut end = std::pin::pin!(self.end.notified());
        // Registered before the check, so that an end in between is not missed.
        end.as_mut().enable();
        if !self.has_ended() {
            end.await;
        }
    }

    /// Counts the losses of the connection. The session needs several polls to connect again, so that none is missed.
    fn note_connection(&self) {
        let Some(connection) = self.connection.get() else { return };
        let connected = connection.peek_state() == SessionState::SyncConnected;
        if self.connected.swap(connected, Ordering::SeqCst) && !connected {
            self.losses.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Sends the requests that `requests` makes, without waking the session's thread. `requests` does nothing else.
    pub(crate) fn send<T>(self: &Arc<Self>, requests: impl FnOnce() -> T) -> T {
        struct Reset;
        impl Drop for Reset {
            fn drop(&mut self) {
                SENDING.set(false);
            }
        }
        // A panic of the library must not leave this thread without wake-ups: `Reset` clears the flag in any case.
        let answers = {
            SENDING.set(true);
            let _reset = Reset;
            requests()
        };
        match Handle::try_current() {
            // Outside of a task, this thread may block the runtime, so that a `PollTurn` would not run.
            Ok(_) if tokio::task::try_id().is_none() => self.poll_for_thread(),
            // Nothing would notice if this runtime were held up: the thread waits without a limit.
            Ok(_) if !self.looks.load(Ordering::SeqCst) => self.poll_for_thread(),
            Ok(runtime) => self.poll_on(&runtime),
            Err(_) => self.wakes.thread(),
        }
        answers
    }

    /// Has this runtime poll the session, after the tasks that are ready there.
    fn poll_on(self: &Arc<Self>, runtime: &Handle) {
        let mut sender = self.sender.lock();
        match &*sender {
            Some(id) if *id == runtime.id() => {}
            // Another runtime has the turn. It may be held up, so that the thread sends what came from here.
            Some(_) => self.wakes.thread(),
            None => {
                // Cleared by the drop of the turn, also if the runtime ends before it runs the task.
                *sender = Some(runtime.id());
                drop(sender);
                let turn = PollTurn(Arc::clone(self));
                runtime.spawn(async move { drop(turn) });
            }
        }
    }

    /// Polls the session in place of its thread, and has that thread end if the session has.
    fn poll_for_thread(&self) {
        if self.poll(|answered| answered.into_iter().for_each(|answered| tell(|| answered.waiter.wake()))) {
            self.wakes.thread();
        }
    }

    /// Polls the session, or has its current poller do so once more. `wake` wakes the waiters whose answers came.
    /// Returns `true` if the session has ended.
    fn poll(&self, wake: impl Fn(Vec<Answered>)) -> bool {
        loop {
            let Some(mut tasks) = self.tasks.try_lock() else {
                self.again.store(true, Ordering::SeqCst);
                // The poller may have read `again` before it was set, and have unlocked the tasks since.
                if self.tasks.try_lock().is_none() {
                    return false;
                }
                continue;
            };
            // Cleared before the poll, so that a request that this poll misses leads to another one.
            self.again.store(false, Ordering::SeqCst);
            ANSWERED.set(Some(Vec::new()));
            let ended = self.poll_tasks(&mut tasks);
            self.note_connection();
            // Counted before any waiter is woken: see `losses`. The waiters are woken without the lock, since they may
            // poll too.
            drop(tasks);
            wake(ANSWERED.take().unwrap_or_default());
            if ended {
                tell(|| self.end.notify_waiters());
            }
            if !self.again.load(Ordering::SeqCst) {
                return ended;
            }
        }
    }

    /// Polls every task, and returns `true` if all have ended. A task that panics ends the others too: without it the
    /// session is of no use.
    fn poll_tasks(&self, tasks: &mut Tasks) -> bool {
        tasks.append(&mut self.spawned.lock());
        let mut context = Context::from_waker(&self.waker);
        let polled = || tasks.retain_mut(|task| task.as_mut().poll(&mut context).is_pending());
        let ended = catch_unwind(AssertUnwindSafe(polled)).is_err() || tasks.is_empty();
        if ended {
            self.ended.store(true, Ordering::SeqCst);
            tasks.clear();
        }
        ended
    }

    /// Polls the session whenever it is woken, until it has ended.
    async fn run(&self) {
        let mut timer = Timer::never();
        std::future::poll_fn(|thread| {
            self.wakes.thread.get_or_init(|| thread.waker().clone());
            let looked = Pin::new(&mut timer).poll(thread).is_ready();
            // Stored before the poll: a sender whose request this poll misses reads the new value.
            self.looks.store(!looked, Ordering::SeqCst);
            if looked {
                timer = Timer::never();
                self.wake_handed();
            }
            let ended = self.poll(|answered| self.deliver(answered));
            // After the poll: waiters that it left to their runtimes need a look, also if one was due just now.
            if !timer.will_fire() && (!looked || !self.handed.lock().is_empty()) {
                timer.set_after(LOOK);
                // The first poll has the timer wake this thread.
                let _ = Pin::new(&mut timer).poll(thread);
            }
            if ended { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        // No look follows: the waiters that were left to their runtimes are woken now.
        self.wake_handed();
    }

    /// Wakes the waiters whose runtime is held up.
    fn wake_handed(&self) {
        let handed = std::mem::take(&mut *self.handed.lock());
        handed.iter().for_each(|batch| batch.wake());
    }

    /// Wakes waiters from the session's thread, those of one runtime together by a task of that runtime. If it is held
    /// up, the thread wakes them itself at its next look.
    fn deliver(&self, mut answered: Vec<Answered>) {
        while let Some(Answered { waiter, runtime }) = answered.pop() {
            let of_runtime = |other: &mut Answered| match (&runtime, &other.runtime) {
                (Some(ours), Some(theirs)) => ours.id() == theirs.id(),
                _ => false,
            };
            let mut batch: Vec<Waker> =
                answered.extract_if(.., of_runtime).map(|other| other.waiter).collect();
            // A task is worth its cost for several waiters only.
            match runtime {
                Some(runtime) if !batch.is_empty() => {
                    batch.push(waiter);
                    let batch = Arc::new(Batch(Mutex::new(batch)));
                    self.handed.lock().push(Arc::clone(&batch));
                    let deliver = Deliver(batch);
                    runtime.spawn(async move { drop(deliver) });
                }
                _ => tell(|| waiter.wake()),
            }
        }
    }
}

/// The turn of a runtime to poll the session, which is taken when this is dropped: by the task of `poll_on`, or by a
/// runtime that ends before that task runs.
struct PollTurn(Arc<Driver>);

impl Drop for PollTurn {
    fn drop(&mut self) {
        // Before the poll: a request that is made during it takes a turn of its own, and is not left behind.
        *self.0.sender.lock() = None;
        self.0.poll_for_thread();
    }
}

/// A client and its driver.
#[derive(Clone)]
pub(crate) struct Driven {
    pub(crate) client: Client,
    pub(crate) driver: Arc<Driver>,
}

/// Starts the thread of the reactor. If it cannot be started, this panics, once; inside `block_on`, the reactor would
/// panic again while the stack unwinds, which ends the process.
fn start_reactor() {
    let _ = Pin::new(&mut Timer::after(LOOK)).poll(&mut Context::from_waker(Waker::noop()));
}

/// Opens a session on a thread of its own, which drives it until it has ended.
///
/// # Cancel safety
///
/// Cancel-safe: a session whose caller is gone is closed, or not opened.
///
/// # Panics
///
/// If the client library panics.
pub(crate) async fn open(
    connect: impl Future<Output = Result<Client, Error>> + Send + 'static,
) -> Result<Driven, Error> {
    let (mut sender, opened) = oneshot::channel();
    let drive = move || {
        let driver = Driver::new();
        // The client library spawns by `spawns_core`, which brings its tasks to this driver.
        let _spawns_here = spawns_core::enter(&*driver);
        start_reactor();
        async_io::block_on(async {
            let opened = tokio::select! {
                opened = connect => opened,
                // The future that connects is dropped here, on the thread whose reactor it uses.
                () = sender.closed() => return,
            };
            if let Ok(client) = &opened {
                // Before the client is passed on, so that no loss of its connection is missed.
                driver.connection.get_or_init(|| client.state_watcher());
            }
            // If the caller is gone, the client is dropped here, which closes the session.
            drop(sender.send(opened.map(|client| Driven { client, driver: Arc::clone(&driver) })));
            driver.run().await;
        });
    };
    let failed = |what: String| Err(Error::UnexpectedError(what));
    match std::thread::Builder::new().name("dlock-zk".to_owned()).spawn(drive) {
        Ok(thread) => match opened.await {
            Ok(opened) => opened,
            // The thread ended without an answer: it panicked, such as where no thread for the reactor could be
            // started.
            Err(_) => thread.join().map_or_else(
                |panic| resume_unwind(panic),
                |()| failed("the session's thread has ended".to_owned()),
            ),
        },
        Err(error) => failed(format!("no thread for the session could be started: {error}")),
    }
}

#[cfg(test)]
mod tests;
