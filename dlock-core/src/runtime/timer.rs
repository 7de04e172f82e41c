//! The timers of waits and requests, which are dlock's own.
//!
//! A runtime does not show whether it has timers, and a runtime without them panics when it is asked for one. So none
//! is asked, and timers go on when the caller's runtime is blocked or gone:
//!
//! ```text
//! polled                            timer of an engine           other timers
//! on a thread of dlock's own        that thread                  that thread
//! in another runtime, or in none    the thread for timers        the thread for timers
//! where tokio's clock is paused     the caller's, if the         the caller's
//!                                   backend is in this process
//! in a simulation                   the caller's                 the caller's
//! ```
//!
//! A runtime whose clock is paused, as in a test, has timers. The wakers that the thread for timers calls are the
//! callers', and a panic of a waker must not end it: they are guarded.

use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::runtime::Handle;
use tokio::task::coop::{Unconstrained, unconstrained};
use tokio::time::{Instant, Sleep};

use crate::guarded::Wakes;
use crate::runtime::tasks::Tasks;
use crate::runtime::threads;

/// The timers of one engine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timers {
    /// The runtime of the thread for timers; `None` if a simulation runs the keeper's tasks, whose callers have timers.
    runtime: Option<&'static Handle>,
    /// Is `true` if waits are measured with the caller's clock also while that is paused.
    in_process: bool,
}

impl Timers {
    pub(crate) fn new(tasks: &Tasks, in_process: bool) -> Self {
        let runtime = if tasks.are_given() { None } else { threads::of_timers().ok() };
        Self { runtime, in_process }
    }

    /// Returns the time by which waits are measured. Where servers are asked it is the machine's, which goes on while
    /// the caller's clock is paused.
    pub(crate) fn now(&self) -> Instant {
        // A paused clock would keep a request to a server from ever being late.
        match self.in_process || self.runtime.is_none() {
            true => Instant::now(),
            false => std::time::Instant::now().into(),
        }
    }

    pub(crate) fn sleep_until(&self, at: Instant) -> impl Future<Output = ()> + Send + use<> {
        wait(self.timer(at))
    }

    fn timer(&self, at: Instant) -> Sleep {
        // A thread of dlock's own has timers that are as good, and that it wakes itself.
        let is_foreign = !(threads::is_own() || self.in_process && threads::is_time_virtual());
        timer_of(self.runtime.filter(|_| is_foreign), at)
    }

    pub(crate) fn sleep(&self, length: Duration) -> impl Future<Output = ()> + Send + use<> {
        self.sleep_until(later(self.now(), length))
    }

    /// Awaits `future` until `end`; `None` if the time is up first.
    pub(crate) fn until<'a, T>(
        &'a self,
        end: Instant,
        future: impl Future<Output = T> + 'a,
    ) -> impl Future<Output = Option<T>> + 'a {
        // An async block around it would have room for `future` twice.
        bounded(|| true, move || self.timer(end), future)
    }

    /// Awaits `future` for `limit`, counted from the first poll that does not resolve it; `None` if the time is up
    /// first.
    pub(crate) fn within<'a, T>(
        &'a self,
        limit: Duration,
        future: impl Future<Output = T> + 'a,
    ) -> impl Future<Output = Option<T>> + 'a {
        bounded(|| true, move || self.timer(later(self.now(), limit)), future)
    }
}

/// Returns a timer of the thread for timers, or of the runtime that this is polled in, if that is dlock's own or has a
/// paused clock.
fn own(at: Instant) -> Sleep {
    let is_foreign = !threads::is_own() && !threads::is_time_virtual();
    timer_of(if is_foreign { threads::of_timers().ok() } else { None }, at)
}

/// Returns a timer of `runtime`, or of the runtime that this is polled in.
fn timer_of(runtime: Option<&'static Handle>, at: Instant) -> Sleep {
    // tokio makes the timer in the runtime that is entered, and panics if there is none.
    let _entered = runtime.map(Handle::enter);
    tokio::time::sleep_until(at)
}

/// Waits for `timer`.
async fn wait(timer: Sleep) {
    let (mut timer, mut wakes) = (pin!(timer), Wakes::default());
    std::future::poll_fn(|context| poll_guarded(timer.as_mut(), &mut wakes, context)).await;
}

/// Polls a timer, which calls the waker on the thread for timers. On dlock's own threads wakers are tokio's and need no
/// guard.
fn poll_guarded<T>(
    timer: Pin<&mut impl Future<Output = T>>,
    wakes: &mut Wakes,
    context: &mut Context<'_>,
) -> Poll<T> {
    if threads::is_own() {
        return timer.poll(context);
    }
    timer.poll(&mut Context::from_waker(wakes.of(context.waker())))
}

/// Returns the time `length` after `now`; 30 years after it if no clock goes so far.
fn later(now: Instant, length: Duration) -> Instant {
    now.checked_add(length).unwrap_or_else(|| now + Duration::from_secs(30 * 365 * 24 * 3_600))
}

/// Waits until `at`, on a timer of dlock's own: the caller's runtime need not have any.
///
/// # Cancel safety
///
/// May be dropped at any time.
pub async fn sleep_until(at: Instant) {
    wait(own(at)).await;
}

/// Waits for `length`, as [`sleep_until`] does.
///
/// # Cancel safety
///
/// May be dropped at any time.
pub async fn sleep(length: Duration) {
    wait(own(later(Instant::now(), length))).await;
}

/// Awaits `future` until `end`; `None` if the time is up first. The timer is dlock's own: the caller's runtime need not
/// have any, nor be there.
///
/// # Cancel safety
///
/// As that of `future`.
pub fn by_then<T>(end: Instant, future: impl Future<Output = T>) -> impl Future<Output = Option<T>> {
    bounded(|| true, move || own(end), future)
}

/// Awaits `future` until `end`, as [`by_then`] does, but looks at the time only in polls in which `watches` returns
/// `true`. In all others whoever polls does so, and there is no timer that would wake it.
///
/// # Cancel safety
///
/// As that of `future`.
pub fn by_then_if<T>(
    end: Instant,
    watches: impl FnMut() -> bool,
    future: impl Future<Output = T>,
) -> impl Future<Output = Option<T>> {
    bounded(watches, move || own(end), future)
}

/// Awaits `future` for `limit`, as [`by_then`] does. The time counts from the first poll that does not resolve it, by
/// the clock that is there then: a future may be polled elsewhere than it was made.
///
/// # Cancel safety
///
/// As that of `future`.
pub fn within<T>(limit: Duration, future: impl Future<Output = T>) -> impl Future<Output = Option<T>> {
    bounded(|| true, move || own(later(Instant::now(), limit)), future)
}

tokio::task_local! {
    static QUESTION_LIMIT: Duration;
}

/// Awaits the answer to a question for `limit`, as [`within`] does. The code that answers can read the limit by
/// [`question_limit`].
pub(crate) fn question<T>(
    limit: Duration,
    question: impl Future<Output = T>,
) -> impl Future<Output = Option<T>> {
    within(limit, QUESTION_LIMIT.scope(limit, question))
}

/// Returns how long the engine waits for the answer to the question that is polled here, such as
/// [`inspect`](crate::Backend::inspect); `None` if that is not known. A backend that asks several servers gives up
/// those that are silent before that.
#[must_use]
pub fn question_limit() -> Option<Duration> {
    QUESTION_LIMIT.try_with(|limit| *limit).ok()
}

/// Awaits `future` for as long as `timer` sleeps; `None` if the time is up first. The timer is made only if the future
/// does not resolve at once, which saves two looks at the clock, and `watches` returns `true`.
fn bounded<W: FnMut() -> bool, M: FnOnce() -> Sleep, F: Future>(
    watches: W,
    timer: M,
    future: F,
) -> Bounded<W, M, F> {
    Bounded { watches, timer: Some(timer), sleep: None, wakes: Wakes::default(), future }
}

pin_project! {
    /// A future with a bound. An async block would have room for the future twice.
    struct Bounded<W, M, F> {
        watches: W,
        timer: Option<M>,
        #[pin]
        sleep: Option<Unconstrained<Sleep>>,
        wakes: Wakes,
        #[pin]
        future: F,
    }
}

impl<W: FnMut() -> bool, M: FnOnce() -> Sleep, F: Future> Future for Bounded<W, M, F> {
    type Output = Option<F::Output>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        // The future comes first: an answer that is there counts, also if the time is up by now.
        if let Poll::Ready(output) = this.future.poll(context) {
            return Poll::Ready(Some(output));
        }
        if !(this.watches)() {
            return Poll::Pending;
        }
        if let Some(timer) = this.timer.take() {
            // Unconstrained: a future that uses up the task's budget must not keep the end of the time from being
            // noticed.
            this.sleep.set(Some(unconstrained(timer())));
        }
        let Some(sleep) = this.sleep.as_pin_mut() else { return Poll::Pending };
        poll_guarded(sleep, this.wakes, context).map(|()| None)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_time_is_up_or_the_future_is_first() {
        let hour = || tokio::time::sleep(Duration::from_secs(3_600));
        assert_eq!(bounded(|| true, || unreachable!("it resolves at once"), async { 7 }).await, Some(7));
        assert_eq!(bounded(|| true, hour, tokio::time::sleep(Duration::from_secs(1))).await, Some(()));
        assert_eq!(bounded(|| true, hour, std::future::pending::<()>()).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_is_not_looked_at_while_another_watches_it() {
        let (watches, mut timers) = (std::cell::Cell::new(false), 0);
        let timer = || {
            timers += 1;
            tokio::time::sleep(Duration::from_millis(1))
        };
        let mut bounded = pin!(bounded(|| watches.get(), timer, std::future::pending::<()>()));
        let mut poll = || bounded.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll().is_pending());
        watches.set(true);
        assert!(poll().is_pending(), "the timer begins");
        tokio::time::advance(Duration::from_secs(1)).await;
        watches.set(false);
        assert!(poll().is_pending(), "the time is up, and nobody here watches it");
        watches.set(true);
        assert_eq!(poll(), Poll::Ready(None));
        assert_eq!(timers, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_bound_is_measured_with_the_clock_of_the_timer_that_keeps_it() {
        tokio::time::advance(Duration::from_secs(3_600)).await;
        let timers = Timers { runtime: Some(threads::of_timers().unwrap()), in_process: false };
        assert_eq!(timers.within(Duration::from_millis(20), std::future::pending::<()>()).await, None);
        timers.sleep(Duration::from_millis(20)).await;
        // It is made here, and polled where time is not paused.
        let bounded = within(Duration::from_millis(20), std::future::pending::<()>());
        let elsewhere = crate::runtime::tasks::runtime().unwrap().spawn(bounded);
        assert_eq!(elsewhere.await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_future_is_polled_once_for_each_time_that_it_is_woken() {
        let mut polls = 0;
        let twice = std::future::poll_fn(|context| {
            polls += 1;
            context.waker().wake_by_ref();
            if polls < 2 { Poll::Pending } else { Poll::Ready(()) }
        });
        let mut bounded = pin!(bounded(|| true, || tokio::time::sleep(Duration::from_secs(60)), twice));
        let mut poll = || bounded.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll().is_pending() && poll().is_ready());
    }
}
