//! A job that every replica starts at the same minute, and only one shall do: the others skip it.
//!
//! `cargo run --example try_or_skip`

use std::sync::Arc;

use dlock::{Error, Locks, Memory};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

#[tokio::main]
async fn main() -> Result<(), Error> {
    // Three replicas, each with locks of its own on one backend.
    let backend = Memory::new();
    let all_have_tried = Arc::new(Barrier::new(3));
    let mut replicas = JoinSet::new();
    for replica in 1..=3 {
        let locks = Locks::builder(backend.clone()).with_label(format!("replica {replica}")).build()?;
        let all_have_tried = Arc::clone(&all_have_tried);
        replicas.spawn(async move { (replica, nightly_report(&locks, &all_have_tried).await) });
    }
    let mut done = 0;
    while let Some(Ok((replica, result))) = replicas.join_next().await {
        let did_it = result?;
        println!("replica {replica}: {}", if did_it { "wrote the report" } else { "skipped it" });
        done += u32::from(did_it);
    }
    assert_eq!(done, 1);
    Ok(())
}

/// Whether this replica did it.
async fn nightly_report(locks: &Locks, all_have_tried: &Barrier) -> Result<bool, Error> {
    // `None` says that somebody has it; an error says that the backend could not be asked, which is another thing.
    let Some(guard) = locks.lock("nightly_report").try_acquire().await? else {
        all_have_tried.wait().await;
        return Ok(false);
    };
    // The report takes longer than it takes the others to try. A job that is over in no time would be done again by a
    // replica that is late: note in the job's own table for which night it was done.
    all_have_tried.wait().await;
    guard.release().await?;
    Ok(true)
}
