//! Takes a lock, looks at it, and gives it back; a second caller waits meanwhile.
//!
//! `cargo run --example basic`

use std::time::{Duration, Instant};

use dlock::{Error, Locks};

#[tokio::main]
async fn main() -> Result<(), Error> {
    // In a service: dlock::connect("sqlite:///var/lib/shop/locks.db"), or whatever its configuration says.
    let locks = dlock::connect("memory:").await?;

    let guard = locks.lock("room_7").acquire().await?;
    println!(
        "room_7 is mine, with {:?}; unless it is renewed it ends in {:.0?}",
        guard.fence(),
        guard.remaining()
    );
    if let Some(holder) = locks.inspect("room_7").await? {
        println!("anybody can see who holds it: {holder}");
    }

    let second = tokio::spawn(wait_for_it(locks.clone()));
    tokio::time::sleep(Duration::from_millis(30)).await;

    // Before a step that matters: a local test, without a request.
    guard.check()?;
    // Dropping the guard gives it back too, in the background. This waits until the backend has confirmed it.
    guard.release().await?;
    println!("released");

    match second.await {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
}

async fn wait_for_it(locks: Locks) -> Result<(), Error> {
    let asked = Instant::now();
    // The same as acquire and release around a body. Up to 5 s of waiting; the default is 30 s.
    let lock = locks.lock("room_7").with_wait(Duration::from_secs(5));
    let waited = lock.run(async { asked.elapsed() }).await?;
    println!("the second caller had it after {waited:.0?}");
    Ok(())
}
