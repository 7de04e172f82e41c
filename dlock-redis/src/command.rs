//! The commands to a server: one call of a script each, and the way in which it is sent.
//!
//! | command | script by | sent | `WAIT` | at `TRYAGAIN` | at `WRONGTYPE` |
//! |---|---|---|---|---|---|
//! | [`Exclusive`](ScriptKind::Exclusive): acquire | hash | queued | yes | [`Answer::SplitSlot`] | [`Answer::NoLock`] |
//! | `Exclusive`: renewal | hash | queued | yes | | |
//! | `Exclusive`: withdrawal | hash | queued | | | |
//! | [`Shared`](ScriptKind::Shared), [`Fair`](ScriptKind::Fair): acquire, renewal, downgrade | hash | in turn | yes | | |
//! | `Shared`, `Fair`: withdrawal | hash | in turn | | `SplitSlot` if it passes the lock on | |
//! | [`SplitSlot`](ScriptKind::SplitSlot) | text | directly | yes | | |
//! | [`TakeOver`](ScriptKind::TakeOver) | text | directly | yes | | `NoLock` |
//! | [`Leave`](ScriptKind::Leave) | text | directly | | | |
//! | [`Command::All`] | hash | directly | yes | `SplitSlot` | `SplitSlot` |
//! | [`Command::Ask`] | as its caller says | directly | | | |
//!
//! * **hash**: if the server does not know the script, the call is repeated with its text. After `ASK` the text is sent
//!   at once. Rarely used scripts are always named by their text, so that servers need not keep them.
//! * **queued**: shares a call with others that wait on its connection. Sent directly if nothing else is under way
//!   there, and after `ASK`.
//! * **in turn**: sent directly, and at most 256 at once on a connection.
//! * **`WAIT`**: if replicas have to acknowledge, the server is asked behind the call how many did.
//! * **at ...**: the answer that such a refusal is to the caller, which then asks in another way. Other refusals are
//!   failures.

use redis::{Cmd, Value};
use smallvec::smallvec;

use crate::error::Fault;
use crate::format::Format;
use crate::request::{Answer, Answers, By, CallNumber, Request, ScriptKind, Step};

/// One call of a script.
#[derive(Clone, Copy)]
pub(crate) enum Command<'a> {
    /// Steps on locks, each by itself. Several are of [`ScriptKind::Exclusive`] and on different locks.
    Each(&'a [Request]),
    /// Acquires of several locks in one slot, all or none.
    All(&'a [Request]),
    /// A call that takes no lock.
    Ask(&'a Question<'a>),
}

/// A call that takes no lock.
pub(crate) struct Question<'a> {
    pub(crate) slot: u16,
    pub(crate) respondent: Respondent,
    pub(crate) call: &'a (dyn Fn(CallNumber) -> Cmd + Sync),
}

/// The servers that may answer a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Respondent {
    Master,
    /// The master or a replica: nothing is changed, and the answer may be late.
    Any,
    /// The master, which then reports changes of the keys that were read. A replica that lags behind shows what is
    /// gone, and not what was granted a moment ago.
    TrackedMaster,
}

impl<'a> Command<'a> {
    /// Makes the command of one step on one lock.
    pub(crate) const fn of(request: &'a Request) -> Self {
        Self::Each(std::slice::from_ref(request))
    }

    /// Returns the slot of the command's locks.
    pub(crate) fn slot(self) -> u16 {
        match self {
            Self::Each(requests) | Self::All(requests) => {
                requests.first().map_or(0, |first| first.names.slot)
            }
            Self::Ask(question) => question.slot,
        }
    }

    /// Returns the number of answers to the command.
    pub(crate) const fn answers(self) -> usize {
        match self {
            Self::Each(requests) => requests.len(),
            Self::All(_) | Self::Ask(_) => 1,
        }
    }

    /// Returns the request, if the command has only one.
    pub(crate) const fn step(self) -> Option<&'a Request> {
        match self {
            Self::Each([request]) => Some(request),
            _ => None,
        }
    }

    /// Returns `true` if a replica may answer the command.
    pub(crate) fn suits_replicas(self) -> bool {
        matches!(self, Self::Ask(question) if question.respondent == Respondent::Any)
    }

    /// Returns `true` if the server has to report changes of the keys that are read.
    pub(crate) fn is_tracked(self) -> bool {
        match self {
            Self::Each(_) => self.step().is_some_and(|request| request.step.is_tracked()),
            Self::All(_) => false,
            Self::Ask(question) => question.respondent == Respondent::TrackedMaster,
        }
    }

    /// Returns `true` if a lock may be held by the command, which replicas then have to know.
    pub(crate) fn grants(self) -> bool {
        match self {
            Self::Each(requests) => requests.iter().any(|request| !request.step.withdraws()),
            Self::All(_) => true,
            Self::Ask(_) => false,
        }
    }

    /// Returns the answer that a refusal stands for, if the caller can ask in another way.
    pub(crate) fn answer_to(self, refusal: &Fault) -> Option<Answer> {
        // Neither refusal took a lock: the server sends `TRYAGAIN` before it runs the script, and the script finds a
        // wrong type before it takes anything.
        let is_split = refusal.code() == Some("TRYAGAIN");
        if !is_split && !refusal.is_no_lock() {
            return None;
        }
        let request = match self {
            Self::Each(_) => self.step()?,
            Self::All(_) => return Some(Answer::SplitSlot),
            Self::Ask(_) => return None,
        };
        match (request.kind, &request.step) {
            // Lock and counter lie on two servers. The lock can be taken by its own key alone.
            (ScriptKind::Exclusive, Step::Acquire { .. }) if is_split => Some(Answer::SplitSlot),
            (ScriptKind::Exclusive, Step::Acquire { .. }) => Some(Answer::NoLock),
            (ScriptKind::TakeOver { .. }, _) if !is_split => Some(Answer::NoLock),
            (_, Step::Withdraw { passes_on: true }) if is_split => Some(Answer::SplitSlot),
            _ => None,
        }
    }

    /// Makes the call of the command.
    pub(crate) fn call(self, format: &Format, by: By, number: CallNumber) -> Cmd {
        match self {
            Self::Each(requests) => format.call(requests, by, number),
            Self::All(requests) => format.call_all(requests, by, number),
            Self::Ask(question) => (question.call)(number),
        }
    }

    /// Reads the result of the call; `None` if it is malformed.
    pub(crate) fn read(self, format: &Format, result: Value) -> Option<Answers> {
        match self {
            Self::Each(requests) => format.read(result, requests),
            Self::All(requests) => Some(smallvec![format.read_all(result, requests.len())?]),
            Self::Ask(_) => Some(smallvec![Answer::Value(Box::new(result))]),
        }
    }
}
