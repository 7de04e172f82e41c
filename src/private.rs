//! The code that `#[distributed_lock]` and the other attributes expand to calls of. Not for use by hand, and not
//! covered by any promise.
//!
//! A section goes through these stages, one `poll` after the other:
//!
//! ```text
//! Locked --body returned, release not done--> Leaving --released--> ready
//!    |
//!    +--the lock is busy, and the body has an `on_busy`--> Busy --body returned, without the lock--> ready
//! ```

#[path = "private/candidate.rs"]
mod candidate;
#[path = "private/job.rs"]
mod job;
#[path = "private/segments.rs"]
mod segments;

use std::borrow::Borrow;
use std::cell::Cell;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

pub use dlock_core::Overrides;
use dlock_core::{Baton, Error, Lock, Locks, Requirement, Result, SegmentedSection};

pub use self::candidate::{Candidate, held, resign};
pub use self::job::{Job, JobOutput};
pub use self::segments::Segments;
use crate::registry;

/// The locks that the attribute names.
#[derive(Debug)]
pub enum Source {
    /// The default locks: the attribute names none.
    Default,
    /// The locks registered under a name.
    Named(&'static str),
    /// The locks that the attribute was given.
    Given(Locks),
}

/// Returns the locks that `locks = expr` gives.
pub fn locks_of<T: GivesLocks + ?Sized>(locks: &T) -> Source {
    Source::Given(locks.locks())
}

/// A type that `locks = expr` takes.
#[diagnostic::on_unimplemented(
    message = "`locks` takes a `dlock::Locks`, and this is a `{Self}`",
    label = "no `Locks`",
    note = "write an expression of the type `Locks`, `&Locks` or `Arc<Locks>`, such as `locks = self.locks`; with a `*` \
            in front of a static `LazyLock<Locks>`, as in `locks = *LOCKS`"
)]
pub trait GivesLocks {
    /// Returns a handle of the locks.
    fn locks(&self) -> Locks;
}

#[diagnostic::do_not_recommend]
impl<T: AsRef<Locks> + ?Sized> GivesLocks for T {
    fn locks(&self) -> Locks {
        self.as_ref().clone()
    }
}

/// Returns the baton that `from = ...` gives.
pub fn baton<B: GivesBaton + ?Sized>(baton: &B) -> Baton {
    baton.baton()
}

/// A type that `from = expr` takes.
#[diagnostic::on_unimplemented(
    message = "`from` takes a `dlock::Baton`, and this is a `{Self}`",
    label = "no `Baton`",
    note = "write an expression of the type `Baton` or `&Baton`; of a text it is `from = text.parse::<dlock::Baton>()?`"
)]
pub trait GivesBaton {
    /// Returns a copy of the baton.
    fn baton(&self) -> Baton;
}

#[diagnostic::do_not_recommend]
impl<B: Borrow<Baton> + ?Sized> GivesBaton for B {
    fn baton(&self) -> Baton {
        self.borrow().clone()
    }
}

/// Collects the keys that `keys = { expression }` gives.
pub fn keys_of<K: ToString>(keys: impl IntoIterator<Item = K>) -> Vec<String> {
    keys.into_iter().map(|key| key.to_string()).collect()
}

/// A critical section that finds its locks when it is entered. Each annotated function has only one small future of its
/// own, [`Run`]; the rest is compiled once.
#[derive(Debug)]
#[must_use = "does nothing until it is run"]
pub struct Section(Box<dyn Hidden>);

/// A [`Setup`] whose type is not visible, so that no lint about its drop applies to the functions that have one.
trait Hidden: fmt::Debug + Send {
    fn setup(&mut self) -> &mut Setup;
}

impl Hidden for Setup {
    fn setup(&mut self) -> &mut Setup {
        self
    }
}

#[derive(Debug)]
struct Setup {
    /// The function's path.
    function: &'static str,
    /// The key's pattern.
    template: &'static str,
    source: Source,
    keys: SectionKeys,
    requires: &'static [Requirement],
    overrides: Overrides,
    baton: Option<Baton>,
    /// The number of permits of the semaphore, and the number to take.
    permits: Option<(u32, u32)>,
    run_when_unavailable: bool,
    /// Is `true` if the body itself says what to return when the lock is busy.
    has_on_busy: bool,
    inner: Option<dlock_core::Section>,
    segmented: Option<SegmentedSection>,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The lock is taken if it is not, and the body runs under it.
    Locked,
    /// The lock was busy, and the body runs without it to say what to return.
    Busy,
    /// The body has returned; the lock is being released.
    Leaving,
}

thread_local! {
    /// The error of the busy lock, while a body that has an `on_busy` is polled for the first time.
    static BUSY: Cell<Option<Error>> = const { Cell::new(None) };
}

/// Returns the error of the busy lock to a body with `on_busy`, which asks first of all; `None` under the lock.
#[must_use]
pub fn busy() -> Option<Error> {
    BUSY.take()
}

#[derive(Debug)]
enum SectionKeys {
    One(String),
    All(Vec<String>),
}

impl Section {
    /// Creates a section under the key that a template gives; nothing happens yet.
    pub fn new(
        function: &'static str,
        template: &'static str,
        source: Source,
        key: fmt::Arguments<'_>,
    ) -> Self {
        Self::of(function, template, source, key.to_string())
    }

    /// Creates a section under one key.
    pub fn of(function: &'static str, template: &'static str, source: Source, key: String) -> Self {
        Self::under(function, template, source, SectionKeys::One(key))
    }

    /// Creates a section under several keys.
    pub fn all(function: &'static str, template: &'static str, source: Source, keys: Vec<String>) -> Self {
        Self::under(function, template, source, SectionKeys::All(keys))
    }

    fn under(function: &'static str, template: &'static str, source: Source, keys: SectionKeys) -> Self {
        Self(Box::new(Setup {
            function,
            template,
            source,
            keys,
            requires: &[],
            overrides: Overrides::new(),
            baton: None,
            permits: None,
            run_when_unavailable: false,
            has_on_busy: false,
            inner: None,
            segmented: None,
            stage: Stage::Locked,
        }))
    }

    /// Applies the options of the lock itself.
    pub fn with_overrides(mut self, overrides: Overrides) -> Self {
        self.0.setup().overrides = overrides;
        self
    }

    /// Applies `from = ...`.
    pub fn from_baton(mut self, baton: Baton) -> Self {
        self.0.setup().baton = Some(baton);
        self
    }

    /// Applies `permits = ...` and `take = ...`.
    pub fn permits(mut self, of: u32, take: u32) -> Self {
        self.0.setup().permits = Some((of, take));
        self
    }

    /// Applies `requires = ...`.
    pub fn requires(mut self, requirements: &'static [Requirement]) -> Self {
        self.0.setup().requires = requirements;
        self
    }

    /// Applies `segments = ...`.
    pub fn segments(self, count: u32) -> Segments {
        Segments::new(self.0, count)
    }

    /// Applies `on_unavailable = "run"`.
    pub fn run_when_unavailable(mut self) -> Self {
        self.0.setup().run_when_unavailable = true;
        self
    }

    /// Applies `on_busy = ...`: if the lock is busy, the body is polled without it, and finds the error in [`busy`].
    pub fn has_on_busy(mut self) -> Self {
        self.0.setup().has_on_busy = true;
        self
    }

    /// Takes the lock, runs the body, and releases the lock. A failure of the lock is returned as the body returns its
    /// own.
    ///
    /// # Cancel safety
    ///
    /// When dropped, the body is dropped first, and the lock is then released in the background.
    pub const fn run<R: FromLock, F: Future<Output = R>>(self, body: F) -> Run<R, F> {
        Run { body, output: None, from_lock: R::from_lock, section: self }
    }

    fn poll_run(
        &mut self,
        cx: &mut Context<'_>,
        body: &mut dyn FnMut(&mut Context<'_>) -> Poll<()>,
    ) -> Poll<Result<()>> {
        let setup = self.0.setup();
        let (stage, has_on_busy) = (setup.stage, setup.has_on_busy);
        // The body has taken its error at its first poll, and goes on without a lock.
        if stage == Stage::Busy {
            return body(cx).map(Ok);
        }
        let inner = setup.inner()?;
        if stage == Stage::Locked {
            match ready!(inner.poll_enter(cx)) {
                Err(error) if has_on_busy && error.is_busy() => {
                    setup.stage = Stage::Busy;
                    // Set right before the poll on this thread: the body takes it first of all, and no other body runs
                    // in between.
                    BUSY.set(Some(error));
                    return body(cx).map(Ok);
                }
                entered => entered?,
            }
            ready!(inner.poll_body(cx, body))?;
        }
        // Without a pending release the stage stays, since nothing polls a section that is ready.
        let left = inner.poll_leave(cx);
        if left.is_pending() {
            setup.stage = Stage::Leaving;
        }
        left.map(Ok)
    }
}

pin_project! {
    /// The future of [`Section::run`] for one body. The fields are in the order of their drop: the lock is released
    /// last.
    #[must_use = "futures do nothing unless polled"]
    #[project = Running]
    pub struct Run<R, F> {
        #[pin]
        body: F,
        output: Option<R>,
        // A function pointer in place of a bound of `Future`, whose failure would be a second error about the same
        // type.
        from_lock: fn(Error) -> R,
        section: Section,
    }
}

impl<R, F: Future<Output = R>> Future for Run<R, F> {
    type Output = R;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<R> {
        let Running { mut body, output, from_lock, section } = self.project();
        let ran = section.poll_run(cx, &mut |cx| match body.as_mut().poll(cx) {
            Poll::Ready(returned) => {
                *output = Some(returned);
                Poll::Ready(())
            }
            Poll::Pending => Poll::Pending,
        });
        returned(ran, output, *from_lock)
    }
}

/// Returns the value of the function. Compiled once for each type that functions return, not for each function.
fn returned<R>(ran: Poll<Result<()>>, output: &mut Option<R>, from_lock: fn(Error) -> R) -> Poll<R> {
    ran.map(|ran| match ran {
        Ok(()) => output.take().unwrap_or_else(|| no_output()),
        Err(error) => from_lock(error),
    })
}

#[cold]
fn no_output() -> ! {
    unreachable!("a body that has returned has an output")
}

impl Setup {
    fn inner(&mut self) -> Result<&mut dlock_core::Section> {
        // The locks are found at the first poll and not when the section is made, so that a registration or an override
        // in between counts.
        let section = match self.inner.take() {
            Some(section) => section,
            None => {
                let locks = self.locks()?;
                let section = match (&self.keys, self.permits) {
                    (SectionKeys::One(key), Some((of, take))) => {
                        let semaphore = locks.semaphore(key, of).take(take);
                        semaphore.with_options(|lock| self.with_options(lock)).into()
                    }
                    (SectionKeys::One(key), None) => {
                        let lock = self.with_options(locks.lock(key));
                        let lock = match &self.baton {
                            Some(baton) => lock.from_baton(baton)?,
                            None => lock,
                        };
                        dlock_core::Section::new(lock)
                    }
                    (SectionKeys::All(keys), _) => {
                        locks.lock_all(keys).with_each(|lock| self.with_options(lock)).into()
                    }
                };
                if self.run_when_unavailable { section.run_when_unavailable() } else { section }
            }
        };
        Ok(self.inner.insert(section))
    }

    fn locks(&self) -> Result<Locks> {
        let locks = match &self.source {
            Source::Default => registry::default_locks()?,
            Source::Named(name) => registry::registered(name)?,
            Source::Given(locks) => locks.clone(),
        };
        // The order is an option of the lock where the backend leaves it to that, and one of the overrides.
        let of_locks = |requirement: &Requirement| *requirement != Requirement::Fair;
        let required: Vec<_> = self.requires.iter().copied().filter(of_locks).collect();
        locks.require(&required)?;
        Ok(locks)
    }

    fn with_options(&self, lock: Lock) -> Lock {
        lock.with_template(self.template).with_function(self.function).with_overrides(&self.overrides)
    }
}

/// The future of a step, in a box so that it is compiled once.
type Step<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

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
    /// Returns the failure as this type.
    fn from_lock(error: Error) -> Self;
}

impl<T, E: FromError> FromLock for Result<T, E> {
    fn from_lock(error: Error) -> Self {
        Err(E::from_error(error))
    }
}

/// An error that can carry a failure of the lock: one with `From<dlock::Error>`.
#[diagnostic::on_unimplemented(
    message = "the lock can fail, and `{Self}` cannot carry the failure",
    label = "`{Self}` is not `From<dlock::Error>`",
    note = "for an error of your own write `impl From<dlock::Error> for {Self}`, for example as a variant with thiserror's \
            `#[from]`; a type of another crate cannot have it, so wrap that in one of your own; or return \
            `Result<_, dlock::Error>`, or an error that takes any other, such as `anyhow::Error` or \
            `Box<dyn std::error::Error + Send + Sync>`"
)]
pub trait FromError {
    /// Returns the failure as this type.
    fn from_error(error: Error) -> Self;
}

#[diagnostic::do_not_recommend]
impl<E: From<Error>> FromError for E {
    fn from_error(error: Error) -> Self {
        error.into()
    }
}

/// Turns a failure of the lock into the function's return type.
#[must_use]
pub fn from_lock<R: FromLock>(error: Error) -> R {
    R::from_lock(error)
}

/// Expands to nothing: `require_x!{}` is this macro if the backend is compiled in, and otherwise the one whose error
/// says what to do.
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
macro_rules! __etcd_missing {
    () => {
        ::core::compile_error!(
            "`backend = \"etcd\"` needs the `etcd` feature of `dlock`: dlock-sdk = { features = [\"etcd\"] }"
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

#[cfg(not(feature = "etcd"))]
pub use crate::__etcd_missing as require_etcd;
#[cfg(not(feature = "mysql"))]
pub use crate::__mysql_missing as require_mysql;
#[cfg(feature = "etcd")]
pub use crate::__nothing_required as require_etcd;
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
