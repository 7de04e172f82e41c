//! Wakers that do more than to wake.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use dlock_core::backend::{sleep, within};
use dlock_core::{ErrorKind, Guard, Locks, ManualClock, Memory, Result, Wait};
use pollster::block_on;

use super::{eventually, must_end};

const LEASE: Duration = Duration::from_secs(30);

type Task = Pin<Box<dyn Future<Output = Result<Guard>> + Send>>;

/// A task that is cancelled by being woken, as an executor does that has ended: the future is dropped by `wake` itself.
struct Cancelled(Mutex<Option<Task>>);

impl Wake for Cancelled {
    fn wake(self: Arc<Self>) {
        let task = self.0.lock().unwrap().take();
        drop(task);
    }
}

fn cancelled_when_woken(task: Task) -> Arc<Cancelled> {
    let cancelled = Arc::new(Cancelled(Mutex::new(Some(task))));
    let waker = Waker::from(Arc::clone(&cancelled));
    let mut task = cancelled.0.lock().unwrap().take().unwrap();
    assert!(task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    *cancelled.0.lock().unwrap() = Some(task);
    cancelled
}

fn waiter(locks: &Locks) -> Task {
    let lock = locks.lock("k").with_wait(Wait::Forever);
    Box::pin(async move { lock.acquire().await })
}

#[test]
fn a_waiter_may_be_dropped_by_its_own_waker() {
    must_end(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _entered = runtime.enter();
        let locks = Locks::new(Memory::new());
        let held = runtime.block_on(locks.lock("k").acquire()).unwrap();
        let waiters: Vec<_> = (0..3).map(|_| cancelled_when_woken(waiter(&locks))).collect();
        let patient = waiter(&locks);
        // Each that is woken leaves, and wakes the next.
        runtime.block_on(held.release()).unwrap();
        let guard = runtime.block_on(async { tokio::time::timeout(LEASE, patient).await }).unwrap().unwrap();
        runtime.block_on(guard.release()).unwrap();
        assert!(waiters.iter().all(|waiter| waiter.0.lock().unwrap().is_none()));
    });
}

#[test]
fn a_task_that_listens_may_be_dropped_by_its_own_waker() {
    must_end(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _entered = runtime.enter();
        let memory = Memory::new();
        let (ours, theirs) = (Locks::new(memory.clone()), Locks::new(memory.clone()));
        let held = runtime.block_on(theirs.lock("k").acquire()).unwrap();
        let listener = cancelled_when_woken(waiter(&ours));
        runtime.block_on(held.release()).unwrap();
        assert!(listener.0.lock().unwrap().is_none());
        assert_eq!(memory.held(), 0);
    });
}

/// A waker that panics, as that of an event loop that was closed.
struct Panicking;

const STRIKE: &str = "a test's own panic";

impl Wake for Panicking {
    fn wake(self: Arc<Self>) {
        std::panic::panic_any(STRIKE)
    }
}

fn hide_strikes() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let shown = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if info.payload().downcast_ref::<&str>() != Some(&STRIKE) {
                shown(info);
            }
        }));
    });
}

/// Polls once with a waker that panics.
fn poll_with_panicking_waker<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    let waker = Waker::from(Arc::new(Panicking));
    future.poll(&mut Context::from_waker(&waker))
}

#[test]
fn a_waker_that_panics_takes_no_renewal_from_other_locks() {
    hide_strikes();
    let clock = ManualClock::stopped();
    let memory = Memory::with_clock(clock.clock());
    let locks = Locks::new(memory.clone());
    let ending = locks.lock("ending").with_max_hold(LEASE).with_lease(LEASE);
    let (ending, others) = block_on(async {
        let mut others = Vec::new();
        for n in 0..4 {
            others.push(locks.lock(format!("{n}")).with_lease(LEASE).acquire().await.unwrap());
        }
        (ending.acquire().await.unwrap(), others)
    });
    let mut lost = Box::pin(ending.lost());
    assert!(poll_with_panicking_waker(lost.as_mut()).is_pending());
    for _ in 1..=4 {
        clock.advance(LEASE / 3);
        let is_renewed = |guard: &Guard| guard.remaining().is_some_and(|left| left > LEASE * 9 / 10);
        eventually("renewals", || others.iter().all(is_renewed));
    }
    others.iter().for_each(|guard| guard.check().unwrap());
    assert!(poll_with_panicking_waker(lost.as_mut()).is_ready());
    drop(lost);
    drop((ending, others));
    eventually("the releases", || memory.held() == 0);
}

#[test]
fn a_waker_that_panics_takes_no_timer_from_others() {
    hide_strikes();
    let (tell, told) = std::sync::mpsc::channel();
    let locks = Locks::new(Memory::new());
    let held = block_on(locks.lock("k").acquire()).unwrap();
    let bare = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let entered = bare.enter();
    let mut slept = Box::pin(sleep(Duration::from_millis(10)));
    let mut in_time = Box::pin(within(Duration::from_millis(10), std::future::pending::<()>()));
    let mut drained = Box::pin(locks.drain(Duration::from_millis(10)));
    assert!(poll_with_panicking_waker(slept.as_mut()).is_pending());
    assert!(poll_with_panicking_waker(in_time.as_mut()).is_pending());
    assert!(poll_with_panicking_waker(drained.as_mut()).is_pending());
    drop(entered);
    let others = Locks::new(Memory::new());
    std::thread::spawn(move || {
        // Later than those.
        block_on(sleep(Duration::from_millis(50)));
        let _held = block_on(others.lock("k").acquire()).unwrap();
        let lock = others.lock("k").with_wait(Duration::from_millis(10));
        let _ = tell.send(block_on(lock.acquire()).unwrap_err().kind());
    });
    let kind = told.recv_timeout(Duration::from_secs(60)).expect("there are timers");
    assert_eq!(kind, ErrorKind::TimedOut);
    assert!(poll_with_panicking_waker(slept.as_mut()).is_ready());
    assert!(poll_with_panicking_waker(in_time.as_mut()).is_ready());
    assert!(poll_with_panicking_waker(drained.as_mut()).is_ready());
    drop(held);
}

#[test]
fn guards_are_dropped_and_released_whatever_the_wakers_of_watchers_do() {
    hide_strikes();
    let memory = Memory::new();
    let locks = Locks::new(memory.clone());
    let (dropped, released) = block_on(async {
        (locks.lock("a").acquire().await.unwrap(), locks.lock("b").acquire().await.unwrap())
    });
    let views = [dropped.held(), released.held()];
    let mut watchers = views.each_ref().map(|held| Box::pin(held.ended()));
    for watcher in &mut watchers {
        assert!(poll_with_panicking_waker(watcher.as_mut()).is_pending());
    }
    drop(dropped);
    block_on(released.release()).unwrap();
    eventually("the releases", || memory.held() == 0 && locks.stats().background == 0);
    for watcher in &mut watchers {
        assert!(poll_with_panicking_waker(watcher.as_mut()).is_ready());
    }
}

#[test]
fn the_next_in_line_gets_its_turn_though_the_waker_before_it_panics() {
    hide_strikes();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _entered = runtime.enter();
    let locks = Locks::new(Memory::new());
    let held = runtime.block_on(locks.lock("k").acquire()).unwrap();
    let (mut first, mut second) = (waiter(&locks), waiter(&locks));
    for task in [&mut first, &mut second] {
        assert!(poll_with_panicking_waker(task.as_mut()).is_pending());
    }
    runtime.block_on(held.release()).unwrap();
    drop(first);
    let guard = runtime.block_on(async { tokio::time::timeout(LEASE, second).await }).unwrap().unwrap();
    drop(guard);
    runtime.block_on(locks.shutdown(LEASE)).unwrap();
}
