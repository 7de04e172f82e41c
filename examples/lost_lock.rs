//! What a service does when it loses a lock, tried out in no time with a clock that can be moved.
//!
//! `cargo run --example lost_lock`

use std::time::Duration;

use dlock::{Error, ErrorKind, Held, Locks, ManualClock, Memory, OnLost};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let clock = ManualClock::stopped();
    let backend = Memory::with_clock(clock.clock());
    let locks = Locks::new(backend.clone());
    let hour = Duration::from_secs(3_600);

    // The default: the body is dropped where it awaits, and the caller gets an error.
    let body = async {
        println!("the body works ...");
        clock.advance(hour);
        tokio::task::yield_now().await;
        println!("... and this is never printed");
    };
    let error = locks.lock("import").run(body).await.expect_err("the lease is over");
    println!("abort: {error}");
    assert_eq!(error.kind(), ErrorKind::Lost);

    // A body that has to tidy up runs on, and finds out for itself.
    let lock = locks.lock("import").with_on_lost(OnLost::Continue);
    let steps = lock.run_with(|held| import(held, &clock, hour)).await?;
    println!("continue: stopped by itself after {steps} steps");
    assert_eq!(steps, 2);

    // Somebody deletes the lock behind our back: the next renewal finds out, long before the lease is over.
    let guard = locks.lock("import").acquire().await?;
    backend.delete("import");
    clock.advance(Duration::from_secs(11));
    guard.lost().await;
    println!("deleted: {}", guard.check().expect_err("it was deleted"));
    println!("losses so far: {}", locks.stats().lost);
    Ok(())
}

async fn import(held: Held, clock: &ManualClock, hour: Duration) -> u32 {
    for step in 1..=10 {
        if step == 2 {
            clock.advance(hour);
        }
        // Before each step: a local test, without a request.
        if held.check().is_err() {
            return step;
        }
        tokio::task::yield_now().await;
    }
    10
}
