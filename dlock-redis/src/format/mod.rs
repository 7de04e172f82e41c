//! How locks are stored: in a form of our own, or in that of Redisson's `RLock`.
//!
//! Each form is a module with its scripts, how they are called, and what their replies mean.

mod plain;
mod redisson;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dlock_core::{Failure, Holder};
use redis::{Cmd, Pipeline, Value};

use crate::keys::Names;
use crate::request::{Answer, By, Request, RequestAll, Step, TakenAll};

/// What is read of a lock at the most. What is longer is none.
const LONGEST_VALUE: usize = 512;

const FENCE: &str = include_str!("fence.lua");

/// Makes the call that draws a fence for a lock that is held.
pub(crate) fn draw(names: &Names) -> Cmd {
    let mut call = redis::cmd("EVAL");
    call.arg(FENCE).arg(1).arg(&*names.counter);
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

    /// Makes one call of the script with all these operations.
    pub(crate) fn call(&self, requests: &[Request], by: By) -> Cmd {
        match self {
            Self::Plain { .. } => plain::call(requests, by),
            Self::Redisson { client, cluster } => redisson::call(requests, client, *cluster, by),
        }
    }

    /// Reads the reply to a call with these operations; `None` when it is not one.
    pub(crate) fn read(&self, reply: Value, requests: &[Request]) -> Option<Vec<Answer>> {
        match self {
            Self::Plain { .. } => plain::read(reply, requests),
            Self::Redisson { .. } => redisson::read(reply, requests.len()),
        }
    }

    /// Makes the call that takes several locks or none.
    pub(crate) fn call_all(&self, request: &RequestAll, by: By) -> Cmd {
        match self {
            Self::Plain { .. } => plain::call_all(&request.0, by),
            Self::Redisson { client, .. } => redisson::call_all(&request.0, client, by),
        }
    }

    /// Reads the reply to it; `None` when it is not one.
    pub(crate) fn read_all(&self, reply: Value, count: usize) -> Option<TakenAll> {
        match self {
            Self::Plain { .. } => plain::read_all(reply, count),
            Self::Redisson { .. } => redisson::read_all(reply, count),
        }
    }

    /// Makes the call that takes a lock without its counter: without a fence, or with the one that was drawn since.
    /// Rarely used, so that servers need not keep the script.
    pub(crate) fn call_alone(&self, request: &Request, fence: u64) -> Cmd {
        let mut call = redis::cmd("EVAL");
        let Step::Acquire { lease, listens, who } = &request.step else { return call };
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
        call.arg(*lease).arg(fence).arg(line).arg(i32::from(*listens));
        call
    }

    /// Reads the reply to it; `None` when it is not one. A lock without a fence has the fence 0.
    pub(crate) fn read_alone(&self, reply: Value) -> Option<Answer> {
        match self {
            Self::Plain { .. } => plain::answer(reply),
            Self::Redisson { .. } => redisson::answer(reply),
        }
    }

    /// Returns the channel on which releases of a lock are published.
    pub(crate) fn channel<'a>(&self, names: &'a Names) -> Cow<'a, str> {
        match self {
            Self::Plain { .. } => Cow::Borrowed(&names.lock),
            Self::Redisson { .. } => Cow::Owned(redisson::channel(&names.lock)),
        }
    }

    /// Adds the commands that look who has a lock, which are two.
    pub(crate) fn look(&self, lock: &str, at: &mut Pipeline) {
        at.cmd("PTTL").arg(lock);
        match self {
            Self::Plain { .. } => at.cmd("GETRANGE").arg(lock).arg(0).arg(LONGEST_VALUE - 1),
            Self::Redisson { .. } => at.cmd("EVAL").arg(redisson::LOOK).arg(1).arg(lock),
        };
    }

    /// Which type `SCAN` has to look for, where that spares it data of others.
    pub(crate) const fn scanned(&self) -> Option<&'static str> {
        match self {
            Self::Plain { .. } => None,
            Self::Redisson { .. } => Some("hash"),
        }
    }

    /// Reads the replies to a look.
    pub(crate) fn seen(&self, left: &Value, stored: Value) -> Result<Found, Failure> {
        let left = match left {
            Value::Int(-2) => return Ok(Found::Nothing),
            Value::Int(left) => u64::try_from(*left).ok().map(Duration::from_millis),
            _ => None,
        };
        match self {
            Self::Plain { .. } => plain::seen(left, stored),
            Self::Redisson { .. } => redisson::seen(left, stored),
        }
    }

    /// Makes the command that takes a lock away from whoever holds it. Rarely used, so that servers need not keep the
    /// script.
    pub(crate) fn force(&self, names: &Names, keep_data: bool) -> Cmd {
        let mut command = redis::cmd("EVAL");
        match self {
            Self::Plain { .. } => command.arg(plain::FORCE).arg(1).arg(&*names.lock),
            Self::Redisson { .. } => {
                command.arg(redisson::FORCE).arg(1).arg(&*names.lock).arg(redisson::channel(&names.lock))
            }
        };
        command.arg(i32::from(keep_data)).arg(i32::from(self.cluster()));
        command
    }

    /// Makes a call with nothing to do, which teaches the server the script and shows whether the user may run it. Some
    /// proxies refuse a script without a key.
    pub(crate) fn introduction(&self, probe: Option<&Names>, by: By) -> Cmd {
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
            (Self::Plain { .. }, Some(_)) => drop(cmd.arg("-")),
            (Self::Plain { .. }, None) => {}
            // No acquires.
            (Self::Redisson { .. }, _) => drop(cmd.arg(0)),
        }
        cmd
    }

    /// Makes the call that tries the rights of the user. Its reply lists the commands that are missing.
    pub(crate) fn rights(&self, probe: &Names, among_data: bool) -> Cmd {
        let mut cmd = redis::cmd("EVAL");
        let text = match self {
            Self::Plain { .. } => plain::RIGHTS,
            Self::Redisson { .. } => redisson::RIGHTS,
        };
        let keys = if among_data { 0 } else { 2 };
        cmd.arg(text).arg(keys).arg(&*probe.lock).arg(&*probe.counter).arg(&*self.channel(probe));
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
