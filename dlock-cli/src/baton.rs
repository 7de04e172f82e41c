//! Locks that scripts carry from step to step: taken here, kept in a file, released elsewhere.
//!
//! No process holds the lock between two steps, so that nothing renews it: each step says until when it is kept. A step
//! takes the lock over, by which the file's old text becomes worthless, and where the lock goes on it writes the next
//! text, in one step of the file system.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write, stdin, stdout};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand};
use dlock::{Baton, Guard, Locks, MAX_LEASE, MIN_LEASE, Requirement, Wait};
use serde_json::json;

use crate::run::{SHUTDOWN, under, warn};
use crate::show::{self, printable};
use crate::signals::Signals;
use crate::trouble::{LOST, OTHER, Trouble};
use crate::{Program, store};

/// The lease of the short time for which a step holds the lock itself.
const LEASE: Duration = Duration::from_secs(30);

#[derive(Debug, Subcommand)]
pub(crate) enum BatonTask {
    /// Take a lock, and keep it for whoever has the file
    ///
    /// The file is made, for this user alone; it must not be there. `-` is the standard output.
    Acquire {
        /// The lock's key
        #[arg(long)]
        key: String,
        /// How long to wait for the lock: a time, 0 to try once, or `forever`
        #[arg(long, value_name = "TIME", default_value = "30s", value_parser = crate::wait)]
        wait: Wait,
        #[command(flatten)]
        kept: Kept,
        /// Where the baton is written
        file: PathBuf,
    },
    /// Keep the lock for longer, from now on
    ///
    /// The file has another text afterwards, and its old text is worthless. When this ends before the file is written,
    /// the lock ends with its time.
    Renew {
        #[command(flatten)]
        kept: Kept,
        /// Where the baton is
        file: PathBuf,
    },
    /// Run a command while holding the lock, which is released afterwards and the file removed, or with --keep kept on
    ///
    /// The command is run as by `dlock run`.
    Exec {
        /// Keep the lock for so long after the command, for whoever has the file then: 50ms to 24h
        #[arg(long, value_name = "TIME", value_parser = kept_for)]
        keep: Option<Duration>,
        /// How long the lock outlives this process when it dies; it is renewed at a third of that
        #[arg(long, value_name = "TIME", default_value = "30s", value_parser = crate::duration)]
        lease: Duration,
        /// Where the baton is
        file: PathBuf,
        #[command(flatten)]
        program: Program,
    },
    /// Release the lock, and remove the file
    Release {
        /// Where the baton is
        file: PathBuf,
    },
    /// Say what a baton is of, and until when it is kept; not its secret
    Show {
        /// Where the baton is
        file: PathBuf,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Kept {
    /// For how long nobody else gets the lock: 50ms to 24h
    #[arg(long = "for", value_name = "TIME", default_value = "10m", value_parser = kept_for)]
    time: Duration,
}

/// A time for which a lock can be kept: one that cannot is refused before the lock is taken over, which would be lost.
fn kept_for(text: &str) -> Result<Duration, String> {
    let time = crate::duration(text)?;
    let can_be = (MIN_LEASE..=MAX_LEASE).contains(&time);
    if can_be { Ok(time) } else { Err("a lock is kept for 50ms to 24h".to_owned()) }
}

pub(crate) async fn baton(url: &str, task: BatonTask, as_json: bool) -> Result<u8, Trouble> {
    if let BatonTask::Show { file } = task {
        report(&read(&file)?, as_json)?;
        return Ok(0);
    }
    let locks = store::open(url).await?;
    locks.require(&[Requirement::HandOver])?;
    let carried = carry_out(&locks, task, as_json).await;
    let _ = locks.shutdown(SHUTDOWN).await;
    carried
}

async fn carry_out(locks: &Locks, task: BatonTask, as_json: bool) -> Result<u8, Trouble> {
    match task {
        BatonTask::Acquire { key, wait, kept, file } => {
            if !is_standard(&file) && file.exists() {
                let what = format!("{} is there already, and may be the baton of a lock", file.display());
                return Err(Trouble::usage(what));
            }
            let guard = locks.lock(&key).with_lease(LEASE).with_wait(wait).acquire().await?;
            keep(locks, guard, kept.time, (&file, Place::Free), as_json).await
        }
        BatonTask::Renew { kept, file } => {
            let guard = locks.take_over(&read(&file)?).await?;
            keep(locks, guard, kept.time, (&file, Place::Baton), as_json).await
        }
        BatonTask::Release { file } => {
            locks.take_over(&read(&file)?).await?.release().await?;
            remove(&file);
            Ok(0)
        }
        BatonTask::Exec { keep: time, lease, file, program } => {
            let mut signals = Signals::catch()?;
            let baton = read(&file)?;
            let lock = locks.lock(baton.key()).with_lease(lease).from_baton(&baton)?;
            let guard = lock.acquire().await?;
            let mut outcome = under(&guard.held(), &program, &mut signals).await;
            if outcome.as_ref().map_or_else(Trouble::code, |code| *code) == LOST {
                return outcome;
            }
            let ended = match time {
                Some(time) => keep(locks, guard, time, (&file, Place::Baton), as_json).await.map(drop),
                None => {
                    remove(&file);
                    guard.release().await.map_err(Trouble::from)
                }
            };
            if let Err(trouble) = ended {
                // Somebody else may have had it while the command ran.
                if trouble.code() == LOST && outcome.is_ok() {
                    outcome = Ok(LOST);
                }
                warn(&trouble.to_string());
            }
            outcome
        }
        BatonTask::Show { .. } => Ok(0),
    }
}

/// What stands where a baton is written.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    /// Nothing: what has come since is not overwritten, which may be the baton of another lock.
    Free,
    /// The baton that was taken over, and is worthless.
    Baton,
}

/// Hands the lock over to whoever has the file.
async fn keep(
    locks: &Locks,
    guard: Guard,
    time: Duration,
    (file, place): (&Path, Place),
    as_json: bool,
) -> Result<u8, Trouble> {
    let baton = guard.hand_over().for_at_most(time).await?;
    if let Err(error) = write(file, place, &baton) {
        // Nobody has it.
        let ended = match locks.take_over(&baton).await {
            Ok(guard) => guard.release().await,
            Err(error) => Err(error),
        };
        let lock = match ended {
            Ok(()) => "the lock was released".to_owned(),
            Err(error) => {
                format!("the lock is kept until its time is over, since it could not be released: {error}")
            }
        };
        return Err(Trouble::new(OTHER, format!("{} cannot be written: {error}; {lock}", file.display())));
    }
    if !is_standard(file) {
        report(&baton, as_json)?;
    }
    Ok(0)
}

fn report(baton: &Baton, as_json: bool) -> Result<(), Trouble> {
    let left = baton.until().duration_since(SystemTime::now()).unwrap_or_default();
    let until = humantime::format_rfc3339_seconds(baton.until()).to_string();
    let mut out = stdout().lock();
    if as_json {
        let document = json!({
            "key": baton.key(),
            "backend": baton.backend(),
            "fence": baton.fence().map(dlock::Fence::get),
            "until": until,
        });
        writeln!(out, "{}", show::json(&document)?)?;
        return Ok(());
    }
    let key = printable(baton.key());
    if left.is_zero() {
        writeln!(out, "{key} was kept until {until}")?;
    } else {
        let left = humantime::format_duration(Duration::from_secs(left.as_secs()));
        writeln!(out, "{key} is kept until {until}, for {left}")?;
    }
    Ok(())
}

fn is_standard(file: &Path) -> bool {
    file.as_os_str() == "-"
}

fn read(file: &Path) -> Result<Baton, Trouble> {
    let mut text = String::new();
    let read = match is_standard(file) {
        true => stdin().lock().take(64 * 1024).read_to_string(&mut text),
        false => File::open(file).and_then(|file| file.take(64 * 1024).read_to_string(&mut text)),
    };
    read.map_err(|error| Trouble::usage(format!("{} cannot be read: {error}", file.display())))?;
    text.parse().map_err(|_: dlock::Error| {
        Trouble::usage(format!("{} holds no baton, whose text begins with `dlock-baton:1:`", file.display()))
    })
}

/// Writes a baton for this user alone, and in the place of one that is there in one step.
fn write(file: &Path, place: Place, baton: &Baton) -> io::Result<()> {
    let text = format!("{}\n", baton.to_text());
    if is_standard(file) {
        return stdout().lock().write_all(text.as_bytes());
    }
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let beside = file.with_file_name(name);
    let written = || {
        let mut new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
        new.write_all(text.as_bytes())?;
        new.sync_all()?;
        match place {
            Place::Baton => fs::rename(&beside, file),
            Place::Free => fs::hard_link(&beside, file).and_then(|()| fs::remove_file(&beside)),
        }
    };
    written().inspect_err(|_| drop(fs::remove_file(&beside)))
}

fn remove(file: &Path) {
    if !is_standard(file)
        && let Err(error) = fs::remove_file(file)
    {
        warn(&format!("{} cannot be removed: {error}; its baton is worthless", file.display()));
    }
}
