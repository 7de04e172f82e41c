//! The scheduler: one thread polls one task at a time, picked by the seed; time goes on when nobody can.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use dlock_core::keeper::Spawn;
use fastrand::Rng;
use tokio::time::{Instant, Sleep};

use crate::world::{Event, violate, world};

/// What a run is made of.
pub(crate) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The number of a task in its run.
pub(crate) type TaskId = usize;

/// A run whose tasks are polled more often than this spins.
const MOST_STEPS: u64 = 400_000;
/// A run that lasts longer than this does not end.
const MOST_TIME: u64 = 3_600_000_000_000;

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(0) };
}

/// Returns the true time in nanoseconds since the run began.
pub(crate) fn now() -> u64 {
    NOW.get()
}

/// A run begins.
pub(crate) fn reset() {
    NOW.set(0);
}

/// Sleeps for so many milliseconds of true time.
pub(crate) async fn sleep(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

/// The payload of every panic that the simulation throws on purpose. Thrown without a call of the panic hook.
pub(crate) struct Thrown;

pub(crate) fn throw() -> ! {
    std::panic::resume_unwind(Box::new(Thrown))
}

struct Slot {
    process: usize,
    future: Option<Task>,
    waker: Waker,
    awake: Arc<Awake>,
}

/// All tasks of a run.
pub(crate) struct Tasks {
    slots: Vec<Slot>,
    ready: Arc<Ready>,
    pub(crate) current: TaskId,
    rng: Rng,
    steps: u64,
    events: BTreeMap<(u64, u64), Event>,
    sent: u64,
}

#[derive(Default)]
struct Ready {
    list: Mutex<Vec<TaskId>>,
    main: Mutex<Option<Waker>>,
    polling: AtomicBool,
}

impl Ready {
    fn list(&self) -> MutexGuard<'_, Vec<TaskId>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn main(&self) -> MutexGuard<'_, Option<Waker>> {
        self.main.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Awake {
    id: TaskId,
    queued: AtomicBool,
    ready: Arc<Ready>,
}

impl Wake for Awake {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            self.ready.list().push(self.id);
            if !self.ready.polling.load(Ordering::Relaxed)
                && let Some(main) = &*self.ready.main()
            {
                main.wake_by_ref();
            }
        }
    }
}

impl Tasks {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            slots: Vec::new(),
            ready: Arc::default(),
            current: 0,
            rng: Rng::with_seed(seed),
            steps: 0,
            events: BTreeMap::new(),
            sent: 0,
        }
    }

    pub(crate) fn spawn(&mut self, process: usize, task: Task) -> TaskId {
        let id = self.slots.len();
        let awake = Arc::new(Awake { id, queued: AtomicBool::new(false), ready: Arc::clone(&self.ready) });
        let waker = Waker::from(Arc::clone(&awake));
        self.slots.push(Slot { process, future: Some(task), waker, awake });
        self.wake(id);
        id
    }

    fn wake(&self, id: TaskId) {
        self.slots[id].waker.wake_by_ref();
    }

    /// Wakes everything of a process that goes on after a pause.
    pub(crate) fn wake_all(&self, tasks: Vec<TaskId>) {
        self.ready.list().extend(tasks);
    }

    /// Takes the tasks of a process away, to be dropped by the caller.
    pub(crate) fn kill(&mut self, process: usize) -> Vec<Task> {
        let own = self.slots.iter_mut().filter(|slot| slot.process == process);
        own.filter_map(|slot| slot.future.take()).collect()
    }

    /// How many tasks of a process have not ended yet.
    pub(crate) fn alive(&self, process: usize) -> usize {
        self.slots.iter().filter(|slot| slot.process == process && slot.future.is_some()).count()
    }

    /// Has `event` happen after so many milliseconds; those of one moment happen in the order of these calls.
    pub(crate) fn after(&mut self, millis: u64, event: Event) {
        self.at(now() + millis * 1_000_000, event);
    }

    pub(crate) fn at(&mut self, at: u64, event: Event) {
        self.sent += 1;
        self.events.insert((at, self.sent), event);
    }

    fn due(&mut self) -> Option<Event> {
        match self.events.first_key_value() {
            Some((&(at, _), _)) if at <= now() => self.events.pop_first().map(|(_, event)| event),
            _ => None,
        }
    }

    fn has_due(&self) -> bool {
        self.events.first_key_value().is_some_and(|(&(at, _), _)| at <= now())
    }
}

/// What the scheduler does next.
enum Next {
    Poll(TaskId, Task, Waker),
    Happen(Event),
    Nothing,
}

fn next() -> Next {
    world(|w| {
        w.tasks.steps += 1;
        loop {
            let count = w.tasks.ready.list().len();
            let due = w.tasks.has_due();
            if count == 0 || due && w.tasks.rng.usize(..=count) == 0 {
                return w.tasks.due().map_or(Next::Nothing, Next::Happen);
            }
            let at = w.tasks.rng.usize(..count);
            let id = w.tasks.ready.list().swap_remove(at);
            let slot = &mut w.tasks.slots[id];
            if slot.future.is_some()
                && let Some(stalled) = w.processes.get_mut(slot.process).and_then(|p| p.stalled.as_mut())
            {
                stalled.push(id);
                continue;
            }
            slot.awake.queued.store(false, Ordering::Relaxed);
            if let Some(future) = slot.future.take() {
                w.tasks.current = id;
                return Next::Poll(id, future, slot.waker.clone());
            }
        }
    })
}

/// One step of the run. Whether there was anything to do.
fn step() -> bool {
    match next() {
        Next::Nothing => return false,
        Next::Happen(event) => event.happen(),
        Next::Poll(id, mut future, waker) => {
            let polled =
                catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut Context::from_waker(&waker))));
            if let Err(payload) = &polled
                && !payload.is::<Thrown>()
            {
                let text = payload.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("?");
                violate(format!("a panic that nobody asked for: {text}"));
            }
            let mut future = Some(future);
            world(|w| {
                w.tasks.current = usize::MAX;
                let slot = &mut w.tasks.slots[id];
                let alive = w.processes.get(slot.process).is_none_or(|p| p.alive);
                if matches!(polled, Ok(Poll::Pending)) && alive {
                    slot.future = future.take();
                }
            });
            // A future that panicked or ended is dropped outside of the world, since its drop may call into it.
            let _ = catch_unwind(AssertUnwindSafe(move || drop(future)));
        }
    }
    true
}

/// Runs the world until `done`, or until a rule is broken.
pub(crate) struct Scheduler {
    base: Instant,
    timer: Pin<Box<Sleep>>,
    done: fn() -> bool,
}

impl Scheduler {
    pub(crate) fn new(done: fn() -> bool) -> Self {
        Self { base: Instant::now(), timer: Box::pin(tokio::time::sleep(Duration::ZERO)), done }
    }
}

impl Future for Scheduler {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        NOW.set(u64::try_from(this.base.elapsed().as_nanos()).unwrap_or(u64::MAX));
        let ready = world(|w| Arc::clone(&w.tasks.ready));
        *ready.main() = Some(cx.waker().clone());
        ready.polling.store(true, Ordering::Relaxed);
        loop {
            if (this.done)() || world(|w| w.violation.is_some()) {
                return Poll::Ready(());
            }
            if !step() {
                break;
            }
            if world(|w| w.tasks.steps > MOST_STEPS) {
                violate("the run spins".into());
            }
        }
        if now() > MOST_TIME {
            violate("the run does not end".into());
            return Poll::Ready(());
        }
        ready.polling.store(false, Ordering::Relaxed);
        if let Some(at) = world(|w| w.tasks.events.first_key_value().map(|(&(at, _), _)| at)) {
            this.timer.as_mut().reset(this.base + Duration::from_nanos(at));
            if this.timer.as_mut().poll(cx).is_ready() {
                cx.waker().wake_by_ref();
            }
        }
        Poll::Pending
    }
}

/// Where the keeper's tasks of one process go.
#[derive(Debug)]
pub(crate) struct KeeperOf(pub(crate) usize);

impl Spawn for KeeperOf {
    fn spawn(&self, task: Task) {
        spawn(self.0, task);
    }
}

/// Starts a task of a process; nothing happens when the process is gone.
pub(crate) fn spawn(process: usize, task: Task) -> Option<TaskId> {
    let alive = world(|w| w.processes.get(process).is_none_or(|p| p.alive));
    alive.then(|| world(|w| w.tasks.spawn(process, task)))
}
