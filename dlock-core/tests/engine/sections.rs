//! Sections that are used again after a run was dropped midway.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use dlock_core::{Locks, Memory, Section};

/// Polls up to `polls` times, as a timeout would leave it; whether it was done by then.
async fn polled<F: Future>(future: F, polls: usize) -> bool {
    let mut future = pin!(future);
    for _ in 0..polls {
        if future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            return true;
        }
        tokio::task::yield_now().await;
    }
    false
}

#[tokio::test]
async fn a_section_that_was_dropped_at_any_await_runs_the_next_body_under_the_lock() {
    let memory = Memory::new();
    // Requests have await points, on the way there and back.
    memory.faults().set_stepping(true);
    let (locks, others) = (Locks::new(memory.clone()), Locks::new(memory));
    let mut dropped = 0;
    for polls in 1..100 {
        let mut section = Section::new(locks.lock("k"));
        if polled(section.run(pin!(tokio::task::yield_now())), polls).await {
            break;
        }
        dropped += 1;
        let held = section.run(pin!(others.inspect("k"))).await.unwrap().unwrap();
        assert!(held.is_some(), "without the lock, after {polls} polls");
    }
    assert!((3..99).contains(&dropped), "the release had no await point: {dropped}");
}

#[tokio::test]
async fn a_body_that_is_polled_before_the_lock_was_asked_for_waits_for_it() {
    let memory = Memory::new();
    memory.faults().set_stepping(true);
    let (locks, others) = (Locks::new(memory.clone()), Locks::new(memory));
    let mut section = Section::new(locks.lock("k"));
    let mut held = None;
    let mut body = pin!(others.inspect("k"));
    std::future::poll_fn(|cx| {
        section.poll_body(cx, &mut |cx| match body.as_mut().poll(cx) {
            Poll::Ready(holder) => {
                held = holder.unwrap();
                Poll::Ready(())
            }
            Poll::Pending => Poll::Pending,
        })
    })
    .await
    .unwrap();
    assert!(held.is_some());
    section.leave().await;
    assert!(others.inspect("k").await.unwrap().is_none());
}
