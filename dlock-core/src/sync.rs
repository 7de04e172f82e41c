//! The locks and atomics of the engine: those of the standard library, but where a scheduler picks the order in which
//! threads go on, which then decides at each of them.

#[cfg(dlock_schedules)]
pub(crate) use shuttle::sync::{Mutex, MutexGuard, atomic};
#[cfg(not(dlock_schedules))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic};
