//! What is sent to a server: one call of a script, and how it gets there.
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
//! | [`Command::Ask`] | as its maker says | directly | | | |
//!
//! * **hash**: where the server does not know the script, the call is repeated with its text. After `ASK` the text is
//!   sent at once. Scripts that are rarely used are always named by their text, so that servers need not keep them.
//! * **queued**: shares a call with others that wait on its connection; directly where nothing else is under way there,
//!   and after `ASK`.
//! * **in turn**: directly, and not more than 256 at once on a connection.
//! * **`WAIT`**: where replicas have to acknowledge, the server is asked behind the call how many did.
//! * **at ...**: what such a refusal is to the maker of the command, who then asks in another way. Other refusals are
//!   failures.

use redis::{Cmd, Value};
use smallvec::smallvec;

use crate::error::Fault;
use crate::format::Format;
use crate::request::{Answer, Answers, By, CallNumber, Request, ScriptKind, Step};

/// One call of a script.
#[derive(Clone, Copy)]
pub(crate) enum Command<'a> {
    /// Steps on locks, each for itself. Several are of [`ScriptKind::Exclusive`] and on different locks.
    Each(&'a [Request]),
    /// Acquires of several locks in one slot: all or none.
    All(&'a [Request]),
    /// What takes no lock.
    Ask(&'a Question<'a>),
}

/// A call that takes no lock.
pub(crate) struct Question<'a> {
    pub(crate) slot: u16,
    pub(crate) respondent: Respondent,
    pub(crate) call: &'a (dyn Fn(CallNumber) -> Cmd + Sync),
}

/// Who may answer a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Respondent {
    Master,
    /// A replica, too: nothing is changed, and the answer may be late.
    Any,
    /// The master, which then tells of changes of what was read. A replica that lags behind shows what is gone, and not
    /// what was granted a moment ago.
    TrackedMaster,
}

impl<'a> Command<'a> {
    /// One step on one lock.
    pub(crate) const fn of(request: &'a Request) -> Self {
        Self::Each(std::slice::from_ref(request))
    }

    /// The slot of its locks.
    pub(crate) fn slot(self) -> u16 {
        match self {
            Self::Each(requests) | Self::All(requests) => {
                requests.first().map_or(0, |first| first.names.slot)
            }
            Self::Ask(question) => question.slot,
        }
    }

    /// How many answers it has.
    pub(crate) const fn answers(self) -> usize {
        match self {
            Self::Each(requests) => requests.len(),
            Self::All(_) | Self::Ask(_) => 1,
        }
    }

    /// The only step, where it is one.
    pub(crate) const fn step(self) -> Option<&'a Request> {
        match self {
            Self::Each([request]) => Some(request),
            _ => None,
        }
    }

    /// Whether a replica may answer it.
    pub(crate) fn suits_replicas(self) -> bool {
        matches!(self, Self::Ask(question) if question.respondent == Respondent::Any)
    }

    /// Whether the server shall tell of changes of what is read.
    pub(crate) fn is_tracked(self) -> bool {
        match self {
            Self::Each(_) => self.step().is_some_and(|request| request.step.is_tracked()),
            Self::All(_) => false,
            Self::Ask(question) => question.respondent == Respondent::TrackedMaster,
        }
    }

    /// Whether a lock may be held by what it does, which replicas then have to know.
    pub(crate) fn grants(self) -> bool {
        match self {
            Self::Each(requests) => requests.iter().any(|request| !request.step.withdraws()),
            Self::All(_) => true,
            Self::Ask(_) => false,
        }
    }

    /// The answer that a refusal is, where what is asked for can be had in another way.
    pub(crate) fn answer_to(self, refusal: &Fault) -> Option<Answer> {
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
            (ScriptKind::Exclusive, Step::Acquire { .. }) if is_split => Some(Answer::SplitSlot),
            (ScriptKind::Exclusive, Step::Acquire { .. }) => Some(Answer::NoLock),
            (ScriptKind::TakeOver { .. }, _) if !is_split => Some(Answer::NoLock),
            (_, Step::Withdraw { passes_on: true }) if is_split => Some(Answer::SplitSlot),
            _ => None,
        }
    }

    /// Makes the call.
    pub(crate) fn call(self, format: &Format, by: By, number: CallNumber) -> Cmd {
        match self {
            Self::Each(requests) => format.call(requests, by, number),
            Self::All(requests) => format.call_all(requests, by, number),
            Self::Ask(question) => (question.call)(number),
        }
    }

    /// Reads what came of it; `None` when it makes no sense.
    pub(crate) fn read(self, format: &Format, result: Value) -> Option<Answers> {
        match self {
            Self::Each(requests) => format.read(result, requests),
            Self::All(requests) => Some(smallvec![format.read_all(result, requests.len())?]),
            Self::Ask(_) => Some(smallvec![Answer::Value(Box::new(result))]),
        }
    }
}
