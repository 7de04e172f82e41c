//! The failures of an acquire that brings a baton, which is of no use a second time.

use crate::error::{ErrorKind, Failure};
use crate::holder::Holder;

/// Returns the failure where the lock that was handed over is not there to be taken.
pub(super) fn not_there(holder: Option<&Holder>) -> Failure {
    // The server compares tokens, and cannot know a baton that was used from one that never belonged here: the message
    // has to name both.
    let why = match holder {
        Some(holder) if holder.left_behind => {
            "the key is kept for another baton, or stays taken after a release: this baton was taken over before, or is \
             one of another server, table or prefix"
        }
        Some(_) => {
            "somebody else has the lock: the baton was taken over before, or its time is over, or it is one of another \
             server, table or prefix"
        }
        None => {
            "the baton was taken over before and the lock released, or its time is over, or it is one of another server, \
             table or prefix"
        }
    };
    Failure::new(ErrorKind::NotHeld, why)
}

/// Returns the failure where the baton may have been used up by a request whose answer came too late, or not at all.
pub(super) fn used_up() -> Failure {
    Failure::unknown(
        "a request took the lock over, or may have, and its answer came when its lease had ended: what is left of it is \
         released, and the baton is of no use any more",
    )
}
