//! The graceful end of a service: nobody has to wait for the leases of a process that is gone.
//!
//! `cargo run --example shutdown`

use std::time::{Duration, Instant};

use dlock::{Error, ErrorKind, Locks, Memory};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let backend = Memory::new();
    let locks = Locks::builder(backend.clone()).with_lease(Duration::from_secs(3_600)).build()?;

    // One that is held by hand, one that a dropped guard leaves to the background, and one under a body.
    let by_hand = locks.lock("by_hand").acquire().await?;
    drop(locks.lock("dropped").acquire().await?);
    let worker = tokio::spawn({
        let lock = locks.lock("body");
        async move { lock.run(std::future::pending::<()>()).await }
    });
    while !matches!(locks.inspect("body").await, Ok(Some(_))) {
        tokio::task::yield_now().await;
    }
    println!("before: {} locks held", backend.held());

    // When told to stop (tokio::signal): holders are notified first and have half of the time to leave.
    let start = Instant::now();
    locks.shutdown(Duration::from_millis(200)).await?;
    println!("shut down in {:.0?}: {} locks held", start.elapsed(), backend.held());
    assert_eq!(backend.held(), 0, "with leases of an hour");

    match worker.await {
        Ok(Err(error)) => println!("the body was stopped: {error}"),
        other => println!("the body: {other:?}"),
    }
    println!("the guard: {}", by_hand.check().expect_err("it was given back"));
    let refused = locks.lock("late").acquire().await.expect_err("the locks are closed");
    println!("a late caller: {refused}");
    assert_eq!(refused.kind(), ErrorKind::Closed);
    Ok(())
}
