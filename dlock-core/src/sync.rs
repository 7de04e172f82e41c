//! The locks and atomics of the engine. They are those of the standard library, except where a scheduler picks the
//! order of threads: there it decides at each use of them.

/// Defines a mutex over that of a module.
macro_rules! mutex {
    ($visibility:vis use $($locks:tt)+) => {
        $visibility use $($locks)+::MutexGuard;

        /// A mutex that stays usable when code that has locked it panics: that code leaves the value whole wherever it
        /// may panic.
        #[derive(Debug, Default)]
        $visibility struct Mutex<T>($($locks)+::Mutex<T>);

        impl<T> Mutex<T> {
            /// Makes a mutex that is not locked.
            #[must_use]
            $visibility const fn new(value: T) -> Self {
                Self($($locks)+::Mutex::new(value))
            }

            /// Locks the mutex, once no other thread has locked it.
            $visibility fn lock(&self) -> MutexGuard<'_, T> {
                self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
            }
        }
    };
}

/// The mutex of the standard library, also where a scheduler orders the threads: for code that is not the engine's.
pub(crate) mod plain {
    mutex!(pub use std::sync);

    impl<T> Mutex<T> {
        /// Locks the mutex, unless it is locked.
        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            use std::sync::TryLockError;

            match self.0.try_lock() {
                Ok(locked) => Some(locked),
                Err(TryLockError::Poisoned(locked)) => Some(locked.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            }
        }
    }
}

#[cfg(dlock_schedules)]
mod scheduled {
    mutex!(pub(crate) use shuttle::sync);
}

#[cfg(not(dlock_schedules))]
pub(crate) use plain::{Mutex, MutexGuard};
#[cfg(dlock_schedules)]
pub(crate) use scheduled::{Mutex, MutexGuard};
#[cfg(dlock_schedules)]
pub(crate) use shuttle::sync::atomic;
#[cfg(not(dlock_schedules))]
pub(crate) use std::sync::atomic;

#[cfg(not(dlock_schedules))]
pub(crate) use tokio::sync::Notify;

/// tokio's `Notify`, with a point before each use at which the scheduler may let another thread come in.
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

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_mutex_is_usable_after_a_panic_of_code_that_had_locked_it() {
        let mutex = Mutex::new(1);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let mut value = mutex.lock();
            *value = 2;
            panic!("a panic");
        }));
        assert!(panicked.is_err());
        assert_eq!(*mutex.lock(), 2);
    }
}
