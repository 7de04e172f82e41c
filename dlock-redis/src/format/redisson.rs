//! The format of Redisson's `RLock`: a hash with one field. Its name is the owner, and its value the fence and the line
//! about the holder.

use std::time::Duration;

use dlock_core::backend::Mode;
use dlock_core::{Fence, Holder};
use redis::{Cmd, Value};

use super::{Found, Script, hash_of, no_lock, since, text};
use crate::keys::suffixed;
use crate::request::{Answer, Answers, By, CallNumber, Request, Step, Who};

const TEXT: &str = include_str!("redisson.lua");
const ALL_TEXT: &str = include_str!("redisson_batch.lua");
pub(super) const RIGHTS: &str = include_str!("redisson_rights.lua");
pub(super) const SPLIT_SLOT: &str = include_str!("redisson_alone.lua");
pub(super) const FORCE: &str =
    concat!(include_str!("redisson_waiters.lua"), include_str!("redisson_force.lua"));
pub(super) const LOOK: &str =
    concat!(include_str!("redisson_waiters.lua"), include_str!("redisson_look.lua"));
pub(super) static SCRIPT: Script = Script::new(TEXT, || hash_of(TEXT));
static ALL: Script = Script::new(ALL_TEXT, || hash_of(ALL_TEXT));

/// Returns the channel on which Redisson publishes the releases of a lock.
pub(super) fn channel(lock: &str) -> String {
    suffixed("redisson_lock__channel", lock)
}

/// Returns the field of an owner, as Redisson's clients name theirs.
pub(super) fn owner(client: &str, request: &Request) -> String {
    [client, ":", &request.token.to_hex()].concat()
}

fn line(who: &Who) -> Vec<u8> {
    let mut line = Vec::with_capacity(64);
    who.write(&mut line);
    line
}

/// Makes the call of the script with these requests.
pub(super) fn call(requests: &[Request], (client, cluster): (&str, bool), by: By, number: CallNumber) -> Cmd {
    // Requests that share a call share their server, and with it the counter.
    let shared = requests.iter().find(|request| request.step.acquires() && !request.names.own_counter);
    let (mut keys, mut grants) = (usize::from(shared.is_some()), 0);
    for request in requests {
        let counts_alone = request.step.acquires() && request.names.own_counter;
        keys += 1 + usize::from(counts_alone);
        grants += usize::from(request.step.acquires() && !counts_alone);
    }
    let mut cmd = SCRIPT.call(by, keys, 5 + 5 * keys);
    if let Some(request) = shared {
        cmd.arg(&*request.names.counter);
    }
    for request in requests {
        cmd.arg(&*request.names.lock);
        if request.names.own_counter && request.step.acquires() {
            cmd.arg(&*request.names.counter);
        }
    }
    cmd.arg(grants).arg(number.0);
    for request in requests {
        let owner = owner(client, request);
        match &request.step {
            Step::Acquire { lease, who, .. } => {
                let what = if request.names.own_counter { "f" } else { "a" };
                cmd.arg(what).arg(owner).arg(*lease).arg(line(who))
            }
            Step::Renew { lease, .. } | Step::Downgrade { lease } => {
                cmd.arg("r").arg(owner).arg(*lease).arg(i32::from(request.step.is_tracked()))
            }
            Step::Withdraw { .. } => {
                cmd.arg("w").arg(owner).arg(channel(&request.names.lock)).arg(i32::from(cluster))
            }
        };
    }
    cmd
}

/// Reads the result of [`call`]; `None` if it is malformed.
pub(super) fn read(reply: Value, count: usize) -> Option<Answers> {
    let Value::Array(replies) = reply else { return None };
    if replies.len() != count {
        return None;
    }
    replies.into_iter().map(answer).collect()
}

/// Reads the answer to one request; `None` if it is malformed.
pub(super) fn answer(reply: Value) -> Option<Answer> {
    Some(match reply {
        Value::Int(number @ (0 | 1)) => Answer::Done(number == 1),
        Value::Int(fence) => Answer::Granted(fence.try_into().ok()?),
        Value::Array(parts) => {
            let mut parts = parts.into_iter();
            match (parts.next(), parts.next(), parts.next(), parts.next()) {
                (Some(value), None, ..) => {
                    Answer::Adopted(text(value).and_then(|value| Some(ours(&value)?.0)))
                }
                (Some(Value::Int(left)), owner, value, None) => {
                    let left = left.try_into().ok().map(Duration::from_millis);
                    let (owner, value) = (owner.and_then(text), value.and_then(text));
                    let Some(holder) = holder(owner, value, left) else { return Some(no_lock()) };
                    Answer::Busy { left, holder: Box::new(holder) }
                }
                _ => return None,
            }
        }
        refused => Answer::Refused(text(refused)?),
    })
}

/// The shape of a hash.
enum Shape {
    /// A lock with one owner, of any client: its value counts entries, or is dlock's.
    Lock,
    /// A lock with a mode besides: a claim waits for it, as a client of Redisson does.
    ReadWriteLock(Mode),
    Data,
}

impl Shape {
    /// Returns the shape by the only field, or by the mode of a hash with more fields.
    fn of(field: Option<&str>, value: Option<&str>) -> Self {
        let counts = |value: &str| !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
        match (field, value) {
            (Some("mode"), Some("read")) => Self::ReadWriteLock(Mode::Shared),
            (Some("mode"), Some("write")) => Self::ReadWriteLock(Mode::Exclusive),
            (_, Some(value)) if counts(value) || ours(value).is_some() => Self::Lock,
            _ => Self::Data,
        }
    }
}

/// Returns the fence and the line about the holder, in a value that dlock stored.
fn ours(value: &str) -> Option<(u64, &str)> {
    let (fence, who) = value.split_once(' ')?;
    Some((fence.parse().ok()?, who))
}

/// Returns the holder of a hash by its only field, or by the mode of one with more fields; `None` for data.
pub(super) fn holder(owner: Option<String>, value: Option<String>, left: Option<Duration>) -> Option<Holder> {
    match Shape::of(owner.as_deref(), value.as_deref()) {
        Shape::Lock => Some(owned(owner, value, left)),
        Shape::ReadWriteLock(mode) => {
            let mut holder = Holder::default();
            (holder.mode, holder.expires_in) = (mode, left);
            Some(holder)
        }
        Shape::Data => None,
    }
}

/// Returns the holder by the stored value: dlock's line, or else the owner field of another library.
pub(super) fn owned(owner: Option<String>, value: Option<String>, left: Option<Duration>) -> Holder {
    let mut holder = match value.as_deref().and_then(ours) {
        Some((fence, who)) => {
            let mut holder = Holder::parse(who);
            holder.since = holder.since.or_else(|| since(fence));
            holder.fence = (fence > 0).then(|| Fence::new(fence));
            holder
        }
        None => Holder::default(),
    };
    if holder == Holder::default() {
        // A lock of another library, which stores the count of its re-entries.
        holder.label = owner.filter(|owner| !owner.is_empty());
    }
    holder.expires_in = left;
    holder
}

/// Makes the call that takes all these locks or none.
pub(super) fn call_all(requests: &[Request], client: &str, by: By, number: CallNumber) -> Cmd {
    let shared = requests.iter().find(|request| !request.names.own_counter);
    let keys = if shared.is_some() { 1 + requests.len() } else { 2 * requests.len() };
    let mut cmd = ALL.call(by, keys, 5 + 5 * requests.len());
    if let Some(request) = shared {
        cmd.arg(&*request.names.counter);
    }
    for request in requests {
        cmd.arg(&*request.names.lock);
        if shared.is_none() {
            cmd.arg(&*request.names.counter);
        }
    }
    cmd.arg(i32::from(shared.is_some())).arg(number.0);
    for request in requests {
        if let Step::Acquire { lease, who, .. } = &request.step {
            cmd.arg(owner(client, request)).arg(*lease).arg(line(who));
        }
    }
    cmd
}

/// Reads the result of [`call_all`]; `None` if it is malformed.
pub(super) fn read_all(reply: Value, count: usize) -> Option<Answer> {
    let Value::Array(mut parts) = reply else { return None };
    if parts.is_empty() {
        return None;
    }
    match parts.remove(0) {
        Value::Int(0) if parts.len() == count => {
            parts.into_iter().map(answer).collect::<Option<_>>().map(Answer::All)
        }
        Value::Int(place) => {
            let place = usize::try_from(place).ok()?.checked_sub(1).filter(|place| *place < count)?;
            Some(Answer::BusyAt(place, Box::new(answer(Value::Array(parts))?)))
        }
        _ => None,
    }
}

/// Returns what distinguishes a lock that a look found from the next one: its owner.
pub(super) fn identity(looked: &Value) -> Vec<Vec<u8>> {
    let Value::Array(parts) = looked else { return Vec::new() };
    match (parts.get(1), parts.get(2)) {
        // The first waiter in the queue, which may hold the lock by then.
        (Some(Value::Int(0)), Some(Value::BulkString(owner))) => vec![[b"?", &**owner].concat()],
        (_, Some(Value::BulkString(owner))) => vec![owner.clone()],
        _ => Vec::new(),
    }
}

/// Reads the reply of the script that looks.
pub(super) fn seen(left: Option<Duration>, mut parts: impl Iterator<Item = Value>) -> Found {
    let (count, owner, value) = (parts.next(), parts.next().and_then(text), parts.next().and_then(text));
    match (count, Shape::of(owner.as_deref(), value.as_deref())) {
        (Some(Value::Int(0)), _) => match owner.filter(|owner| !owner.is_empty()) {
            Some(owner) => {
                let mut holder = Holder::default();
                (holder.label, holder.expires_in, holder.first_in_line) = (Some(owner), left, true);
                Found::Held(holder)
            }
            None => Found::Nothing,
        },
        (Some(Value::Int(1)), Shape::Lock) => Found::Held(owned(owner, value, left)),
        (Some(Value::Int(1..)), Shape::ReadWriteLock(_)) => Found::ReadWriteLock,
        (Some(Value::Int(1)), Shape::Data) => Found::Foreign,
        _ => Found::Data,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: &str = "0a1b2c3d-0000-4000-8000-00000000000a:17";

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn each_kind_of_reply_is_told_apart() {
        let replies = Value::Array(vec![
            Value::Int(1_700_000_000_000_000),
            Value::Int(1),
            Value::Int(0),
            Value::Array(vec![bulk("7 host=a")]),
            Value::Array(vec![bulk("1")]),
            Value::Array(vec![Value::Int(250), bulk("uuid:token"), bulk("7 host=a")]),
            Value::Array(vec![Value::Int(-1), bulk("uuid:5"), bulk("2")]),
            bulk("WRONGTYPE Operation against a key"),
        ]);
        let answers = read(replies, 8).unwrap();
        assert_eq!(answers[0], Answer::Granted(1_700_000_000_000_000));
        assert_eq!(answers[1..3], [Answer::Done(true), Answer::Done(false)]);
        assert_eq!(answers[3..5], [Answer::Adopted(Some(7)), Answer::Adopted(None)]);
        let busy = |answer: &Answer| match answer {
            Answer::Busy { left, holder } => (*left, (**holder).clone()),
            other => panic!("{other:?}"),
        };
        let (left, ours) = busy(&answers[5]);
        assert_eq!(left, Some(Duration::from_millis(250)));
        assert_eq!(
            (ours.host.as_deref(), ours.label.as_deref(), ours.fence),
            (Some("a"), None, Some(Fence::new(7)))
        );
        let (left, java) = busy(&answers[6]);
        assert_eq!((left, java.label.as_deref(), java.fence), (None, Some("uuid:5"), None));
        assert_eq!(answers[7], Answer::Refused("WRONGTYPE Operation against a key".into()));
    }

    #[test]
    fn replies_that_make_no_sense_are_no_answers() {
        let odd = [
            Value::Nil,
            Value::Array(vec![]),
            Value::Array(vec![Value::Int(-5)]),
            Value::Array(vec![Value::Array(vec![Value::Nil, Value::Nil, Value::Nil])]),
            Value::Array(vec![Value::Double(1.0)]),
        ];
        for reply in odd {
            assert_eq!(read(reply.clone(), 1), None, "{reply:?}");
        }
    }

    #[test]
    fn only_a_hash_with_one_owner_is_a_lock() {
        let look = |count, field: &str, value: &str| {
            let stored = [Value::Int(count), bulk(field), bulk(value)];
            seen(Some(Duration::from_millis(250)), stored.into_iter())
        };
        let Found::Held(ours) = look(1, OWNER, "7 host=a pid=5") else { panic!("not found") };
        assert_eq!((ours.host.as_deref(), ours.fence.map(|fence| fence.get())), (Some("a"), Some(7)));
        for owner in [OWNER, "no owner that anybody knows"] {
            let Found::Held(foreign) = look(1, owner, "2") else { panic!("not found") };
            assert_eq!(foreign.label.as_deref(), Some(owner));
        }
        assert_eq!(look(0, "", ""), Found::Nothing);
        let Found::Held(waiter) = look(0, OWNER, "") else { panic!("not found") };
        assert!(waiter.first_in_line && waiter.expires_in.is_some());
        assert_eq!(waiter.label.as_deref(), Some(OWNER));
        for (field, value) in [("name", "value"), (OWNER, ""), ("mode", ""), ("mode", "reads")] {
            assert_eq!(look(1, field, value), Found::Foreign, "{field} {value}");
        }
        for (count, value) in [(2, ""), (100, ""), (100, "x")] {
            assert_eq!(look(count, "mode", value), Found::Data, "{value}");
        }
        for (count, value) in [(1, "read"), (2, "read"), (100, "write")] {
            assert_eq!(look(count, "mode", value), Found::ReadWriteLock, "{value}");
        }
    }
}
