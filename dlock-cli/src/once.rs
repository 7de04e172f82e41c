//! Running a command once in a window, over all hosts.

use std::pin::pin;
use std::time::{Duration, SystemTime};

use clap::{Args, ValueEnum};
use dlock::{Error, Holder, Locks, MAX_LEASE, MIN_LEASE, OnCrash, OnError, Outcome};
use tokio::sync::oneshot;

use crate::Run;
use crate::run::{SHUTDOWN, under, warn};
use crate::show::{place, printable, short};
use crate::signals::{Signals, exit_code};
use crate::trouble::{LOST, OTHER, SKIPPED, Trouble};
use crate::usage::window;

#[derive(Debug, Args)]
pub(crate) struct Window {
    /// Run the command at most once in this time over all hosts, and otherwise skip it: 1ms to 30days
    ///
    /// The time counts from the start of the command, by the clock of the store.
    #[arg(long, value_name = "WINDOW", value_parser = window, conflicts_with_all = ["read", "permits", "fair"])]
    pub(crate) once: Option<Duration>,
    /// What others do in the rest of the window after the command has failed
    #[arg(long, value_enum, default_value_t, requires = "once")]
    on_error: Then,
    /// What others do in the rest of the window after the command has died with its host or with dlock
    ///
    /// `skip` makes the lease as long as the window, which may then be 50ms to 24h.
    #[arg(long, value_enum, default_value_t, requires = "once")]
    on_crash: Then,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Then {
    /// Run it again
    #[default]
    Rerun,
    /// Skip it, as after a success
    Skip,
}

/// The reason why a job is not done: the command failed, or dlock did.
enum Undone {
    Command,
    Dlock(Error),
}

impl From<Error> for Undone {
    fn from(error: Error) -> Self {
        Self::Dlock(error)
    }
}

/// Runs the command, unless it ran in this window already.
pub(crate) async fn once(locks: &Locks, key: &str, run: &Run, window: Duration) -> Result<u8, Trouble> {
    let options = &run.window;
    if options.on_crash == Then::Skip && !(MIN_LEASE..=MAX_LEASE).contains(&window) {
        return Err(Trouble::usage("with --on-crash skip, --once may be 50ms to 24h"));
    }
    let mut signals = Signals::catch()?;
    let mut job = locks.once(key).with_window(window).with_lease(run.lease);
    if options.on_error == Then::Skip {
        job = job.with_on_error(OnError::Skip);
    }
    if options.on_crash == Then::Skip {
        job = job.with_on_crash(OnCrash::Skip);
    }
    if let Some(wait) = run.waiting.get() {
        job = job.with_wait(wait);
    }
    // The body stands for the command, which runs beside it: a body is dropped at the loss of its lock, while a command
    // gets some time to end.
    let (begin, begun) = oneshot::channel();
    let (end, ended) = oneshot::channel();
    let mut job = pin!(job.run_with(|held| {
        let _ = begin.send(held);
        async move { if ended.await == Ok(true) { Ok(()) } else { Err(Undone::Command) } }
    }));
    let outcome = tokio::select! {
        biased;
        outcome = &mut job => outcome.map(|outcome| (outcome, Ok(0))),
        Ok(held) = begun => {
            let command = async {
                let code = under(&held, &run.program, &mut signals).await;
                let _ = end.send(matches!(code, Ok(0)));
                code
            };
            let (outcome, code) = tokio::join!(job, command);
            match outcome {
                Ok(outcome) => Ok((outcome, code)),
                // The outcome of the command says more: it failed, or was stopped since the lock was lost.
                Err(_) if !matches!(code, Ok(0)) => Ok((Outcome::Ran(()), code)),
                Err(undone) => Err(undone),
            }
        }
        signal = signals.end() => Ok((Outcome::Ran(()), Ok(exit_code(signal.as_raw())))),
    };
    let left = locks.shutdown(SHUTDOWN).await;
    match outcome {
        Ok((Outcome::Ran(()), code)) => {
            if let (Err(error), true) = (left, code.is_ok()) {
                warn(&error.to_string());
            }
            code
        }
        Ok((Outcome::Skipped { by, .. }, _)) => {
            if !run.quiet {
                warn(&skipped(key, &by));
            }
            Ok(run.skip_code.unwrap_or(SKIPPED))
        }
        Err(Undone::Dlock(error)) if error.kind() == dlock::ErrorKind::Lost => {
            warn("the lock was lost just before the command ended; it may run again");
            Ok(LOST)
        }
        Err(Undone::Dlock(error)) => Err(error.into()),
        Err(Undone::Command) => Ok(OTHER),
    }
}

/// Returns the text that says which process ran the command, and at what time.
fn skipped(key: &str, by: &Holder) -> String {
    let who = match &by.label {
        Some(label) => format!("{} ({})", place(by), printable(label)),
        None => place(by),
    };
    let when = by.since.map_or_else(String::new, |since| {
        let ago = SystemTime::now().duration_since(since).unwrap_or_default();
        format!(" at {}, {} ago", humantime::format_rfc3339_seconds(since), short(ago))
    });
    let left = by
        .expires_in
        .map_or_else(String::new, |left| format!("; the window is open again in {}", short(left)));
    if by.left_behind {
        format!("skipped {}: it was run by {who}{when}{left}", printable(key))
    } else {
        format!("skipped {}: it is being run by {who}, begun{when}", printable(key))
    }
}
