//! The formats in which locks are stored: dlock's own, and those of Redisson.
//!
//! Each format is a module with its scripts, their calls, and the meaning of their replies.
//!
//! | format | exclusive locks | shared locks | fair locks |
//! |---|---|---|---|
//! | `Plain` | `plain` | `shares` | `shares` |
//! | `Redisson`, `Recipe::Lock` | `redisson` | `redisson_shares`: permits only | `redisson_shares` |
//! | `Redisson`, `Recipe::ReadWriteLock` | `redisson_shares` | `redisson_shares` | none |
//!
//! Batons and keys that stay taken (`carry`) exist in `Plain` only. `rights` has the commands that each use needs.
//!
//! # Changing a script
//!
//! `plain.lua` takes, renews and releases exclusive locks. They are released by `plain_force.lua` and `plain_leave.lua`
//! too, and those of other kinds by the operation `withdraw` of the script of their kind. What else a change takes:
//!
//! | a change of | look at | tests, below `tests/scenarios` of this crate |
//! |---|---|---|
//! | arguments or a reply | the Rust module of the script; of `plain.lua`, `plain_leave.lua`, `plain_take_over.lua` and `head.lua`, which other clients call, `docs/backends/redis.md` and `docs/versions.md`: within a version they stay as they are | `cargo xtask interop` |
//! | what is stored | all scripts of the format, `docs/backends/redis.md`, `docs/versions.md` | `versions.rs` |
//! | the commands that are called | `plain_rights.lua` or `redisson_rights.lua`, `rights`, the rights in `docs/backends/redis.md` | `rights.rs`, `shortages.rs`, `commands.rs` |
//! | a number | its twin in Rust | `constants`, here |
//! | who gets the lock | [`dlock_core::backend::shares`] | `rules.rs` |
//! | whom a release notifies | `channel` and `place_channel`, `listening.rs` | `waiting.rs`, `fairness.rs` |
//!
//! `cargo test -p dlock-redis` runs all but `interop`, and the conformance suite. `cargo xtask mutants --crate scripts`
//! shows whether they notice a line that is wrong. What `redisson*.lua` may do is decided by Redisson's own scripts.

mod carry;
#[cfg(test)]
mod constants;
#[cfg(any(test, fuzzing))]
pub(crate) mod hostile;
mod plain;
mod redisson;
pub(crate) mod redisson_shares;
pub(crate) mod rights;
pub(crate) mod shares;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dlock_core::backend::{Mode, Occupancy};
use dlock_core::{Failure, Holder, Token};
use redis::{Cmd, Value};
use smallvec::smallvec;

pub(crate) use self::plain::{LEAVE, TAKE_OVER, TEXT as PLAIN};
use crate::keys::Names;
use crate::request::{Answer, Answers, By, CallNumber, Probe, Request, ScriptKind, Step};

/// The longest value that is read of a lock. A longer one is no lock.
const LONGEST_VALUE: usize = 512;

const FENCE: &str = concat!(include_str!("head.lua"), include_str!("fence.lua"));

/// Makes the call that draws a fence for a lock that is held.
pub(crate) fn draw(names: &Names, number: CallNumber) -> Cmd {
    let mut call = redis::cmd("EVAL");
    call.arg(FENCE).arg(1).arg(&*names.counter).arg(number.0);
    call
}

/// The kind of Redisson's locks that is shared with services in Java. All clients of a lock, in Rust and in Java, use
/// one recipe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Recipe {
    /// `RLock`, without readers, and `RFairLock` for locks with a queue of waiters. The default.
    #[default]
    Lock,
    /// `RReadWriteLock`, for readers and writers. There is no queue of waiters.
    ReadWriteLock,
}

impl Recipe {
    /// Returns the recipe of this name in a URL.
    pub(crate) fn of(name: &str) -> Option<Self> {
        match name {
            "lock" => Some(Self::Lock),
            "read-write-lock" => Some(Self::ReadWriteLock),
            _ => None,
        }
    }
}

/// The format in which locks are stored.
#[derive(Clone, Debug)]
pub(crate) enum Format {
    /// dlock's own format, a string, which costs the server least.
    Plain { cluster: bool },
    /// The format of Redisson, a hash, which is shared with services in Java. `client` marks this client in the owner
    /// fields, as Redisson's clients do.
    Redisson { client: Arc<str>, cluster: bool, recipe: Recipe },
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

    /// Begins a call of the script.
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

/// The contents of the key of a lock.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Nothing,
    Held(Holder),
    /// A shared lock with these holders.
    Several(Vec<Holder>),
    /// A lock of Redisson with readers and writers, which is to be looked at as such.
    ReadWriteLock,
    /// Something that is no lock, in the way of one.
    Foreign,
    /// Data of other programs.
    Data,
}

/// The kind as which a key is looked at that is no exclusive lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// A lock of Redisson with readers and writers, found where a lock without them was looked for.
    ReadWriteLock,
    /// Any other shared lock.
    Other,
}

const PROBE: &str = include_str!("probe.lua");

/// Makes the call that carries out these reads.
pub(crate) fn probe(probes: &[Probe], number: CallNumber) -> Cmd {
    let mut call = redis::cmd("EVAL");
    call.arg(PROBE).arg(probes.len());
    for probe in probes {
        call.arg(&*probe.name);
    }
    call.arg(number.0);
    for probe in probes {
        call.arg(probe.command).arg(&probe.part);
    }
    call
}

/// Reads the findings of the reads; `None` if the reply is malformed.
pub(crate) fn probed(found: Value, probes: &[Probe]) -> Option<Vec<bool>> {
    let Value::Array(found) = found else { return None };
    let found = found.into_iter().map(|found| match found {
        Value::Int(found @ (0 | 1)) => Some(found == 1),
        _ => None,
    });
    found.collect::<Option<Vec<bool>>>().filter(|found| found.len() == probes.len())
}

/// A kind of key beside a lock, with a name of its own, for `SCAN` to find.
pub(crate) struct ScannedFor {
    pub(crate) kind: &'static str,
    /// `true` if the key is a queue of waiters, and `false` if it is a shared lock's.
    pub(crate) is_line: bool,
    pub(crate) pattern: String,
    /// Returns the name of the lock.
    pub(crate) lock_of: fn(&str) -> Option<&str>,
}

impl Format {
    pub(crate) const fn cluster(&self) -> bool {
        match self {
            Self::Plain { cluster } | Self::Redisson { cluster, .. } => *cluster,
        }
    }

    /// Returns `true` if an acquire can draw several fences.
    pub(crate) const fn reserves(&self) -> bool {
        matches!(self, Self::Plain { .. })
    }

    /// Returns `true` if the format has readers.
    pub(crate) const fn has_readers(&self) -> bool {
        matches!(self, Self::Plain { .. } | Self::Redisson { recipe: Recipe::ReadWriteLock, .. })
    }

    /// Returns `true` if the format has a queue of waiters.
    pub(crate) const fn has_line(&self) -> bool {
        matches!(self, Self::Plain { .. } | Self::Redisson { recipe: Recipe::Lock, .. })
    }

    /// Returns `true` if a release can leave its key taken.
    pub(crate) const fn leaves(&self) -> bool {
        matches!(self, Self::Plain { .. })
    }

    /// Returns `true` if there is a script for exclusive locks, whose calls many requests share.
    pub(crate) const fn has_exclusive_script(&self) -> bool {
        self.has_line()
    }

    /// Returns `true` if the script of shared locks can withdraw an exclusive lock, too.
    pub(crate) const fn withdraws_both(&self) -> bool {
        matches!(self, Self::Plain { .. })
    }

    /// Returns the longest lease of a hold of this mode, if it is bounded.
    pub(crate) const fn longest(&self, mode: Mode) -> Option<Duration> {
        match (self, mode) {
            // Also for writers, which may become readers.
            (Self::Redisson { recipe: Recipe::ReadWriteLock, .. }, Mode::Exclusive | Mode::Shared) => {
                Some(redisson_shares::LONGEST)
            }
            _ => None,
        }
    }

    /// Returns the reads that show whether a claim has its shared or fair lock.
    pub(crate) fn probes(&self, names: &Names, token: &Token, mode: Mode, fair: bool) -> Vec<Probe> {
        match self {
            Self::Plain { .. } => vec![Probe::new("HGET", &names.lock, plain::hex(token))],
            Self::Redisson { client, recipe, .. } => {
                redisson_shares::probes(names, token, client, (*recipe, mode, fair))
            }
        }
    }

    /// Returns the position of a use of locks among all uses, which are fewer than [`USES`](rights::USES).
    pub(crate) const fn place(&self, mode: Mode, fair: bool) -> usize {
        match self {
            Self::Plain { .. } => 0,
            Self::Redisson { recipe, .. } => redisson_shares::place(*recipe, mode, fair),
        }
    }

    /// Makes the call that tries the commands that a use of locks needs besides those of exclusive locks, on a name
    /// that no lock has. Its reply lists the missing ones.
    pub(crate) fn rights_of(
        &self,
        (mode, fair): (Mode, bool),
        lock: &str,
        probe: &Names,
        number: CallNumber,
    ) -> Cmd {
        let tries = match self {
            Self::Plain { .. } => rights::SHARES,
            Self::Redisson { recipe, .. } => redisson_shares::tries(*recipe, mode, fair),
        };
        rights::call(tries, lock, (&probe.lock, &self.channel(probe, mode)), number)
    }

    /// Refuses modes that no claim can have.
    pub(crate) fn check(&self, mode: Mode) -> Result<(), Failure> {
        match self {
            Self::Plain { .. } => Ok(()),
            Self::Redisson { .. } => redisson_shares::check(mode),
        }
    }

    /// Makes one call of the script that carries out these requests. Several are only of [`ScriptKind::Exclusive`].
    pub(crate) fn call(&self, requests: &[Request], by: By, number: CallNumber) -> Cmd {
        match (requests, self) {
            ([request], _) if request.kind != ScriptKind::Exclusive => self.call_own(request, by, number),
            (_, Self::Plain { .. }) => plain::call(requests, by, number),
            (_, Self::Redisson { client, cluster, .. }) => {
                redisson::call(requests, (client, *cluster), by, number)
            }
        }
    }

    /// Makes the call of a request that shares its call with no other.
    fn call_own(&self, request: &Request, by: By, number: CallNumber) -> Cmd {
        match (request.kind, self) {
            (ScriptKind::SplitSlot { fence }, _) => self.call_split_slot(request, fence, number),
            (ScriptKind::TakeOver { left }, _) => carry::call_take_over(request, &left, number),
            (ScriptKind::Leave { millis }, _) => carry::call_leave(request, millis, number),
            (_, Self::Plain { .. }) => shares::call(request, by, number),
            (_, Self::Redisson { client, cluster, recipe }) => {
                redisson_shares::call(request, (client, *cluster, *recipe), by, number)
            }
        }
    }

    /// Reads the result of a call with these requests; `None` if it is malformed.
    pub(crate) fn read(&self, result: Value, requests: &[Request]) -> Option<Answers> {
        match (requests, self) {
            ([request], _) if request.kind != ScriptKind::Exclusive => {
                self.read_own(result, request).map(|answer| smallvec![answer])
            }
            (_, Self::Plain { .. }) => plain::read(result, requests),
            (_, Self::Redisson { .. }) => redisson::read(result, requests.len()),
        }
    }

    /// Reads the result of a call with one request.
    fn read_own(&self, result: Value, request: &Request) -> Option<Answer> {
        let (step, mode) = (&request.step, request.mode);
        match (request.kind, self) {
            // A lock without a fence has the fence 0.
            (ScriptKind::SplitSlot { .. }, Self::Plain { .. }) => plain::answer(result),
            (ScriptKind::SplitSlot { .. }, Self::Redisson { .. }) => redisson::answer(result),
            (ScriptKind::TakeOver { .. }, _) => carry::read_take_over(result, mode),
            (ScriptKind::Leave { .. }, _) | (_, Self::Plain { .. }) => shares::read(result, step, mode),
            (ScriptKind::Fair, _) => redisson_shares::read_in_line(result, step),
            _ => redisson_shares::read(result, step, mode),
        }
    }

    /// Makes the call that takes several locks or none.
    pub(crate) fn call_all(&self, requests: &[Request], by: By, number: CallNumber) -> Cmd {
        match self {
            Self::Plain { .. } => plain::call_all(requests, by, number),
            Self::Redisson { client, .. } => redisson::call_all(requests, client, by, number),
        }
    }

    /// Reads the result of [`call_all`](Self::call_all); `None` if it is malformed.
    pub(crate) fn read_all(&self, result: Value, count: usize) -> Option<Answer> {
        match self {
            Self::Plain { .. } => plain::read_all(result, count),
            Self::Redisson { .. } => redisson::read_all(result, count),
        }
    }

    /// Makes the call that takes a lock without its counter: without a fence, or with the fence that was drawn since.
    /// Rarely used, so that servers need not keep the script.
    fn call_split_slot(&self, request: &Request, fence: u64, number: CallNumber) -> Cmd {
        let mut call = redis::cmd("EVAL");
        let Step::Acquire { lease, listens, who, .. } = &request.step else { return call };
        let mut line = Vec::new();
        who.write(&mut line);
        match self {
            Self::Plain { .. } => {
                call.arg(plain::SPLIT_SLOT).arg(1).arg(&*request.names.lock).arg(&plain::hex(&request.token))
            }
            Self::Redisson { client, .. } => {
                let owner = redisson::owner(client, request);
                call.arg(redisson::SPLIT_SLOT).arg(1).arg(&*request.names.lock).arg(owner)
            }
        };
        call.arg(*lease).arg(fence).arg(line).arg(i32::from(*listens)).arg(number.0);
        call
    }

    /// Returns the channel on which releases of a lock are published to the claims that wait for it in this mode.
    pub(crate) fn channel<'a>(&self, names: &'a Names, mode: Mode) -> Cow<'a, str> {
        match self {
            Self::Plain { .. } => Cow::Borrowed(&names.lock),
            Self::Redisson { recipe, .. } => {
                Cow::Owned(redisson_shares::channel_of(*recipe, &names.lock, mode))
            }
        }
    }

    /// Returns the channel on which a waiter in the queue is notified of its turn.
    pub(crate) fn place_channel(&self, names: &Names, token: &Token) -> String {
        match self {
            Self::Plain { .. } => shares::place_channel(names, token),
            Self::Redisson { client, .. } => redisson_shares::place_channel(client, &names.lock, token),
        }
    }

    /// Returns the channel of the announcements of an election.
    pub(crate) fn announced_channel(&self, names: &Names) -> String {
        format!("{}#term", self.channel(names, Mode::Exclusive))
    }

    /// Returns the call that announces a change of leader.
    pub(crate) fn announce(&self, names: &Names, number: CallNumber) -> Cmd {
        let mut call = redis::cmd("EVAL");
        call.arg("return { redis.call('PUBLISH', ARGV[2], ''), ARGV[1] }");
        call.arg(1).arg(&*names.lock).arg(number.0).arg(self.announced_channel(names));
        call
    }

    /// Returns `true` if a release can take the lock for the first in the queue.
    pub(crate) const fn passes_on(&self) -> bool {
        matches!(self, Self::Plain { .. })
    }

    /// Reads the message to a waiter in the queue: the mark of its last request and the fence, if it was granted the
    /// lock.
    pub(crate) fn given(&self, text: &str) -> Option<(u64, u64)> {
        if self.passes_on() { shares::given(text) } else { None }
    }

    /// Makes the call that looks at the holder of a lock. Rarely used, so that servers need not keep the script.
    pub(crate) fn look(&self, lock: &str, number: CallNumber) -> Cmd {
        let mut call = redis::cmd("EVAL");
        let text = match self {
            Self::Plain { .. } => plain::LOOK,
            Self::Redisson { recipe: Recipe::Lock, .. } => redisson::LOOK,
            Self::Redisson { cluster, .. } => return redisson_shares::look(false, lock, *cluster, number),
        };
        call.arg(text).arg(1).arg(lock).arg(number.0);
        if let Self::Redisson { .. } = self {
            call.arg(&redisson_shares::line_of(lock));
        }
        call
    }

    /// Makes the call that looks at the holders of a key that is no lock for [`look`](Self::look): a shared lock; of
    /// Redisson a semaphore, or a lock with readers and writers.
    pub(crate) fn look_again(&self, kind: Again, lock: &str, number: CallNumber) -> Cmd {
        match self {
            Self::Plain { .. } => shares::look(lock, number),
            Self::Redisson { cluster, .. } => {
                redisson_shares::look(kind == Again::Other, lock, *cluster, number)
            }
        }
    }

    /// Reads the result of [`look_again`](Self::look_again); `None` if it is malformed.
    pub(crate) fn seen_again(&self, kind: Again, looked: Value) -> Option<Occupancy> {
        match self {
            Self::Plain { .. } => shares::seen(looked),
            Self::Redisson { .. } => redisson_shares::seen(kind == Again::Other, looked),
        }
    }

    /// Returns the lock of a name; `None` for a key that is stored beside a lock.
    pub(crate) fn lock_of<'a>(&self, name: &'a str) -> Option<&'a str> {
        let is_beside = matches!(self, Self::Redisson { .. }) && redisson_shares::is_side(name);
        (!is_beside).then_some(name)
    }

    /// Returns the keys that `SCAN` has to find besides locks.
    pub(crate) fn scanned_again(&self) -> Vec<ScannedFor> {
        let Self::Redisson { recipe, .. } = self else { return Vec::new() };
        let semaphores = ScannedFor {
            kind: "zset",
            is_line: false,
            pattern: redisson_shares::pattern(),
            lock_of: redisson_shares::semaphore_of,
        };
        let lines = ScannedFor {
            kind: "list",
            is_line: true,
            pattern: redisson_shares::pattern_of_lines(),
            lock_of: redisson_shares::lock_of_line,
        };
        match recipe {
            Recipe::Lock => vec![semaphores, lines],
            Recipe::ReadWriteLock => vec![semaphores],
        }
    }

    /// Makes the call that releases by force a key that is no lock for [`force`](Self::force): whoever holds it, or
    /// only if all holders are among these [identities](Self::identities).
    pub(crate) fn force_again(&self, kind: Again, lock: &str, meant: &[Vec<u8>], number: CallNumber) -> Cmd {
        match self {
            Self::Plain { .. } => shares::force(lock, meant, number),
            Self::Redisson { cluster, .. } => {
                redisson_shares::force(kind == Again::Other, (lock, *cluster), meant, number)
            }
        }
    }

    /// Returns what distinguishes the holders that a look found from any later ones.
    pub(crate) fn identities(&self, kind: Option<Again>, looked: &Value) -> Vec<Vec<u8>> {
        match (self, kind) {
            (Self::Plain { .. }, None) => vec![plain::identity(looked)],
            (Self::Plain { .. }, Some(_)) => shares::identities(looked),
            (Self::Redisson { recipe: Recipe::Lock, .. }, None) => redisson::identity(looked),
            (Self::Redisson { .. }, kind) => redisson_shares::identities(kind == Some(Again::Other), looked),
        }
    }

    /// Makes the call that changes the number of permits of a semaphore.
    pub(crate) fn resize(&self, lock: &str, permits: u32, number: CallNumber) -> Cmd {
        match self {
            Self::Plain { .. } => shares::resize(lock, permits, number),
            Self::Redisson { cluster, .. } => redisson_shares::resize(lock, *cluster, permits, number),
        }
    }

    /// Returns the type that `SCAN` has to look for, if that spares it data of other programs.
    pub(crate) const fn scanned(&self) -> Option<&'static str> {
        match self {
            Self::Plain { .. } => None,
            Self::Redisson { .. } => Some("hash"),
        }
    }

    /// Reads the result of a [`look`](Self::look).
    pub(crate) fn seen(&self, looked: Value) -> Found {
        if let Self::Redisson { recipe: Recipe::ReadWriteLock, .. } = self {
            return redisson_shares::seen(false, looked)
                .map_or(Found::Data, |found| Found::Several(found.holders));
        }
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

    /// Makes the call that releases a lock by force: whoever holds it, or only if the holders have these
    /// [identities](Self::identities). Rarely used, so that servers need not keep the script.
    pub(crate) fn force(&self, names: &Names, keep_data: bool, meant: &[Vec<u8>], number: CallNumber) -> Cmd {
        let mut command = redis::cmd("EVAL");
        match self {
            Self::Plain { .. } => command.arg(plain::FORCE).arg(1).arg(&*names.lock),
            Self::Redisson { recipe: Recipe::Lock, .. } => {
                command.arg(redisson::FORCE).arg(1).arg(&*names.lock).arg(redisson::channel(&names.lock))
            }
            Self::Redisson { cluster, .. } => {
                return redisson_shares::force(false, (&names.lock, *cluster), meant, number);
            }
        };
        command.arg(i32::from(keep_data)).arg(i32::from(self.cluster())).arg(number.0);
        if let Self::Redisson { .. } = self {
            command.arg(&redisson_shares::line_of(&names.lock));
        }
        command.arg(meant);
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
            // A release by a token that no claim has.
            (Self::Plain { .. }, Some(_)) => drop(cmd.arg(number.0).arg("-")),
            (Self::Plain { .. }, None) => drop(cmd.arg(number.0)),
            // No acquires.
            (Self::Redisson { .. }, _) => drop(cmd.arg(0).arg(number.0)),
        }
        cmd
    }

    /// Makes the call that tries the rights of the user. Its reply lists the missing commands.
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
            .arg(&*self.channel(probe, Mode::Exclusive))
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

/// Returns the time at which a lock was taken: fences keep up with the server's clock, in microseconds. Returns `None`
/// for a fence that does not.
fn since(fence: u64) -> Option<SystemTime> {
    /// The year 2001.
    const CLOCKED: u64 = 1_000_000_000_000_000;
    (fence >= CLOCKED).then(|| UNIX_EPOCH.checked_add(Duration::from_micros(fence))).flatten()
}

/// The text of the refusal of a key that is no lock.
pub(crate) const NO_LOCK: &str = "WRONGTYPE the key holds something that is no lock";

fn no_lock() -> Answer {
    Answer::Refused(NO_LOCK.into())
}
