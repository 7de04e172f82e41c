//! Claims made by hand, without the engine between.

use std::time::Duration;

use dlock_core::backend::{Attempt, Busy, ClaimRequest, Grant};
use dlock_testkit::claim_request;

/// A request as the engine makes it for one that does not wait, with a token of its own.
pub(crate) async fn request(key: &str, lease: Duration) -> ClaimRequest {
    claim_request(key, lease, false).await.unwrap()
}

pub(crate) fn granted(attempt: Attempt) -> Grant {
    match attempt {
        Attempt::Granted(grant) => grant,
        Attempt::Busy(busy) => panic!("somebody else has it: {busy:?}"),
    }
}

pub(crate) fn busy(attempt: Attempt) -> Busy {
    match attempt {
        Attempt::Granted(grant) => panic!("it was granted: {grant:?}"),
        Attempt::Busy(busy) => busy,
    }
}
