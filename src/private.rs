//! What `#[distributed_lock]` expands to calls of. Not for use by hand, and not covered by any promise.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
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
pub enum Source {
    /// None: the default ones.
    Default,
    /// Those registered under a name.
    Named(&'static str),
    /// These.
    Given(Locks),
}

/// Returns the locks that `locks = expr` gives.
pub fn locks_of<T: GivesLocks + ?Sized>(locks: &T) -> Source {
    Source::Given(locks.locks())
}

/// What `locks = expr` takes.
#[diagnostic::on_unimplemented(
    message = "`locks` takes a `dlock::Locks`, and this is a `{Self}`",
    label = "no `Locks`",
    note = "write an expression of the type `Locks`, `&Locks` or `Arc<Locks>`, such as `locks = self.locks`; with a `*` \
            in front of a static `LazyLock<Locks>`, as in `locks = *LOCKS`"
)]
pub trait GivesLocks {
    /// A handle of them.
    fn locks(&self) -> Locks;
}

#[diagnostic::do_not_recommend]
impl<T: AsRef<Locks> + ?Sized> GivesLocks for T {
    fn locks(&self) -> Locks {
        self.as_ref().clone()
    }
}

/// Collects the keys that `keys = { expression }` gives.
pub fn keys_of<K: ToString>(keys: impl IntoIterator<Item = K>) -> Vec<String> {
    keys.into_iter().map(|key| key.to_string()).collect()
}

/// A critical section that finds its locks when it is entered. What each annotated function has of its own is one small
/// future, [`Run`]; the rest is compiled once.
#[derive(Debug)]
pub struct Section(Box<dyn Hidden>);

/// A [`Setup`] whose type is not seen from outside, so that no lint about what its drop does applies to the functions
/// that have one.
trait Hidden: std::fmt::Debug + Send {
    fn setup(&mut self) -> &mut Setup;
}

impl Hidden for Setup {
    fn setup(&mut self) -> &mut Setup {
        self
    }
}

#[derive(Debug)]
struct Setup {
    site: Site,
    source: Source,
    keys: SectionKeys,
    requires: &'static [Requirement],
    wait: Option<Wait>,
    lease: Option<Duration>,
    on_lost: Option<OnLost>,
    recheck: Option<bool>,
    run_when_unavailable: bool,
    inner: Option<dlock_core::Section>,
    segmented: Option<SegmentedSection>,
    /// Whether the body has returned.
    is_done: bool,
}

#[derive(Debug)]
enum SectionKeys {
    One(String),
    All(Vec<String>),
}

impl Section {
    /// Creates a section under one key; nothing happens yet.
    #[must_use]
    pub fn new(site: Site, source: Source, key: String) -> Self {
        Self::of(site, source, SectionKeys::One(key))
    }

    /// Creates a section under several keys.
    #[must_use]
    pub fn all(site: Site, source: Source, keys: Vec<String>) -> Self {
        Self::of(site, source, SectionKeys::All(keys))
    }

    fn of(site: Site, source: Source, keys: SectionKeys) -> Self {
        Self(Box::new(Setup {
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
            segmented: None,
            is_done: false,
        }))
    }

    /// Applies `wait = ...`.
    #[must_use]
    pub fn wait(mut self, wait: Wait) -> Self {
        self.0.setup().wait = Some(wait);
        self
    }

    /// Applies `lease = ...`.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.0.setup().lease = Some(lease);
        self
    }

    /// Applies `on_lost = ...`.
    #[must_use]
    pub fn on_lost(mut self, on_lost: OnLost) -> Self {
        self.0.setup().on_lost = Some(on_lost);
        self
    }

    /// Applies `recheck = ...`.
    #[must_use]
    pub fn recheck(mut self, on: bool) -> Self {
        self.0.setup().recheck = Some(on);
        self
    }

    /// Applies `requires = ...`.
    #[must_use]
    pub fn requires(mut self, requirements: &'static [Requirement]) -> Self {
        self.0.setup().requires = requirements;
        self
    }

    /// Applies `segments = ...`.
    #[must_use]
    pub fn segments(self, count: u32) -> Segments {
        Segments { hidden: self.0, count }
    }

    /// Applies `on_unavailable = "run"`.
    #[must_use]
    pub fn run_when_unavailable(mut self) -> Self {
        self.0.setup().run_when_unavailable = true;
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
    /// When dropped with the section, as [`Lock::acquire`].
    pub async fn enter(&mut self) -> Result<()> {
        let inner = self.0.setup().inner()?;
        inner.enter().await
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
    pub const fn run<'a, F: Future>(&'a mut self, body: Pin<&'a mut F>) -> Run<'a, F> {
        Run { section: self, body, output: None }
    }

    fn poll_run(
        &mut self,
        cx: &mut Context<'_>,
        body: &mut dyn FnMut(&mut Context<'_>) -> Poll<()>,
    ) -> Poll<Result<()>> {
        let setup = self.0.setup();
        let is_done = setup.is_done;
        let inner = setup.inner()?;
        if !is_done {
            ready!(inner.poll_enter(cx))?;
            ready!(inner.poll_body(cx, body))?;
        }
        let left = inner.poll_leave(cx);
        setup.is_done = left.is_pending();
        left.map(Ok)
    }
}

/// [`Section::run`] of one body.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Run<'a, F: Future> {
    section: &'a mut Section,
    body: Pin<&'a mut F>,
    output: Option<F::Output>,
}

/// The body is pinned elsewhere, and its output is not.
impl<F: Future> Unpin for Run<'_, F> {}

impl<F: Future> Future for Run<'_, F> {
    type Output = Result<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { section, body, output } = &mut *self;
        let ran = section.poll_run(cx, &mut |cx| match body.as_mut().poll(cx) {
            Poll::Ready(returned) => {
                *output = Some(returned);
                Poll::Ready(())
            }
            Poll::Pending => Poll::Pending,
        });
        match ran {
            Poll::Ready(Ok(())) => Poll::Ready(Ok(output.take().unwrap_or_else(|| no_output()))),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }
}

#[cold]
fn no_output() -> ! {
    unreachable!("a body that has returned has an output")
}

impl Setup {
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
        let locks = match &self.source {
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
pub struct Segments {
    hidden: Box<dyn Hidden>,
    count: u32,
}

/// In a box, so that it is compiled once.
type Step<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

impl Segments {
    /// Takes a segment, if none is taken.
    ///
    /// # Errors
    ///
    /// Those of the look-up and of [`dlock_core::Segmented::run`].
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`].
    pub fn enter(&mut self) -> Step<'_, Result<Segment>> {
        Box::pin(async move { self.inner()?.enter().await })
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
    pub fn leave(&mut self) -> Step<'_, ()> {
        Box::pin(async move {
            if let Some(section) = &mut self.hidden.setup().segmented {
                section.leave().await;
            }
        })
    }

    fn inner(&mut self) -> Result<&mut SegmentedSection> {
        let setup = self.hidden.setup();
        let section = match setup.segmented.take() {
            Some(section) => section,
            None => {
                let locks = setup.locks()?;
                let SectionKeys::One(key) = &setup.keys else { unreachable!("the attribute gives one key") };
                SegmentedSection::new(setup.with_options(locks.lock(key)).segmented(self.count))
            }
        };
        Ok(setup.segmented.insert(section))
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
    /// The failure as this type.
    fn from_error(error: Error) -> Self;
}

#[diagnostic::do_not_recommend]
impl<E: From<Error>> FromError for E {
    fn from_error(error: Error) -> Self {
        error.into()
    }
}

/// Returns what the body did, or the failure of the lock, as the function does.
#[must_use]
pub fn output<R: FromLock>(outcome: Result<R>) -> R {
    match outcome {
        Ok(output) => output,
        Err(error) => R::from_lock(error),
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
