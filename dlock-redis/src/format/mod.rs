//! How locks are stored: in a form of our own, or in that of Redisson's `RLock`.
//!
//! Each form is a module with its scripts, how they are called, and what their replies mean.

#[cfg(any(test, fuzzing))]
pub(crate) mod hostile;
mod plain;
mod redisson;
pub(crate) mod shares;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dlock_core::backend::LEFT_BEHIND;
use dlock_core::{Holder, Token};
use redis::{Cmd, Value};

use crate::keys::Names;
use crate::request::{Answer, By, CallNumber, Request, RequestAll, Step, TakenAll};

/// What is read of a lock at the most. What is longer is none.
const LONGEST_VALUE: usize = 512;

const FENCE: &str = concat!(include_str!("head.lua"), include_str!("fence.lua"));

/// Makes the call that draws a fence for a lock that is held.
pub(crate) fn draw(names: &Names, number: CallNumber) -> Cmd {
    let mut call = redis::cmd("EVAL");
    call.arg(FENCE).arg(1).arg(&*names.counter).arg(number.0);
    call
}

/// How locks are stored.
#[derive(Clone, Debug)]
pub(crate) enum Format {
    /// A string: cheap, and nobody's but ours.
    Plain { cluster: bool },
    /// A hash that services in Java share, with what marks this client in the owner fields, as Redisson's do.
    Redisson { client: Arc<str>, cluster: bool },
}

/// A script and its hash.
struct Script {
    text: &'static str,
    hash: std::sync::LazyLock<String>,
}

impl Script {
    const fn new(text: &'static str, hash: fn() -> String) -> Self {
        Self { text, hash: std::sync::LazyLock::new(hash) }
    }

    fn call(&self, by: By, keys: usize, capacity: usize) -> Cmd {
        let mut cmd = Cmd::with_capacity(capacity, 256 + 40 * capacity);
        match by {
            By::Hash => cmd.arg("EVALSHA").arg(&*self.hash),
            By::Text => cmd.arg("EVAL").arg(self.text),
        };
        cmd.arg(keys);
        cmd
    }
}

fn hash_of(text: &str) -> String {
    redis::Script::new(text).get_hash().to_owned()
}

/// What lies under the name of a lock.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Nothing,
    Held(Holder),
    /// A text that is no lock, in the way of one.
    Foreign,
    /// Data of others.
    Data,
}

impl Format {
    pub(crate) const fn cluster(&self) -> bool {
        match self {
            Self::Plain { cluster } | Self::Redisson { cluster, .. } => *cluster,
        }
    }

    /// Whether an acquire can take several fences of the counter.
    pub(crate) const fn reserves(&self) -> bool {
        matches!(self, Self::Plain { .. })
    }

    /// Whether there are readers and semaphores.
    pub(crate) const fn shares(&self) -> bool {
        matches!(self, Self::Plain { .. })
    }

    /// Makes one call of the script with all these operations.
    pub(crate) fn call(&self, requests: &[Request], by: By, number: CallNumber) -> Cmd {
        match self {
            Self::Plain { .. } => plain::call(requests, by, number),
            Self::Redisson { client, cluster } => redisson::call(requests, (client, *cluster), by, number),
        }
    }

    /// Reads what came of a call with these operations; `None` when it makes no sense.
    pub(crate) fn read(&self, result: Value, requests: &[Request]) -> Option<Vec<Answer>> {
        match self {
            Self::Plain { .. } => plain::read(result, requests),
            Self::Redisson { .. } => redisson::read(result, requests.len()),
        }
    }

    /// Makes the call that takes several locks or none.
    pub(crate) fn call_all(&self, request: &RequestAll, by: By, number: CallNumber) -> Cmd {
        match self {
            Self::Plain { .. } => plain::call_all(&request.0, by, number),
            Self::Redisson { client, .. } => redisson::call_all(&request.0, client, by, number),
        }
    }

    /// Reads what came of it; `None` when it makes no sense.
    pub(crate) fn read_all(&self, result: Value, count: usize) -> Option<TakenAll> {
        match self {
            Self::Plain { .. } => plain::read_all(result, count),
            Self::Redisson { .. } => redisson::read_all(result, count),
        }
    }

    /// Makes the call that takes a lock without its counter: without a fence, or with the one that was drawn since.
    /// Rarely used, so that servers need not keep the script.
    pub(crate) fn call_alone(&self, request: &Request, fence: u64, number: CallNumber) -> Cmd {
        let mut call = redis::cmd("EVAL");
        let Step::Acquire { lease, listens, who, .. } = &request.step else { return call };
        let mut line = Vec::new();
        who.write(&mut line);
        match self {
            Self::Plain { .. } => {
                call.arg(plain::ALONE).arg(1).arg(&*request.names.lock).arg(&plain::hex(&request.token))
            }
            Self::Redisson { client, .. } => {
                let owner = redisson::owner(client, request);
                call.arg(redisson::ALONE).arg(1).arg(&*request.names.lock).arg(owner)
            }
        };
        call.arg(*lease).arg(fence).arg(line).arg(i32::from(*listens)).arg(number.0);
        call
    }

    /// Reads what came of it; `None` when it makes no sense. A lock without a fence has the fence 0.
    pub(crate) fn read_alone(&self, result: Value) -> Option<Answer> {
        match self {
            Self::Plain { .. } => plain::answer(result),
            Self::Redisson { .. } => redisson::answer(result),
        }
    }

    /// Returns the channel on which releases of a lock are published.
    pub(crate) fn channel<'a>(&self, names: &'a Names) -> Cow<'a, str> {
        match self {
            Self::Plain { .. } => Cow::Borrowed(&names.lock),
            Self::Redisson { .. } => Cow::Owned(redisson::channel(&names.lock)),
        }
    }

    /// Makes the call that looks who has a lock. Rarely used, so that servers need not keep the script.
    pub(crate) fn look(&self, lock: &str, number: CallNumber) -> Cmd {
        let mut call = redis::cmd("EVAL");
        let text = match self {
            Self::Plain { .. } => plain::LOOK,
            Self::Redisson { .. } => redisson::LOOK,
        };
        call.arg(text).arg(1).arg(lock).arg(number.0);
        call
    }

    /// Which type `SCAN` has to look for, where that spares it data of others.
    pub(crate) const fn scanned(&self) -> Option<&'static str> {
        match self {
            Self::Plain { .. } => None,
            Self::Redisson { .. } => Some("hash"),
        }
    }

    /// Reads what came of a look.
    pub(crate) fn seen(&self, looked: Value) -> Found {
        let Value::Array(parts) = looked else { return Found::Data };
        let mut parts = parts.into_iter();
        let left = match parts.next() {
            Some(Value::Int(-2)) => return Found::Nothing,
            Some(Value::Int(left)) => u64::try_from(left).ok().map(Duration::from_millis),
            _ => None,
        };
        match self {
            Self::Plain { .. } => plain::seen(left, parts),
            Self::Redisson { .. } => redisson::seen(left, parts),
        }
    }

    /// Makes the call that takes a lock away from whoever holds it. Rarely used, so that servers need not keep the
    /// script.
    pub(crate) fn force(&self, names: &Names, keep_data: bool, number: CallNumber) -> Cmd {
        let mut command = redis::cmd("EVAL");
        match self {
            Self::Plain { .. } => command.arg(plain::FORCE).arg(1).arg(&*names.lock),
            Self::Redisson { .. } => {
                command.arg(redisson::FORCE).arg(1).arg(&*names.lock).arg(redisson::channel(&names.lock))
            }
        };
        command.arg(i32::from(keep_data)).arg(i32::from(self.cluster())).arg(number.0);
        command
    }

    /// Makes the call that releases a lock and leaves its key taken for so many milliseconds. Rarely used, so that
    /// servers need not keep the script.
    pub(crate) fn leave(&self, names: &Names, token: &Token, millis: u64, number: CallNumber) -> Cmd {
        let (ours, left_behind) = (plain::hex(token), plain::hex(&token.left_behind()));
        let mut command = redis::cmd("EVAL");
        command.arg(plain::LEAVE).arg(1).arg(&*names.lock).arg(&ours).arg(&left_behind);
        command.arg(LEFT_BEHIND).arg(millis).arg(number.0);
        command
    }

    /// Makes a call with nothing to do, which teaches the server the script and shows whether the user may run it. Some
    /// proxies refuse a script without a key.
    pub(crate) fn introduction(&self, probe: Option<&Names>, by: By, number: CallNumber) -> Cmd {
        let script = match self {
            Self::Plain { .. } => &plain::SCRIPT,
            Self::Redisson { .. } => &redisson::SCRIPT,
        };
        let mut cmd = script.call(by, usize::from(probe.is_some()), 6);
        if let Some(probe) = probe {
            cmd.arg(&*probe.lock);
        }
        match (self, probe) {
            // A release by a token that nobody has.
            (Self::Plain { .. }, Some(_)) => drop(cmd.arg(number.0).arg("-")),
            (Self::Plain { .. }, None) => drop(cmd.arg(number.0)),
            // No acquires.
            (Self::Redisson { .. }, _) => drop(cmd.arg(0).arg(number.0)),
        }
        cmd
    }

    /// Makes the call that tries the rights of the user. Its reply lists the commands that are missing.
    pub(crate) fn rights(&self, probe: &Names, among_data: bool, number: CallNumber) -> Cmd {
        let mut cmd = redis::cmd("EVAL");
        let text = match self {
            Self::Plain { .. } => plain::RIGHTS,
            Self::Redisson { .. } => redisson::RIGHTS,
        };
        let keys = if among_data { 0 } else { 2 };
        cmd.arg(text)
            .arg(keys)
            .arg(&*probe.lock)
            .arg(&*probe.counter)
            .arg(&*self.channel(probe))
            .arg(number.0);
        cmd
    }
}

fn text(value: Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        }),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// When a lock was taken: fences keep up with the server's clock, in microseconds. `None` for a fence that does not.
fn since(fence: u64) -> Option<SystemTime> {
    /// The year 2001.
    const CLOCKED: u64 = 1_000_000_000_000_000;
    (fence >= CLOCKED).then(|| UNIX_EPOCH.checked_add(Duration::from_micros(fence))).flatten()
}

/// What a key that is no lock is refused with.
fn no_lock() -> Answer {
    Answer::Refused("WRONGTYPE the key holds something that is no lock".into())
}
