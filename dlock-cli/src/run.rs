//! Running a command under a lock.
//!
//! ```text
//! running --ended------------------------------------> its exit code; 79 if the lock was lost meanwhile
//!    |
//!    | lock lost, or only `reserve` left of its lease
//!    v
//! asked to end (TERM, CONT) --ended--> swept --------> 79
//!    |                                  ^
//!    | deadline                         |
//!    v                                  |
//! killed (KILL) ------------------------+
//! ```

use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use dlock::{ErrorKind as Kind, Guard, Held, Locks, Wait};
use rustix::process::Signal;
use tokio::process::Command;
use tokio::time::Instant;

use crate::group::Group;
use crate::guardian::Guardian;
use crate::members::Members;
use crate::signals::{Signals, exit_code, stop};
use crate::trouble::{BUSY, CANNOT_EXECUTE, LOST, NO_SUCH_COMMAND, Trouble};
use crate::{Program, Run, store, trouble};

/// The time to wait for the lock, unless the command line says another.
pub(crate) const WAIT: Wait = Wait::For(Duration::from_secs(30));
/// The time to wait for the release of what is left.
pub(crate) const SHUTDOWN: Duration = Duration::from_secs(5);

/// The pause between two looks at whether a lock was renewed.
const LOOK: Duration = Duration::from_millis(10);

/// The time that it takes to find and kill all that a command has started, before the lease ends.
const KILLING: Duration = Duration::from_millis(100);

/// Takes the lock, runs the command, releases the lock.
pub(crate) async fn run(locks: &Locks, key: &str, run: &Run) -> Result<u8, Trouble> {
    let mut signals = Signals::catch()?;
    let taken = tokio::select! {
        taken = acquire(locks, key, run) => taken,
        signal = signals.end() => {
            // The request may have been granted already: it is withdrawn.
            let _ = locks.shutdown(SHUTDOWN).await;
            return Ok(exit_code(signal.as_raw()));
        }
    };
    let guard = match taken {
        Ok(guard) => guard,
        Err(error) => {
            let _ = locks.shutdown(SHUTDOWN).await;
            return Err(not_run(run, error));
        }
    };
    let mut outcome = under(&guard.held(), &run.program, &mut signals).await;
    let was_lost = outcome.as_ref().map_or_else(Trouble::code, |code| *code) == LOST;
    match guard.release().await {
        Ok(()) => {}
        Err(_) if was_lost => {}
        Err(error) => {
            // Another process may have held the lock while the command ran.
            if error.kind() == Kind::NotHeld && outcome.is_ok() {
                outcome = Ok(LOST);
            }
            // A failed release is a warning: the command has run, and its exit code says more.
            warn(&error.to_string());
        }
    }
    let _ = locks.shutdown(SHUTDOWN).await;
    outcome
}

/// Returns the error of a command that does not run. That another command runs is no failure where the options say so:
/// it has an exit code of its own, and may be kept quiet.
fn not_run(run: &Run, error: dlock::Error) -> Trouble {
    if !error.is_busy() {
        return error.into();
    }
    let what = if run.quiet { String::new() } else { error.to_string() };
    Trouble::new(run.skip_code.unwrap_or(BUSY), what)
}

/// Takes the lock in the way that the options ask for.
async fn acquire(locks: &Locks, key: &str, run: &Run) -> dlock::Result<Guard> {
    let wait = run.waiting.get().unwrap_or(WAIT);
    if let Some(permits) = run.permits {
        let semaphore = locks.semaphore(key, permits).take(run.take);
        return semaphore.with_lease(run.lease).with_wait(wait).acquire().await;
    }
    let lock = locks.lock(key).with_lease(run.lease).with_wait(wait).with_fairness(run.fair);
    if run.read { lock.read().acquire().await } else { lock.acquire().await }
}

/// Runs the command for as long as the lock is held. The command is asked to end early enough to be dead before another
/// process can have the lock.
pub(crate) async fn under(held: &Held, run: &Program, signals: &mut Signals) -> Result<u8, Trouble> {
    // The backend confirms the lock in the first third of that time, and is asked again in the second. The last third
    // is for ending the command.
    let most = held.trusted_for().map_or(Duration::MAX, |trusted| trusted / 3);
    let (grace, reserve) = (run.grace.min(most), run.grace.max(KILLING).min(most));
    let no_guardian = |error| {
        Trouble::new(trouble::OTHER, format!("no process can be started beside the command: {error}"))
    };
    // The guardian comes before the command. Killed between the two starts, this process still leaves a guardian that
    // finds the command by its mark. The lock is checked after that, directly before the start.
    let mark = Members::draw_mark();
    let mut guardian = Guardian::start(mark, grace).map_err(no_guardian)?;
    if let Some(code) = keeps_from_starting(held, reserve, signals).await? {
        return Ok(code);
    }
    let mut group = start(held, run, mark)?;
    guardian.guard(group.members).map_err(no_guardian)?;
    // The time at which the command is killed, once it was asked to end.
    let mut deadline: Option<Instant> = None;
    let status = loop {
        tokio::select! {
            biased;
            status = group.ended() => break status?,
            () = held.lost(), if deadline.is_none() => {
                deadline = Some(end(&group, &mut guardian, &why_lost(held), run.grace));
            }
            left = runs_short(held, reserve), if deadline.is_none() => {
                let why = format!("the lock cannot be renewed and ends in {left:.1?}");
                deadline = Some(end(&group, &mut guardian, &why, grace.min(until_killed(left))));
            }
            () = tokio::time::sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                group.send_all(Signal::KILL);
                break group.ended().await?;
            }
            signal = signals.next() => match signal {
                Signal::TSTP => {
                    // The command must not go on while this process is stopped and does not renew the lock.
                    group.send_all(Signal::STOP);
                    stop();
                    if !is_lost(held) {
                        group.send_all(Signal::CONT);
                    }
                }
                signal => group.pass_on(signal),
            },
        }
    };
    // The command has ended, but what it started may not have. The rest gets the same deadline.
    if let Some(deadline) = deadline {
        group.sweep(deadline).await;
    }
    guardian.done();
    match deadline {
        Some(_) => Ok(LOST),
        None if is_lost(held) => {
            warn("the lock was lost just before the command ended");
            Ok(LOST)
        }
        None => Ok(code(status)),
    }
}

/// Checks the lock directly before the command is started: this process may have stood still meanwhile. Returns the
/// exit code of a signal that came first.
async fn keeps_from_starting(
    held: &Held,
    reserve: Duration,
    signals: &mut Signals,
) -> Result<Option<u8>, Trouble> {
    tokio::select! {
        biased;
        () = held.lost() => {
            Err(Trouble::new(LOST, format!("{}; the command was not started", why_lost(held))))
        }
        signal = signals.end() => Ok(Some(exit_code(signal.as_raw()))),
        () = has_more(held, reserve) => Ok(None),
    }
}

/// Asks the command to end. Returns the time at which it is killed.
fn end(group: &Group, guardian: &mut Guardian, why: &str, grace: Duration) -> Instant {
    let now = Instant::now();
    guardian.asked();
    group.send_all(Signal::TERM);
    // A process that was stopped cannot end.
    group.send_all(Signal::CONT);
    warn(&format!("{why}; the command is stopped"));
    now + grace
}

/// Returns the part of the remaining lease that a command gets to end. The rest is the time to kill it.
fn until_killed(left: Duration) -> Duration {
    (left * 9 / 10).min(left.saturating_sub(KILLING)).max(left * 2 / 3)
}

/// Is `true` if the lock was lost. While the lock is only suspect, no other process has it.
fn is_lost(held: &Held) -> bool {
    held.check().is_err_and(|error| error.kind() != Kind::Suspect)
}

fn why_lost(held: &Held) -> String {
    held.check().err().map(|error| error.to_string()).unwrap_or_default()
}

/// Resolves when more than `reserve` is left of the lock. A lock that was given to a waiter in line is short until it
/// is renewed, which is at once.
async fn has_more(held: &Held, reserve: Duration) {
    while held.remaining().is_some_and(|left| left <= reserve) {
        tokio::time::sleep(LOOK).await;
    }
}

/// Resolves when less than `reserve` is left of the lock, since its renewals fail.
async fn runs_short(held: &Held, reserve: Duration) -> Duration {
    loop {
        let Some(left) = held.remaining() else { return std::future::pending().await };
        if left <= reserve {
            return left;
        }
        tokio::time::sleep(left - reserve).await;
    }
}

fn start(held: &Held, run: &Program, mark: u64) -> Result<Group, Trouble> {
    let Some((program, arguments)) = run.command.split_first() else {
        return Err(Trouble::usage("which command?"));
    };
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("DLOCK_KEY", held.key().unwrap_or_default())
        .env_remove("DLOCK_FENCE")
        .kill_on_drop(true);
    if !run.keep_env {
        store::hide_urls(command.as_std_mut());
    }
    if let Some(fence) = held.fence() {
        command.env("DLOCK_FENCE", fence.to_string());
    }
    Group::start(command, mark).map_err(|error| {
        let program = program.to_string_lossy();
        match error.kind() {
            ErrorKind::NotFound => {
                Trouble::new(NO_SUCH_COMMAND, format!("{program}: there is no such command"))
            }
            ErrorKind::PermissionDenied => {
                Trouble::new(CANNOT_EXECUTE, format!("{program}: it may not be executed"))
            }
            _ => Trouble::new(CANNOT_EXECUTE, format!("{program}: {error}")),
        }
    })
}

fn code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
        (None, Some(signal)) => exit_code(signal),
        (None, None) => trouble::OTHER,
    }
}

pub(crate) fn warn(what: &str) {
    trouble::say(what);
}

#[cfg(test)]
mod tests {
    use dlock::Memory;

    use super::*;

    #[tokio::test]
    async fn of_a_lock_that_is_lost_before_the_command_is_started_nothing_is_said_of_a_command_that_ran() {
        let locks = Locks::builder(Memory::new()).with_lease(Duration::from_millis(300)).build().unwrap();
        let guard = locks.lock("k").acquire().await.unwrap();
        locks.force_release("k").await.unwrap();
        let held = guard.held();
        held.lost().await;
        let mut signals = Signals::catch().unwrap();
        let trouble = keeps_from_starting(&held, KILLING, &mut signals).await.unwrap_err();
        assert_eq!(trouble.code(), LOST);
        assert!(trouble.to_string().ends_with("; the command was not started"), "{trouble}");
    }
}
