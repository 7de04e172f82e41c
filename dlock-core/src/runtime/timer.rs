//! The timers of waits and requests, which are dlock's own.
//!
//! A runtime does not tell whether it has timers, and one without them panics when it is asked for one. So none is
//! asked: timers run on a thread of dlock's own, wherever callers poll their futures, and go on when the caller's
//! runtime is blocked or gone. What waits on another thread of dlock's own has that one's timers. Only where the
//! caller's clock is not the machine's, as in a test that pauses it, are they the caller's: such a runtime has timers.
//! The wakers that the thread calls are the callers', and a panic of one must not end it: they are guarded.

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

/// Where the timers of one engine run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timers {
    /// That of the thread for timers; `None` where a simulation runs the keeper's tasks, whose callers have timers.
    runtime: Option<&'static Handle>,
    /// Whether waits are measured with the caller's clock where that is paused.
    in_process: bool,
}

impl Timers {
    pub(crate) fn new(tasks: &Tasks, in_process: bool) -> Self {
        let runtime = if tasks.are_given() { None } else { threads::of_timers().ok() };
        Self { runtime, in_process }
    }

    /// The time that waits are measured with: the caller's, or where servers are asked the machine's, which goes on
    /// when the caller's is paused.
    pub(crate) fn now(&self) -> Instant {
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

    /// Awaits `future` until then; `None` when the time is up first.
    pub(crate) fn until<'a, T>(
        &'a self,
        end: Instant,
        future: impl Future<Output = T> + 'a,
    ) -> impl Future<Output = Option<T>> + 'a {
        // No async block around it, which would have room for `future` twice.
        bounded(move || self.timer(end), future)
    }

    /// Awaits `future` for so long, from when it first does not resolve; `None` when the time is up first.
    pub(crate) fn within<'a, T>(
        &'a self,
        limit: Duration,
        future: impl Future<Output = T> + 'a,
    ) -> impl Future<Output = Option<T>> + 'a {
        bounded(move || self.timer(later(self.now(), limit)), future)
    }
}

/// A timer of the thread for timers, or of the caller's where that is dlock's own too.
fn own(at: Instant) -> Sleep {
    let is_foreign = !threads::is_own() && !threads::is_time_virtual();
    timer_of(if is_foreign { threads::of_timers().ok() } else { None }, at)
}

/// A timer of `runtime`, or of the one that this is polled in.
fn timer_of(runtime: Option<&'static Handle>, at: Instant) -> Sleep {
    let _entered = runtime.map(Handle::enter);
    tokio::time::sleep_until(at)
}

/// Waits for `timer`.
async fn wait(timer: Sleep) {
    let (mut timer, mut wakes) = (pin!(timer), Wakes::default());
    std::future::poll_fn(|context| poll_guarded(timer.as_mut(), &mut wakes, context)).await;
}

/// Polls a timer, which calls the waker on the thread for timers. On dlock's own threads wakers are tokio's.
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

/// So long after `now`; 30 years where no clock goes so far.
fn later(now: Instant, length: Duration) -> Instant {
    now.checked_add(length).unwrap_or_else(|| now + Duration::from_secs(30 * 365 * 24 * 3_600))
}

/// Waits until then, on a timer of dlock's own: the caller's runtime need not have any.
///
/// # Cancel safety
///
/// May be dropped at any time.
pub async fn sleep_until(at: Instant) {
    wait(own(at)).await;
}

/// Waits for so long, as [`sleep_until`] does.
///
/// # Cancel safety
///
/// May be dropped at any time.
pub async fn sleep(length: Duration) {
    wait(own(later(Instant::now(), length))).await;
}

/// Awaits `future` until then; `None` when the time is up first. The timer is dlock's own: the caller's runtime need
/// not have any, nor be there.
///
/// # Cancel safety
///
/// As that of `future`.
pub fn by_then<T>(end: Instant, future: impl Future<Output = T>) -> impl Future<Output = Option<T>> {
    bounded(move || own(end), future)
}

/// Awaits `future` for so long, as [`by_then`] does. The time counts from the first poll that does not resolve it, by
/// the clock that is there then: a future may be polled elsewhere than it was made.
///
/// # Cancel safety
///
/// As that of `future`.
pub fn within<T>(limit: Duration, future: impl Future<Output = T>) -> impl Future<Output = Option<T>> {
    bounded(move || own(later(Instant::now(), limit)), future)
}

tokio::task_local! {
    static QUESTION_LIMIT: Duration;
}

/// Awaits the answer to a question for so long, as [`within`] does. What is asked may ask [`question_limit`].
pub(crate) fn question<T>(
    limit: Duration,
    question: impl Future<Output = T>,
) -> impl Future<Output = Option<T>> {
    within(limit, QUESTION_LIMIT.scope(limit, question))
}

/// How long the answer to the question that is polled here is waited for; `None` where that is not known.
pub(crate) fn question_limit() -> Option<Duration> {
    QUESTION_LIMIT.try_with(|limit| *limit).ok()
}

/// Awaits `future` for as long as `timer` sleeps; `None` when the time is up first. The timer is made when the
/// future does not resolve at once, which saves two looks at the clock where it does.
fn bounded<M: FnOnce() -> Sleep, F: Future>(timer: M, future: F) -> Bounded<M, F> {
    Bounded { timer: Some(timer), sleep: None, wakes: Wakes::default(), future }
}

pin_project! {
    /// A future with a bound. An async block would have room for it twice.
    struct Bounded<M, F> {
        timer: Option<M>,
        #[pin]
        sleep: Option<Unconstrained<Sleep>>,
        wakes: Wakes,
        #[pin]
        future: F,
    }
}

impl<M: FnOnce() -> Sleep, F: Future> Future for Bounded<M, F> {
    type Output = Option<F::Output>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Poll::Ready(output) = this.future.poll(context) {
            return Poll::Ready(Some(output));
        }
        if let Some(timer) = this.timer.take() {
            // A future that takes all of the task's budget must not keep the time from being noticed.
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
        assert_eq!(bounded(|| unreachable!("it resolves at once"), async { 7 }).await, Some(7));
        assert_eq!(bounded(hour, tokio::time::sleep(Duration::from_secs(1))).await, Some(()));
        assert_eq!(bounded(hour, std::future::pending::<()>()).await, None);
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
        let mut bounded = pin!(bounded(|| tokio::time::sleep(Duration::from_secs(60)), twice));
        let mut poll = || bounded.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll().is_pending() && poll().is_ready());
    }
}
