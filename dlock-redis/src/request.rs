//! The requests to a server, and its answers.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{ClaimRequest, Mode, RequestClock, Withdrawal, holder_line};
use dlock_core::{Failure, Holder, Token};
use redis::Value;
use smallvec::SmallVec;

use crate::error::senseless;
use crate::keys::Names;

/// The form in which a script is named to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// By its hash, which the server knows unless it was restarted or its scripts were flushed.
    Hash,
    /// By its text, from which the server learns it.
    Text,
}

/// The number of a call on its connection, which is part of the reply. Replies come in the order of their calls, unless
/// something between client and server is broken: a reply that is repeated would pass for the reply to the next call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallNumber(pub(crate) u32);

impl CallNumber {
    /// Returns the result of the call: 0 for a reply of the number alone, and the integer before it in a reply of `
    /// <integer>+<number>`. Returns `None` if the reply belongs to another call.
    pub(crate) fn result_in(self, reply: Value) -> Option<Value> {
        match reply {
            Value::BulkString(text) => {
                let text = std::str::from_utf8(&text).ok()?;
                let (result, number) = match text.strip_prefix(' ') {
                    Some(both) => both.split_once('+')?,
                    None => ("0", text),
                };
                self.is(number).then(|| result.parse().ok().map(Value::Int))?
            }
            Value::Array(parts) => {
                let [result, Value::BulkString(number)] = <[Value; 2]>::try_from(parts).ok()? else {
                    return None;
                };
                self.is(std::str::from_utf8(&number).ok()?).then_some(result)
            }
            _ => None,
        }
    }

    fn is(self, number: &str) -> bool {
        number.parse() == Ok(self.0)
    }
}

/// Reads a text.
pub(crate) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text),
        _ => None,
    }
}

/// One step on one lock. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) names: Names,
    pub(crate) token: Token,
    pub(crate) mode: Mode,
    pub(crate) kind: ScriptKind,
    pub(crate) step: Step,
    /// The clock that is notified when the request enters the queue of a connection and when it is sent.
    pub(crate) clock: Option<RequestClock>,
}

/// The script that carries out a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScriptKind {
    /// The script of exclusive locks, of which many requests share a call.
    Exclusive,
    /// The script of shared locks: of readers and of permits. It knows exclusive locks, too.
    Shared,
    /// The script of locks with a queue of waiters.
    Fair,
    /// An exclusive acquire without the counter of fences, while a slot is being moved: without a fence yet, which is
    /// 0, or with the fence that was drawn since.
    SplitSlot { fence: u64 },
    /// An acquire of the lock that was left under this token.
    TakeOver { left: Token },
    /// A withdrawal that leaves the key taken for this time.
    Leave { millis: u64 },
}

/// A step on a lock.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Acquire {
        lease: u64,
        /// `true` if the claim is subscribed to releases already, so that the release has to be published.
        listens: bool,
        who: Who,
        /// The number of fences to reserve, if the script can.
        fences: u32,
        /// `true` if the claim keeps newcomers out while it waits, or takes a place in the queue.
        prefers: bool,
        /// The mark of this request in a message that grants the lock, for a claim in a queue that can be granted it
        /// so.
        mark: Option<u64>,
    },
    Renew {
        lease: u64,
        /// `true` if the server has to report the next change.
        tracked: bool,
    },
    /// Turns an exclusive lock into a reader's.
    Downgrade { lease: u64 },
    Withdraw {
        /// `true` if the lock is taken for the first in the queue in the same step, which needs the counter of fences.
        passes_on: bool,
    },
}

impl Step {
    /// Returns the lease for which the lock is to be held.
    pub(crate) const fn lease(&self) -> Option<u64> {
        match self {
            Self::Acquire { lease, .. } | Self::Renew { lease, .. } | Self::Downgrade { lease } => {
                Some(*lease)
            }
            Self::Withdraw { .. } => None,
        }
    }

    /// Returns the number of fences that the step takes of the counter.
    pub(crate) const fn fences(&self) -> u32 {
        match self {
            Self::Acquire { fences, .. } => *fences,
            _ => 0,
        }
    }

    pub(crate) const fn acquires(&self) -> bool {
        matches!(self, Self::Acquire { .. })
    }

    /// Returns `true` if the server has to report the next change.
    pub(crate) const fn is_tracked(&self) -> bool {
        matches!(self, Self::Renew { tracked: true, .. })
    }

    /// Returns `true` if the step may have to follow, on the same connection, the requests that were sent before.
    pub(crate) const fn withdraws(&self) -> bool {
        matches!(self, Self::Withdraw { .. })
    }
}

/// The line about the holder that is stored with the lock.
#[derive(Clone, Debug)]
pub(crate) struct Who {
    /// The text of the process, which is made once.
    line: Arc<str>,
    trace: Option<Arc<str>>,
}

/// The longest line about one holder: scripts read no more than 512 bytes of a lock.
const LONGEST: usize = 380;

impl Who {
    pub(crate) fn of(request: &ClaimRequest) -> Self {
        let trace = request.trace_context().map(Arc::from);
        Self { line: Arc::clone(request.identity.line()), trace }
    }

    #[cfg(test)]
    pub(crate) fn text(line: &str) -> Self {
        Self { line: line.into(), trace: None }
    }

    /// Writes the line that is stored, as far as there is room for whole fields.
    pub(crate) fn write(&self, to: &mut Vec<u8>) {
        for part in holder_line(&self.line, self.trace.as_deref(), LONGEST) {
            to.extend_from_slice(part.as_bytes());
        }
    }
}

/// The answers to each request of a call.
pub(crate) type Answers = SmallVec<[Answer; 1]>;

/// The answer to one request, or to a command without requests.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answer {
    /// The lock was granted with this fence.
    Granted(u64),
    /// The lock was granted before, with this fence if it is still stored.
    Adopted(Option<u64>),
    /// Another client holds the lock.
    Busy { left: Option<Duration>, holder: Box<Holder> },
    /// The lock is free, and kept for another waiter.
    KeptOut { left: Option<Duration> },
    /// The key is used in this mode, and another was asked for.
    Used(Mode),
    /// The key holds no exclusive lock, but a shared one, or data of other programs. Nothing was changed.
    NoLock,
    /// Of a renewal, downgrade or withdrawal: `true` if the token held the lock.
    Done(bool),
    /// The lock was withdrawn, and its release published to this number of connections, this process's among them.
    /// `reader` is `true` if a reader has left its mark.
    Awaited { listening: u32, reader: bool },
    /// The server refused the request with this text.
    Refused(String),
    /// The slot is being moved, so that lock and counter may lie on two servers. Nothing was changed.
    SplitSlot,
    /// Of a batch: granted or adopted, one for each.
    All(Vec<Self>),
    /// Of a batch: the position of a lock that another client holds, and the answer for it. Nothing was changed.
    BusyAt(usize, Box<Self>),
    /// Of a question: the result of its call.
    Value(Box<Value>),
}

impl Answer {
    /// Returns the outcome of the withdrawal that this answers.
    pub(crate) fn withdrawn(&self) -> Result<Withdrawal, Failure> {
        match self {
            Self::Done(true) => Ok(Withdrawal::REMOVED),
            // One listening connection is this process's own. It counts as well: most times this process has waiters
            // too.
            Self::Awaited { listening, reader } => {
                let others = (listening - 1).max(1);
                Ok(Withdrawal::REMOVED.with_others_waiting(others).with_reader_waiting(*reader))
            }
            Self::Done(false) => Ok(Withdrawal::ABSENT),
            _ => Err(senseless()),
        }
    }
}

/// A read that finds something as long as a claim has what it holds.
#[derive(Clone, Debug)]
pub(crate) struct Probe {
    pub(crate) command: &'static str,
    pub(crate) name: Arc<str>,
    /// The argument behind the name, or empty if there is none.
    pub(crate) part: Vec<u8>,
}

impl Probe {
    pub(crate) fn new(command: &'static str, name: &Arc<str>, part: impl Into<Vec<u8>>) -> Self {
        Self { command, name: Arc::clone(name), part: part.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_reply_with_the_number_of_the_call_is_the_reply_to_it() {
        let number = |text: &str| Value::BulkString(text.into());
        let reply = |parts: &[Value]| CallNumber(7).result_in(Value::Array(parts.to_vec()));
        assert_eq!(reply(&[Value::Int(5), number("7")]), Some(Value::Int(5)));
        assert_eq!(CallNumber(7).result_in(number("7")), Some(Value::Int(0)));
        assert_eq!(
            CallNumber(7).result_in(number(" 1795397472557335+7")),
            Some(Value::Int(1795397472557335))
        );
        for other in [
            &[Value::Int(5), number("6")][..],
            &[Value::Int(5), number("x")],
            &[Value::Int(5), Value::Int(7)],
            &[Value::Int(5)],
            &[Value::Int(5), Value::Int(5), number("7")],
        ] {
            assert_eq!(reply(other), None, "{other:?}");
        }
        let texts = ["", "6", " 7", " 5+6", "5+7", " +7", " x+7", " 5+7+7", " 7+5"].map(number);
        for other in [Value::Int(7), Value::Okay, Value::Nil].into_iter().chain(texts) {
            assert_eq!(CallNumber(7).result_in(other.clone()), None, "{other:?}");
        }
    }
}
