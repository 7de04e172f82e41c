//! The formats of Redisson's other locks: `RReadWriteLock`, `RPermitExpirableSemaphore` and `RFairLock`. See the
//! scripts.

use std::time::Duration;

use dlock_core::backend::{Mode, Occupancy};
use dlock_core::{Failure, Holder, Token};
use redis::{Cmd, Value};

use super::redisson::{self, channel, owned};
use super::{Recipe, Script, hash_of, rights, shares, text};
use crate::keys::{Names, suffixed, suffixed_with};
use crate::request::{Answer, By, CallNumber, Probe, Request, ScriptKind, Step};

const READERS_TEXT: &str = concat!(
    include_str!("head.lua"),
    include_str!("redisson_head.lua"),
    include_str!("redisson_readers.lua")
);
const PERMITS_TEXT: &str = concat!(
    include_str!("head.lua"),
    include_str!("redisson_head.lua"),
    include_str!("redisson_permits.lua")
);
const FAIR_TEXT: &str =
    concat!(include_str!("head.lua"), include_str!("redisson_head.lua"), include_str!("redisson_fair.lua"));
static READERS: Script = Script::new(READERS_TEXT, || hash_of(READERS_TEXT));
static PERMITS: Script = Script::new(PERMITS_TEXT, || hash_of(PERMITS_TEXT));
static FAIR: Script = Script::new(FAIR_TEXT, || hash_of(FAIR_TEXT));

/// The most permits that one claim may take: each has an entry of its own on the server, and in every request.
pub(super) const MOST_AT_ONCE: u32 = 1_000;
/// The suffix of the sorted set of the permits that are taken.
const TIMEOUTS: &str = "timeout";
/// The prefixes of the list of waiters in the queue of a fair lock, and of the sorted set of the times until which they
/// keep their places.
const QUEUE: &str = "redisson_lock_queue";
const TURNS: &str = "redisson_lock_timeout";
/// The suffix of dlock's hash beside a lock.
const SIDE: &str = "dlock";

/// The longest lease of a lock with readers that is shared with Redisson. Redisson's renewal of any one reader has the
/// whole lock end after its `lockWatchdogTimeout`, 30 s unless configured, whatever the others have left.
pub(crate) const LONGEST: Duration = Duration::from_secs(30);

/// The kind of Redisson's locks that a key is used as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Readers,
    Permits,
    Fair,
}

impl Kind {
    const fn of(recipe: Recipe, mode: Mode, fair: bool) -> Self {
        match (recipe, mode) {
            (_, Mode::Permits { .. }) => Self::Permits,
            (Recipe::ReadWriteLock, _) => Self::Readers,
            (Recipe::Lock, _) if fair => Self::Fair,
            // The script of permits reports what a key is that is no lock.
            (Recipe::Lock, _) => Self::Permits,
        }
    }

    const fn script(self) -> &'static Script {
        match self {
            Self::Readers => &READERS,
            Self::Permits => &PERMITS,
            Self::Fair => &FAIR,
        }
    }

    /// Returns the keys of the script behind the lock.
    fn keys(self, lock: &str) -> Vec<String> {
        let mut keys = vec![suffixed_with(lock, SIDE)];
        match self {
            Self::Readers => {}
            Self::Permits => keys.push(suffixed_with(lock, TIMEOUTS)),
            Self::Fair => {
                keys.push(queue(lock));
                keys.push(suffixed(TURNS, lock));
            }
        }
        keys
    }

    /// Returns the channel on which releases are published.
    fn channel(self, lock: &str) -> String {
        match self {
            Self::Readers => suffixed("redisson_rwlock", lock),
            Self::Permits => suffixed("redisson_sc", lock),
            Self::Fair => channel(lock),
        }
    }
}

/// Returns the name of the list of the waiters of a fair lock.
fn queue(lock: &str) -> String {
    suffixed(QUEUE, lock)
}

/// Returns the names of the list, the sorted set and the hash of a queue of waiters.
pub(super) fn line_of(lock: &str) -> [String; 3] {
    [queue(lock), suffixed(TURNS, lock), suffixed_with(lock, SIDE)]
}

/// Returns the channel on which releases are published to all claims that wait for a lock of this use.
pub(super) fn channel_of(recipe: Recipe, lock: &str, mode: Mode) -> String {
    match Kind::of(recipe, mode, false) {
        Kind::Permits if mode.permits().is_none() => channel(lock),
        kind => kind.channel(lock),
    }
}

/// Returns the channel on which a waiter in the queue is notified of its turn.
pub(super) fn place_channel(client: &str, lock: &str, token: &Token) -> String {
    format!("{}:{client}:{}", channel(lock), token.to_hex())
}

/// Refuses modes that a claim cannot have.
pub(super) fn check(mode: Mode) -> Result<(), Failure> {
    if let Mode::Permits { take, .. } = mode
        && take > MOST_AT_ONCE
    {
        let what = format!("{take} permits at once of a semaphore of Redisson; take 1 to {MOST_AT_ONCE}");
        return Err(Failure::invalid_config(what));
    }
    Ok(())
}

/// Returns the names of a claim's permits, of which the first is its token.
fn permits(first: [u8; 16], take: u32) -> impl Iterator<Item = [u8; 16]> {
    (0..take).map(move |number| {
        let mut id = first;
        for (byte, other) in id[12..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= other;
        }
        id
    })
}

/// Returns the position of a use of locks.
pub(super) const fn place(recipe: Recipe, mode: Mode, fair: bool) -> usize {
    Kind::of(recipe, mode, fair) as usize
}

/// Returns the commands that a use of locks needs besides those of exclusive locks.
pub(super) const fn tries(recipe: Recipe, mode: Mode, fair: bool) -> &'static [&'static str] {
    match Kind::of(recipe, mode, fair) {
        Kind::Readers => rights::READERS,
        Kind::Permits => rights::PERMITS,
        Kind::Fair => rights::FAIR,
    }
}

/// Returns the reads that show whether a claim has what it holds.
pub(super) fn probes(
    names: &Names,
    token: &Token,
    client: &str,
    (recipe, mode, fair): (Recipe, Mode, bool),
) -> Vec<Probe> {
    let (lock, owner) = (&names.lock, [client, ":", &token.to_hex()].concat());
    match Kind::of(recipe, mode, fair) {
        Kind::Permits => {
            let timeouts = suffixed_with(lock, TIMEOUTS).into();
            let ids = permits(*token.as_bytes(), mode.taken());
            ids.map(|id| Probe::new("ZSCORE", &timeouts, id)).collect()
        }
        Kind::Readers if mode == Mode::Exclusive => vec![Probe::new("HGET", lock, owner + ":write")],
        Kind::Readers => {
            let hold = format!("{}{owner}:rwlock_timeout:1", suffixed_with(lock, "")).into();
            vec![Probe::new("HGET", lock, owner), Probe::new("PTTL", &hold, "")]
        }
        Kind::Fair => vec![Probe::new("HGET", lock, owner)],
    }
}

/// Makes the call of a request.
pub(super) fn call(
    request: &Request,
    (client, cluster, recipe): (&str, bool, Recipe),
    by: By,
    number: CallNumber,
) -> Cmd {
    let kind = Kind::of(recipe, request.mode, request.kind == ScriptKind::Fair);
    let lock = &*request.names.lock;
    let keys = kind.keys(lock);
    let acquires = matches!(request.step, Step::Acquire { .. });
    let mut cmd = kind.script().call(by, 1 + keys.len() + usize::from(acquires), 24);
    cmd.arg(lock).arg(keys);
    if acquires {
        cmd.arg(&*request.names.counter);
    }
    let token = request.token.to_hex();
    let owner = if kind == Kind::Permits { token } else { [client, ":", &token].concat() };
    let (operation, lease) = match &request.step {
        Step::Acquire { lease, .. } => ("acquire", *lease),
        Step::Renew { lease, .. } => ("renew", *lease),
        Step::Downgrade { lease } => ("downgrade", *lease),
        Step::Withdraw { .. } => ("withdraw", 0),
    };
    cmd.arg(number.0).arg(operation).arg(kind.channel(lock)).arg(i32::from(cluster)).arg(owner).arg(lease);
    match request.mode {
        Mode::Permits { of, .. } => cmd.arg(of),
        mode => cmd.arg(mode.as_str()),
    };
    match kind {
        Kind::Readers => cmd.arg(suffixed_with(lock, "")),
        Kind::Permits | Kind::Fair => cmd.arg(request.mode.taken()),
    };
    let mut line = Vec::new();
    let (prefers, listens) = match &request.step {
        Step::Acquire { listens, prefers, who, .. } => {
            who.write(&mut line);
            (*prefers, *listens)
        }
        _ => (false, false),
    };
    cmd.arg(i32::from(prefers)).arg(i32::from(listens)).arg(line);
    if let Mode::Permits { take, .. } = request.mode {
        for id in permits(*request.token.as_bytes(), take) {
            cmd.arg(&id);
        }
    }
    cmd
}

/// Reads the result of a step; `None` if it is malformed.
pub(super) fn read(result: Value, step: &Step, mode: Mode) -> Option<Answer> {
    match result {
        result if matches!(step, Step::Acquire { .. }) => taken(result, mode),
        Value::Int(done @ (0 | 1)) => Some(Answer::Done(done == 1)),
        _ => None,
    }
}

/// Reads the result of a step on a fair lock, which is held exclusively.
pub(super) fn read_in_line(result: Value, step: &Step) -> Option<Answer> {
    match result {
        Value::Array(parts) if parts.len() == 3 && parts[1] != Value::BulkString(Vec::new()) => {
            redisson::answer(Value::Array(parts))
        }
        result => read(result, step, Mode::Exclusive),
    }
}

/// Reads the result of an acquire.
pub(super) fn taken(result: Value, mode: Mode) -> Option<Answer> {
    match result {
        Value::Array(parts) if parts.len() == 3 => {
            let [Value::Int(left), owner, value] = <[Value; 3]>::try_from(parts).ok()? else { return None };
            let left = u64::try_from(left).ok().map(Duration::from_millis);
            let (owner, value) = (text(owner)?, text(value)?);
            if owner.is_empty() {
                return Some(Answer::KeptOut { left });
            }
            Some(Answer::Busy { left, holder: Box::new(holder(owner, value, left, mode.permits())) })
        }
        result => shares::taken(result, mode),
    }
}

/// Reads a holder: dlock's line, or the owner as another library writes it.
fn holder(owner: String, value: String, left: Option<Duration>, of: Option<u32>) -> Holder {
    let Some(of) = of else {
        let (owner, writes) = match owner.strip_suffix(":write") {
            Some(owner) => (owner.to_owned(), true),
            None => (owner, false),
        };
        let mut holder = owned(Some(owner), Some(value), left);
        if !writes && holder.mode == Mode::Exclusive {
            holder.mode = Mode::Shared;
        }
        return holder;
    };
    let ours = value.split_once(' ').and_then(|(take, line)| Some((take.parse().ok()?, line)));
    let (take, line) = ours.unwrap_or((1, ""));
    let mut holder = owned(Some(owner), Some(line.to_owned()), left);
    holder.mode = Mode::Permits { of, take };
    holder
}

/// Makes the call that looks at the holders of a lock with readers and writers, or of permits. This call and those
/// below are rarely used, so that servers need not keep the script.
pub(super) fn look(permits: bool, lock: &str, cluster: bool, number: CallNumber) -> Cmd {
    rare(permits, (lock, cluster), number, ("look", 0, &[]))
}

/// Makes the call that changes the number of permits.
pub(super) fn resize(lock: &str, cluster: bool, permits: u32, number: CallNumber) -> Cmd {
    rare(true, (lock, cluster), number, ("resize", permits, &[]))
}

/// Makes the call that releases a lock by force: whoever holds it, or only if the holders are those that a look found.
/// Its result is 1 if there was a holder.
pub(super) fn force(
    permits: bool,
    (lock, cluster): (&str, bool),
    meant: &[Vec<u8>],
    number: CallNumber,
) -> Cmd {
    rare(permits, (lock, cluster), number, ("force", 0, meant))
}

/// Returns what distinguishes the holders that a look found: the fields of readers and writers, or the names of
/// permits.
pub(super) fn identities(permits: bool, looked: &Value) -> Vec<Vec<u8>> {
    let Value::Array(parts) = looked else { return Vec::new() };
    let owner = |of: &[Value]| match of.get(1) {
        Some(Value::BulkString(owner)) => Some(owner.clone()),
        _ => None,
    };
    parts.get(usize::from(permits)..).unwrap_or_default().chunks(3).filter_map(owner).collect()
}

fn rare(
    permits: bool,
    (lock, cluster): (&str, bool),
    number: CallNumber,
    (operation, argument, meant): (&str, u32, &[Vec<u8>]),
) -> Cmd {
    let kind = if permits { Kind::Permits } else { Kind::Readers };
    let keys = kind.keys(lock);
    let mut cmd = kind.script().call(By::Text, 1 + keys.len(), 16 + meant.len());
    cmd.arg(lock).arg(keys).arg(number.0).arg(operation).arg(kind.channel(lock)).arg(i32::from(cluster));
    cmd.arg("").arg(0).arg(argument).arg(suffixed_with(lock, ""));
    if !meant.is_empty() {
        cmd.arg(0).arg(0).arg("").arg(meant);
    }
    cmd
}

/// Reads the result of a look; `None` if it is malformed.
pub(super) fn seen(permits: bool, looked: Value) -> Option<Occupancy> {
    let Value::Array(parts) = looked else { return None };
    let mut parts = parts.into_iter();
    let of = match permits {
        true => match parts.next()? {
            Value::Int(of) => u32::try_from(of).ok(),
            _ => return None,
        },
        false => None,
    };
    let mut holders = Vec::new();
    // The permits of a claim besides the one of its name: the claim is listed once.
    let mut further = std::collections::HashSet::new();
    while let Some(left) = parts.next() {
        let (Value::Int(left), owner, value) = (left, text(parts.next()?)?, text(parts.next()?)?) else {
            return None;
        };
        let left = u64::try_from(left).ok().map(Duration::from_millis);
        let holder = holder(owner.clone(), value, left, of);
        if let (Some(first), 2..) = (bytes(&owner), holder.mode.taken()) {
            further.extend(self::permits(first, holder.mode.taken().min(MOST_AT_ONCE)).skip(1).map(hex));
        }
        holders.push((owner, holder));
    }
    holders.retain(|(owner, _)| !further.contains(owner));
    let holders = holders.into_iter().map(|(_, holder)| holder).collect();
    Some(Occupancy::new(of.filter(|of| *of > 0), holders))
}

fn hex(id: [u8; 16]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(id: &str) -> Option<[u8; 16]> {
    u128::from_str_radix(id, 16).ok().filter(|_| id.len() == 32).map(u128::to_be_bytes)
}

/// Returns the semaphore whose sorted set of permits has this name; `None` if there is none.
pub(super) fn semaphore_of(name: &str) -> Option<&str> {
    Some(without_braces(name.strip_suffix(TIMEOUTS)?.strip_suffix(':')?))
}

/// Returns the lock whose queue has this name; `None` if there is none.
pub(super) fn lock_of_line(name: &str) -> Option<&str> {
    Some(without_braces(name.strip_prefix(QUEUE)?.strip_prefix(':')?))
}

fn without_braces(name: &str) -> &str {
    let inner = name.strip_prefix('{').and_then(|name| name.strip_suffix('}'));
    inner.filter(|inner| !inner.contains('{')).unwrap_or(name)
}

/// Returns `true` if this name is that of the hash beside a lock.
pub(super) fn is_side(name: &str) -> bool {
    name.contains('{') && name.strip_suffix(SIDE).is_some_and(|lock| lock.ends_with(':'))
}

/// Returns the pattern of the sorted sets of permits, for `SCAN`.
pub(super) fn pattern() -> String {
    format!("*:{TIMEOUTS}")
}

/// Returns the pattern of queues of waiters, for `SCAN`.
pub(super) fn pattern_of_lines() -> String {
    format!("{QUEUE}:*")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "00112233445566778899aabbccddeeff";

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn permits_of_a_claim_differ_and_the_first_is_its_token() {
        let ids: Vec<_> = permits(bytes(TOKEN).unwrap(), 300).collect();
        assert_eq!(hex(ids[0]), TOKEN);
        let different: std::collections::HashSet<_> = ids.iter().collect();
        assert_eq!(different.len(), 300);
        assert!(check(Mode::Permits { of: 2_000, take: 1_001 }).is_err());
        check(Mode::Permits { of: 2_000, take: 1_000 }).unwrap();
    }

    #[test]
    fn holders_of_both_sides_are_told_apart() {
        let reply = |parts: &[Value]| Value::Array(parts.to_vec());
        let java = "0a1b2c3d-0000-4000-8000-00000000000a:17";
        let looked = reply(&[
            Value::Int(200),
            bulk(java),
            bulk("1"),
            Value::Int(300),
            bulk("x:y:write"),
            bulk("12 host=a pid=5"),
        ]);
        let found = seen(false, looked).unwrap().holders;
        assert_eq!((found[0].label.as_deref(), found[0].mode), (Some(java), Mode::Shared));
        assert_eq!((found[1].pid, found[1].mode), (Some(5), Mode::Exclusive));
        let second = hex(permits(bytes(TOKEN).unwrap(), 2).nth(1).unwrap());
        let looked = reply(&[
            Value::Int(4),
            Value::Int(-1),
            bulk("ffffffffffffffffffffffffffffffff"),
            bulk(""),
            Value::Int(90),
            bulk(TOKEN),
            bulk("2 12 host=a pid=5"),
            Value::Int(90),
            bulk(&second),
            bulk(""),
        ]);
        let found = seen(true, looked).unwrap();
        assert_eq!((found.permits, found.taken(), found.holders.len()), (Some(4), 3, 2));
        assert_eq!(found.holders[0].expires_in, None, "without a lease");
        assert_eq!(found.holders[1].fence.map(|fence| fence.get()), Some(12));
        for nonsense in [Value::Nil, reply(&[bulk("x")]), reply(&[Value::Int(4), Value::Int(1)])] {
            assert_eq!(seen(true, nonsense.clone()), None, "{nonsense:?}");
        }
    }

    #[test]
    fn the_semaphore_of_a_sorted_set_is_found_again() {
        for lock in ["gpu", "shop:gpu", "gpu:{7}", "{a}b", "a b"] {
            assert!(is_side(&suffixed_with(lock, SIDE)) && !is_side(lock));
            assert_eq!(semaphore_of(&suffixed_with(lock, TIMEOUTS)), Some(lock));
            assert_eq!(lock_of_line(&queue(lock)), Some(lock));
        }
        assert_eq!(semaphore_of("gpu"), None);
    }
}
