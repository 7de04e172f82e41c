//! What drives a session: a thread of its own, and for their own requests those who send them.
//!
//! The client library has tasks for whoever spawns them, and a reactor for whoever waits for input in it. A thread that
//! does both spares every answer a wake-up from one thread to another. What is sent needs that thread neither: the
//! sender's runtime writes it as soon as its ready tasks have run, all in one go. The thread makes up for a runtime
//! that is held up meanwhile.

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

/// While there is something to do, the thread looks this often whether a runtime is held up.
const LOOK: Duration = Duration::from_millis(10);

thread_local! {
    /// Who sends on this thread polls the session afterwards.
    static SENDING: Cell<bool> = const { Cell::new(false) };
    /// Whom this thread wakes when it has polled the session.
    static ANSWERED: RefCell<Option<Vec<Answered>>> = const { RefCell::new(None) };
}

type Tasks = Vec<Pin<Box<dyn Future<Output = ()> + Send>>>;

/// The tasks of a session.
pub(crate) struct Driver {
    tasks: Mutex<Tasks>,
    spawned: Mutex<Tasks>,
    /// Whoever polls them has to do it again.
    again: AtomicBool,
    wakes: Arc<Wakes>,
    /// The same, for the tasks.
    waker: Waker,
    /// The thread looks again within [`LOOK`].
    looks: AtomicBool,
    /// The runtime that is about to poll the session.
    sender: Mutex<Option<runtime::Id>>,
    connection: OnceLock<StateWatcher>,
    /// It was there after the last poll.
    connected: AtomicBool,
    /// How often it was lost.
    losses: AtomicU64,
    /// Waiters that their runtime was to wake by now.
    handed: Mutex<Vec<Arc<Batch>>>,
    /// There are no tasks any more.
    ended: AtomicBool,
    end: Notify,
}

/// Wakes the thread when the session is woken, unless whoever wakes it is about to poll it.
#[derive(Default)]
struct Wakes {
    thread: OnceLock<Waker>,
}

impl Wakes {
    fn thread(&self) {
        // Without one it has not polled yet.
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

/// Wakes who waits for an answer: not before the session was polled to its end, which whoever is woken may want to poll
/// too.
#[derive(Clone)]
struct Answered {
    waiter: Waker,
    /// Where it is a task, if it is one.
    runtime: Option<Handle>,
}

impl Answered {
    fn by(waiter: &Waker) -> Self {
        // What is no task may hold up its runtime while it waits.
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
            let answered = answered.as_mut();
            answered.map(|answered| answered.push(Self::clone(self))).is_some()
        });
        if !later {
            self.waiter.wake_by_ref();
        }
    }
}

/// Waiters of one runtime. Woken by one of its own tasks they cost it one wake-up, and not one each.
#[derive(Default)]
struct Batch(Mutex<Vec<Waker>>);

impl Batch {
    fn wake(&self) {
        let waiters = std::mem::take(&mut *self.0.lock());
        waiters.into_iter().for_each(|waiter| tell(|| waiter.wake()));
    }
}

/// Wakes a batch, also when its runtime has ended.
struct Deliver(Arc<Batch>);

impl Drop for Deliver {
    fn drop(&mut self) {
        self.0.wake();
    }
}

/// An answer whose waiters are woken when all have come that came together.
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

    /// How often the connection was lost. Grows before anything is answered over the next one.
    pub(crate) fn losses(&self) -> u64 {
        self.losses.load(Ordering::SeqCst)
    }

    /// Whether the session is driven no more, be it that the client library panicked and says nothing of its end.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// Waits until the session is driven no more.
    pub(crate) async fn until_ended(&self) {
        let mut end = std::pin::pin!(self.end.notified());
        end.as_mut().enable();
        if !self.has_ended() {
            end.await;
        }
    }

    /// Counts the losses of the connection. To connect takes the session several polls, so that none is missed.
    fn note_connection(&self) {
        let Some(connection) = self.connection.get() else { return };
        let connected = connection.peek_state() == SessionState::SyncConnected;
        if self.connected.swap(connected, Ordering::SeqCst) && !connected {
            self.losses.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Sends what `requests` asks of the client, and nothing else does, without waking the session's thread.
    pub(crate) fn send<T>(self: &Arc<Self>, requests: impl FnOnce() -> T) -> T {
        struct Reset;
        impl Drop for Reset {
            fn drop(&mut self) {
                SENDING.set(false);
            }
        }
        let answers = {
            SENDING.set(true);
            let _reset = Reset;
            requests()
        };
        match Handle::try_current() {
            // It is not certain that this runtime runs.
            Ok(_) if tokio::task::try_id().is_none() => self.poll_for_thread(),
            // Nobody would notice if this runtime was held up.
            Ok(_) if !self.looks.load(Ordering::SeqCst) => self.poll_for_thread(),
            Ok(runtime) => self.poll_on(&runtime),
            Err(_) => self.wakes.thread(),
        }
        answers
    }

    /// Has the session polled by this runtime, after what else is ready there.
    fn poll_on(self: &Arc<Self>, runtime: &Handle) {
        let mut sender = self.sender.lock();
        match &*sender {
            Some(id) if *id == runtime.id() => {}
            Some(_) => self.wakes.thread(),
            None => {
                *sender = Some(runtime.id());
                drop(sender);
                let turn = PollTurn(Arc::clone(self));
                runtime.spawn(async move { drop(turn) });
            }
        }
    }

    /// Polls the session, and lets its thread end when that has.
    fn poll_for_thread(&self) {
        if self.poll(|answered| answered.into_iter().for_each(|answered| tell(|| answered.waiter.wake()))) {
            self.wakes.thread();
        }
    }

    /// Polls the session, or has it polled again by whoever does so already. `wake` wakes those whose answers came.
    /// Whether it has ended.
    fn poll(&self, wake: impl Fn(Vec<Answered>)) -> bool {
        loop {
            let Some(mut tasks) = self.tasks.try_lock() else {
                self.again.store(true, Ordering::SeqCst);
                // Who had the lock may have looked before that.
                if self.tasks.try_lock().is_none() {
                    return false;
                }
                continue;
            };
            self.again.store(false, Ordering::SeqCst);
            ANSWERED.set(Some(Vec::new()));
            let ended = self.poll_tasks(&mut tasks);
            self.note_connection();
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

    /// Polls every task; whether all have ended. One that panics takes the others along: the session is of no use any
    /// more.
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
            // Who sends what this poll misses sees this.
            self.looks.store(!looked, Ordering::SeqCst);
            if looked {
                timer = Timer::never();
                self.wake_handed();
            } else if !timer.will_fire() {
                timer.set_after(LOOK);
                // Has it wake this thread.
                let _ = Pin::new(&mut timer).poll(thread);
            }
            if self.poll(|answered| self.deliver(answered)) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        self.wake_handed();
    }

    /// Wakes those whose runtime is held up.
    fn wake_handed(&self) {
        let handed = std::mem::take(&mut *self.handed.lock());
        handed.iter().for_each(|batch| batch.wake());
    }

    /// Wakes waiters from the session's thread, which looks again soon.
    fn deliver(&self, mut answered: Vec<Answered>) {
        while let Some(Answered { waiter, runtime }) = answered.pop() {
            let of_runtime = |other: &mut Answered| match (&runtime, &other.runtime) {
                (Some(ours), Some(theirs)) => ours.id() == theirs.id(),
                _ => false,
            };
            let mut batch: Vec<Waker> =
                answered.extract_if(.., of_runtime).map(|other| other.waiter).collect();
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

/// The turn of a runtime to poll a session. One that ends before lets the session be polled as well.
struct PollTurn(Arc<Driver>);

impl Drop for PollTurn {
    fn drop(&mut self) {
        *self.0.sender.lock() = None;
        self.0.poll_for_thread();
    }
}

/// A client, and what drives it.
#[derive(Clone)]
pub(crate) struct Driven {
    pub(crate) client: Client,
    pub(crate) driver: Arc<Driver>,
}

/// Has the reactor start its thread. Where that cannot be started this panics, once; inside `block_on` it would panic
/// again while the stack unwinds, which ends the process.
fn start_reactor() {
    let _ = Pin::new(&mut Timer::after(LOOK)).poll(&mut Context::from_waker(Waker::noop()));
}

/// Opens a session on a thread of its own, which drives it until it has ended.
///
/// # Cancel safety
///
/// Cancel-safe: a session that nobody waits for is closed, or not opened.
///
/// # Panics
///
/// When the client library does.
pub(crate) async fn open(
    connect: impl Future<Output = Result<Client, Error>> + Send + 'static,
) -> Result<Driven, Error> {
    let (mut tell, opened) = oneshot::channel();
    let drive = move || {
        let driver = Driver::new();
        let _spawns_here = spawns_core::enter(&*driver);
        start_reactor();
        async_io::block_on(async {
            let opened = tokio::select! {
                opened = connect => opened,
                () = tell.closed() => return,
            };
            if let Ok(client) = &opened {
                driver.connection.get_or_init(|| client.state_watcher());
            }
            // One that nobody takes is closed by being dropped.
            drop(tell.send(opened.map(|client| Driven { client, driver: Arc::clone(&driver) })));
            driver.run().await;
        });
    };
    let failed = |what: String| Err(Error::UnexpectedError(what));
    match std::thread::Builder::new().name("dlock-zk".to_owned()).spawn(drive) {
        Ok(thread) => match opened.await {
            Ok(opened) => opened,
            // It ends without an answer when it panics, as where there is no thread for the reactor.
            Err(_) => thread.join().map_or_else(
                |panic| resume_unwind(panic),
                |()| failed("the session's thread has ended".to_owned()),
            ),
        },
        Err(error) => failed(format!("no thread for the session could be started: {error}")),
    }
}
