//! Locks that scripts carry from step to step: taken here, kept in a file, released elsewhere.
//!
//! No process holds the lock between two steps, so nothing renews it: each step sets the time for which the lock is
//! kept. A step takes the lock over, which makes the old text of the file worthless. If the lock goes on, the step then
//! puts the next text in its place, in one step of the file system.
//!
//! ```text
//! acquire             blank file -> lock granted      -> baton written into it
//! renew, exec --keep  draft      -> lock taken over   -> draft written, renamed over the file
//! exec, release                     lock taken over   -> file removed -> lock released
//! ```

mod file;

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand};
use dlock::{Baton, ErrorKind, Guard, Locks, MAX_LEASE, MIN_LEASE, Requirement};
use serde_json::{Value, json};
use tokio::time::timeout;

use self::file::{Draft, Kept, is_standard};
use crate::report::{changed, print};
use crate::run::{SHUTDOWN, WAIT, under, warn};
use crate::show::printable;
use crate::signals::{Signals, exit_code};
use crate::trouble::{LOST, OTHER, Trouble};
use crate::usage::{KeyAndFile, Waiting};
use crate::{Program, store};

/// The lease of a step that holds the lock itself for a short time.
const LEASE: Duration = Duration::from_secs(30);

#[derive(Debug, Subcommand)]
pub(crate) enum BatonTask {
    /// Take a lock, and keep it for whoever has the file
    ///
    /// dlock makes the file first, blank and readable for this user alone; it must not exist. If the lock is not
    /// granted, dlock removes it.
    #[command(
        override_usage = "dlock baton acquire [OPTIONS] KEY FILE\n       dlock baton acquire [OPTIONS] --key KEY FILE"
    )]
    Acquire {
        #[command(flatten)]
        place: KeyAndFile,
        #[command(flatten)]
        waiting: Waiting,
        #[command(flatten)]
        period: Period,
    },
    /// Keep the lock for longer, from now on
    ///
    /// The file gets another text, and copies of the old text become worthless. If no file can be made beside it,
    /// nothing is taken over (exit code 64). When dlock is killed before it has written the file, the lock ends within
    /// 30 s; when it fails after the take-over, it releases the lock and removes the file.
    Renew {
        #[command(flatten)]
        period: Period,
        /// The file with the baton; `-` reads standard input and writes standard output
        file: PathBuf,
    },
    /// Run a command while holding the lock, then release it, or with --keep keep it
    ///
    /// The command runs as by `dlock run`. However it ends, and also if it cannot be started, the lock is released and
    /// the file removed; with --keep, the lock is kept and the file written anew. If the lock was lost, or cannot be
    /// kept, dlock removes the file, since its baton is worthless. If the command ends with 0 and the lock cannot be
    /// kept, the exit code is that of the failure: 69, 70 or 79.
    #[command(override_usage = "dlock baton exec [OPTIONS] FILE -- COMMAND...")]
    Exec {
        /// Keep the lock for so long after the command: 50ms to 24h
        #[arg(long, value_name = "TIME", value_parser = kept_for)]
        keep: Option<Duration>,
        /// How long the lock stays taken if this process dies; dlock renews it after a third of that
        #[arg(long, value_name = "TIME", default_value = "30s", value_parser = crate::usage::lease)]
        lease: Duration,
        /// The file with the baton; `-` is standard input
        file: PathBuf,
        #[command(flatten)]
        program: Program,
    },
    /// Release the lock, and remove the file
    ///
    /// The file stays if its baton was taken over before or its time is over (exit code 79); so do `renew` and `exec`
    /// leave it then.
    Release {
        /// The file with the baton; `-` is standard input
        file: PathBuf,
    },
    /// Show the key of a baton and its time, without its secret
    ///
    /// dlock reads only the file and needs no URL: it does not ask whether the baton was taken over meanwhile.
    Show {
        /// The file with the baton; `-` is standard input
        file: PathBuf,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Period {
    /// Keep the lock for so long: 50ms to 24h
    #[arg(long = "for", value_name = "TIME", default_value = "10m", value_parser = kept_for)]
    time: Duration,
}

/// Parses a time for which a lock can be kept. Any other time is refused before the lock is taken over, which would be
/// lost.
fn kept_for(text: &str) -> Result<Duration, String> {
    let time = crate::usage::duration(text)?;
    let can_be = (MIN_LEASE..=MAX_LEASE).contains(&time);
    if can_be { Ok(time) } else { Err("a lock is kept for 50ms to 24h".to_owned()) }
}

pub(crate) async fn baton(url: &str, task: BatonTask, as_json: bool) -> Result<u8, Trouble> {
    // Signals are caught after the file is read: a signal must still end a read that waits for its input.
    match task {
        BatonTask::Show { file } => show(file, as_json),
        BatonTask::Acquire { place, waiting, period } => {
            let (key, file) = place.get()?;
            let wait = waiting.get().unwrap_or(WAIT);
            let locks = open(url).await?;
            let acquire = async {
                // The file before the lock: a path that cannot be written must not cost the wait.
                let draft = Draft::new(&file)?;
                let guard = locks.lock(&key).with_lease(LEASE).with_wait(wait).acquire().await?;
                let baton = keep(&locks, guard, period.time, draft).await?;
                report(&file, &baton, as_json);
                Ok(())
            };
            attended(&locks, Duration::ZERO, acquire).await
        }
        BatonTask::Renew { period, file } => {
            let kept = Kept::read(file)?;
            let locks = open(url).await?;
            let renew = async {
                // As in `exec`: made before the take-over, which makes the old text worthless.
                let draft = Draft::beside(&kept)?;
                let guard = take_over(&locks, &kept, LEASE).await?;
                let baton = keep(&locks, guard, period.time, draft).await.inspect_err(|_| kept.remove())?;
                report(&kept.file, &baton, as_json);
                Ok(())
            };
            attended(&locks, SHUTDOWN, renew).await
        }
        BatonTask::Release { file } => {
            let kept = Kept::read(file)?;
            let locks = open(url).await?;
            let release = async {
                let guard = take_over(&locks, &kept, LEASE).await?;
                // The file goes first: its baton is worthless since the take-over, whatever becomes of the release.
                kept.remove();
                Ok(guard.release().await?)
            };
            attended(&locks, SHUTDOWN, release).await
        }
        BatonTask::Exec { keep: time, lease, file, program } => {
            // A baton on standard output would be mixed with what the command writes.
            if time.is_some() && is_standard(&file) {
                return Err(Trouble::usage("the standard output is the command's: --keep needs a file"));
            }
            let kept = Kept::read(file)?;
            let locks = open(url).await?;
            let carried = exec(&locks, &kept, lease, time, &program).await;
            let _ = locks.shutdown(SHUTDOWN).await;
            carried
        }
    }
}

/// Prints the key and the time of the baton in a file.
pub(crate) fn show(file: PathBuf, as_json: bool) -> Result<u8, Trouble> {
    let baton = Kept::read(file)?.baton;
    print(as_json, &document(&baton), &until(&baton))?;
    Ok(0)
}

async fn open(url: &str) -> Result<Locks, Trouble> {
    let locks = store::open(url).await?;
    locks.require(&[Requirement::HandOver])?;
    Ok(locks)
}

/// Does the work, unless a signal ends it. The lock is then released, or kept with its file written.
async fn attended(
    locks: &Locks,
    patience: Duration,
    work: impl Future<Output = Result<(), Trouble>>,
) -> Result<u8, Trouble> {
    let mut signals = Signals::catch()?;
    let (done, signal) = unless_ended(&mut signals, patience, work).await;
    let _ = locks.shutdown(SHUTDOWN).await;
    match (done, signal) {
        (done, Some(code)) => {
            if let Some(Err(trouble)) = done {
                warn(&trouble.to_string());
            }
            Ok(code)
        }
        (Some(Err(trouble)), None) => Err(trouble),
        (Some(Ok(())) | None, None) => Ok(0),
    }
}

/// Does the work. After a signal that asks to end, the work may take `patience` longer, since a take-over that is
/// dropped midway costs the lock; then it is dropped. Returns the exit code of the signal, if one came.
async fn unless_ended<T>(
    signals: &mut Signals,
    patience: Duration,
    work: impl Future<Output = T>,
) -> (Option<T>, Option<u8>) {
    let mut work = pin!(work);
    tokio::select! {
        biased;
        done = &mut work => (Some(done), None),
        signal = signals.end() => {
            // A release or a take-over that is under way is better finished than dropped.
            let done = timeout(patience, work).await.ok();
            if done.is_none() && !patience.is_zero() {
                warn("the store does not answer; if the lock was taken over, it is released, and its file worthless");
            }
            (done, Some(exit_code(signal.as_raw())))
        }
    }
}

/// Takes the lock over from the file, in the mode in which it was held: exclusive, or as a reader's share or permits of
/// a service.
async fn take_over(locks: &Locks, kept: &Kept, lease: Duration) -> Result<Guard, Trouble> {
    let taken = locks.from_baton(&kept.baton)?.with_lease(lease).acquire().await;
    taken.map_err(|error| match error.kind() {
        ErrorKind::NotHeld => {
            // The baton may be that of another server, and still valid there.
            Trouble::new(LOST, format!("{error}; {} was left as it is", kept.file.display()))
        }
        _ => error.into(),
    })
}

/// Runs the command under the lock, which is then kept for `time`, or released.
async fn exec(
    locks: &Locks,
    kept: &Kept,
    lease: Duration,
    time: Option<Duration>,
    program: &Program,
) -> Result<u8, Trouble> {
    let mut signals = Signals::catch()?;
    // The draft is made before the take-over: a directory that cannot be written must not cost the lock.
    let draft = time.map(|time| Ok::<_, Trouble>((time, Draft::beside(kept)?))).transpose()?;
    let guard = match unless_ended(&mut signals, SHUTDOWN, take_over(locks, kept, lease)).await {
        (Some(guard), None) => Ok(guard?),
        (Some(Ok(guard)), Some(code)) => Err((guard, code)),
        (Some(Err(trouble)), Some(code)) => {
            warn(&trouble.to_string());
            return Ok(code);
        }
        (None, code) => return Ok(code.unwrap_or(OTHER)),
    };
    let (guard, outcome) = match guard {
        Ok(guard) => {
            let outcome = under(&guard.held(), program, &mut signals).await;
            (guard, outcome)
        }
        Err((guard, code)) => (guard, Ok(code)),
    };
    // The command itself may have ended with that code.
    let says_lost = outcome.as_ref().map_or_else(Trouble::code, |code| *code) == LOST;
    let ended = match draft {
        _ if says_lost && guard.check().is_err() => {
            kept.remove();
            return outcome;
        }
        Some((time, draft)) => keep(locks, guard, time, draft)
            .await
            .map(|baton| warn(&until(&baton)))
            .inspect_err(|_| kept.remove()),
        None => {
            kept.remove();
            guard.release().await.map_err(Trouble::from)
        }
    };
    let Err(trouble) = ended else { return outcome };
    match outcome {
        // Another process may have held the lock while the command ran.
        Ok(_) if trouble.code() == LOST => Err(trouble),
        Ok(0) if time.is_some() => Err(trouble),
        outcome => {
            warn(&trouble.to_string());
            outcome
        }
    }
}

/// Hands the lock over to the bearer of the file.
async fn keep(locks: &Locks, guard: Guard, time: Duration, draft: Draft<'_>) -> Result<Baton, Trouble> {
    let baton = guard.hand_over().for_at_most(time).await?;
    let Err(error) = draft.write(&baton) else { return Ok(baton) };
    // No process can read the baton. The lock is taken back, so as to be released.
    let ended = match locks.take_over(&baton).await {
        Ok(guard) => guard.release().await,
        Err(error) => Err(error),
    };
    let lock = match ended {
        Ok(()) => "the lock was released".to_owned(),
        Err(error) => {
            let key = printable(baton.key());
            format!(
                "the lock is kept until its time is over or `dlock release --force {key}` frees it, since it could not \
                 be released: {error}"
            )
        }
    };
    Err(Trouble::new(OTHER, format!("the baton cannot be written: {error}; {lock}")))
}

/// Reports the baton that was written to a file; the standard output has the baton itself.
fn report(file: &Path, baton: &Baton, as_json: bool) {
    if !is_standard(file) {
        changed(as_json, &document(baton), &until(baton));
    }
}

fn document(baton: &Baton) -> Value {
    json!({
        "key": baton.key(),
        "backend": baton.backend(),
        "fence": baton.fence().map(dlock::Fence::get),
        "until": humantime::format_rfc3339_seconds(baton.until()).to_string(),
    })
}

/// Returns the text that says until when the lock is kept.
fn until(baton: &Baton) -> String {
    let left = baton.until().duration_since(SystemTime::now()).unwrap_or_default();
    let (key, until) = (printable(baton.key()), humantime::format_rfc3339_seconds(baton.until()));
    if left.is_zero() {
        return format!("{key} was kept until {until}");
    }
    let left = humantime::format_duration(Duration::from_secs(left.as_secs()));
    format!("{key} is kept until {until}, for {left}")
}
