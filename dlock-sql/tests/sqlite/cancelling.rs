//! Whatever is dropped, at whatever await, leaves nothing behind.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use dlock_core::{Backend, Claim};

use crate::support::{Site, busy, claim, granted, until};

/// Polls a future so often at the most, and then drops it.
struct AtMost<F>(Pin<Box<F>>, u32);

impl<F: Future> Future for AtMost<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.1 == 0 {
            return Poll::Ready(None);
        }
        self.1 -= 1;
        match self.0.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if self.1 == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }
}

fn at_most<F: Future>(polls: u32, future: F) -> AtMost<F> {
    AtMost(Box::pin(future), polls)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_cancelled_acquires_leave_no_lock_when_the_background_has_ended() {
    let site = Site::new();
    let locks = dlock_core::Locks::new(site.backend().await);
    let mut cancelled_after = [0; 8];
    let tasks: Vec<_> = (0..20)
        .map(|task| {
            let locks = locks.clone();
            tokio::spawn(async move {
                let mut cancelled = [0; 8];
                for n in 0..500 {
                    // Half of them meet others at the same key.
                    let key = if n % 2 == 0 { format!("k{task}_{n}") } else { format!("shared{}", n % 16) };
                    let polls = n / 2 % 8;
                    if at_most(polls, locks.lock(key).acquire()).await.is_none() {
                        cancelled[polls as usize] += 1;
                    }
                    tokio::task::yield_now().await;
                }
                cancelled
            })
        })
        .collect();
    for task in tasks {
        for (sum, n) in cancelled_after.iter_mut().zip(task.await.unwrap()) {
            *sum += n;
        }
    }
    until("the end of the background", async || locks.stats().background == 0).await;
    assert_eq!(site.held().await, 0);
    // Otherwise no await point inside an attempt was met.
    assert!(cancelled_after[..4].iter().all(|n| *n > 100), "{cancelled_after:?}");
    assert_eq!(locks.stats().abandoned, 0);
}

#[tokio::test]
async fn a_withdrawal_follows_the_attempt_that_was_dropped_before_it() {
    let site = Site::new();
    let backend = site.backend().await;
    let mut taken_anyway = 0;
    for n in 0..1_000 {
        let mut mine = claim(&backend, &format!("k{n}"), Duration::from_secs(30)).await;
        let polls = 1 + n % 3;
        if at_most(polls, mine.attempt()).await.is_none() {
            assert!(!mine.is_clean());
        }
        // Dropped midway as well, and called again.
        let _ = at_most(n % 4, mine.withdraw()).await;
        if mine.withdraw().await.unwrap() == dlock_core::backend::Withdrawal::REMOVED {
            taken_anyway += 1;
        }
        assert!(mine.is_clean());
    }
    assert_eq!(site.held().await, 0);
    assert!(taken_anyway > 100, "no dropped attempt took effect: {taken_anyway}");
}

#[tokio::test]
async fn an_attempt_after_a_dropped_one_adopts_what_that_took() {
    let site = Site::new();
    let backend = site.backend().await;
    for n in 0..200 {
        let key = format!("k{n}");
        let mut mine = claim(&backend, &key, Duration::from_secs(30)).await;
        let _ = at_most(1 + n % 3, mine.attempt()).await;
        let _ = granted(mine.attempt().await.unwrap());
        assert_eq!(site.held().await, i64::from(n) + 1);
    }
}

#[tokio::test]
async fn a_dropped_renewal_does_no_harm() {
    let site = Site::new();
    let backend = site.backend().await;
    let mut mine = claim(&backend, "k", Duration::from_secs(30)).await;
    let _ = granted(mine.attempt().await.unwrap());
    for n in 0..500 {
        let _ = at_most(n % 3, mine.renew()).await;
    }
    assert_eq!(mine.renew().await.unwrap(), dlock_core::backend::Renewed::Extended);
    assert_eq!(mine.withdraw().await.unwrap(), dlock_core::backend::Withdrawal::REMOVED);
    let held = || async { site.held().await };
    until("a renewal after the release changes nothing", async || held().await == 0).await;
}

#[tokio::test]
async fn a_caller_that_stands_still_in_the_middle_of_an_attempt_does_not_stop_the_others() {
    let site = Site::new();
    let backend = site.backend().await;
    let lease = Duration::from_secs(30);
    // As in a runtime whose only thread is blocked: sent, and not polled again. Now and then one poll is all it takes.
    let mut asleep = claim(&backend, "asleep", lease).await;
    let mut attempt = Box::pin(asleep.attempt());
    while poll_once(attempt.as_mut()).await.is_some() {
        drop(attempt);
        let _ = asleep.withdraw().await.unwrap();
        attempt = Box::pin(asleep.attempt());
    }
    let mut others = claim(&backend, "others", lease).await;
    let _ = granted(others.attempt().await.unwrap());
    let _ = others.withdraw().await.unwrap();
    let _ = granted(attempt.await.unwrap());
}

#[tokio::test]
async fn questions_that_nobody_polls_any_more_keep_no_connection_from_others() {
    let site = Site::new();
    let (backend, lease) = (site.backend().await, Duration::from_secs(30));
    let mut theirs = claim(&backend, "k", lease).await;
    let _ = granted(theirs.attempt().await.unwrap());
    let key = dlock_core::Key::new("k").unwrap();
    let mut asleep = Vec::new();
    // Each on the next of the connections for reading. Now and then the answer is there already.
    for pauses in 0..2 {
        'again: for _ in 0..5 {
            let mut question = Box::pin(backend.inspect(&key));
            for _ in 0..pauses {
                if poll_once(question.as_mut()).await.is_some() {
                    continue 'again;
                }
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
            if poll_once(question.as_mut()).await.is_none() {
                asleep.push(question);
                break;
            }
        }
    }
    let mut ours = claim(&backend, "k", lease).await;
    for _ in 0..2 {
        let busy = busy(ours.attempt().await.unwrap());
        assert!(busy.holder.is_some(), "who has it is read");
    }
    for question in asleep {
        assert!(question.await.unwrap().is_some());
    }
}

/// Polls once.
async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
    std::future::poll_fn(|context| {
        Poll::Ready(match future.as_mut().poll(context) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}
