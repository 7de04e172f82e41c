//! What an answer means to a claim.

use dlock_core::Failure;
use dlock_core::backend::Withdrawal;

use crate::error::{Fault, refusal};
use crate::request::Answer;

pub(super) fn withdrawn(answer: &Answer) -> Result<Withdrawal, Failure> {
    match answer {
        Answer::Done(true) => Ok(Withdrawal::REMOVED),
        // Somebody here waits as well, most times.
        Answer::Awaited(listening) => Ok(Withdrawal::REMOVED.with_others_waiting((listening - 1).max(1))),
        Answer::Done(false) => Ok(Withdrawal::ABSENT),
        _ => Err(senseless()),
    }
}

/// What the token has already, without the fence that it was granted with.
pub(super) fn without_fence() -> Failure {
    refusal("ERR somebody removed the fence from the lock; do not edit locks")
}

pub(super) fn senseless() -> Failure {
    Fault::Cut("malformed reply".into()).into_failure()
}
