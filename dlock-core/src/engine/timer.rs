//! A bound that costs nothing where the answer is there at once.

use std::pin::pin;
use std::task::Poll;

use tokio::task::unconstrained;
use tokio::time::Sleep;

/// Awaits `future` for as long as `timer` sleeps; `None` when the time is up first. The timer is made when the
/// future does not resolve at once, which saves two looks at the clock where it does.
pub(super) async fn bounded<T>(timer: impl FnOnce() -> Sleep, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let (mut timer, mut sleep) = (Some(timer), pin!(None));
    std::future::poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        if let Some(timer) = timer.take() {
            // A future that takes all of the task's budget must not keep the time from being noticed.
            sleep.set(Some(unconstrained(timer())));
        }
        sleep.as_mut().as_pin_mut().map_or(Poll::Pending, |sleep| sleep.poll(context).map(|()| None))
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_time_is_up_or_the_future_is_first() {
        let hour = || tokio::time::sleep(Duration::from_secs(3_600));
        assert_eq!(bounded(|| unreachable!("it resolves at once"), async { 7 }).await, Some(7));
        assert_eq!(bounded(hour, tokio::time::sleep(Duration::from_secs(1))).await, Some(()));
        assert_eq!(bounded(hour, std::future::pending::<()>()).await, None);
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
