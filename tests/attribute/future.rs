//! The future of an annotated function: `Send` when the plain one is, and not much larger.
#![deny(warnings, clippy::pedantic)]
#![allow(clippy::large_types_passed_by_value, reason = "it is what is measured")]

use crate::support::on_memory;
use dlock::{Error, distributed_lock};
use std::cell::RefCell;
use std::rc::Rc;

async fn plain(data: [u8; 4096]) -> Result<u8, Error> {
    tokio::task::yield_now().await;
    Ok(data[0])
}

#[distributed_lock(key = "one", backend = "memory")]
async fn locked(data: [u8; 4096]) -> Result<u8, Error> {
    tokio::task::yield_now().await;
    Ok(data[0])
}

#[distributed_lock(key = "two", backend = "memory")]
#[distributed_lock(key = "one", backend = "memory")]
async fn locked_twice(data: [u8; 4096]) -> Result<u8, Error> {
    tokio::task::yield_now().await;
    Ok(data[0])
}

#[distributed_lock(key = "one", backend = "memory", on_busy = Ok(data[1]))]
async fn locked_or_busy(data: [u8; 4096]) -> Result<u8, Error> {
    tokio::task::yield_now().await;
    Ok(data[0])
}

#[distributed_lock(key = "one", backend = "memory", segments = 2, on_busy = Ok(data[1]))]
async fn in_segments(data: [u8; 4096]) -> Result<u8, Error> {
    tokio::task::yield_now().await;
    Ok(data[0])
}

#[allow(clippy::future_not_send, reason = "it is what is tested")]
#[distributed_lock(key = "local", backend = "memory")]
async fn not_send(shared: Rc<RefCell<u8>>) -> Result<u8, Error> {
    tokio::task::yield_now().await;
    *shared.borrow_mut() += 1;
    Ok(*shared.borrow())
}

#[distributed_lock(key = "depth_<n>", backend = "memory")]
async fn recursive(n: u64) -> Result<u64, Error> {
    if n == 0 { Ok(0) } else { Ok(n + Box::pin(recursive(n - 1)).await?) }
}

#[distributed_lock(key = "endless", backend = "memory")]
async fn endless() -> Result<std::convert::Infallible, Error> {
    loop {
        tokio::task::yield_now().await;
    }
}

#[test]
fn the_arguments_are_not_stored_more_often_than_in_the_plain_function() {
    let plain = size_of_val(&plain([0; 4096]));
    let once = size_of_val(&locked([0; 4096]));
    let or_busy = size_of_val(&locked_or_busy([0; 4096]));
    let in_segments = size_of_val(&in_segments([0; 4096]));
    let twice = size_of_val(&locked_twice([0; 4096]));
    // Less than a copy of the arguments, and than what it takes to acquire and release: that is in a box.
    assert!(once < plain + 512, "plain {plain}, locked {once}");
    assert!(or_busy < plain + 512, "plain {plain}, with on_busy {or_busy}");
    // Once more, so that the compiler can name an argument that the body moves, and what it takes to find a segment.
    assert!(in_segments < plain + 4096 + 2048, "plain {plain}, in segments {in_segments}");
    assert!(twice < once + 2 * 4096, "locked {once}, locked twice {twice}");
}

#[tokio::test]
async fn futures_are_send_and_run_in_a_spawned_task() -> Result<(), Error> {
    fn is_send<T: Send>(_: &T) {}
    is_send(&locked([0; 4096]));
    is_send(&locked_twice([0; 4096]));
    is_send(&recursive(1));

    let task = tokio::spawn(on_memory(async |_| locked([3; 4096]).await));
    assert_eq!(task.await.expect("it does not panic")?, 3);
    Ok(())
}

#[tokio::test]
async fn a_body_that_is_not_send_is_fine_where_nobody_asks_for_it() -> Result<(), Error> {
    on_memory(async |_| {
        assert_eq!(not_send(Rc::default()).await?, 1);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn recursion_takes_a_lock_per_level() -> Result<(), Error> {
    on_memory(async |_| {
        assert_eq!(recursive(4).await?, 10);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_body_without_an_end_compiles_and_can_be_dropped() {
    on_memory(async |_| {
        assert!(poll_once(endless()).await.is_none());
    })
    .await;
}

async fn poll_once<F: Future>(future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
        std::task::Poll::Ready(output) => std::task::Poll::Ready(Some(output)),
        std::task::Poll::Pending => std::task::Poll::Ready(None),
    })
    .await
}
