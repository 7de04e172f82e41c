//! A backend whose steps panic.

use super::cases;
use crate::conformance::Stage;
use crate::conformance::expect::{give_back, soon, until};

cases! {
    an_attempt_that_panics_is_asked_about_again: Nothing, Easy;
    a_renewal_that_panics_is_made_again: Lease, Timed;
    a_release_in_the_background_that_panics_is_made_again: Nothing, Easy;
}

/// What it did before is found under the same token.
async fn an_attempt_that_panics_is_asked_about_again(stage: Stage) {
    let (process, key) = (stage.process().await, stage.key());
    process.wire.panic_replies(1);
    give_back(soon("the grant", process.locks.lock(&key).acquire()).await.expect("it is free")).await;
}

/// The keeper goes on, for this lock too.
async fn a_renewal_that_panics_is_made_again(stage: Stage) {
    let (process, key) = (stage.short().await, stage.key());
    let guard = process.take(&key).await;
    process.wire.panic_replies(1);
    until("a failed renewal", || process.locks.stats().failed_renewals > 0).await;
    until("the next one", || process.locks.stats().renewals > 0).await;
    guard.check().expect("it is held");
    give_back(guard).await;
}

/// A shutdown waits for it.
async fn a_release_in_the_background_that_panics_is_made_again(stage: Stage) {
    let (process, other, key) = (stage.process().await, stage.process().await, stage.key());
    let guard = process.take(&key).await;
    process.wire.panic_replies(2);
    drop(guard);
    until("three withdrawals", || process.wire.withdrawals() >= 3).await;
    give_back(other.take(&key).await).await;
    until("the end of the work", || process.locks.stats().background == 0).await;
}
