//! Code under the attribute is as clean under clippy's strictest lints as the same code without it: `cargo clippy`
//! shows it. The lints that are denied are those that some version of the expansion has tripped, and their neighbours.
#![deny(warnings, clippy::pedantic, clippy::nursery, clippy::significant_drop_tightening)]
#![deny(
    clippy::as_conversions,
    clippy::expect_used,
    clippy::implicit_return,
    clippy::let_underscore_must_use,
    clippy::let_underscore_untyped,
    clippy::panic,
    clippy::pattern_type_mismatch,
    clippy::shadow_reuse,
    clippy::shadow_same,
    clippy::shadow_unrelated,
    clippy::unreachable,
    clippy::unwrap_used
)]
#![allow(clippy::needless_return, reason = "the opposite of `implicit_return`, which is what is tested")]
#![allow(clippy::future_not_send, reason = "some arguments are not `Sync` on purpose")]

use core::time::Duration;
use dlock::{Error, Locks, Memory, distributed_lock};

#[distributed_lock(key = "plain_<id>", backend = "lints", guard = held)]
async fn plain(id: u64, names: Vec<String>) -> Result<u64, Error> {
    held.check()?;
    tokio::task::yield_now().await;
    drop(names);
    return Ok(id);
}

#[distributed_lock(keys = ["a_<id>", "b_<id>"], backend = "lints", requires = "fencing")]
async fn batch(id: u64) -> Result<u64, Error> {
    tokio::task::yield_now().await;
    return Ok(id);
}

#[distributed_lock(
    key = { id.to_string() }, locks = locks, wait = { Duration::from_secs(3) }, lease = "1s", recheck = false,
    on_lost = "continue", on_unavailable = "run", on_busy = |error| { if id == 0 { return Ok(0); } Err(error) }
)]
async fn every_option(id: u64, locks: &Locks) -> Result<u64, Error> {
    tokio::task::yield_now().await;
    return Ok(id);
}

#[distributed_lock(key = "segmented_<id>", segments = 3, wait = "no", on_busy = Ok(0), backend = "lints")]
async fn segmented(id: u64, mut names: Vec<String>) -> Result<u64, Error> {
    tokio::task::yield_now().await;
    names.clear();
    return Ok(id);
}

#[distributed_lock(key = "segmented_<id>", segments = 3, guard = segment, backend = "lints")]
async fn shown_its_segment(id: u64) -> Result<u64, Error> {
    tokio::task::yield_now().await;
    assert!(segment.number() < 3);
    return Ok(id);
}

#[tokio::test]
async fn functions_under_strict_lints_run() -> Result<(), Error> {
    let locks = Locks::new(Memory::new());
    return dlock::with_backend("lints", locks.clone(), async move {
        let sum = plain(1, Vec::new()).await? + batch(2).await? + every_option(3, &locks).await?;
        assert_eq!(sum + segmented(4, Vec::new()).await? + shown_its_segment(5).await?, 15);
        return Ok(());
    })
    .await;
}
