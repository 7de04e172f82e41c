//! A lock that several hold at a time.

use std::time::Duration;

use crate::backend::Mode;
use crate::error::{Operation, Result};
use crate::handles::guard::Guard;
use crate::handles::held::Held;
use crate::handles::lock::Lock;
use crate::handles::section::Section;
use crate::options::{OnLost, Wait};

/// A semaphore: a number of permits for all processes together, of which each [acquire](Self::acquire) takes one, or
/// [several](Self::take). Made by [`Locks::semaphore`](crate::Locks::semaphore). A value; nothing is taken before.
///
/// * A permit is held as a lock is: it has a lease that is renewed, a fence, a [`Guard`] that can be lost, and it is
///   free again when its holder crashed and the lease has ended.
/// * Each acquire has permits of its own, also a nested one. An acquire that would wait for permits of the calling
///   [scope](crate::Locks::scope) itself gets [`ErrorKind::Deadlock`](crate::ErrorKind::Deadlock).
/// * The number of permits is stored with the semaphore, for as long as one is taken and a day after that. A process
///   with another number, or that uses the key as a lock, gets [`ErrorKind::Conflict`](crate::ErrorKind::Conflict),
///   unless it is [`resizable`](Self::resizable) there. An operator [changes](crate::Locks::resize_semaphore) the
///   number.
/// * Of several permits all are taken or none. An acquire that waits for several keeps newcomers out, for 10 s; when it
///   does not get them by then, newcomers are let in for 10 s, and so on.
///
/// A backend without semaphores refuses the acquire with [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported);
/// have that checked at start-up by requiring [`Requirement::Permits`](crate::Requirement::Permits).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
/// use dlock_core::{Locks, Memory};
///
/// let locks = Locks::new(Memory::new());
/// let gpus = locks.semaphore("gpu", 4);
/// let one = gpus.acquire().await?;
/// let two = gpus.clone().take(2).acquire().await?;
/// assert_eq!(gpus.available().await?, 1);
/// assert!(gpus.clone().take(2).try_acquire().await?.is_none());
/// one.release().await?;
/// two.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a semaphore does nothing until it is acquired"]
pub struct Semaphore {
    lock: Lock,
    permits: u32,
}

impl From<Semaphore> for Section {
    fn from(semaphore: Semaphore) -> Self {
        Self::new(semaphore.lock)
    }
}

impl Semaphore {
    pub(crate) const fn new(lock: Lock, permits: u32) -> Self {
        Self { lock: lock.with_mode(Mode::Permits { of: permits, take: 1 }), permits }
    }

    pub(crate) const fn lock(&self) -> &Lock {
        &self.lock
    }

    pub(crate) fn with_lock(self, lock: Lock) -> Self {
        Self { lock, ..self }
    }

    /// Sets the number of permits that an acquire takes, all or none. Default 1; 1 to all of them.
    pub fn take(self, permits: u32) -> Self {
        Self { lock: self.lock.with_mode(Mode::Permits { of: self.permits, take: permits }), ..self }
    }

    /// Goes by the number of permits that is stored, where that differs from this one: after a
    /// [resize](crate::Locks::resize_semaphore), programs with the old number go on by the new one, and programs with
    /// the new one may start before it. The number of the first program that used the semaphore then counts, or the
    /// last resize; without this, a program with a wrong number gets
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict).
    ///
    /// While the two numbers differ, an acquire costs two requests more. An acquire of more permits than the stored
    /// number stays a conflict.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
    /// use dlock_core::{Locks, Memory};
    ///
    /// let locks = Locks::new(Memory::new());
    /// let gpus = locks.semaphore("gpu", 1).resizable();
    /// let one = gpus.acquire().await?;
    /// assert!(gpus.try_acquire().await?.is_none());
    /// locks.resize_semaphore("gpu", 2).await?;
    /// let two = gpus.acquire().await?;
    /// # one.release().await?;
    /// # two.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn resizable(self) -> Self {
        Self { lock: self.lock.resizable(), ..self }
    }

    /// Changes the lock that this is made of, for other options; the number of permits stays as it is.
    pub fn with_options(self, change: impl FnOnce(Lock) -> Lock) -> Self {
        let mode = self.lock.options().mode;
        Self { lock: change(self.lock).with_mode(mode), ..self }
    }

    /// Sets the time that an acquire may take. See [`Lock::with_wait`].
    pub fn with_wait(self, wait: impl Into<Wait>) -> Self {
        Self { lock: self.lock.with_wait(wait), ..self }
    }

    /// Sets the time for which the backend keeps a permit whose holder does not renew it. See [`Lock::with_lease`].
    pub fn with_lease(self, lease: Duration) -> Self {
        Self { lock: self.lock.with_lease(lease), ..self }
    }

    /// Sets the time that one request may take. See [`Lock::with_request_timeout`].
    pub fn with_request_timeout(self, limit: Duration) -> Self {
        Self { lock: self.lock.with_request_timeout(limit), ..self }
    }

    /// Sets the time after which a permit is renewed no more. See [`Lock::with_max_hold`].
    pub fn with_max_hold(self, limit: Duration) -> Self {
        Self { lock: self.lock.with_max_hold(limit), ..self }
    }

    /// Sets what happens to a body whose permit is lost. See [`Lock::with_on_lost`].
    pub fn with_on_lost(self, on_lost: OnLost) -> Self {
        Self { lock: self.lock.with_on_lost(on_lost), ..self }
    }

    /// Sets the pattern the key was made from. See [`Lock::with_template`].
    pub fn with_template(self, template: &'static str) -> Self {
        Self { lock: self.lock.with_template(template), ..self }
    }

    /// Takes the permits, waiting for as long as the options allow.
    ///
    /// # Errors
    ///
    /// Those of [`Lock::acquire`], and [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for a semaphore of
    /// no permits or more than 1 000 000, and for an acquire of none or more than there are.
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`].
    pub async fn acquire(&self) -> Result<Guard> {
        self.lock.acquire().await
    }

    /// Takes the permits if there are as many; `None` otherwise. Never waits for others.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), but for permits that are taken.
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`].
    pub async fn try_acquire(&self) -> Result<Option<Guard>> {
        self.lock.try_acquire().await
    }

    /// Takes the permits, runs `body`, and releases them. See [`Lock::run`].
    ///
    /// # Errors
    ///
    /// Those of [`acquire`](Self::acquire), and [`ErrorKind::Lost`](crate::ErrorKind::Lost).
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::run`].
    pub fn run<F: Future>(&self, body: F) -> impl Future<Output = Result<F::Output>> + use<F> {
        self.lock.run(body)
    }

    /// Runs a body like [`run`](Self::run), and shows it the hold. See [`Lock::run_with`].
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::run`].
    pub fn run_with<F, B>(&self, body: B) -> impl Future<Output = Result<F::Output>> + use<F, B>
    where
        F: Future,
        B: FnOnce(Held) -> F,
    {
        self.lock.run_with(body)
    }

    /// Returns the number of permits that are free at this moment: for people and dashboards, since by the time it is
    /// read others may have taken them.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) when the semaphore has another number of permits, and is not
    /// [`resizable`](Self::resizable); [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported),
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable), and other kinds of the backend.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn available(&self) -> Result<u32> {
        let (lock, options) = (&self.lock, self.lock.options());
        let key = lock.checked(options)?;
        let refuse = |failure| lock.error(Operation::Inspect, failure);
        let found = lock.engine().occupancy(key, options.request_timeout()).await.map_err(refuse)?;
        let stored = match found.permits {
            Some(of) if options.resizable => return Ok(of.saturating_sub(found.taken())),
            Some(of) => Mode::Permits { of, take: 1 },
            None if found.holders.is_empty() => return Ok(self.permits),
            None => Mode::Exclusive,
        };
        match options.mode.conflict(&stored) {
            Some(failure) => Err(refuse(failure)),
            None => Ok(self.permits.saturating_sub(found.taken())),
        }
    }

    /// Returns the key, if it is valid.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        self.lock.key().map(crate::key::Key::as_str)
    }
}
