//! dlock's own formats of shared locks, and of locks with a queue of waiters: a hash with a field for each holder and
//! waiter. See the scripts for its fields.
//!
//! The key of a lock that is not fair (shares.lua):
//!
//! | the key | event | the key then |
//! |---|---|---|
//! | absent | an acquire of a reader, or of permits | a hash with `n > 0` |
//! | absent | an acquire of a writer that found readers before | a string, as in `plain` |
//! | a string | its downgrade | a hash with `n = 1`, and with `F` if a queue waits for it |
//! | a string with ` ?!` | its release | a hash with `r`: for a moment only readers are let in |
//! | a hash, `n > 0` | a waiter with preference finds it taken | the same with `w`: newcomers are kept out |
//! | a hash, `n > 0` | the last withdraws | absent; with `of` a hash that remembers the number of permits; with `F` a hash with `f` |
//!
//! The key of a fair lock (fair.lua), while it is no string and has no readers:
//!
//! | the key | event | the key then |
//! |---|---|---|
//! | absent | an acquire | held: a hash with `f` and `n = 1` |
//! | held | a withdrawal, and no waiter is alive | absent |
//! | held | a withdrawal, or an acquire behind the end of the lease; the first waiter has a mark, and a fence can be drawn | held by that waiter until it would lose its place, with a message to it |
//! | held | as before, without a mark or a fence | kept for the first waiter, which a withdrawal notifies |
//! | kept | the first waiter asks | held by it |
//! | kept | the first waiter loses its place | kept for the next one; absent without any |

use std::time::Duration;

use dlock_core::backend::{Mode, Occupancy};
use dlock_core::{Fence, Holder, Token};
use redis::{Cmd, Value};

use super::plain::{self, hex};
use super::{Script, hash_of, since, text};
use crate::keys::Names;
use crate::request::{Answer, By, CallNumber, Request, ScriptKind, Step};

const TEXT: &str = concat!(include_str!("head.lua"), include_str!("line.lua"), include_str!("shares.lua"));
static SCRIPT: Script = Script::new(TEXT, || hash_of(TEXT));
const FAIR_TEXT: &str = concat!(include_str!("head.lua"), include_str!("line.lua"), include_str!("fair.lua"));
static FAIR: Script = Script::new(FAIR_TEXT, || hash_of(FAIR_TEXT));

/// Makes the call of a request.
pub(super) fn call(request: &Request, by: By, number: CallNumber) -> Cmd {
    let is_fair = request.kind == ScriptKind::Fair;
    // The counter is a key of the call only if a fence may be drawn: another key may lie in a slot that is being moved.
    let grants = match request.step {
        Step::Acquire { .. } => true,
        Step::Withdraw { passes_on } => passes_on && is_fair,
        Step::Renew { .. } | Step::Downgrade { .. } => false,
    };
    let script = if is_fair { &FAIR } else { &SCRIPT };
    let mut cmd = script.call(by, 1 + usize::from(grants), 16);
    cmd.arg(&*request.names.lock);
    if grants {
        cmd.arg(&*request.names.counter);
    }
    cmd.arg(number.0);
    let token = hex(&request.token);
    match &request.step {
        Step::Acquire { lease, listens, who, prefers, mark, .. } => {
            let mode = request.mode;
            cmd.arg("acquire").arg(&token).arg(*lease);
            match mode {
                Mode::Permits { of, .. } => cmd.arg(of),
                mode => cmd.arg(mode.as_str()),
            };
            let mut line = Vec::new();
            who.write(&mut line);
            cmd.arg(mode.taken()).arg(i32::from(*prefers)).arg(i32::from(*listens)).arg(line);
            if is_fair {
                cmd.arg(mark.map(|mark| mark.to_string()).unwrap_or_default());
            }
        }
        Step::Renew { lease, .. } => drop(cmd.arg("renew").arg(&token).arg(*lease)),
        Step::Downgrade { lease } => drop(cmd.arg("downgrade").arg(&token).arg(*lease)),
        Step::Withdraw { .. } => drop(cmd.arg("withdraw").arg(&token)),
    }
    cmd
}

/// Reads the result of a step; `None` if it is malformed.
pub(super) fn read(result: Value, step: &Step, mode: Mode) -> Option<Answer> {
    match (step, result) {
        (Step::Acquire { .. }, result) => taken(result, mode),
        (_, Value::Int(1)) => Some(Answer::Done(true)),
        (_, result) => plain::answer(result),
    }
}

/// Reads the result of an acquire.
pub(super) fn taken(result: Value, mode: Mode) -> Option<Answer> {
    let parts = match result {
        Value::Int(fence) => {
            return u64::try_from(fence).ok().filter(|fence| *fence > 0).map(Answer::Granted);
        }
        Value::Array(parts) => parts,
        _ => return None,
    };
    match &parts[..] {
        [Value::Int(fence)] => Some(Answer::Adopted(u64::try_from(*fence).ok())),
        [Value::Int(-1), Value::Int(of)] => Some(Answer::Used(used(*of)?)),
        [Value::Int(left), Value::BulkString(value)] => {
            let left = u64::try_from(*left).ok().map(Duration::from_millis);
            match Stored::parse(std::str::from_utf8(value).ok()?) {
                Some(stored) => {
                    Some(Answer::Busy { left, holder: Box::new(stored.holder(mode.permits(), left)) })
                }
                None if value.is_empty() => Some(Answer::KeptOut { left }),
                None => plain::answer(Value::Array(parts)),
            }
        }
        _ => plain::answer(Value::Array(parts)),
    }
}

/// Returns the mode of a key by its number of permits, 0 of a lock.
fn used(of: i64) -> Option<Mode> {
    Some(match u32::try_from(of).ok()? {
        0 => Mode::Exclusive,
        of => Mode::Permits { of, take: 1 },
    })
}

/// The stored value of one holder.
struct Stored<'a> {
    until: u64,
    taken: u32,
    fence: u64,
    who: &'a str,
}

impl<'a> Stored<'a> {
    fn parse(value: &'a str) -> Option<Self> {
        let mut parts = value.splitn(4, ' ');
        let mut number = || parts.next()?.parse().ok();
        let (until, taken, fence): (u64, u64, u64) = (number()?, number()?, number()?);
        Some(Self { until, taken: u32::try_from(taken).ok()?, fence, who: parts.next().unwrap_or_default() })
    }

    fn holder(&self, of: Option<u32>, left: Option<Duration>) -> Holder {
        let mut holder = Holder::parse(self.who);
        holder.fence = Some(Fence::new(self.fence));
        holder.expires_in = left;
        holder.since = since(self.fence);
        holder.mode = match of {
            Some(of) => Mode::Permits { of, take: self.taken },
            None if self.taken == 0 => Mode::Exclusive,
            None => Mode::Shared,
        };
        holder
    }
}

/// Returns the channel on which a waiter in the queue is notified of its turn.
pub(crate) fn place_channel(names: &Names, token: &Token) -> String {
    format!("{}#{}", names.lock, token.to_hex())
}

/// Reads the message that grants the lock on that channel: the mark of the waiter's last request, and the fence.
pub(super) fn given(text: &str) -> Option<(u64, u64)> {
    let (mark, fence) = text.split_once(' ')?;
    let (mark, fence) = (mark.parse().ok()?, fence.parse().ok()?);
    (fence > 0).then_some((mark, fence))
}

/// Makes the call that looks at the holders of a lock. This call and those below are rarely used, so that servers need
/// not keep the script.
pub(crate) fn look(lock: &str, number: CallNumber) -> Cmd {
    rare(lock, number, "look", "")
}

/// Reads the result of [`look`]; `None` if it is malformed.
pub(crate) fn seen(looked: Value) -> Option<Occupancy> {
    let Value::Array(parts) = looked else { return None };
    let mut parts = parts.into_iter();
    let Value::Int(of) = parts.next()? else { return None };
    let of = u32::try_from(of).ok().filter(|of| *of > 0);
    let now: u64 = text(parts.next()?)?.parse().ok()?;
    let holder = |value: Value| {
        let value = text(value)?;
        let stored = Stored::parse(&value)?;
        Some(stored.holder(of, Some(Duration::from_millis(stored.until.saturating_sub(now)))))
    };
    let holders = parts.map(holder).collect::<Option<_>>()?;
    Some(Occupancy::new(of, holders))
}

/// Makes the call that changes the number of permits.
pub(crate) fn resize(lock: &str, permits: u32, number: CallNumber) -> Cmd {
    rare(lock, number, "resize", &permits.to_string())
}

/// Reads the number of permits before, or the mode of the key if it is no semaphore; `None` if the result is malformed.
pub(crate) fn resized(result: &Value) -> Option<Result<Option<u32>, Mode>> {
    Some(match result {
        Value::Int(before) => Ok(u32::try_from(*before).ok().filter(|before| *before > 0)),
        Value::Array(_) => Err(Mode::Exclusive),
        _ => return None,
    })
}

/// Makes the call that releases a lock by force: whoever holds it, or only if the holders have these fences. Its result
/// is 1 if there was a holder.
pub(crate) fn force(lock: &str, meant: &[Vec<u8>], number: CallNumber) -> Cmd {
    rare(lock, number, "force", &String::from_utf8_lossy(&meant.join(&b' ')))
}

/// Returns what distinguishes the holders that a look found: their fences.
pub(super) fn identities(looked: &Value) -> Vec<Vec<u8>> {
    let Value::Array(parts) = looked else { return Vec::new() };
    let fence = |value: &Value| match value {
        Value::BulkString(value) => value.split(|byte| *byte == b' ').nth(2).map(<[u8]>::to_vec),
        _ => None,
    };
    parts.iter().skip(2).filter_map(fence).collect()
}

fn rare(lock: &str, number: CallNumber, operation: &str, argument: &str) -> Cmd {
    let mut cmd = SCRIPT.call(By::Text, 1, 8);
    cmd.arg(lock).arg(number.0).arg(operation).arg(argument);
    cmd
}

#[cfg(test)]
mod tests {
    use super::super::no_lock;
    use super::*;
    use crate::request::Who;

    const STEP: Step = Step::Withdraw { passes_on: true };

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    const MODE: Mode = Mode::Permits { of: 4, take: 2 };

    fn acquire() -> Step {
        Step::Acquire {
            lease: 5_000,
            listens: false,
            who: Who::text("host=a pid=5"),
            fences: 1,
            prefers: true,
            mark: None,
        }
    }

    #[test]
    fn one_who_holds_it_alone_with_others_in_line_is_told_apart() {
        let reply = Value::Array(vec![Value::Int(-1), bulk("99 0 12 host=a pid=5")]);
        let answer = read(reply, &acquire(), Mode::Exclusive);
        let Some(Answer::Busy { left: None, holder }) = answer else { panic!() };
        assert_eq!((holder.mode, holder.fence), (Mode::Exclusive, Some(Fence::new(12))));
    }

    #[test]
    fn only_a_mark_and_a_fence_are_a_grant() {
        assert_eq!(given("7123456789 1795397472557335"), Some((7_123_456_789, 1_795_397_472_557_335)));
        for nonsense in ["", "7", "7 ", " 7", "7 0", "7 8 9", "7 -8", "x 8", "7 x", "99999999999999999999 8"]
        {
            assert_eq!(given(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn answers_are_told_apart() {
        let acquire = acquire();
        assert_eq!(read(Value::Int(7), &acquire, MODE), Some(Answer::Granted(7)));
        assert_eq!(read(Value::Int(0), &acquire, MODE), None, "a grant has a fence");
        assert_eq!(read(Value::Array(vec![Value::Int(7)]), &acquire, MODE), Some(Answer::Adopted(Some(7))));
        let used = |of| read(Value::Array(vec![Value::Int(-1), Value::Int(of)]), &acquire, MODE);
        assert_eq!(used(0), Some(Answer::Used(Mode::Exclusive)));
        assert_eq!(used(5), Some(Answer::Used(Mode::Permits { of: 5, take: 1 })));
        let busy = |value| read(Value::Array(vec![Value::Int(30), bulk(value)]), &acquire, MODE);
        let Some(Answer::Busy { left, holder }) = busy("99 2 12 host=a pid=5") else { panic!() };
        assert_eq!((left, holder.pid), (Some(Duration::from_millis(30)), Some(5)));
        assert_eq!(holder.fence, Some(Fence::new(12)));
        assert!(matches!(busy(""), Some(Answer::KeptOut { left: Some(_) })));
        assert_eq!(busy("nonsense"), Some(no_lock()));
        for (reply, answer) in [
            (0, Answer::Done(false)),
            (1, Answer::Done(true)),
            (2, Answer::Awaited { listening: 1, reader: false }),
        ] {
            assert_eq!(read(Value::Int(reply), &STEP, MODE), Some(answer));
        }
        for nonsense in [Value::Nil, Value::Array(vec![]), bulk("x")] {
            assert_eq!(read(nonsense.clone(), &acquire, MODE), None, "{nonsense:?}");
        }
    }

    #[test]
    fn all_holders_are_read_or_none() {
        let reply = Value::Array;
        let found =
            seen(reply(vec![Value::Int(4), bulk("100"), bulk("130 3 7 pid=5"), bulk("150 1 8 pid=6")]));
        let found = found.unwrap();
        assert_eq!((found.permits, found.taken(), found.holders.len()), (Some(4), 4, 2));
        assert_eq!(found.holders[0].expires_in, Some(Duration::from_millis(30)));
        assert_eq!(seen(reply(vec![Value::Int(0), bulk("100")])), Some(Occupancy::default()));
        assert_eq!(seen(reply(vec![Value::Int(0), bulk("100"), bulk("x")])), None);
        assert_eq!(resized(&Value::Int(3)), Some(Ok(Some(3))));
        assert_eq!(resized(&Value::Int(0)), Some(Ok(None)));
    }
}
