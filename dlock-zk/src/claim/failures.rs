//! Failures of a claim that no further attempt mends.

use dlock_core::backend::Mode;
use dlock_core::{ErrorKind, Failure};

/// The mode of a key that is used as a semaphore; the numbers do not matter.
pub(super) const SEMAPHORE: Mode = Mode::Permits { of: 1, take: 1 };

/// Returns the failure of a claim in the mode `ours` on a key that others use in the mode `theirs`.
pub(super) fn used_otherwise(ours: Mode, theirs: Mode) -> Failure {
    ours.conflict(&theirs).unwrap_or_else(|| Failure::invalid_config("others use the key in another way"))
}

pub(super) fn exhausted(directory: &str) -> Failure {
    Failure::invalid_config(format!(
        "{directory} has run out of numbers, so that its nodes have no order any more: delete it once nobody is in it; \
         the servers do so by themselves if it is a container"
    ))
}

pub(super) fn unclear(directory: &str, name: &str) -> Failure {
    Failure::invalid_config(format!(
        "{directory} has the sequential node {name:?}, which is not of the recipe that this program uses: whether it \
         has the lock cannot be told; use a path of its own for the other recipe, or give all programs the same by \
         `with_recipe`"
    ))
}

pub(super) fn place_deleted() -> Failure {
    Failure::new(ErrorKind::Lost, "its node in the queue was deleted")
}
