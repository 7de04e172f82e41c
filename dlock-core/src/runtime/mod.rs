//! The threads on which dlock's own work runs, the tasks on them, and timers that need no runtime of the caller's.

pub mod tasks;
pub(crate) mod threads;
pub(crate) mod timer;
