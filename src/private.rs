//! What `#[distributed_lock]` expands to calls of. Not for use by hand, and not covered by any promise.

use std::pin::Pin;
use std::time::Duration;

use dlock_core::{Error, Held, Lock, Locks, OnLost, Requirement, Result, Segment, SegmentedSection, Wait};

use crate::registry;

/// Where the attribute stands.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    /// The function's path.
    pub function: &'static str,
    /// The key's pattern.
    pub template: &'static str,
}

/// Which locks the attribute names.
#[derive(Debug)]
pub enum Source<'a> {
    /// None: the default ones.
    Default,
    /// Those registered under a name.
    Named(&'static str),
    /// These.
    Given(&'a Locks),
}

/// Returns the locks that `locks = expr` gives.
pub fn locks_of<T: AsRef<Locks> + ?Sized>(locks: &T) -> &Locks {
    locks.as_ref()
}

/// Collects the keys that `keys = { expression }` gives.
pub fn keys_of<K: ToString>(keys: impl IntoIterator<Item = K>) -> Vec<String> {
    keys.into_iter().map(|key| key.to_string()).collect()
}

/// A critical section that finds its locks when it is entered.
#[derive(Debug)]
pub struct Section<'a> {
    site: Site,
    source: Source<'a>,
    keys: SectionKeys,
    requires: &'static [Requirement],
    wait: Option<Wait>,
    lease: Option<Duration>,
    on_lost: Option<OnLost>,
    recheck: Option<bool>,
    run_when_unavailable: bool,
    inner: Option<dlock_core::Section>,
}

#[derive(Debug)]
enum SectionKeys {
    One(String),
    All(Vec<String>),
}

impl<'a> Section<'a> {
    /// Creates a section under one key; nothing happens yet.
    #[must_use]
    pub const fn new(site: Site, source: Source<'a>, key: String) -> Self {
        Self::of(site, source, SectionKeys::One(key))
    }

    /// Creates a section under several keys.
    #[must_use]
    pub const fn all(site: Site, source: Source<'a>, keys: Vec<String>) -> Self {
        Self::of(site, source, SectionKeys::All(keys))
    }

    const fn of(site: Site, source: Source<'a>, keys: SectionKeys) -> Self {
        Self {
            site,
            source,
            keys,
            requires: &[],
            wait: None,
            lease: None,
            on_lost: None,
            recheck: None,
            run_when_unavailable: false,
            inner: None,
        }
    }

    /// Applies `wait = ...`.
    #[must_use]
    pub const fn wait(mut self, wait: Wait) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Applies `lease = ...`.
    #[must_use]
    pub const fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Applies `on_lost = ...`.
    #[must_use]
    pub const fn on_lost(mut self, on_lost: OnLost) -> Self {
        self.on_lost = Some(on_lost);
        self
    }

    /// Applies `recheck = ...`.
    #[must_use]
    pub const fn recheck(mut self, on: bool) -> Self {
        self.recheck = Some(on);
        self
    }

    /// Applies `requires = ...`.
    #[must_use]
    pub const fn requires(mut self, requirements: &'static [Requirement]) -> Self {
        self.requires = requirements;
        self
    }

    /// Applies `segments = ...`.
    #[must_use]
    pub const fn segments(self, count: u32) -> Segments<'a> {
        Segments { section: self, count, inner: None }
    }

    /// Applies `on_unavailable = "run"`.
    #[must_use]
    pub const fn run_when_unavailable(mut self) -> Self {
        self.run_when_unavailable = true;
        self
    }

    /// Takes the lock.
    ///
    /// # Errors
    ///
    /// Those of the look-up and of [`Lock::acquire`].
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`].
    pub async fn enter(&mut self) -> Result<()> {
        self.inner()?.enter().await
    }

    /// Takes the lock if that was not done, runs the body, and releases the lock.
    ///
    /// # Errors
    ///
    /// Those of [`enter`](Self::enter), and `Lost`.
    ///
    /// # Cancel safety
    ///
    /// The lock is released in the background once this section is dropped.
    pub async fn run<F: Future>(&mut self, body: Pin<&mut F>) -> Result<F::Output> {
        self.inner()?.run(body).await
    }

    fn inner(&mut self) -> Result<&mut dlock_core::Section> {
        let section = match self.inner.take() {
            Some(section) => section,
            None => {
                let locks = self.locks()?;
                let section = match &self.keys {
                    SectionKeys::One(key) => dlock_core::Section::new(self.with_options(locks.lock(key))),
                    SectionKeys::All(keys) => {
                        locks.lock_all(keys).with_each(|lock| self.with_options(lock)).into()
                    }
                };
                if self.run_when_unavailable { section.run_when_unavailable() } else { section }
            }
        };
        Ok(self.inner.insert(section))
    }

    fn locks(&self) -> Result<Locks> {
        let locks = match self.source {
            Source::Default => registry::default_locks()?,
            Source::Named(name) => registry::registered(name)?,
            Source::Given(locks) => locks.clone(),
        };
        locks.require(self.requires)?;
        Ok(locks)
    }

    fn with_options(&self, lock: Lock) -> Lock {
        let mut lock = lock.with_template(self.site.template).with_function(self.site.function);
        if let Some(wait) = self.wait {
            lock = lock.with_wait(wait);
        }
        if let Some(lease) = self.lease {
            lock = lock.with_lease(lease);
        }
        if let Some(on_lost) = self.on_lost {
            lock = lock.with_on_lost(on_lost);
        }
        match self.recheck {
            Some(false) => lock.with_rechecks(0),
            Some(true) => lock.with_unbounded_rechecks(),
            None => lock,
        }
    }
}

/// A critical section in one segment after the other.
#[derive(Debug)]
pub struct Segments<'a> {
    section: Section<'a>,
    count: u32,
    inner: Option<SegmentedSection>,
}

impl Segments<'_> {
    /// Takes a segment, if none is taken.
    ///
    /// # Errors
    ///
    /// Those of the look-up and of [`dlock_core::Segmented::run`].
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`].
    pub async fn enter(&mut self) -> Result<Segment> {
        self.inner()?.enter().await
    }

    /// Runs the body in the segment that is taken; `None` when the body said that it is exhausted. Otherwise the
    /// segment stays taken until [`leave`](Self::leave).
    ///
    /// # Errors
    ///
    /// Those of [`enter`](Self::enter), and `Lost`.
    ///
    /// # Cancel safety
    ///
    /// The lock is released in the background once this is dropped.
    pub async fn run<F: Future>(&mut self, body: Pin<&mut F>) -> Result<Option<F::Output>> {
        self.inner()?.run_body(body).await
    }

    /// Releases the segment of a body that has returned.
    ///
    /// # Cancel safety
    ///
    /// When dropped, the release goes on in the background.
    pub async fn leave(&mut self) {
        if let Some(section) = &mut self.inner {
            section.leave().await;
        }
    }

    fn inner(&mut self) -> Result<&mut SegmentedSection> {
        let section = match self.inner.take() {
            Some(section) => section,
            None => {
                let locks = self.section.locks()?;
                let SectionKeys::One(key) = &self.section.keys else {
                    unreachable!("the attribute gives one key")
                };
                SegmentedSection::new(self.section.with_options(locks.lock(key)).segmented(self.count))
            }
        };
        Ok(self.inner.insert(section))
    }
}

/// Returns the view of the body that calls this, for `guard = name`.
///
/// # Panics
///
/// Outside of a body, which the attribute never does.
#[must_use]
pub fn held() -> Held {
    match dlock_core::current_hold() {
        Some(held) => held,
        None => unreachable!("only called by the body of a section"),
    }
}

/// Returns whether `on_busy` applies.
#[must_use]
pub fn is_busy(error: &Error) -> bool {
    error.is_busy()
}

/// A return type that can carry a failure of the lock.
#[diagnostic::on_unimplemented(
    message = "a `#[distributed_lock]` function must return `Result<T, E>` where `E: From<dlock::Error>`",
    label = "the lock can fail, and this type cannot carry the failure",
    note = "return `Result<{Self}, dlock::Error>`, or an error of your own with `impl From<dlock::Error>` (for example a variant with \
            thiserror's `#[from]`)"
)]
pub trait FromLock {
    /// The failure as this type.
    fn from_lock(error: Error) -> Self;
}

impl<T, E: From<Error>> FromLock for Result<T, E> {
    fn from_lock(error: Error) -> Self {
        Err(error.into())
    }
}

/// Turns a failure of the lock into the function's return type.
#[must_use]
pub fn from_lock<R: FromLock>(error: Error) -> R {
    R::from_lock(error)
}

/// `require_x!{}` is this where the backend is compiled in, and else the macro that says what to do.
#[doc(hidden)]
#[macro_export]
macro_rules! __nothing_required {
    () => {};
}

#[doc(hidden)]
#[macro_export]
macro_rules! __sqlite_missing {
    () => {
        ::core::compile_error!(
            "`backend = \"sqlite\"` needs the `sqlite` feature of `dlock`: dlock-sdk = { features = [\"sqlite\"] }"
        );
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __redis_missing {
    () => {
        ::core::compile_error!(
            "`backend = \"redis\"` needs the `redis` feature of `dlock`: dlock-sdk = { features = [\"redis\"] }"
        );
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __zk_missing {
    () => {
        ::core::compile_error!(
            "`backend = \"zk\"` needs the `zk` feature of `dlock`: dlock-sdk = { features = [\"zk\"] }"
        );
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __postgres_missing {
    () => {
        ::core::compile_error!(
            "`backend = \"postgres\"` needs the `postgres` feature of `dlock`: dlock-sdk = { features = [\"postgres\"] }"
        );
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __mysql_missing {
    () => {
        ::core::compile_error!(
            "`backend = \"mysql\"` needs the `mysql` feature of `dlock`: dlock-sdk = { features = [\"mysql\"] }"
        );
    };
}

#[cfg(not(feature = "mysql"))]
pub use crate::__mysql_missing as require_mysql;
#[cfg(feature = "mysql")]
pub use crate::__nothing_required as require_mysql;
#[cfg(feature = "postgres")]
pub use crate::__nothing_required as require_postgres;
#[cfg(feature = "redis")]
pub use crate::__nothing_required as require_redis;
#[cfg(feature = "sqlite")]
pub use crate::__nothing_required as require_sqlite;
#[cfg(feature = "zk")]
pub use crate::__nothing_required as require_zk;
#[cfg(not(feature = "postgres"))]
pub use crate::__postgres_missing as require_postgres;
#[cfg(not(feature = "redis"))]
pub use crate::__redis_missing as require_redis;
#[cfg(not(feature = "sqlite"))]
pub use crate::__sqlite_missing as require_sqlite;
#[cfg(not(feature = "zk"))]
pub use crate::__zk_missing as require_zk;
