//! A locked function may call another one that takes the same lock. Two branches of a `join!` are two owners.
//!
//! `cargo run --example reentrancy`

use std::time::Duration;

use dlock::{Error, ErrorKind, Locks, in_current_scope};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let locks = dlock::connect("memory:").await?;
    let stock = locks.lock("stock");

    // Nested: the inner call enters at once, without a request, under the same fence.
    let fences = stock.run_with(|outer| async move { (outer.fence(), inner_fence(&locks).await) });
    let (outer, inner) = fences.await?;
    println!("outer {outer:?}, inner {:?}: one hold", inner?);

    // Side by side: they exclude each other, although one task runs both.
    let locks = dlock::connect("memory:").await?;
    let stock = locks.lock("stock");
    let branch = |name| {
        stock.run(async move {
            println!("{name} enters");
            tokio::time::sleep(Duration::from_millis(10)).await;
            println!("{name} leaves");
        })
    };
    let (left, right) = tokio::join!(branch("left"), branch("right"));
    left.and(right)?;

    // A spawned task is an owner of its own, unless it is taken along into this one.
    let quick = stock.clone().with_wait(Duration::from_millis(20));
    stock
        .run(async {
            let stranger = tokio::spawn({
                let quick = quick.clone();
                async move { quick.acquire().await.map(drop).map_err(|error| error.kind()) }
            });
            let relative = tokio::spawn(in_current_scope({
                let quick = quick.clone();
                async move { quick.acquire().await.map(drop).map_err(|error| error.kind()) }
            }));
            let (stranger, relative) = (stranger.await, relative.await);
            println!("a spawned task: {stranger:?}; with in_current_scope: {relative:?}");
            assert!(matches!((stranger, relative), (Ok(Err(ErrorKind::TimedOut)), Ok(Ok(())))));
        })
        .await
}

async fn inner_fence(locks: &Locks) -> Result<Option<dlock::Fence>, Error> {
    locks.lock("stock").run_with(|held| async move { held.fence() }).await
}
