//! A service in which all of it nests: a layer, its extractor, the attribute, bodies in bodies, a batch, a spawned
//! task.
//!
//! `cargo run --release --example service`
//!
//! The compiler gives up on types that are nested more than 128 deep, which a release build meets first. What dlock
//! puts around a future adds a few levels each time, and what a layer runs or a connection awaits adds none: this has
//! no `recursion_limit`, and `cargo xtask nightly` compiles it so.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::routing::post;
use dlock::{Error, Locks, Wait, distributed_lock, once};
use dlock_tower::{LockLayer, Locked};
use tower_service::Service;

/// The outermost of three annotated functions that call each other.
#[distributed_lock(key = "room_<room>", locks = locks, guard = held)]
async fn book(locks: &Locks, room: &str) -> Result<u64, Error> {
    held.check()?;
    // Under the same lock: no request.
    enter(locks, room).await
}

#[distributed_lock(key = "room_<room>", locks = locks)]
async fn enter(locks: &Locks, room: &str) -> Result<u64, Error> {
    pay(locks, room, 7).await
}

#[distributed_lock(keys = ["till", "account_<account>"], locks = locks)]
async fn pay(locks: &Locks, room: &str, account: u64) -> Result<u64, Error> {
    let both = locks.lock_all(["ledger", "archive"]);
    let fence = both.run_with(|held| async move {
        held.check()?;
        locks.lock(room).read().run(async { account }).await
    });
    fence.await?
}

#[once(key = "greeting", every = "1h", locks = locks)]
async fn greet(locks: &Locks) -> Result<(), Error> {
    locks.semaphore("mail", 2).run(async { println!("sent once") }).await
}

/// Runs under the lock that the layer took, and leaves a part to a task that takes it along.
async fn handle(
    State(locks): State<Locks>,
    Path(room): Path<String>,
    Locked(held): Locked,
) -> Result<String, StatusCode> {
    let fence = held.fence();
    let task = tokio::spawn(dlock::in_current_scope(async move {
        greet(&locks).await?;
        book(&locks, &room).await
    }));
    match task.await {
        Ok(Ok(account)) => Ok(format!("booked on account {account} with fence {fence:?}")),
        _ => Err(StatusCode::SERVICE_UNAVAILABLE),
    }
}

/// What a program does for as long as it lives.
async fn serve(url: &str) -> Result<StatusCode, Error> {
    let locks = dlock::from_url(url).await?.with_lease(Duration::from_secs(10)).build()?;
    let layer = |place: &'static str| {
        let locks = locks.clone();
        let wait = Wait::For(Duration::from_secs(5));
        LockLayer::new(move |request: &Request| {
            Some(locks.lock(format!("{place}:{}", request.uri().path())).with_wait(wait))
        })
    };
    let router =
        Router::new().route("/rooms/{room}", post(handle)).layer(layer("inner")).layer(layer("outer"));
    let mut router = router.with_state(locks.clone());
    // In place of `axum::serve`: one request.
    let Ok(request) = Request::post("/rooms/blue").body(Body::empty()) else {
        return Ok(StatusCode::BAD_REQUEST);
    };
    let Ok(response) = router.call(request).await;
    if let Err(late) = locks.shutdown(Duration::from_secs(5)).await {
        eprintln!("{late}");
    }
    Ok(response.status())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let service = tokio::spawn(async { serve("memory:").await });
    println!("answered with {}", service.await??);
    println!("every piece of it compiled with the default `recursion_limit`");
    Ok(())
}
