//! What processes did with locks, and when.
//!
//! Every process writes its own file, one event a line, each with one write: what was written before a `SIGKILL` is
//! there after it. All times are [`now_ns`], so that files of one host can be read together.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;

pub use dlock_audit::checker::HeldAs;
use dlock_core::Guard;
use dlock_core::backend::Mutex;
use serde::{Deserialize, Serialize};

use crate::now_ns;

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Taking the lock.
    Acquire,
    /// Asking the guard whether it is held.
    Check,
    /// Giving the lock back.
    Release,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Done; for a check: it is held.
    Ok,
    /// Not done, for certain; for a check: it is not held.
    Fail,
    /// Perhaps done.
    Unknown,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The number of the process in its test.
    pub process: u32,
    /// The number of the hold in its process. A nested hold has the number of the outer one.
    pub hold: u64,
    /// The key.
    pub key: String,
    /// What was done.
    pub op: Op,
    /// When it began.
    pub invoked: u64,
    /// When it ended.
    pub returned: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// The fence of the hold.
    pub fence: Option<u64>,
    /// Until when, at the least, the lock is the holder's if nothing further happens; 0 when it was lost by then.
    pub valid_until: Option<u64>,
    /// How it is held; told by what takes it.
    #[serde(default)]
    pub held_as: HeldAs,
}

impl Event {
    /// Returns the same event, held in this way.
    #[must_use]
    pub fn with_held_as(self, held_as: HeldAs) -> Self {
        Self { held_as, ..self }
    }

    /// Returns the event of something that has just been done and went well, by what gives no fence and promises no
    /// time: another library, or nothing at all.
    #[must_use]
    pub fn without_fence(process: u32, hold: u64, key: &str, op: Op, invoked: u64) -> Self {
        let (key, outcome) = (key.to_owned(), Outcome::Ok);
        let (returned, fence, valid_until, held_as) = (now_ns(), None, None, HeldAs::Alone);
        Self { process, hold, key, op, invoked, returned, outcome, fence, valid_until, held_as }
    }

    /// Takes `key`: runs `acquire` and makes the event of it.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops `acquire`.
    pub async fn acquire(
        process: u32,
        hold: u64,
        key: &str,
        acquire: impl Future<Output = dlock_core::Result<Guard>> + Send,
    ) -> (Self, dlock_core::Result<Guard>) {
        let invoked = now_ns();
        let result = acquire.await;
        let (outcome, fence, valid_until) = match &result {
            Ok(guard) => (Outcome::Ok, guard.fence().map(dlock_core::Fence::get), valid_until(guard)),
            Err(error) if error.kind() == dlock_core::ErrorKind::Unknown => (Outcome::Unknown, None, None),
            Err(_) => (Outcome::Fail, None, None),
        };
        let key = key.to_owned();
        let returned = now_ns();
        let (op, held_as) = (Op::Acquire, HeldAs::Alone);
        (Self { process, hold, key, op, invoked, returned, outcome, fence, valid_until, held_as }, result)
    }

    /// Checks `guard`, and returns the event of that.
    pub fn check(process: u32, hold: u64, guard: &Guard) -> Self {
        let (key, fence) = (guard.key().to_owned(), guard.fence().map(dlock_core::Fence::get));
        let valid_until = valid_until(guard);
        let invoked = now_ns();
        let outcome = if guard.check().is_ok() { Outcome::Ok } else { Outcome::Fail };
        let returned = now_ns();
        let (op, held_as) = (Op::Check, HeldAs::Alone);
        Self { process, hold, key, op, invoked, returned, outcome, fence, valid_until, held_as }
    }

    /// Says that `guard` is about to be released. To be recorded first: a process that is killed while it does so has
    /// no more to say, and somebody else may have the lock already.
    #[must_use]
    pub fn release_begins(process: u32, hold: u64, guard: &Guard) -> Self {
        let now = now_ns();
        Self {
            process,
            hold,
            key: guard.key().to_owned(),
            op: Op::Release,
            invoked: now,
            returned: now,
            outcome: Outcome::Unknown,
            fence: guard.fence().map(dlock_core::Fence::get),
            valid_until: None,
            held_as: HeldAs::Alone,
        }
    }

    /// Gives `guard` back and makes the event of it.
    ///
    /// # Cancel safety
    ///
    /// As [`Guard::release`].
    pub async fn release(process: u32, hold: u64, guard: Guard) -> Self {
        let (key, fence) = (guard.key().to_owned(), guard.fence().map(dlock_core::Fence::get));
        let invoked = now_ns();
        let outcome = match guard.release().await {
            Ok(()) => Outcome::Ok,
            Err(error) if error.kind() == dlock_core::ErrorKind::NotHeld => Outcome::Fail,
            Err(_) => Outcome::Unknown,
        };
        let returned = now_ns();
        let (op, valid_until, held_as) = (Op::Release, None, HeldAs::Alone);
        Self { process, hold, key, op, invoked, returned, outcome, fence, valid_until, held_as }
    }
}

/// Returns the guard's own deadline; 0 for a lock that is lost, of which nothing but its end is known: a process that
/// stopped between the grant and this look was promised no time until now. The clock is read first, so that the
/// deadline is not too late.
fn valid_until(guard: &Guard) -> Option<u64> {
    let now = now_ns();
    let remaining = guard.remaining()?;
    if remaining.is_zero() {
        return Some(0);
    }
    Some(now.saturating_add(u64::try_from(remaining.as_nanos()).unwrap_or(u64::MAX)))
}

/// Writes one process' events to a file.
#[derive(Debug)]
pub struct Recorder(Mutex<File>);

impl Recorder {
    /// Writes to `path`, after what is there.
    ///
    /// # Errors
    ///
    /// Those of the file.
    pub fn append(path: impl AsRef<Path>) -> io::Result<Self> {
        let file = File::options().create(true).append(true).open(path)?;
        Ok(Self(Mutex::new(file)))
    }

    /// Writes one event.
    ///
    /// # Errors
    ///
    /// Those of the file.
    pub fn record(&self, event: &Event) -> io::Result<()> {
        let mut line = serde_json::to_string(event)?;
        line.push('\n');
        self.0.lock().write_all(line.as_bytes())
    }
}

/// Returns the events in a file. A last line that was cut off is passed over.
///
/// # Errors
///
/// Those of the file; also when a line that is not the last is no event.
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<Event>> {
    let mut events = Vec::new();
    let mut bad: Option<serde_json::Error> = None;
    for line in BufReader::new(File::open(path)?).lines() {
        let line = line?;
        if let Some(error) = bad {
            return Err(error.into());
        }
        match serde_json::from_str(&line) {
            Ok(event) => events.push(event),
            Err(error) => bad = Some(error),
        }
    }
    Ok(events)
}
