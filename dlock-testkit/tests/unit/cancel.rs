//! Futures that are dropped.

use std::cell::Cell;
use std::future::poll_fn;

use dlock_testkit::cancel::{Cut, Leave, cut_at, every_await_point};

#[tokio::test]
async fn every_await_point_is_reached_once_in_each_way() {
    let reached = Cell::new(0);
    let make = || async {
        for _ in 0..3 {
            reached.set(reached.get() + 1);
            tokio::task::yield_now().await;
        }
        "done"
    };
    let mut cuts = Vec::new();
    let mut outputs = Vec::new();
    let count = every_await_point(make, async |cut: Cut, output| match output {
        Some(output) => outputs.push(output),
        None => cuts.push(cut),
    })
    .await;
    assert_eq!(count, cuts.len());
    assert_eq!(cuts.iter().map(|cut| cut.polls).collect::<Vec<_>>(), [0, 0, 1, 1, 2, 2, 3, 3]);
    assert_eq!(outputs, ["done"; 2]);
    // None, one, two and three of the three steps, twice each, and all of them twice.
    assert_eq!(reached.get(), 2 * (1 + 2 + 3) + 2 * 3);
}

#[tokio::test(start_paused = true)]
async fn a_future_that_is_never_woken_is_dropped_all_the_same() {
    let cut = Cut { polls: 1, leave: Leave::WhenWoken };
    assert_eq!(cut_at(std::future::pending::<()>(), cut).await, None);
}

#[tokio::test]
async fn leaving_when_woken_lets_the_event_happen_and_does_not_look_at_it() {
    let (tell, told) = tokio::sync::oneshot::channel();
    let polls = Cell::new(0);
    let mut told = std::pin::pin!(told);
    let future = poll_fn(|cx| {
        polls.set(polls.get() + 1);
        told.as_mut().poll(cx)
    });
    let cut = cut_at(future, Cut { polls: 1, leave: Leave::WhenWoken });
    let (output, sent) = tokio::join!(cut, async { tell.send(7) });
    assert!(output.is_none() && sent.is_ok());
    assert_eq!(polls.get(), 1);
    assert_eq!(told.await, Ok(7));
}
