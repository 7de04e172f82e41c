//! Drops futures in the middle, at every await point they have.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

/// How a future is left once it has been polled often enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Leave {
    /// At once: whatever it waits for is still under way.
    AtOnce,
    /// When it is woken, without polling it again: what it waited for has come, and nobody looks at it any more.
    WhenWoken,
}

/// Where a future was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cut {
    /// After this many polls.
    pub polls: usize,
    /// How it was left.
    pub leave: Leave,
}

/// How long a future that is to be left when it is woken may take to be woken.
const NEVER_WOKEN: Duration = Duration::from_secs(5);

/// Polls `future` at most `polls` times, each time when it is woken, and drops it at once. Its output, if it was done
/// before.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use dlock_testkit::cancel::poll_n_then_drop;
///
/// assert_eq!(poll_n_then_drop(async { 7 }, 0).await, None, "never polled");
/// assert_eq!(poll_n_then_drop(async { 7 }, 1).await, Some(7));
/// assert_eq!(poll_n_then_drop(std::future::pending::<()>(), 1).await, None);
/// # }
/// ```
///
/// # Cancel safety
///
/// Dropping it drops the future.
pub async fn poll_n_then_drop<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    cut_at(future, Cut { polls, leave: Leave::AtOnce }).await
}

/// Polls `future`, each time when it is woken, and drops it where `cut` says. Its output, if it was done before.
///
/// # Cancel safety
///
/// Dropping it drops the future.
pub async fn cut_at<F: Future>(future: F, cut: Cut) -> Option<F::Output> {
    let mut future = pin!(future);
    match cut.leave {
        Leave::AtOnce => polled(future, cut.polls).await,
        // One poll more than it is given tells that it was woken. A future that waits for something that never comes is
        // dropped all the same.
        Leave::WhenWoken => {
            let mut polls = 0;
            let run = poll_fn(|cx| {
                if polls >= cut.polls {
                    return Poll::Ready(None);
                }
                polls += 1;
                future.as_mut().poll(cx).map(Some)
            });
            tokio::time::timeout(NEVER_WOKEN, run).await.unwrap_or(None)
        }
    }
}

/// Polls `future` at most `polls` times, each time when it is woken, and leaves it as it is then. Its output, if it was
/// done before.
///
/// # Cancel safety
///
/// May be dropped and called again: `future` is then where the last poll left it.
pub async fn polled<F: Future + ?Sized>(mut future: Pin<&mut F>, polls: usize) -> Option<F::Output> {
    let mut left = polls;
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Runs a future again and again, dropping it one await point later each time, until it gets to its end. Returns how
/// often it was dropped.
///
/// Each await point is tried in both ways of [`Leave`]. `after_each` gets the place of the cut, and the output once
/// the future was done before it, and checks that nothing was left behind. Run it on a current-thread runtime: what
/// goes on in the background then cannot change how often the future is polled.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use dlock_testkit::cancel::every_await_point;
///
/// let twice = || async {
///     tokio::task::yield_now().await;
///     tokio::task::yield_now().await;
/// };
/// // Before the first poll, at the first yield and at the second, each in two ways.
/// assert_eq!(every_await_point(twice, async |_cut, _output| {}).await, 6);
/// # }
/// ```
///
/// # Panics
///
/// When the future is not done after 10 000 polls.
///
/// # Cancel safety
///
/// Dropping it drops the future of the moment.
pub async fn every_await_point<F: Future>(
    mut make: impl FnMut() -> F,
    mut after_each: impl AsyncFnMut(Cut, Option<F::Output>),
) -> usize {
    let mut cuts = 0;
    for polls in 0..10_000 {
        let mut done = true;
        for leave in [Leave::AtOnce, Leave::WhenWoken] {
            let cut = Cut { polls, leave };
            let output = cut_at(make(), cut).await;
            if output.is_none() {
                cuts += 1;
                done = false;
            }
            after_each(cut, output).await;
        }
        if done {
            return cuts;
        }
    }
    panic!("the future was not done after 10000 polls");
}
