//! The code that `#[once]` expands to calls of.

use std::time::Duration;

use dlock_core::{Error, OnCrash, OnError, Outcome};

use super::{Hidden, Section, SectionKeys};

/// A job that finds its locks when it is run.
#[derive(Debug)]
#[must_use = "does nothing until it is run"]
pub struct Job {
    hidden: Box<dyn Hidden>,
    window: Duration,
    on_error: OnError,
    on_crash: OnCrash,
}

/// The return type of a function whose body is a job.
#[diagnostic::on_unimplemented(
    message = "a job returns a `Result` whose error can carry a failure of the lock, and this is `{Self}`",
    label = "no `Result<_, E>` with `E: From<dlock::Error>`",
    note = "write `Result<(), dlock::Error>`, or an error of your own with `impl From<dlock::Error>`"
)]
pub trait JobOutput {
    /// The value that the job returns.
    type Value;
    /// The error that the job returns.
    type Error: From<Error>;
    /// The type that callers of the function get.
    type Outcome: FromOutcome<Self::Value, Self::Error>;

    /// Returns this value as a `Result`.
    ///
    /// # Errors
    ///
    /// The error of this value.
    fn into_result(self) -> Result<Self::Value, Self::Error>;
}

/// A type that is made of a result with an outcome in it.
pub trait FromOutcome<T, E> {
    /// Makes the value.
    fn of(outcome: Result<Outcome<T>, E>) -> Self;
}

impl<T, E> FromOutcome<T, E> for Result<Outcome<T>, E> {
    fn of(outcome: Self) -> Self {
        outcome
    }
}

#[diagnostic::do_not_recommend]
impl<T, E: From<Error>> JobOutput for Result<T, E> {
    type Value = T;
    type Error = E;
    type Outcome = Result<Outcome<T>, E>;

    fn into_result(self) -> Self {
        self
    }
}

impl Section {
    /// Runs a job instead of a section: once in so many milliseconds.
    pub fn once_in_milliseconds(self, window: u64) -> Job {
        self.once_in(Duration::from_millis(window))
    }

    /// Runs a job instead of a section: once in this time.
    pub fn once_in(self, window: Duration) -> Job {
        Job { hidden: self.0, window, on_error: OnError::Rerun, on_crash: OnCrash::Rerun }
    }
}

impl Job {
    /// Applies `on_error = "skip"`.
    pub const fn skip_after_error(mut self) -> Self {
        self.on_error = OnError::Skip;
        self
    }

    /// Applies `on_crash = "skip"`.
    pub const fn skip_after_crash(mut self) -> Self {
        self.on_crash = OnCrash::Skip;
        self
    }

    /// Runs the body, unless another process ran it in this window.
    ///
    /// # Cancel safety
    ///
    /// As [`Once::run`](dlock_core::Once::run).
    pub async fn run<O: JobOutput, F: Future<Output = O>>(mut self, body: F) -> O::Outcome {
        // On the heap, as in a section.
        let body = Box::pin(body);
        let setup = self.hidden.setup();
        let SectionKeys::One(key) = &setup.keys else { unreachable!("the attribute gives one key") };
        let locks = match setup.locks() {
            Ok(locks) => locks,
            Err(error) => return O::Outcome::of(Err(error.into())),
        };
        let mut job = locks.once(key).with_options(|lock| setup.with_options(lock)).with_window(self.window);
        if let Some(wait) = setup.overrides.wait() {
            job = job.with_wait(wait);
        }
        let job = job.with_on_error(self.on_error).with_on_crash(self.on_crash);
        O::Outcome::of(job.run(async move { body.await.into_result() }).await)
    }
}
