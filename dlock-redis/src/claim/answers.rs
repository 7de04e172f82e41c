//! The meaning of answers and of malformed replies to a claim.

use dlock_core::Failure;
use dlock_core::backend::Withdrawal;

use crate::error::{Fault, refusal};
use crate::request::Answer;

/// Reads the answer to a withdrawal.
pub(super) fn withdrawn(answer: &Answer) -> Result<Withdrawal, Failure> {
    match answer {
        Answer::Done(true) => Ok(Withdrawal::REMOVED),
        // One listening connection is this process's own. It counts as well: most times this process has waiters too.
        Answer::Awaited(listening) => Ok(Withdrawal::REMOVED.with_others_waiting((listening - 1).max(1))),
        Answer::Done(false) => Ok(Withdrawal::ABSENT),
        _ => Err(senseless()),
    }
}

/// Returns the failure of a lock that the token holds, and whose fence was removed from the server.
pub(super) fn without_fence() -> Failure {
    refusal("ERR somebody removed the fence from the lock; do not edit locks")
}

/// Returns the failure of a reply that cannot be read. Its request may have been carried out.
pub(super) fn senseless() -> Failure {
    Fault::Cut("malformed reply".into()).into_failure()
}
