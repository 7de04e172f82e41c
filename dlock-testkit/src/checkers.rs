//! Whether exclusion and fencing held, decided from what was recorded.
//!
//! | checker | asks | from |
//! |---|---|---|
//! | [`fence_order`] | do the fences follow the order of the grants, and did each grant come after the end of the one before? | [history](crate::history) |
//! | [`overlap`] | did two owners believe at the same time that they hold the lock? | [history](crate::history) |
//! | [`sharing`] | was a writer beside anybody, or were there more permits than there are, and do the readers' fences lie between the writers'? | [history](crate::history) |
//! | [`lost_updates`] | was a stale write accepted, or an update lost? | the record of a [register](crate::register) |
//!
//! The rules of the first three are those of [`dlock_audit::checker`], which `dlock audit` applies to the records of
//! production.
//!
//! All of them read times and numbers as they are recorded, so that an operation counts as late as it may have been:
//! they accuse nobody wrongly. A hold whose process was killed ends with the last thing that it wrote.

mod fences;
mod holds;
mod overlaps;
mod register;
mod sharing;

pub use fences::{FenceOrder, Inversion, fence_order};
pub use overlaps::{Overlap, Overlaps, overlap};
pub use register::{Updates, lost_updates};
pub use sharing::{Misplaced, Sharing, sharing};
