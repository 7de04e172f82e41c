//! What is asked of a server, and what it answers.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{ClaimRequest, RequestClock};
use dlock_core::{Holder, Identity, Token};

use crate::keys::Names;

/// How a script is named to the server.
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
    pub(crate) names: Names,
    pub(crate) token: Token,
    pub(crate) step: Step,
    /// What is called when it enters the queue of a connection and when it is sent.
    pub(crate) clock: Option<RequestClock>,
}

/// What is to be done.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Acquire {
        lease: u64,
        /// Whether its maker listens for releases already, so that whoever releases the lock has to publish it.
        listens: bool,
        who: Who,
    },
    Renew {
        lease: u64,
        /// Whether the server shall tell of the next change.
        tracked: bool,
    },
    Withdraw,
}

impl Step {
    /// Whether a lock may be held by what this does, which replicas then have to know.
    pub(crate) const fn grants(&self) -> bool {
        matches!(self, Self::Acquire { .. } | Self::Renew { .. })
    }

    /// For how long a lock is to be held.
    pub(crate) const fn lease(&self) -> Option<u64> {
        match self {
            Self::Acquire { lease, .. } | Self::Renew { lease, .. } => Some(*lease),
            Self::Withdraw => None,
        }
    }

    pub(crate) const fn acquires(&self) -> bool {
        matches!(self, Self::Acquire { .. })
    }
}

/// Who acquires: what is stored with the lock.
#[derive(Clone, Debug)]
pub(crate) struct Who {
    line: HolderLine,
    trace: Option<Arc<str>>,
}

/// The text of a process, made once.
#[derive(Clone, Debug)]
enum HolderLine {
    Of(Arc<Identity>),
    #[cfg(test)]
    Text(Arc<str>),
}

/// What is stored of one holder at the most: scripts read no more than 512 bytes of a lock.
const LONGEST: usize = 400;

impl Who {
    pub(crate) fn of(request: &ClaimRequest) -> Self {
        let trace = request.trace_context().map(Arc::from);
        Self { line: HolderLine::Of(Arc::clone(&request.identity)), trace }
    }

    #[cfg(test)]
    pub(crate) fn text(line: &str) -> Self {
        Self { line: HolderLine::Text(line.into()), trace: None }
    }

    /// Writes the line that is stored, as far as there is room for whole fields.
    pub(crate) fn write(&self, to: &mut Vec<u8>) {
        let line = match &self.line {
            HolderLine::Of(identity) => identity.line(),
            #[cfg(test)]
            HolderLine::Text(text) => text,
        };
        let end = if line.len() <= LONGEST { line.len() } else { line[..LONGEST].rfind(' ').unwrap_or(0) };
        to.extend_from_slice(&line.as_bytes()[..end]);
        if let Some(trace) = &self.trace
            && end + trace.len() < LONGEST
        {
            to.extend_from_slice(b" trace=");
            to.extend_from_slice(trace.as_bytes());
        }
    }
}

/// The answer to one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Taken, with this fence.
    Granted(u64),
    /// It was taken before, with this fence, if it is still there.
    Adopted(Option<u64>),
    /// Somebody else has it.
    Busy { left: Option<Duration>, holder: Box<Holder> },
    /// Whether there was something of ours to renew or withdraw.
    Done(bool),
    /// The server refused, with this text.
    Refused(String),
    /// The slot is being moved, so that lock and counter may lie on two servers. Nothing was changed.
    Apart,
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
    /// The slot is being moved. Nothing was changed.
    Apart,
}

/// The acquire of one lock without its counter: without a fence yet, which is 0, or with the one that was drawn since.
#[derive(Clone, Debug)]
pub(crate) struct RequestAlone<'a> {
    pub(crate) request: &'a Request,
    pub(crate) fence: u64,
}

/// A fence for a lock that is held.
#[derive(Clone, Debug)]
pub(crate) struct Draw<'a>(pub(crate) &'a Names);
