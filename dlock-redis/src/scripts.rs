//! The requests that go to the server, and what comes back.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::{Cmd, Value};

use crate::keys::Names;

const TEXT: &str = include_str!("scripts/lock.lua");
static HASH: LazyLock<String> = LazyLock::new(|| redis::Script::new(TEXT).get_hash().to_owned());
const ALL_TEXT: &str = include_str!("scripts/batch.lua");
static ALL_HASH: LazyLock<String> = LazyLock::new(|| redis::Script::new(ALL_TEXT).get_hash().to_owned());

/// How the script is named to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// By its hash, which the server knows unless it was restarted or told to forget.
    Hash,
    /// By its text, from which the server learns it.
    Text,
}

/// One operation on one lock. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) names: Arc<Names>,
    pub(crate) owner: Arc<str>,
    pub(crate) step: Step,
}

/// What is to be done.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Acquire { lease: u64, who: Arc<str> },
    Renew { lease: u64 },
    Withdraw,
    Inspect,
}

impl Step {
    /// Whether a lock may be held by what this does, which replicas then have to know.
    pub(crate) const fn grants(&self) -> bool {
        matches!(self, Self::Acquire { .. } | Self::Renew { .. })
    }
}

/// The answer to one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Taken, with this fence.
    Granted(u64),
    /// It was taken before, with this fence, if it is still there.
    Adopted(Option<u64>),
    /// Somebody else has it; or anybody, when it was only looked at.
    Busy { left: Option<Duration>, who: Option<String>, fence: Option<u64> },
    /// Whether there was something of ours to renew or withdraw; no, when it was looked at and is free.
    Done(bool),
    /// The server refused, with this text.
    Refused(String),
}

/// The acquires of several locks in one slot, all or none.
#[derive(Clone, Debug)]
pub(crate) struct RequestAll(pub(crate) Vec<Request>);

/// The answer to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TakenAll {
    /// Granted or adopted, one for each.
    Taken(Vec<Answer>),
    /// Which one somebody else has, and what is known of that.
    Busy(usize, Answer),
}

impl RequestAll {
    /// The call of the script.
    pub(crate) fn call(&self, by: By) -> Cmd {
        let shared = self.0.iter().find(|request| !request.names.own_counter);
        let mut cmd = Cmd::with_capacity(4 + 5 * self.0.len(), 192 * self.0.len());
        match by {
            By::Hash => cmd.arg("EVALSHA").arg(ALL_HASH.as_str()),
            By::Text => cmd.arg("EVAL").arg(ALL_TEXT),
        };
        match shared {
            Some(request) => cmd.arg(1 + self.0.len()).arg(&*request.names.counter),
            None => cmd.arg(2 * self.0.len()),
        };
        for request in &self.0 {
            cmd.arg(&request.names.lock);
            if shared.is_none() {
                cmd.arg(&*request.names.counter);
            }
        }
        cmd.arg(i32::from(shared.is_some()));
        for request in &self.0 {
            let Step::Acquire { lease, who } = &request.step else {
                unreachable!("only acquires are joined")
            };
            cmd.arg(&*request.owner).arg(*lease).arg(&**who);
        }
        cmd
    }

    /// Reads the reply; `None` when it is not one.
    pub(crate) fn read(&self, reply: Value) -> Option<TakenAll> {
        let Value::Array(mut parts) = reply else { return None };
        if parts.is_empty() {
            return None;
        }
        match parts.remove(0) {
            Value::Int(0) if parts.len() == self.0.len() => {
                parts.into_iter().map(answer).collect::<Option<_>>().map(TakenAll::Taken)
            }
            Value::Int(place) => {
                let place =
                    usize::try_from(place).ok()?.checked_sub(1).filter(|place| *place < self.0.len())?;
                Some(TakenAll::Busy(place, answer(Value::Array(parts))?))
            }
            _ => None,
        }
    }
}

/// One call of the script with all these operations.
pub(crate) fn call<'a>(requests: impl Iterator<Item = &'a Request> + Clone, by: By) -> Cmd {
    let acquires = |request: &&Request| matches!(request.step, Step::Acquire { .. });
    // Requests that share a call share their server, and with it the counter.
    let shared: Option<&Request> =
        requests.clone().find(|request| acquires(request) && !request.names.own_counter);
    let (mut keys, mut grants) = (usize::from(shared.is_some()), 0);
    for request in requests.clone() {
        let counts_alone = acquires(&request) && request.names.own_counter;
        keys += 1 + usize::from(counts_alone);
        grants += usize::from(acquires(&request) && !counts_alone);
    }
    let mut cmd = Cmd::with_capacity(4 + 5 * keys, 192 * keys);
    match by {
        By::Hash => cmd.arg("EVALSHA").arg(HASH.as_str()),
        By::Text => cmd.arg("EVAL").arg(TEXT),
    };
    cmd.arg(keys);
    if let Some(request) = shared {
        cmd.arg(&*request.names.counter);
    }
    for request in requests.clone() {
        cmd.arg(&request.names.lock);
        if request.names.own_counter && acquires(&request) {
            cmd.arg(&*request.names.counter);
        }
    }
    cmd.arg(grants);
    for request in requests {
        let owner = &*request.owner;
        match &request.step {
            Step::Acquire { lease, who } => {
                cmd.arg(if request.names.own_counter { "f" } else { "a" }).arg(owner).arg(*lease).arg(&**who)
            }
            Step::Renew { lease } => cmd.arg("r").arg(owner).arg(*lease).arg(""),
            Step::Withdraw => cmd.arg("w").arg(owner).arg(&request.names.channel).arg(""),
            Step::Inspect => cmd.arg("i").arg("").arg("").arg(""),
        };
    }
    cmd
}

/// A call with nothing to do, which teaches the server the script and shows whether the user may run it.
pub(crate) fn introduction() -> Cmd {
    let mut cmd = redis::cmd("EVAL");
    cmd.arg(TEXT).arg(0).arg(0);
    cmd
}

/// Reads the reply to a call with `count` operations; `None` when it is not one.
pub(crate) fn read(reply: Value, count: usize) -> Option<Vec<Answer>> {
    let Value::Array(replies) = reply else { return None };
    if replies.len() != count {
        return None;
    }
    replies.into_iter().map(answer).collect()
}

fn answer(reply: Value) -> Option<Answer> {
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
                    let value = value.and_then(text);
                    let (fence, who) = match value.as_deref().and_then(ours) {
                        Some((fence, who)) => (Some(fence), Some(who.to_owned())),
                        // Another library's owner, who stores the count of its re-entries.
                        None => (None, owner.and_then(text)),
                    };
                    let left = left.try_into().ok().map(Duration::from_millis);
                    Answer::Busy { left, who, fence }
                }
                _ => return None,
            }
        }
        refused => Answer::Refused(text(refused)?),
    })
}

fn text(value: Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// The fence and the holder's line, of a value that dlock stored.
pub(crate) fn ours(value: &str) -> Option<(u64, &str)> {
    let (fence, who) = value.split_once(' ')?;
    Some((fence.parse().ok()?, who))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let left = Some(Duration::from_millis(250));
        assert_eq!(answers[5], Answer::Busy { left, who: Some("host=a".into()), fence: Some(7) });
        assert_eq!(answers[6], Answer::Busy { left: None, who: Some("uuid:5".into()), fence: None });
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
}
