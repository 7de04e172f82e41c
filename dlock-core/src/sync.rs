//! The locks and atomics of the engine: those of the standard library, but where a scheduler picks the order in which
//! threads go on, which then decides at each of them.

#[cfg(dlock_schedules)]
pub(crate) use shuttle::sync::{Mutex, MutexGuard, atomic};
#[cfg(not(dlock_schedules))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic};

#[cfg(not(dlock_schedules))]
pub(crate) use tokio::sync::Notify;

/// tokio's, where another thread may come in before each use of it.
#[cfg(dlock_schedules)]
#[derive(Debug, Default)]
pub(crate) struct Notify {
    inner: tokio::sync::Notify,
    step: atomic::AtomicBool,
}

#[cfg(dlock_schedules)]
impl Notify {
    pub(crate) const fn new() -> Self {
        Self { inner: tokio::sync::Notify::const_new(), step: atomic::AtomicBool::new(false) }
    }

    fn here(&self) -> &tokio::sync::Notify {
        self.step.load(atomic::Ordering::SeqCst);
        &self.inner
    }

    pub(crate) fn notified(&self) -> tokio::sync::futures::Notified<'_> {
        self.here().notified()
    }

    pub(crate) fn notify_one(&self) {
        self.here().notify_one();
    }

    pub(crate) fn notify_waiters(&self) {
        self.here().notify_waiters();
    }
}
